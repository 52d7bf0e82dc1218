"""Arrays as people and programs see them: which of their elements are in which state."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from reconciler.model.state import records, states
from reconciler.model.values import index_ranges
from reconciler.operations.views import view_types
from reconciler.store import StoreReader

#: How many earlier runs of an array are looked at.
RUNS_MAX = 20
#: The most runs of a list for which the whole array is counted: each takes a search.
WHOLES_MAX = 50
#: How many attempts are read to find the newest tries of some elements.
TRIES_MAX = 10_000
#: The place of each code of a state of elements among those that people look for first.
_PLACE = [states.ELEMENT_RANK.index(state) for state in states.ELEMENT_CODES]


def with_indexes(
    shown: view_types.JobView, record: records.JobRecord, reader: StoreReader
) -> view_types.JobView:
    """Return the view of an array with the indexes in each state; others as they are.

    Raises:
        StoreError: the store can't be read.
    """
    if record.spec.array_count is None:
        return shown
    indexes = {state.value: text for state, text in record.elements_by_state().items()}
    by_state = _whole(record, reader)
    return msgspec.structs.replace(
        shown,
        element_indexes=indexes,
        elements_of_all_runs={state: index_ranges.fold(of) for state, of in by_state.items()},
        whole_elements={state: len(of) for state, of in by_state.items()},
    )


def with_whole(
    shown: Sequence[view_types.JobView], jobs: Iterable[records.JobRecord], reader: StoreReader
) -> list[view_types.JobView]:
    """Return views of jobs, of runs of chosen elements with the numbers of those of all elements,
    for the first ``WHOLES_MAX`` of these.

    Raises:
        StoreError: the store can't be read.
    """
    found, count = list(shown), 0
    for place, job in enumerate(jobs):
        if count < WHOLES_MAX and (by_state := _whole(job, reader)):
            whole = {state: len(of) for state, of in by_state.items()}
            found[place] = msgspec.structs.replace(found[place], whole_elements=whole)
            count += 1
    return found


def _whole(record: records.JobRecord, reader: StoreReader) -> dict[str, list[int]]:
    """Return the elements of an array over all its runs, by state; none for any other run."""
    if record.spec.array_count is None or not record.spec.array_only:
        return {}
    return over_runs(record, earlier_runs(reader, record))


def leading_elements(record: records.JobRecord, most: int) -> tuple[int, ...]:
    """Return the elements of an array whose tries people look for first, those first of all.

    Elements that wait for their first try have none to be shown.

    Args:
        record: the run, with its notes.
        most: how many.
    """
    pending = states.ELEMENT_CODE[states.JobState.PENDING]
    tried = [
        element
        for element in record.spec.run_elements
        if record.elements[element] != pending or element in record.notes
    ]
    tried.sort(key=lambda element: _PLACE[record.elements[element]])
    return tuple(tried[:most])


def leading_tries(
    reader: StoreReader, record: records.JobRecord, elements: Sequence[int], most: int
) -> list[records.AttemptRecord]:
    """Return the newest try at each of some elements of an array, in the order of these.

    Args:
        reader: the store.
        record: the run.
        elements: in order.
        most: how many attempts; those of the last elements are left out.

    Raises:
        StoreError: the store can't be read.
    """
    place = {element: number for number, element in enumerate(elements)}
    found = reader.attempts(record.key, element=elements, newest=True, limit=TRIES_MAX)
    return sorted(found, key=lambda one: place[one.element])[:most]


def earlier_runs(reader: StoreReader, record: records.JobRecord) -> Iterator[records.JobRecord]:
    """Yield earlier runs of the same array of the same owner, the newest first, without notes.

    Raises:
        StoreError: the store can't be read.
    """
    spec, looked_at = record.spec, 0
    if spec.array_count is None:
        return
    for held in reader.holders_of([spec.name], until=record.submitted_at):
        if held.key == record.key or held.owner != spec.owner:
            continue
        looked_at += 1
        if looked_at > RUNS_MAX:
            return
        found = reader.run(held.key)
        if found is not None and found.spec.array_count is not None:
            yield found


def run_of_element(
    reader: StoreReader, record: records.JobRecord, element: int | None
) -> records.JobRecord:
    """Return the newest run, up to one of an array, that has an element; that one if none has.

    Elements that run again do so in a run of their own, which does not have the others.
    """
    if element is None or element in record.spec.run_elements:
        return record
    earlier = earlier_runs(reader, record)
    return next((one for one in earlier if element in one.spec.run_elements), record)


def over_runs(
    record: records.JobRecord, earlier: Iterable[records.JobRecord]
) -> dict[str, list[int]]:
    """Return the elements of an array by the state in the newest run that has each.

    Args:
        record: a run of chosen elements.
        earlier: its runs before, the newest first, read up to one of all elements.
    """
    found = {element: record.elements[element] for element in record.spec.run_elements}
    for run in earlier:
        for element in run.spec.run_elements:
            found.setdefault(element, run.elements[element])
        if not run.spec.array_only:
            break
    by_state: dict[int, list[int]] = {}
    for element, code in found.items():
        by_state.setdefault(code, []).append(element)
    return {states.ELEMENT_CODES[code].value: of for code, of in sorted(by_state.items())}

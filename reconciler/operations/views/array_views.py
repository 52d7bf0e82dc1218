"""Arrays as people and programs see them: which of their elements are in which state."""

from collections.abc import Iterable, Iterator

import msgspec

from reconciler.model.state import records, states
from reconciler.model.values import index_ranges
from reconciler.operations.views import view_types
from reconciler.store import StoreReader

#: How many earlier runs of an array are looked at.
RUNS_MAX = 20


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
    whole: dict[str, str] = {}
    if record.spec.array_only:
        whole = over_runs(record, earlier_runs(reader, record))
    return msgspec.structs.replace(shown, element_indexes=indexes, elements_of_all_runs=whole)


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


def over_runs(record: records.JobRecord, earlier: Iterable[records.JobRecord]) -> dict[str, str]:
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
    return {
        states.ELEMENT_CODES[code].value: index_ranges.fold(of)
        for code, of in sorted(by_state.items())
    }

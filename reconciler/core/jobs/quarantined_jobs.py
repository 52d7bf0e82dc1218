"""Jobs that nothing is decided about for a while, since no cycle passes with them.

They are as if they were not there: a cycle sees neither what git asks of them nor their records,
which stay as they are. Who depends on one of them and has not begun waits with it. Their names go
with the desired state into the journal, so that a replay leaves out the same.

Only time goes on for what they have on nodes: tasks whose time limit or deadline has passed are
told to leave. What that makes of the job is decided when it is decided about again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from reconciler.core import cycle_context, observed_state
from reconciler.core.jobs import lifecycle
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import EndReason

#: What is told of a job that waits with another one.
WAITS = (
    f"it waits for job {{job}}, on which it depends: {desired.DEFECT} keeps that from being decided"
)


def without(
    desired_state: desired.Desired, aside: Mapping[str, str], state: observed_state.ObservedState
) -> desired.Desired:
    """What git asks for, but for some jobs and those that have not begun and depend on them.

    Args:
        wanted: what git asks for.
        aside: names of jobs, with what is told of each.
        memory: what is known of runs.
    """
    out = dict(aside)
    users: dict[str, list[desired.Job]] = {}
    for spec in desired_state.jobs.values():
        for dependency in spec.depends_on:
            users.setdefault(dependency.job, []).append(spec)
    new = list(aside)
    while new:
        name = new.pop()
        for spec in users.get(name, ()):
            if spec.name not in out and waits(spec, state):
                out[spec.name] = WAITS.format(job=name)
                new.append(spec.name)
    return msgspec.structs.replace(
        desired_state,
        jobs={name: spec for name, spec in desired_state.jobs.items() if name not in out},
        refused={**desired_state.refused, **out},
        aside=out,
    )


def end_overdue(context: cycle_context.CycleContext) -> None:
    """Tell tasks of jobs that are left out to leave when their time is up, and wake for that."""
    for name, record in sorted(context.observed.aside.items()):
        for element in context.elements_with_attempts(name):
            attempts = context.attempts_of_element(name, element)
            ends_at = _ends_at(record.spec, attempts)
            if ends_at is None:
                continue
            if ends_at > context.now:
                context.wake(ends_at)
                continue
            for attempt in attempts:
                order = cycle_context.stop_order(context, record.spec, attempt, EndReason.TIMED_OUT)
                context.order_stop(attempt, order)


def _ends_at(spec: desired.Job, attempts: list[records.AttemptRecord]) -> float | None:
    """The first moment at which time ends a try; None: it never does."""
    moments = (lifecycle.time_is_up_at(spec, attempts), spec.deadline)
    return min((moment for moment in moments if moment is not None), default=None)


def waits(spec: desired.Job, state: observed_state.ObservedState) -> bool:
    """Whether a run that git asks for has nothing on a node, and has not come to its end."""
    record = state.jobs.get(spec.name) or state.aside.get(spec.name)
    if record is None:
        return spec.key not in state.past_runs
    if record.finished and (record.key == spec.key or spec.key in state.past_runs):
        return False
    return not state.has_attempts(spec.name)


def waiting(desired_state: desired.Desired, state: observed_state.ObservedState) -> list[str]:
    """Jobs that may be left out without leaving anything on a node alone."""
    found = [name for name, spec in desired_state.jobs.items() if waits(spec, state)]
    gone = sorted(state.active - desired_state.jobs.keys())
    found += [name for name in gone if not state.has_attempts(name)]
    return in_order(found, desired_state, state)


def unfinished(desired_state: desired.Desired, state: observed_state.ObservedState) -> list[str]:
    """All jobs about which there may be anything to decide."""
    found = dict.fromkeys(waiting(desired_state, state))
    found |= dict.fromkeys(sorted(state.active))
    return in_order(found, desired_state, state)


def in_order(
    names: Iterable[str], desired_state: desired.Desired, state: observed_state.ObservedState
) -> list[str]:
    """Jobs in the order in which they would be served: what others depend on before those."""

    def place(name: str) -> tuple[int, int]:
        record, spec = state.jobs.get(name), desired_state.jobs.get(name)
        known = spec or (record.spec if record is not None else None)
        order = record.order if record is not None else state.next_order
        return (-known.priority if known is not None else 0, order)

    ordered = sorted(names, key=place)
    return dependencies_first(ordered, desired_state.jobs)


def dependencies_first(names: Sequence[str], jobs: Mapping[str, desired.Job]) -> list[str]:
    """The same names in the same order, but for those behind which others of them wait."""
    among = set(names)
    found: dict[str, None] = {}
    for start in names:
        if start in found:
            continue
        path = [(start, _above(start, jobs))]
        entered = {start}
        while path:
            name, above = path[-1]
            following = next(
                (n for n in above if n in among and n not in found and n not in entered), None
            )
            if following is None:  # a circle keeps nobody here
                path.pop()
                found[name] = None
            else:
                entered.add(following)
                path.append((following, _above(following, jobs)))
    return list(found)


def _above(name: str, jobs: Mapping[str, desired.Job]) -> Iterator[str]:
    spec = jobs.get(name)
    return iter([one.job for one in spec.depends_on] if spec is not None else ())

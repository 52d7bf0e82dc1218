"""Jobs that are set aside for a while, because no cycle can be decided with them.

A cycle sees neither their documents nor their records, which stay as they are. Jobs that depend on
them and have not begun wait with them. Their names are in the desired state and the journal, so
that a replay leaves out the same. Only time goes on: tasks whose time limit or deadline has passed
are ordered to stop. The job's state follows when it is decided again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from reconciler.core import cycle_context, observed_state
from reconciler.core.jobs import verdicts
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import EndReason

#: Message of a job that waits for a quarantined one.
WAITS = f"it depends on job {{job}}, which {desired.INTERNAL_ERROR} prevents from being processed"


def without(
    desired_state: desired.Desired, aside: Mapping[str, str], state: observed_state.ObservedState
) -> desired.Desired:
    """Return a desired state without some jobs and those that have not begun and depend on them.

    Args:
        desired_state: what git asks for.
        aside: messages of the jobs to leave out, by name.
        state: what is known of runs.
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
        quarantined=out,
    )


def end_overdue(context: cycle_context.CycleContext, awaiting: frozenset[str]) -> None:
    """Order overdue tasks of quarantined jobs to stop, or request a cycle for that.

    Of jobs that are ``awaiting`` another try may be under way.
    """
    stops = context.stops
    for name, record in sorted(context.observed.quarantined.items()):
        if name in awaiting:
            continue
        for element in context.attempts.elements(name):
            attempts = context.attempts.of_element(name, element)
            ends_at = _ends_at(record.spec, attempts)
            if ends_at is None:
                continue
            if ends_at > context.now:
                context.alarm.wake(ends_at)
                continue
            for attempt in attempts:
                stops.order(record.spec, attempt, EndReason.TIMED_OUT)


def _ends_at(spec: desired.Job, attempts: list[records.AttemptRecord]) -> float | None:
    """Return the first moment at which time ends a try; None: none does."""
    moments = (verdicts.time_is_up_at(spec, attempts), spec.deadline)
    return min((moment for moment in moments if moment is not None), default=None)


def waits(spec: desired.Job, state: observed_state.ObservedState) -> bool:
    """Return True if a desired run has nothing on a node and has not ended."""
    record = state.jobs.get(spec.name) or state.quarantined.get(spec.name)
    if record is None:
        return spec.key not in state.past_runs
    if record.finished and (record.key == spec.key or spec.key in state.past_runs):
        return False
    return not state.has_attempts(spec.name)


def waiting(desired_state: desired.Desired, state: observed_state.ObservedState) -> list[str]:
    """Return the jobs that can be left out without leaving a task alone on a node."""
    found = [name for name, spec in desired_state.jobs.items() if waits(spec, state)]
    gone = sorted(state.active - desired_state.jobs.keys())
    found += [name for name in gone if not state.has_attempts(name)]
    return in_order(found, desired_state, state)


def unfinished(desired_state: desired.Desired, state: observed_state.ObservedState) -> list[str]:
    """Return all jobs about which there may be anything to decide."""
    found = dict.fromkeys(waiting(desired_state, state))
    found |= dict.fromkeys(sorted(state.active))
    return in_order(found, desired_state, state)


def in_order(
    names: Iterable[str], desired_state: desired.Desired, state: observed_state.ObservedState
) -> list[str]:
    """Return jobs in scheduling order, dependencies before their users."""

    def place(name: str) -> tuple[int, int]:
        record, spec = state.jobs.get(name), desired_state.jobs.get(name)
        known = spec or (record.spec if record is not None else None)
        order = record.order if record is not None else state.next_order
        return (-known.priority if known is not None else 0, order)

    ordered = sorted(names, key=place)
    return dependencies_first(ordered, desired_state.jobs)


def dependencies_first(names: Sequence[str], jobs: Mapping[str, desired.Job]) -> list[str]:
    """Return the names in the same order, except that dependencies among them come first."""
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
            if following is None:  # cycles are ignored
                path.pop()
                found[name] = None
            else:
                entered.add(following)
                path.append((following, _above(following, jobs)))
    return list(found)


def _above(name: str, jobs: Mapping[str, desired.Job]) -> Iterator[str]:
    spec = jobs.get(name)
    return iter([one.job for one in spec.depends_on] if spec is not None else ())

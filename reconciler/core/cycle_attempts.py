"""The attempts of one cycle: those observed, and those that the phases added or renewed.

A change of state is checked against the tables of ``model.state.states``.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from reconciler.core import cycle_cache
from reconciler.model.observed import task_reports
from reconciler.model.state import outcome, records, states
from reconciler.model.state.states import AttemptState

_NOTHING: Mapping[int, dict[str, None]] = {}


class CycleAttempts:
    """The attempts of tries that had not concluded when the cycle began, and new ones.

    Args:
        observed: attempts when the cycle began, by id.
        cache: indexes of these.
        actions: of this cycle. Starts and stops are added to them.

    Attributes:
        known: attempts when the cycle began, by id.
        renewed: new and renewed attempts, by id.
    """

    def __init__(
        self,
        observed: Mapping[str, records.AttemptRecord],
        cache: cycle_cache.CycleCache,
        actions: list[outcome.Action],
    ) -> None:
        self.renewed: dict[str, records.AttemptRecord] = {}
        self.known = observed
        self._cache = cache
        self._actions = actions
        #: Ids of new attempts, by job and element, and by node.
        self._added_by_job: dict[str, dict[int, list[str]]] = {}
        self._added_by_node: dict[str, list[str]] = {}

    def get(self, attempt_id: str) -> records.AttemptRecord | None:
        """Return an attempt, or None if it is not known or its try had concluded."""
        return self.renewed.get(attempt_id) or self.known.get(attempt_id)

    def live(self) -> Iterator[records.AttemptRecord]:
        """Yield every attempt that has not ended, oldest first."""
        renewed = self.renewed
        for attempt_id, attempt in self.known.items():
            if attempt_id not in renewed and attempt.state is not AttemptState.ENDED:
                yield attempt
        for attempt in renewed.values():
            if attempt.state is not AttemptState.ENDED:
                yield attempt

    def of_element(self, job: str, element: int) -> list[records.AttemptRecord]:
        """Return the attempts of the element's current try, with those that have ended."""
        renewed, known = self.renewed, self.known
        ids: Iterable[str] = self._cache.by_job.get(job, _NOTHING).get(element, ())
        if job in self._added_by_job:
            ids = (*ids, *self._added_by_job[job].get(element, ()))
        return [renewed.get(attempt_id) or known[attempt_id] for attempt_id in ids]

    def elements(self, job: str) -> list[int]:
        """Return the elements of a job that have a current try, ascending."""
        found = self._cache.by_job.get(job, _NOTHING).keys()
        return sorted(found | self._added_by_job.get(job, {}).keys())

    def has_job(self, job: str) -> bool:
        """Return True if a job has a current try."""
        return job in self._cache.by_job or job in self._added_by_job

    def of_node(self, node: str) -> list[records.AttemptRecord]:
        """Return the attempts on a node that have not ended."""
        renewed, known = self.renewed, self.known
        ids: Iterable[str] = self._cache.by_node.get(node, ())
        if node in self._added_by_node:
            ids = (*ids, *self._added_by_node[node])
        found = [renewed.get(attempt_id) or known[attempt_id] for attempt_id in ids]
        return [attempt for attempt in found if attempt.state is not AttemptState.ENDED]

    def add(self, attempt: records.AttemptRecord) -> None:
        """Add an attempt that this cycle decided to start."""
        self.bring_back(attempt)
        self._actions.append(outcome.StartAttempt(attempt=attempt.id, node=attempt.node))

    def bring_back(self, attempt: records.AttemptRecord) -> None:
        """Add an attempt of a try that had concluded, and is to be judged again."""
        self.renewed[attempt.id] = attempt
        elements = self._added_by_job.setdefault(attempt.job, {})
        elements.setdefault(attempt.element, []).append(attempt.id)
        self._added_by_node.setdefault(attempt.node, []).append(attempt.id)

    def renew(self, attempt: records.AttemptRecord, **changes: object) -> None:
        """Change an attempt; its state only as the table of states allows."""
        renewed = msgspec.structs.replace(attempt, **changes)
        if renewed.state is not attempt.state:
            states.check(
                f"attempt {attempt.id} on {attempt.node}",
                attempt.state,
                renewed.state,
                _story(attempt),
            )
        self.renewed[attempt.id] = renewed

    def tell_again(self, attempt: records.AttemptRecord) -> None:
        """Send an attempt's node its whole set again, so that it starts or goes on."""
        self._actions.append(outcome.StartAttempt(attempt=attempt.id, node=attempt.node))

    def lose(self, attempt: records.AttemptRecord, **changes: object) -> None:
        """End an attempt that will not be heard of again."""
        self.renew(attempt, state=AttemptState.ENDED, **changes)
        self._actions.append(outcome.WithdrawAttempt(attempt=attempt.id, node=attempt.node))

    def acknowledge(self, attempt_id: str, node: str) -> None:
        """Tell a node that the end of an attempt is known."""
        self._actions.append(outcome.Acknowledge(attempt=attempt_id, node=node))

    def order_stop(self, attempt: records.AttemptRecord, stop: records.StopOrder) -> None:
        """Order an attempt to stop, unless it was ordered before."""
        if attempt.stop is not None or attempt.state is AttemptState.ENDED:
            return
        state = attempt.state
        if state is not AttemptState.UNKNOWN:
            state = AttemptState.STOPPING
        self.renew(attempt, state=state, stop=stop)
        self._actions.append(outcome.StopAttempt(attempt=attempt.id, node=attempt.node))


def try_number_of(attempts: list[records.AttemptRecord], note: records.ElementNote) -> int:
    """Return the highest number of a try so far.

    Tasks that join an elastic element later have higher numbers, also those that are gone: a number
    used twice would name an attempt that its node had before and forgot.
    """
    return max([note.tries, *(attempt.try_number for attempt in attempts)])


def newest_saved(
    attempts: Iterable[records.AttemptRecord], note: records.ElementNote
) -> task_reports.Saved | None:
    """Return the newest checkpoint of an element, of its current try or of earlier ones."""
    known = [attempt.saved for attempt in attempts if attempt.saved is not None]
    if note.saved is not None:
        known.append(note.saved)
    return max(known, key=lambda saved: (saved.at, saved.path), default=None)


def _story(attempt: records.AttemptRecord) -> tuple[str, ...]:
    """Return lines about an attempt's past, for an error about its state."""
    lines = [f"assigned to {attempt.node} at {attempt.assigned_at}"]
    if attempt.started_at is not None:
        lines.append(f"started at {attempt.started_at}")
    if attempt.stop is not None:
        lines.append(f"told to stop ({attempt.stop.reason}) at {attempt.stop.at}")
    if attempt.ended_at is not None:
        lines.append(f"ended ({attempt.end_reason}) at {attempt.ended_at}")
    return tuple(lines)

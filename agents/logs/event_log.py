"""The events in an agent's log: its start, its connection to the controller, and its tasks."""

import threading
import time
from collections.abc import Callable, Iterable

from agents.host import operator_log
from agents.settings import AgentSettings
from agents.state import AgentState
from reconciler.model.state.records import AttemptReport, Inventory
from reconciler.model.state.states import AttemptState
from reconciler.model.values.quantities import counted, format_cpu, format_memory

OUTDATED = (
    "the supervisor is of another edition than this agent: it is replaced as soon as no task is on "
    "this node"
)
#: States of attempts that are logged; others are reported to the controller only.
_NEWS = frozenset({AttemptState.RUNNING, AttemptState.ENDED})


class EventLog:
    """The event log of one agent. All its threads write to it.

    Args:
        says: where events are written.
        clock: seconds that only go forward.
    """

    def __init__(
        self,
        settings: AgentSettings,
        says: operator_log.Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._says = says
        self._lock = threading.Lock()
        self._epoch = 0  # no controller has answered
        self._clock = clock
        self._answered_at = clock()
        self._lost = False

    def begins(self, offers: Inventory) -> None:
        """Log that the agent starts, and what it offers."""
        self._says.tell(
            f"agent {offers.agent_version} starts in {self._settings.root}, for the controller at "
            f"{self._settings.server}; it offers {_amounts(offers)}"
        )

    def left(self, *, dismissed: bool) -> None:
        """Log that a supervisor has gone. ``dismissed``: because the agent asked it to."""
        if dismissed:
            self._says.tell("the outdated supervisor has ended; starting a new one")
        else:
            self._says.say("the supervisor has died; ending its tasks and starting another")

    def supervised(
        self, known: Iterable[AttemptReport], holding: str, *, outdated: bool = False
    ) -> None:
        """Log that a supervisor is connected, with the tasks that it runs."""
        if outdated:
            self._says.tell(OUTDATED)
        alive = sum(report.state is not AttemptState.ENDED for report in known)
        going_on = f"; {_tasks(alive)} of an earlier agent keep running" if alive else ""
        self._says.tell(f"tasks are isolated by {holding}{going_on}")

    def unreached(self, problem: Exception, running: int) -> None:
        """Log that the controller did not answer as expected."""
        with self._lock:
            first, self._lost = not self._lost, True
        if first:
            self._says.tell(
                f"no connection to the controller: {problem}; {_tasks(running)} keep running; "
                "retrying",
                level="WARNING",
            )
        else:
            self._says.say(str(problem))

    def reached(self, epoch: int) -> None:
        """Log that a controller answered, if it is new or was unreachable."""
        with self._lock:
            before, lost, now = self._epoch, self._lost, self._clock()
            # the failed request may have been old: the silence began with the last answer
            away_s, self._answered_at = now - self._answered_at, now
            self._epoch, self._lost = max(before, epoch), False
        if not before:
            self._says.tell(f"registered with the controller of epoch {epoch}")
        elif lost:
            self._says.tell(
                f"connected to the controller again after {away_s:.0f} s; its epoch is {epoch}"
            )
        elif epoch > before:
            self._says.tell(f"the controller of epoch {epoch} leads now, after epoch {before}")

    def heard(
        self,
        reports: Iterable[AttemptReport],
        before: AgentState,
    ) -> None:
        """Log tasks that have started, ended or hang, given what was known before."""
        newest: dict[str, AttemptReport] = {}  # an attempt may start and end in the same reports
        for report in reports:
            known = newest.get(report.id) or before.known.get(report.id)
            newest[report.id] = report
            if report.state is AttemptState.STARTING and report.message:
                self._says.tell(f"task hangs: {report.message}", level="WARNING", attempt=report.id)
            if report.state not in _NEWS or (known and known.state is report.state):
                continue
            given = before.assignments.get(report.id)
            template = before.templates.get(given.template) if given else None
            job = template.job if template else ""
            unsaid = known is None or known.state is AttemptState.STARTING
            if unsaid and report.started_at is not None:  # it may have run and ended meanwhile
                on = f" on GPUs {_numbers(given.devices)}" if given and given.devices else ""
                self._says.tell(f"task started{on}", job=job, attempt=report.id)
            if report.state is AttemptState.ENDED:
                self._says.tell(f"task ended: {_end(report)}", job=job, attempt=report.id)

    def leaves(self, running: int, *, stops: bool) -> None:
        """Log that the agent stops, and what happens to its tasks."""
        rest = f"{_tasks(running)} {'are stopped' if stops else 'keep running'}"
        self._says.tell(f"agent stops; {rest}")


def not_deleted(count: int, path: str) -> str:
    """Return the problem of folders that can't be deleted, of which ``path`` is the last."""
    return (
        f"{counted(count, 'folder')} in the trash can't be deleted, the last is {path}: what is in "
        "it belongs to somebody else than the task's user, or somebody adds to it. To fix: look "
        "who misses it, then move or delete it"
    )


def _amounts(offers: Inventory) -> str:
    has = offers.capacity
    gpus: dict[str, int] = {}
    for gpu in offers.gpus:
        gpus[gpu.model] = gpus.get(gpu.model, 0) + 1
    shown = [f"{format_cpu(has.cpu_milli)} CPUs", format_memory(has.memory_bytes)]
    return ", ".join(shown + [f"{count} {model}" for model, count in sorted(gpus.items())])


def _tasks(count: int) -> str:
    return counted(count, "task")


def _numbers(devices: Iterable[int]) -> str:
    return ",".join(map(str, devices))


def _end(report: AttemptReport) -> str:
    """Format how an attempt ended."""
    how = []
    if report.end_reason is not None:
        how.append(report.end_reason.value)
    if report.exit_code is not None:
        how.append(f"exit code {report.exit_code}")
    if report.signal is not None:
        how.append(f"signal {report.signal}")
    if report.started_at is not None and report.ended_at is not None:
        how.append(f"after {max(0.0, report.ended_at - report.started_at):.1f} s")
    if report.message:
        how.append(report.message)
    return ", ".join(how)

"""The agent's state machine: events in, steps out. Pure.

Records of the supervisor and answers of the controller come in; steps for the agent come out. It
never uses a clock, a file or a socket, so that every situation is a row in a test's table. What the
supervisor reports is the truth; what the controller says is desired.
"""

import re
from collections.abc import Iterable

import msgspec

from reconciler.model import desired
from reconciler.model.observed import health_checks, job_commands, storage
from reconciler.model.policy import drift_kinds
from reconciler.model.protocol.agent_messages import (
    Assignment,
    AssignmentSet,
    LogRequest,
    SyncResponse,
    TaskTemplate,
)
from reconciler.model.protocol.session_messages import SessionRequest
from reconciler.model.state.records import AttemptReport, StopOrder
from reconciler.model.state.states import AttemptState, EndReason

#: Allowed attempt ids: an id becomes the name of a folder and of two files.
ATTEMPT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,239}")
#: How long a task may go on writing that already takes too much of the disk.
DISK_GRACE_S_MAX = 10
#: Attempts in one request. A request that leaves some out is not complete.
REPORTS_MAX = 20_000


class Start(msgspec.Struct, frozen=True):
    """Start an attempt that is unknown here."""

    assignment: Assignment
    template: TaskTemplate


class Release(msgspec.Struct, frozen=True):
    """Start an attempt that was held until its gang was ready."""

    attempt: str


class Refuse(msgspec.Struct, frozen=True):
    """Record durably that an attempt ended here without starting."""

    attempt: str
    reason: EndReason
    message: str


class EndAttempt(msgspec.Struct, frozen=True):
    """End a running attempt. ``grace_s``: None for the time it was started with. ``message``: why,
    besides the reason. ``to``: who gets a signal that asks to save.
    """

    attempt: str
    reason: EndReason
    signal: str = "SIGTERM"
    grace_s: int | None = None
    message: str = ""
    to: str = ""


class Forget(msgspec.Struct, frozen=True):
    """Delete what is kept of attempts whose end the controller knows."""

    attempts: tuple[str, ...]


class SaveEpoch(msgspec.Struct, frozen=True):
    """Remember across restarts that a leader of this epoch exists."""

    epoch: int


class SaveProofs(msgspec.Struct, frozen=True):
    """Remember across restarts what proves that attempts were assigned to this node."""

    proofs: dict[str, str]


class RenewLeases(msgspec.Struct, frozen=True):
    """Renew leases as of the boot-clock time at which the answered request was sent."""

    at: float


class ServeSession(msgspec.Struct, frozen=True):
    """Serve a session of somebody in a task."""

    request: SessionRequest


class StreamLog(msgspec.Struct, frozen=True):
    """Send a task's output."""

    request: LogRequest


class ReportNow(msgspec.Struct, frozen=True):
    """Report to the controller before the next poll."""


class Complain(msgspec.Struct, frozen=True):
    """Show a message to the operator."""

    message: str


class CarryOutRemedies(msgspec.Struct, frozen=True):
    """Carry out these remediations once each; no others are open."""

    orders: tuple[drift_kinds.DriftRemedy, ...]


class SetCheckPlan(msgspec.Struct, frozen=True):
    """Make the health checks of this plan from now on, or none if it is None."""

    plan: health_checks.CheckPlan | None


class SetJobCommands(msgspec.Struct, frozen=True):
    """Run these commands around jobs that start from now on."""

    commands: job_commands.JobCommands


class SetMigPlan(msgspec.Struct, frozen=True):
    """Split GPUs by this MIG plan from now on, or leave them alone if it is None."""

    plan: desired.MigPlan | None


class WatchVolumes(msgspec.Struct, frozen=True):
    """Check these volumes, and no others, from now on."""

    volumes: tuple[storage.WantedVolume, ...]


Step = (
    SetCheckPlan
    | WatchVolumes
    | SetJobCommands
    | SetMigPlan
    | CarryOutRemedies
    | Start
    | Release
    | Refuse
    | EndAttempt
    | Forget
    | SaveEpoch
    | SaveProofs
    | RenewLeases
    | StreamLog
    | ServeSession
    | ReportNow
    | Complain
)


class AgentState:
    """Desired assignments of one node, and the attempts it has."""

    def __init__(self, boot_id: str, epoch: int = 0) -> None:
        self.boot_id = boot_id
        #: What proves that attempts were assigned to this node, by attempt.
        self.proofs: dict[str, str] = {}
        self.epoch = epoch
        self.have = (0, 0)
        self.assignments: dict[str, Assignment] = {}
        self.templates: dict[str, TaskTemplate] = {}
        self.known: dict[str, AttemptReport] = {}
        self.checks: health_checks.CheckPlan | None = None
        self.volumes: tuple[storage.WantedVolume, ...] = ()
        self.mig: desired.MigPlan | None = None
        #: None until a set of assignments has told them.
        self.job_commands: job_commands.JobCommands | None = None
        #: The node's pool, once a set of assignments has named it.
        self.pool = ""
        #: The remediations that were last passed on; None until an earlier agent's are settled.
        self.remedies: tuple[drift_kinds.DriftRemedy, ...] | None = ()
        self.want_inventory = True
        #: What attempts wait for that have not started, if known.
        self.notes: dict[str, str] = {}
        #: States of attempts that fetch or are ready, and the states last reported.
        self.stages: dict[str, AttemptState] = {}
        self._told_stages: dict[str, AttemptState] = {}
        #: True if the last set came too late for one of its leases and was not used.
        self._asked_again = False
        self._held: set[str] = set()
        self.poll_s = 5.0
        self.supervised = False
        self._asked: set[str] = set()
        self._stops: dict[str, StopOrder | None] = {}
        self._forgotten: set[str] = set()
        self._changed: set[str] = set()

    # Events ----------------------------------------------------------------------------------

    def supervisor_up(self, reports: Iterable[AttemptReport]) -> list[Step]:
        """Take over all attempts of a newly connected supervisor; earlier commands are void."""
        self.supervised = True
        self._asked.clear()
        self._stops.clear()
        before = self.known
        self.known = {report.id: report for report in reports if report.id not in self._forgotten}
        self._changed |= {name for name, report in self.known.items() if before.get(name) != report}
        return [*self._reconcile(), ReportNow()]

    def supervisor_down(self) -> None:
        """Start and stop nothing until there is a supervisor again."""
        self.supervised = False

    def attempts_changed(self, reports: Iterable[AttemptReport]) -> list[Step]:
        """Take over the supervisor's reports about some attempts.

        An end is final: a report made before the end, which arrives after it, is ignored.
        """
        news = [
            report
            for report in reports
            if report.id not in self._forgotten
            and (report.state is AttemptState.ENDED or not self._known_to_end(report.id))
        ]
        for report in news:
            self.known[report.id] = report
            self._asked.discard(report.id)
            self._changed.add(report.id)
        return [*self._stop_unwanted([report.id for report in news]), ReportNow()] if news else []

    def answered(self, response: SyncResponse, sent_at: float, waited_s: float = 0.0) -> list[Step]:
        """Act on the controller's answer to a request sent at ``sent_at`` on the boot clock.

        Leases count from when the request was sent. A set with a lease that is half over is not
        used, because what it starts would be ended at once. The next request asks for it again, and
        that answer is used however late it is.

        Args:
            waited_s: how long the answer took.
        """
        if response.epoch < self.epoch:
            return [Complain(
                f"refused an answer of epoch {response.epoch}: a controller of epoch {self.epoch} "
                "has led since; stop the old one"
            )]  # fmt: skip
        steps: list[Step] = []
        if response.epoch > self.epoch:
            self.epoch = response.epoch
            steps.append(SaveEpoch(response.epoch))
        if response.renews:
            steps.append(RenewLeases(sent_at))
        self.poll_s = response.poll_s
        steps += self._acknowledge(response.acknowledged)
        offered = (response.epoch, response.version)
        news = response.set
        if news is not None and offered > self.have and not self._asks_again(news, waited_s):
            self.have = offered
            steps += self._take(news)
        if response.want_inventory and not self.want_inventory:
            self.want_inventory = True
            steps.append(ReportNow())
        steps += [StreamLog(request) for request in response.log_requests]
        steps += [ServeSession(request) for request in response.session_requests]
        return steps

    def _asks_again(self, news: AssignmentSet, waited_s: float) -> bool:
        """Return True if a set comes too late for one of its leases, and the one before did not."""
        leases = (template.lease_s for template in news.templates.values())
        late = any(lease_s is not None and waited_s > lease_s / 2 for lease_s in leases)
        self._asked_again = late and not self._asked_again
        return self._asked_again

    def _take(self, news: AssignmentSet) -> list[Step]:
        """Make a set of assignments the desired one."""
        steps: list[Step] = []
        self.assignments = {a.attempt: a for a in news.assignments}
        self.templates = news.templates
        self.pool = news.pool
        self._forgotten &= self.assignments.keys()
        steps += _keep_proofs(self, news)
        steps += _follow(self, news)
        if news.remedies != self.remedies:
            self.remedies = news.remedies
            steps.append(CarryOutRemedies(news.remedies))
        return steps + self._reconcile()

    def over_limit(self, attempt: str, message: str) -> list[Step]:
        """Return the steps that end a task whose files take more of the disk than they may."""
        if attempt not in self.running() or attempt in self._stops:
            return []
        self._stops[attempt] = None
        grace_s = min(DISK_GRACE_S_MAX, self.templates[self.assignments[attempt].template].grace_s)
        return [EndAttempt(attempt, EndReason.DISK_LIMIT, grace_s=grace_s, message=message)]

    # Questions -------------------------------------------------------------------------------

    def reports(self, *, complete: bool) -> tuple[tuple[AttemptReport, ...], bool]:
        """Return reports, and True if they are complete.

        If not ``complete`` they contain changes since the last time, and all unacknowledged ends.
        """
        waiting = [n for n in self.assignments if n not in self.known and n not in self._forgotten]
        chosen = [
            report
            for name, report in self.known.items()
            if complete or name in self._changed or report.state is AttemptState.ENDED
        ]
        # what is held must not count as ready before it is prepared
        held = {name: AttemptState.FETCHING for name in waiting if name in self._held}
        stages = held | self.stages
        for name in waiting:
            stage = stages.get(name, AttemptState.STARTING)
            if complete or stage != self._told_stages.get(name, AttemptState.STARTING):
                chosen.append(AttemptReport(name, stage, message=self.notes.get(name, "")))
        self._told_stages = {n: s for n, s in stages.items() if n in self.assignments}
        # Ends first, and the long list of waiting attempts last, so that a cut costs least.
        chosen.sort(key=lambda report: report.state is not AttemptState.ENDED)
        sent = tuple(chosen[:REPORTS_MAX])
        self._changed.difference_update(report.id for report in sent)
        return sent, complete and len(sent) == len(chosen)

    def not_delivered(self, reports: Iterable[AttemptReport]) -> None:
        """Report again what a lost request contained."""
        names = {report.id for report in reports}
        self._changed |= names & self.known.keys()
        for name in names & self._told_stages.keys():
            del self._told_stages[name]

    def lease_s_min(self) -> float | None:
        """Return the shortest lease of desired assignments; None if there is none."""
        leases = [t.lease_s for t in self.templates.values() if t.lease_s is not None]
        return min(leases, default=None)

    def running(self) -> list[str]:
        """Return the attempts that have not ended."""
        return [n for n, report in self.known.items() if report.state is not AttemptState.ENDED]

    def scratch_limits(self) -> dict[str, int]:
        """Return what files of running attempts may take of the disk, for those with a limit."""
        found = {}
        for name in self.running():
            assignment = self.assignments.get(name)
            template = self.templates.get(assignment.template) if assignment else None
            if template is not None and template.scratch_bytes:
                found[name] = template.scratch_bytes
        return found

    def holders(self) -> dict[str, Assignment | None]:
        """Return attempts that have not ended or are about to start; None for a lost assignment."""
        alive: dict[str, Assignment | None] = dict.fromkeys([*self.running(), *self._asked])
        given = {
            n: assignment for n, assignment in self.assignments.items() if not self.has_ended(n)
        }
        return alive | given

    def has_ended(self, attempt: str) -> bool:
        """Return True if nothing more can come from an attempt, as far as this node knows."""
        report = self.known.get(attempt)
        if report is None:
            return attempt not in self.assignments or attempt in self._forgotten
        return report.state is AttemptState.ENDED

    def awaits(self, attempt: str) -> bool:
        """Return True if an attempt shall start here and has not, as far as this node knows."""
        wanted = attempt in self.assignments and attempt not in self._forgotten
        return wanted and attempt not in self.known

    def may_begin(self, attempt: str) -> bool:
        """Return True if an attempt is known here or may start; before a set has come, any may."""
        if not self.supervised or self.have == (0, 0) or attempt in self._asked:
            return True
        return attempt in self.known or self.awaits(attempt)

    def _known_to_end(self, attempt: str) -> bool:
        report = self.known.get(attempt)
        return report is not None and report.state is AttemptState.ENDED

    # Consequences ----------------------------------------------------------------------------

    def _acknowledge(self, names: Iterable[str]) -> list[Step]:
        """Forget ends that the controller knows. Their names stay until no set contains them."""
        done = tuple(name for name in names if self._known_to_end(name))
        for name in done:
            del self.known[name]
            self._changed.discard(name)
            self._stops.pop(name, None)
            if name in self.assignments:
                self._forgotten.add(name)
        return [Forget(done)] if done else []

    def _reconcile(self) -> list[Step]:
        """Return the steps from the present attempts to the desired assignments."""
        if not self.supervised or self.have == (0, 0):
            return []
        steps: list[Step] = []
        for name, assignment in self.assignments.items():
            steps += self._toward(name, assignment)
        return steps + self._stop_unwanted([*self.running(), *self._asked])

    def _stop_unwanted(self, names: Iterable[str]) -> list[Step]:
        """Return the steps that end those of ``names`` that are not desired, once each."""
        steps: list[Step] = []
        if not self.supervised or self.have == (0, 0):
            return steps
        for name in names:
            report = self.known.get(name)
            ended = report is not None and report.state is AttemptState.ENDED
            if not ended and name not in self.assignments and name not in self._stops:
                self._stops[name] = None
                steps.append(EndAttempt(name, EndReason.CANCELLED))
        return steps

    def _toward(self, name: str, assignment: Assignment) -> list[Step]:
        """Return the steps for one assignment."""
        if name in self._forgotten:
            return []
        report = self.known.get(name)
        if report is None and name in self._asked & self._held and not assignment.hold:
            self._held.discard(name)
            if assignment.stop is None:
                return [Release(name)]
        if report is None and name not in self._asked:
            self._asked.add(name)
            self._held.discard(name)
            if assignment.hold:
                self._held.add(name)
            if assignment.stop is not None:
                self._stops[name] = assignment.stop
            return [self._begin(assignment)]
        if report is not None and report.state is AttemptState.ENDED:
            return []
        order = assignment.stop
        if order is None or self._stops.get(name) == order:
            return []
        self._stops[name] = order
        return [EndAttempt(name, order.reason, order.signal, order.grace_s, to=order.to)]

    def _begin(self, assignment: Assignment) -> Step:
        """Return the steps for an attempt that is unknown here: it starts, or never will."""
        name, order = assignment.attempt, assignment.stop
        if order is not None:
            return Refuse(name, order.reason, "stopped before it started")
        if assignment.boot_id != self.boot_id:
            return Refuse(
                name,
                EndReason.REFUSED,
                f"it was assigned to boot {assignment.boot_id!r} of this node, which is now at "
                f"boot {self.boot_id!r}; it must be assigned again",
            )
        template = self.templates.get(assignment.template)
        if template is None:
            return Refuse(
                name,
                EndReason.REFUSED,
                f"its template {assignment.template!r} is not in the set of assignments",
            )
        return Start(assignment, template)


def _keep_proofs(node: AgentState, news: AssignmentSet) -> list[Step]:
    """Keep the proofs of assignments, and of what is still here, before anything starts."""
    given = {one.attempt: one.proof for one in news.assignments if one.proof}
    # without a supervisor nobody knows what is here
    left = node.known.keys() if node.supervised else node.proofs.keys()
    proofs = {name: proof for name, proof in node.proofs.items() if name in left} | given
    if proofs == node.proofs:
        return []
    node.proofs = proofs
    return [SaveProofs(proofs)]


def _follow(node: AgentState, news: AssignmentSet) -> list[Step]:
    """Follow what the node's pool asks for besides tasks, as far as it has changed."""
    steps: list[Step] = []
    if news.checks != node.checks:
        node.checks = news.checks
        steps.append(SetCheckPlan(node.checks))
    if news.volumes != node.volumes:
        node.volumes = news.volumes
        steps.append(WatchVolumes(node.volumes))
    if news.mig != node.mig:
        node.mig = news.mig
        steps.append(SetMigPlan(node.mig))
    if news.job_commands != node.job_commands:
        node.job_commands = news.job_commands
        steps.append(SetJobCommands(news.job_commands))
    return steps

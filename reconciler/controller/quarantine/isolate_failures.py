"""Keeps a defect of Muster itself from costing more than what it came with.

The core raises where it meets what nobody foresaw, and in tests that is the end of it. In a
controller that serves people the loop goes on by the last desired state that a cycle passed with,
or without what one node said: a cycle that raised has left nothing behind, so it can be tried again
with less. What comes of a decision once it is durable (notices, lines, pages) may fail by itself.
"""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from reconciler.core import observed_state
from reconciler.core.nodes import node_reports
from reconciler.desired.apply import job_quarantine, last_good
from reconciler.model import desired
from reconciler.model.rules import review_findings
from reconciler.model.state import instance_records, outcome, records

log = logging.getLogger("muster.loop")

#: The words by which a defect is found in the log; whole clusters in tests look for them.
MARK = desired.DEFECT
#: The rule of the problem that a refused revision has.
RULE = review_findings.UNDECIDED
#: What is told of a node of which no whole report can be decided.
UNDECIDED = (
    f"{MARK} keeps what it reports from being decided: nothing new goes there until a report can "
    "be; the controller's log has the trace"
)
#: How often a cycle is tried again to find out what of its input it can't be decided with.
TRIES_MAX = 64
#: A node with whose report no cycle passed is not listened to for so long.
ASIDE_S = 60.0
#: The most names in one line of the log.
NAMES_MAX = 20
#: What is said before the process ends.
LAST_WORDS = (
    f"{MARK} keeps every cycle from being decided, even with nothing that came in: the controller "
    "ends, and nothing that was decided is lost. Please report it with the trace below and, where "
    "it may be shown, a copy of the store (`muster backup FILE`); the version before may go on"
)
_ROOTS = ("reconciler", "agents")


class CycleInput(msgspec.Struct, frozen=True):
    """What came in since the last cycle, as ``records.Observed`` has it."""

    reports: tuple[records.NodeReport, ...] = ()
    answered: Mapping[str, float] = {}
    asked: tuple[records.OverrideRequest, ...] = ()
    provisioned: tuple[instance_records.OrderResult, ...] = ()
    #: Nodes of which nothing can be decided that they say: that they say it counts for nothing.
    unheard: frozenset[str] = frozenset()

    @property
    def is_bare(self) -> bool:
        """Whether nobody said anything."""
        return not (self.reports or self.asked or self.provisioned)

    def bare(self) -> "CycleInput":
        """Without what was said; that it was said stays. Leases run from when nodes were answered,
        and no node is silent of which a report waits to be read."""
        heard = {one.node: one.received_at for one in self.reports if one.node not in self.unheard}
        later = {node: max(at, self.answered.get(node, at)) for node, at in heard.items()}
        return CycleInput(answered={**self.answered, **later})

    @property
    def is_notice(self) -> bool:
        """Whether it is no more than that a node said something (see ``pieces``)."""
        return bool(self.reports) and all(map(node_reports.tells_nothing, self.reports))

    def sources(self) -> list["CycleInput"]:
        """What each person, script and node said, by itself and in order."""
        nodes: dict[str, list[records.NodeReport]] = {}
        for report in self.reports:
            nodes.setdefault(report.node, []).append(report)
        return [  # nodes last: what they said they say again, where no cycle may come to it
            *[CycleInput(asked=(one,)) for one in self.asked],
            *[CycleInput(provisioned=(one,)) for one in self.provisioned],
            *[CycleInput(reports=tuple(reports)) for reports in nodes.values()],
        ]

    def pieces(self) -> list["CycleInput"]:
        """What one node said of itself and of each of its attempts, as if it had told no more.

        What is not in a piece is not gone: none of them tells of everything that the node has. The
        first of them tells no more than that there are pieces. A piece has none.
        """
        found: list[records.NodeReport] = []
        for report in self.reports:
            if report.undecided:
                continue
            itself = msgspec.structs.replace(
                report, attempts=(), complete=False, undecided=UNDECIDED
            )
            bare = msgspec.structs.replace(itself, inventory=None, usage=None, remedies=())
            found += [bare] if bare == itself else [bare, itself]
            found += [msgspec.structs.replace(bare, attempts=(one,)) for one in report.attempts]
        return [CycleInput(reports=(one,)) for one in found]

    @property
    def name(self) -> str:
        """Who said it, of one source or of a piece of it."""
        if self.reports:
            report = self.reports[0]
            of = f"attempt {report.attempts[0].id} on " if len(report.attempts) == 1 else ""
            return f"{of}node {report.node}"
        if self.asked:
            return f"override {self.asked[0].id}"
        return f"the script of pool {self.provisioned[0].pool}" if self.provisioned else "nobody"


def joined(sources: Sequence[CycleInput]) -> CycleInput:
    """What several sources said, together."""
    return CycleInput(
        reports=tuple(report for one in sources for report in one.reports),
        asked=tuple(asked for one in sources for asked in one.asked),
        provisioned=tuple(answer for one in sources for answer in one.provisioned),
    )


class CycleBasis(NamedTuple):
    """What a cycle goes by.

    Attributes:
        wanted: what git asks for.
        incumbents: what has to be remembered with it over a restart, None: as before.
    """

    desired_state: desired.Desired
    incumbents: bytes | None


class Passed(NamedTuple):
    """What a cycle passed with: as it was taken from the inbox, and what was in force of it."""

    taken: desired.Desired
    desired_state: desired.Desired
    adopting: bool


class RevisionRefusal(msgspec.Struct, frozen=True):
    """To who reads the repository: no cycle passed with a desired state.

    Attributes:
        generation: of that state. problem: what is told of its revision.
        incumbents: what was accepted with the last state that a cycle passed with.
        jobs: those of it that could not be decided, where all the rest was; none: all is refused.
    """

    generation: int
    problem: desired.Problem
    incumbents: bytes
    jobs: tuple[job_quarantine.QuarantinedJob, ...] = ()


class Sifted(NamedTuple):
    """What is in force of a revision that was refused as a whole, after it was tried by its jobs.

    Attributes:
        wanted: what is in force.
        apart: the jobs that are left as they were; none: structure is.
        defects: what those raised that were tried by themselves.
        is_whole: all of it passed after all.
    """

    desired_state: desired.Desired
    apart: tuple[job_quarantine.QuarantinedJob, ...] = ()
    defects: tuple[Exception, ...] = ()
    is_whole: bool = False


class QuarantineResult(NamedTuple):
    """How a cycle could be decided after all.

    Attributes:
        basis: what it was decided by. result: what came of the last part of it.
        apart: nodes, persons and scripts with whose words it could not be decided.
        left_out: of these what it could not be decided with by itself either.
        waiting: what of it was not come to, and is for the next cycle.
        by_jobs: jobs were left out, and which it has to be is to be found.
    """

    basis: CycleBasis
    result: outcome.Outcome
    apart: tuple[CycleInput, ...] = ()
    left_out: tuple[CycleInput, ...] = ()
    waiting: CycleInput = CycleInput()
    by_jobs: bool = False


Got = outcome.Outcome | Exception
#: Decides a cycle by a basis, with an input, and carries it out; where that raised, nothing has
#: happened, and what it raised comes back.
Attempt = Callable[[CycleBasis, CycleInput], Got]


class WithoutJobs(Protocol):
    """The same without the jobs that wait, or with ``started`` without all that are not over.

    None: what came in is the cause, or there are no such jobs.
    """

    def __call__(self, basis: CycleBasis, part: CycleInput, *, started: bool) -> Got | None: ...


def rescue(
    attempt: Attempt, bases: Sequence[CycleBasis], came: CycleInput, without_jobs: WithoutJobs
) -> QuarantineResult | None:
    """Decide a cycle that raised with less than it had.

    Args:
        attempt: see there.
        bases: what it raised by, and where that is new, what went before it.
        came: what it raised with.
        without_jobs: see there.

    Returns:
        How it could be decided; None where it could not even with nothing that came in.
    """
    for basis in bases[1:]:
        got = attempt(basis, came)
        if not isinstance(got, Exception):
            return QuarantineResult(basis, got)
    for basis in bases:
        result = without_jobs(basis, came, started=False)
        if isinstance(result, outcome.Outcome):
            return QuarantineResult(basis, result, by_jobs=True)
    for basis in () if came.is_bare else bases:
        got = attempt(basis, came.bare())
        if not isinstance(got, Exception):
            return _by_parts(attempt, basis, came, got)
    for basis in bases:
        result = without_jobs(basis, came, started=True)
        if isinstance(result, outcome.Outcome):
            return QuarantineResult(basis, result, by_jobs=True)
    return None


def _by_parts(
    attempt: Attempt, basis: CycleBasis, came: CycleInput, result: outcome.Outcome
) -> QuarantineResult:
    """Decide about what came in by parts that are halved until those that raise are left.

    The smallest are what a node said of itself or of one attempt, and what one person or script
    said.
    """
    parts: list[list[CycleInput]] = []
    apart: list[CycleInput] = []
    left_out: list[CycleInput] = []

    def split(part: list[CycleInput]) -> None:
        if len(part) > 1:
            parts.extend(_halves(part))
        elif pieces := part[0].pieces():
            apart.extend(part)
            parts.extend(_halves(pieces))
        else:
            left_out.extend(part)

    split(came.sources())
    tries = 0
    while parts and tries < TRIES_MAX:
        part = parts.pop()
        tries += 1
        got = attempt(basis, joined(part))
        if isinstance(got, Exception):
            split(part)
        else:
            result = got
    waiting = [one for part in reversed(parts) for one in part]
    return QuarantineResult(basis, result, tuple(apart), tuple(left_out), joined(waiting))


def put_back(came: CycleInput, state: observed_state.ObservedState) -> None:
    """Keep what came in, and was not come to, for the next cycle."""
    for report in came.reports:
        state.add_report(report)
    for request in came.asked:
        state.ask(request)
    for answer in came.provisioned:
        state.add_provisioned(answer)


def _halves(sources: list[CycleInput]) -> list[list[CycleInput]]:
    """Both halves, the first one last; of one its only one."""
    middle = len(sources) // 2
    return [half for half in (sources[middle:], sources[:middle]) if half]


def listed(names: Sequence[str]) -> str:
    """Names for a line of the log."""
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def place_of(defect: BaseException) -> str:
    """Where in Muster it was raised: file, line and function, without anybody's data."""
    found = "an unknown place"
    for frame in traceback.extract_tb(defect.__traceback__):
        parts = Path(frame.filename).parts
        for root in _ROOTS:
            if root in parts:
                start = len(parts) - 1 - parts[::-1].index(root)
                found = f"{'/'.join(parts[start:])}, line {frame.lineno}, in {frame.name}"
    return found


def problem_of(defect: Exception) -> desired.Problem:
    """What people are told of a revision that no cycle passed with."""
    return desired.Problem(
        RULE,
        "error",
        "",
        f"{MARK} kept this revision from being decided: {type(defect).__name__} in "
        f"{place_of(defect)}; what was in force before stays so. The controller's log has the "
        "trace, which a report of it needs",
    )


def problem_of_job(defect: Exception, *, is_new: bool) -> str:
    """What people are told of a job that no cycle passed with as it is written."""
    stays = "it is not taken up" if is_new else "what was in force of it stays so"
    return (
        f"{MARK} kept this job from being decided: {type(defect).__name__} in {place_of(defect)}; "
        f"{stays}, and it is tried again later. The controller's log has the trace, which a report "
        "of it needs"
    )


def problem_of_job_aside(defect: Exception) -> str:
    """What people are told of a job that was taken up, and by which cycles have come to raise."""
    return (
        f"{MARK} keeps this job from being decided: {type(defect).__name__} in "
        f"{place_of(defect)}; it stays as it is, and it is tried again later. The controller's log "
        "has the trace, which a report of it needs"
    )


def unread(defect: Exception) -> str:
    """What people are told while the repository can't be read for a defect."""
    return (
        f"{MARK} kept the repository from being read: {type(defect).__name__} in "
        f"{place_of(defect)}; what is in force stays so, and it is read again later. The "
        "controller's log has the trace, which a report of it needs"
    )


def refused(
    newer: desired.SyncStatus, kept: desired.Desired, problem: desired.Problem
) -> desired.Desired:
    """What stays in force where no cycle passed with something newer, and how that is told."""
    others = tuple(one for one in kept.status.problems if one.rule != RULE)
    status = msgspec.structs.replace(
        kept.status,
        sync="OutOfSync",
        attempted_revision=newer.attempted_revision,
        checked_at=newer.checked_at,
        message=problem.message,
        problems=(problem, *others),
    )
    return msgspec.structs.replace(kept, status=status)


def accepted_in(before: last_good.LastGood) -> desired.Desired:
    """What was in force before a restart, as far as it is remembered: without its jobs."""
    return desired.Desired(
        structure=before.basis.structure if before.basis else desired.Structure(),
        status=desired.SyncStatus(
            structure_revision=before.structure_revision,
            jobs_revision=before.head,
            suspended=before.suspended,
        ),
    )


def after_restart(before: desired.Desired, state: observed_state.ObservedState) -> desired.Desired:
    """What goes on at a start by the store alone: what was in force, with the runs it knows.

    Those that have ended start nothing again, and stay for as long as their documents may.
    """
    jobs = {name: record.spec for name, record in state.jobs.items()}
    return msgspec.structs.replace(before, generation=state.desired_generation, jobs=jobs)

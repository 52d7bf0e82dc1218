"""Everything that a revision asks for, with its problems, what is held, and its sync status."""

import re
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from reconciler.model.desired.jobs import Job
from reconciler.model.desired.pools import Pool, Volume, merge_levels
from reconciler.model.desired.queues import Queue, Quota, Reservation
from reconciler.model.desired.settings import AdmissionPolicy, ClusterSettings, Prune
from reconciler.model.policy.access import Access
from reconciler.model.values import index_ranges, log_lines, times


class Structure(msgspec.Struct, frozen=True):
    """All objects of a revision except jobs."""

    settings: ClusterSettings = ClusterSettings()
    pools: dict[str, Pool] = {}
    queues: dict[str, Queue] = {}
    priority_classes: dict[str, int] = {}
    #: e-mail address to Unix user
    unix_users: dict[str, str] = {}
    quotas: dict[str, Quota] = {}
    reservations: dict[str, Reservation] = {}
    volumes: dict[str, Volume] = {}
    policies: dict[str, AdmissionPolicy] = {}
    access: Access = Access()
    #: ``Kind/name`` to what its own annotation says of its removal
    prune: dict[str, Prune] = {}

    def levels(self) -> tuple[str, ...]:
        """Topology levels of all pools, the widest first."""
        order: list[str] = []
        for pool in self.pools.values():
            order = merge_levels(order, pool.levels) or order
        return tuple(order)

    def pool_of_node(self) -> dict[str, str]:
        """Map from node names to pool names."""
        return {node: pool.name for pool in self.pools.values() for node in pool.nodes}


class Problem(msgspec.Struct, frozen=True):
    """An error or warning about a document: place, what was found, what was expected.

    Attributes:
        rule: a stable kebab-case id, such as ``unknown-queue``.
        severity: ``error`` (the object is refused) or ``warning``.
        path: file in the repository. line, column: from 1; 0 if unknown.
        object: ``Kind/name`` if known. field: dotted path such as ``spec.resources.gpu``.
        message: a sentence. found, expected: as text.
    """

    rule: str
    severity: Literal["error", "warning"]
    path: str
    message: str
    line: int = 0
    column: int = 0
    object: str = ""
    field: str = ""
    found: str = ""
    expected: str = ""

    @property
    def place(self) -> str:
        """``file:line``, as far as known."""
        return f"{self.path}:{self.line}" if self.line else self.path

    def text(self) -> str:
        """One line: ``file:line:column: error: Kind/name: field: message``, with the file
        if known.
        """
        parts = (self._spot, self.severity, self.object, self._detail)
        return log_lines.escape(": ".join(filter(None, parts)))

    def told(self) -> str:
        """The same without the object, for readers who know it: ``field: message
        (file:line:column)``.
        """
        return log_lines.escape(f"{self._detail} ({self._spot})")

    @property
    def _spot(self) -> str:
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path

    @property
    def _detail(self) -> str:
        words = [f"{self.field}: {self.message}" if self.field else self.message]
        words += [f"found {self.found}"] if self.found else []
        words += [f"expected {self.expected}"] if self.expected else []
        return "; ".join(words)


#: The message about jobs that wait until somebody says whether they are new to the store.
AWAITS_ADOPTION = (
    "the store is older than what was run from this repository: it may have run already; "
    "`muster adopt` says what is to start"
)


class Recovery(msgspec.Struct, frozen=True):
    """The jobs of a store from the past, until somebody has said which of them are to start.

    As long as there is one, what nodes run is taken over, and nothing starts on a node that was
    not heard since this leader began.

    Attributes:
        awaiting: names of jobs of which nothing starts, because it may have run already.
        ended: keys of runs that somebody declared over; they end if nothing of them is alive.
        trusted: nodes that somebody believes without a proof: what others report without one counts
            for nothing from now on. None: nobody has said yet.
        started: names of jobs that somebody wants to start, also if a part of a gang is alive.
        begun: why the store may not know all that was run, once, when this begins.
        answers: False while another controller leads: nodes that report get no answer.
        ephemeral: names of jobs that a note in git describes, and no file.
    """

    awaiting: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    trusted: frozenset[str] | None = None
    started: frozenset[str] = frozenset()
    begun: str = ""
    answers: bool = True
    ephemeral: frozenset[str] = frozenset()


#: The words by which an internal error of Muster is named and found.
INTERNAL_ERROR = "an internal error"

_UNANSWERED = "commit {commit} changes it, and {why}"
_IS_UNANSWERED = re.compile(r"commit [0-9a-f]{12} changes it, and ")


def unanswered(commit: str, why: str) -> str:
    """Return the message about a changed object if nobody with the right to change it signed."""
    return _UNANSWERED.format(commit=commit[:12], why=why)


def is_unanswered(told: str) -> bool:
    """Return True if a message is one of ``unanswered``."""
    return _IS_UNANSWERED.match(told) is not None


class HeldPart(msgspec.Struct, frozen=True):
    """A part of a change that waits for approval or for its time.

    Attributes:
        part: ``structure``, all of it; or ``removal``, of the jobs named.
        message: the reason, with figures and limits, and the command that approves it.
        reasons: each reason by itself, without the command.
        digest: approves the part; empty if nothing does.
        jobs: jobs whose documents are removed and that stay in force.
        until: time at which it applies by itself; None: never.
    """

    part: Literal["structure", "removal"]
    message: str
    digest: str = ""
    jobs: tuple[str, ...] = ()
    until: float | None = None
    reasons: tuple[str, ...] = ()


class SyncStatus(msgspec.Struct, frozen=True):
    """Status of the repository: the attempted revision, the applied one, and problems.

    ``sync`` is ``Synced`` (the head is in force), ``OutOfSync`` (the head, or a part of it, was
    refused or is held) or ``Unknown`` (the repository cannot be read). Times are seconds since the
    epoch. ``suspended`` maps ``Cluster`` and ``Queue/name`` to the start of their suspension.
    ``unread_since`` is when a head was seen that is not read yet; None: there is none.
    ``next_look_at`` is when a repository that can't be read is tried again; None: it can.
    """

    sync: Literal["Synced", "OutOfSync", "Unknown"] = "Unknown"
    attempted_revision: str | None = None
    structure_revision: str | None = None
    jobs_revision: str | None = None
    message: str = ""
    checked_at: float | None = None
    problems: tuple[Problem, ...] = ()
    held: tuple[HeldPart, ...] = ()
    suspended: dict[str, float] = {}
    unread_since: float | None = None
    next_look_at: float | None = None


class RefusedJob(msgspec.Struct, frozen=True):
    """A job with a document that nobody with the right signed.

    ``revision`` is the last one that the controller judged. ``home`` is the file whose document is
    in force; empty: no document of the name is.
    """

    revision: str
    home: str


#: The message about a job whose document is gone, if the commit that removed it is unknown.
REMOVED = "its document was removed from git"
#: The form of ``Removal.text``, also behind the elements that it is about.
_REMOVAL = re.compile(
    r"(?P<elements>elements? [0-9,:-]+ |[0-9]+ elements )?(?:cancelled|removed from git) by .* "
    r"at \S+Z in [0-9a-f]{7}(?:: .*)?"
)
#: What is told about elements if the commit that cancelled them is unknown, or not to be told.
_ELEMENTS_CANCELLED = "cancelled by its document"
#: What is told about a job that git does not have, or that an override cancelled.
_CANCELLED = "cancelled"
#: The most characters of a set of elements that are told as they are.
ELEMENTS_TEXT_MAX = 200


def without_remover(message: str) -> str:
    """Return a message about a job without who took its document out of git, or cancelled it or
    elements of it, and why.
    """
    found = _REMOVAL.fullmatch(message)
    if found is None:
        return _CANCELLED if message.startswith(f"{_CANCELLED} by ") else message
    return f"{found['elements']}{_ELEMENTS_CANCELLED}" if found["elements"] else REMOVED


class Removal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The commit that took a job's document out of git, or cancelled elements of an array.

    Attributes:
        by: who signed the commit, if that was checked, else its author.
        commit: its hash.
        at: the time that it claims, in seconds since the epoch.
        is_cancel: it was made by ``muster cancel``.
        reason: given for that; empty: none.
    """

    by: str
    commit: str
    at: float
    is_cancel: bool = False
    reason: str = ""

    def text(self, elements: str = "") -> str:
        """``cancelled by WHO at TIME in COMMIT: REASON``, or ``removed from git by`` and so on.

        ``elements``: the subject, if it is elements of an array. Their documents stay in git.
        """
        verb = "cancelled" if self.is_cancel or elements else "removed from git"
        verb = f"{elements} {verb}" if elements else verb
        because = f": {self.reason}" if self.reason else ""
        told = f"{verb} by {self.by} at {times.format_time(self.at)} in {self.commit[:7]}{because}"
        return log_lines.escape(told)


def elements_text(elements: Collection[int]) -> str:
    """Return elements of an array as the subject of a sentence: their number if they are many."""
    told = index_ranges.fold(elements)
    if len(told) > ELEMENTS_TEXT_MAX:
        return f"{len(elements)} elements"
    return f"element{'' if len(elements) == 1 else 's'} {told}"


class Desired(msgspec.Struct, frozen=True):
    """Desired state at one moment.

    ``generation`` grows with every new value, so that ``core`` sees without a comparison that
    nothing changed. ``jobs`` maps names to normalised jobs; a job whose newest version is refused
    is there in its last good version. ``refused`` maps jobs without any good version to their
    problem, shown as ``Invalid``. ``quarantined`` maps quarantined jobs to the message about them.
    ``recovery`` is set while the store may be older than what nodes run. ``removals`` maps jobs
    that were taken out of git lately, and ``NAME[ELEMENTS]`` of elements that were cancelled, to
    who did that, as far as it is known.
    """

    generation: int = 0
    structure: Structure = Structure()
    jobs: Mapping[str, Job] = {}
    refused: Mapping[str, str] = {}
    status: SyncStatus = SyncStatus()
    quarantined: Mapping[str, str] = msgspec.field(default_factory=dict, name="aside")
    recovery: Recovery | None = None
    removals: Mapping[str, Removal] = {}

    def why_removed(self, job: str) -> str:
        """Return the message about a job whose document is gone."""
        removal = self.removals.get(job)
        return REMOVED if removal is None else removal.text()

    def why_elements_cancelled(self, job: str, elements: Collection[int]) -> list[str]:
        """Return a sentence for each commit that cancelled some elements of an array."""
        told, left = [], set(elements)
        for name, removal in reversed(list(self.removals.items())):
            if name.startswith(f"{job}["):
                by = left.intersection(index_ranges.parse(name.rpartition("[")[2].rstrip("]")))
                told += [removal.text(elements_text(by))] if by else []
                left -= by
        told += [f"{elements_text(left)} {_ELEMENTS_CANCELLED}"] if left else []
        return told[::-1]

    @property
    def awaiting(self) -> frozenset[str]:
        """Names of jobs of which nothing starts, because they may have run already."""
        return frozenset() if self.recovery is None else self.recovery.awaiting

"""All that a revision asks for, and what is said of it: problems, holds, how it stands."""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from reconciler.model.desired.jobs import Job
from reconciler.model.desired.pools import Pool, Volume, merge_levels
from reconciler.model.desired.queues import Queue, Quota, Reservation
from reconciler.model.desired.settings import AdmissionPolicy, ClusterSettings, Prune
from reconciler.model.policy.access import Access
from reconciler.model.values import log_lines


class Structure(msgspec.Struct, frozen=True):
    """Everything but the jobs."""

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
        """Node name to pool name."""
        return {node: pool.name for pool in self.pools.values() for node in pool.nodes}


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with what is written: where, what was found, what was expected.

    Attributes:
        rule: a stable kebab-case id, such as ``unknown-queue``.
        severity: ``error`` (the object is refused) or ``warning``.
        path: file in the repository. line, column: from 1; 0 where unknown.
        object: ``Kind/name`` where known. field: dotted path such as ``spec.resources.gpu``.
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
        """One line: ``file:line:column: error: Kind/name: field: message``; a file if known."""
        parts = (self._spot, self.severity, self.object, self._detail)
        return log_lines.escape(": ".join(filter(None, parts)))

    def told(self) -> str:
        """The same of an object that is known already: ``field: message (file:line:column)``."""
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


#: The problem of jobs that wait until somebody says whether they are new to an empty store.
AWAITS_ADOPTION = (
    "the store is empty and this repository was run before; "
    "`muster adopt` says which of its jobs are new"
)

#: The words by which a defect of Muster is told and found.
DEFECT = "a defect of Muster"

_UNANSWERED = "commit {commit} changes it, and {why}"
_IS_UNANSWERED = re.compile(r"commit [0-9a-f]{12} changes it, and ")


def unanswered(commit: str, why: str) -> str:
    """What is told of an object that a commit changes for which nobody answers who may."""
    return _UNANSWERED.format(commit=commit[:12], why=why)


def is_unanswered(told: str) -> bool:
    """Whether that is what is told of an object."""
    return _IS_UNANSWERED.match(told) is not None


class HeldPart(msgspec.Struct, frozen=True):
    """A part of a change that waits: for approval, or for its time.

    Attributes:
        part: ``structure``, all of it; or ``removal``, of the jobs named.
        message: why, with figures and limits, and the command that approves it.
        reasons: each why by itself, without the command.
        digest: what approves it; empty where nothing does.
        jobs: those whose documents have left and that stay in force.
        until: when it may apply by itself; None: it does not.
    """

    part: Literal["structure", "removal"]
    message: str
    digest: str = ""
    jobs: tuple[str, ...] = ()
    until: float | None = None
    reasons: tuple[str, ...] = ()


class SyncStatus(msgspec.Struct, frozen=True):
    """How the repository stands: what was tried last, what is in force, and what is wrong.

    ``sync`` is ``Synced`` (head is in force), ``OutOfSync`` (head, or part of it, was refused
    or is held) or ``Unknown`` (the repository can't be read). Times are seconds since the epoch.
    ``suspended`` maps ``Cluster`` and ``Queue/name`` to since when they are.
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


class Desired(msgspec.Struct, frozen=True):
    """What git asks for at one moment.

    ``generation`` grows with every new value, so that ``core`` can tell without comparing that
    nothing changed. ``jobs`` maps names to normalised jobs, those whose newest version is
    refused in their last good one. ``refused`` maps names of jobs that are written but have no
    good version at all to the problem, so that they are shown as ``Invalid``. ``aside`` maps names
    of jobs that are left out of deciding for now, whatever they are, to what is told of it.
    """

    generation: int = 0
    structure: Structure = Structure()
    jobs: Mapping[str, Job] = {}
    refused: Mapping[str, str] = {}
    status: SyncStatus = SyncStatus()
    aside: Mapping[str, str] = {}

"""Reasons of pending jobs: codes in order of precedence, and the funnel that leads to each."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

#: The most names that one reason lists.
NAMES_MAX = 3


class ReasonCode(StrEnum):
    """Reason codes of a pending job; the first that holds is shown first (INTERFACES)."""

    HELD = "Held"
    INVALID = "Invalid"
    NOT_ALLOWED = "NotAllowed"
    NO_UNIX_USER = "NoUnixUser"
    DEPENDENCY_NEVER_MET = "DependencyNeverMet"
    DEPENDENCY = "Dependency"
    BACKING_OFF = "BackingOff"
    ARRAY_LIMIT = "ArrayLimit"
    OVER_LIMIT = "OverLimit"
    OVER_BUDGET = "OverBudget"
    NEVER_FITS = "NeverFits"
    NO_TOPOLOGY_DOMAIN = "NoTopologyDomain"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    FRAGMENTED = "Fragmented"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    WAITING_FOR_EVICTIONS = "WaitingForEvictions"
    RESERVED = "Reserved"
    BEHIND = "Behind"


#: Wording of messages about one start that exceeds a whole limit.
CAN_NOT_START = "it can't start under"
#: Message of every job of a cluster without nodes, such as one that has just begun.
NONE_YET = "no node has joined yet"
PRECEDENCE = {code: rank for rank, code in enumerate(ReasonCode)}

#: Codes of reasons that only another commit ends.
_BY_COMMIT = frozenset(
    {
        *(ReasonCode.INVALID, ReasonCode.NOT_ALLOWED, ReasonCode.NO_UNIX_USER),
        ReasonCode.DEPENDENCY_NEVER_MET,
    }
)
#: Codes of reasons that waiting never ends. Other reasons may have ``never`` set as well.
NEVER_CODES = _BY_COMMIT | {ReasonCode.NEVER_FITS}
#: Codes of reasons that room on nodes ends, and nothing else.
OF_ROOM = frozenset(
    {
        *(ReasonCode.NEVER_FITS, ReasonCode.NO_TOPOLOGY_DOMAIN, ReasonCode.FRAGMENTED),
        *(ReasonCode.INSUFFICIENT_RESOURCES, ReasonCode.RESERVED, ReasonCode.BEHIND),
    }
)
_OF_LIMITS = frozenset({ReasonCode.OVER_LIMIT, ReasonCode.OVER_BUDGET})
_OF_NODES = frozenset({ReasonCode.NEVER_FITS, ReasonCode.NO_TOPOLOGY_DOMAIN})


class WaitsFor(StrEnum):
    """The event that ends a reason, if the reason code alone does not tell it."""

    #: Somebody resumes the queue or the cluster.
    RESUME = "Resume"
    #: The first job of a strict queue starts.
    FIRST_IN_QUEUE = "FirstInQueue"
    #: Earlier jobs start, so that a quota considers this one.
    EARLIER_START = "EarlierStart"
    #: A running job ends, at the latest when its known time limit is up.
    TIME_LIMIT = "TimeLimit"
    #: A job that this one must be near to starts.
    NEARBY_JOB = "NearbyJob"
    #: Nodes accept work again; no end of other work helps.
    NODES = "Nodes"
    #: Other work ends, or nodes accept work again.
    CAPACITY_OR_NODES = "CapacityOrNodes"


class FunnelStep(msgspec.Struct, frozen=True):
    """A number of nodes and why they drop out: ``{"count": 4, "why": "not in pool a100"}``."""

    count: int
    why: str


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason of a pending job.

    Attributes:
        code: the reason code.
        message: what is wrong.
        funnel: how nodes drop out.
        unblocks: how to fix it, in the imperative: ``raise Quota q, or ask for less``.
        never: waiting alone does not end it. Always set for ``NEVER_CODES``.
        waits_for: the event that ends it, if the code does not tell it.
    """

    code: ReasonCode
    message: str
    funnel: tuple[FunnelStep, ...] = ()
    unblocks: str = ""
    never: bool = False
    waits_for: WaitsFor | None = None

    def __post_init__(self) -> None:
        if self.code in NEVER_CODES and not self.never:
            msgspec.structs.force_setattr(self, "never", True)

    @property
    def is_barred(self) -> bool:
        """True if one start exceeds a whole limit, which bars it from a pool, or from all."""
        return self.never and self.code in _OF_LIMITS

    @property
    def never_fits(self) -> bool:
        """True if no nodes or guarantees could ever hold the job."""
        return self.never and self.code in _OF_NODES


def is_barred(reasons: Iterable[Reason]) -> bool:
    """Return True if a request is above the whole limit of a pool, so that it can't start there."""
    return any(reason.is_barred for reason in reasons)


def never_starts(reasons: Iterable[Reason]) -> bool:
    """Return True if waiting alone does not let a job start, as its reasons say."""
    return any(reason.never for reason in reasons)


def of_fitting_pools(by_pool: Sequence[Sequence[Reason]]) -> Sequence[Sequence[Reason]]:
    """Return the reasons of pools that may hold a job one day, or else of the first pool."""
    found = [each for each in by_pool if not any(reason.never_fits for reason in each)]
    return found or by_pool[:1]


def of_open_pools(by_pool: Sequence[Sequence[Reason]]) -> Sequence[Sequence[Reason]]:
    """Return the reasons of pools from which no limit bars a job, or else of all these pools."""
    return [each for each in by_pool if not is_barred(each)] or by_pool


def names_text(names: tuple[str, ...]) -> str:
    """Format up to ``NAMES_MAX`` names, with a mark if there are more."""
    listed = ", ".join(names[:NAMES_MAX])
    return f"{listed} and others" if len(names) > NAMES_MAX else listed

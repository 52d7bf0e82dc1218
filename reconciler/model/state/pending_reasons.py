"""Reasons of pending jobs: codes in order of precedence, and the funnel that leads to each."""

from collections.abc import Sequence
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


#: In the message of what asks for more than a limit gives in all: no waiting ends that.
CAN_NOT_START = "it can't start under"
#: In the message of what asks for one domain and is larger than each: no waiting ends that either.
NONE_LARGE_ENOUGH = "none is large enough"
#: In what would end a reason where it is known until when that takes at the most.
TIME_IS_UP = "is up at"
#: In what would end a reason where nodes that could hold a job take no work now.
WORK_AGAIN = "takes work again"
#: In what would end a reason where work is not there that a job has to be near to.
NEAR_STARTS = "what it has to be near to starts"
#: In the message of what waits behind another in a queue that is strict.
NOBODY_PASSES = "nobody passes it in queue"
PRECEDENCE = {code: rank for rank, code in enumerate(ReasonCode)}

#: What only another commit ends.
_BY_COMMIT = frozenset(
    {
        *(ReasonCode.INVALID, ReasonCode.NOT_ALLOWED, ReasonCode.NO_UNIX_USER),
        ReasonCode.DEPENDENCY_NEVER_MET,
    }
)
#: Reasons that are in vain have one of these words in them.
VAIN_WORDS = (
    *(CAN_NOT_START, NONE_LARGE_ENOUGH, ReasonCode.NEVER_FITS.value),
    *sorted(code.value for code in _BY_COMMIT),
)


def is_final(code: str, message: str) -> bool:
    """Return True if waiting does not end a reason about nodes or guarantees."""
    return code == ReasonCode.NEVER_FITS or NONE_LARGE_ENOUGH in message


class FunnelStep(msgspec.Struct, frozen=True):
    """A number of nodes and why they drop out: ``{"count": 4, "why": "not in pool a100"}``."""

    count: int
    why: str


class Reason(msgspec.Struct, frozen=True):
    """One true reason. ``unblocks`` says what would end it."""

    code: ReasonCode
    message: str
    funnel: tuple[FunnelStep, ...] = ()
    unblocks: str = ""


def is_barred(told: Sequence[Reason]) -> bool:
    """Return True if a request is above the whole limit of a pool, so that it can't start there."""
    return any(CAN_NOT_START in one.message for one in told)


def never_starts(told: Sequence[Reason]) -> bool:
    """Return True if waiting alone lets the request start in no pool."""
    limited = bool(told) and all(CAN_NOT_START in one.message for one in told)
    return limited or any(is_final(one.code, one.message) for one in told)


def in_vain(told: Sequence[Reason]) -> bool:
    """Return True if only another commit or other nodes let a job start."""
    barred = is_barred(told)  # where a pool is open to it, only what it waits for there is told
    return barred or never_starts(told) or any(one.code in _BY_COMMIT for one in told)


def hopeful(told: Sequence[Sequence[Reason]]) -> Sequence[Sequence[Reason]]:
    """Return the reasons of pools in which a job may start one day, or else of the first pool."""
    found = [each for each in told if not any(is_final(one.code, one.message) for one in each)]
    return found or told[:1]


def names_text(names: tuple[str, ...]) -> str:
    """Format up to ``NAMES_MAX`` names, with a mark if there are more."""
    listed = ", ".join(names[:NAMES_MAX])
    return f"{listed} and others" if len(names) > NAMES_MAX else listed

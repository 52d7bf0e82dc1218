"""Why a job waits: codes in order of precedence, with the funnel that leads to them."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class ReasonCode(StrEnum):
    """Reasons of a pending job, the first that holds is told first (INTERFACES)."""

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
    """Whether a reason of those that say what nodes and guarantees hold ends by no waiting."""
    return code == ReasonCode.NEVER_FITS or NONE_LARGE_ENOUGH in message


class FunnelStep(msgspec.Struct, frozen=True):
    """So many nodes drop out for this: ``{"count": 4, "why": "not in pool a100"}``."""

    count: int
    why: str


class Reason(msgspec.Struct, frozen=True):
    """One true reason. ``unblocks`` says what would end it."""

    code: ReasonCode
    message: str
    funnel: tuple[FunnelStep, ...] = ()
    unblocks: str = ""


def is_barred(told: Sequence[Reason]) -> bool:
    """Whether a limit is in the way for good in one pool: more is asked than it is in all."""
    return any(CAN_NOT_START in one.message for one in told)


def never_starts(told: Sequence[Reason]) -> bool:
    """Whether what is told of a claim ends by no waiting, nor what limits say of it in any pool."""
    limited = bool(told) and all(CAN_NOT_START in one.message for one in told)
    return limited or any(is_final(one.code, one.message) for one in told)


def in_vain(told: Sequence[Reason]) -> bool:
    """Whether a job waits for what nothing but another commit brings, or other nodes."""
    barred = is_barred(told)  # where a pool is open to it, only what it waits for there is told
    return barred or never_starts(told) or any(one.code in _BY_COMMIT for one in told)


def hopeful(told: Sequence[Sequence[Reason]]) -> Sequence[Sequence[Reason]]:
    """What is told of pools in which something may start one day; of one where none is such."""
    found = [each for each in told if not any(is_final(one.code, one.message) for one in each)]
    return found or told[:1]

"""Sums of what was used and waited for, by the hour: what reports over months are made of.

The loop makes a ``UsageRollup`` of each cycle, the store adds it up in the transaction of that
cycle, so that an attempt counts once whatever crashes. Seconds of GPUs and CPUs are amounts times
time.
"""

import math

import msgspec

HOUR_S = 3600
DAY_S = 86_400
#: Where jobs started of which no place was kept, since an earlier version did not; no pool is
#: called so.
UNKNOWN = "(unknown)"
#: Waits are counted in buckets that grow by this factor: a quantile is right to within 5 %.
BUCKET_GROWTH = 1.1


class UsageKey(msgspec.Struct, frozen=True):
    """Whose use, of what, in which hour since the epoch. ``model`` is empty without GPUs."""

    hour: int
    queue: str
    owner: str
    pool: str
    model: str


class Usage(msgspec.Struct, frozen=True):
    """What attempts had and did.

    Attributes:
        attempts: attempts that ended in the hour.
        asked_gpu_s: GPUs times the time limit; what they had where there is none.
        gpu_s: GPUs times the time from assignment to end.
        failed_gpu_s: of it, that of attempts that did not end well.
        measured_gpu_s: of it, the time in which the GPUs' work was seen; ``busy_gpu_s``: in which
            kernels ran.
        cpu_s: CPUs times time; ``used_cpu_s``: CPU time that was used.
    """

    attempts: int = 0
    asked_gpu_s: float = 0.0
    gpu_s: float = 0.0
    failed_gpu_s: float = 0.0
    measured_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    cpu_s: float = 0.0
    used_cpu_s: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        """Both together."""
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Usage(*(one + more for one, more in zip(mine, others, strict=True)))


class WaitKey(msgspec.Struct, frozen=True):
    """Jobs of whom that first started on which day since the epoch, where, after how long.

    ``pool`` and ``model`` are those of the job's first task; ``model`` is empty without GPUs.
    """

    day: int
    queue: str
    owner: str
    pool: str
    model: str
    bucket: int


class WaitTotals(msgspec.Struct, frozen=True):
    """How many jobs, and for how long all of them together."""

    jobs: int = 0
    wait_s: float = 0.0


class ShareKey(msgspec.Struct, frozen=True):
    """Which queue in which hour."""

    hour: int
    queue: str


class Share(msgspec.Struct, frozen=True):
    """A queue's GPUs times time, children included: promised, fair, given, wanted.

    ``starved_gpu_s``: guaranteed, not given, and waited for by work that needs only room.
    """

    guaranteed_gpu_s: float = 0.0
    fair_gpu_s: float = 0.0
    allocated_gpu_s: float = 0.0
    demand_gpu_s: float = 0.0
    starved_gpu_s: float = 0.0


class PoolShareKey(msgspec.Struct, frozen=True):
    """Which queue in which pool in which hour."""

    hour: int
    queue: str
    pool: str


class PoolShareTotals(msgspec.Struct, frozen=True):
    """A queue's GPUs times time in one pool, children included, where amounts go by pools."""

    guaranteed_gpu_s: float = 0.0
    fair_gpu_s: float = 0.0
    allocated_gpu_s: float = 0.0
    demand_gpu_s: float = 0.0


class UsageRollup(msgspec.Struct, frozen=True):
    """What is to be added to the sums."""

    usage: dict[UsageKey, Usage] = {}
    waits: dict[WaitKey, WaitTotals] = {}
    shares: dict[ShareKey, Share] = {}
    pool_shares: dict[PoolShareKey, PoolShareTotals] = {}


def bucket_of(wait_s: float) -> int:
    """The bucket of a wait: 0 for up to a second."""
    return 0 if wait_s <= 1 else math.ceil(math.log(wait_s) / math.log(BUCKET_GROWTH))


def wait_of(bucket: int) -> float:
    """A wait in the middle of a bucket, in seconds."""
    return 0.0 if bucket <= 0 else BUCKET_GROWTH ** (bucket - 0.5)


def by_hour(began: float, ended: float) -> list[tuple[int, float]]:
    """The seconds of each hour that lie between two times."""
    parts = []
    hour = int(began // HOUR_S)
    while hour * HOUR_S < ended:
        until = min(ended, (hour + 1) * HOUR_S)
        parts.append((hour, until - max(began, hour * HOUR_S)))
        hour += 1
    return parts

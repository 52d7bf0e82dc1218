"""Hourly sums of usage and waiting, from which reports over months are made.

The loop makes a ``UsageRollup`` of each cycle. The store adds it up in the transaction of that
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
    """Key of usage: who, what, and the hour since the epoch. ``model`` is empty without GPUs."""

    hour: int
    queue: str
    owner: str
    pool: str
    model: str


class Usage(msgspec.Struct, frozen=True):
    """Usage of attempts.

    Attributes:
        attempts: attempts that ended in the hour.
        asked_gpu_s: GPUs times the time limit, or times the run time without a limit.
        gpu_s: GPUs times the time from assignment to end.
        failed_gpu_s: the part of attempts that did not end well.
        measured_gpu_s: the part in which utilisation was measured; ``busy_gpu_s``: in which kernels
            ran.
        cpu_s: CPUs times time; ``used_cpu_s``: CPU time used.
        lost_gpu_s, saved_gpu_s, cancelled_gpu_s: the parts of ``failed_gpu_s`` that were lost with
            a node or by an eviction, that were evicted with a checkpoint, and that were cancelled.
    """

    attempts: int = 0
    asked_gpu_s: float = 0.0
    gpu_s: float = 0.0
    failed_gpu_s: float = 0.0
    measured_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    cpu_s: float = 0.0
    used_cpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    saved_gpu_s: float = 0.0
    cancelled_gpu_s: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum of both."""
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Usage(*(one + more for one, more in zip(mine, others, strict=True)))


class WaitKey(msgspec.Struct, frozen=True):
    """Key of waiting jobs: owner, place, wait bucket, and the day since the epoch of the first
    start.

    ``pool`` and ``model`` are those of the job's first task; ``model`` is empty without GPUs.
    """

    day: int
    queue: str
    owner: str
    pool: str
    model: str
    bucket: int


class WaitTotals(msgspec.Struct, frozen=True):
    """Number of jobs, and the sum of their waits."""

    jobs: int = 0
    wait_s: float = 0.0


class ShareKey(msgspec.Struct, frozen=True):
    """Key of a share: queue and hour."""

    hour: int
    queue: str


class Share(msgspec.Struct, frozen=True):
    """A queue's GPUs times time, descendants included: guaranteed, fair, given, demanded.

    ``starved_gpu_s``: guaranteed, not given, and waited for by work that needs only capacity.
    """

    guaranteed_gpu_s: float = 0.0
    fair_gpu_s: float = 0.0
    allocated_gpu_s: float = 0.0
    demand_gpu_s: float = 0.0
    starved_gpu_s: float = 0.0


class PoolShareKey(msgspec.Struct, frozen=True):
    """Key of a share in a pool: queue, pool and hour."""

    hour: int
    queue: str
    pool: str


class PoolShareTotals(msgspec.Struct, frozen=True):
    """A queue's GPUs times time in one pool, descendants included, if it has amounts by pool."""

    guaranteed_gpu_s: float = 0.0
    fair_gpu_s: float = 0.0
    allocated_gpu_s: float = 0.0
    demand_gpu_s: float = 0.0


class UsageRollup(msgspec.Struct, frozen=True):
    """Amounts to add to the sums."""

    usage: dict[UsageKey, Usage] = {}
    waits: dict[WaitKey, WaitTotals] = {}
    shares: dict[ShareKey, Share] = {}
    pool_shares: dict[PoolShareKey, PoolShareTotals] = {}


def bucket_of(wait_s: float) -> int:
    """Return the bucket of a wait: 0 for up to a second."""
    return 0 if wait_s <= 1 else math.ceil(math.log(wait_s) / math.log(BUCKET_GROWTH))


def wait_of(bucket: int) -> float:
    """Return a wait in the middle of a bucket, in seconds."""
    return 0.0 if bucket <= 0 else BUCKET_GROWTH ** (bucket - 0.5)


def by_hour(began: float, ended: float) -> list[tuple[int, float]]:
    """Return the seconds of each hour between two times."""
    parts = []
    hour = int(began // HOUR_S)
    while hour * HOUR_S < ended:
        until = min(ended, (hour + 1) * HOUR_S)
        parts.append((hour, until - max(began, hour * HOUR_S)))
        hour += 1
    return parts

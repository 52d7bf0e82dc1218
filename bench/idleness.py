"""Why GPUs are idle while work waits: counted after cycles, by what is in the way.

Records of a moment come in; GPU-seconds go out: idle while nobody waits for them; while what waits
is too large for them all together; while it would fit in their number, but not on nodes as they
are (fragmentation); and while it would fit on nodes, and something decided keeps it out, by the
reason it was told. What waits is put together greedily, the largest first, so that each figure is
about the most that could be filled. Nothing of the scheduler is imported.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from bench import moment

_WHOLE = 1000
#: Tasks and GPUs of each.
Size = tuple[int, int]


class Idleness:
    """What idle GPUs waited for.

    Attributes:
        gpu_s: GPU-seconds by kind: ``no demand``, ``too large``, ``fragmented``, and for what was
            kept out ``held: REASON``.
    """

    def __init__(self, until: float) -> None:
        """``until``: the moment at which counting ends."""
        self.until = until
        self.gpu_s: defaultdict[str, float] = defaultdict(float)
        self._state: dict[str, int] = {}
        self._since: float | None = None

    def look(self, seen: moment.Seen) -> None:
        """Take note of how a cycle left things; it counts until the next look."""
        self.settle(seen.now)
        free = _free(seen)
        waiting = _waiting(seen)
        self._state = found = {"no demand": sum(free)}
        asked = sum(tasks * each for tasks, each, _ in waiting)
        wanted = min(sum(free), asked)
        if not wanted:
            return
        found["no demand"] -= wanted
        number = _filled([sum(free)], ((1, tasks * each, why) for tasks, each, why in waiting))
        placed = _filled(free, waiting)
        most = sum(number.values())
        found["too large"] = wanted - most
        found["fragmented"] = max(0, most - sum(placed.values()))
        for why, units in placed.items():
            found[f"held: {why}"] = units

    def settle(self, now: float) -> None:
        """Count what was seen last up to a moment."""
        if self._since is not None:
            for kind, units in self._state.items():
                self.gpu_s[kind] += units * max(0.0, min(now, self.until) - self._since)
        self._since = now


def _free(seen: moment.Seen) -> list[int]:
    """Whole GPUs free on each node."""
    left: dict[str, int] = {}
    for pool in seen.structure.pools.values():
        for name in pool.nodes:
            left[name] = pool.node_resources.gpu_milli // _WHOLE
    for attempt in moment.Moment(seen).live:
        left[attempt.node] -= attempt.resources.gpu_milli // _WHOLE
    return sorted(left.values())


def _waiting(seen: moment.Seen) -> list[tuple[int, int, str]]:
    """Tasks, GPUs of each and the reason of every job that waits, the largest first."""
    found = []
    for record in seen.job_records.values():
        if record.finished or not record.reason_key:
            continue
        told = seen.why.get(record.reason_key, ())
        group = record.spec.groups[0]
        each = group.resources.gpu_milli // _WHOLE
        if told and each:
            found.append((group.count, each, told[0].code.value))
    return sorted(found, key=lambda one: (-one[0] * one[1], one))


def _filled(free: list[int], waiting: Iterable[tuple[int, int, str]]) -> Counter[str]:
    """GPUs that work would take which is put on the fullest nodes that hold it, by its reason."""
    left = sorted(free)
    found: Counter[str] = Counter()
    failed: set[Size] = set()
    for tasks, each, why in waiting:
        if (tasks, each) in failed:
            continue
        after = _with(left, tasks, each)
        if after is None:
            failed.add((tasks, each))
            continue
        left = after
        found[why] += tasks * each
        if not left or left[-1] == 0:
            break
    return found


def _with(left: list[int], tasks: int, each: int) -> list[int] | None:
    """What is left on nodes with so many tasks more; None: they do not fit."""
    after, missing = [], tasks
    for free in left:
        taken = min(missing, free // each)
        missing -= taken
        after.append(free - taken * each)
    return None if missing else sorted(after)

"""States in the order of what they have left, so that the tightest fit is found without a ranking.

Where a task takes whole devices and nothing is preferred but a tight fit, all shapes want the same
order: GPUs left, then CPU, then memory. States that have nodes go in as they get their first; the
first of them in which a task may fit comes out, after a few looks instead of one over all states.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from reconciler.scheduling.inputs.snapshots import Mask
from reconciler.scheduling.nodes.requirements import TaskRequirements

#: The most that CPU, or memory, adds to the amount before it when nodes are ranked.
BELOW_ONE = 1.0 - 2.0**-30
#: States that are looked at before a look over all of them at once is cheaper.
LOOKS_MAX = 96


class NodeRemainder(NamedTuple):
    """What the nodes of a state have left: class, milli-CPUs and bytes in steps, idle devices."""

    node_class: int
    cpu: int
    memory: int
    idle: int


class BestFitIndex:
    """States by tightness: smaller first, then the state of the lower number.

    A state's CPU and memory are rounded down to steps: what may fit some of its nodes counts.
    """

    def __init__(self, scale: tuple[float, float, float], steps: tuple[int, int]) -> None:
        """``scale``: more GPU, CPU and memory than any node has; ``steps`` of CPU and memory."""
        self._scale = scale
        self._cpu_step, self._memory_step = steps
        self._entries: list[tuple[float, int]] = []
        #: By state, also of those that have no node at the moment: a state stays what it is.
        self._known: dict[int, tuple[float, int]] = {}
        self._left: dict[int, NodeRemainder] = {}

    def knows(self, state: int) -> bool:
        """Whether a state was put here once."""
        return state in self._known

    def put(self, state: int, gpu: int, left: NodeRemainder) -> None:
        """A state has its first node; ``gpu``: milli-GPUs left."""
        self._left[state] = left
        self._known[state] = (self._tightness(gpu, left), state)
        self.again(state)

    def again(self, state: int) -> None:
        """A state that was put here once has a node again."""
        insort(self._entries, self._known[state])

    def drop(self, state: int) -> None:
        """A state has no node any more."""
        del self._entries[bisect_left(self._entries, self._known[state])]

    def _tightness(self, gpu: int, left: NodeRemainder) -> float:
        """What ``StateIndex`` takes for a cost where nothing is lost but what is left."""
        whole, cpu, memory = self._scale
        inner = left.cpu + min(max(left.memory / memory, 0.0), BELOW_ONE)
        return (gpu + min(max(inner / cpu, 0.0), BELOW_ONE)) / whole

    def fitting(self, ask: TaskRequirements, allowed: Mask, gpu: int) -> Iterator[int]:
        """States in which a task may fit, the tightest first; -1 where it was looked for enough.

        ``allowed``: by class; ``gpu``: milli-GPUs that it takes at the least.
        """
        entries, left = self._entries, self._left
        cpu, memory = ask.cpu - self._cpu_step, ask.memory - self._memory_step
        first = bisect_left(entries, (gpu / self._scale[0], -1))
        for at in range(first, min(first + LOOKS_MAX, len(entries))):
            state = entries[at][1]
            one = left[state]
            if (
                one.idle >= ask.devices
                and (one.cpu > cpu or not ask.cpu)
                and (one.memory > memory or not ask.memory)
                and allowed[one.node_class]
            ):
                yield state
        if first + LOOKS_MAX < len(entries):
            yield -1

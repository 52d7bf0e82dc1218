"""Chooses the cores that tasks are pinned to. Pure; callers apply the result.

Whole CPUs are cores of one task; fractions share a core as long as they fit. Cores near the task's
GPUs come first, then those of the NUMA node that stays fullest, so that large tasks find whole
nodes. If fractions have left no free core, the least loaded cores are shared, and CPU weights
divide the time.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

_FULL = 1000


class CorePool(msgspec.Struct):
    """Load of each core in milli-CPUs, and the cores of each attempt.

    Attributes:
        numa: cores of each NUMA node; one node if the machine reports none.
    """

    numa: tuple[tuple[int, ...], ...]
    held: dict[str, dict[int, int]] = {}

    def take(self, name: str, cpu_milli: int, near: Iterable[int] = ()) -> str:
        """Return cores for an attempt, as the kernel lists them. ``near``: preferred NUMA nodes."""
        loads = self._loads()
        order = self._order(loads, set(near))
        whole, part = divmod(cpu_milli, _FULL)
        chosen = dict.fromkeys([core for core in order if not loads[core]][:whole], _FULL)
        if part:
            rest = [core for core in order if core not in chosen]
            begun = [c for c in rest if 0 < loads[c] <= _FULL - part]
            fresh = [c for c in rest if not loads[c]]
            if begun or fresh:
                chosen[(begun or fresh)[0]] = part
        lacking = max(1, whole + bool(part)) - len(chosen)
        if lacking > 0:
            rest = sorted((c for c in order if c not in chosen), key=lambda core: loads[core])
            chosen |= dict.fromkeys(rest[:lacking], _FULL)
        self.held[name] = chosen
        return text_of(chosen)

    def restore(self, name: str, cpus: str) -> None:
        """Note cores that an attempt already has, after a restart of the agent."""
        if cpus and name not in self.held:
            self.held[name] = dict.fromkeys(parse(cpus), _FULL)

    def give_back(self, name: str) -> None:
        """Release the cores of an attempt that has ended."""
        self.held.pop(name, None)

    def _loads(self) -> dict[int, int]:
        loads = {core: 0 for node in self.numa for core in node}
        for taken in self.held.values():
            for core, milli in taken.items():
                loads[core] = loads.get(core, 0) + milli
        return loads

    def _order(self, loads: Mapping[int, int], near: set[int]) -> list[int]:
        """Return all cores, the best first."""
        free = [sum(not loads[core] for core in node) for node in self.numa]
        nodes = sorted(range(len(self.numa)), key=lambda n: (n not in near, free[n] or 1 << 30, n))
        return [core for node in nodes for core in self.numa[node]]


def parse(text: str) -> list[int]:
    """Return the cores of a list like ``0-3,8``."""
    found: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match:
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def text_of(cores: Iterable[int]) -> str:
    """Format cores as the kernel lists them."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][1] + 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in parts)


def of_machine(numa: Sequence[str], allowed: Iterable[int]) -> CorePool:
    """Return the cores that this process may use. ``numa`` are the kernel's lists by NUMA node."""
    usable = set(allowed)
    nodes = [tuple(core for core in parse(text) if core in usable) for text in numa]
    known = {core for node in nodes for core in node}
    rest = tuple(sorted(usable - known))
    return CorePool((*nodes, rest) if rest else tuple(nodes))

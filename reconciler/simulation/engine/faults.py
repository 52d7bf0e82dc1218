"""Faults of a simulation, all drawn from one seeded ``Random``.

``Weather`` is the network's effect on messages; an ``InjectedFault`` happens to a machine or to the
controller at a moment. ``draw`` makes a plan of faults.
"""

import random
from typing import Literal

import msgspec

FaultKind = Literal[
    "cut", "connect", "power-off", "boot", "restart-agent", "skew-clock", "change-leader"
]
#: The most faults of one plan.
FAULTS_MAX = 100_000
#: The longest that a flapping node is away or back, in seconds.
_FLAP_S = 20.0


class InjectedFault(msgspec.Struct, frozen=True):
    """A fault, or its repair, at a moment.

    Attributes:
        at: seconds since the epoch.
        kind: ``cut`` and ``connect`` concern the network, ``power-off`` and ``boot`` the machine,
            ``restart-agent`` only its agent; ``skew-clock`` sets its wall clock off by
            ``amount_s``;
            ``change-leader`` lets another controller go on from the stored state.
        node: the node; empty if it concerns none.
    """

    at: float
    kind: FaultKind
    node: str = ""
    amount_s: float = 0.0


class Weather:
    """Fate of messages between nodes and controller. The default loses nothing."""

    def __init__(
        self,
        seed: random.Random | None = None,
        *,
        lose: float = 0.0,
        duplicate: float = 0.0,
        delay: float = 0.0,
        delay_s_max: float = 30.0,
    ) -> None:
        """Take probabilities by message; a delayed message may be overtaken by later ones."""
        self._random = seed or random.Random(0)  # noqa: S311 - a story, not a secret
        self._lose = lose
        self._duplicate = duplicate
        self._delay = delay
        self._delay_s_max = delay_s_max
        self._calm = not (lose or duplicate or delay)

    def carry(self) -> tuple[float, ...]:
        """Return the seconds until a message arrives, once for each copy; empty: it is lost."""
        if self._calm:
            return (0.0,)
        chance = self._random.random
        if chance() < self._lose:
            return ()
        copies = 2 if chance() < self._duplicate else 1
        return tuple(
            chance() * self._delay_s_max if chance() < self._delay else 0.0 for _ in range(copies)
        )


class Rates(msgspec.Struct, frozen=True):
    """Mean seconds between two faults of a kind. 0 means never.

    ``away_s`` is the longest time for which a node is cut off, or down.
    """

    cut_every_s: float = 0.0
    flap_every_s: float = 0.0
    power_off_every_s: float = 0.0
    restart_agent_every_s: float = 0.0
    skew_clock_every_s: float = 0.0
    change_leader_every_s: float = 0.0
    away_s: float = 600.0
    skew_s: float = 60.0


def draw(
    seed: random.Random, nodes: tuple[str, ...], begin: float, end: float, rates: Rates
) -> list[InjectedFault]:
    """Return a plan of faults between two moments, in order of time. All nodes are back at
    the end.
    """
    found: list[InjectedFault] = []
    for at in _moments(seed, begin, end, rates.cut_every_s):
        back = at + seed.random() * rates.away_s
        found += _pair("cut", "connect", seed.choice(nodes), at, min(back, end))
    for at in _moments(seed, begin, end, rates.flap_every_s):
        node, moment = seed.choice(nodes), at
        for _ in range(seed.randint(2, 5)):
            back = moment + seed.random() * _FLAP_S
            found += _pair("cut", "connect", node, min(moment, end), min(back, end))
            moment = back + seed.random() * _FLAP_S
    for at in _moments(seed, begin, end, rates.power_off_every_s):
        back = at + seed.random() * rates.away_s
        found += _pair("power-off", "boot", seed.choice(nodes), at, min(back, end))
    for at in _moments(seed, begin, end, rates.restart_agent_every_s):
        found.append(InjectedFault(at, "restart-agent", seed.choice(nodes)))
    for at in _moments(seed, begin, end, rates.skew_clock_every_s):
        amount_s = seed.uniform(-rates.skew_s, rates.skew_s)
        found.append(InjectedFault(at, "skew-clock", seed.choice(nodes), amount_s))
    found += [
        InjectedFault(at, "change-leader")
        for at in _moments(seed, begin, end, rates.change_leader_every_s)
    ]
    found.sort(key=lambda fault: fault.at)  # stable: pairs of one moment keep their order
    return found


def _pair(
    first: FaultKind, second: FaultKind, node: str, at: float, back: float
) -> list[InjectedFault]:
    return [InjectedFault(at, first, node), InjectedFault(back, second, node)]


def _moments(seed: random.Random, begin: float, end: float, every_s: float) -> list[float]:
    if every_s <= 0:
        return []
    found: list[float] = []
    at = begin
    while len(found) < FAULTS_MAX:
        at += seed.expovariate(1 / every_s)
        if at >= end:
            break
        found.append(at)
    return found

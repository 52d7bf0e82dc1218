"""Sequences of steps for transitions that random storms hardly ever take."""

import random
from collections.abc import Iterable
from typing import Any

import msgspec

from reconciler.model import desired
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import faults
from tests.simulation import plans, work
from tests.simulation.plans import GI, Step


def draw(chance: random.Random, nodes: tuple[str, ...], jobs: list[str]) -> Iterable[Step]:
    """Return sequences for transitions that random storms hardly ever take."""
    tales = (
        _undeclared_and_silent,
        _gone_and_repaired,
        _gone_in_a_pause,
        _drained_and_silent,
        _unhealthy_and_undeclared,
        _unhealthy_and_silent,
    )
    found: list[Step] = []
    for tale in chance.sample(tales, chance.choice([1, 2, 3])):
        found += tale(chance, chance.choice(nodes))
    if chance.random() < 0.4:
        found += _flaky(chance)
    if chance.random() < 0.4:
        found += _late_and_cut(chance, nodes)
    if chance.random() < 0.4:
        found += _cancelled_in_silence(chance, nodes, jobs)
    return found


def _fault(at: float, kind: faults.FaultKind, node: str) -> Step:
    return Step(at, "fault", node, fault=faults.InjectedFault(at, kind, node))


def _set(at: float, field: str, value: Any) -> Step:
    return Step(at, "structure", field, fields=((field, value),))


def _undeclared_and_silent(chance: random.Random, node: str) -> list[Step]:
    """Let an undeclared node fall silent and come back."""
    at = chance.uniform(60, 0.5 * plans.STORM_S)
    return [
        _set(at, "undeclared", node),
        _fault(at + 2, "cut", node),
        _fault(at + 150, "connect", node),
        _set(at + 220, "undeclared", ""),
    ]


def _gone_and_repaired(chance: random.Random, node: str) -> list[Step]:
    """Repair a broken machine before git learns of it, sometimes with less than declared."""
    at = chance.uniform(60, 0.5 * plans.STORM_S)
    found = [
        _fault(at, "power-off", node),
        _fault(at + 0.5, "cut", node),
        _set(at + 1, "gone", node),
        Step(at + 60, "repair", node),
        _set(at + 120, "gone", ""),
    ]
    if chance.random() < 0.5:
        found += [_set(at + 50, "swollen", True), _set(at + 130, "swollen", False)]
    return found


def _gone_in_a_pause(chance: random.Random, node: str) -> list[Step]:
    """Break a node, and have somebody report it, while the controller is paused."""
    at = chance.uniform(60, 0.5 * plans.STORM_S)
    return [
        Step(at, "pause"),
        _fault(at + 1, "power-off", node),
        _fault(at + 1.5, "cut", node),
        _set(at + 2, "gone", node),
        _set(at + 200, "gone", ""),
    ]


def _drained_and_silent(chance: random.Random, node: str) -> list[Step]:
    """Let a drained node fall silent and come back drained."""
    at = chance.uniform(60, 0.4 * plans.STORM_S)
    return [
        _set(at, "drained", node),
        _fault(at + 120, "cut", node),
        _fault(at + 200, "connect", node),
        _set(at + 260, "drained", ""),
    ]


def _unhealthy_and_undeclared(chance: random.Random, node: str) -> list[Step]:
    """Let a node with less than declared leave its pool, busy or idle, and come back."""
    at = chance.uniform(60, 0.5 * plans.STORM_S)
    left = at + chance.choice([5, 60, 120])
    return [
        _set(at, "swollen", True),
        _set(left, "undeclared", node),
        _set(left + 60, "undeclared", ""),
        _set(left + 90, "swollen", False),
    ]


def _unhealthy_and_silent(chance: random.Random, node: str) -> list[Step]:
    """Let a node fall silent and come back with less than declared."""
    at = chance.uniform(60, 0.5 * plans.STORM_S)
    return [
        _fault(at, "cut", node),
        _set(at + 50, "swollen", True),
        _fault(at + 80, "connect", node),
        _set(at + 140, "swollen", False),
    ]


def _late_and_cut(chance: random.Random, nodes: tuple[str, ...]) -> list[Step]:
    """Assign work to unreachable nodes, with a deadline before it starts."""
    at = chance.uniform(60, 0.6 * plans.STORM_S)
    job = msgspec.structs.replace(
        work.a_job(chance, "late", []),
        groups=(desired.TaskGroup("main", 1, Resources(500, GI), command=("true",)),),
        queue="near",
        owner="",
        priority=95,
        array_count=None,
        parallelism=None,
        suspend=False,
        deadline=plans.BEGIN + at + 16,
        exclusive=False,
        pools=(),
    )
    found = [_fault(at, "cut", node) for node in nodes]
    found.append(Step(at + 1, "submit", job.name, job))
    return found + [_fault(at + chance.choice([20, 100]), "connect", node) for node in nodes]


def _cancelled_in_silence(
    chance: random.Random, nodes: tuple[str, ...], jobs: list[str]
) -> list[Step]:
    """Cancel work while its node is unreachable. The node comes back before leases end."""
    at = chance.uniform(100, 0.8 * plans.STORM_S)
    found = [_fault(at, "cut", node) for node in nodes]
    wanted = chance.sample(jobs, min(6, len(jobs)))
    found += [Step(at + plans.SILENCE_S + 12, "cancel", name) for name in wanted]
    return found + [_fault(at + plans.SILENCE_S + 16, "connect", node) for node in nodes]


def images_on_the_way(chance: random.Random, nodes: tuple[str, ...]) -> list[Step]:
    """Restart or silence agents of a gang while its images are fetched."""
    at = chance.uniform(60, 0.7 * plans.STORM_S)
    job = msgspec.structs.replace(
        work.a_job(chance, "imaged", []),
        groups=(desired.TaskGroup("main", 2, Resources(500, GI), command=("true",)),),
        queue="near",
        owner="",
        priority=97,
        array_count=None,
        parallelism=None,
        suspend=False,
        deadline=None,
        exclusive=False,
        pools=(),
        runtime="podman",
        image="docker.io/library/busybox",
    )
    found = [Step(at, "submit", job.name, job)]
    if chance.random() < 0.5:
        return found + [_fault(at + 4, "restart-agent", node) for node in nodes]
    found += [_fault(at + 4, "cut", node) for node in nodes]
    return found + [_fault(at + 4 + plans.SILENCE_S + 6, "connect", node) for node in nodes]


def _flaky(chance: random.Random) -> list[Step]:
    """End an array, most of whose elements fail, while the others wait or are held."""
    job = msgspec.structs.replace(
        work.a_job(chance, "flaky", []),
        groups=(desired.TaskGroup("main", 1, Resources(500, GI), command=("true",)),),
        queue="default",
        owner="",
        array_count=4,
        parallelism=1,
        suspend=False,
        deadline=None,
        exclusive=False,
        pools=(),
        retries=desired.Retries(limit=1, backoff_s=120),
    )
    at = chance.uniform(0, 200)
    ends_at = at + chance.uniform(100, 500)
    found = [Step(at, "submit", job.name, job), Step(ends_at, "cancel", job.name)]
    if chance.random() < 0.5:
        held_at = ends_at - 40
        found.append(Step(held_at, "change", job.name, fields=(("suspend", True),)))
    return found


def fewer_gpus(chance: random.Random) -> list[Step]:
    """Sometimes declare only half of the GPUs for a while, whatever runs on them."""
    found: list[Step] = []
    for _ in range(chance.choice([0, 0, 1, 2])):
        at = chance.uniform(30, 0.8 * plans.STORM_S)
        found += [_set(at, "thinned", True)]
        found += [_set(at + chance.uniform(5, 200), "thinned", False)]
    return found

"""What idle GPUs wait for, and for how long that counts."""

import pytest

from bench import idleness, moment
from reconciler.model.state.states import AttemptState
from tests.unit.core.world import World, job


def seen(world: World) -> moment.Seen:
    """The world as a cycle left it."""
    memory = world.memory
    return moment.Seen(
        now=world.now,
        structure=world.structure,
        job_records=memory.jobs,
        attempts=memory.attempts,
        nodes=memory.nodes,
        why=memory.reasons,
    )


@pytest.mark.parametrize(
    ("running", "waiting", "expected"),
    [
        ([], [], {"no demand": 8}),
        ([3, 3], [], {"no demand": 2}),
        ([3, 3], [2], {"fragmented": 2}),
        ([3, 3], [4], {"too large": 2}),
        ([4], [4, 4], {}),
    ],
)
def test_a_moment(running: list[int], waiting: list[int], expected: dict[str, int]) -> None:
    world = World(nodes=2, cpu=64, gpu=4)
    for number, gpu in enumerate(running):
        world.commit(job(f"r{number}", gpu=gpu))
    world.settle(3)
    for number, gpu in enumerate(waiting):
        world.commit(job(f"w{number}", gpu=gpu))
    world.settle(3)
    live = [a for a in world.memory.attempts.values() if a.state is not AttemptState.ENDED]
    assert len(live) >= len(running)
    found = idleness.Idleness(world.now + 5)
    found.look(seen(world))
    found.settle(world.now + 20)
    assert {kind: gpu_s / 5 for kind, gpu_s in found.gpu_s.items() if gpu_s} == expected

"""Tasks that were given up but live keep their devices until they have left."""

import msgspec

from reconciler.model import desired
from reconciler.model.state.states import AttemptState
from tests.unit.core.world import World, job


def test_a_node_that_was_declared_gone_and_is_back_gets_nothing_until_it_is_empty() -> None:
    world = World(nodes=1, cpu=4, gpu=1)
    world.commit(job("a", gpu=1))
    world.settle()
    (old,) = world.attempts("a")
    node = world.nodes["n0"]
    node.silent = True
    said = {"n0": desired.NodeDrain(reason="burnt", gone=True)}
    world.change_structure(pools={"pool": msgspec.structs.replace(world.pool, drains=said)})
    world.advance(100)
    assert world.memory.nodes["n0"].state == "Gone"
    assert world.state("a") == "Pending"
    world.change_structure(pools={"pool": world.pool})
    running = dict(node.attempts)
    for _ in range(3):
        world.memory.add_report(node.report(world.now))
        world.cycle()
        assert not world.attempts("a"), "its device is in use"
    assert world.memory.nodes["n0"].state == "Unhealthy"
    assert old.id in world.memory.nodes["n0"].message
    assert node.attempts == running
    node.end(old.id, world.now, signal=15)
    node.silent = False
    world.settle()
    (new,) = world.attempts("a")
    assert (new.try_number, new.state) == (2, AttemptState.RUNNING)

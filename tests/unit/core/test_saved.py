"""Checkpoints: kept over tries, given to the next, and counted in the cost of an eviction."""

import msgspec

from reconciler.core import cycle_context
from reconciler.core.snapshot import snapshot_builder
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from tests.unit.core import world


def tell(cluster: world.World, path: str, at: float) -> None:
    """Let the node report a checkpoint of its only task."""
    (node,) = cluster.nodes.values()
    for name, told in node.attempts.items():
        saved = task_reports.Saved(path, at)
        node.attempts[name] = msgspec.structs.replace(told, checkpoint=saved)
    cluster.settle()


def since(cluster: world.World) -> float:
    """Return from when work would be lost, as the scheduler sees it."""
    wanted = desired.Desired(structure=cluster.structure, jobs=dict(cluster.jobs))
    observed = cluster.memory.observed((), {}, (), ())
    situation = snapshot_builder.build(
        cycle_context.CycleContext(wanted, observed, cluster.now), wanted, cluster.now
    )
    (holding,) = situation.snapshot.holdings
    return holding.since


def told_to_the_next(cluster: world.World) -> str:
    update = cluster.engine.update("n0", cluster.structure, cluster.memory)
    assert update.payload is not None
    (one,) = msgspec.msgpack.decode(update.payload, type=agent_messages.AssignmentSet).assignments
    return one.saved


def test_an_eviction_costs_what_was_done_since() -> None:
    cluster = world.World(nodes=1)
    began = cluster.now
    cluster.commit(world.job("j", checkpoint=desired.Checkpoint(path="c")))
    cluster.settle()
    cluster.advance(600)
    assert since(cluster) == began
    tell(cluster, "step-1", began + 500)
    assert since(cluster) == began + 500
    tell(cluster, "step-0", began + 100)  # an older one takes nothing back
    assert since(cluster) == began + 500
    tell(cluster, "step-9", began + 10_000)  # a clock that is ahead
    assert since(cluster) == cluster.now
    tell(cluster, "bad", float("nan"))
    assert since(cluster) == cluster.now


def test_the_next_try_is_told_of_it_also_when_the_one_between_saved_nothing() -> None:
    cluster = world.World(nodes=1)
    retries = desired.Retries(limit=5, backoff_s=0)
    cluster.commit(world.job("j", checkpoint=desired.Checkpoint(path="c"), retries=retries))
    cluster.settle()
    assert told_to_the_next(cluster) == ""
    tell(cluster, "step-7", cluster.now)
    for _ in range(2):
        cluster.end("j", exit_code=1)
        cluster.advance(1)
        assert told_to_the_next(cluster) == "step-7"
    note: records.ElementNote = cluster.memory.jobs["j"].notes[0]
    assert note.saved is not None

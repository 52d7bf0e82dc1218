"""A node is told its pool, for its metrics page, by a protocol that can grow."""

import msgspec

from reconciler.model import desired
from reconciler.model.protocol import agent_messages
from tests.unit.core import world


def told(of: world.World) -> agent_messages.AssignmentSet:
    update = of.engine.update("n0", of.structure, of.memory)
    assert update.payload is not None
    return msgspec.msgpack.decode(update.payload, type=agent_messages.AssignmentSet)


def test_the_pool_is_told_and_its_change_is_news() -> None:
    made = world.World(nodes=1)
    made.settle()
    assert told(made).pool == "pool"
    assert not made.engine.is_behind("n0", made.structure, made.memory)
    made.pool = msgspec.structs.replace(made.pool, name="other")
    made.change_structure(pools={"other": made.pool})
    made.settle()
    assert made.engine.is_behind("n0", made.structure, made.memory)
    assert told(made).pool == "other"
    assert not made.engine.is_behind("n0", made.structure, made.memory)


def test_how_often_a_job_means_to_save_is_told() -> None:
    made = world.World(nodes=1)
    plain = world.job("plain")
    saves = msgspec.structs.replace(
        plain, name="saves", checkpoint=desired.Checkpoint(path="saved", every_s=600)
    )
    made.commit(plain, saves)
    made.settle()
    found = {one.attempt.split(".")[0]: one.saves_every_s for one in told(made).assignments}
    assert found == {"plain": None, "saves": 600}


class Before(msgspec.Struct, frozen=True, omit_defaults=True):
    """An assignment set as older agents know it, without a pool."""

    assignments: tuple[dict[str, object], ...] = ()


def test_agents_and_controllers_of_before_and_after_understand_each_other() -> None:
    new = agent_messages.AssignmentSet(
        assignments=(agent_messages.Assignment("a", "t", "b", saves_every_s=5),), pool="p"
    )
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=Before)
    assert [one["attempt"] for one in old.assignments] == ["a"]
    again = msgspec.msgpack.decode(
        msgspec.msgpack.encode(Before(({"attempt": "a", "template": "t", "boot_id": "b"},))),
        type=agent_messages.AssignmentSet,
    )
    assert (again.pool, again.assignments[0].saves_every_s) == ("", None)

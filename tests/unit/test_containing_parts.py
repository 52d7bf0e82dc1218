"""Of what comes in beside a defect nothing is lost, but for what can't be decided by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler import containing
from reconciler.model import provisioning, records
from tests.unit.core.world import World, job
from tests.unit.test_containing import Contained


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Contained]:
    """A loop over three hundred nodes, every tenth of which is poisonous."""
    made = Contained(tmp_path, World(nodes=300))
    made.revision(job("fine"))
    made.cycle()
    made.core.nodes = {f"n{number}" for number in range(0, 300, 10)}
    yield made
    made.close()


def test_tries_are_bounded_and_what_they_did_not_come_to_is_for_the_next_cycle(
    many: Contained,
) -> None:
    many.hear(*many.world.nodes)
    healthy = many.world.nodes.keys() - many.core.nodes
    for _ in range(10):
        many.core.calls = 0
        many.cycle()
        assert many.core.calls <= containing.TRIES_MAX + 2
        assert many.loop._defects._aside.keys() <= many.core.nodes, "only what raised by itself"
        if not many.loop._memory.reports:
            break
        assert many.loop._wake_at == many.now, "the next one follows at once"
    assert not many.loop._memory.reports
    assert many.loop._memory.nodes.keys() == healthy
    assert many.loop._defects._aside.keys() == many.core.nodes


def test_what_people_and_scripts_said_is_come_to_first(many: Contained) -> None:
    """They say it once, and nodes say again what nobody has come to."""
    many.hear(*many.world.nodes)
    came = containing.Inflow(
        reports=tuple(many.loop._memory.reports),
        asked=(records.ClearOverride("o1", "drain", "n1", "ada@example.org"),),
        provisioned=(provisioning.Result("create", "pool", "r", 1),),
    )
    names = [one.name for one in came.sources()]
    assert names[:3] == ["override o1", "the script of pool pool", "node n0"]


def test_what_is_put_back_is_taken_as_it_came(many: Contained) -> None:
    many.hear("n1", "n2")
    came = containing.Inflow(
        reports=tuple(many.loop._memory.reports),
        asked=(records.ClearOverride("o1", "drain", "n1", "ada@example.org"),),
        provisioned=(provisioning.Result("create", "pool", "r", 1),),
    )
    memory = many.loop._memory
    memory.take_input()
    containing.put_back(came, memory)
    again = containing.Inflow(
        reports=memory.take_input()[0],
        asked=memory.take_asked(),
        provisioned=memory.take_provisioned(),
    )
    assert again == came

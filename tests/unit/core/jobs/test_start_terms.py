"""When and on which nodes a job starts that says so."""

import pytest

from tests.unit.core.world import World, job


def test_a_job_starts_when_its_time_has_come_and_not_before() -> None:
    world = World(nodes=1)
    at = world.now + 600
    world.commit(job("late", not_before=at), job("now"))
    world.settle()
    assert world.reason("late") == "BackingOff"
    (told,) = next(why for key, why in world.memory.reasons.items() if "until" in key)
    assert told.message.endswith("at the earliest (spec.notBefore)")
    world.advance(599)
    assert world.state("late").value == "Pending"
    assert world.outcomes[-1].wake_at == at
    world.advance(1)
    assert world.state("late").value == "Running"


@pytest.mark.parametrize(
    ("terms", "node"),
    [
        ({"hosts": ("n2",)}, "n2"),
        ({"exclude_hosts": ("n0", "n1")}, "n2"),
        ({"hosts": ("n0", "n1"), "exclude_hosts": ("n0",)}, "n1"),
    ],
)
def test_a_job_starts_on_the_nodes_that_it_names(
    terms: dict[str, tuple[str, ...]], node: str
) -> None:
    world = World(nodes=3)
    world.commit(job("one", **terms))
    world.settle()
    assert {one.node for one in world.memory.attempts.values()} == {node}


def test_a_job_waits_for_its_node_while_others_are_free() -> None:
    world = World(nodes=2, cpu=4)
    world.commit(job("hog", cpu=4, hosts=("n0",)))
    world.settle()
    world.commit(job("one", cpu=4, hosts=("n0",)), job("none", hosts=("gone",)))
    world.settle()
    assert world.reason("one") == "InsufficientResources"
    assert world.reason("none") == "NeverFits"
    told = [why[0] for key, why in world.memory.reasons.items() if "Never" in str(why[0].code)]
    assert [step.why for step in told[0].funnel][-1] == "not in spec.hosts (gone)", told
    assert told[0].message.startswith(
        "it may use no node that has joined: not in spec.hosts (gone)"
    )

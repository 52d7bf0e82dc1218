"""Reasons that stories of faults found to be untrue."""

from reconciler.model import desired
from tests.unit.core.world import World, job


def test_a_window_to_come_does_not_make_work_impossible() -> None:
    world = World(nodes=1)
    window = desired.Reservation(
        name="service",
        nodes=("n0",),
        starts_at=world.now + 300,
        ends_at=world.now + 400,
        maintenance=True,
    )
    world.change_structure(reservations={"service": window})
    world.commit(job("endless"), job("huge", cpu=99))
    world.settle()
    assert world.reason("endless") != "NeverFits"
    (reason, *_) = world.memory.reasons[world.memory.jobs["endless"].reason_key]
    assert [step.why for step in reason.funnel] == ["reserved before it could end (service)"]
    assert world.reason("huge") == "NeverFits"
    world.advance(401)
    assert world.state("endless").value == "Running"


def test_elements_that_a_quota_holds_back_say_so() -> None:
    world = World(nodes=2)
    quota = desired.Quota("some", user="ann", resources=desired.Amounts(cpu_milli=2000))
    world.change_structure(quotas={"some": quota})
    world.commit(
        job("wide", owner="ann", array_count=4), job("narrow", array_count=4, parallelism=1)
    )
    result = world.cycle()
    assert len(result.actions) == 3
    assert world.reason("wide") == "OverLimit"
    assert world.reason("narrow") == "ArrayLimit"
    world.settle()
    assert world.reason("wide") == "OverLimit"

"""Cached pending groups: outcomes are the same without, and few records are written."""

import msgspec
import pytest

from reconciler.core import reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, records
from tests.unit.core.world import World, job


def crowded(jobs: int = 40) -> World:
    """Return two nodes of two CPUs, two queues, and pending jobs of three shapes."""
    queues = (desired.Queue(name="default"), desired.Queue(name="other"))
    world = World(cpu=2, queues=queues)
    world.commit(
        *(
            job(f"j{number}", cpu=1 + number % 3, queue=("default", "other")[number % 2])
            for number in range(jobs)
        )
    )
    world.settle()
    return world


def decide(world: World, *, recalled: bool) -> outcome.Outcome:
    """Return the next cycle's outcome without absorbing it."""
    wanted = desired.Desired(world.generation, world.structure, dict(world.jobs))
    observed = world.memory.observed(tuple(world.memory.reports), {})
    cache = world.memory.cache if recalled else None
    return reconcile.reconcile(wanted, observed, world.now, cache=cache)


def same(left: outcome.Outcome, right: outcome.Outcome) -> bool:
    return msgspec.msgpack.encode(left) == msgspec.msgpack.encode(right)


def test_when_one_starts_the_records_of_those_behind_stay() -> None:
    world = crowded()
    (first, *_) = [name for name, state in world.states().items() if state == "Running"]
    begun = len(world.outcomes)
    world.end(first)
    written = {record.name for result in world.outcomes[begun:] for record in result.jobs}
    assert first in written
    assert len(written) <= 3, "what ended, what starts, and no job that waits behind them"
    for record in world.memory.jobs.values():
        if record.state.value == "Pending":
            assert world.memory.reasons[record.reason_key]


@pytest.mark.parametrize("lost", [1, 3])
def test_an_outcome_that_was_lost_is_decided_again(lost: int) -> None:
    world = crowded()
    for name in ("j0", "j3"):
        world.commit(remove=(name,))
        world.now += 1
        for _ in range(lost):
            decide(world, recalled=True)
        assert same(decide(world, recalled=True), decide(world, recalled=False))
        world.settle()


def test_changes_of_what_waits_are_seen() -> None:
    world = crowded()
    renew = msgspec.structs.replace
    waiting = [name for name, state in world.states().items() if state == "Pending"]
    first, second, third, fourth, fifth = waiting[:5]
    for changed in (
        renew(world.jobs[first], priority=99),
        renew(world.jobs[second], queue="nowhere"),
        renew(world.jobs[third], suspend=True),
        renew(world.jobs[fourth], deadline=world.now + 5000),
        renew(world.jobs[fifth], time_limit_s=60),
        renew(world.jobs[third], suspend=False),
        renew(world.jobs[second], queue="other"),
    ):
        world.commit(changed)
        world.now += 1
        assert same(decide(world, recalled=True), decide(world, recalled=False)), changed.name
        world.settle()
    assert world.reason(third)


def test_structure_that_makes_jobs_less_than_plain() -> None:
    world = crowded()
    quota = desired.Quota(name="few", queue="other", running=1)
    for quotas in ({"few": quota}, {}):
        world.change_structure(quotas=quotas)
        world.now += 1
        assert same(decide(world, recalled=True), decide(world, recalled=False))
        world.settle()


def test_labels_of_nodes_change_where_work_may_go() -> None:
    world = crowded(4)
    world.commit(job("picky", node_selector={"disk": "fast"}))
    world.settle()
    assert world.reason("picky") == "NeverFits"
    report = world.nodes["n0"].report(world.now)
    assert report.inventory is not None
    labelled = msgspec.structs.replace(report.inventory, labels={"disk": "fast"})
    world.memory.add_report(msgspec.structs.replace(report, inventory=labelled))
    assert same(decide(world, recalled=True), decide(world, recalled=False))
    world.cycle()
    assert world.reason("picky") != "NeverFits"


def test_the_form_of_a_shape_is_the_same_from_bytes() -> None:
    """Keys of reasons are in the journal, so they may not depend on object identity."""
    world = crowded(4)
    world.commit(job("again", cpu=9, node_selector={"pool": "pool"}))
    wanted = desired.Desired(world.generation, world.structure, dict(world.jobs))
    observed = world.memory.observed((), {})
    kinds = tuple[desired.Desired, records.Observed]
    packed = msgspec.msgpack.encode((wanted, observed))
    wanted_again, observed_again = msgspec.msgpack.decode(packed, type=kinds)
    first = reconcile.reconcile(wanted, observed, world.now)
    assert same(first, reconcile.reconcile(wanted_again, observed_again, world.now))


@pytest.mark.parametrize(
    ("there", "waits", "unblocks"),
    [
        (job("a", exclusive=True), job("b"), "wait until the work that has a node to itself ends"),
        (job("a"), job("b", exclusive=True), "wait until all work on one node ends"),
    ],
)
def test_who_has_a_node_to_itself_has_to_end_however_much_is_free(
    there: desired.Job, waits: desired.Job, unblocks: str
) -> None:
    world = World(nodes=1, cpu=4)
    world.commit(there)
    world.settle()
    world.commit(waits)
    world.settle()
    (reason,) = world.memory.reasons[world.memory.jobs["b"].reason_key]
    assert reason.unblocks == unblocks
    world.end("a")
    world.settle()
    assert world.states()["b"] == "Running"

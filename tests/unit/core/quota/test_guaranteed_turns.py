"""What a guarantee covers is not kept from a person's cap by their work that waits for room."""

import pytest

from reconciler.core.quota import guaranteed_turns
from reconciler.model import desired
from tests.unit.core.world import World, job

GUARANTEED = desired.QuotaAmounts(gpu_milli=6000)
QUEUES = {
    name: desired.Queue(name, guaranteed=GUARANTEED if name != "batch" else desired.QuotaAmounts())
    for name in ("default", "vision", "language", "batch")
}
BOB = desired.Quota("bob", user="bob", resources=desired.QuotaAmounts(gpu_milli=10_000))


def full() -> World:
    """A cluster of 16 GPUs, all in use by others: 12 in a queue with 6 guaranteed, 4 in batch."""
    made = World(nodes=4, cpu=16, gpu=4)
    made.change_structure(queues=QUEUES, quotas={"bob": BOB})
    made.commit(*(job(f"ada{n}", gpu=1, owner="ada", queue="vision") for n in range(12)))
    made.commit(*(job(f"cyd{n}", gpu=1, owner="cyd", queue="batch") for n in range(4)))
    made.settle()
    assert {one.value for one in map(made.state, made.jobs)} == {"Running"}
    return made


def test_work_that_waits_for_room_leaves_the_cap_to_work_that_a_guarantee_covers() -> None:
    of = full()
    of.commit(*(job(f"waits{n}", gpu=1, owner="bob", queue="batch") for n in range(10)))
    of.settle()
    of.commit(job("covered", gpu=1, owner="bob", queue="language"))
    of.settle(rounds=5)
    assert of.state("covered").value == "Running"
    assert {of.state(f"waits{n}").value for n in range(10)} == {"Pending"}


def test_beyond_the_guarantee_who_came_first_is_let_through_first() -> None:
    of = full()
    of.commit(*(job(f"waits{n}", gpu=1, owner="bob", queue="batch") for n in range(10)))
    of.commit(*(job(f"late{n}", gpu=1, owner="bob", queue="language") for n in range(9)))
    of.settle(rounds=8)
    states = [of.state(f"late{n}").value for n in range(9)]
    assert states == ["Running"] * 6 + ["Pending"] * 3
    assert of.memory.jobs["late8"].reason_key.startswith("OverLimit/")


@pytest.mark.parametrize(
    ("queue", "used", "covered"),
    [("a", 0, 2), ("a", 1, 1), ("a", 3, 0), ("b", 0, 0), ("below", 0, 2), ("below", 1, 1)],
)
def test_what_runs_and_what_was_let_through_uses_up_a_guarantee(
    queue: str, used: int, covered: int
) -> None:
    two = desired.QuotaAmounts(gpu_milli=2000)
    queues = {
        "a": desired.Queue("a", guaranteed=two),
        "b": desired.Queue("b"),
        "below": desired.Queue("below", parent="a"),
    }
    structure = desired.Structure(queues=queues)
    turns = guaranteed_turns.GuaranteedTurns(structure, {queue: (0, 0, used * 1000)})
    assert turns.covered(queue, (1000, 0, 1000), 9) == covered
    turns.take(queue, (1000, 0, 1000), covered)
    assert turns.covered(queue, (1000, 0, 1000), 9) == 0
    assert turns.covered(queue, (1000, 0, 0), 9) == 0, "of CPUs nothing is guaranteed"

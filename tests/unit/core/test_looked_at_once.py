"""What a cycle caches before its outcome is committed is read again, and updated if it changed."""

import pytest

from reconciler.core.jobs import admission, running_gangs
from reconciler.core.snapshot import pending_cache
from reconciler.model.state.states import JobState
from tests.unit.core.snapshot.test_pending_cache import crowded
from tests.unit.core.world import World, job


def claims(world: World) -> dict[str, object]:
    groups = world.memory.cache.part(pending_cache.PendingCache).group_of
    return {name: group.claims[name] for name, group in groups.items()}


def test_who_waits_for_another_reason_stays_the_same_claim() -> None:
    world = World(cpu=2)
    world.settle()
    world.commit(*(job(f"j{number}", cpu=1) for number in range(9)))
    world.cycle()
    before = {name: one for name, one in claims(world).items() if not world.attempts(name)}
    assert len(before) > 4
    assert all(world.memory.jobs[name].reason_key for name in before), "which they had not"
    world.cycle()
    kept = claims(world)
    assert all(kept[name] is claim for name, claim in before.items())


def test_what_another_record_says_of_a_claim_is_taken_up() -> None:
    world = crowded()
    waits = next(iter(claims(world)))
    queue = world.jobs[waits].queue
    other = "other" if queue == "default" else "default"
    before = claims(world)
    world.commit(
        job(waits, cpu=world.jobs[waits].groups[0].resources.cpu_milli // 1000, queue=other)
    )
    world.settle()
    group = world.memory.cache.part(pending_cache.PendingCache).group_of[waits]
    assert group.spec.queue == other
    kept = claims(world)
    assert [name for name, claim in before.items() if kept.get(name) is not claim] == [waits]


def test_what_an_element_holds_is_looked_at_once() -> None:
    world = World(cpu=2)
    world.settle()
    world.commit(job("a", cpu=1), job("b", cpu=1))
    world.settle()
    part = world.memory.cache.part(running_gangs.RunningGangs)
    world.end("a")
    before = part.entries["b", 0]
    assert ("a", 0) not in part.entries
    world.commit(job("b", cpu=1, priority=7))
    world.cycle()
    renewed = part.entries["b", 0]
    assert renewed is not before, "its priority is another"
    assert [one.priority for one in renewed.holdings] == [7]
    world.commit(job("c", cpu=3))
    world.cycle()
    assert part.entries["b", 0] is renewed


@pytest.mark.parametrize("few", [0, 1000])
def test_what_is_held_is_in_order_however_much_changed(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_gangs, "FEW_MAX", few)
    world = crowded()
    for _ in range(3):
        (first, *_) = [name for name, state in world.states().items() if state == "Running"]
        world.end(first)
        part = world.memory.cache.part(running_gangs.RunningGangs)
        assert [key for key, _ in part.items()] == sorted(part.entries)
        assert [part.entries[key] for key, _ in part.items()] == part.in_order()
        assert part.entries


def test_documents_that_are_others_are_found_wherever_they_stand() -> None:
    world = World()
    old = {name: job(name) for name in "abc"}
    new = old | {"b": job("b", priority=1), "d": job("d")}
    assert admission._differing({}, old) == list(old.values())
    assert admission._differing(old, dict(old)) == []
    assert admission._differing(old, new) == [new["b"], new["d"]]
    assert admission._differing(old, {"a": old["a"], "c": old["c"], "b": old["b"]}) is None
    assert admission._differing(old, {"a": old["a"], "c": old["c"]}) is None
    assert admission._differing(old, {"a": old["a"], "x": job("x"), "c": old["c"]}) is None
    world.commit(*old.values())
    world.settle()
    world.commit(job("b", suspend=True), job("d"), remove=("a",))
    world.settle()
    assert world.state("b") is not JobState.PENDING
    assert world.state("a") is JobState.CANCELLED
    assert {"c", "d"} <= world.states().keys()

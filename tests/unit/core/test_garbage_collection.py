"""What is forgotten and when: finished jobs without a document, nodes that are long gone."""

import msgspec
import pytest

from reconciler.core import garbage_collection, observed_state
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import JobState
from reconciler.model.values import run_set
from tests.unit.core.world import World, job

DAY_S = 86_400.0
SETTINGS = desired.ClusterSettings(
    retain_finished_jobs_s=int(DAY_S), retain_finished_jobs_max=3, retain_gone_nodes_s=int(DAY_S)
)


def _finished(*names: str) -> World:
    """Return a world in which these jobs have succeeded, in this order."""
    world = World(nodes=2, cpu=4, settings=SETTINGS)
    for name in names:
        world.commit(job(name))
        world.settle()
        world.now += 1
        world.end(name)
    return world


def _wait(world: World, seconds: float) -> None:
    """Let time pass, with cycles when the core requests them, until everything settles."""
    ends_at = world.now + seconds
    for _ in range(1000):
        world.settle()
        wake_at = world.outcomes[-1].wake_at
        if wake_at is None or wake_at > ends_at:
            break
        world.now = max(world.now, wake_at)
    world.now = ends_at
    world.settle()


@pytest.mark.parametrize(
    ("document", "wait_s", "listed"),
    [
        ("stands", 100 * DAY_S, True),
        ("refused", 100 * DAY_S, True),
        ("gone", DAY_S - 60, True),
        ("gone", DAY_S + garbage_collection.EVERY_S, False),
    ],
)
def test_a_finished_job_is_listed_while_its_document_stands_and_for_a_time_after(
    document: str, wait_s: float, *, listed: bool
) -> None:
    world = _finished("a")
    if document != "stands":
        world.commit(remove=("a",))
    if document == "refused":
        world.refused = {"a": "no such queue"}
    _wait(world, wait_s)
    assert ("a" in world.memory.jobs) is listed
    if listed:
        assert world.state("a") is JobState.SUCCEEDED


def test_a_document_that_comes_back_starts_nothing() -> None:
    world = _finished("a")
    spec = world.jobs["a"]
    world.commit(remove=("a",))
    _wait(world, 2 * DAY_S)
    assert "a" not in world.memory.jobs
    world.commit(spec)
    _wait(world, DAY_S)
    assert not world.memory.attempts
    assert "a" not in world.memory.jobs
    world.commit(msgspec.structs.replace(spec, run=2))
    world.settle()
    assert world.state("a") is JobState.RUNNING


def test_too_many_leave_before_their_time_the_oldest_first() -> None:
    names = ("e", "d", "c", "b", "a")
    world = _finished(*names)
    world.commit(remove=names)
    _wait(world, 2 * garbage_collection.EVERY_S)
    assert set(world.memory.jobs) == {"c", "b", "a"}


def test_a_job_stays_while_one_waits_for_its_end() -> None:
    world = _finished("a")
    waits = desired.Dependency("a", per_element=True)
    world.commit(job("b", cpu=99, depends_on=(waits,)), remove=("a",))
    _wait(world, 3 * DAY_S)
    assert "a" in world.memory.jobs
    world.commit(remove=("b",))
    _wait(world, 2 * garbage_collection.EVERY_S)
    assert "a" not in world.memory.jobs


def test_nothing_leaves_while_the_repository_can_not_be_read() -> None:
    world = _finished("a")
    world.commit(remove=("a",))
    world.sync = "Unknown"
    _wait(world, 3 * DAY_S)
    assert "a" in world.memory.jobs
    world.sync = "Synced"
    _wait(world, 2 * garbage_collection.EVERY_S)
    assert "a" not in world.memory.jobs


def test_many_leave_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "BATCH", 2)
    names = tuple(f"j{number}" for number in range(5))
    world = _finished(*names)
    roomy = msgspec.structs.replace(SETTINGS, retain_finished_jobs_max=100)
    world.change_structure(settings=roomy)
    world.commit(remove=names)
    count = len(world.outcomes)
    _wait(world, 3 * DAY_S)
    left = [result.left_jobs for result in world.outcomes[count:] if result.left_jobs]
    assert [len(batch) for batch in left] == [1, 2, 2]
    assert sorted(name for batch in left for name in batch) == sorted(names)


def test_looks_are_rare() -> None:
    """Jobs that end one by one cost a look or two in ten minutes, and none in the end."""
    world = World(nodes=1, cpu=4, settings=SETTINGS)
    looks = set()
    for number in range(40):
        world.commit(job(f"j{number}"), remove=(f"j{number - 1}",))
        world.settle()
        world.now += 60
        world.end(f"j{number}")
        looks.add(world.memory.forget_at)
    assert len(looks) <= 2 * 40 * 60 / garbage_collection.EVERY_S
    world.commit(remove=tuple(world.jobs))
    _wait(world, 3 * DAY_S)
    assert not world.memory.jobs
    assert world.memory.forget_at is None


@pytest.mark.parametrize("declared", [False, True])
def test_a_gone_node_leaves_when_nobody_declares_it(*, declared: bool) -> None:
    world = World(nodes=2, cpu=1, settings=SETTINGS)
    said = {"n1": desired.NodeDrain("burnt", gone=True)}
    changes = {"drains": said} if declared else {"nodes": ("n0",)}
    pool = msgspec.structs.replace(world.pool, **changes)
    world.change_structure(pools={"pool": pool})
    world.commit(job("wide", cpu=99))
    world.settle()
    world.nodes["n1"].silent = True
    _wait(world, 100)
    assert world.memory.nodes["n1"].state == "Gone"
    _wait(world, DAY_S + 2 * garbage_collection.EVERY_S)
    assert ("n1" in world.memory.nodes) is declared
    (reason, *_) = world.memory.reasons[world.memory.jobs["wide"].reason_key]
    assert ("in no pool" in str(reason.funnel)) is False, "reasons no longer speak of it"
    world.nodes["n1"].silent = False
    world.change_structure(pools={"pool": world.pool})
    world.settle()
    assert world.memory.nodes["n1"].state == "Ready"


def test_keys_of_runs_are_held_in_eight_bytes_each() -> None:
    memory = observed_state.ObservedState(records.Observed(), 0.0)
    keys = [f"job-{number}.1.{number:016x}" for number in range(3 * run_set.RECENT_MAX)]
    for start in range(0, len(keys), 100):
        memory.past_runs.update(keys[start : start + 100])
        memory._pack_runs()
        assert all(key in memory.past_runs for key in keys[start : start + 100])
    assert len(memory.past_runs) == len(keys)
    assert all(key in memory.past_runs for key in keys)
    assert not any(f"{key}0" in memory.past_runs for key in keys)
    assert len(memory.past_runs.packed) >= 8 * (len(keys) - run_set.RECENT_MAX - 100)
    packed = msgspec.msgpack.encode(memory.observed((), {}))
    again = msgspec.msgpack.decode(packed, type=records.Observed)
    assert again.past_runs == memory.past_runs


def test_records_share_the_specs_that_git_asks_for() -> None:
    world = _finished("a")
    spec = msgspec.structs.replace(world.jobs["a"])
    assert world.memory.jobs["a"].spec is not spec
    world.memory.share_specs({"a": spec, "other": job("other")})
    assert world.memory.jobs["a"].spec is spec

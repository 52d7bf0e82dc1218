"""A run whose tasks are on nodes keeps the terms that its start was judged by."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from reconciler.core.jobs import run_terms
from reconciler.model import desired
from reconciler.model.state import scheduler_state
from reconciler.model.state.states import JobState
from reconciler.model.values.resources import Resources
from tests.unit.core.world import World, job

GPU_4 = desired.QuotaAmounts(gpu_milli=4000)
QUEUES = (
    desired.Queue("free"),
    desired.Queue("also-free"),
    desired.Queue("team", guaranteed=GPU_4),
    desired.Queue("inner", parent="team"),
    desired.Queue("other-inner", parent="team"),
    desired.Queue("small", limit=GPU_4),
)
STRUCTURE = desired.Structure(queues={one.name: one for one in QUEUES})
BUDGET = desired.Quota("b", queue="team", budget_gpu_s=3600.0)
RUNNING = desired.Quota("r", queue="free", running=3)
KEPT: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    # what is in force beside the queues; the job as it runs; its changes; what it keeps
    "immune": ({}, {}, {"preemptible": False}, ("preemptible",)),
    "evictable": ({}, {"preemptible": False}, {"preemptible": True}, ()),
    "shorter": ({}, {"time_limit_s": 90}, {"time_limit_s": 60}, ()),
    "limited": ({}, {"time_limit_s": None}, {"time_limit_s": 60}, ()),
    "longer": ({}, {"time_limit_s": 90}, {"time_limit_s": 900}, ()),
    "longer, budget": (
        {"quotas": {"b": BUDGET}},
        {"queue": "inner", "time_limit_s": 90},
        {"time_limit_s": 900},
        ("time_limit_s",),
    ),
    "endless, budget": (
        {"quotas": {"b": BUDGET}},
        {"queue": "team", "time_limit_s": 90},
        {"time_limit_s": None},
        ("time_limit_s",),
    ),
    "longer, another's budget": (
        {"quotas": {"b": BUDGET}},
        {"queue": "free", "time_limit_s": 90},
        {"time_limit_s": 900},
        (),
    ),
    "longer, reservation": (
        {"reservations": {"r": desired.Reservation("r", ("n1",), 100.0, 200.0)}},
        {"time_limit_s": 90},
        {"time_limit_s": 900},
        ("time_limit_s",),
    ),
    "queue without limits": ({}, {"queue": "free"}, {"queue": "also-free"}, ()),
    "into a limit": ({}, {"queue": "free"}, {"queue": "small"}, ("queue",)),
    "out of a guarantee": ({}, {"queue": "inner"}, {"queue": "free"}, ("queue",)),
    "out of a limit": ({}, {"queue": "small"}, {"queue": "free"}, ("queue",)),
    "into a guarantee": ({}, {"queue": "free"}, {"queue": "inner"}, ("queue",)),
    "beside, below one guarantee": ({}, {"queue": "inner"}, {"queue": "other-inner"}, ()),
    "out of a quota": (
        {"quotas": {"r": RUNNING}},
        {"queue": "free"},
        {"queue": "also-free"},
        ("queue",),
    ),
    "unknown queue": ({}, {"queue": "free"}, {"queue": "gone"}, ()),
    "reservation": ({}, {}, {"reservation": "course"}, ("reservation",)),
    "priority": ({}, {}, {"priority": 99, "labels": {"a": "b"}}, ()),
}


@pytest.mark.parametrize(("in_force", "runs", "changes", "kept"), KEPT.values(), ids=list(KEPT))
def test_what_a_start_was_judged_by_stays(
    in_force: dict[str, Any],
    runs: dict[str, Any],
    changes: dict[str, Any],
    kept: tuple[str, ...],
) -> None:
    structure = msgspec.structs.replace(STRUCTURE, **in_force)
    before = job("a", **{"queue": "free", "time_limit_s": 60, **runs})
    after = msgspec.structs.replace(before, **changes)
    assert run_terms.kept_fields(structure, before, after) == kept
    taken = run_terms.keep(before, after, kept)
    for field in changes:
        assert getattr(taken, field) == getattr(before if field in kept else after, field)


def _limit(world: World, name: str) -> int | None:
    return world.memory.jobs[name].spec.time_limit_s


def _reserved(world: World) -> World:
    """A world with a reservation far in the future."""
    at = world.now + 1e6
    world.structure = msgspec.structs.replace(
        world.structure, reservations={"r": desired.Reservation("r", ("n0",), at, at + 60)}
    )
    return world


def _by_policy(name: str, spec: desired.Job, **fields: Any) -> desired.Job:
    """A job in which a policy has set fields."""
    mutation = desired.FieldMutation(name, "spec.x", "1")
    changed = msgspec.structs.replace(spec, **fields)
    return msgspec.structs.replace(changed, mutations=(mutation,), mutated=tuple(fields))


def test_a_policy_changes_no_run_with_tasks_and_all_that_wait() -> None:
    world = World(nodes=1)
    group = desired.TaskGroup("main", 1, Resources(4000, 0, 0), command=("x",))
    runs = job("runs", groups=(group,), time_limit_s=900, retries=desired.Retries(limit=1))
    waits = msgspec.structs.replace(runs, name="waits")
    world.commit(runs, waits)
    world.settle()
    assert (world.states()["runs"], world.states()["waits"]) == ("Running", "Pending")
    other = msgspec.structs.replace(group, environment={"A": "b"})
    fields: dict[str, Any] = {"groups": (other,), "time_limit_s": 60, "suspend": False}
    world.commit(*(_by_policy("p", one, **fields) for one in (runs, waits)))
    world.settle()
    for name, time_limit_s, environment in (("runs", 900, {}), ("waits", 60, {"A": "b"})):
        spec = world.memory.jobs[name].spec
        assert (spec.time_limit_s, spec.groups[0].environment) == (time_limit_s, environment)
    assert world.memory.jobs["runs"].message == f"{run_terms.WAITS}groups, timeLimit"
    # a person's change of the document counts as ever beside it
    labelled = msgspec.structs.replace(runs, labels={"a": "b"})
    world.commit(*(_by_policy("p", one, **fields) for one in (labelled, waits)))
    world.settle()
    spec = world.memory.jobs["runs"].spec
    assert (spec.labels, spec.time_limit_s, spec.mutations) == ({"a": "b"}, 900, ())


def test_what_a_policy_set_before_the_start_stays_when_the_policy_goes() -> None:
    plain = job("a", time_limit_s=900)
    before = _by_policy("p", plain, time_limit_s=60)
    kept = run_terms.kept_fields(STRUCTURE, before, plain)
    assert kept == ("time_limit_s", "mutations", "mutated")
    assert run_terms.keep(before, plain, kept) == before
    # another name of the same policy sets the same
    assert run_terms.kept_fields(STRUCTURE, before, _by_policy("q", plain, time_limit_s=60)) == ()


def test_what_waits_is_told_once_and_comes_with_the_next_start() -> None:
    world = _reserved(World())
    world.commit(job("a", time_limit_s=90, retries=desired.Retries(limit=1)))
    world.settle()
    world.commit(job("a", time_limit_s=900, priority=7, retries=desired.Retries(limit=1)))
    world.settle()
    assert (_limit(world, "a"), world.memory.jobs["a"].spec.priority) == (90, 7)
    told = world.memory.jobs["a"].message
    assert told == f"{run_terms.WAITS}timeLimit"
    world.commit(job("b"))
    world.settle()
    assert world.events("JobChangeWaits") == ["a"]
    world.end("a", exit_code=1)
    world.advance(1000)
    assert world.state("a") is JobState.RUNNING
    assert _limit(world, "a") == 900


def test_a_time_limit_that_could_not_be_raised_ends_the_run() -> None:
    world = _reserved(World())
    world.commit(job("a", time_limit_s=90))
    world.settle()
    world.commit(job("a", time_limit_s=9000))
    world.advance(90)
    assert world.state("a") is JobState.TIMED_OUT


@pytest.mark.parametrize(("backfilled", "limit_s"), [(True, 90), (False, 900)])
def test_who_starts_before_others_by_backfill_keeps_to_its_time(
    backfilled: bool, limit_s: int
) -> None:
    world = World()
    world.commit(job("long", cpu=3, time_limit_s=100))
    world.settle()
    if backfilled:  # it waits for the whole cluster, and the node beside is free until then
        world.commit(job("wide", cpu=4, count=2, time_limit_s=100))
        world.settle()
    world.commit(job("short", cpu=4, time_limit_s=90))
    world.settle()
    assert world.state("short") is JobState.RUNNING
    world.commit(job("short", cpu=4, time_limit_s=900, priority=7))
    world.settle()
    assert (_limit(world, "short"), world.memory.jobs["short"].spec.priority) == (limit_s, 7)
    assert world.events("JobChangeWaits") == (["short"] if backfilled else [])
    world.commit(job("short", cpu=4, time_limit_s=60))
    world.settle()
    assert _limit(world, "short") == 60


def test_reservations_elsewhere_and_of_oneself_keep_nobody_to_a_time() -> None:
    before = job("a", time_limit_s=60)
    after = msgspec.structs.replace(before, time_limit_s=None)
    for room, kept in (
        (scheduler_state.KeptRoom("b", 0, 9.0, ("n2", "n1")), ("time_limit_s",)),
        (scheduler_state.KeptRoom("b", 0, 9.0, ("n2",)), ()),
        (scheduler_state.KeptRoom("a", 1, 9.0, ("n1",)), ()),
    ):
        reserved = run_terms.Reserved((room,), lambda: {"n0", "n1"})
        assert run_terms.kept_fields(STRUCTURE, before, after, reserved) == kept


def test_what_waits_is_taken_over_by_a_hold_and_a_release() -> None:
    world = _reserved(World())
    world.commit(job("a", time_limit_s=90))
    world.settle()
    world.commit(job("a", time_limit_s=900, suspend=True))
    world.settle()
    assert world.state("a") is JobState.HELD
    assert (_limit(world, "a"), world.memory.jobs["a"].message.startswith(run_terms.WAITS)) == (
        900,
        False,
    )
    world.commit(job("a", time_limit_s=900))
    world.settle()
    assert (world.state("a"), _limit(world, "a")) == (JobState.RUNNING, 900)


def test_who_borrows_stays_evictable_by_who_is_owed() -> None:
    queues = (
        desired.Queue("ours", guaranteed=desired.QuotaAmounts(gpu_milli=2000)),
        desired.Queue("theirs", guaranteed=desired.QuotaAmounts(gpu_milli=2000)),
    )
    world = World(nodes=1, gpu=4, cpu=16, queues=queues)
    mine = [job(f"m{number}", queue="ours", gpu=1) for number in range(4)]
    world.commit(*mine)
    world.settle()
    assert set(world.states().values()) == {"Running"}
    world.commit(*[msgspec.structs.replace(one, preemptible=False) for one in mine])
    world.commit(job("owed", queue="theirs", gpu=2))
    world.settle()
    assert world.state("owed") is JobState.RUNNING


def _backfilled() -> World:
    """A world in which ``short`` ends before ``wide`` begins on all nodes."""
    world = World()
    world.commit(job("long", cpu=3, time_limit_s=100))
    world.settle()
    world.commit(job("wide", cpu=4, count=2, time_limit_s=100))
    world.settle()
    world.commit(job("short", cpu=4, time_limit_s=90))
    world.settle()
    return world


@pytest.mark.parametrize("pushes", [False, True])
@pytest.mark.parametrize("drops", [False, True])
def test_a_run_gets_its_time_once_backfill_keeps_its_nodes_for_nobody(
    pushes: bool, drops: bool
) -> None:
    world = _backfilled()
    world.commit(job("short", cpu=4, time_limit_s=900))
    world.settle()
    assert _limit(world, "short") == 90
    world.commit(remove=("wide",))
    world.settle()
    if pushes:
        world.commit(job("unrelated", cpu=1))
    if drops:
        world.memory.rebuild_cache()
    world.settle()
    assert (_limit(world, "short"), world.memory.jobs["short"].message) == (900, "")


def _drawn_change(draw: random.Random, runs: dict[str, int]) -> Callable[[World], None]:
    """Return a change of documents, of the structure, or of the time."""
    kind = draw.choice(("limit", "limit", "limit", "remove", "reserve", "time"))
    name = draw.choice(tuple(runs))
    if kind == "limit":
        count = 2 if name == "wide" else 1
        limit_s = draw.choice((60, 90, 900, None))
        cpu = 3 if name == "long" else 4
        spec = job(name, run=runs[name], cpu=cpu, count=count, time_limit_s=limit_s)
        return lambda world: world.commit(spec)
    if kind == "remove":
        runs[name] += 1
        return lambda world: world.commit(remove=(name,))
    if kind == "reserve":
        reserved = {"r": desired.Reservation("r", ("n0",), 2e6, 3e6)}
        found = draw.choice(({}, reserved))
        return lambda world: world.change_structure(reservations=found)
    return lambda world: setattr(world, "now", world.now + 20)


def test_what_runs_keep_does_not_depend_on_the_cache() -> None:
    told = []
    for seed in range(12):
        draw, runs = random.Random(seed), dict.fromkeys(("long", "wide", "short", "other"), 1)
        cached, bare = _backfilled(), _backfilled()
        for _ in range(40):
            change = _drawn_change(draw, runs)
            change(cached)
            change(bare)
            for _ in range(draw.randrange(5)):
                cached.hear()
                bare.hear()
                bare.memory.rebuild_cache()
                assert cached.cycle() == bare.cycle(), seed
        told.append(len(cached.events("JobChangeWaits")))
    assert sum(told) > len(told)


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("checkpoints/a/1", "checkpoints/a/1-3fa0b2c1", "checkpoints/a/1"),
        ("checkpoints/a/1-3fa0b2c1", "checkpoints/b/2-3fa0b2c1", "checkpoints/b/2-3fa0b2c1"),
        ("checkpoints/a/2", "checkpoints/a/1-3fa0b2c1", "checkpoints/a/1-3fa0b2c1"),
    ],
)
def test_a_run_of_an_earlier_version_keeps_its_folder(before: str, after: str, kept: str) -> None:
    """Its next try would find no checkpoint."""
    world = World(nodes=1)
    checkpoints = (desired.Checkpoint("SIGTERM", 30, path) for path in (before, after))
    old, new = (job("a", checkpoint=checkpoint) for checkpoint in checkpoints)
    world.commit(old)
    world.cycle()
    world.commit(new)
    world.cycle()
    found = world.memory.jobs["a"].spec.checkpoint
    assert found is not None
    assert found.path == kept

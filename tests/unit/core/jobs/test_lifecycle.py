"""The life of jobs: success, failure, retries, limits, holds, cancels, arrays, dependencies."""

import itertools
from typing import Any

import msgspec
import pytest

from reconciler.core.cycle import stop_orders
from reconciler.model import desired
from reconciler.model.state import records, states
from reconciler.model.state.states import AttemptState, EndReason, JobState
from reconciler.model.values import hostlists, resources, times
from tests.unit.core.world import World, job


def test_a_job_runs_once_and_its_record_stays() -> None:
    world = World()
    world.commit(job("a"))
    world.settle()
    assert world.state("a") is JobState.RUNNING
    world.end("a")
    assert world.state("a") is JobState.SUCCEEDED
    world.commit(job("b"))
    world.advance(10)
    assert world.states() == {"a": "Succeeded", "b": "Running"}
    assert world.events("JobPlaced") == ["a", "b"]


@pytest.mark.parametrize(
    ("limit", "codes", "state"),
    [
        (0, [1], JobState.FAILED),
        (2, [1, 1], JobState.PENDING),
        (2, [1, 1, 1], JobState.FAILED),
        (2, [1, 0], JobState.SUCCEEDED),
    ],
)
def test_failures_spend_retries(limit: int, codes: list[int], state: JobState) -> None:
    world = World()
    world.commit(job("a", retries=desired.Retries(limit=limit, backoff_s=10)))
    world.settle()
    for number, code in enumerate(codes):
        if number:
            world.advance(1000)
        world.end("a", exit_code=code)
    assert world.state("a") is state


def test_backing_off_says_so_and_wakes_at_its_end() -> None:
    world = World()
    world.commit(job("a", retries=desired.Retries(limit=3, backoff_s=10)))
    world.settle()
    world.end("a", exit_code=1)
    assert world.state("a") is JobState.PENDING
    assert world.reason("a") == "BackingOff"
    (why,) = world.memory.reasons[world.memory.jobs["a"].reason_key]
    assert times.format_time(world.now + 10) in why.message
    assert world.outcomes[-1].wake_at == world.now + 10
    world.advance(9.5)
    assert world.state("a") is JobState.PENDING
    world.advance(0.5)
    assert world.state("a") is JobState.RUNNING
    world.end("a", exit_code=1)
    assert world.outcomes[-1].wake_at == world.now + 20


def test_one_failing_rank_brings_its_gang_down() -> None:
    world = World()
    world.commit(job("g", count=6))
    world.settle()
    assert len(world.attempts("g")) == 6
    world.end("g", index=3, exit_code=7)
    assert world.state("g") is JobState.FAILED
    assert "status 7" in world.memory.jobs["g"].message
    assert not world.memory.attempts


def test_a_rank_that_ends_early_and_well_does_not_hurt() -> None:
    world = World()
    world.commit(job("g", count=2))
    world.settle()
    world.end("g", index=0)
    assert world.state("g") is JobState.RUNNING
    world.end("g", index=1)
    assert world.state("g") is JobState.SUCCEEDED


HEAD = desired.TaskGroup("head", 1, resources.Resources(1000))
WORKERS = desired.TaskGroup("worker", 2, resources.Resources(1000))
KEEPS_RESULTS = desired.StagingSpec(outs=(desired.StageOut("out", "results", "", "always"),))


@pytest.mark.parametrize("checkpoint", [None, desired.Checkpoint()])
def test_a_job_ends_with_the_group_that_it_names(checkpoint: desired.Checkpoint | None) -> None:
    world = World()
    world.commit(job("g", groups=(HEAD, WORKERS), ends_with="head", checkpoint=checkpoint))
    world.settle()
    world.end("g", index=0, group="worker")
    assert world.state("g") is JobState.RUNNING
    world.end("g", group="head")
    world.settle()
    assert world.state("g") is JobState.SUCCEEDED
    assert not world.memory.attempts


@pytest.mark.parametrize(("exit_code", "signal", "to"), [(0, "SIGTERM", ""), (1, "SIGUSR1", "all")])
def test_who_is_stopped_is_asked_to_save_unless_the_job_has_succeeded(
    exit_code: int, signal: str, to: str
) -> None:
    saving = desired.Checkpoint(signal="SIGUSR1", to="all")
    world = World(nodes=1)
    world.commit(job("g", groups=(HEAD, WORKERS), ends_with="head", checkpoint=saving))
    world.settle()
    (head,) = [one for one in world.attempts("g") if one.group == "head"]
    world.nodes["n0"].end(head.id, world.now, exit_code=exit_code)
    world.hear()
    world.cycle()
    stops = [one.stop for one in world.attempts("g") if one.group == "worker"]
    assert [(one and one.signal, one and one.to) for one in stops] == [(signal, to)] * 2


def test_a_group_that_fails_ends_the_job_whichever_it_ends_with() -> None:
    for group in ("head", "worker"):
        world = World()
        world.commit(job("g", groups=(HEAD, WORKERS), ends_with="head"))
        world.settle()
        world.end("g", group=group, exit_code=3)
        world.settle()
        assert world.state("g") is JobState.FAILED
        assert "status 3" in world.memory.jobs["g"].message


def test_all_of_the_group_have_to_end() -> None:
    world = World()
    world.commit(job("g", groups=(HEAD, WORKERS), ends_with="worker"))
    world.settle()
    world.end("g", index=0, group="worker")
    assert world.state("g") is JobState.RUNNING
    world.end("g", index=1, group="worker")
    world.settle()
    assert world.state("g") is JobState.SUCCEEDED


def test_a_job_of_ray_ends_with_its_head() -> None:
    world = World()
    world.commit(job("g", count=3, framework="ray"))
    world.settle()
    (head,) = [one for one in world.attempts("g") if one.rank.rank == 0]
    world.end("g", index=head.index)
    world.settle()
    assert world.state("g") is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("changes", "grace_s"),
    [
        ({"framework": "ray", "count": 3}, stop_orders.DONE_GRACE_S_MAX),
        ({"framework": "ray", "count": 3, "grace_s": 20}, 20),
        ({"framework": "ray", "count": 3, "stage": KEEPS_RESULTS}, 30),
        ({"groups": (HEAD, WORKERS), "ends_with": "head"}, 30),
    ],
    ids=["short", "its own", "copies", "other frameworks"],
)
def test_what_is_left_of_a_job_that_has_succeeded_leaves_soon(
    changes: dict[str, Any], grace_s: int
) -> None:
    """A worker of Ray that still joins defers SIGTERM, and would keep its GPUs for the grace."""
    world = World(nodes=1)
    world.change_structure(volumes={"results": desired.Volume("results", "/results")})
    world.commit(job("g", **changes))
    world.settle()
    (head,) = [one for one in world.attempts("g") if one.rank.rank == 0 and one.group != "worker"]
    world.nodes["n0"].end(head.id, world.now, exit_code=0)
    world.hear()
    world.cycle()
    stops = [one.stop for one in world.attempts("g") if one.id != head.id]
    assert [(one and one.signal, one and one.grace_s) for one in stops] == [
        ("SIGTERM", grace_s)
    ] * 2


def test_the_time_limit_stops_a_job_for_good() -> None:
    world = World()
    world.commit(job("a", time_limit_s=60, retries=desired.Retries(limit=5)))
    world.settle()
    assert world.outcomes[-1].wake_at == world.now + 60
    world.advance(60)
    assert world.state("a") is JobState.TIMED_OUT


def test_a_deadline_ends_what_waits_and_what_runs() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a", deadline=world.now + 30), job("b", deadline=world.now + 30))
    world.settle()
    assert sorted(world.states().values()) == ["Pending", "Running"]
    world.advance(31)
    assert set(world.states().values()) == {"TimedOut"}


def test_removal_of_the_document_cancels() -> None:
    world = World(nodes=1, cpu=1)
    same = job("a")  # a document that is read again as it was is the same object
    world.commit(same, job("b"))
    world.settle()
    world.commit(remove=("a", "b"))
    world.settle()
    assert set(world.states().values()) == {"Cancelled"}
    world.commit(same)
    world.settle()
    assert world.state("a") is JobState.CANCELLED, "a run happens once, re-added or not"


def test_a_removed_job_says_who_removed_it_if_that_is_known() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"), job("b"), job("c"))
    world.settle()
    commit = "1a2b3c4d" * 5
    world.removals = {
        "a": desired.Removal("ada@example.org", commit, 60.0, True, "wrong data"),
        "b": desired.Removal("bob@example.org", commit, 60.0),
    }
    world.commit(remove=("a", "b", "c"))
    world.settle()
    assert {name: record.message for name, record in world.memory.jobs.items()} == {
        "a": "cancelled by ada@example.org at 1970-01-01T00:01:00.000Z in 1a2b3c4: wrong data",
        "b": "removed from git by bob@example.org at 1970-01-01T00:01:00.000Z in 1a2b3c4",
        "c": "its document was removed from git",
    }


def test_hold_keeps_a_job_and_release_lets_it_go() -> None:
    world = World()
    world.commit(job("a", suspend=True))
    world.settle()
    assert world.state("a") is JobState.HELD
    assert world.reason("a") == "Held"
    world.commit(job("a"))
    world.settle()
    assert world.state("a") is JobState.RUNNING
    world.commit(job("a", suspend=True))
    world.settle()
    assert world.state("a") is JobState.HELD
    assert not world.memory.attempts
    world.commit(job("a"))
    world.settle()
    assert world.state("a") is JobState.RUNNING


def test_suspended_cluster_starts_nothing_and_stops_nothing() -> None:
    world = World()
    world.commit(job("a"))
    world.settle()
    world.change_structure(settings=desired.ClusterSettings(suspend=True))
    world.commit(job("b"))
    world.settle()
    assert world.states() == {"a": "Running", "b": "Pending"}
    assert world.reason("b") == "Held"


def test_an_array_runs_at_most_parallelism_elements() -> None:
    world = World(nodes=4, cpu=8)
    world.commit(job("a", array_count=10, parallelism=3))
    world.settle()
    assert len(world.attempts("a")) == 3
    world.end("a", element=1)
    assert {attempt.element for attempt in world.attempts("a")} == {0, 2, 3}
    counts = world.memory.jobs["a"].element_state_counts()
    assert counts == {JobState.PENDING: 6, JobState.RUNNING: 3, JobState.SUCCEEDED: 1}


def test_an_array_with_a_failed_element_fails_when_all_have_ended() -> None:
    world = World()
    world.commit(job("a", array_count=3))
    world.settle()
    world.end("a", element=1, exit_code=2)
    assert world.state("a") is JobState.RUNNING
    world.end("a", element=0)
    world.end("a", element=2)
    assert world.state("a") is JobState.FAILED


@pytest.mark.parametrize(
    ("condition", "exit_code", "state", "reason"),
    [
        ("afterOk", 0, JobState.RUNNING, ""),
        ("afterOk", 1, JobState.PENDING, "DependencyNeverMet"),
        ("afterAny", 1, JobState.RUNNING, ""),
        ("afterNotOk", 0, JobState.PENDING, "DependencyNeverMet"),
        ("afterNotOk", 1, JobState.RUNNING, ""),
    ],
)
def test_dependencies(condition: str, exit_code: int, state: JobState, reason: str) -> None:
    world = World()
    dependency = desired.Dependency(job="first", condition=condition)  # type: ignore[arg-type]
    world.commit(job("first"), job("second", depends_on=(dependency,)))
    world.settle()
    assert world.state("second") is JobState.PENDING
    assert world.reason("second") == "Dependency"
    world.end("first", exit_code=exit_code)
    assert world.state("second") is state
    assert world.reason("second") == reason


@pytest.mark.parametrize("per_element", [False, True])
def test_who_depends_on_what_nobody_knows_is_told_so(*, per_element: bool) -> None:
    world = World()
    dependency = desired.Dependency(job="first", per_element=per_element)
    arrays = {"array_count": 2} if per_element else {}
    world.commit(job("second", depends_on=(dependency,), **arrays))
    world.settle()
    (told,) = world.memory.reasons["Dependency/second"]
    assert told.message.startswith("afterOk first: there is no Job/first; this one waits until")
    assert told.unblocks == "commit a Job first, or change spec.dependsOn"
    world.commit(job("first", **arrays))
    world.settle()
    known = [one.message for one in world.memory.reasons.get("Dependency/second", ())]
    until = "the same element of it ends" if per_element else "it ends"
    assert known == [f"afterOk first: waits until {until}"]


def test_elements_wait_for_their_own_element() -> None:
    world = World(nodes=4, cpu=8)
    dependency = desired.Dependency(job="first", per_element=True)
    world.commit(
        job("first", array_count=3), job("second", array_count=3, depends_on=(dependency,))
    )
    world.settle()
    assert not world.attempts("second")
    assert _unblocks(world) == "wait for the end of one of first[0], first[1], first[2]"
    world.end("first", element=1)
    assert [attempt.element for attempt in world.attempts("second")] == [1]
    world.end("second", element=1)
    world.end("first", element=0)
    world.end("second", element=0)
    world.settle()
    assert _unblocks(world) == "wait for the end of first[2]"


def test_of_many_elements_that_are_waited_for_some_are_named() -> None:
    """The first dependency is met, the second is not."""
    world = World(nodes=4, cpu=8)
    both = tuple(desired.Dependency(job=name, per_element=True) for name in ("zero", "first"))
    world.commit(job("zero", array_count=5), job("first", array_count=5))
    world.commit(job("second", array_count=5, depends_on=both))
    world.settle()
    for element in range(5):
        world.end("zero", element=element)
    world.settle()
    assert _unblocks(world) == "wait for the end of one of first[0], first[1], first[2] and others"


def _unblocks(world: World) -> str:
    (told,) = world.memory.reasons["Dependency/second"]
    return told.unblocks


def test_live_fields_change_under_a_run_and_execution_fields_do_not() -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"), job("b"))
    world.settle()
    world.commit(job("b", priority=40, labels={"team": "x"}))
    world.settle()
    assert world.memory.jobs["b"].spec.priority == 40
    world.commit(job("a", hash="ffff456789abcdef", cpu=2))
    world.settle()
    assert world.state("a") is JobState.RUNNING
    assert world.memory.jobs["a"].spec.hash == "0123456789abcdef"
    assert "raise spec.run" in world.memory.jobs["a"].message


def test_a_new_run_replaces_a_live_one() -> None:
    world = World()
    world.commit(job("a"))
    world.settle()
    world.commit(job("a", run=2))
    world.settle()
    assert world.state("a") is JobState.RUNNING
    assert world.memory.jobs["a"].spec.run == 2
    assert world.events("JobCancelled") == ["a"]
    world.end("a")
    world.commit(job("a"))
    world.settle()
    assert world.state("a") is JobState.SUCCEEDED, "rolling back to run 1 starts nothing"


def test_a_finished_job_runs_again_when_what_it_executes_changes() -> None:
    world = World()
    world.commit(job("a"))
    world.settle()
    world.end("a")
    world.commit(job("a", labels={"x": "y"}))
    world.settle()
    assert world.state("a") is JobState.SUCCEEDED
    world.commit(job("a", hash="ffff456789abcdef"))
    world.settle()
    assert world.state("a") is JobState.RUNNING


@pytest.mark.parametrize(
    ("longest_s", "saves_s", "ends_s"), [(864_000, 864_000, 600_000), (300, 300, 300)]
)
@pytest.mark.parametrize("cancelled", [False, True])
def test_nobody_waits_longer_for_a_job_than_the_operator_lets_it(
    longest_s: int, saves_s: int, ends_s: int, cancelled: bool
) -> None:
    scheduling = desired.Scheduling(grace_max_s=longest_s)
    world = World(nodes=1, cpu=4, settings=desired.ClusterSettings(scheduling=scheduling))
    saving = desired.Checkpoint(signal="SIGUSR1", grace_s=864_000, path="c")
    low = job("low", cpu=4, priority=10, checkpoint=saving, grace_s=600_000)
    world.commit(low)
    world.settle()
    (attempt,) = world.attempts("low")
    assert attempt.grace_s == saves_s
    if cancelled:
        world.commit(remove=("low",))
    else:
        world.commit(job("high", cpu=4, priority=90))
    world.cycle()
    stop = world.memory.attempts[attempt.id].stop
    assert stop is not None
    assert stop.grace_s == (ends_s if cancelled else saves_s)


def test_preemption_sends_the_checkpoint_signal_and_the_job_comes_back() -> None:
    world = World(nodes=1, cpu=4)
    checkpoint = desired.Checkpoint(signal="SIGUSR1", grace_s=20, path="c", to="all")
    world.commit(job("low", cpu=4, priority=10, checkpoint=checkpoint))
    world.settle()
    attempt = world.attempts("low")[0]
    world.commit(job("high", cpu=4, priority=90))
    world.cycle()
    stopped = world.memory.attempts[attempt.id]
    assert stopped.stop == records.StopOrder(
        reason=EndReason.PREEMPTED, signal="SIGUSR1", grace_s=20, at=world.now, by="high", to="all"
    )
    assert world.reason("high") == "WaitingForEvictions"
    world.settle()
    assert world.states() == {"high": "Running", "low": "Pending"}
    world.end("high")
    assert world.state("low") is JobState.RUNNING
    assert world.attempts("low")[0].try_number == 2
    assert world.memory.jobs["low"].notes[0].retries_spent == 0


def test_torchrun_ranks_find_each_other() -> None:
    world = World(nodes=2, cpu=2, gpu=2)
    world.commit(job("t", count=4, gpu=1, framework="torchrun"))
    world.settle()
    ranks = sorted((a.rank for a in world.attempts("t")), key=lambda rank: rank.rank)
    assert [rank.rank for rank in ranks] == [0, 1, 2, 3]
    assert {rank.world_size for rank in ranks} == {4}
    assert [rank.local_rank for rank in ranks] == [0, 1, 0, 1]
    assert [rank.node_rank for rank in ranks] == [0, 0, 1, 1]
    assert len({(rank.master_address, rank.master_port) for rank in ranks}) == 1
    # virtual nodes share an address, at which each task needs a port of its own
    assert {rank.ports for rank in ranks} == {4}


@pytest.mark.parametrize(
    ("fields", "together"),
    [
        ({"framework": "torchrun", "gpu": 1}, True),
        ({"framework": "jax", "gpu": 2}, True),
        ({"framework": "torchrun", "gpu": 0}, False),
        ({"framework": "none", "gpu": 1}, False),
    ],
)
def test_tasks_of_a_gang_are_told_the_gpus_of_its_others_on_their_node(
    fields: dict[str, Any], *, together: bool
) -> None:
    world = World(nodes=2, cpu=4, gpu=4)
    world.commit(job("other", gpu=1), job("t", count=3, **fields))
    world.settle()
    assert together == any(attempt.rank.local_devices for attempt in world.attempts("t"))
    for attempt in world.attempts("t"):
        there = [one for one in world.attempts("t") if one.node == attempt.node]
        seen = attempt.rank.local_devices
        assert bool(seen) == (together and len(there) > 1)
        if seen:
            assert set(seen) == {device for one in there for device in one.devices}


def test_ranks_follow_the_topology_and_ports_are_nobody_elses() -> None:
    world = World(nodes=4, cpu=2, gpu=2)
    (name,) = world.structure.pools
    pool = world.structure.pools[name]
    racks = dict(zip(pool.nodes, [("r1",), ("r2",), ("r1",), ("r2",)], strict=True))
    pool = msgspec.structs.replace(pool, levels=("rack",), domains=racks)
    world.structure = msgspec.structs.replace(world.structure, pools={name: pool})
    world.commit(job("t", count=6, gpu=1, framework="jax"), job("u", gpu=1, framework="jax"))
    world.settle()
    by_rank = sorted(world.attempts("t"), key=lambda attempt: attempt.rank.rank)
    assert by_rank[0].index == 0
    nodes = list(dict.fromkeys(attempt.node for attempt in by_rank))
    assert hostlists.expand(by_rank[0].rank.hosts) == nodes
    met = [racks[node] for node in nodes]
    assert len([a for a, b in itertools.pairwise(met) if a != b]) == len(set(met)) - 1
    counts = hostlists.expand_counts(by_rank[0].rank.tasks_per_host)
    assert counts == [sum(a.node == node for a in by_rank) for node in nodes]
    blocks = [
        range(a.rank.master_port, a.rank.master_port + a.rank.ports)
        for a in (by_rank[0], *world.attempts("u"))
    ]
    assert [len(block) for block in blocks] == [6, 1]
    assert set(blocks[0]).isdisjoint(blocks[1])


def test_nothing_moves_when_nothing_changes() -> None:
    world = World(nodes=1, cpu=2)
    world.commit(job("a"), job("b"), job("c"), job("d", cpu=100))
    world.settle()
    for _ in range(5):
        world.hear()
        result = world.cycle()
        assert (result.jobs, result.attempts, result.events, result.reasons) == ((), (), (), {})


def test_the_same_input_gives_the_same_outcome() -> None:
    encoded = []
    for _ in range(2):
        world = World(nodes=3, cpu=4)
        world.commit(*(job(f"j{n}", cpu=n % 3 + 1, priority=n % 5) for n in range(20)))
        world.settle()
        encoded.append(msgspec.msgpack.encode(world.outcomes))
    assert encoded[0] == encoded[1]


def test_an_illegal_transition_tells_the_story() -> None:
    with pytest.raises(
        states.InvalidTransitionError, match=r"(?s)Ended may not become Running.*st"
    ):
        states.check("attempt x", AttemptState.ENDED, AttemptState.RUNNING, ("started at 5",))


def test_a_job_says_that_its_time_limit_has_passed() -> None:
    world = World()
    world.commit(job("a", time_limit_s=90))
    world.settle()
    world.advance(90)
    assert world.state("a") is JobState.TIMED_OUT
    assert world.memory.jobs["a"].message == "its time limit of 1m30s has passed"


def test_a_run_stays_its_owners_when_its_document_is_written_again_by_somebody_else() -> None:
    world = World()
    world.commit(job("a", owner="ada"))
    world.settle()
    world.commit(job("a", owner="eve", queue="default", priority=7))
    world.settle()
    spec = world.memory.jobs["a"].spec
    assert (spec.owner, spec.priority) == ("ada", job("a").priority)
    assert world.events("JobChangeIgnored") == ["a"]
    world.commit(job("a", owner="ada", priority=7))
    world.settle()
    assert world.memory.jobs["a"].spec.priority == 7

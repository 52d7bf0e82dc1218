"""A job as it was: of every moment of a story, what the live records said at that moment."""

import contextlib
from pathlib import Path

import msgspec
import pytest

from reconciler.core import cycle_journal
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.values import times
from reconciler.model.values.resources import Resources
from reconciler.operations.history import cycle_replay, past_reasons
from reconciler.operations.views import (
    array_views,
    explanation_views,
    job_views,
    stored_views,
    view_types,
)
from reconciler.store import StoreReader
from tests.unit.core.world import World, job
from tests.unit.test_replay import Leader, url


def _live(reader: StoreReader, name: str) -> view_types.JobView | None:
    """What the API would show of a job now."""
    record = reader.job(name)
    if record is None:
        return None
    view = job_views.job_view(
        record,
        attempts=reader.attempts_of([record], job_views.ATTEMPTS_IN_JOB).get(record.key, ()),
        reasons=reader.reasons([record.reason_key]).get(record.reason_key, ()),
        place=reader.places([name]).get(name),
        expected=stored_views.stored_expected(reader.view(stored_views.EXPECTED)).get(name),
    )
    return array_views.with_indexes(view, record, reader)


def test_every_moment_is_told_as_it_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_journal, "SNAPSHOT_CALLS", 3)
    world = World(nodes=2, cpu=2)
    nodes = list(world.nodes.values())
    specs = [
        job("first", cpu=2, count=2, retries=desired.Retries(limit=2, backoff_s=0)),
        job("second", cpu=1, priority=90, preemptible=False),
        job("third", cpu=2, array_count=3),
        job("never", cpu=64),
    ]
    leader = Leader(tmp_path, world.now)
    jobs: dict[str, desired.Job] = {}
    shown: list[tuple[float, dict[str, view_types.JobView | None], list[view_types.QueueView]]] = []
    for step in range(24):
        if step % 5 == 0 and specs:
            spec = specs.pop(0)
            jobs = {**jobs, spec.name: spec}
        refused = {"bad": "spec.comand: is no field"} if step > 10 else {}
        status = desired.SyncStatus(sync="Synced", jobs_revision=f"{step:040x}", checked_at=5.0)
        leader.want(desired.Desired(step + 1, world.structure, jobs, refused, status))
        for node in nodes:
            for number, name in enumerate(list(node.attempts)):
                if (step + number) % 3 == 0:
                    node.end(name, leader.now, exit_code=step % 2)
            leader.report(node.report(leader.now))
        leader.cycle()
        for node in nodes:
            update = leader.loop._engine.update(node.name, world.structure, leader.loop._state)
            done = tuple(n for n in node.attempts if n not in leader.loop._state.attempts)
            assert update.payload is not None
            node.take(update.payload, done, leader.now)
        names = ("first", "second", "third", "never")
        usage = stored_views.stored_queues(leader.store.reader.view(stored_views.QUEUES))
        told_live = {name: _live(leader.store.reader, name) for name in names}
        shown.append((leader.now, told_live, [job_views.queue_view(one) for one in usage]))
        leader.now += 10
    leader.close()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        for at, views_then, queues in shown:
            for name, view in views_then.items():
                if view is None:
                    with pytest.raises(
                        past_reasons.UnknownJobError, match=f"there was no Job/{name}"
                    ):
                        past_reasons.explain(reader, name, at + 1)
                else:
                    told = past_reasons.explain(reader, name, at + 1)
                    assert told.job == view
                    assert [told.queue] == queues
                    assert told.replayed.disagreements == []
                    assert all(event.at <= told.replayed.decided for event in told.events)
        told = past_reasons.explain(reader, "bad", leader.now)
        assert (told.job.state, told.job.reasons[0].code) == ("Pending", "Invalid")
        assert told.replayed.revision == f"{23:040x}"
        with pytest.raises(cycle_replay.ReplayError, match="before the first cycle"):
            past_reasons.explain(reader, "first", world.now - 1)
    states = {view.state for _, then, _ in shown for view in then.values() if view is not None}
    assert len(states) > 2, "the story is too dull to tell anything"


def test_a_job_that_left_the_memory_before_is_told_as_it_ended(tmp_path: Path) -> None:
    settings = desired.ClusterSettings(retain_finished_jobs_s=60)
    world = World(nodes=1, settings=settings)
    (node,) = world.nodes.values()
    leader = Leader(tmp_path, world.now)

    def cycle(generation: int, jobs: dict[str, desired.Job]) -> None:
        status = desired.SyncStatus(sync="Synced")
        leader.want(desired.Desired(generation, world.structure, jobs, status=status))
        leader.report(node.report(leader.now))
        leader.cycle()
        update = leader.loop._engine.update(node.name, world.structure, leader.loop._state)
        assert update.payload is not None
        node.take(update.payload, (), leader.now)
        leader.now += 60

    other = {"other": job("other", suspend=True)}
    cycle(1, {**other, "gone": job("gone")})
    cycle(2, {**other, "gone": job("gone")})
    (attempt,) = node.attempts
    node.end(attempt, leader.now, exit_code=0)
    cycle(3, other)
    ended_at = leader.now
    for generation in range(4, 30):
        cycle(generation, other)
    assert "gone" not in leader.loop._state.jobs
    left_at = leader.now
    told = past_reasons.explain(leader.store.reader, "gone", leader.now)
    assert (told.job.state, told.job.place, len(told.job.attempts)) == ("Succeeded", None, 1)
    assert past_reasons.explain(leader.store.reader, "gone", ended_at).job == told.job
    assert past_reasons.explain(leader.store.reader, "gone", world.now).job.state != "Succeeded"

    cycle(30, {**other, "gone": job("gone", run=2)})
    cycle(31, {**other, "gone": job("gone", run=2)})
    again = past_reasons.explain(leader.store.reader, "gone", leader.now).job
    assert (again.run, again.state) == (2, "Running")
    for at in (ended_at, left_at - 60):
        assert past_reasons.explain(leader.store.reader, "gone", at).job == told.job
    leader.close()


def test_an_element_is_told_by_the_run_that_had_it_at_that_moment(tmp_path: Path) -> None:
    world = World(nodes=1, cpu=4)
    (node,) = world.nodes.values()
    leader = Leader(tmp_path, world.now)
    generation = 0

    def cycle(spec: desired.Job) -> None:
        nonlocal generation
        generation += 1
        status = desired.SyncStatus(sync="Synced")
        jobs = {spec.name: spec}
        leader.want(desired.Desired(generation, world.structure, jobs, status=status))
        leader.report(node.report(leader.now))
        leader.cycle()
        update = leader.loop._engine.update(node.name, world.structure, leader.loop._state)
        assert update.payload is not None
        done = tuple(n for n in node.attempts if n not in leader.loop._state.attempts)
        node.take(update.payload, done, leader.now)
        leader.now += 60

    first = job("sweep", array_count=3)
    again = job("sweep", array_count=3, array_only="1", run=2)
    cycle(first)
    cycle(first)
    of_first = leader.now - 60
    for number, attempt in enumerate(sorted(node.attempts)):
        node.end(attempt, leader.now, exit_code=number % 2)
    for _ in range(3):
        cycle(first)
    ended = leader.now - 60
    for _ in range(3):
        cycle(again)
    reader, now = leader.store.reader, leader.now

    def told(at: float, element: int | None) -> tuple[int, str, bool]:
        found = past_reasons.explain(reader, "sweep", at, element=element)
        return found.job.run, found.job.state, found.is_earlier_run

    assert [told(of_first, element) for element in (None, 0, 1)] == [(1, "Running", False)] * 3
    assert [told(ended, element) for element in (None, 0, 1)] == [(1, "Failed", False)] * 3
    assert told(now, 1) == told(now, None) == (2, "Running", False)
    assert told(now, 2) == (1, "Failed", True)
    earlier = past_reasons.explain(reader, "sweep", now, element=2)
    assert earlier.job.attempts[0].element == 2
    assert earlier.events[-1].at == times.format_time(ended - 120), "as it ended"
    assert earlier.job.element_indexes == {"Succeeded": "0,2", "Failed": "1"}
    whole = past_reasons.explain(reader, "sweep", now).job.elements_of_all_runs
    assert whole == {"Running": "1", "Succeeded": "0,2"}
    leader.close()


OVER_SHARE = (
    "No queue gives work back for it: with 5 GPUs more queue a would have 7, over its fair share "
    "of 4."
)
OVER_BY_ONE = (
    "No queue gives work back for it: with 1 GPU more queue a would have 3, over its fair share "
    "of 2."
)


@pytest.mark.parametrize(
    ("count", "minimum", "fair", "lends", "expected"),
    [
        (5, None, 4000, True, OVER_SHARE),
        (5, 2, 4000, True, ""),
        (2, None, 4000, True, ""),
        (1, None, 2000, True, OVER_BY_ONE),
        (5, None, None, True, ""),
        (5, None, 4000, False, ""),
    ],
    ids=["over its share", "less is enough", "within it", "by one", "no share", "nobody borrows"],
)  # fmt: skip
def test_it_is_said_why_no_other_queue_gives_work_back(
    count: int, minimum: int | None, fair: int | None, lends: bool, expected: str
) -> None:
    group = desired.TaskGroup("main", count, Resources(1000, 0, 1000), minimum=minimum)
    spec = msgspec.structs.replace(job("wide", queue="a"), groups=(group,))
    world = World(nodes=0)
    world.commit(spec)
    world.cycle()
    record = world.memory.jobs["wide"]
    why = Reason(ReasonCode.INSUFFICIENT_RESOURCES, "no room")
    view = job_views.job_view(record, reasons=[why])
    none, share = (None, None, None), (None, None, fair)
    queues = [
        outcome.QueueUsage("a", None, (2000, 0, 2000), (None, None, 4000), none, fair_share=share),
        outcome.QueueUsage("b", None, (0, 0, 6000 if lends else 4000), (None, None, 4000), none),
    ]
    assert explanation_views.not_reclaimed(spec, view, queues) == expected


def test_a_queue_is_not_among_the_others_that_have_more_than_their_guarantee() -> None:
    none = (None, None, None)
    queues = [
        outcome.QueueUsage(name, None, (0, 0, has), (None, None, 1000), none)
        for name, has in (("a", 9000), ("b", 4000), ("c", 1000))
    ]
    assert [one.name for one in explanation_views.borrowers(queues, "a")] == ["b"]
    assert [one.name for one in explanation_views.borrowers(queues, "c")] == ["a", "b"]


def test_cpus_are_held_in_excess_only_where_some_are_guaranteed() -> None:
    none, gib = (None, None, None), 2**30
    queues = [
        outcome.QueueUsage("gpus", None, (5000, gib, 3000), (None, None, 2000), none),
        outcome.QueueUsage("nothing", None, (5000, gib, 1000), none, none),
        outcome.QueueUsage("cpus", None, (5000, gib, 0), (4000, None, None), none),
        outcome.QueueUsage("free", None, (5000, gib, 0), none, none),
    ]
    found = {
        one.name: msgspec.structs.asdict(one.over)
        for one in explanation_views.borrowers(queues, "own")
    }
    assert found == {
        "gpus": {"cpu": 0.0, "memory": 0, "gpu": 1.0},
        "nothing": {"cpu": 0.0, "memory": 0, "gpu": 1.0},
        "cpus": {"cpu": 1.0, "memory": 0, "gpu": 0.0},
    }


@pytest.mark.parametrize("lease_s", [None, 60])
def test_what_is_told_of_tasks_on_a_silent_node_is_what_then_happens(lease_s: int | None) -> None:
    settings = desired.ClusterSettings(node_silence_s=30)
    world = World(nodes=2, cpu=2, settings=settings)
    world.commit(job("train", cpu=2, lease_s=lease_s))
    world.settle()

    def told() -> list[explanation_views.SilentNode]:
        return explanation_views.silent(world.memory.attempts.values(), world.memory.nodes)

    assert told() == []
    (attempt,) = world.memory.attempts.values()
    world.nodes[attempt.node].silent = True
    heard_at = world.now
    world.advance(40)
    (row,) = told()
    assert (row.node, row.pool, row.tasks) == (attempt.node, "pool", 1)
    assert row.last_heard == times.format_time(heard_at)
    node = world.memory.nodes[attempt.node]
    later = msgspec.structs.replace(node, last_answer_at=heard_at + 10)
    (answered,) = explanation_views.silent(world.memory.attempts.values(), {node.name: later})
    assert answered.last_heard == row.last_heard, "an answer that it got later is no report"
    if lease_s is None:
        assert (row.given_up, row.endless) == (None, 1)
        world.advance(7 * 86400)
        assert [one.id for one in world.memory.attempts.values()] == [attempt.id]
        return
    assert row.given_up is not None
    given_up_at = times.parse_time(row.given_up)
    assert (given_up_at > heard_at + lease_s, row.endless) == (True, 0)
    world.advance(given_up_at - 1 - world.now)
    assert [one.id for one in world.memory.attempts.values()] == [attempt.id]
    world.advance(1)
    assert {one.node for one in world.memory.attempts.values()} == world.nodes.keys() - {row.node}
    assert told() == []

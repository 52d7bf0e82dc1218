"""Elastic elements: they give way first, grow back, and end as a whole."""

import msgspec
import pytest

from reconciler.core import cycle_attempts
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, JobState
from reconciler.model.values import times
from reconciler.model.values.resources import Resources
from tests.unit.core.world import World, job
from tests.unit.store import samples


def elastic(name: str, least: int, most: int, cpu: int = 1, **more: object) -> desired.Job:
    group = desired.TaskGroup(
        "main", most, Resources(cpu * 1000, 0, 0), command=("true",), minimum=least
    )
    return job(name, groups=(group,), **more)


def indexes(world: World, name: str) -> list[int]:
    """Return the indexes of a job's tasks that hold something."""
    return sorted(a.index for a in world.attempts(name) if a.state is not AttemptState.ENDED)


def test_it_takes_what_there_is_and_gives_way_with_what_it_can_spare() -> None:
    world = World(nodes=2, cpu=4)
    world.commit(elastic("train", 2, 12))
    world.settle()
    assert len(indexes(world, "train")) == 8
    world.commit(job("urgent", cpu=3, priority=90))
    world.settle()
    assert world.states() == {"train": "Running", "urgent": "Running"}
    assert len(indexes(world, "train")) == 5
    assert world.events("JobRequeued") == []
    world.end("urgent")
    world.settle()
    assert len(indexes(world, "train")) == 8
    told = [a.id for result in world.outcomes for a in result.attempts if not a.concluded]
    started = {a for a in told if a.startswith("train.")}
    placed = [
        a.attempt for r in world.outcomes for a in r.actions if isinstance(a, outcome.StartAttempt)
    ]
    assert len(placed) == len(set(placed)), "no attempt is started twice"
    assert started


@pytest.mark.parametrize(
    ("least", "cpu", "told"),
    [
        (2, 3, "3 tasks of train have stopped"),
        (2, 1, "1 task of train has stopped"),
        (8, 3, "train has stopped"),
    ],
)
def test_what_waits_for_some_of_its_tasks_is_told_how_many(least: int, cpu: int, told: str) -> None:
    world = World(nodes=2, cpu=4)
    world.commit(elastic("train", least, 8))
    world.settle()
    world.commit(job("urgent", cpu=cpu, priority=90))
    for _ in range(2):  # when it is decided, and while nobody has heard that they have left
        world.cycle()
        (reason, *_) = world.memory.reasons[world.memory.jobs["urgent"].reason_key]
        assert reason.message == f"room is kept for it until {told}"


def test_of_an_array_the_element_that_stops_is_named() -> None:
    world = World(nodes=1, cpu=4)
    world.commit(job("sweep", cpu=2, array_count=2), job("alone", cpu=0))
    world.settle()
    world.commit(job("urgent", cpu=4, priority=90))
    world.cycle()
    (reason, *_) = world.memory.reasons[world.memory.jobs["urgent"].reason_key]
    assert reason.message == "room is kept for it until sweep[0], sweep[1] have stopped"


def test_it_ends_when_all_its_tasks_have_ended_and_grows_no_more_before() -> None:
    world = World(nodes=1, cpu=2)
    world.commit(elastic("train", 1, 4))
    world.settle()
    world.end("train", index=0)
    world.settle()
    assert indexes(world, "train") == [1]
    world.end("train", index=1)
    assert world.states() == {"train": "Succeeded"}


def test_a_task_that_fails_takes_all_with_it_where_no_retry_is_left() -> None:
    world = World(nodes=1, cpu=4)
    world.commit(elastic("train", 1, 4))
    world.settle()
    world.end("train", index=3, exit_code=1)
    assert world.states() == {"train": "Failed"}


def test_a_lost_node_takes_only_its_tasks() -> None:
    world = World(nodes=2, cpu=2)
    world.commit(elastic("train", 2, 4, lease_s=60))
    world.settle()
    assert len(indexes(world, "train")) == 4
    world.nodes["n1"].silent = True
    for _ in range(4):
        world.advance(60)
    live = [a for a in world.attempts("train") if a.state is not AttemptState.ENDED]
    assert {a.node for a in live} == {"n0"}
    assert len(live) == 2
    assert world.states() == {"train": "Running"}
    assert world.events("JobRequeued") == []


@pytest.mark.parametrize(("grace_s", "left"), [(0, 0), (600, 1)])
def test_below_its_minimum_it_waits_for_a_grace(grace_s: int, left: int) -> None:
    settings = desired.ClusterSettings(scheduling=desired.Scheduling(stale_gang_s=grace_s))
    world = World(nodes=2, cpu=2, settings=settings)
    world.commit(elastic("train", 2, 3, cpu=2, lease_s=60))
    world.settle()
    world.nodes["n1"].silent = True
    for _ in range(4):
        world.advance(60)
    assert len(indexes(world, "train")) == left
    world.advance(900)
    assert indexes(world, "train") == []
    assert world.states() == {"train": "Pending"}


def test_a_fixed_world_chooses_its_size_at_the_start() -> None:
    world = World(nodes=1, cpu=4)
    world.commit(job("other", cpu=1))
    world.settle()
    world.commit(elastic("train", 2, 4, framework="torchrun"))
    world.settle()
    ranks = sorted((a.rank.rank, a.rank.world_size) for a in world.attempts("train"))
    assert ranks == [(0, 3), (1, 3), (2, 3)]
    world.end("other")
    world.settle()
    assert len(indexes(world, "train")) == 3
    world.end("train", index=1, exit_code=1)
    assert world.states()["train"] == "Failed"


def test_who_made_room_for_growth_does_not_take_it_back() -> None:
    world = World(nodes=1, cpu=4)
    world.commit(job("low", cpu=2, array_count=2, priority=10))
    world.settle()
    world.commit(elastic("high", 1, 3, priority=90))
    for _ in range(6):
        world.advance(40)
    assert indexes(world, "high") == [0, 1, 2]
    assert world.attempts("low") == []
    assert len(world.events("JobEvicted")) == 2


def capped(cpu: int) -> World:
    """Return one node, and a quota of some CPUs for all that runs on it."""
    world = World(nodes=1, cpu=4)
    cap = desired.QuotaAmounts(cpu_milli=cpu * 1000)
    world.change_structure(quotas={"q": desired.Quota("q", queue="default", resources=cap)})
    return world


def test_what_grows_takes_nothing_of_a_cap_from_what_waits() -> None:
    world = capped(5)
    world.commit(job("other", cpu=1))
    world.settle()
    world.commit(elastic("train", 1, 4))
    world.settle()
    assert len(indexes(world, "train")) == 3
    world.commit(job("waits", cpu=1))
    world.settle()
    assert world.reason("waits") == "InsufficientResources"


def test_it_grows_as_far_as_a_cap_allows() -> None:
    world = capped(4)
    world.commit(job("other", cpu=3, priority=90))
    world.settle()
    world.change_structure(quotas={})
    world.commit(elastic("train", 1, 4))
    world.settle()
    assert len(indexes(world, "train")) == 1
    cap = desired.QuotaAmounts(cpu_milli=3000)
    world.change_structure(quotas={"q": desired.Quota("q", queue="default", resources=cap)})
    world.end("other")
    world.settle()
    assert len(indexes(world, "train")) == 3


def test_numbers_of_tries_go_on_from_tasks_that_joined_and_left() -> None:
    note = records.ElementNote(tries=14)
    spec = samples.job()
    core = msgspec.structs.replace(samples.attempt(spec), try_number=12)
    assert cycle_attempts.try_number_of([core], note) == 14
    assert cycle_attempts.try_number_of([msgspec.structs.replace(core, try_number=15)], note) == 15
    assert cycle_attempts.try_number_of([], note) == 14


def test_a_job_whose_most_exceeds_a_quota_starts_with_its_least_and_grows_up_to_it() -> None:
    world = World(nodes=2, cpu=8)
    world.change_structure(
        quotas={
            "q": desired.Quota("q", queue="default", resources=desired.QuotaAmounts(cpu_milli=4000))
        }
    )
    world.commit(elastic("train", 2, 12))
    world.settle()
    assert len(indexes(world, "train")) == 4, "the quota gives four CPUs"
    assert world.states() == {"train": "Running"}
    world.change_structure(
        quotas={
            "q": desired.Quota("q", queue="default", resources=desired.QuotaAmounts(cpu_milli=6000))
        }
    )
    world.settle()
    assert len(indexes(world, "train")) == 6


def test_what_joins_holds_its_room_no_longer_than_what_it_joins() -> None:
    """A gang that ends before nodes are reserved grows, although a new one would not fit."""
    world = World(nodes=1, cpu=4)
    begins = world.now + 7200
    window = desired.Reservation("r", ("n0",), begins, begins + 3600, maintenance=True)
    world.change_structure(reservations={"r": window})
    world.commit(job("beside", cpu=2, time_limit_s=3600))
    world.settle()
    world.commit(elastic("train", 1, 4, time_limit_s=5400))
    world.settle()
    assert indexes(world, "train") == [0, 1]
    world.advance(1900)
    world.end("beside")
    world.settle()
    assert indexes(world, "train") == [0, 1, 2, 3]


def test_what_grows_is_not_overdue_because_it_ends_soon() -> None:
    """For its last minutes it would preempt what others have beyond their guarantees."""
    world = World(nodes=1, cpu=4)
    queues = {
        name: desired.Queue(name, guaranteed=desired.QuotaAmounts(cpu_milli=1000)) for name in "ab"
    }
    world.change_structure(queues=queues)
    world.commit(job("other", cpu=1, count=3, queue="b", time_limit_s=7200))
    world.settle()
    world.commit(elastic("train", 1, 2, queue="a", time_limit_s=3600))
    world.settle()
    assert indexes(world, "train") == [0]
    world.advance(3000)
    world.advance(300)
    assert world.states() == {"other": "Running", "train": "Running"}
    assert world.events("JobEvicted") == []


def test_what_waits_for_its_end_goes_by_the_start_of_its_first_task_also_once_that_has_ended() -> (
    None
):
    """The time limit is that of the whole try, which joining tasks do not prolong."""
    world = World(nodes=1, cpu=4)
    world.commit(job("beside", cpu=2, time_limit_s=3600))
    world.settle()
    world.commit(elastic("train", 1, 4, time_limit_s=1200))
    world.settle()
    assert indexes(world, "train") == [0, 1]
    (began, _) = sorted(a.started_at or 0.0 for a in world.attempts("train"))
    world.advance(500)
    world.end("beside")
    world.settle()
    assert indexes(world, "train") == [0, 1, 2, 3]
    world.commit(job("whole", cpu=4, time_limit_s=3600))
    world.settle()
    due = f"room is reserved for it from {times.format_time(began + 1200)} at the latest"

    def told() -> str:
        (reason, *_) = world.memory.reasons[world.memory.jobs["whole"].reason_key]
        return reason.message

    assert told().endswith(due)
    for index in (0, 1):
        world.end("train", index=index)
    world.advance(10)
    assert indexes(world, "train") == [2, 3]
    assert told().endswith(due)
    world.advance(began + 1200 - world.now)
    world.settle()
    assert world.states()["whole"] == "Running"


def broken(*lost: str, grace_s: int = 600, **more: object) -> World:
    """A gang of three that lost tasks with their nodes, and a job that came later."""
    settings = desired.ClusterSettings(scheduling=desired.Scheduling(stale_gang_s=grace_s))
    world = World(nodes=3, cpu=2, settings=settings)
    world.commit(elastic("train", 3, 4, cpu=2, lease_s=60))
    world.settle()
    assert len(indexes(world, "train")) == 3
    for node in lost:
        world.nodes[node].silent = True
    for _ in range(4):
        world.advance(60)
    assert len(indexes(world, "train")) == 3 - len(lost)
    world.commit(job("rival", **{"cpu": 2, **more}))
    world.settle()
    return world


def back(world: World, node: str) -> None:
    """Let a node report again, whose tasks have ended meanwhile."""
    world.nodes[node].attempts.clear()
    world.nodes[node].silent = False
    world.settle()


@pytest.mark.parametrize("cpu", [1, 2])
def test_a_gang_below_its_minimum_is_refilled_before_what_came_later(cpu: int) -> None:
    world = broken("n2", cpu=cpu)
    back(world, "n2")
    assert len(indexes(world, "train")) == 3
    assert world.states() == {"rival": "Pending", "train": "Running"}


def test_higher_priority_goes_before_what_a_gang_lacks() -> None:
    world = broken("n2", priority=90)
    back(world, "n2")
    assert world.states()["rival"] == "Running"


def test_a_part_of_the_room_that_a_gang_lacks_is_kept_for_its_grace() -> None:
    world = broken("n1", "n2")
    back(world, "n1")
    assert (len(indexes(world, "train")), world.state("rival").value) == (1, "Pending")
    back(world, "n2")
    assert (len(indexes(world, "train")), world.state("rival").value) == (3, "Pending")


def test_what_is_kept_for_a_gang_is_free_after_its_grace() -> None:
    world = broken("n1", "n2", cpu=1)
    back(world, "n1")
    assert world.state("rival").value == "Pending"
    world.advance(900)
    world.settle()
    assert world.states() == {"rival": "Running", "train": "Pending"}


@pytest.mark.parametrize("kind", ["limit", "quota"])
def test_a_limit_is_kept_for_a_gang_below_its_minimum(kind: str) -> None:
    """Work that came later would use it up on another node until the gang's room is there again."""
    settings = desired.ClusterSettings(scheduling=desired.Scheduling(stale_gang_s=600))
    world = World(nodes=4, cpu=2, settings=settings)
    if kind == "quota":
        amounts = desired.QuotaAmounts(cpu_milli=7000)
        quota = desired.Quota("q", queue="default", resources=amounts)
        world.change_structure(quotas={"q": quota})
    else:
        queue = world.structure.queues["default"]
        queue = msgspec.structs.replace(queue, limit=desired.QuotaAmounts(cpu_milli=7000))
        world.change_structure(queues={"default": queue})
    world.commit(job("other", cpu=1))
    world.settle()
    world.commit(elastic("train", 3, 4, cpu=2, lease_s=60))
    world.settle()
    assert len(indexes(world, "train")) == 3
    lost = next(a.node for a in world.attempts("train") if a.index == 2)
    world.nodes[lost].silent = True
    for _ in range(4):
        world.advance(60)
    assert len(indexes(world, "train")) == 2
    world.commit(job("rival", cpu=1))
    world.settle()
    assert world.state("rival").value == "Pending"
    back(world, lost)
    assert len(indexes(world, "train")) == 3


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
@pytest.mark.parametrize("grace_s", [0, 600])
def test_tasks_that_have_succeeded_are_not_missed(order: tuple[int, ...], grace_s: int) -> None:
    settings = desired.ClusterSettings(scheduling=desired.Scheduling(stale_gang_s=grace_s))
    world = World(nodes=1, cpu=4, settings=settings)
    world.commit(elastic("train", 3, 4))
    world.settle()
    for ended, index in enumerate(order, start=1):
        world.end("train", index=index)
        world.advance(1)
        assert len(indexes(world, "train")) == 4 - ended
    assert world.state("train") is JobState.SUCCEEDED
    assert world.events("JobRequeued") == []
    assert [a.try_number for a in world.attempts("train")] in ([], [1, 1, 1, 1])

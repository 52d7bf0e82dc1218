"""Elastic gangs give up what they can spare before whole elements leave, whosever they are.

What may be taken is found here by trying every set of spare tasks.
"""

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Iterable

from reconciler.scheduling.cycle.scheduling_cycle import schedule
from reconciler.scheduling.decisions import Decisions, EvictionDecision
from reconciler.scheduling.inputs.snapshots import TaskAllocation
from tests.unit.scheduling.situations import Held, Job, Situation, evicted

ASKS = "asks"


def drawn(seed: int) -> Situation:
    """Nodes full of gangs and single tasks of up to three queues, and one job that asks."""
    rng = random.Random(seed)
    s = Situation()
    gpus = 0
    for number in range(rng.randint(1, 3)):
        gpu = rng.choice([2, 3, 4])
        s.node(f"n{number}", gpu=gpu)
        gpus += gpu
    left = gpus
    for name in ("own", "a", "b"):
        guaranteed = rng.randint(0, left)
        s.queue(name, guaranteed=guaranteed, weight=rng.choice([0.0, 1.0]))
        left -= guaranteed
    for number in range(rng.randint(3, 9)):
        _runs(rng, s, f"r{number}")
    s.job(
        ASKS,
        "own",
        gpu=rng.choice([1, 1, 2, 2, 3]),
        tasks=rng.choice([1, 1, 2]),
        priority=rng.choice([50, 90]),
    )
    return s


def _runs(rng: random.Random, s: Situation, name: str) -> None:
    """A job all of which runs, where it has room."""
    gpu, tasks = rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2, 3, 4])
    places = [
        node.name
        for row, node in enumerate(s.nodes)
        for _ in range(len(s.free_devices(row)) // gpu)
    ]
    if len(places) < tasks:
        return
    rng.shuffle(places)
    least = rng.randint(1, tasks) if rng.random() < 0.7 else None
    s.job(
        name,
        rng.choice(["own", "a", "a", "b", "b"]),
        gpu=gpu,
        tasks=tasks,
        least=least,
        priority=rng.choice([10, 50]),
        preemptible=rng.random() < 0.9,
        cost_s=rng.choice([0.0, 60.0]),
        on=tuple(places[:tasks]),
    )


def would_do(s: Situation, decisions: Decisions, *, foreign: bool, own: bool) -> bool:
    """Whether some spare tasks that may leave make room for the one who asks.

    Not those of gangs that would grow again at the cost of whole elements of their queue.
    """
    ask = s.jobs[ASKS]
    spare = [
        (held, task)
        for held in s.held
        for task in held.tasks
        if task.spare
        and not _grows_again(s, s.jobs[held.job])
        and (foreign if s.jobs[held.job].queue != ask.queue else own)
    ]
    return any(
        _makes_room(s, decisions, chosen)
        for size in range(1, len(spare) + 1)
        for chosen in itertools.combinations(spare, size)
    )


def _grows_again(s: Situation, job: Job) -> bool:
    """Whether work of a lower priority is beside a gang."""
    others = [s.jobs[held.job] for held in s.held]
    return any(
        other.queue == job.queue and other.priority < job.priority and other.preemptible
        for other in others
    )


def _makes_room(
    s: Situation, decisions: Decisions, chosen: Iterable[tuple[Held, TaskAllocation]]
) -> bool:
    """Whether the asking job has room and share once these have left, and no one too little."""
    ((_, tasks, vector),) = s.jobs[ASKS].groups
    keeps = {
        queue.name: max(queue.guaranteed[2], share.fair_share[2])
        for queue, share in zip(s.queue_list, decisions.shares, strict=True)
    }
    used = Counter[str]()
    for held in s.held:
        used[s.jobs[held.job].queue] += sum(task.amounts[2] for task in held.tasks)
    freed, idle = Counter[str](), Counter({n: len(s.free_devices(n)) for n in range(len(s.nodes))})
    for held, task in chosen:
        freed[s.jobs[held.job].queue] += task.amounts[2]
        idle[task.node] += len(task.devices)
    asked = tasks * vector[2]
    if sum(count // (vector[2] // 1000) for count in idle.values()) < tasks:
        return False
    if any(used[q] - amount < keeps[q] for q, amount in freed.items() if q != "own"):
        return False
    within = used["own"] - freed["own"] + asked <= keeps["own"]
    return within or (set(freed) == {"own"} and freed["own"] >= asked)


def wholes(s: Situation, evictions: Iterable[EvictionDecision]) -> tuple[bool, bool]:
    """Whether whole elements leave in other queues, and in the one that asks."""
    queues = {s.jobs[one.job].queue for one in evictions if not one.tasks}
    return bool(queues - {"own"}), "own" in queues


def told(s: Situation, decisions: Decisions) -> str:
    """Whether anybody leaves who need not; otherwise nothing."""
    foreign, own = wholes(s, decisions.evictions)
    if (foreign or own) and would_do(s, decisions, foreign=foreign, own=own):
        return f"{s}\n{evicted(decisions)}"
    return ""


def test_nobody_leaves_as_a_whole_where_spare_tasks_would_do() -> None:
    seen = Counter[str]()
    for seed in range(1500):
        s = drawn(seed)
        decisions = s.decide()
        assert not told(s, decisions), seed
        seen.update({"whole": any(wholes(s, decisions.evictions))})
        seen.update({"spare": any(one.tasks for one in decisions.evictions)})
    assert min(seen["whole"], seen["spare"]) > 50, "hardly anything is drawn that tells"


def shrunk(decisions: Decisions) -> list[tuple[str, int]]:
    """Who leaves, and with how many tasks; 0: all of them."""
    return sorted((one.job, len(one.tasks)) for one in decisions.evictions)


def two_queues() -> Situation:
    """The one furthest above its share has a whole element, the other a task to spare."""
    s = Situation().node("n", gpu=5)
    s.queue("own", guaranteed=2, weight=0.0)
    s.queue("a", guaranteed=2, weight=0.0).queue("b", weight=0.0)
    s.job("elastic", "a", gpu=1, tasks=3, least=2, on=("n",) * 3)
    s.job("low", "a", gpu=1, priority=10, preemptible=False, on=("n",))
    s.job("whole", "b", gpu=1, on=("n",))
    return s.job(ASKS, "own", gpu=1)


def test_a_spare_task_leaves_before_a_whole_element_of_a_queue_further_above_its_share() -> None:
    assert shrunk(two_queues().decide()) == [("elastic", 1)]


def test_a_spare_task_stays_that_would_come_back_at_a_whole_element_s_cost() -> None:
    s = two_queues()
    s.jobs["low"].preemptible = True
    assert shrunk(s.decide()) == [("whole", 0)]


def test_a_gang_does_not_leave_for_what_its_own_spare_tasks_would_give() -> None:
    """Its least task is on a node that is cheaper to clear than the one with its spare tasks."""
    s = Situation().node("x", gpu=3).node("y", gpu=4).queue("own", guaranteed=5).queue("a")
    s.job("elastic", "a", gpu=2, tasks=3, least=1, on=("x", "y", "y"))
    decisions = s.job(ASKS, "own", gpu=3).decide()
    assert shrunk(decisions) == [("elastic", 1), ("elastic", 1)]


def test_a_spare_task_stays_for_its_minimum_run_time_and_the_end_of_that_wakes() -> None:
    s = Situation().node("n", gpu=2).queue("main")
    s.job("elastic", gpu=1, tasks=2, least=1, preemptible=False, on=("n", "n"))
    given = s.job(ASKS, gpu=1, priority=90).snapshot()
    holdings = tuple(dataclasses.replace(one, protected_until=60.0) for one in given.holdings)
    decisions = schedule(dataclasses.replace(given, holdings=holdings))
    assert (decisions.evictions, decisions.wake_at) == ((), 60.0)

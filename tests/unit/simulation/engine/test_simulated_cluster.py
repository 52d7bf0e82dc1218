"""The virtual cluster: events of a moment make one cycle, time passes only between events."""

import math
import random
from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest

from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, EndReason, JobState
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import event_queue, faults, simulated_cluster, world
from reconciler.simulation.engine.simulated_nodes import TaskOutcome
from tests.unit.core.world import GI, job

BEGIN = 1_000_000.0


class Log:
    """Remembers what really happened, and which tasks ran at once."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, str]] = []
        self.running: Counter[str] = Counter()
        self.twice: list[str] = []

    def started(self, attempt: records.AttemptRecord, at: float) -> None:
        task = attempt.id.rpartition(".")[0]
        self.running[task] += 1
        if self.running[task] > 1:
            self.twice.append(f"{attempt.id} at {at - BEGIN}")
        self.lines.append((at - BEGIN, "start", attempt.job))

    def ended(
        self, attempt: records.AttemptRecord, at: float, why: EndReason, ran_s: float
    ) -> None:
        if ran_s > 0 or why is EndReason.EXITED:
            self.running[attempt.id.rpartition(".")[0]] -= 1
        self.lines.append((at - BEGIN, why.value, attempt.job))

    def decided(self, result: outcome.Outcome) -> None:
        assert result.wake_at is None or result.wake_at > result.now


def plan_faults(
    cluster: simulated_cluster.SimulatedCluster, plan: Iterable[faults.InjectedFault]
) -> None:
    for fault in plan:
        cluster.at(fault.at, partial(cluster.suffer, fault))


def structure(nodes: int = 2, gpu: int = 2, node_silence_s: int = 90) -> desired.Structure:
    names = tuple(f"n{number}" for number in range(nodes))
    pool = desired.Pool(
        name="pool", nodes=names, node_resources=Resources(4000, 64 * GI, gpu * 1000)
    )
    return desired.Structure(
        settings=desired.ClusterSettings(node_silence_s=node_silence_s),
        pools={"pool": pool},
        queues={"default": desired.Queue(name="default")},
    )


def state(cluster: simulated_cluster.SimulatedCluster, name: str) -> JobState:
    return cluster.memory.jobs[name].state


def test_one_cycle_for_all_that_happens_at_a_moment() -> None:
    log = Log()
    cluster = simulated_cluster.SimulatedCluster(
        structure(),
        now=BEGIN,
        surroundings=world.World(fates=lambda _: TaskOutcome(runs_s=100.0)),
        watcher=log,
    )
    cluster.run(BEGIN)
    before = cluster.cycles
    for number in range(4):
        cluster.at(BEGIN + 10, partial(cluster.commit, [job(f"j{number}", gpu=1)]))
    cluster.run(BEGIN + 50)
    assert cluster.cycles == before + 2, "one for the commits, one for the reports of the starts"
    cluster.run(BEGIN + 1000)
    assert cluster.cycles == before + 3, "one for the ends, and none while nothing happens"
    assert [line[:2] for line in log.lines] == [(10.0, "start")] * 4 + [(110.0, "Exited")] * 4
    assert {state(cluster, f"j{n}") for n in range(4)} == {JobState.SUCCEEDED}
    assert not cluster.memory.attempts
    assert cluster.next_at() is None


def test_starts_may_ride_along_with_the_next_cycle() -> None:
    timing = world.Timing(start_report_within_s=30.0)
    fates = {"long": TaskOutcome(runs_s=1000.0), "short": TaskOutcome(runs_s=10.0, exit_code=3)}
    cluster = simulated_cluster.SimulatedCluster(
        structure(),
        now=BEGIN,
        surroundings=world.World(timing=timing, fates=lambda attempt: fates[attempt.job]),
    )
    cluster.run(BEGIN)
    before = cluster.cycles
    cluster.commit([job("long"), job("short")])
    cluster.run(BEGIN)
    assert state(cluster, "long") is JobState.STARTING
    cluster.run(BEGIN + 10)
    assert cluster.cycles == before + 2
    assert state(cluster, "long") is JobState.RUNNING, "told with the end of the other"
    assert state(cluster, "short") is JobState.FAILED
    cluster.commit([job("alone")], remove=["short"])
    fates["alone"] = TaskOutcome()
    cluster.run(BEGIN + 39)
    assert state(cluster, "alone") is JobState.STARTING
    cluster.run(BEGIN + 40)
    assert state(cluster, "alone") is JobState.RUNNING


def test_a_task_takes_its_time_to_start_and_to_leave() -> None:
    log = Log()
    cluster = simulated_cluster.SimulatedCluster(
        structure(),
        now=BEGIN,
        surroundings=world.World(
            timing=world.Timing(start_s=5.0), fates=lambda _: TaskOutcome(leaves_s=90.0)
        ),
        watcher=log,
    )
    cluster.commit([job("a"), job("b", grace_s=20)])
    cluster.run(BEGIN + 4)
    assert state(cluster, "a") is JobState.STARTING
    cluster.run(BEGIN + 5)
    assert state(cluster, "a") is JobState.RUNNING
    cluster.commit(remove=["a", "b"])
    cluster.run(BEGIN + 500)
    assert log.lines[2:] == [(25.0, "Cancelled", "b"), (35.0, "Cancelled", "a")]
    assert state(cluster, "a") is JobState.CANCELLED


def test_what_runs_already_runs_on() -> None:
    first = simulated_cluster.SimulatedCluster(structure(), now=BEGIN, jobs={"a": job("a", gpu=1)})
    first.run(BEGIN + 60)
    second = simulated_cluster.SimulatedCluster(
        first.structure,
        now=BEGIN + 60,
        jobs=first.jobs,
        observed=first.memory.observed((), {}),
        surroundings=world.World(fates=lambda _: TaskOutcome(runs_s=100.0)),
    )
    second.run(BEGIN + 99)
    assert state(second, "a") is JobState.RUNNING
    second.run(BEGIN + 100)
    assert state(second, "a") is JobState.SUCCEEDED


def test_documents_of_finished_jobs_can_be_pruned() -> None:
    cluster = simulated_cluster.SimulatedCluster(
        structure(),
        now=BEGIN,
        surroundings=world.World(fates=lambda _: TaskOutcome(runs_s=1.0)),
    )
    cluster.commit([job("a"), job("b")])
    cluster.run(BEGIN)
    cluster.prune(["a"])
    assert "a" in cluster.jobs
    cluster.run(BEGIN + 1)
    cluster.prune(["a", "b"])
    assert cluster.jobs == {}
    cluster.commit([job("c")])
    cluster.run(BEGIN + 2)
    assert state(cluster, "a") is JobState.SUCCEEDED


def test_a_silent_nodes_work_moves_after_its_lease_and_never_runs_twice() -> None:
    log = Log()
    cluster = simulated_cluster.SimulatedCluster(
        structure(nodes=2, gpu=0, node_silence_s=30),
        now=BEGIN,
        surroundings=world.World(
            timing=world.Timing(heartbeat_s=10.0), fates=lambda _: TaskOutcome(leaves_s=math.inf)
        ),
        watcher=log,
    )
    cluster.commit([job("a", lease_s=60, grace_s=5)])
    cluster.run(BEGIN + 1)
    (first,) = cluster.memory.attempts.values()
    cluster.suffer(faults.InjectedFault(cluster.now, "cut", first.node))
    cluster.run(BEGIN + 40)
    assert cluster.memory.nodes[first.node].state.value == "Unknown"
    cluster.run(BEGIN + 200)
    (second,) = cluster.memory.attempts.values()
    assert (second.try_number, second.node != first.node) == (2, True)
    assert log.twice == []
    left = next(at for at, what, _ in log.lines if what == "LeaseExpired")
    again = [at for at, what, _ in log.lines if what == "start"][1]
    assert left == 65.0
    assert left < again <= 67.0
    cluster.suffer(faults.InjectedFault(cluster.now, "connect", first.node))
    cluster.run(BEGIN + 260)
    assert cluster.memory.nodes[first.node].state.value == "Ready"
    assert list(cluster.memory.attempts) == [second.id]


def test_a_machine_that_boots_again_has_lost_its_tasks() -> None:
    log = Log()
    cluster = simulated_cluster.SimulatedCluster(
        structure(nodes=1, gpu=0),
        now=BEGIN,
        surroundings=world.World(timing=world.Timing(heartbeat_s=10.0)),
        watcher=log,
    )
    cluster.commit([job("a")])
    cluster.run(BEGIN + 1)
    plan_faults(
        cluster,
        [
            faults.InjectedFault(BEGIN + 5, "power-off", "n0"),
            faults.InjectedFault(BEGIN + 15, "boot", "n0"),
        ],
    )
    cluster.run(BEGIN + 30)
    assert [line[:2] for line in log.lines] == [(0.0, "start"), (5.0, "NodeLost"), (15.0, "start")]


def test_another_leader_goes_on() -> None:
    cluster = simulated_cluster.SimulatedCluster(
        structure(),
        now=BEGIN,
        surroundings=world.World(fates=lambda _: TaskOutcome(runs_s=50.0)),
    )
    cluster.commit([job("a"), job("b", gpu=4)])
    cluster.run(BEGIN + 1)
    cluster.change_leader()
    cluster.run(BEGIN + 100)
    assert state(cluster, "a") is JobState.SUCCEEDED
    assert len(cluster.memory.past_runs) == 2, "one run of each"


def test_a_fault_of_a_node_that_is_not_there_is_refused() -> None:
    cluster = simulated_cluster.SimulatedCluster(structure(), now=BEGIN)
    with pytest.raises(event_queue.SimulationError, match="there is no Node/n9"):
        cluster.suffer(faults.InjectedFault(BEGIN, "cut", "n9"))


RATES = faults.Rates(
    cut_every_s=900,
    flap_every_s=1500,
    power_off_every_s=2500,
    restart_agent_every_s=1500,
    skew_clock_every_s=2000,
    change_leader_every_s=2000,
    away_s=400,
)


def story(seed: int) -> tuple[simulated_cluster.SimulatedCluster, Log]:
    """Twenty jobs on a cluster that suffers for an hour, and then is left alone."""
    chance = random.Random(seed)
    log = Log()
    cluster = simulated_cluster.SimulatedCluster(
        structure(nodes=3, node_silence_s=60),
        now=BEGIN,
        surroundings=world.World(
            timing=world.Timing(start_s=0.5, heartbeat_s=10.0),
            weather=faults.Weather(chance, lose=0.1, duplicate=0.1, delay=0.2, delay_s_max=30.0),
            fates=lambda _: TaskOutcome(
                runs_s=chance.uniform(5, 500), leaves_s=chance.uniform(0, 40)
            ),
        ),
        watcher=log,
    )
    for number in range(20):
        spec = job(
            f"j{number}",
            gpu=chance.choice([0, 1, 2]),
            count=chance.choice([1, 1, 2]),
            lease_s=chance.choice([None, 60, 120]),
            grace_s=10,
        )
        cluster.at(BEGIN + chance.uniform(0, 3000), partial(cluster.commit, [spec]))
    plan_faults(cluster, faults.draw(chance, ("n0", "n1", "n2"), BEGIN, BEGIN + 3600, RATES))
    cluster.run(BEGIN + 12_000)
    return cluster, log


@pytest.mark.parametrize("seed", range(12))
def test_whatever_goes_wrong_all_comes_to_its_end_and_nothing_runs_twice(seed: int) -> None:
    cluster, log = story(seed)
    assert {record.state for record in cluster.memory.jobs.values()} == {JobState.SUCCEEDED}
    assert len(cluster.memory.jobs) == 20
    assert not [a for a in cluster.memory.attempts.values() if a.state is not AttemptState.ENDED]
    assert log.twice == []


def test_the_same_seed_tells_the_same_story() -> None:
    one, two = story(3), story(3)
    assert one[1].lines == two[1].lines
    assert one[0].cycles == two[0].cycles
    assert one[1].lines != story(4)[1].lines


def test_a_plan_of_faults_brings_every_node_back() -> None:
    plan = faults.draw(random.Random(1), ("n0", "n1"), 0.0, 50_000.0, RATES)
    assert plan == sorted(plan, key=lambda fault: fault.at)
    assert {fault.kind for fault in plan} == {
        "cut",
        "connect",
        "power-off",
        "boot",
        "restart-agent",
        "skew-clock",
        "change-leader",
    }
    assert plan == faults.draw(random.Random(1), ("n0", "n1"), 0.0, 50_000.0, RATES)
    for first, second in (("cut", "connect"), ("power-off", "boot")):
        counts = Counter[str](fault.kind for fault in plan)
        assert counts[first] == counts[second]
    assert faults.draw(random.Random(1), ("n0",), 0.0, 1e9, faults.Rates()) == []


def test_an_agenda_keeps_the_order_of_what_is_due_together_and_has_a_limit() -> None:
    planned: event_queue.EventQueue[str] = event_queue.EventQueue(planned_max=3)
    for at, item in ((2.0, "b"), (1.0, "a"), (2.0, "c")):
        planned.put(at, item)
    with pytest.raises(event_queue.SimulationError, match="more than 3 things"):
        planned.put(3.0, "d")
    assert planned.next_at() == 1.0
    assert planned.take(2.0) == ["a", "b", "c"]
    assert planned.next_at() is None


def test_what_hurries_is_decided_at_once_unless_the_controller_stands_still() -> None:
    cluster = simulated_cluster.SimulatedCluster(
        structure(),
        now=BEGIN,
        surroundings=world.World(timing=world.Timing(cycle_every_s=60, heartbeat_s=10)),
    )
    cluster.run(BEGIN + 20)
    cycles = cluster.cycles
    cluster.commit([job("waits")])
    cluster.run(BEGIN + 21)
    assert cluster.cycles == cycles, "the last cycle was not long ago"
    cluster.hurry()
    cluster.run(BEGIN + 22)
    assert cluster.cycles == cycles + 1
    cluster.pause(30)
    cluster.commit([job("later")])
    cluster.hurry()
    cluster.run(BEGIN + 51)
    assert "later" not in cluster.memory.jobs
    cluster.run(BEGIN + 53)
    assert "later" in cluster.memory.jobs


def test_a_gang_starts_when_all_of_it_has_its_image() -> None:
    """Its tasks say how far they are; an agent that begins anew may have to fetch once more."""
    log = Log()
    fates = iter(
        [TaskOutcome(runs_s=50, fetch_s=5), TaskOutcome(runs_s=50, fetch_s=20, fetches_again=True)]
    )
    known: dict[str, TaskOutcome] = {}
    cluster = simulated_cluster.SimulatedCluster(
        structure(gpu=1),
        now=BEGIN,
        surroundings=world.World(
            fates=lambda attempt: known.setdefault(attempt.id, next(fates)),
            timing=world.Timing(start_s=1, heartbeat_s=10),
        ),
        watcher=log,
    )
    cluster.commit([job("gang", gpu=1, count=2, runtime="podman", image="docker.io/a/b")])

    def states() -> list[AttemptState]:
        return [attempt.state for attempt in cluster.memory.attempts.values()]

    cluster.run(BEGIN + 6)
    assert states() == [AttemptState.READY, AttemptState.FETCHING]
    (slow,) = (one.node for one in cluster.memory.attempts.values() if one.index == 1)
    cluster.suffer(faults.InjectedFault(cluster.now, "restart-agent", slow))
    cluster.run(BEGIN + 25)
    assert states() == [AttemptState.READY, AttemptState.FETCHING]
    cluster.run(BEGIN + 30)
    assert [line[:2] for line in log.lines] == [(27, "start"), (27, "start")]
    cluster.run(BEGIN + 90)
    assert state(cluster, "gang") is JobState.SUCCEEDED

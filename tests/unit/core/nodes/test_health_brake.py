"""At most a share of a pool leaves service by one check within a time, over restarts too."""

import random
from typing import Any

import msgspec
import pytest

from reconciler.core import observed_state
from reconciler.model import desired
from reconciler.model.observed import health_checks, job_commands
from reconciler.model.state import records
from reconciler.model.state.states import NodeState
from tests.unit.core import test_checks, test_drift
from tests.unit.core.nodes import test_clock_steps
from tests.unit.core.world import job

NCCL = health_checks.CheckResult("nccl", "failed", "too slow")
DATA = health_checks.CheckResult("data", "failed", "not there")
HOUR = 3600


class Site(test_checks.Site):
    """A pool of ten nodes with a brake."""

    def __init__(self, share: float = 0.3, nodes: int = 10, **changes: object) -> None:
        test_drift.Site.__init__(self, nodes=nodes)
        brake = desired.HealthBrake(share, HOUR)
        self.change_pool(brake=brake, black_hole=None, remedies={}, **changes)

    def fail(self, *names: str, by: health_checks.CheckResult = NCCL) -> None:
        """Let a check fail on nodes, and see what comes of it."""
        for name in names:
            self.finds(name, by)
        self.round()

    def heal(self, *names: str) -> None:
        for name in names:
            self.finds(name)
        self.round()

    def out(self) -> list[str]:
        known = sorted(self.memory.nodes)
        return [name for name in known if self.state(name) is NodeState.UNHEALTHY]

    def held(self) -> list[str]:
        kind = "node-check-braked"
        return [subject.partition("/")[0] for found, subject in self.found() if found == kind]

    def restart(self) -> None:
        """Let another leader go on from the store."""
        loaded = self.memory.observed((), {})
        again = records.Observed(
            jobs=dict(loaded.jobs),
            attempts=dict(loaded.attempts),
            nodes={
                name: msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=records.NodeRecord)
                for name, one in loaded.nodes.items()
            },
            drift=loaded.drift,
            remedies=loaded.remedies,
        )
        self.memory = observed_state.ObservedState(again, leader_since=self.now)
        self.round()


def names(*numbers: int) -> list[str]:
    return [f"n{number}" for number in numbers]


def test_the_rest_of_a_pool_stays_in_service_and_takes_work() -> None:
    site = Site()
    site.fail(*names(*range(10)))
    assert site.out() == names(0, 1, 2)
    assert site.held() == names(3, 4, 5, 6, 7, 8, 9)
    message = site.memory.nodes["n3"].message
    assert message.startswith("check nccl failed: too slow; it stays in service")
    assert site.events("HealthBrake") == ["n3"]
    site.commit(job("j", cpu=5, count=4))
    site.settle()
    assert site.states()["j"] == "Running"


@pytest.mark.parametrize(
    ("share", "nodes", "out"), [(0.3, 3, 1), (0.3, 2, 1), (0.0, 4, 1), (0.5, 4, 2), (1.0, 4, 4)]
)
def test_one_node_may_always_leave(share: float, nodes: int, out: int) -> None:
    site = Site(share, nodes)
    site.fail(*names(*range(nodes)))
    assert len(site.out()) == out


def test_what_fails_bit_by_bit_leaves_and_what_fails_at_once_does_not_leave_in_time() -> None:
    site = Site()
    for number in range(5):
        site.fail(f"n{number}")
        site.now += HOUR
        site.round()
    assert site.out() == names(0, 1, 2, 3, 4)
    site.fail(*names(5, 6, 7, 8, 9))
    assert (site.out(), site.held()) == (names(0, 1, 2, 3, 4, 5, 6, 7), names(8, 9))
    site.now += 5 * HOUR
    site.round()
    assert site.held() == names(8, 9), "time alone lets none of them go"


def test_a_moment_in_which_all_others_are_well_lets_no_second_share_go() -> None:
    site = Site()
    site.fail(*names(*range(10)))
    for _ in range(3):
        site.now += 2 * HOUR
        site.restart()
        site.heal(*names(*range(3, 10)))
        assert site.held() == []
        site.now += 2 * HOUR
        site.fail(*names(*range(3, 10)))
        assert (site.out(), len(site.held())) == (names(0, 1, 2), 7)
    # what has come back and fails again counts as any other
    site.heal(*names(0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
    for number in range(5):
        site.fail(f"n{number}")
        site.now += HOUR
    assert (site.out(), site.held()) == (names(0, 1, 2, 3, 4), [])


def test_a_held_node_leaves_when_there_is_room_or_a_larger_share() -> None:
    site = Site()
    site.fail(*names(0, 1, 2, 3, 4))
    site.heal("n1")
    site.round()
    assert (site.out(), site.held()) == (names(0, 2, 3), ["n4"])
    site.change_pool(brake=desired.HealthBrake(0.5, HOUR))
    site.round()
    assert (site.out(), site.held()) == (names(0, 2, 3, 4), [])


def test_a_restart_lets_nothing_go_and_a_check_that_is_mended_frees_all() -> None:
    site = Site()
    site.fail(*names(0, 1, 2, 3, 4, 5))
    for _ in range(3):
        site.now += HOUR
        site.restart()
        site.round()
        assert (site.out(), site.held()) == (names(0, 1, 2), names(3, 4, 5))
    site.heal(*names(0, 1, 2, 3, 4, 5))
    assert (site.out(), site.found()) == ([], [])
    assert all(one.brake is None for one in site.memory.nodes.values())
    assert all(not one.message for one in site.memory.nodes.values())


def test_each_check_has_a_brake_of_its_own_and_other_reasons_have_none() -> None:
    site = Site()
    site.fail(*names(0, 1, 2, 3))
    site.fail("n4", by=DATA)
    assert (site.out(), site.held()) == (names(0, 1, 2, 4), ["n3"])
    node = site.node("n3")
    small = msgspec.structs.replace(node.inventory.capacity, cpu_milli=1)
    node.inventory = msgspec.structs.replace(node.inventory, capacity=small)
    site.round()
    assert site.state("n3") is NodeState.UNHEALTHY, "it lacks what the pool declares"


def test_a_check_that_each_task_waits_for_is_not_braked() -> None:
    plan = health_checks.CheckPlan(
        commands=(health_checks.CheckCommand("nccl", ("x",)),), before=("nccl",)
    )
    site = Site(checks=plan)
    site.fail(*names(*range(5)))
    assert site.out() == names(*range(5))


@pytest.mark.parametrize("checks", [None, health_checks.CheckPlan()])
@pytest.mark.parametrize("moment", ["before_job", "after_job"])
def test_commands_around_jobs_are_braked_with_and_without_checks(
    moment: str, checks: health_checks.CheckPlan | None
) -> None:
    command = job_commands.JobCommand("scrub", ("/x",))
    commands: dict[str, Any] = {moment: (command,)}
    site = Site(checks=checks, **commands)
    site.fail(*names(*range(5)), by=health_checks.CheckResult("scrub", "failed", "status 1"))
    assert (site.out(), site.held()) == (names(0, 1, 2), names(3, 4))
    assert site.memory.nodes["n0"].message == "check scrub failed: status 1"


def test_a_full_disk_is_not_braked_by_a_command_that_fails_too() -> None:
    command = job_commands.JobCommand("disk-space", ("/x",))
    site = Site(checks=None, before_job=(msgspec.structs.replace(command, name="scrub"),))
    site.fail(*names(*range(5)), by=health_checks.CheckResult("disk-space", "failed", "full"))
    assert site.out() == names(*range(5))


def test_checks_that_come_and_go_everywhere_keep_out_no_more() -> None:
    site = Site(flapping=desired.FlappingPolicy(failures=2))
    for _ in range(3):
        site.fail(*names(*range(10)))
        site.heal(*names(*range(10)))
    assert site.out() == names(0, 1, 2)
    assert ("node-flapping", "n0") in site.found()
    assert ("node-flapping", "n5") not in site.found()


def test_a_person_takes_out_a_node_that_is_held() -> None:
    site = Site()
    site.fail(*names(0, 1, 2, 3, 4))
    site.change_pool(drains={"n3": desired.NodeDrain("fan"), "n0": desired.NodeDrain("fan")})
    site.round()
    assert site.state("n3") is NodeState.UNHEALTHY
    assert site.held() == ["n4"], "a node that was out by the check still counts"


def test_a_held_node_gets_no_remedy() -> None:
    site = Site(nodes=3)
    site.change_pool(remedies={"nccl": test_checks.REBOOT}, remedies_at_once=3)
    site.fail(*names(0, 1, 2))
    for _ in range(5):
        site.now += 60
        site.round()
    assert {one.node for one in site.memory.remedies} == {"n0"}


def test_a_clock_that_is_set_back_makes_no_exit_younger_than_now() -> None:
    site = Site()
    site.fail("n0")
    test_clock_steps.set_back(site)
    brake = site.memory.nodes["n0"].brake
    assert brake is not None
    assert brake.since <= site.now


@pytest.mark.parametrize("seed", range(8))
def test_never_more_than_the_share_leave_at_once_and_caches_change_nothing(seed: int) -> None:
    """Nodes fail and heal at random; a leader without caches decides the same."""
    chance = random.Random(seed)
    site = Site(chance.choice([0.2, 0.3, 0.5]))
    most = site.structure.pools["pool"].brake.nodes_max(10)
    failing: set[str] = set()
    for _ in range(40):
        for name in chance.sample(names(*range(10)), 3):
            failing ^= {name}
            site.finds(name, *([NCCL] if name in failing else []))
        site.now += chance.choice([1, 60])
        before = set(site.out())
        if chance.random() < 0.3:
            site.restart()
        else:
            site.round()
        site.round()  # what has come back made room
        after = set(site.out())
        assert len(after) <= most
        assert after <= failing
        assert before & failing <= after, "what is out stays out while it fails"
        assert len(after) == min(most, len(failing)), "there was room"

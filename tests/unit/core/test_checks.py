"""The effect of failed checks and black holes on nodes, and their remediation within limits."""

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.policy.drift_kinds import HEALING_VERBS, IDLE_VERBS
from reconciler.model.state.states import NodeState
from tests.unit.core import test_drift
from tests.unit.core.world import job

REBOOT = desired.Healing("run-command", ("/opt/repair",), 60.0)
ECC = health_checks.CheckResult("gpu-ecc", "failed", "GPU 0 has uncorrectable ECC errors", (0,))


class Site(test_drift.Site):
    """A pool with checks and one remediation; nodes carry out their orders."""

    def __init__(self, healing: desired.Healing = REBOOT, **changes: object) -> None:
        super().__init__()
        said = {"remedies": {"gpu-ecc": healing}, "black_hole": None} | {
            "flapping": desired.FlappingPolicy(),
            "brake": desired.HealthBrake(share=1.0),
            **changes,
        }
        self.change_pool(**said)

    def finds(self, name: str, *results: health_checks.CheckResult) -> None:
        """Let a node's checks report this from now on."""
        node = self.node(name)
        node.inventory = msgspec.structs.replace(node.inventory, checks=results)

    def state(self, name: str) -> NodeState:  # type: ignore[override]
        return self.memory.nodes[name].state


def test_a_node_on_which_a_check_failed_takes_no_work_and_is_drift() -> None:
    site = Site(remedies={})
    site.finds("n0", ECC)
    site.round()
    assert site.state("n0") is NodeState.UNHEALTHY
    assert site.memory.nodes["n0"].message == f"check gpu-ecc failed: {ECC.message}"
    row = site.one("node-check-failed")
    assert (row.subject, row.action, row.found) == ("n0/gpu-ecc", "report", "failed")
    site.finds("n0")
    site.round()
    assert site.state("n0") is NodeState.READY
    assert site.found() == []


def test_an_agent_that_has_checked_nothing_yet_makes_no_node_well() -> None:
    """A restarted agent, as by its own remediation, is no change for the better and back."""
    site = Site(remedies={})
    site.finds("n0", ECC)
    site.round()
    turns = site.memory.nodes["n0"].flapping.at
    node = site.node("n0")
    node.inventory = msgspec.structs.replace(node.inventory, checks=(), unchecked=True)
    site.round()
    assert site.state("n0") is NodeState.UNHEALTHY
    assert site.found() == [("node-check-failed", "n0/gpu-ecc")]
    node.inventory = msgspec.structs.replace(node.inventory, checks=(ECC,), unchecked=False)
    site.round()
    assert site.memory.nodes["n0"].flapping.at == turns
    node.inventory = msgspec.structs.replace(node.inventory, checks=())
    site.round()
    assert site.state("n0") is NodeState.READY


def test_a_degraded_node_works_on_and_is_told_of() -> None:
    site = Site()
    site.finds("n0", health_checks.CheckResult("gpu-pcie", "degraded", "8 of 16 lanes"))
    site.round()
    assert site.state("n0") is NodeState.READY
    assert site.found() == [("node-check-degraded", "n0/gpu-pcie")]


def test_what_a_pool_no_longer_checks_counts_no_longer() -> None:
    site = Site()
    site.finds("n0", ECC)
    site.round()
    site.change_pool(checks=None)
    site.round()
    assert site.state("n0") is NodeState.READY


def test_a_full_disk_takes_a_node_out_of_a_pool_without_checks() -> None:
    """A task that finds no room there would be tried there again."""
    site = Site()
    site.change_pool(checks=None)
    full = health_checks.CheckResult("disk-space", "failed", "less than 0.1% of its space is free")
    site.finds("n0", ECC, full)
    site.round()
    assert site.state("n0") is NodeState.UNHEALTHY
    assert site.memory.nodes["n0"].message == f"check disk-space failed: {full.message}"
    assert site.found() == [("node-check-failed", "n0/disk-space")]
    site.finds("n0", ECC)
    site.round()
    assert site.state("n0") is NodeState.READY


def test_a_node_that_could_not_start_a_task_takes_none_even_without_checks() -> None:
    site = Site()
    site.change_pool(checks=None)
    fault = health_checks.CheckResult("task-start", "failed", "control group of the task")
    site.finds("n0", fault)
    site.round()
    assert site.state("n0") is NodeState.UNHEALTHY
    assert site.found() == [("node-check-failed", "n0/task-start")]
    site.finds("n0")
    site.round()
    assert site.state("n0") is NodeState.READY


def test_a_remedy_is_ordered_with_all_that_it_needs() -> None:
    site = Site()
    site.finds("n0", ECC)
    for _ in range(3):
        site.round()
    (remedy,) = site.memory.remedies
    assert (remedy.verb, remedy.node, remedy.command) == ("run-command", "n0", ("/opt/repair",))
    assert (remedy.devices, remedy.timeout_s, remedy.state) == ((0,), 60.0, "done")


@pytest.mark.parametrize("verb", HEALING_VERBS)
def test_only_an_agent_may_be_restarted_under_work(verb: str) -> None:
    site = Site(desired.Healing(verb))
    for number in range(4):
        site.commit(job(f"j{number}", cpu=5))
    site.settle()
    (attempt,) = site.attempts("j0")
    site.finds(attempt.node, ECC)
    for _ in range(5):
        site.round()
    assert len(site.memory.remedies) == (1 if verb == "restart-agent" else 0)
    if verb != "restart-agent":
        said = f"waits until nothing runs on {attempt.node}"
        assert site.one("node-check-failed").remedy == said
    site.commit(remove=("j0", "j1", "j2", "j3"))
    for _ in range(5):
        site.round()
    assert len(site.memory.remedies) == 1


def test_at_most_so_many_nodes_at_once() -> None:
    site = Site(remedies_at_once=2)
    for name in site.pool.nodes:
        site.node(name).deaf = True
        site.finds(name, ECC)
    for _ in range(200):
        site.round()
    assert sum(one.open for one in site.memory.remedies) == 2
    said = [row.remedy for row in site.memory.drift]
    assert said.count("waits for n0, n1: 2 at once") == len(site.pool.nodes) - 2
    for name in site.pool.nodes:
        site.node(name).deaf = False
    for _ in range(700):
        site.round()
    assert {one.node for one in site.memory.remedies} == set(site.pool.nodes)


@pytest.mark.parametrize("verb", IDLE_VERBS)
def test_nothing_starts_on_a_node_before_its_remedy_has_ended(verb: str) -> None:
    """A check may pass long before a script has ended, or a machine has gone down."""
    site = Site(desired.Healing(verb, ("/opt/repair",), 600.0))
    for name in site.pool.nodes[1:]:
        site.finds(name, health_checks.CheckResult("mounts", "failed", "/data is not mounted"))
    site.node("n0").deaf = True
    site.finds("n0", ECC)
    for _ in range(3):
        site.round()
    (remedy,) = site.memory.remedies
    assert remedy.open
    site.finds("n0")
    site.commit(job("j", cpu=5))
    for _ in range(5):
        site.round()
    assert site.state("n0") is NodeState.UNHEALTHY
    said = f"{verb} is in progress: nothing starts until it ends"
    assert site.memory.nodes["n0"].message == said
    assert site.attempts("j") == []
    site.node("n0").tells(remedy.id)
    for _ in range(3):
        site.round()
    assert site.state("n0") is NodeState.READY
    assert [one.node for one in site.attempts("j")] == ["n0"]


def test_a_node_whose_remedy_is_never_told_of_is_let_in_when_that_is_given_up() -> None:
    site = Site()
    site.node("n0").deaf = True
    site.finds("n0", ECC)
    for _ in range(3):
        site.round()
    site.finds("n0")
    for _ in range(600):
        site.round()
    assert [one.state for one in site.memory.remedies] == ["lost"]
    assert site.state("n0") is NodeState.READY


@pytest.mark.parametrize(("verb", "minutes"), [("run-command", 6), ("reboot", 35)])
def test_a_machine_that_boots_has_longer_to_tell_of_it(verb: str, minutes: int) -> None:
    site = Site(desired.Healing(verb, ("/opt/repair",), 60.0), remedies_at_once=1)
    for name in ("n0", "n1"):
        site.node(name).deaf = True
        site.finds(name, ECC)
    for _ in range(60 * minutes - 10):
        site.round()
    assert [(one.node, one.open) for one in site.memory.remedies] == [("n0", True)]
    for _ in range(100):
        site.round()
    assert [one.node for one in site.memory.remedies] == ["n0", "n1"]


def test_a_node_that_a_person_drained_is_left_to_that_person() -> None:
    drain = desired.NodeDrain("fan 3 is noisy", "ops@example.org")
    site = Site(drains={"n0": drain})
    site.finds("n0", ECC)
    for _ in range(100):
        site.round()
    assert site.memory.remedies == ()
    assert site.one("node-check-failed").remedy == "nothing is done while n0 is drained"
    site.finds("n0")
    site.round()
    assert site.state("n0") is NodeState.DRAINED
    assert site.memory.nodes["n0"].drain == drain


def _fail(site: Site, name: str, owner: str, *, code: int = 1, after_s: float = 1.0) -> str:
    """Run and end a job of an owner. Return its node."""
    site.commit(job(name, owner=owner, node_selector={}, cpu=1))
    site.settle()
    (attempt,) = site.attempts(name)
    site.now += after_s
    site.end(name, exit_code=code)
    return attempt.node


def _hole(**more: int) -> Site:
    """Return a site whose only usable node is n0."""
    site = Site(black_hole=desired.BlackHole(**{"out_s": 3600, **more}))
    drain = desired.NodeDrain("away")
    site.change_pool(drains=dict.fromkeys(("n1", "n2", "n3"), drain))
    site.structure.unix_users.update({f"u{n}": "nobody" for n in range(9)})
    site.round()
    return site


def test_a_black_hole_is_taken_out_for_a_while() -> None:
    site = _hole()
    for number in range(3):
        assert site.state("n0") is NodeState.READY
        assert _fail(site, f"j{number}", f"u{number}") == "n0"
    site.round()
    assert site.state("n0") is NodeState.UNHEALTHY
    assert "tasks of 3 owners failed here" in site.memory.nodes["n0"].message
    assert "Muster keeps it out until" in site.memory.nodes["n0"].message
    assert site.one("node-black-hole").subject == "n0"
    assert site.events("NodeBlackHole") == ["n0"]
    wake_at = site.outcomes[-1].wake_at
    assert wake_at is not None
    assert wake_at <= site.now + 3600
    site.now += 3600
    site.round()
    site.round()
    assert site.state("n0") is NodeState.READY
    assert site.found() == []


@pytest.mark.parametrize("why", ["one owner", "slowly", "a success between", "not asked for"])
def test_what_is_no_black_hole(why: str) -> None:
    site = _hole()
    if why == "not asked for":
        site.change_pool(black_hole=None)
    for number in range(4):
        if why == "a success between" and number == 2:
            _fail(site, "good", "u8", code=0)
        owner = "u0" if why == "one owner" else f"u{number}"
        _fail(site, f"j{number}", owner, after_s=60.0 if why == "slowly" else 1.0)
    site.round()
    assert site.state("n0") is NodeState.READY
    assert site.found() == []


def test_what_a_node_says_of_checks_and_remedies_can_be_printed_and_is_bounded() -> None:
    loud = "\x1b]0;owned\x07\nline two\u202e" + "x" * 5000
    site = Site()
    site.finds("n0", health_checks.CheckResult("gpu-ecc", "failed", loud, (0,)))
    site.node("n0").says = loud
    for _ in range(4):
        site.round()
    (remedy,) = site.memory.remedies
    (check,) = site.memory.nodes["n0"].inventory.checks
    told = [one.message for decided in site.outcomes for one in decided.events]
    told += [remedy.message, check.message, site.memory.nodes["n0"].message]
    assert any("owned" in one for one in told)
    assert all(one.isprintable() for one in told)
    assert max(map(len, told)) < 1200


MINUTE, HOUR = 60, 3600


def _flaps(site: Site, times: int, *, apart_s: int = 5 * MINUTE) -> None:
    """Let a check of n0 fail and pass again, so often."""
    for _ in range(times):
        site.finds("n0", ECC)
        site.round()
        assert site.state("n0") is NodeState.UNHEALTHY
        site.finds("n0")
        site.round()
        site.now += apart_s


def _out_s(site: Site) -> float:
    """Return how long n0 stays out from now on although its checks pass."""
    began = site.now
    while site.state("n0") is NodeState.UNHEALTHY:
        wake_at = site.outcomes[-1].wake_at
        assert wake_at is not None
        site.now = max(site.now + 1, wake_at)
        site.round()
        assert site.now - began < 100 * HOUR
    return site.now - began


def test_a_check_that_fails_now_and_then_lets_its_node_in_at_once() -> None:
    site = Site(remedies={})
    _flaps(site, 2)
    site.now += HOUR
    _flaps(site, 2)
    site.round()
    assert site.state("n0") is NodeState.READY
    assert site.events("NodeFlapping") == []


def test_checks_that_come_and_go_keep_their_node_out_twice_as_long_each_time() -> None:
    site = Site(remedies={})
    _flaps(site, 3, apart_s=0)
    assert site.state("n0") is NodeState.UNHEALTHY
    said = site.memory.nodes["n0"].message
    assert said.startswith(
        "its checks failed 3 times within 1h, last gpu-ecc: Muster keeps it out until "
    )
    assert site.one("node-flapping").subject == "n0"
    assert site.events("NodeFlapping") == ["n0"]
    assert 10 * MINUTE <= _out_s(site) < 11 * MINUTE
    assert site.found() == []
    outs = []
    for _ in range(8):
        _flaps(site, 3, apart_s=0)
        outs.append(round(_out_s(site) / MINUTE))
    assert outs == [20, 40, 80, 160, 320, 480, 480, 480]


def test_one_that_fails_while_it_is_kept_out_begins_anew_and_says_what_is_to_come() -> None:
    site = Site(remedies={})
    _flaps(site, 3, apart_s=9 * MINUTE)
    site.finds("n0", ECC)
    site.round()
    said = site.memory.nodes["n0"].message
    assert said == (
        f"check gpu-ecc failed: {ECC.message}; it comes and goes: once well it stays out for 20m"
    )
    site.now += 3 * HOUR  # failing is not being well
    site.round()
    site.finds("n0")
    site.round()
    assert 20 * MINUTE <= _out_s(site) < 21 * MINUTE
    assert site.events("NodeFlapping") == ["n0"]


def test_all_turns_within_the_while_are_counted_and_a_bounded_number_is_kept() -> None:
    site = Site(remedies={})
    _flaps(site, 5, apart_s=1)
    assert "failed 5 times within 1h" in site.memory.nodes["n0"].message
    _flaps(site, 30, apart_s=1)
    assert len(site.memory.nodes["n0"].flapping.at) == 16


def test_an_hour_in_service_is_a_new_beginning() -> None:
    site = Site(remedies={})
    for _ in range(3):
        _flaps(site, 3, apart_s=0)
        assert 10 * MINUTE <= _out_s(site) < 11 * MINUTE
        site.now += HOUR + MINUTE
        site.round()


def test_after_a_persons_drain_a_flapping_node_starts_clean() -> None:
    site = Site(remedies={})
    _flaps(site, 3, apart_s=0)
    site.change_pool(drains={"n0": desired.NodeDrain("a new cable")})
    site.round()
    assert site.state("n0") is NodeState.DRAINED
    site.change_pool(drains={})
    site.round()
    assert site.state("n0") is NodeState.READY
    _flaps(site, 2)
    assert site.state("n0") is NodeState.READY


@pytest.mark.parametrize("what", [{"flapping": desired.FlappingPolicy(out_s=0)}, {"checks": None}])
def test_a_pool_may_let_its_nodes_in_at_once(what: dict[str, object]) -> None:
    site = Site(remedies={})
    _flaps(site, 3, apart_s=0)
    site.change_pool(**what)
    site.round()
    assert site.state("n0") is NodeState.READY


def test_a_pool_that_says_less_lets_its_nodes_in_sooner() -> None:
    site = Site(remedies={})
    _flaps(site, 3, apart_s=0)
    site.change_pool(flapping=desired.FlappingPolicy(out_max_s=30))
    site.round()
    assert 20 <= _out_s(site) <= 40


def test_an_unhealthy_node_says_that_it_is_drained_too() -> None:
    site = Site(remedies={}, drains={"n0": desired.NodeDrain("fan 3", "ops@example.org")})
    site.finds("n0", ECC)
    site.round()
    assert site.memory.nodes["n0"].message == (
        f"check gpu-ecc failed: {ECC.message}; drained: fan 3 (ops@example.org)"
    )

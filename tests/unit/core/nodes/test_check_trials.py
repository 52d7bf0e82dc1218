"""Changed checks go to one node of a pool first, and to the others once they passed there."""

from typing import Any

import msgspec
import pytest

from reconciler.core import observed_state
from reconciler.engines import agents_engine
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.observed.health_checks import CheckCommand, CheckPlan
from reconciler.model.state import records
from reconciler.model.state.states import NodeState
from tests.unit.core import test_checks, test_drift
from tests.unit.core.world import job

FAILED = health_checks.CheckResult("nccl", "failed", "no such file")


def plan(*words: str, **changes: Any) -> CheckPlan:
    commands = (CheckCommand("nccl", words),) if words else ()
    return CheckPlan(commands=commands, **changes)


ALL = ("n0", "n1", "n2", "n3")


class Site(test_checks.Site):
    """Four nodes whose agents say by which plan they have checked."""

    def __init__(
        self, checks: CheckPlan | None = None, *, tells: tuple[str, ...] = ALL, nodes: int = 4
    ) -> None:
        test_drift.Site.__init__(self, nodes=nodes)
        self.tells = tells
        #: Nodes that go silent as soon as they are given the plan.
        self.wedges: CheckPlan | None = None
        #: Plans that fail on each node that makes them.
        self.bad: tuple[CheckPlan, ...] = ()
        self.change_pool(checks=checks, black_hole=None, remedies={})
        self.look()
        self.outcomes.clear()

    def given(self, name: str) -> CheckPlan | None:
        """Return the plan that a node gets with its assignments."""
        return agents_engine.plan_of(name, self.structure, self.memory)

    def look(self, rounds: int = 3) -> None:
        """Let nodes make their checks, and report."""
        for _ in range(rounds):
            for name in self.pool.nodes:
                given, node = self.given(name), self.node(name)
                if node.silent or given is None:
                    continue
                plain = msgspec.structs.replace(given, trial=False)
                if plain == self.wedges:
                    node.silent = True
                    continue
                node.inventory = msgspec.structs.replace(
                    node.inventory,
                    checks=(FAILED,) if plain in self.bad else (),
                    checked=health_checks.digest(given) if name in self.tells else None,
                )
            self.round()

    def runs(self, want: CheckPlan) -> list[str]:
        found = {name: self.given(name) for name in self.pool.nodes}
        return [
            name
            for name, one in found.items()
            if one is not None and msgspec.structs.replace(one, trial=False) == want
        ]

    def restart(self) -> None:
        """Let another leader go on from the store."""
        loaded = self.memory.observed((), {})
        nodes = {
            name: msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=records.NodeRecord)
            for name, one in loaded.nodes.items()
        }
        self.memory = observed_state.ObservedState(
            records.Observed(nodes=nodes, drift=loaded.drift), leader_since=self.now
        )
        self.round()

    def silence(self, *names: str) -> None:
        """Let nodes be silent, and let that be noticed."""
        for name in names:
            self.node(name).silent = True
        self.now += 2 * self.structure.settings.node_silence_s
        self.round()

    def drain(self, *names: str) -> None:
        self.change_pool(drains={name: desired.NodeDrain("fan") for name in names})
        self.look()


OLD, NEW = plan("/opt/old"), plan("/opt/new")


def test_a_changed_command_is_tried_on_one_node_and_then_goes_to_all() -> None:
    site = Site(OLD)
    assert site.runs(OLD) == [*ALL]
    site.change_pool(checks=NEW)
    site.round()
    assert (site.runs(NEW), site.runs(OLD)) == (["n0"], ["n1", "n2", "n3"])
    assert site.events("CheckTrial") == ["n0"]
    given = site.given("n0")
    assert given is not None
    assert given.trial
    site.look()
    assert site.runs(NEW) == [*ALL]
    assert site.events("CheckTrialPassed") == ["n0"]
    given = site.given("n0")
    assert given == NEW


def test_what_fails_there_goes_no_further_is_told_and_has_no_remedy() -> None:
    site = Site(OLD)
    site.bad = (NEW,)
    site.change_pool(checks=NEW, remedies={"nccl": test_checks.REBOOT})
    site.look(6)
    assert (site.runs(NEW), site.runs(OLD)) == (["n0"], ["n1", "n2", "n3"])
    assert site.found() == [("node-check-trial", "n0/nccl")]
    assert [site.state(name) for name in ALL] == [NodeState.UNHEALTHY, *[NodeState.READY] * 3]
    assert site.memory.remedies == ()
    site.restart()
    site.look()
    assert site.runs(OLD) == ["n1", "n2", "n3"]
    # taking it back is no trial: it is what the others have
    site.change_pool(checks=OLD)
    site.look(1)
    site.look(1)
    assert (site.runs(OLD), site.found()) == ([*ALL], [])


def test_a_third_plan_is_tried_anew_and_ends_the_trial_before() -> None:
    site, third = Site(OLD), plan("/opt/third")
    site.bad = (NEW,)
    site.change_pool(checks=NEW)
    site.look()
    site.change_pool(checks=third)
    site.round()
    assert (site.runs(third), site.runs(OLD)) == (["n0"], ["n1", "n2", "n3"])
    site.look()
    assert site.runs(third) == [*ALL]


def test_a_node_that_tries_and_is_taken_out_is_followed_by_another() -> None:
    site = Site(OLD)
    site.bad = (NEW,)
    site.change_pool(checks=NEW)
    site.look()
    site.change_pool(drains={"n0": desired.NodeDrain("fan")})
    site.look()
    assert "n1" in site.runs(NEW)
    assert site.runs(OLD) == ["n2", "n3"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OLD, plan()),
        (OLD, plan("/opt/old", interval_s=5.0)),
        (plan(mounts=("/a", "/b")), plan(mounts=("/a",))),
        (OLD, None),
    ],
)
def test_what_asks_for_no_more_goes_to_all_at_once(
    before: CheckPlan, after: CheckPlan | None
) -> None:
    site = Site(before)
    site.change_pool(checks=after)
    site.round()
    assert site.runs(after or health_checks.FULL_DISK) == [*ALL]


def test_first_checks_of_a_pool_are_tried_and_a_mount_too() -> None:
    site = Site(None)
    for want in (plan(), plan(mounts=("/data",))):
        site.change_pool(checks=want)
        site.round()
        assert site.runs(want) == ["n0"]
        site.look()
        assert site.runs(want) == [*ALL]


def test_agents_that_do_not_say_what_they_have_checked_get_all_at_once() -> None:
    site = Site(OLD, tells=())
    site.change_pool(checks=NEW)
    site.round()
    assert site.runs(NEW) == [*ALL]


def test_another_check_that_fails_there_ends_no_trial_and_has_its_remedy() -> None:
    site = Site(OLD)
    site.change_pool(checks=NEW, remedies={"gpu-ecc": test_checks.REBOOT})
    site.round()
    node, want = site.node("n0"), health_checks.digest(NEW)
    node.inventory = msgspec.structs.replace(
        node.inventory, checks=(test_checks.ECC,), checked=want
    )
    site.round()
    site.round()
    assert site.runs(NEW) == [*ALL]
    assert ("node-check-failed", "n0/gpu-ecc") in site.found()


def test_a_report_from_before_the_change_proves_nothing() -> None:
    site = Site(OLD)
    site.change_pool(checks=NEW)
    for _ in range(3):
        site.round()  # nobody has looked since
    assert site.runs(NEW) == ["n0"]


def test_a_pool_of_one_has_nobody_to_spare() -> None:
    site = Site(OLD)
    site.change_pool(nodes=("n0",))
    site.look()
    site.change_pool(checks=NEW)
    site.round()
    assert "n0" in site.runs(NEW)
    given = site.given("n0")
    assert given is not None
    assert not given.trial


def test_records_of_earlier_versions_are_taken_as_they_are() -> None:
    site = Site(OLD)
    site.memory.nodes.update(
        {name: msgspec.structs.replace(one, given=None) for name, one in site.memory.nodes.items()}
    )
    site.restart()
    assert site.runs(OLD) == [*ALL]
    assert site.events("CheckTrial") == []


def test_a_check_that_silences_its_node_takes_out_no_second_one() -> None:
    site = Site(OLD)
    site.wedges = NEW
    site.change_pool(checks=NEW)
    for _ in range(5):
        site.look(2)
        site.now += 2 * site.structure.settings.node_silence_s
        site.round()
    assert [name for name in ALL if site.state(name) is NodeState.UNKNOWN] == ["n0"]
    assert (site.runs(NEW), site.events("CheckTrial")) == (["n0"], ["n0"])
    (row,) = [one for one in site.memory.drift if one.kind == "node-check-trial"]
    assert (row.subject, row.message) == (
        "n0",
        "silent while it tries nccl: the others keep theirs",
    )
    site.drain("n0")
    assert (site.runs(OLD), site.events("CheckTrial")) == (["n2", "n3"], ["n0", "n1"])


def test_a_node_that_fails_a_trial_and_goes_silent_passes_it_to_nobody() -> None:
    site = Site(OLD)
    site.bad = (NEW,)
    site.change_pool(checks=NEW)
    site.look()
    site.silence("n0")
    site.look()
    assert (site.runs(NEW), site.runs(OLD)) == (["n0"], ["n1", "n2", "n3"])
    site.change_pool(checks=OLD)  # what the others have needs nobody to try it
    site.look(1)
    assert site.runs(OLD) == [*ALL]


def test_a_node_that_leaves_the_pool_passes_the_trial_on() -> None:
    site = Site(OLD)
    site.change_pool(checks=NEW)
    site.round()
    site.change_pool(nodes=("n1", "n2", "n3"))
    site.look(1)
    assert site.events("CheckTrial") == ["n0", "n1"]


@pytest.mark.parametrize("nodes", [2, 3])
def test_the_last_node_with_the_former_checks_tries_none_that_failed(nodes: int) -> None:
    site = Site(OLD, nodes=nodes)
    site.bad = (NEW,)
    site.change_pool(checks=NEW, remedies={"nccl": test_checks.REBOOT})
    others = list(ALL[: nodes - 1])
    for number in range(nodes):
        site.look()
        site.drain(*others[: number + 1])
    last = ALL[nodes - 1]
    assert (site.runs(OLD), site.state(last)) == ([last], NodeState.READY)
    assert ("node-check-trial", "n0/nccl") in site.found()
    assert (site.memory.remedies, site.events("CheckTrialPassed")) == ((), [])
    # the next plan is tried where the last one failed
    third = plan("/opt/third")
    site.change_pool(checks=third)
    site.look()
    assert (site.runs(third), site.events("CheckTrialPassed")) == (list(ALL[:nodes]), ["n0"])


def test_a_node_that_joins_where_all_others_try_gets_no_check_that_fails() -> None:
    site = Site(OLD, nodes=3)
    site.bad = (NEW,)
    site.change_pool(nodes=("n0", "n1"), checks=NEW)
    site.look()
    site.change_pool(nodes=("n0", "n2"))
    site.memory.nodes["n2"] = msgspec.structs.replace(site.memory.nodes["n2"], given=None)
    site.restart()
    site.look()
    assert (site.runs(NEW), site.runs(health_checks.FULL_DISK)) == (["n0"], ["n2"])


def test_an_idle_node_tries_before_a_busy_one_even_if_it_is_not_well() -> None:
    """The fix of a gate that takes out every idle node has to reach one of these."""
    site = Site(OLD)
    site.commit(job("j", cpu=8))
    site.settle()
    (busy,) = {one.node for one in site.memory.attempts.values()}
    site.bad = (OLD,)
    site.look()
    idle = [name for name in ALL if name != busy]
    assert all(site.state(name) is NodeState.UNHEALTHY for name in idle)
    site.node(busy).inventory = msgspec.structs.replace(site.node(busy).inventory, checks=())
    site.bad = ()
    site.round()
    site.change_pool(checks=NEW)
    site.round()
    assert site.events("CheckTrial") == idle[:1]


def test_one_silent_node_with_a_newer_agent_holds_up_no_pool_of_older_ones() -> None:
    site = Site(OLD, tells=("n0",))
    site.silence("n0")
    site.change_pool(checks=NEW)
    site.look()
    assert set(site.runs(NEW)) >= {"n1", "n2", "n3"}
    assert site.events("CheckTrial") == []


def test_nodes_that_are_all_silent_are_not_taken_for_older_ones() -> None:
    site = Site(OLD)
    site.silence(*ALL)
    site.change_pool(checks=NEW)
    site.round()
    assert site.runs(OLD) == [*ALL]


def test_a_silent_trial_is_none_for_all_though_the_others_have_older_agents() -> None:
    site = Site(OLD, tells=("n0",))
    site.change_pool(checks=NEW)
    site.round()
    site.silence("n0")
    site.look()
    assert site.runs(OLD) == ["n1", "n2", "n3"]

"""Nodes are made when work waits for them, leave when idle, and are made once each."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core import cycle_context
from reconciler.core.pools import provisioning
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.state import instance_records, outcome, records
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.state.states import AttemptState, NodeState
from reconciler.model.values.resources import Resources
from tests.unit.core import world
from tests.unit.core.world import job

ASKED = desired.Provisioning(minimum=0, maximum=4, script="cloud", idle_s=600, cooldown_s=120)


class Cloud(world.World):
    """A pool ``c`` whose machines are made by a script that a test plays."""

    def __init__(self, asked: desired.Provisioning = ASKED, **more: Any) -> None:
        super().__init__(nodes=0, **more)
        #: What the script was told and has not answered yet, and what it made, by id.
        self.told: dict[str, instance_records.Order] = {}
        self.machines: dict[str, str] = {}
        #: Requests that it was given, by id; nodes and requests of all that it made, in order.
        self.requests: dict[str, str] = {}
        self.created: list[str] = []
        self.asked: list[str] = []
        #: Verbs that fail, how many of the next machines never come up, whether ``list`` says
        #: under which requests machines were made.
        self.fails: set[str] = set()
        self.never_up = 0
        self.tells_requests = True
        #: What machines have instead of what the pool declares.
        self.joins_as: desired.Pool | None = None
        self.boot = self.most = 0
        self.scale(asked)

    def scale(self, asked: desired.Provisioning, **changes: Any) -> None:
        names = tuple(f"c-{number}" for number in range(asked.maximum))
        pool = desired.Pool(
            name="c",
            nodes=names,
            node_resources=Resources(4000, 64 * world.GI, 0),
            provisioner="exec" if asked.script else "virtual",
            runs_unmapped=True,
            provisioning=asked,
        )
        pool = msgspec.structs.replace(pool, **changes)
        self.change_structure(pools={"c": pool})
        self.scaled = pool
        self.most = max(self.most, asked.maximum)

    def list_due(self) -> int:
        """Let time pass until the script is to list again. Return the number of that order."""
        while not self.provision.list_open:
            self.now += 30
            self.hear()
            self.cycle()
        return self.provision.list_tries

    @property
    def provision(self) -> instance_records.Provision:
        return self.memory.provisions["c"]

    def states(self) -> dict[str, str]:
        """Return the states of the instances by slot."""
        return {name: one.state.value for name, one in sorted(self.provision.instances.items())}

    def start(self, node: str) -> None:
        """Boot the machine of this name, so that its agent reports."""
        self.boot += 1
        machine = self.nodes[node] = world.VirtualNode(node, self.joins_as or self.scaled)
        machine.boot_id = f"boot-{node}-{self.boot}"
        machine.incarnation = f"agent-{node}-{self.boot}"

    def answer(self) -> bool:
        """Carry out all orders and answer. Return True if there were any."""
        orders = {order.key: order for order in instance_records.orders(self.provision)}
        for order in orders.values():
            self.memory.add_provisioned(self.run(order))
        return bool(orders)

    def run(self, order: instance_records.Order) -> instance_records.OrderResult:
        result = instance_records.OrderResult(order.verb, order.pool, order.request, order.number)
        if order.verb in self.fails:
            return msgspec.structs.replace(result, failure="the cloud says no")
        if order.verb == "create":
            identity = f"i-{order.request}"
            if identity not in self.machines:
                self.created.append(order.node)
                self.asked.append(order.request)
                self.machines[identity] = order.node
                self.requests[identity] = order.request
                if len(self.created) > self.never_up:
                    self.start(order.node)
            return msgspec.structs.replace(result, id=identity)
        if order.verb == "destroy":
            node = self.machines.pop(order.id or f"i-{order.request}", None)
            if node is not None and node not in self.machines.values():
                self.nodes.pop(node, None)
            return result
        requests = self.requests if self.tells_requests else {}
        listed = tuple(
            instance_records.Listed(one, node, requests.get(one, ""))
            for one, node in self.machines.items()
        )
        return msgspec.structs.replace(result, instances=listed)

    def go(self, seconds: float = 0.0, *, step: float = 30.0) -> None:
        """Let time pass in steps, with reports and answers, until everything settles."""
        ends_at = self.now + seconds
        while True:
            for _ in range(12):
                self.now += 0.01
                self.hear()
                result = self.cycle()
                self.check(result)
                worked = self.answer() if self.memory.provisions else False
                due = result.wake_at is not None and result.wake_at <= self.now
                if not (result.actions or result.jobs or result.nodes or worked or due):
                    break
            if self.now >= ends_at:
                return
            self.now = min(ends_at, self.now + step)

    def check(self, result: outcome.Outcome) -> None:
        """Check what holds at any time."""
        provision = self.memory.provisions.get("c")
        if provision is None:
            return
        assert len(self.machines) <= self.most
        assert len(set(self.asked)) == len(self.asked), "a request is used twice"
        for one in provision.instances.values():
            if one.state is InstanceState.DESTROYING:
                live = [
                    a
                    for a in self.memory.attempts.values()
                    if a.node == one.node and a.state is not AttemptState.ENDED
                ]
                assert not live, "a machine is destroyed under its work"


def cores(name: str, cpu: int = 4, **more: Any) -> desired.Job:
    """Return a job of so many CPUs; a node has four."""
    return job(name, cpu=cpu, **more)


# --- growing --------------------------------------------------------------------------------


def test_a_job_gets_the_node_that_it_waits_for() -> None:
    cloud = Cloud()
    cloud.go()
    assert cloud.states() == {}
    cloud.commit(cores("a"))
    cloud.go(60)
    assert cloud.created == ["c-0"]
    assert cloud.states() == {"c-0": "Up"}
    assert cloud.state("a").value == "Running"


def test_what_waits_is_told_of_the_node_that_is_made_for_it() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.cycle()
    reasons = cloud.memory.reasons[cloud.memory.jobs["a"].reason_key]
    assert [one.code.value for one in reasons] == ["InsufficientResources"]
    assert reasons[0].unblocks == "wait for a node of pool c, which is being created"


@pytest.mark.parametrize(
    ("jobs", "nodes"),
    [
        ([("a", 4), ("b", 4), ("c", 4)], 3),  # one each
        ([("a", 2), ("b", 2), ("c", 1)], 2),  # two share a node
        ([(f"j{n}", 1) for n in range(40)], 4),  # never more than the most
        ([("a", 5)], 0),  # no node would be large enough
    ],
)
def test_as_many_nodes_as_the_work_needs(jobs: list[tuple[str, int]], nodes: int) -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(*(cores(name, cpu) for name, cpu in jobs))
    cloud.go(60)
    assert len(cloud.created) == nodes


def test_a_gang_gets_all_of_its_nodes() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("gang", count=3))
    cloud.go(60)
    assert len(cloud.created) == 3
    assert cloud.state("gang").value == "Running"


def test_a_gang_that_is_too_large_for_the_pool_makes_no_node() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("gang", count=5))
    cloud.go(60)
    assert cloud.created == []
    assert cloud.reason("gang") == "InsufficientResources" or cloud.reason("gang") == "NeverFits"


def test_nothing_is_made_for_what_could_not_start_for_another_reason() -> None:
    small = desired.Queue(name="small", limit=desired.QuotaAmounts(cpu_milli=1000))
    cloud = Cloud(queues=(desired.Queue(name="default"), small))
    cloud.go()
    cloud.commit(
        cores("held", suspend=True),
        cores("limited", queue="small"),
        cores("later", depends_on=(desired.Dependency("held"),)),
        cores("elsewhere", pools=("other",)),
    )
    cloud.go(60)
    assert cloud.created == []


def test_work_waits_out_the_delay() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, delay_s=100))
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(90)
    assert cloud.created == []
    cloud.go(60)
    assert cloud.created == ["c-0"]


def test_the_least_is_there_without_work() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, minimum=2))
    cloud.go(3000)
    assert cloud.states() == {"c-0": "Up", "c-1": "Up"}
    assert len(cloud.created) == 2


def test_a_suspended_cluster_neither_makes_nor_destroys() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(60)
    cloud.change_structure(settings=desired.ClusterSettings(suspend=True))
    cloud.end("a")
    cloud.commit(cores("b"), cores("c"))
    cloud.go(3000)
    assert cloud.created == ["c-0"]
    assert cloud.states() == {"c-0": "Up"}


# --- shrinking ------------------------------------------------------------------------------


def test_an_idle_node_is_drained_first_and_leaves_late() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(60)
    cloud.end("a")
    cloud.go(500)
    assert cloud.states() == {"c-0": "Up"}
    cloud.go(300)
    assert cloud.states() == {}
    assert cloud.machines == {}
    kinds = [e.kind for r in cloud.outcomes for e in r.events if e.node == "c-0"]
    assert kinds.index("NodeDrained") < kinds.index("InstanceDestroying")
    cloud.go(300)
    assert cloud.memory.nodes["c-0"].state is NodeState.GONE
    assert cloud.memory.drift == ()


def test_a_node_with_work_stays_and_a_larger_minimum_keeps_idle_ones() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"), cores("b"))
    cloud.go(60)
    cloud.end("b")
    cloud.go(3000)
    assert list(cloud.states().values()) == ["Up"]
    assert cloud.state("a").value == "Running"
    cloud.scale(msgspec.structs.replace(ASKED, minimum=1))
    cloud.end("a")
    cloud.go(3000)
    assert list(cloud.states().values()) == ["Up"]


def test_nodes_above_a_lowered_maximum_leave_when_their_work_has_ended() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(*(cores(f"j{n}") for n in range(3)))
    cloud.go(60)
    cloud.scale(msgspec.structs.replace(ASKED, maximum=1))
    cloud.go(600)
    assert len(cloud.machines) == 3  # nobody's work is ended
    for number in range(3):
        cloud.end(f"j{number}")
    cloud.go(60)
    assert len(cloud.machines) == 1


def test_a_pool_that_leaves_git_leaves_nothing_behind() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(60)
    cloud.change_structure(pools={})
    cloud.go(60)
    assert len(cloud.machines) == 1
    cloud.end("a")
    cloud.go(60)
    assert cloud.machines == {}
    assert cloud.memory.provisions == {}


def test_somebodys_drain_keeps_an_idle_node() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(60)
    cloud.scale(ASKED, drains={"c-0": desired.NodeDrain("look at its fan", "ops")})
    cloud.end("a")
    cloud.go(3000)
    assert cloud.states() == {"c-0": "Up"}


def test_a_node_is_replaced_once_its_work_has_ended() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, minimum=1))
    cloud.go(60)
    cloud.commit(cores("a"))
    cloud.go(60)
    replaced: list[str] = []
    apply = provisioning.apply

    def and_replace(
        context: cycle_context.CycleContext, structure: desired.Structure
    ) -> provisioning.PoolStates:
        states, drains = apply(context, structure), context.override_drains
        if not replaced:
            replaced.append(provisioning.replace(states, "c-0", "its GPU fails", drains))
            replaced.append(provisioning.replace(states, "n9", "none", drains))
        return states

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provisioning, "apply", and_replace)
        cloud.go()
    assert replaced == ["", "n9 is in no pool whose nodes are made by a provisioner"]
    assert cloud.states()["c-0"] == "Draining"
    cloud.go(120)
    assert cloud.state("a").value == "Running"
    cloud.end("a")
    cloud.go(120)
    assert list(cloud.machines) == [f"i-{cloud.asked[1]}"]


HEALED = {
    "checks": health_checks.CheckPlan(interval_s=60.0, gpus=0),
    "remedies": {"clock": desired.Healing("replace")},
    "drift": {"node-check-failed": "remediate"},
}
UNHEALTHY = health_checks.CheckResult("clock", "failed", "it is an hour off")


class Unhealthy(world.VirtualNode):
    """A node with a failed check."""

    @classmethod
    def of(cls, node: world.VirtualNode) -> "Unhealthy":
        """Make this machine unhealthy from now on."""
        made = cls(node.name, node.pool)
        vars(made).update(vars(node))
        return made

    def report(self, now: float) -> records.NodeReport:
        said = super().report(now)
        assert said.inventory is not None
        inventory = msgspec.structs.replace(said.inventory, checks=(UNHEALTHY,))
        return msgspec.structs.replace(said, inventory=inventory)


def test_the_node_of_a_failed_check_is_replaced_one_at_a_time() -> None:
    cloud = Cloud()
    cloud.scale(msgspec.structs.replace(ASKED, minimum=2), **HEALED)
    cloud.go(60)
    first = dict(cloud.machines)
    for name, node in cloud.nodes.items():
        cloud.nodes[name] = Unhealthy.of(node)
    for _ in range(400):
        cloud.go(30)
        leaving = [one for one in cloud.states().values() if one in ("Draining", "Destroying")]
        assert len(leaving) <= 1
        if not first.keys() & cloud.machines.keys():
            break
    cloud.go(60)
    assert list(cloud.states().values()) == ["Up", "Up"]
    assert len(cloud.machines) == 2
    assert not first.keys() & cloud.machines.keys()
    assert [(one.verb, one.node, one.state) for one in cloud.memory.remedies] == [
        ("replace", "c-0", "done"),
        ("replace", "c-1", "done"),
    ]
    up = cloud.provision.instances
    assert {cloud.memory.nodes[name].state for name in up} == {NodeState.READY}


def test_a_machine_that_is_no_better_is_replaced_again() -> None:
    cloud = Cloud()
    cloud.scale(msgspec.structs.replace(ASKED, minimum=1, maximum=1), **HEALED)
    cloud.go(60)
    replaced = 0
    for _ in range(3):
        (before,) = cloud.machines
        cloud.nodes["c-0"] = Unhealthy.of(cloud.nodes["c-0"])
        for _ in range(120):
            cloud.go(60)
            if before not in cloud.machines and cloud.states() == {"c-0": "Up"}:
                replaced += 1
                break
    assert replaced == 3
    assert [one.state for one in cloud.memory.remedies] == ["done"] * 3


# --- what goes wrong ------------------------------------------------------------------------


def test_a_failing_create_is_tried_again_under_its_request_and_given_up_in_the_end() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, retries=2))
    cloud.go()
    cloud.fails = {"create"}
    cloud.commit(cores("a"))
    cloud.go(3 * 3600)
    failed = [e for r in cloud.outcomes for e in r.events if e.kind == "ProvisionerFailed"]
    assert 6 <= len(failed) <= 40
    assert "PoolPaused" in {e.kind for r in cloud.outcomes for e in r.events}
    assert "pool-not-growing" in {d.kind for d in cloud.memory.drift}
    reasons = cloud.memory.reasons[cloud.memory.jobs["a"].reason_key]
    assert "the cloud says no" in reasons[0].unblocks
    cloud.fails = set()
    cloud.go(3600)
    assert cloud.state("a").value == "Running"
    assert cloud.memory.drift == ()


def _pauses(cloud: Cloud) -> list[str]:
    return [e.message for r in cloud.outcomes for e in r.events if e.kind == "PoolPaused"]


def test_a_machine_without_what_the_pool_declares_is_not_made_again() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, maximum=4))
    cloud.go()
    lesser = msgspec.structs.replace(cloud.scaled, node_resources=Resources(1000, world.GI, 0))
    cloud.joins_as = lesser
    cloud.commit(*(cores(name) for name in ("a", "b", "c", "d")))
    cloud.cycle()
    cloud.hear()
    cloud.go(1500)
    at_first = len(cloud.created)
    assert at_first <= 4, "those that were asked for before the first one joined"
    assert "joined without what the pool declares: 1 CPU, 4 declared" in _pauses(cloud)[0]
    assert "pool-not-growing" in {d.kind for d in cloud.memory.drift}
    reasons = cloud.memory.reasons[cloud.memory.jobs["a"].reason_key]
    assert "joined without" in reasons[0].unblocks
    cloud.go(24 * 3600, step=120)
    assert len(cloud.created) - at_first <= 5, "one after each pause: 0.5, 1, 2, 4, 8 hours"
    assert not cloud.machines, "each left after idleTime"

    cloud.joins_as = None
    cloud.scale(msgspec.structs.replace(ASKED, settings={"type": "larger"}))
    cloud.go(600)
    assert [cloud.state(name).value for name in "abcd"] == ["Running"] * 4
    assert cloud.memory.drift == ()


def test_a_machine_that_gets_what_it_lacks_ends_the_pause() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, maximum=1))
    cloud.go()
    lesser = msgspec.structs.replace(cloud.scaled, node_resources=Resources(1000, world.GI, 0))
    cloud.joins_as = lesser
    cloud.commit(cores("a"))
    cloud.go(120)
    assert cloud.provision.failures
    cloud.nodes["c-0"].pool = cloud.scaled
    cloud.go(120)
    assert not cloud.provision.failures
    assert cloud.state("a").value == "Running"
    assert len(cloud.created) == 1


def test_a_changed_declaration_ends_the_pause() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, maximum=1))
    cloud.go()
    cloud.joins_as = msgspec.structs.replace(
        cloud.scaled, node_resources=Resources(1000, world.GI, 0)
    )
    cloud.commit(cores("a", 1))
    cloud.go(120)
    assert cloud.provision.failures
    assert cloud.state("a").value == "Pending"
    cloud.scale(cloud.scaled.provisioning or ASKED, node_resources=Resources(1000, world.GI, 0))
    cloud.go(120)
    assert not cloud.provision.failures
    assert cloud.state("a").value == "Running"


def test_an_hour_has_so_many_creations() -> None:
    cloud = Cloud(
        msgspec.structs.replace(ASKED, creates_per_hour=3, idle_s=60, cooldown_s=0, maximum=2)
    )
    cloud.go()
    began = cloud.now
    for number in range(6):  # each comes when the node of the last one has gone
        cloud.commit(cores(f"j{number}"))
        cloud.go(60)
        if cloud.state(f"j{number}").value == "Running":
            cloud.end(f"j{number}")
        cloud.go(240)
    assert cloud.now - began < 3600
    assert len(cloud.created) == 3
    assert len(_pauses(cloud)) == 1
    assert "as many as an hour may have" in _pauses(cloud)[0]
    assert "pool-not-growing" in {d.kind for d in cloud.memory.drift}
    reasons = cloud.memory.reasons[cloud.memory.jobs["j3"].reason_key]
    assert "provision.createsPerHour" in reasons[0].unblocks
    cloud.go(began + 3700 - cloud.now)
    assert len(cloud.created) == 5
    assert {cloud.state(f"j{number}").value for number in (3, 4)} == {"Running"}


def test_after_a_failure_one_node_is_made_at_a_time() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, create_timeout_s=60, retries=10**6))
    cloud.go()
    cloud.never_up = 10**6
    cloud.commit(*(cores(name) for name in "abcd"))
    creating = []
    for _ in range(200):
        cloud.go(20)
        creating.append(sum(state == "Creating" for state in cloud.states().values()))
    assert max(creating[:3]) == 4
    assert max(creating[6:]) == 1
    cloud.never_up = 0
    cloud.go(1200)
    assert [cloud.state(name).value for name in "abcd"] == ["Running"] * 4


def test_a_node_that_never_comes_up_is_destroyed_and_made_anew() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, create_timeout_s=300))
    cloud.go()
    cloud.never_up = 1
    cloud.commit(cores("a"))
    cloud.go(600)
    assert cloud.created == ["c-0", "c-0"]
    assert list(cloud.machines) == [f"i-{cloud.asked[1]}"]
    assert cloud.state("a").value == "Running"


def test_what_can_not_be_destroyed_is_told_and_tried_for_ever() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(60)
    cloud.end("a")
    cloud.fails = {"destroy"}
    cloud.go(6 * 3600, step=120)
    assert cloud.states() == {"c-0": "Destroying"}
    assert [d.kind for d in cloud.memory.drift] == ["instance-left-over"]
    cloud.fails = set()
    cloud.go(900)
    assert cloud.states() == {}


def test_an_instance_that_the_script_no_longer_lists_is_gone() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(60)
    cloud.machines.clear()
    cloud.nodes.pop("c-0")
    cloud.go(1200)
    assert cloud.state("a").value == "Running"  # on another one
    assert cloud.created[:2] in (["c-0", "c-0"], ["c-0", "c-1"])


@pytest.mark.parametrize("policy", ["report", "destroy"])
def test_what_nobody_asked_for_is_drift(policy: str) -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, orphans=policy))
    cloud.go(400)
    cloud.machines["i-stray"] = ""
    cloud.go(400)
    assert not cloud.memory.drift  # seen once: it may be on its way
    cloud.go(290)
    if policy == "report":
        assert [d.key for d in cloud.memory.drift] == ["instance-orphaned:c/i-stray"]
    cloud.go(60)
    assert ("i-stray" in cloud.machines) is (policy == "report")


def test_a_machine_that_was_made_twice_under_one_request_is_an_orphan() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, orphans="destroy"))
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(60)
    cloud.machines["i-twin"] = "c-0"
    cloud.go(1000)
    # which of both the work is on is not for sure, so that it may end first
    assert [d.key for d in cloud.memory.drift] == ["instance-orphaned:c/i-twin"]
    assert len(cloud.machines) == 2
    assert cloud.state("a").value == "Running"
    cloud.end("a")
    cloud.go(60)
    assert cloud.machines == {f"i-{cloud.asked[0]}": "c-0"}


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("first", ["agents", "list"])
def test_nodes_whose_records_are_lost_are_found_again_and_go_on_working(
    first: str, tells: bool
) -> None:
    """Whoever answers first, agents or the script, no machine is destroyed under its work."""
    cloud = Cloud(msgspec.structs.replace(ASKED, orphans="destroy"))
    cloud.tells_requests = tells
    cloud.go()
    cloud.commit(cores("a"), cores("b"))
    cloud.go(60)
    machines = dict(cloud.machines)
    cloud.memory.provisions = {}
    cloud.fails = {"list"} if first == "agents" else set()
    for node in cloud.nodes.values():
        node.silent = first == "list"
    cloud.go(5)
    for node in cloud.nodes.values():
        node.silent = False
    cloud.fails = set()
    cloud.go(3000)
    assert cloud.machines == machines
    assert cloud.states() == {"c-0": "Up", "c-1": "Up"}
    found = cloud.provision.instances
    assert {one.id: name for name, one in found.items()} == machines
    assert ({one.request for one in found.values()} == set(cloud.asked)) is tells
    assert [cloud.state(name).value for name in "ab"] == ["Running", "Running"]
    assert cloud.memory.drift == ()
    for name in "ab":
        cloud.end(name)
    cloud.go(1200)
    assert cloud.machines == {}


def test_a_node_that_reports_before_its_create_is_answered_is_not_taken_for_an_older_machine() -> (
    None
):
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.cycle()
    cloud.start("c-0")  # the script has not answered yet
    for _ in range(3):
        cloud.now += 1
        cloud.hear()
        cloud.cycle()
    one = cloud.provision.instances["c-0"]
    assert (one.state, one.id) == (InstanceState.UP, "")
    older = instance_records.Listed("i-older", "c-0", "c-0.7")
    result = instance_records.OrderResult("list", "c", "list", cloud.list_due(), instances=(older,))
    cloud.memory.add_provisioned(result)
    cloud.cycle()
    assert cloud.provision.instances["c-0"].request == one.request
    assert cloud.provision.instances["c-0"].id == ""
    assert list(cloud.provision.orphans) == ["i-older"]


def test_a_request_never_comes_again_after_its_pool_has() -> None:
    cloud = Cloud()
    for name in "ab":
        cloud.scale(ASKED)
        cloud.go()
        cloud.commit(cores(name))
        cloud.go(60)
        cloud.end(name)
        cloud.change_structure(pools={})
        cloud.go(300)
        assert cloud.memory.provisions == {}
    assert cloud.created == ["c-0", "c-0"]
    assert len(set(cloud.asked)) == 2


@pytest.mark.parametrize(
    ("suffix", "later"), [("4000000000000", True), ("9" * 40, False), ("x", False), ("", False)]
)
def test_requests_come_after_those_of_lost_records(suffix: str, later: bool) -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, minimum=2))
    cloud.machines = {"i-old": "c-0"}
    cloud.requests = {"i-old": f"c-0.{suffix}"}
    cloud.start("c-0")
    cloud.go(120)
    (asked,) = cloud.asked
    slot, _, number = asked.rpartition(".")
    assert slot == "c-1"
    assert (int(number) > 4_000_000_000_000) is later


def test_nothing_is_made_before_it_is_known_what_there_is() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, minimum=2))
    cloud.fails = {"list"}
    cloud.machines = {"i-old": "c-0"}
    cloud.start("c-0")
    cloud.go(600)
    assert cloud.created == []
    assert [d.kind for d in cloud.memory.drift if d.kind != "node-missing"] == [
        "provisioner-failing"
    ]
    cloud.fails = set()
    cloud.go(900)
    assert cloud.created == ["c-1"]
    assert cloud.provision.instances["c-0"].id == "i-old"
    assert cloud.states() == {"c-0": "Up", "c-1": "Up"}


def test_a_late_answer_of_a_given_up_try_changes_nothing() -> None:
    cloud = Cloud()
    cloud.go()
    cloud.commit(cores("a"))
    cloud.cycle()
    order = next(o for o in instance_records.orders(cloud.provision) if o.verb == "create")
    late = instance_records.OrderResult(
        "create", "c", order.request, order.number + 1, id="i-other"
    )
    cloud.memory.add_provisioned(late)
    before = cloud.provision.instances
    cloud.cycle()
    assert cloud.provision.instances == before


# --- virtual pools --------------------------------------------------------------------------


def test_virtual_nodes_come_and_go_without_a_script() -> None:
    cloud = Cloud(msgspec.structs.replace(ASKED, script=""))
    cloud.go()
    cloud.commit(cores("a"))
    cloud.go(10)
    assert cloud.provision.expected() == ["c-0"]
    assert not list(instance_records.orders(cloud.provision))
    cloud.start("c-0")  # as `muster up` does
    cloud.go(10)
    assert cloud.state("a").value == "Running"
    cloud.end("a")
    cloud.go(700)
    assert cloud.provision.expected() == []
    cloud.nodes.pop("c-0")
    cloud.go(200)
    assert cloud.states() == {}


# --- under noise ----------------------------------------------------------------------------


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6))
def test_a_noisy_load_never_breaks_it_and_then_it_converges(seed: int) -> None:
    """Never above the maximum, no work ended, no machine made twice; in the end all are gone."""
    dice = random.Random(seed)
    cloud = Cloud(msgspec.structs.replace(ASKED, retries=1, orphans="destroy"))
    cloud.go()
    for number in range(20):
        cloud.fails = {v for v in ("create", "destroy", "list") if dice.random() < 0.15}
        if dice.random() < 0.6:
            cloud.commit(cores(f"j{number}", dice.randint(1, 5), count=dice.randint(1, 3)))
        running = sorted(
            {a.job for a in cloud.memory.attempts.values() if a.state is AttemptState.RUNNING}
        )
        if running and dice.random() < 0.5:
            name = dice.choice(running)
            for attempt in cloud.attempts(name):
                cloud.nodes[attempt.node].end(attempt.id, cloud.now, exit_code=0)
        cloud.go(dice.choice([1, 20, 200, 900]), step=60)
    cloud.fails = set()
    cloud.commit(remove=tuple(cloud.jobs))
    cloud.go(4 * 3600, step=300)
    assert cloud.machines == {}
    assert cloud.states() == {}
    assert len(set(cloud.asked)) == len(cloud.asked)
    lost = [e for r in cloud.outcomes for e in r.events if e.kind == "AttemptLost"]
    assert not lost
    quiet = cloud.memory.provisions
    cloud.go(250, step=50)
    assert {n: p.instances for n, p in cloud.memory.provisions.items()} == {
        n: p.instances for n, p in quiet.items()
    }


def test_short_jobs_in_a_row_do_not_make_the_pool_flap() -> None:
    cloud = Cloud()
    cloud.go()
    for number in range(40):  # twenty minutes of a job every 30 s that runs for 10
        cloud.commit(cores(f"j{number}"))
        cloud.go(10)
        cloud.end(f"j{number}")
        cloud.go(20)
    assert cloud.created == ["c-0"]


def test_records_hold_what_they_say() -> None:
    observed = records.Observed()
    assert observed.provisions == {}
    assert observed.provisioned == ()


@pytest.mark.parametrize(("numa", "made"), [((), []), (((0, 1, 2), (3,)), ["c-0"])])
def test_a_node_is_made_for_near_gpus_where_the_pool_says_that_it_would_have_them(
    numa: tuple[tuple[int, ...], ...], made: list[str]
) -> None:
    cloud = Cloud()
    cloud.scale(ASKED, node_resources=Resources(4000, 64 * world.GI, 4000), numa=numa)
    needs = Resources(1000, 0, 3000)
    group = desired.TaskGroup("main", 1, needs, ("true",), inner_required="numa")
    cloud.commit(world.job("near", groups=(group,)))
    cloud.go(300)
    assert cloud.created == made
    assert cloud.state("near").value == ("Running" if made else "Pending")

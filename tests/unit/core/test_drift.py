"""Each kind of drift on a small cluster: found at once, none invented, gone when healed."""

import random
import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest

from reconciler.core import observed_state, rate_limits
from reconciler.core.drift import remediation, task_drift
from reconciler.model import desired
from reconciler.model.documents.drift_spec import DriftKind
from reconciler.model.observed import devices, health_checks
from reconciler.model.policy.drift_kinds import KINDS, Drift
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason, JobState, NodeState
from reconciler.model.values.resources import Resources
from tests.unit.core import world
from tests.unit.core.world import GI, World, job
from tests.unit.docs import pages

GPUS = 2
HOUR = 3600.0


class Node(world.VirtualNode):
    """A node whose inventory a test changes, and that carries out its orders."""

    def __init__(self, name: str, pool: desired.Pool) -> None:
        super().__init__(name, pool)
        self.inventory = records.Inventory(
            capacity=pool.node_resources,
            gpus=tuple(records.Gpu(i, f"GPU-{name}-{i}", "H200", 16 * GI) for i in range(GPUS)),
            gpu_driver=devices.GpuDriver(devices.OK, version="550.54.15"),
            labels={"room": "b2"},
        )
        self.ordered: list[str] = []
        self.obeys = True
        self.deaf = False
        self.says = ""
        self.stubborn: set[str] = set()
        self._ended: dict[str, records.RemedyReport] = {}

    def take(self, payload: bytes, acknowledged: tuple[str, ...], now: float) -> None:
        if self.deaf:
            return
        wanted = msgspec.msgpack.decode(payload, type=agent_messages.AssignmentSet)
        kept = {name: self.attempts[name] for name in self.stubborn if name in self.attempts}
        super().take(payload, acknowledged, now)
        self.attempts.update(kept)
        self._ended = {
            one.id: self._ended[one.id] for one in wanted.remedies if one.id in self._ended
        }
        for one in wanted.remedies:
            if one.id in self.ordered:
                continue
            self.ordered.append(one.id)
            if self.obeys:
                left = self.inventory.foreign_gpu_processes
                self.inventory = msgspec.structs.replace(
                    self.inventory,
                    foreign_gpu_processes=tuple(p for p in left if p.pid != one.pid),
                )
            said = self.says if self.obeys else "it does not end"
            self._ended[one.id] = records.RemedyReport(one.id, self.obeys, said)

    def tells(self, order: str) -> None:
        """Report that an order was carried out while the node was deaf."""
        self.deaf = False
        self.ordered.append(order)
        self._ended[order] = records.RemedyReport(order, done=True)

    def report(self, now: float) -> records.NodeReport:
        return msgspec.structs.replace(
            super().report(now),
            inventory=self.inventory,
            remedies=tuple(self._ended.values()),
        )


#: Checks may come and go as often as they like.
AT_ONCE = desired.FlappingPolicy(out_s=0)


class Site(World):
    """Four nodes with two GPUs each, of a pool that declares much, and one queue with a limit."""

    def __init__(self, nodes: int = 4, **settings: Any) -> None:
        super().__init__(nodes=0, settings=desired.ClusterSettings(**settings))
        names = tuple(f"n{number}" for number in range(nodes))
        self.pool = desired.Pool(
            name="pool",
            nodes=names,
            node_resources=Resources(8000, 64 * GI, GPUS * 1000),
            gpu_model="H200",
            gpu_driver="550",
            labels={"room": "b2"},
            checks=health_checks.CheckPlan(),
            black_hole=desired.BlackHole(owners=3),
            flapping=AT_ONCE,
            brake=desired.HealthBrake(share=1.0),
        )
        self.nodes = {name: Node(name, self.pool) for name in names}
        self.queue = desired.Queue(name="default", limit=desired.QuotaAmounts(cpu_milli=20_000))
        self.change_structure(pools={"pool": self.pool}, queues={"default": self.queue})
        self.settle()

    def node(self, name: str) -> Node:
        found = self.nodes[name]
        assert isinstance(found, Node)
        return found

    def change_pool(self, **changes: Any) -> None:
        pool = msgspec.structs.replace(self.structure.pools["pool"], **changes)
        self.change_structure(pools={"pool": pool})

    def say(self, kind: str, action: str) -> None:
        """Set the policy for a kind in git."""
        settings = self.structure.settings
        policy = {**settings.drift, kind: action}
        self.change_structure(settings=msgspec.structs.replace(settings, drift=policy))

    def found(self) -> list[tuple[str, str]]:
        return [(one.kind, one.subject) for one in self.memory.drift]

    def one(self, kind: str) -> Drift:
        (row,) = [one for one in self.memory.drift if one.kind == kind]
        return row

    def round(self) -> None:
        """Let nodes report and run a cycle, a second later."""
        self.now += 1
        self.hear()
        self.cycle()


# --- how each kind comes about and goes -----------------------------------------------------

Healing = Callable[[], None]
Cause = Callable[[Site, random.Random], tuple[str, str, Healing]]


def _inventory(site: Site, name: str, **changes: Any) -> Healing:
    node = site.node(name)
    before = node.inventory
    node.inventory = msgspec.structs.replace(before, **changes)

    def heal() -> None:
        restored = {field: getattr(before, field) for field in changes}
        node.inventory = msgspec.structs.replace(node.inventory, **restored)

    return heal


def _any(site: Site, chance: random.Random) -> str:
    return chance.choice(list(site.pool.nodes))


def missing(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = f"new{chance.randrange(1000)}"
    pool = site.structure.pools["pool"]
    site.change_pool(nodes=(*pool.nodes, name))

    def heal() -> None:
        nodes = tuple(node for node in site.structure.pools["pool"].nodes if node != name)
        site.change_pool(nodes=nodes)

    return "node-missing", name, heal


def undeclared(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = f"stray{chance.randrange(10**9)}"
    site.nodes[name] = Node(name, site.pool)

    def heal() -> None:
        del site.nodes[name]
        site.now += 91

    return "node-undeclared", name, heal


def silent(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = _any(site, chance)
    site.nodes[name].silent = True
    site.now += 91

    def heal() -> None:
        site.nodes[name].silent = False

    return "node-silent", name, heal


def fewer_cpus(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = _any(site, chance)
    return (
        "node-inventory",
        f"{name}/cpu",
        _inventory(site, name, capacity=Resources(4000, 64 * GI, 2000)),
    )


def driver(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = _any(site, chance)
    other = devices.GpuDriver(devices.OK, version="535.104.05")
    return "node-driver", name, _inventory(site, name, gpu_driver=other)


def _with_gpu(site: Site, name: str, index: int, **changes: Any) -> Healing:
    gpus = list(site.node(name).inventory.gpus)
    gpus[index] = msgspec.structs.replace(gpus[index], **changes)
    return _inventory(site, name, gpus=tuple(gpus))


def split(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name, index = _any(site, chance), chance.randrange(GPUS)
    return "node-mig", f"{name}/gpu{index}", _with_gpu(site, name, index, mig_enabled=True)


def failed(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name, index = _any(site, chance), chance.randrange(GPUS)
    state = chance.choice([devices.LOST, devices.MISSING, devices.FAILED, devices.UNRESPONSIVE])
    return "gpu-failed", f"{name}/gpu{index}", _with_gpu(site, name, index, state=state)


def check_failed(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name, check = _any(site, chance), chance.choice(list(health_checks.BUILT_IN))
    result = health_checks.CheckResult(check, "failed", "it is broken")
    return "node-check-failed", f"{name}/{check}", _inventory(site, name, checks=(result,))


def check_degraded(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name, check = _any(site, chance), chance.choice(list(health_checks.BUILT_IN))
    result = health_checks.CheckResult(check, "degraded", "it is not well")
    return "node-check-degraded", f"{name}/{check}", _inventory(site, name, checks=(result,))


def flapping(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name, check = _any(site, chance), chance.choice(list(health_checks.BUILT_IN))
    site.change_pool(flapping=desired.FlappingPolicy(failures=2))
    for _ in range(2):
        well = _inventory(
            site, name, checks=(health_checks.CheckResult(check, "failed", "it is broken"),)
        )
        site.round()
        well()
        site.round()
    return "node-flapping", name, lambda: site.change_pool(flapping=AT_ONCE)


def black_hole(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    node = _any(site, chance)
    others = [name for name in site.pool.nodes if name != node]
    site.change_pool(drains=dict.fromkeys(others, desired.NodeDrain("away")))
    for owner in ("ada", "bob", "eve"):
        name = f"{owner}{chance.randrange(10**6)}"
        site.structure.unix_users[owner] = owner
        site.commit(job(name, owner=owner))
        site.settle()
        site.now += 1
        site.end(name, exit_code=1)
        if site.memory.nodes[node].out_until:
            break  # an earlier failure there counts as well
    site.change_pool(drains={})

    def heal() -> None:
        site.now += HOUR

    return "node-black-hole", node, heal


def labels(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = _any(site, chance)
    return "node-labels", f"{name}/room", _inventory(site, name, labels={"room": "c1"})


def foreign(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name, index, pid = _any(site, chance), chance.randrange(GPUS), chance.randrange(100, 10**6)
    process = devices.GpuProcess(pid, index, f"GPU-{name}-{index}", "python3", "ada", 2**30, 900.0)
    heal = _inventory(site, name, foreign_gpu_processes=(process,))
    return "gpu-process-foreign", f"{name}/gpu{index}/{pid}", heal


def unwanted(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    node = site.node(_any(site, chance))
    name = f"old.1.0123456789abcdef.0.main.0.{chance.randrange(1, 10**6)}"
    node.attempts[name] = records.AttemptReport(name, AttemptState.RUNNING, started_at=site.now)
    node.stubborn.add(name)

    def heal() -> None:
        node.stubborn.discard(name)
        node.attempts.pop(name, None)

    return "task-unwanted", f"{node.name}/{name}", heal


def on_fewer_gpus(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    """Declare a pool with fewer GPUs than a task of it holds."""
    name = f"wide{chance.randrange(10**6)}"
    site.commit(job(name, gpu=GPUS))
    site.settle()
    has = site.structure.pools["pool"].node_resources
    site.change_pool(node_resources=msgspec.structs.replace(has, gpu_milli=1000))
    given_back = chance.choice([True, False])

    def heal() -> None:
        if given_back:
            site.change_pool(node_resources=has)
        else:
            site.end(name)
            site.change_pool(node_resources=has)

    return "task-gpu-undeclared", f"{name}/main-0", heal


def not_started(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = f"slow{chance.randrange(10**6)}"
    for node in site.nodes.values():
        assert isinstance(node, Node)
        node.deaf = True
    site.commit(job(name))
    site.round()
    site.now += 61

    def heal() -> None:
        for node in site.nodes.values():
            assert isinstance(node, Node)
            node.deaf = False
            sent = site.engine.update(node.name, site.structure, site.memory)
            assert sent.payload is not None
            node.take(sent.payload, (), site.now)

    return "task-missing", f"{name}/main-0", heal


def _killed(site: Site, name: str, signal: int) -> None:
    for node in site.nodes.values():
        for attempt in list(node.attempts):
            if attempt.startswith(f"{name}.") and (
                node.attempts[attempt].state is AttemptState.RUNNING
            ):
                node.end(attempt, site.now, signal=signal)


def killed(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = f"prey{chance.randrange(10**6)}"
    retries = desired.Retries(limit=chance.choice([0, 3]), backoff_s=10)
    site.commit(job(name, retries=retries))
    site.settle()
    _killed(site, name, chance.choice([1, 2, 9, 15]))

    def heal() -> None:
        if retries.limit:
            site.now += 11
        else:
            site.commit(job(name, run=2))

    return "task-killed", f"{name}/main-0", heal


def over(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = f"much{chance.randrange(10**6)}"
    site.commit(job(name, cpu=2))
    site.settle()
    before = site.structure.queues["default"]
    lower = msgspec.structs.replace(before, limit=desired.QuotaAmounts(cpu_milli=1000))
    site.change_structure(queues={"default": lower})
    return "queue-over-limit", "default", lambda: site.change_structure(queues={"default": before})


def drained(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = _any(site, chance)
    made = records.Override("drain", name, "it smokes", "ada", site.now, site.now + HOUR)
    site.memory.ask(records.PutOverride("a", made))
    clear = records.ClearOverride("b", "drain", name, "ada")
    return "node-drained-by-override", name, lambda: site.memory.ask(clear)


def cancelled(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = f"dead{chance.randrange(10**6)}"
    site.commit(job(name))
    site.settle()
    made = records.Override("cancel", name, "fills disks", "ada", site.now, site.now + HOUR)
    site.memory.ask(records.PutOverride("a", made))
    return "job-cancelled-by-override", name, lambda: site.commit(remove=(name,))


def suspended(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    subject = chance.choice(["cluster", *(f"queue/{name}" for name in site.structure.queues)])
    made = records.Override("suspend", subject, "cooling", "ada", site.now, site.now + HOUR)
    site.memory.ask(records.PutOverride("a", made))
    clear = records.ClearOverride("b", "suspend", subject, "ada")
    return "suspended-by-override", subject, lambda: site.memory.ask(clear)


def submitted(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    name = f"late{chance.randrange(10**6)}"
    kept = records.Submission("7", "text")
    made = records.Override(
        "submit", name, "away", "ada", site.now, site.now + HOUR, submission=kept
    )
    site.memory.ask(records.QueueSubmissions("a", (made,)))
    settle = records.SettleSubmission("b", name, "7", commit="c" * 40)
    return "submission-not-committed", name, lambda: site.memory.ask(settle)


def refused(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    revision = f"{chance.getrandbits(160):040x}"
    site.status = desired.SyncStatus("OutOfSync", revision, message="2 errors")

    def heal() -> None:
        site.status = None

    return "head-not-applied", revision, heal


def stalled(site: Site, chance: random.Random) -> tuple[str, str, Healing]:
    site.status = desired.SyncStatus("Unknown", message="it does not answer")

    def heal() -> None:
        site.status = None

    return "repository-unreadable", "repository", heal


CAUSES: dict[str, Cause] = {
    "node-missing": missing,
    "node-undeclared": undeclared,
    "node-silent": silent,
    "node-inventory": fewer_cpus,
    "node-driver": driver,
    "node-mig": split,
    "node-labels": labels,
    "node-drained-by-override": drained,
    "node-check-failed": check_failed,
    "node-check-degraded": check_degraded,
    "node-black-hole": black_hole,
    "node-flapping": flapping,
    "gpu-failed": failed,
    "gpu-process-foreign": foreign,
    "task-unwanted": unwanted,
    "task-gpu-undeclared": on_fewer_gpus,
    "task-missing": not_started,
    "task-killed": killed,
    "queue-over-limit": over,
    "job-cancelled-by-override": cancelled,
    "suspended-by-override": suspended,
    "submission-not-committed": submitted,
    "head-not-applied": refused,
    "repository-unreadable": stalled,
}


#: These come about, and go, in ``test_provisioning``.
OF_PROVISIONERS = {
    "instance-orphaned",
    "instance-left-over",
    "pool-not-growing",
    "provisioner-failing",
}
#: These come about, and go, in ``nodes/test_health_brake`` and ``nodes/test_check_trials``.
OF_BRAKES = {"node-check-braked", "node-check-trial"}


def cleared(site: Site) -> None:
    """End every job, so that the next cause finds an empty cluster."""
    site.commit(remove=tuple(site.jobs))
    for _ in range(6):
        site.round()


@pytest.mark.parametrize("kind", CAUSES)
def test_each_kind_is_found_at_once_and_gone_when_healed(kind: str) -> None:
    site = Site()
    expected, subject, heal = CAUSES[kind](site, random.Random(1))
    assert expected == kind
    site.round()
    assert site.found() == [(kind, subject)]
    row = site.one(kind)
    assert row.wanted
    assert row.found
    assert row.severity == KINDS[kind].severity
    first_seen = row.first_seen
    if kind != "task-missing":  # which its node is told again of, and then has
        site.round()
        assert site.one(kind).first_seen == first_seen
    heal()
    site.round()
    site.round()
    assert site.found() == []


def test_two_hundred_random_injections_are_found_and_none_is_invented() -> None:
    """Each within two cycles, and nothing else; all gone after healing."""
    chance = random.Random(20_261_121)
    site = Site()
    kinds = sorted(CAUSES)
    met: set[str] = set()
    for number in range(200):
        expected, subject, heal = CAUSES[chance.choice(kinds)](site, chance)
        met.add(expected)
        seen: set[tuple[str, str]] = set()
        for _ in range(2):
            site.round()
            seen.update(site.found())
        assert seen == {(expected, subject)}, number
        heal()
        site.round()
        site.round()
        assert site.found() == [], (number, expected)
        cleared(site)
        assert site.found() == [], (number, expected)
    assert met == set(KINDS) - OF_PROVISIONERS - OF_BRAKES, "each kind came about"


def test_a_cluster_on_which_nothing_was_caused_has_no_drift() -> None:
    """A day of work that succeeds, fails, is preempted and cancelled is in sync with git."""
    chance = random.Random(7)
    site = Site()
    for number in range(60):
        site.commit(
            job(
                f"j{number}",
                cpu=chance.randint(1, 6),
                priority=chance.choice([20, 50, 90]),
                retries=desired.Retries(limit=chance.randint(0, 2), backoff_s=5),
            )
        )
        for _ in range(3):
            site.round()
            assert site.found() == []
        for name in [n for n, r in site.memory.jobs.items() if r.state is JobState.RUNNING]:
            if chance.random() < 0.4:
                site.end(name, exit_code=chance.choice([0, 0, 1]))
            elif chance.random() < 0.1:
                site.commit(remove=(name,))
        site.settle()
        assert site.found() == []


# --- what is done about it ------------------------------------------------------------------


def test_the_documents_know_the_same_kinds() -> None:
    assert DriftKind.__args__ == tuple(KINDS)  # type: ignore[attr-defined]


def test_a_foreign_process_is_ended_where_policy_says_so() -> None:
    site = Site(drift={"gpu-process-foreign": "remediate"})
    foreign(site, random.Random(1))
    site.round()
    row = site.one("gpu-process-foreign")
    assert (row.action, row.tries) == ("remediate", 0)
    site.round()
    assert site.one("gpu-process-foreign").tries == 1
    site.round()
    assert site.found() == []
    (remedy,) = site.memory.remedies
    assert (remedy.state, remedy.verb, remedy.node) == ("done", "end-process", row.node)
    assert site.node(row.node).ordered == [remedy.id]


@pytest.mark.parametrize("done", [True, False])
def test_a_node_cannot_hide_what_another_reports_of_its_remedy(*, done: bool) -> None:
    site = Site(drift={"gpu-process-foreign": "remediate"})
    foreign(site, random.Random(1))
    site.round()
    site.round()
    (remedy,) = site.memory.remedies
    assert remedy.open
    other = site.node("n0" if remedy.node != "n0" else "n1")
    site.now += 1
    told = records.RemedyReport(remedy.id, done=not done)
    site.memory.add_report(msgspec.structs.replace(other.report(site.now), remedies=(told,)))
    own = records.RemedyReport(remedy.id, done=done)
    site.memory.add_report(
        msgspec.structs.replace(site.node(remedy.node).report(site.now), remedies=(own,))
    )
    site.cycle()
    assert [one.state for one in site.memory.remedies] == ["done" if done else "failed"]


def test_remediation_backs_off_gives_up_and_says_so() -> None:
    limits_ = desired.Remediation(attempts=3, backoff_s=60)
    site = Site(drift={"gpu-process-foreign": "remediate"}, remediation=limits_)
    _, subject, _ = foreign(site, random.Random(1))
    node = site.node(subject.split("/")[0])
    node.obeys = False
    at = []
    for _ in range(900):
        count = len(node.ordered)
        site.round()
        if len(node.ordered) > count:
            at.append(site.now)
    assert len(at) == 3
    assert at[1] - at[0] >= 60
    assert at[2] - at[1] >= 120
    row = site.one("gpu-process-foreign")
    assert row.given_up
    assert row.remedy == "given up after 3 tries: it does not end"
    assert len(site.events("RemediationGivenUp")) == 1
    site.now += rate_limits.REMEMBER_S
    site.round()
    site.round()
    assert not site.one("gpu-process-foreign").given_up, "another day, another try"


def test_remediation_is_bounded_in_its_rate() -> None:
    few = desired.Remediation(attempts=5, backoff_s=1, per_hour=2)
    site = Site(drift={"gpu-process-foreign": "remediate"}, remediation=few)
    for number, name in enumerate(site.pool.nodes):
        process = devices.GpuProcess(100 + number, 0, f"GPU-{name}-0", "x")
        site.node(name).inventory = msgspec.structs.replace(
            site.node(name).inventory, foreign_gpu_processes=(process,)
        )
    for _ in range(5):
        site.round()
    assert len(site.memory.remedies) == 2
    assert len(site.found()) == 2
    site.now += HOUR
    for _ in range(5):
        site.round()
    assert site.found() == []


def test_an_order_of_which_nothing_is_heard_is_lost_and_counts() -> None:
    site = Site(drift={"gpu-process-foreign": "remediate"})
    _, subject, _ = foreign(site, random.Random(1))
    node = site.node(subject.split("/")[0])
    node.deaf = True
    site.round()
    site.round()
    assert site.memory.remedies[0].open
    site.now += remediation.LOST_AFTER_S
    site.round()
    assert site.memory.remedies[0].state == "lost"
    assert site.one("gpu-process-foreign").tries == 1


@pytest.mark.parametrize("why", ["suspended", "observed", "ignored", "reported"])
def test_nothing_is_done_where_nobody_wants_it(why: str) -> None:
    site = Site(drift={"gpu-process-foreign": "remediate"})
    if why == "suspended":
        settings = msgspec.structs.replace(site.structure.settings, suspend=True)
        site.change_structure(settings=settings)
    elif why == "observed":
        site.change_pool(observe_only=True)
    else:
        action = {"ignored": "ignore", "reported": "report"}[why]
        site.change_pool(drift={"gpu-process-foreign": action})
    _, subject, _ = foreign(site, random.Random(1))
    for _ in range(5):
        site.round()
    assert site.found() == [("gpu-process-foreign", subject)]
    assert site.memory.remedies == ()
    row = site.one("gpu-process-foreign")
    if why in ("suspended", "observed"):
        assert "would be remedied (the process is ended), but" in row.remedy
    else:
        assert row.action == {"ignored": "ignore", "reported": "report"}[why]


def test_a_killed_task_starts_again_without_a_retry_where_policy_says_so() -> None:
    site = Site(drift={"task-killed": "remediate"})
    site.commit(job("a"))
    site.settle()
    for number in (1, 2, 3):
        _killed(site, "a", 9)
        site.round()
        assert site.one("task-killed").tries == number
        site.now += 3 * HOUR
        site.settle()
        assert site.state("a") is JobState.RUNNING
    assert site.memory.jobs["a"].notes[0].retries_spent == 0
    assert site.state("a") is JobState.RUNNING
    _killed(site, "a", 9)
    site.settle()
    assert site.state("a") is JobState.FAILED, "three times a day, and no more"


def test_a_killed_task_of_which_nothing_is_wanted_any_more_is_listed_for_a_while_only() -> None:
    """A job that kills itself would otherwise leave the cluster out of sync for good."""
    site = Site()
    site.commit(job("a"), job("b", retries=desired.Retries(limit=1, backoff_s=3600)))
    site.settle()
    _killed(site, "a", 9)
    _killed(site, "b", 9)
    site.round()
    both = [("task-killed", "a/main-0"), ("task-killed", "b/main-0")]
    assert (site.state("a"), sorted(site.found())) == (JobState.FAILED, both)
    decided = site.cycle()
    assert sorted(site.found()) == both
    assert decided.wake_at is not None
    assert decided.wake_at <= site.now + task_drift.KILLED_TOLD_S, "nothing else would come"
    site.now += task_drift.KILLED_TOLD_S
    site.round()
    assert site.found() == both[1:], "of this one the next try is wanted"


def test_a_killed_element_that_is_over_does_not_last_as_long_as_its_array() -> None:
    site = Site()
    site.commit(job("a", array_count=2))
    site.settle()
    (first,) = [one for one in site.attempts("a") if one.element == 0]
    site.nodes[first.node].end(first.id, site.now, signal=9)
    site.round()
    assert site.found() == [("task-killed", "a[0]/main-0")]
    site.now += task_drift.KILLED_TOLD_S
    site.round()
    assert (site.state("a"), site.found()) == (JobState.RUNNING, [])


def test_a_task_that_fails_by_itself_or_is_told_to_leave_was_not_killed() -> None:
    site = Site()
    for name, signal, reason in (
        ("a", 11, EndReason.EXITED),
        ("b", 6, EndReason.EXITED),
        ("c", 9, EndReason.LEASE_EXPIRED),
    ):
        site.commit(job(name))
        site.settle()
        (attempt,) = site.attempts(name)
        site.nodes[attempt.node].end(attempt.id, site.now, signal=signal, reason=reason)
        site.round()
        assert site.found() == []


def test_work_leaves_a_queue_that_is_over_its_limit_the_newest_first() -> None:
    site = Site(drift={"queue-over-limit": "remediate"})
    for name in ("a", "b", "c"):
        site.commit(job(name, cpu=4, preemptible=name != "c"))
        site.settle()
        site.now += 10
    lower = desired.Queue(
        "default", limit=desired.QuotaAmounts(8000), guaranteed=desired.QuotaAmounts(cpu_milli=8000)
    )
    site.change_structure(queues={"default": lower})
    site.round()
    assert site.one("queue-over-limit").found == "cpu 12"
    for _ in range(4):
        site.round()
    assert site.states() == {"a": "Running", "b": "Pending", "c": "Running"}
    assert site.found() == []
    assert site.reason("b") == "OverLimit"


def test_what_is_seen_is_remembered_over_a_restart() -> None:
    site = Site(drift={"gpu-process-foreign": "remediate"})
    _, subject, _ = foreign(site, random.Random(1))
    site.node(subject.split("/")[0]).obeys = False
    for _ in range(3):
        site.round()
    before = site.one("gpu-process-foreign")
    loaded = records.Observed(
        nodes=dict(site.memory.nodes), drift=site.memory.drift, remedies=site.memory.remedies
    )
    site.memory = observed_state.ObservedState(loaded, leader_since=site.now)
    site.round()
    after = site.one("gpu-process-foreign")
    assert (after.first_seen, after.tries) == (before.first_seen, before.tries)


POLICIES = [(kind, action) for kind, known in KINDS.items() for action in known.actions]


@pytest.mark.parametrize(("kind", "action"), POLICIES)
def test_a_policy_of_the_cluster_and_of_a_pool_is_what_is_done(kind: str, action: str) -> None:
    site = Site()
    site.say(kind, action)
    assert rate_limits.action_of(site.structure, kind, "pool") == action
    other = next(iter(a for a in KINDS[kind].actions if a != action), action)
    site.change_pool(drift={kind: other})
    assert rate_limits.action_of(site.structure, kind, "pool") == other
    assert rate_limits.action_of(site.structure, kind, "") == action


def test_the_states_of_nodes_go_by_what_keeps_work_away() -> None:
    site = Site()
    labels(site, random.Random(3))
    site.round()
    assert all(node.state is NodeState.READY for node in site.memory.nodes.values())
    driver(site, random.Random(3))
    site.round()
    assert NodeState.UNHEALTHY in {node.state for node in site.memory.nodes.values()}


def test_the_guide_lists_every_kind_as_it_is() -> None:
    page = (pages.ROOT / "docs" / "guides" / "operator" / "drift.md").read_text(encoding="utf-8")
    rows = [
        line for line in page.splitlines() if re.match(r"\| `[a-z-]+` \| (info|warn|crit)", line)
    ]
    expected = [
        f"| `{name}` | {kind.severity} | {kind.action} | {kind.meaning} | {kind.remedy} |".replace(
            "|  |", "| |"
        )
        for name, kind in KINDS.items()
    ]
    assert rows == expected


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        ((), "held"),
        (("error",), "held: q.yaml:4:7: error: Queue/a: spec.weight: no number"),
        (("warning",), "held"),
        (
            ("error", "warning", "error"),
            (
                "held: q.yaml:4:7: error: Queue/a: spec.weight: no number; and 1 more, "
                "by `muster status`"
            ),
        ),
    ],
)
def test_a_revision_that_is_not_in_force_says_which_error_keeps_it(
    problems: tuple[Literal["error", "warning"], ...], said: str
) -> None:
    site = Site()
    found = tuple(
        desired.Problem("r", one, "q.yaml", "no number", 4, 7, "Queue/a", "spec.weight")
        for one in problems
    )
    site.status = desired.SyncStatus("OutOfSync", "f" * 40, message="held", problems=found)
    site.round()
    assert site.one("head-not-applied").message == said


def test_drift_quotes_nothing_of_what_jobs_run() -> None:
    site = Site()
    found = tuple(
        desired.Problem("r", "error", "j.yaml", "no text", 4, 7, "Job/j", field, found="48121")
        for field in ("spec.environment.TOKEN", "spec.timeLimit")
    )
    for problem, shown in zip(found, (False, True), strict=True):
        site.status = desired.SyncStatus(
            "OutOfSync", "f" * 40, message="refused", problems=(problem,)
        )
        site.round()
        assert ("48121" in site.one("head-not-applied").message) is shown


def test_an_error_that_is_all_there_is_to_say_is_said_once() -> None:
    site = Site()
    held = desired.Problem("over-limit", "error", "", "held: 3 GPUs leave service")
    site.status = desired.SyncStatus("OutOfSync", "f" * 40, message=held.message, problems=(held,))
    site.round()
    assert site.one("head-not-applied").message == held.message

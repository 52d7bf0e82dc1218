"""A job in force that makes cycles raise later costs that job and nobody else.

The loop, the git watcher and the core are real. The core raises when a job that a test names is
placed, or from a moment on.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.controller.quarantine import job_bisection
from reconciler.core import reconcile
from reconciler.core.jobs import quarantined_jobs
from reconciler.desired.apply import job_quarantine
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, JobState, NodeState
from reconciler.store import StoreReader
from tests.unit import replays
from tests.unit.controller.quarantine.test_containment import POISON, Contained
from tests.unit.controller.quarantine.test_containment_revisions import STRUCTURE, RevisionSite
from tests.unit.controller.quarantine.test_cycle_input import Site
from tests.unit.core.world import World, job
from tests.unit.desired import repositories
from tests.unit.test_replay import url

LIVE = frozenset(AttemptState) - {AttemptState.ENDED}


class Placing:
    """The real core, except that it raises if some jobs have a task, or exist by then."""

    def __init__(self, *jobs: str, since: float = math.inf) -> None:
        self.jobs = set(jobs)
        #: Those that it can't bear at all from a moment on.
        self.there: set[str] = set()
        self.since = since
        self.calls = 0

    def __call__(
        self, wanted: desired.Desired, observed: records.Observed, now: float, **options: Any
    ) -> outcome.Outcome:
        self.calls += 1
        result = reconcile.reconcile(wanted, observed, now, **options)
        if self.jobs & {one.job for one in result.attempts}:
            raise KeyError("a secret of somebody's")
        if now >= self.since and self.there & wanted.jobs.keys():
            raise KeyError("a secret of somebody's")
        return result


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the search independent of the machine's speed."""
    monkeypatch.setattr(job_bisection, "SEARCH_S", 600.0)


def led(folder: Path, world: World, core: Placing, **options: Any) -> Contained:
    made = Contained(folder, world, **options)
    made.loop._decider.decide_by = core
    return made


def placed(leader: Contained) -> set[str]:
    return {one.job for one in leader.loop._state.attempts.values()}


def test_a_job_that_raises_when_nodes_come_costs_no_node_and_nobody_else(tmp_path: Path) -> None:
    world = World(nodes=4)
    leader = led(tmp_path, world, Placing(POISON))
    leader.revision(job("fine"), job(POISON), job("b"), job("d"))
    leader.cycle()
    assert leader.sync().sync == "Synced"
    for _ in range(4):
        leader.now += 5
        leader.hear(*world.nodes)
        leader.cycle()
    assert placed(leader) == {"fine", "b", "d"}
    assert leader.states()[POISON] is JobState.PENDING, "its record stays as it was"
    assert {one.state for one in leader.loop._state.nodes.values()} == {NodeState.READY}
    assert leader.counts == {"job": 1}
    status = leader.sync()
    (problem,) = status.problems
    assert (status.sync, problem.rule, problem.object) == ("OutOfSync", "defect", f"Job/{POISON}")
    assert "KeyError in " in problem.message
    assert "secret" not in problem.message
    (refusal,) = leader.refusals
    assert (refusal.generation, refusal.incumbents) == (1, b"accepted 1")
    (left,) = refusal.jobs
    assert (left.name, left.spec, left.aside) == (POISON, job(POISON), True)
    leader.close()


class Full(Site):
    """Nodes that do what they are told. The core can't place some jobs."""

    def __init__(self, folder: Path, world: World, core: Callable[..., outcome.Outcome]) -> None:
        super().__init__(folder, world)
        self.loop._decider.decide_by = core

    def end(self, node: str) -> None:
        for attempt in list(self.world.nodes[node].attempts):
            self.world.nodes[node].end(attempt, self.now, exit_code=0)


def test_a_job_for_which_others_make_room_costs_no_node(tmp_path: Path) -> None:
    core = Placing(POISON)
    site = Full(tmp_path, World(nodes=4), core)
    run = [job(f"r{number}", cpu=4) for number in range(4)]
    site.revision(*run)
    for _ in range(3):
        site.pass_time(1)
    site.revision(*run, job(POISON, cpu=4, priority=60), job("later", cpu=4))
    site.pass_time(1)
    for node in ("n0", "n1", "n2"):
        site.end(node)
        for _ in range(3):
            site.pass_time(25)
    assert {one.state for one in site.loop._state.nodes.values()} == {NodeState.READY}
    assert site.states()["later"] is JobState.RUNNING
    assert site.states()[POISON] is JobState.PENDING
    site.close()


def test_who_depends_on_it_waits_with_it_and_others_do_not(tmp_path: Path) -> None:
    world = World(nodes=4)
    core = Placing(POISON)
    leader = led(tmp_path, world, core)
    after = job("after", depends_on=(desired.Dependency(POISON),))
    last = job("last", depends_on=(desired.Dependency("after"),))
    leader.revision(last, after, job(POISON), job("fine"))
    leader.cycle()
    leader.hear(*world.nodes)
    leader.cycle()
    assert leader.loop._state.quarantined.keys() == {POISON, "after", "last"}
    assert placed(leader) == {"fine"}
    assert leader.states().keys() == {POISON, "after", "last", "fine"}
    assert [one.name for one in leader.refusals[0].jobs] == [POISON]
    refused = leader.loop._in_force.of(leader.loop._track.desired or desired.Desired()).refused
    assert refused["last"] == quarantined_jobs.WAITS.format(job="after")
    leader.close()


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_job_by_which_the_clock_alone_makes_cycles_raise_is_found(
    tmp_path: Path, *, is_placed: bool
) -> None:
    """A running one too: nothing is decided about it, and its task keeps its resources."""
    world = World(nodes=1)
    core = Placing(since=1_000_050)
    leader = led(tmp_path, world, core)
    leader.revision(job("fine"), job(POISON, cpu=3))
    if is_placed:
        leader.hear(*world.nodes)
    leader.cycle()
    core.there = {POISON}
    leader.now = 1_000_060
    leader.cycle()
    assert leader.loop._state.quarantined.keys() == {POISON}
    assert [one.name for one in leader.refusals[0].jobs] == [POISON]
    assert (POISON in placed(leader)) is is_placed
    leader.now += 1
    leader.revision(job("fine"), job(POISON, cpu=3), job("wide", cpu=2))
    leader.loop._track.take(
        msgspec.structs.replace(leader.loop._track.current, quarantined={POISON: "told"}), None
    )
    leader.hear(*world.nodes)
    leader.cycle()
    assert ("wide" in placed(leader)) is not is_placed
    assert leader.counts == {"job": 1}
    leader.close()


def test_after_a_restart_it_is_found_as_well(tmp_path: Path) -> None:
    """What was in force raises then too."""
    world = World(nodes=1)
    first = led(tmp_path, world, Placing())
    first.revision(job("fine"), job(POISON))
    first.cycle()
    first.close()
    was = desired.SyncStatus(jobs_revision="a" * 40, structure_revision="b" * 40)
    before = desired.Desired(structure=world.structure, status=was)
    core = Placing(since=0.0)
    core.there = {POISON}
    again = led(tmp_path, world, core, before=before, accepted=b"then")
    again.generation = 1
    again.revision(job("fine"), job(POISON), job("new"))
    again.cycle()
    again.hear(*world.nodes)
    again.cycle()
    assert placed(again) == {"fine", "new"}
    (refusal,) = again.refusals
    assert [one.name for one in refusal.jobs] == [POISON]
    assert refusal.incumbents == b"accepted 2", "all else of the new revision passed"
    again.close()


def test_a_node_by_whose_word_any_job_raises_is_the_cause_and_no_job_is(tmp_path: Path) -> None:
    world = World(nodes=2)

    def core(
        wanted: desired.Desired, observed: records.Observed, now: float, **options: Any
    ) -> outcome.Outcome:
        result = reconcile.reconcile(wanted, observed, now, **options)
        if any(one.node == "n0" for one in result.attempts):
            raise KeyError
        return result

    leader = Contained(tmp_path, world)
    leader.loop._decider.decide_by = core
    leader.revision(*[job(f"j{number}") for number in range(8)])
    leader.cycle()
    leader.hear("n0")
    leader.cycle()
    assert leader.counts == {"input": 1}
    assert not leader.refusals
    assert leader.loop._state.nodes["n0"].state is NodeState.UNHEALTHY
    leader.now += 1
    leader.hear("n1")
    leader.cycle()
    assert {one.node for one in leader.loop._state.attempts.values()} == {"n1"}
    leader.close()


def test_a_turn_tries_no_more_than_it_may_and_the_search_goes_on_behind_what_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_bisection, "TRIES_MAX", 10)
    names = [f"j{number:03d}" for number in range(100)]
    world = World(nodes=50)
    core = Placing(names[40], names[41], names[90])
    leader = led(tmp_path, world, core)
    leader.revision(*[job(name) for name in names])
    leader.cycle()
    leader.hear(*world.nodes)
    leader.now += 1
    leader.cycle()
    turns = 1
    while leader.loop._search.is_open:
        assert leader.loop._wake_at == leader.now, "the next turn follows at once"
        leader.now += 1
        leader.hear("n7")
        core.calls = 0
        leader.cycle()
        assert core.calls <= job_bisection.TRIES_MAX + 2
        assert leader.loop._state.nodes["n7"].last_report_at == leader.now, "it is heard meanwhile"
        turns += 1
    assert turns > 1
    assert placed(leader) == set(names) - core.jobs
    assert leader.loop._state.quarantined.keys() == core.jobs
    assert leader.counts == {"job": 3}
    leader.close()


def test_jobs_come_back_in_the_order_in_which_they_would_be_served(tmp_path: Path) -> None:
    """A later job takes no resources of an earlier one."""
    site = Full(tmp_path, World(nodes=1), Placing(POISON))
    site.revision(job("runs", cpu=4))
    for _ in range(2):
        site.pass_time(1)
    waiting = [job(f"w{number}", cpu=4, priority=number) for number in range(8)]
    site.revision(job("runs", cpu=4), *waiting, job(POISON, cpu=4, priority=100))
    site.pass_time(1)
    site.end("n0")
    site.pass_time(25)
    assert {one.job for one in site.loop._state.attempts.values()} == {"w7"}
    site.close()


def test_what_was_decided_without_some_jobs_is_replayed_so(tmp_path: Path) -> None:
    world = World(nodes=4)
    core = Placing(POISON, "worse")
    leader = led(tmp_path, world, core)
    jobs = [job("fine"), job(POISON), job("b"), job("worse"), job("c")]
    leader.revision(*jobs)
    leader.cycle()
    for _ in range(3):
        leader.now += 5
        leader.hear(*world.nodes)
        leader.cycle()
    core.jobs = set()
    leader.revision(*jobs, job("more"))  # which leaves nobody aside
    for _ in range(3):
        leader.now += 5
        leader.hear(*world.nodes)
        leader.cycle()
    assert placed(leader) == {"fine", POISON, "b", "worse", "c", "more"}
    leader.close()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        calls = [
            (dict(one.call.wanted.quarantined), one.call.disagreements)
            for one in replays.replay_all(reader)
        ]
    assert {told for _, told in calls} == {()}
    assert any(aside.keys() == {POISON, "worse"} for aside, _ in calls), "it is said who was not"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> repositories.Repository:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, repositories.ENVIRONMENT[name])
    return repositories.Repository(tmp_path / "repository.git")


@pytest.fixture
def site(tmp_path: Path, repository: repositories.Repository) -> Iterator[RevisionSite]:
    made = RevisionSite(tmp_path, repository)
    made.leader.core.queues = set()
    yield made
    made.close()


def until(site: RevisionSite, holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends_at
        site.step()


def test_who_reads_the_repository_tells_of_it_and_tries_it_again_after_twice_as_long(
    site: RevisionSite, repository: repositories.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_quarantine, "WAIT_S", 0.5)
    core = Placing(POISON)
    site.leader.loop._decider.decide_by = core
    files: dict[str, str | bytes | None] = {
        "structure.yaml": STRUCTURE.replace("LIMIT", "8"),
        "a.yaml": repositories.job("a"),
        "p.yaml": repositories.job(POISON),
    }
    head = site.commit(files)
    site.until(head, "Synced")
    site.leader.hear(*site.leader.world.nodes)
    site.leader.cycle()
    status = site.until(head, "OutOfSync")
    (problem,) = status.problems
    assert (problem.rule, problem.object, problem.path) == ("defect", f"Job/{POISON}", "p.yaml")
    assert problem.line > 0
    assert (status.structure_revision, status.jobs_revision) == (head, head)
    assert site.leader.states().keys() == {"a", POISON}

    def waits_s() -> float:
        return max([0.0, *(one.wait.wait_s for one in site.loader._resting._known.get(POISON, ()))])

    for wait_s in (1.0, 2.0):
        until(site, lambda wait_s=wait_s: waits_s() >= wait_s)  # type: ignore[misc]
        site.until(head, "OutOfSync")
    assert placed(site.leader) == {"a"}
    assert not site.leader.loop._state.jobs.get(POISON)
    core.jobs = set()
    site.until(head, "Synced")
    until(site, lambda: placed(site.leader) == {"a", POISON})
    assert site.leader.counts.keys() == {"job"}


def test_it_is_tried_at_once_where_it_is_written_otherwise_and_goes_where_it_is_gone(
    site: RevisionSite, repository: repositories.Repository
) -> None:
    site.leader.loop._decider.decide_by = Placing(POISON)
    files: dict[str, str | bytes | None] = {
        "structure.yaml": STRUCTURE.replace("LIMIT", "8"),
        "p.yaml": repositories.job(POISON),
    }
    head = site.commit(files)
    site.until(head, "Synced")
    site.leader.hear(*site.leader.world.nodes)
    site.leader.cycle()
    site.until(head, "OutOfSync")
    head = site.commit({"p.yaml": repositories.job(POISON, run=2), "b.yaml": repositories.job("b")})
    site.until(head, "OutOfSync")
    until(site, lambda: placed(site.leader) == {"b"})
    head = site.commit({"p.yaml": None})
    site.until(head, "Synced")
    until(site, lambda: site.leader.states()[POISON] is JobState.CANCELLED)


def test_a_node_of_which_nothing_can_be_decided_gets_no_work_and_keeps_none(
    tmp_path: Path,
) -> None:
    """Not even its contact is processed: it is out and its leases end; once heard it is back."""
    deaf: set[str] = set()

    def core(
        wanted: desired.Desired, observed: records.Observed, now: float, **options: Any
    ) -> outcome.Outcome:
        if any(one.node in deaf for one in observed.reports):
            raise KeyError
        return reconcile.reconcile(wanted, observed, now, **options)

    site = Full(tmp_path, World(nodes=2), core)
    site.unanswered = deaf
    first = job("a", cpu=4, lease_s=15)
    site.revision(first)
    for _ in range(3):
        site.pass_time(1)
    ((node, _),) = {(one.node, one.job) for one in site.loop._state.attempts.values()}
    (other,) = {"n0", "n1"} - {node}
    deaf.add(node)
    for _ in range(40):
        site.pass_time(7)
    site.revision(first, job("later", cpu=1))
    for _ in range(4):
        site.pass_time(7)
    memory = site.loop._state
    assert memory.nodes[node].state is NodeState.UNKNOWN, "nobody has answered it since"
    live = {one.job: one.node for one in memory.attempts.values() if one.state in LIVE}
    assert live == {"a": other}, "it is full, and 'later' waits for it"
    deaf.clear()
    for _ in range(12):
        site.pass_time(7)
    assert memory.nodes[node].state is NodeState.READY
    live = {one.job: one.node for one in memory.attempts.values() if one.state in LIVE}
    assert live == {"a": other, "later": node}
    site.close()

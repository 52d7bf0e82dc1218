"""A job that makes cycles raise costs that job: everything else of its revision is applied.

The loop, the git watcher and the core are real. The core raises for jobs that a test names, or for
one version of a job.
"""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.controller.quarantine import internal_errors, revision_bisection
from reconciler.desired.apply import job_quarantine, last_good
from reconciler.model import desired
from reconciler.model.state import outcome
from reconciler.model.state.states import JobState
from reconciler.operations.audit import audit_log
from reconciler.operations.views import stored_views
from reconciler.store import StoreReader
from tests.unit import replays
from tests.unit.controller.quarantine.test_containment import POISON, Contained
from tests.unit.controller.quarantine.test_containment_revisions import (
    QUEUE,
    STRUCTURE,
    RevisionSite,
)
from tests.unit.core.world import World, job
from tests.unit.desired import repositories
from tests.unit.test_replay import url


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Contained]:
    made = Contained(tmp_path, World(nodes=4))
    made.revision(job("fine"), job("goes"))
    made.hear(*made.world.nodes)
    made.cycle()
    yield made
    made.close()


def after(name: str, *others: str) -> desired.Job:
    return job(name, depends_on=tuple(desired.Dependency(one) for one in others))


def test_a_job_that_cannot_be_decided_costs_nobody_else(leader: Contained) -> None:
    leader.core.jobs = {POISON}
    leader.now += 1
    held = msgspec.structs.replace(job("held"), suspend=True)
    leader.revision(job("fine", priority=7), job("new"), job(POISON), held)
    leader.hear("n0")
    leader.cycle()
    states = leader.states()
    assert states.keys() == {"fine", "goes", "new", "held"}
    assert states["held"] is JobState.HELD
    memory = leader.loop._state
    assert memory.jobs["goes"].removed or memory.jobs["goes"].finished, "a cancel applies"
    assert memory.jobs["fine"].spec.priority == 7
    status = leader.sync()
    assert (status.sync, status.attempted_revision) == ("OutOfSync", f"{2:040d}")
    assert (status.structure_revision, status.jobs_revision) == (f"{2:040d}", f"{2:040d}")
    (problem,) = status.problems
    assert (problem.rule, problem.object) == ("defect", f"Job/{POISON}")
    assert "KeyError in " in problem.message
    assert "secret" not in problem.message
    assert status == stored_views.stored_sync(leader.store.reader.view(stored_views.SYNC))
    assert leader.store.reader.incumbents() == b"accepted 1", "who reads git judges it anew"
    (refusal,) = leader.refusals
    assert (refusal.generation, refusal.incumbents) == (2, b"accepted 1")
    (left,) = refusal.jobs
    assert (left.name, left.spec, left.tried) == (POISON, job(POISON), True)
    assert leader.counts == {"job": 1}


def test_the_version_in_force_stays_where_the_newer_one_raises(tmp_path: Path) -> None:
    world = World(nodes=4)
    leader = Contained(tmp_path, world)
    leader.revision(job(POISON), job("fine"))
    leader.hear(*world.nodes)
    leader.cycle()
    decide = leader.core

    def raising(wanted: desired.Desired, *args: object, **options: object) -> object:
        result = decide(wanted, *args, **options)  # type: ignore[arg-type]
        if POISON in wanted.jobs and wanted.jobs[POISON].priority == 5:
            raise KeyError
        return result

    leader.loop._decider.decide_by = raising  # type: ignore[assignment]
    leader.revision(job(POISON, priority=5), job("fine"), job("new"))
    leader.now += 1
    leader.cycle()
    assert leader.states().keys() == {POISON, "fine", "new"}
    assert leader.loop._state.jobs[POISON].spec.priority == 50
    assert not leader.loop._state.jobs[POISON].removed
    assert "the version in force stays" in leader.sync().problems[0].message
    leader.close()


def test_a_job_without_which_no_cycle_passes_stays(leader: Contained) -> None:
    decide = leader.loop._decider.decide_by

    def raising(wanted: desired.Desired, *args: object, **options: object) -> object:
        result = decide(wanted, *args, **options)
        if "goes" not in wanted.jobs:
            raise KeyError
        return result

    leader.loop._decider.decide_by = raising  # type: ignore[assignment]
    leader.revision(job("fine"), job("new"))
    leader.now += 1
    leader.cycle()
    assert leader.states().keys() == {"fine", "goes", "new"}
    assert not leader.loop._state.jobs["goes"].removed
    (left,) = leader.refusals[0].jobs
    assert (left.name, left.spec) == ("goes", None)


@pytest.mark.parametrize(
    ("spoilt", "named"),
    [
        ({"submitted_at": math.nan}, "StoreRefusedError"),  # which SQLite takes for nothing
        ({"submitted_at": {}}, "StoreRefusedError"),
        ({"order": 2**63}, "OverflowError"),
        ({"message": "\ud800"}, "UnicodeEncodeError"),
    ],
)
def test_a_job_that_the_store_refuses_costs_nobody_else(
    leader: Contained, spoilt: dict[str, Any], named: str
) -> None:
    """The store is fine, and would refuse it each time."""
    decide = leader.loop._decider.decide_by

    def spoiling(*args: Any, **options: Any) -> outcome.Outcome:
        result = decide(*args, **options)
        jobs = [
            msgspec.structs.replace(one, **spoilt) if one.name == POISON else one
            for one in result.jobs
        ]
        return msgspec.structs.replace(result, jobs=tuple(jobs))

    leader.loop._decider.decide_by = spoiling
    leader.revision(job("fine"), job("goes"), job(POISON), job("new"))
    leader.cycle()
    assert leader.states().keys() == {"fine", "goes", "new"}
    assert [one.name for one in leader.refusals[0].jobs] == [POISON]
    assert f"{named} in reconciler/" in leader.sync().problems[0].message
    leader.now += 1
    leader.hear("n0")
    leader.cycle()
    assert leader.loop._state.nodes["n0"].last_report_at == leader.now


def test_structure_that_raises_refuses_its_revision(leader: Contained) -> None:
    leader.core.queues = {POISON}
    leader.revision(job("fine"), job("goes"), job("new"), queue=POISON)
    leader.cycle()
    assert leader.states().keys() == {"fine", "goes"}
    assert leader.counts == {"revision": 1}
    assert leader.refusals[0].jobs == ()
    assert not any(one.removed for one in leader.loop._state.jobs.values())


def test_structure_without_the_queue_of_a_job_that_stays_is_not_torn_from_its_jobs(
    leader: Contained,
) -> None:
    """The git watcher accepts no such structure, so the two would alternate."""
    leader.core.jobs = {POISON}
    structure = leader.world.structure
    fewer = {name: one for name, one in structure.queues.items() if name != "default"}
    queues = {**fewer, "new": desired.Queue("new")}
    leader.world.structure = msgspec.structs.replace(structure, queues=queues)
    moved = [job(name, queue="new") for name in ("fine", "goes", "more", POISON)]
    leader.revision(*moved)
    leader.cycle()
    assert leader.states().keys() == {"fine", "goes"}
    assert {one.spec.queue for one in leader.loop._state.jobs.values()} == {"default"}
    assert leader.refusals[0].jobs == (), "all of it is refused"


def test_what_leaves_and_what_is_held_is_tried_first() -> None:
    """Otherwise new jobs would preempt others although the same commit frees resources."""
    before = {one.name: one for one in (job("gone"), job("held"), job("same"))}
    held = msgspec.structs.replace(job("held"), suspend=True)
    wanted = {one.name: one for one in (job("new"), held, job("same"))}
    assert revision_bisection.group_changes(before, wanted) == [["held", "gone"], ["new"]]


def test_what_depends_on_a_job_that_is_left_out_waits_with_it(leader: Contained) -> None:
    leader.core.jobs = {POISON}
    leader.revision(
        after("second", "first"), after("first", POISON), job(POISON), job("fine"), job("goes")
    )
    leader.cycle()
    assert leader.states().keys() == {"fine", "goes"}
    wanted = leader.loop._track.desired
    assert wanted is not None
    assert wanted.refused.keys() == {POISON, "first", "second"}
    assert [one.name for one in leader.refusals[0].jobs] == [POISON]


@pytest.mark.parametrize("poisoned", [1, 3])
def test_tries_are_bounded_and_what_they_did_not_come_to_is_named(
    leader: Contained, poisoned: int
) -> None:
    names = [f"j{number:04d}" for number in range(1000)]
    leader.core.jobs = set(names[500 : 500 + 100 * poisoned : 100])
    leader.revision(job("fine"), job("goes"), *[job(name) for name in names])
    leader.core.calls = 0
    leader.cycle()
    assert leader.core.calls <= revision_bisection.TRIES_MAX + 5
    found = {one.name: one.tried for one in leader.refusals[0].jobs}
    assert {name for name, tried in found.items() if tried} <= leader.core.jobs
    assert leader.loop._state.jobs.keys() == {"fine", "goes", *names} - found.keys()
    if poisoned == 1:
        assert found.keys() == leader.core.jobs


def test_a_search_that_takes_long_finds_one_and_leaves_the_rest_for_later(
    leader: Contained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision_bisection, "SEARCH_S", -1.0)
    names = [f"j{number:03d}" for number in range(100)]
    leader.core.jobs = set(names[::10])
    leader.revision(job("fine"), job("goes"), *[job(name) for name in names])
    leader.core.calls = 0
    leader.cycle()
    assert leader.core.calls <= 2 * len(names).bit_length() + 12
    found = {one.name: one.tried for one in leader.refusals[0].jobs}
    assert True in found.values()
    assert leader.loop._state.jobs.keys() == {"fine", "goes", *names} - found.keys()


def test_what_passes_in_halves_is_replayed_as_it_was_decided(
    leader: Contained, tmp_path: Path
) -> None:
    leader.core.jobs = {POISON, "worse"}
    leader.revision(job("fine"), job("a"), job("worse"), job("b"), job(POISON), job("c"))
    for _ in range(3):
        leader.now += 1
        leader.hear(*leader.world.nodes)
        leader.cycle()
    leader.store.close()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        replayed = [one.call.disagreements for one in replays.replay_all(reader)]
    assert len(replayed) > 5
    assert set(replayed) == {()}


def test_at_a_start_the_runs_in_the_store_are_what_it_is_found_from(tmp_path: Path) -> None:
    world = World(nodes=4)
    first = Contained(tmp_path, world)
    first.revision(job("runs"))
    first.hear(*world.nodes)
    first.cycle()
    first.close()
    was = desired.SyncStatus(jobs_revision="a" * 40, structure_revision="b" * 40)
    before = desired.Desired(structure=world.structure, status=was)
    again = Contained(tmp_path, world, before=before, accepted=b"then")
    again.core.jobs = {POISON}
    again.generation = 1
    again.revision(job("runs"), job("new"), job(POISON))
    again.cycle()
    assert again.states().keys() == {"runs", "new"}
    assert [one.name for one in again.refusals[0].jobs] == [POISON]
    again.close()


def test_dependencies_come_first_and_what_is_gone_last() -> None:
    before = {one.name: one for one in (job("same"), job("gone"), job("other"))}
    wanted = [after("c", "b", "same"), after("b", "a"), job("same"), job("a")]
    wanted += [job("other", priority=3), after("x", "y"), after("y", "x")]
    found = revision_bisection.changed(before, {one.name: one for one in wanted})
    assert found == ["a", "b", "c", "other", "y", "x", "gone"]


def test_a_job_is_left_alone_for_twice_as_long_each_time_it_raises_so() -> None:
    rests = job_quarantine.QuarantineTimers()
    one = job_quarantine.QuarantinedJob("a", job("a"), "why")
    rests.put([one], 100.0)
    assert rests.resting(159.0) == {"a": (one,)}
    assert rests.again_at(rests.resting(159.0)) == 160.0
    assert not rests.resting(160.0)
    assert not rests.resting(90.0), "a clock that was set back keeps nobody waiting"
    rests.put([one], 161.0)
    assert rests.again_at(rests.resting(161.0)) == 281.0
    other = job_quarantine.QuarantinedJob("a", job("a", priority=1), "why")
    rests.put([other], 200.0)
    assert rests.resting(200.0) == {"a": (one, other)}, "neither makes the other be tried"
    assert rests.again_at(rests.resting(200.0)) == 260.0, "it is another one"
    assert rests.again_at(rests.resting(270.0)) == 281.0
    rests.put([one], 300.0)
    assert rests.again_at(rests.resting(500.0)) == 540.0
    for number in range(2 * job_quarantine.WRITTEN_MAX):
        rests.put([job_quarantine.QuarantinedJob("a", job("a", run=number), "why")], 600.0)
    assert len(rests.resting(600.0)["a"]) == job_quarantine.WRITTEN_MAX
    rests.put([job_quarantine.QuarantinedJob("b", job("b"), "", tried=False)], 700.0)
    known = rests.resting(700.0)
    assert rests.again_at({"b": known["b"]}) == 700.0 + job_quarantine.UNTRIED_S
    rests.put([], 1e6)
    assert rests.again_at(known) is None


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> repositories.Repository:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, repositories.ENVIRONMENT[name])
    return repositories.Repository(tmp_path / "repository.git")


def test_a_revision_applies_but_for_its_poisonous_job_until_that_is_written_otherwise(
    tmp_path: Path, repository: repositories.Repository
) -> None:
    site = RevisionSite(tmp_path, repository)
    site.leader.core.jobs = {POISON}
    good = site.commit(
        {
            "structure.yaml": STRUCTURE.replace("LIMIT", "3"),
            "a.yaml": repositories.job("a"),
            "c.yaml": repositories.job("c"),
        }
    )
    site.until(good, "Synced")
    bad = site.commit(
        {
            "structure.yaml": STRUCTURE.replace("LIMIT", "2"),
            "p.yaml": repositories.job(POISON),
            "b.yaml": repositories.job("b"),
            "c.yaml": None,
        }
    )
    status = site.until(bad, "OutOfSync")
    assert (status.structure_revision, status.jobs_revision) == (bad, bad)
    (problem,) = status.problems
    assert (problem.rule, problem.object, problem.path) == ("defect", f"Job/{POISON}", "p.yaml")
    assert problem.line > 0
    now = site.leader.loop._track.desired
    assert now is not None
    assert now.jobs.keys() == {"a", "b"}
    assert now.refused.keys() == {POISON}
    assert now.structure.queues["research"].limit.cpu_milli == 2000
    assert site.leader.loop._state.jobs["c"].removed or site.leader.loop._state.jobs["c"].finished
    packed = site.leader.store.reader.incumbents()
    assert packed is not None
    assert last_good.decode(packed).head == bad
    more = site.commit({"d.yaml": repositories.job("d")})
    status = site.until(more, "OutOfSync")
    assert site.leader.counts == {"job": 1}, "it is left alone for a while"
    fixed = site.commit({"p.yaml": None})
    site.until(fixed, "Synced")
    assert {"a", "b", "d"} <= site.leader.states().keys()
    site.close()
    note = repositories.git(repository.path, "notes", "--ref=muster", "show", bad)
    assert "OutOfSync with 1 errors" in note
    assert f"Job/{POISON}: {internal_errors.MARK}" in note
    lines = audit_log.Log(tmp_path / audit_log.FILE).tail(10)[::-1]
    assert [(one.entry.revision, one.entry.result) for one in lines] == [
        (good, "Synced"),
        (bad, "Synced"),
        (bad, "OutOfSync"),
        (more, "OutOfSync"),
        (fixed, "Synced"),
    ]


def test_a_job_is_tried_again_by_itself_when_its_time_has_come(
    tmp_path: Path, repository: repositories.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_quarantine, "WAIT_S", 0.2)
    site = RevisionSite(tmp_path, repository)
    site.leader.core.jobs = {POISON}
    bad = site.commit(
        {
            "structure.yaml": STRUCTURE.replace("LIMIT", "3"),
            "p.yaml": repositories.job(POISON),
            "b.yaml": repositories.job("b"),
        }
    )
    site.until(bad, "OutOfSync")
    assert site.leader.states().keys() == {"b"}
    site.leader.core.jobs = set()
    site.until(bad, "Synced")
    assert site.leader.states().keys() == {"b", POISON}
    site.close()


def test_a_job_and_structure_that_raise_are_told_apart(
    tmp_path: Path, repository: repositories.Repository
) -> None:
    site = RevisionSite(tmp_path, repository)
    site.leader.core.jobs = {POISON}
    good = site.commit({"structure.yaml": STRUCTURE.replace("LIMIT", "3")})
    site.until(good, "Synced")
    bad = site.commit({"q.yaml": QUEUE, "p.yaml": repositories.job(POISON)})
    status = site.until(bad, "OutOfSync")
    assert status.structure_revision == good
    better = site.commit({"q.yaml": None, "b.yaml": repositories.job("b")})
    status = site.until(better, "OutOfSync")
    assert status.structure_revision == better
    assert site.leader.states().keys() == {"b"}
    site.close()


def test_a_job_and_the_newer_run_that_it_is_to_wait_for_go_whole(leader: Contained) -> None:
    """With the run in force it would start on a result that its commit replaces."""
    decide = leader.loop._decider.decide_by

    def raising(wanted: desired.Desired, *args: object, **options: object) -> object:
        result = decide(wanted, *args, **options)
        if wanted.jobs["goes"].run == 2:
            raise KeyError
        return result

    leader.loop._decider.decide_by = raising  # type: ignore[assignment]
    leader.revision(job("fine"), job("goes", run=2), after("eval", "goes"), after("then", "eval"))
    leader.cycle()
    assert leader.states().keys() == {"fine", "goes"}
    wanted = leader.loop._track.desired
    assert wanted is not None
    assert wanted.jobs["goes"].run == 1
    assert wanted.refused.keys() == {"eval", "then"}
    assert [one.name for one in leader.refusals[0].jobs] == ["goes"]


def test_who_reads_the_repository_leaves_who_depends_on_a_run_that_is_left() -> None:
    one, newer = job("train"), job("train", run=2)
    left = job_quarantine.JobsLeftAsBefore(
        {"train": (job_quarantine.QuarantinedJob("train", newer, "why"),)}
    )
    in_force = {"train": one, "old": after("old", "train")}
    proposed = {**in_force, "eval": after("eval", "train"), "then": after("then", "eval")}
    proposed["by"] = after("by", "fine")
    assert [fault.message for fault in left.faults("train", newer, one)] == ["why"]
    waiting = ["by", "eval", "old", "then"]
    assert set(left.take_back(waiting, proposed, in_force)) == {"eval", "then"}
    assert proposed.keys() == {"train", "old", "by"}


def test_a_job_whose_priority_alone_could_not_be_decided_keeps_nobody_waiting() -> None:
    one, newer = job("train"), job("train", priority=7)
    left = job_quarantine.JobsLeftAsBefore(
        {"train": (job_quarantine.QuarantinedJob("train", newer, "why"),)}
    )
    proposed = {"train": one, "eval": after("eval", "train")}
    assert left.faults("train", newer, one)
    assert not left.take_back(["eval"], proposed, {"train": one})


def test_what_was_not_come_to_once_keeps_how_long_it_had_to_wait() -> None:
    rests = job_quarantine.QuarantineTimers()
    one = job_quarantine.QuarantinedJob("a", job("a"), "why")
    rests.put([one], 0.0)
    rests.put([one], 100.0)
    rests.put([msgspec.structs.replace(one, tried=False, message="others")], 300.0)
    assert rests.again_at(rests.resting(300.0)) == 300.0 + job_quarantine.UNTRIED_S
    rests.put([one], 400.0)
    assert rests.again_at(rests.resting(400.0)) == 400.0 + 4 * job_quarantine.WAIT_S


def test_a_half_is_told_as_what_it_is(leader: Contained) -> None:
    """Its structure is that of the revision, whatever happens to the jobs."""
    leader.core.jobs = {POISON}
    told: list[tuple[str, str | None, str]] = []
    decide = leader.loop._decider.decide_by

    def noting(wanted: desired.Desired, *args: object, **options: object) -> object:
        result = decide(wanted, *args, **options)
        status = wanted.status
        told.append((status.sync, status.structure_revision, status.message))
        return result

    leader.loop._decider.decide_by = noting  # type: ignore[assignment]
    leader.revision(job("fine"), job("goes"), job("new"), job(POISON))
    leader.cycle()
    assert ("OutOfSync", f"{2:040d}", revision_bisection.TRYING) in told

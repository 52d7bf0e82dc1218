"""A job that is quarantined while it runs: its use counts, its time goes on, its end is not lost.

The loop and the core are real, as in ``test_job_bisection``.
"""

from pathlib import Path

import msgspec
import pytest

from reconciler.core import cycle_context
from reconciler.core.jobs import quarantined_jobs
from reconciler.model import desired
from reconciler.model.state.pending_reasons import ReasonCode
from reconciler.model.state.states import AttemptState, EndReason, JobState, NodeState
from tests.unit.controller.quarantine.test_containment import POISON
from tests.unit.controller.quarantine.test_job_bisection import Full, Placing
from tests.unit.core import test_mig
from tests.unit.core.test_mig import THREES, cut
from tests.unit.core.world import World, job

QUOTAS = {
    "amounts": desired.Quota(
        name="cap", queue="default", resources=desired.QuotaAmounts(cpu_milli=4000)
    ),
    "running": desired.Quota(name="cap", queue="default", running=1),
}


def left_out(folder: Path, world: World, running: desired.Job) -> Full:
    """Return a site with a running job that is then quarantined."""
    core = Placing(since=1_000_050)
    site = Full(folder, world, core)
    site.revision(running)
    for _ in range(3):
        site.pass_time(1)
    core.there = {running.name}
    site.now = max(site.now, 1_000_060)
    site.pass_time(1)
    assert site.loop._state.quarantined.keys() == {running.name}
    return site


def running(site: Full) -> set[str]:
    attempts = site.loop._state.attempts.values()
    return {one.job for one in attempts if one.state is not AttemptState.ENDED}


@pytest.mark.parametrize("quota", list(QUOTAS.values()), ids=list(QUOTAS))
def test_what_it_holds_counts_for_every_quota(tmp_path: Path, quota: desired.Quota) -> None:
    world = World(nodes=3)
    world.change_structure(quotas={"cap": quota})
    poison = job(POISON, cpu=4)
    site = left_out(tmp_path, world, poison)
    site.revision(poison, job("more", cpu=4))
    site.loop._track.take(desired_aside(site.loop._track.current), None)
    for _ in range(3):
        site.pass_time(2)
    assert site.loop._state.quarantined.keys() == {POISON}
    assert running(site) == {POISON}
    site.close()


def desired_aside(wanted: desired.Desired) -> desired.Desired:
    return msgspec.structs.replace(wanted, quarantined={POISON: "told"})


def test_who_must_not_be_beside_it_is_not(tmp_path: Path) -> None:
    poison = job(POISON, labels={"app": "db"})
    site = left_out(tmp_path, World(nodes=1, cpu=8), poison)
    apart = desired.JobAffinity(labels=(("app", "db"),), apart=True)
    site.revision(poison, job("more", affinities=(apart,)), job("other"))
    site.loop._track.take(desired_aside(site.loop._track.current), None)
    for _ in range(3):
        site.pass_time(2)
    assert running(site) == {POISON, "other"}
    site.close()


def test_a_task_of_a_job_that_is_left_out_goes_on_and_its_end_is_not_lost(tmp_path: Path) -> None:
    core = Placing(since=1_000_050)
    site = Full(tmp_path, World(nodes=1), core)
    site.revision(job("fine"), job(POISON))
    for _ in range(3):
        site.pass_time(1)
    core.there = {POISON}
    site.now = max(site.now, 1_000_060)
    site.pass_time(1)
    assert site.loop._state.quarantined.keys() == {POISON}
    (attempt,) = [one for one in site.loop._state.attempts.values() if one.job == POISON]
    site.world.nodes["n0"].end(attempt.id, site.now, exit_code=0)
    for _ in range(3):
        site.pass_time(5)
    assert site.states()[POISON] is JobState.RUNNING, "nothing is decided about it"
    assert site.loop._state.attempts[attempt.id].state is AttemptState.ENDED
    assert site.loop._state.nodes["n0"].state is NodeState.READY
    core.there = set()
    site.revision(job("fine"), job(POISON))
    for _ in range(3):
        site.pass_time(5)
    assert site.states()[POISON] is JobState.SUCCEEDED
    site.close()


def pass_on(site: Full, *jobs: desired.Job, seconds: float = 2.0, times: int = 3) -> None:
    """Let time pass under a revision that still leaves out the job."""
    site.revision(*jobs)
    site.loop._track.take(desired_aside(site.loop._track.current), None)
    for _ in range(times):
        site.pass_time(seconds)


def back(site: Full, *jobs: desired.Job) -> None:
    """Repair the error, so that the job is decided again."""
    assert isinstance(site.loop._decider.decide_by, Placing)
    site.loop._decider.decide_by.there = set()
    site.revision(*jobs)
    for _ in range(3):
        site.pass_time(2)


#: What ends a task of a job by time alone, after the moment from which the job is left out.
TIMES = {
    "limit": {"time_limit_s": 300},
    "deadline": {"deadline": 1_000_300.0},
    "the earlier": {"time_limit_s": 9000, "deadline": 1_000_300.0},
}


@pytest.mark.parametrize("limits", list(TIMES.values()), ids=list(TIMES))
def test_its_time_ends_it_though_nothing_is_decided_about_it(
    tmp_path: Path, limits: dict[str, float]
) -> None:
    poison = job(POISON, **limits)
    site = left_out(tmp_path, World(nodes=1), poison)
    pass_on(site, poison, times=1)
    assert running(site) == {POISON}
    site.now = 1_000_310
    pass_on(site, poison)
    (attempt,) = [one for one in site.loop._state.attempts.values() if one.job == POISON]
    assert (attempt.state, attempt.end_reason) == (AttemptState.ENDED, EndReason.TIMED_OUT)
    assert site.states()[POISON] is JobState.RUNNING, "what that makes of it is not decided yet"
    back(site, poison)
    assert site.states()[POISON] is JobState.TIMED_OUT
    site.close()


def test_a_cycle_is_made_when_its_time_is_up(tmp_path: Path) -> None:
    poison = job(POISON, time_limit_s=300)
    site = left_out(tmp_path, World(nodes=1), poison)
    (attempt,) = site.loop._state.attempts.values()
    assert attempt.started_at is not None
    wanted = site.loop._track.desired
    assert wanted is not None
    desk = cycle_context.CycleContext(wanted, site.loop._state.observed((), {}), site.now)
    quarantined_jobs.end_overdue(desk, frozenset())
    assert (desk.alarm.wake_at, desk.attempts.renewed) == (attempt.started_at + 300, {})
    site.close()


def test_a_task_that_its_node_knows_no_longer_is_lost_and_starts_again_with_its_job(
    tmp_path: Path,
) -> None:
    poison = job(POISON, cpu=4)
    site = left_out(tmp_path, World(nodes=1), poison)
    site.world.nodes["n0"].attempts.clear()
    site.hear("n0")
    site.cycle()
    pass_on(site, poison, job("more", cpu=4))
    (lost,) = [one for one in site.loop._state.attempts.values() if one.job == POISON]
    assert (lost.state, lost.end_reason) == (AttemptState.ENDED, EndReason.LOST)
    assert running(site) == {"more"}, "what the node has not any more is free"
    site.end("n0")
    back(site, poison, job("more", cpu=4))
    assert site.states() == {POISON: JobState.RUNNING, "more": JobState.SUCCEEDED}
    site.close()


def test_the_budget_that_was_held_back_for_it_stays_so(tmp_path: Path) -> None:
    world = World(nodes=2, gpu=1)
    budget = desired.Quota(name="hours", queue="default", budget_gpu_s=4000)
    world.change_structure(quotas={"hours": budget})
    poison = job(POISON, gpu=1, time_limit_s=3600)
    more, short = job("more", gpu=1, time_limit_s=3600), job("short", gpu=1, time_limit_s=300)
    site = left_out(tmp_path, world, poison)
    pass_on(site, poison, more, short)
    assert running(site) == {POISON, "short"}
    (reason,) = site.loop._state.reasons[site.loop._state.jobs["more"].reason_key]
    assert reason.code is ReasonCode.OVER_BUDGET
    site.close()


def test_what_it_waits_for_in_its_next_try_stays_known(tmp_path: Path) -> None:
    """A finished job without a document is forgotten, unless a quarantined one depends on it."""
    world = World(nodes=1)
    world.change_structure(settings=desired.ClusterSettings(retain_finished_jobs_s=60))
    core = Placing(since=1_000_050)
    site = Full(tmp_path, world, core)
    poison = job(POISON, depends_on=(desired.Dependency("first"),))
    site.revision(job("first"), job("alone"), poison)
    for _ in range(2):
        site.pass_time(1)
    site.end("n0")
    for _ in range(3):
        site.pass_time(1)
    assert running(site) == {POISON}
    core.there = {POISON}
    site.now = max(site.now, 1_000_060)
    site.pass_time(1)
    pass_on(site, poison, seconds=700)
    assert site.loop._state.jobs.keys() == {"first"}
    site.close()


def test_the_instance_that_it_has_is_given_to_nobody_else(tmp_path: Path) -> None:
    world = World(nodes=1, gpu=1)
    layout = (desired.MigLayout(0, THREES),)
    world.change_structure(pools={"pool": msgspec.structs.replace(world.pool, mig=layout)})
    node = test_mig.Node("n0", world.pool)
    node.gpus = (cut(0, THREES),)
    world.nodes["n0"] = node
    profile = THREES[0][0]
    poison = test_mig.task(POISON, 428, profile)
    site = left_out(tmp_path, world, poison)
    pass_on(site, poison, *[test_mig.task(name, 428, profile) for name in ("a", "b")])
    assert len(running(site)) == 2
    assert POISON in running(site)
    site.close()

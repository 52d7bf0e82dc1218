"""A clock that is set back by hours makes nothing wait, or last, for those hours."""

import pytest

from reconciler.model import desired
from reconciler.model.policy import drift_kinds
from reconciler.model.state.states import JobState, NodeState
from tests.unit.core import test_checks
from tests.unit.core.pools import test_provisioning
from tests.unit.core.world import World, job

BACK_S = 6 * 3600.0


def set_back(of: World) -> None:
    """Set the clock back, and let the loop notice."""
    of.now -= BACK_S
    of.memory.leader_since = of.now
    of.hear()
    of.cycle()


def state(of: World) -> JobState:
    return of.memory.jobs["j"].state


def test_a_retry_waits_no_longer_than_it_was_to() -> None:
    site = World(nodes=1)
    retries = desired.Retries(limit=3, backoff_s=40, max_backoff_s=600)
    site.commit(job("j", retries=retries))
    site.settle()
    site.end("j", exit_code=1)
    site.advance(41)
    assert state(site) is JobState.RUNNING
    site.end("j", exit_code=1)
    assert site.memory.jobs["j"].notes[0].not_before == site.now + 80
    site.now += 5
    set_back(site)
    assert site.memory.jobs["j"].notes[0].not_before == site.now + 80
    site.advance(79)
    assert state(site) is JobState.PENDING
    site.advance(2)
    assert state(site) is JobState.RUNNING


def test_a_wait_that_is_shorter_than_it_was_to_be_stays_as_it_is() -> None:
    site = World(nodes=1)
    site.commit(job("j", retries=desired.Retries(limit=3, backoff_s=40)))
    site.settle()
    site.end("j", exit_code=1)
    due = site.memory.jobs["j"].notes[0].not_before
    site.now += 5
    site.memory.leader_since = site.now
    site.hear()
    site.cycle()
    assert site.memory.jobs["j"].notes[0].not_before == due


def test_a_time_limit_counts_from_now_on_at_the_latest() -> None:
    site = World(nodes=1)
    site.commit(job("j", time_limit_s=600))
    site.advance(10)
    assert state(site) is JobState.RUNNING
    set_back(site)
    (attempt,) = site.memory.attempts.values()
    record = site.memory.jobs["j"]
    assert record.submitted_at == record.started_at == site.now
    assert attempt.assigned_at == attempt.started_at == site.now
    site.advance(601)
    assert state(site) is JobState.TIMED_OUT


def test_a_node_is_out_no_longer_than_it_was_to_be() -> None:
    site = test_checks._hole()
    for number in range(3):
        test_checks._fail(site, f"j{number}", f"u{number}")
    site.round()
    assert site.state("n0") is NodeState.UNHEALTHY
    set_back(site)
    assert site.memory.nodes["n0"].out_until == site.now + 3600
    assert max(one.at for one in site.memory.nodes["n0"].failures) <= site.now
    site.now += 3601
    site.round()
    site.round()
    assert site.state("n0") is NodeState.READY


def test_a_node_whose_checks_came_and_went_is_out_no_longer_than_it_was_to_be() -> None:
    site = test_checks.Site(remedies={})
    test_checks._flaps(site, 3, apart_s=0)
    assert site.state("n0") is NodeState.UNHEALTHY
    set_back(site)
    known = site.memory.nodes["n0"].flapping
    assert max(known.at) <= site.now
    assert known.until <= site.now + 600
    site.now += 601
    site.round()
    site.round()
    assert site.state("n0") is NodeState.READY


def test_tries_at_a_remedy_go_on() -> None:
    site = World(nodes=1)
    site.settle()
    one = drift_kinds.DriftRemedy(
        "r", "reboot", "c", "pool", site.now, state="done", ended_at=site.now + 5
    )
    site.now += 10
    site.memory.remedies = (one,)
    set_back(site)
    (known,) = site.memory.remedies
    assert (known.at, known.ended_at) == (site.now, site.now)


@pytest.mark.parametrize("failing", ["create", "list"])
def test_scripts_are_asked_again_in_time(failing: str) -> None:
    cloud = test_provisioning.Cloud()
    cloud.fails = {failing}
    cloud.commit(job("j"))
    cloud.go(120)
    before = cloud.provision
    set_back(cloud)
    cloud.fails = set()
    cloud.go(1900)
    if failing == "create":
        assert state(cloud) is JobState.RUNNING
    assert cloud.provision.listed_at >= cloud.now - 700
    assert before.list_at > cloud.now, "else it shows nothing"


def test_nothing_changes_where_the_clock_was_not_set() -> None:
    site = World(nodes=2)
    site.commit(job("j"), job("k", gpu=0), job("l"))
    site.advance(30)
    site.now += 1
    site.memory.leader_since = site.now
    result = site.cycle()
    assert (result.attempts, result.jobs) == ((), ())


def test_it_is_the_same_with_nothing_recalled() -> None:
    """A long story of steps is decided the same with the cache and without."""
    told = []
    for fresh in (False, True):
        site = World(nodes=2)
        site.commit(job("j", time_limit_s=900, retries=desired.Retries(limit=5)), job("k"))
        said = []
        for step in (10, 30, -BACK_S, 20, 70, -BACK_S, 900, 40):
            site.now += step
            if step < 0:
                site.memory.leader_since = site.now
            if step == 20:
                site.end("j", exit_code=1)
            for _ in range(3):
                if fresh:
                    site.memory.rebuild_cache()
                site.hear()
                said.append(site.cycle())
        told.append(said)
    assert told[0] == told[1]

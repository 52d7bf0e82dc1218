"""The impact of changes, and what digests depend on, as tables."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.safety import digests, impact
from reconciler.model import desired
from reconciler.model.observed import task_reports
from reconciler.model.state import instance_records, records, states
from reconciler.model.values.resources import Resources
from tests.unit.core import world


def pool(name: str, count: int, gpus: int = 8, **changes: Any) -> desired.Pool:
    values: dict[str, Any] = {
        "name": name,
        "nodes": tuple(f"{name}{number}" for number in range(count)),
        "node_resources": Resources(64_000, 2**38, gpus * 1000),
    }
    return desired.Pool(**(values | changes))


def state(
    *pools: desired.Pool,
    queues: tuple[desired.Queue, ...] = (desired.Queue("default"),),
    jobs: tuple[desired.Job, ...] = (),
    **settings: Any,
) -> desired.Desired:
    return desired.Desired(
        generation=1,
        structure=desired.Structure(
            settings=desired.ClusterSettings(**settings),
            pools={one.name: one for one in pools},
            queues={one.name: one for one in queues},
        ),
        jobs={one.name: one for one in jobs},
    )


def found(before: desired.Desired, after: desired.Desired) -> impact.Impact:
    return impact.measure_impact(before, after, records.Observed(), 0.0)


A4 = pool("a", 4)


@pytest.mark.parametrize(
    ("before", "after", "leaving", "entering", "share"),
    [
        ((A4,), (A4,), 0, 0, 0.0),
        ((A4,), (pool("a", 2),), 16, 0, 0.5),
        ((A4,), (pool("a", 5),), 0, 8, 0.0),
        ((A4,), (pool("a", 4, gpus=6),), 8, 0, 0.25),
        ((A4,), (), 32, 0, 1.0),
        ((), (A4,), 0, 32, 0.0),
        ((A4,), (pool("a", 4, observe_only=True),), 32, 0, 1.0),
        ((A4,), (pool("a", 4, drains={"a1": desired.NodeDrain("fan")}),), 8, 0, 0.25),
        ((pool("a", 4, drains={"a1": desired.NodeDrain("fan")}),), (pool("a", 3),), 8, 8, 1 / 3),
        # A node that only changes its pool stays in service.
        ((A4,), (pool("a", 3), pool("b", 1, nodes=("a3",))), 0, 0, 0.0),
    ],
)
def test_gpus_that_leave_and_enter_service(
    before: tuple[desired.Pool, ...],
    after: tuple[desired.Pool, ...],
    leaving: int,
    entering: int,
    share: float,
) -> None:
    total = found(state(*before), state(*after)).total
    assert (total.gpus_leaving, total.gpus_entering) == (leaving, entering)
    assert total.share_lost == pytest.approx(share)
    assert total.gpus_before + entering - leaving == total.gpus_after


def test_pools_that_are_touched_are_told_one_by_one() -> None:
    before = state(A4, pool("b", 2), pool("c", 1))
    after = state(pool("a", 3), pool("b", 2), pool("d", 1, nodes=("a3",)))
    pools = {one.pool: one for one in found(before, after).pools}
    assert sorted(pools) == ["a", "c", "d"]
    assert pools["a"].nodes_leaving == ("a3",)
    assert (pools["a"].gpus_leaving, pools["a"].gpus_moving, pools["a"].share_lost) == (8, 8, 0.0)
    assert pools["c"].share_lost == 1.0
    assert pools["d"].nodes_entering == ("a3",)


def growing(least: int, most: int, drains: tuple[str, ...] = ()) -> desired.Pool:
    asked = desired.Provisioning(minimum=least, maximum=most)
    drained = {name: desired.NodeDrain("fan") for name in drains}
    return pool("a", most, provisioning=asked, drains=drained)


def machines(**states: str) -> records.Observed:
    """Return instances of the pool ``a`` by slot."""
    found = {
        name: instance_records.InstanceRecord(
            name, instance_records.InstanceState(state), name, 0.0
        )
        for name, state in states.items()
    }
    known = instance_records.Provision("a", desired.Provisioning(0, 64), instances=found)
    return records.Observed(provisions={"a": known})


TWO = machines(a0="Up", a5="Creating", a1="Draining", a2="Destroying")


@pytest.mark.parametrize(
    ("observed", "before", "after", "gpus", "changed"),
    [
        (machines(), growing(0, 64), growing(0, 8), 0, ((), ())),
        (machines(), growing(0, 64), None, 0, ((), ())),
        (machines(), growing(2, 64), growing(1, 64), 16, (("a1",), ())),
        (machines(), growing(0, 4), growing(2, 4), 0, ((), ("a0", "a1"))),
        (TWO, growing(0, 64), growing(0, 4), 16, (("a5",), ())),
        (TWO, growing(0, 64), None, 16, (("a0", "a5"), ())),
        (TWO, growing(2, 64), growing(0, 64), 16, ((), ())),
        (TWO, growing(0, 64), growing(3, 64), 16, ((), ("a3",))),
        (TWO, growing(0, 64), growing(0, 64, drains=("a0",)), 16, (("a0",), ())),
        # what reports under the name of a slot is taken over
        (records.Observed(), pool("a", 4), growing(1, 4), 32, (("a1", "a2", "a3"), ())),
        (
            records.Observed(
                nodes={
                    name: records.NodeRecord(name, states.NodeState(state))
                    for name, state in (("a0", "Ready"), ("a1", "Drained"), ("a2", "Gone"))
                }
            ),
            pool("a", 4),
            growing(0, 4),
            32,
            (("a2", "a3"), ()),
        ),
    ],
)
def test_of_pools_that_grow_those_nodes_count_that_are_there(
    observed: records.Observed,
    before: desired.Pool,
    after: desired.Pool | None,
    gpus: int,
    changed: tuple[tuple[str, ...], tuple[str, ...]],
) -> None:
    leaving, entering = changed
    sides = state(before), state(*([after] if after else []))
    total = impact.measure_impact(*sides, observed, 0.0).total
    assert total.gpus_before == gpus
    assert (total.nodes_leaving, total.nodes_entering) == changed
    assert (total.gpus_leaving, total.gpus_entering) == (8 * len(leaving), 8 * len(entering))


def test_queues_and_amounts() -> None:
    def team(guaranteed: int | None, limit: int | None) -> desired.Queue:
        return desired.Queue(
            "team",
            guaranteed=desired.QuotaAmounts(gpu_milli=guaranteed),
            limit=desired.QuotaAmounts(gpu_milli=limit, cpu_milli=4000),
        )

    before = state(queues=(desired.Queue("default"), desired.Queue("old"), team(4000, None)))
    after = state(queues=(desired.Queue("default"), desired.Queue("new"), team(2000, 8000)))
    what = found(before, after)
    assert what.queues_removed == ("old",)
    assert what.queues_added == ("new",)
    assert what.amounts == (
        impact.AmountChange("Queue/team", "guaranteed", "gpu", 4000, 2000),
        impact.AmountChange("Queue/team", "limit", "gpu", None, 8000),
    )
    assert what.objects == ("Queue/new", "Queue/old", "Queue/team")


def test_amounts_by_pool_are_named_with_their_pool() -> None:
    def team(*flavors: desired.QueueFlavor) -> desired.Queue:
        return desired.Queue("team", flavors=flavors)

    four, two = desired.QuotaAmounts(gpu_milli=4000), desired.QuotaAmounts(gpu_milli=2000)
    before = state(
        A4, queues=(team(desired.QueueFlavor("a", four), desired.QueueFlavor("b", limit=four)),)
    )
    after = state(A4, queues=(team(desired.QueueFlavor("a", two, lending_limit=two)),))
    assert found(before, after).amounts == (
        impact.AmountChange("Queue/team", "guaranteed in pool a", "gpu", 4000, 2000),
        impact.AmountChange("Queue/team", "lendingLimit in pool a", "gpu", None, 2000),
        impact.AmountChange("Queue/team", "limit in pool b", "gpu", 4000, None),
    )


def test_objects_that_always_need_approval_are_those_that_the_state_in_force_names() -> None:
    safety = desired.SafetyLimits(approval=("Cluster", "NodePool/a*"))
    before = state(A4, pool("b", 1), safety=safety)
    after = state(pool("a", 5), pool("b", 2))
    assert found(before, after).approval == ("Cluster/settings", "NodePool/a")
    assert found(after, before).approval == ()


# --- running work -----------------------------------------------------------------------------


def running(*jobs: desired.Job, nodes: int = 2) -> world.World:
    place = world.World(nodes=nodes, cpu=8, gpu=8)
    place.commit(*jobs)
    place.settle()
    place.advance(1800)
    return place


def wanted(place: world.World, **jobs: desired.Job | None) -> tuple[desired.Desired, ...]:
    """Return what is in force in a world, and the same with jobs changed (None: removed)."""
    before = desired.Desired(place.generation, place.structure, dict(place.jobs))
    after = {name: spec for name, spec in place.jobs.items() if jobs.get(name, spec)}
    after |= {name: spec for name, spec in jobs.items() if spec is not None}
    return before, msgspec.structs.replace(before, jobs=after)


def told(place: world.World, before: desired.Desired, after: desired.Desired) -> impact.Impact:
    return impact.measure_impact(before, after, place.memory.observed((), {}), place.now)


J = world.job("j", gpu=4)


@pytest.mark.parametrize(
    ("change", "how", "lost"),
    [
        (None, "cancelled", 2.0),
        ({"run": 2}, "replaced", 2.0),
        ({"suspend": True}, "held", 2.0),
        ({"suspend": True, "checkpoint": desired.Checkpoint()}, "held", 2.0),
        ({"deadline": 1000.0}, "timed-out", 2.0),
        ({"time_limit_s": 600}, "timed-out", 2.0),
        ({"time_limit_s": 6000}, "", 0.0),
        ({"priority": 9}, "", 0.0),
        ({"hash": "fedcba9876543210"}, "", 0.0),  # ignored while that run is alive
    ],
)
def test_what_becomes_of_a_running_job(
    change: dict[str, Any] | None, how: str, lost: float
) -> None:
    place = running(J)
    new = None if change is None else msgspec.structs.replace(J, **change)
    what = told(place, *wanted(place, j=new))
    assert [job.how for job in what.jobs] == ([how] if how else [])
    assert what.gpu_hours_lost() == pytest.approx(lost)
    assert what.jobs_ended("structure", "removal") == (how == "cancelled")


def structured(place: world.World, **parts: Any) -> tuple[desired.Desired, desired.Desired]:
    """Return what is in force in a world, and the same with another structure."""
    before, _ = wanted(place)
    structure = msgspec.structs.replace(place.structure, **parts)
    return before, msgspec.structs.replace(before, structure=structure)


@pytest.mark.parametrize(
    ("old_s", "own_s", "new_s", "now_s", "expected"),
    [
        (86_400, 86_400, 600, 600, [("timed-out", "structure")]),
        (86_400, 86_400, 3600, 3600, [("timed-out", "structure")]),  # in half an hour
        (3600, 3600, 86_400, 86_400, []),  # it may run longer
        (86_400, 86_400, 86_400, 600, [("timed-out", "job")]),  # its own document says less
        (86_400, 6000, 3600, 600, [("timed-out", "job")]),
        (None, None, 600, 600, [("timed-out", "structure")]),
    ],
)
def test_a_queue_that_ends_work_by_its_time_limit_is_structure(
    old_s: int | None, own_s: int | None, new_s: int, now_s: int, expected: list[tuple[str, str]]
) -> None:
    queue = desired.Queue("default", default_time_limit_s=old_s)
    one = msgspec.structs.replace(J, time_limit_s=own_s)
    place = running(one)
    place.change_structure(queues={"default": queue})
    place.settle()
    after = msgspec.structs.replace(queue, default_time_limit_s=new_s)
    before, changed = structured(place, queues={"default": after})
    jobs = {"j": msgspec.structs.replace(one, time_limit_s=now_s)}
    what = told(place, before, msgspec.structs.replace(changed, jobs=jobs))
    assert [(job.how, job.part) for job in what.jobs] == expected


@pytest.mark.parametrize(
    ("ends", "spent_before", "how"),
    [(True, 1e9, ["evicted"]), (False, 1e9, []), (True, 3600.0, [])],
)
def test_a_budget_that_ends_work_is_structure(
    *, ends: bool, spent_before: float, how: list[str]
) -> None:
    place = running(J)
    quota = desired.Quota(
        "b", queue="default", budget_gpu_s=spent_before, window_s=86_400, ends=ends
    )
    place.change_structure(quotas={"b": quota})
    less = msgspec.structs.replace(quota, budget_gpu_s=3600.0)
    what = told(place, *structured(place, quotas={"b": less}))
    assert [job.how for job in what.jobs] == how
    assert what.jobs_ended("structure") == len(how)
    assert bool(what.digest) == (quota != less)


@pytest.mark.parametrize(
    ("limit_s", "policy", "how", "leaves_in_s", "lost"),
    [
        (None, None, "drained", None, 0.0),
        (None, desired.Leaving(grace_s=60), "drained", 60.0, 4.0),
        (None, desired.Leaving("nothing"), "evicted", 0.0, 4.0),
        (7200, desired.Leaving(grace_s=60), "drained", 60.0, 4.0),
        (3600, desired.Leaving(grace_s=1800), "drained", None, 0.0),  # its own limit is sooner
    ],
)
def test_what_is_told_to_leave_is_ended_by_the_change(
    limit_s: int | None,
    policy: desired.Leaving | None,
    how: str,
    leaves_in_s: float | None,
    lost: float,
) -> None:
    place = running(world.job("j", gpu=8, time_limit_s=limit_s), nodes=1)
    gone = msgspec.structs.replace(
        place.pool, drains={"n0": desired.NodeDrain("fan")}, leaving=policy
    )
    what = told(place, *structured(place, pools={"pool": gone}))
    (job,) = what.jobs
    assert (job.how, job.leaves_in_s) == (how, leaves_in_s)
    assert what.jobs_ended("structure") == (leaves_in_s is not None)
    assert what.gpu_hours_lost() == pytest.approx(lost)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (desired.Leaving(), desired.Leaving("nothing"), [("evicted", 0.0)]),
        (desired.Leaving(), desired.Leaving(grace_s=600), [("drained", 300.0)]),
        (desired.Leaving(grace_s=600), desired.Leaving(grace_s=400), [("drained", 100.0)]),
        (desired.Leaving(grace_s=600), desired.Leaving(grace_s=200), [("evicted", 0.0)]),
        (desired.Leaving(grace_s=600), desired.Leaving(grace_s=900), []),
        (desired.Leaving(grace_s=600), desired.Leaving(), []),
        (desired.Leaving(), desired.Leaving(), []),
    ],
)
def test_another_policy_for_nodes_that_are_drained_already(
    old: desired.Leaving, new: desired.Leaving, expected: list[tuple[str, float]]
) -> None:
    place = running(world.job("j", gpu=8), nodes=1)
    drained = msgspec.structs.replace(
        place.pool, drains={"n0": desired.NodeDrain("fan")}, leaving=old
    )
    place.change_structure(pools={"pool": drained})
    place.settle()
    place.advance(place.memory.nodes["n0"].drain_since + 300 - place.now)
    after = msgspec.structs.replace(drained, leaving=new)
    what = told(place, *structured(place, pools={"pool": after}))
    assert [(job.how, job.leaves_in_s) for job in what.jobs] == expected


def test_work_with_a_checkpoint_that_is_held_is_not_lost() -> None:
    saving = msgspec.structs.replace(J, checkpoint=desired.Checkpoint())
    place = running(saving)
    what = told(place, *wanted(place, j=msgspec.structs.replace(saving, suspend=True)))
    assert what.gpu_hours_lost() == 0.0


def saved(place: world.World, at: float) -> records.Observed:
    """Return the records after the first task has reported a checkpoint."""
    observed = place.memory.observed((), {})
    first = min(observed.attempts)
    attempts = dict(observed.attempts)
    attempts[first] = msgspec.structs.replace(attempts[first], saved=task_reports.Saved("s", at))
    return msgspec.structs.replace(observed, attempts=attempts)


@pytest.mark.parametrize("checkpoint", [None, desired.Checkpoint()])
@pytest.mark.parametrize("change", [None, {"suspend": True}, {"run": 2}])
def test_what_is_lost_counts_from_the_newest_checkpoint_that_is_known(
    change: dict[str, Any] | None, checkpoint: desired.Checkpoint | None
) -> None:
    """Half an hour of four GPUs. A checkpoint of an earlier attempt saves nothing of this one."""
    job = msgspec.structs.replace(J, checkpoint=checkpoint)
    place = running(job)
    before, after = wanted(
        place, j=None if change is None else msgspec.structs.replace(job, **change)
    )
    started = min(one.started_at or 0.0 for one in place.memory.attempts.values())
    half = impact.measure_impact(before, after, saved(place, place.now - 900), place.now)
    assert half.gpu_hours_lost() == pytest.approx(1.0)
    early = impact.measure_impact(before, after, saved(place, started - 900), place.now)
    assert early.gpu_hours_lost() == pytest.approx(2.0)


def test_the_first_task_of_a_gang_saves_for_all() -> None:
    gang = world.job("j", gpu=4, count=2)
    place = running(gang)
    before, after = wanted(place, j=None)
    whole = impact.measure_impact(before, after, place.memory.observed((), {}), place.now)
    half = impact.measure_impact(before, after, saved(place, place.now - 900), place.now)
    assert (whole.gpu_hours_lost(), half.gpu_hours_lost()) == pytest.approx((4.0, 2.0))


def test_work_on_nodes_that_leave_goes_on() -> None:
    place = running(world.job("j", gpu=8), world.job("k", gpu=8))
    before, after = wanted(place)
    left = msgspec.structs.replace(place.pool, nodes=("n0",))
    after = msgspec.structs.replace(
        after, structure=msgspec.structs.replace(place.structure, pools={"pool": left})
    )
    what = told(place, before, after)
    assert [(job.how, job.nodes, job.ends) for job in what.jobs] == [("drained", ("n1",), False)]
    assert what.jobs_ended() == 0


def test_what_would_change_anyhow_is_not_the_change() -> None:
    """A job that ends anyway, and one that was never in force, do not count."""
    place = running(J)
    place.commit(remove=("j",))
    before, after = wanted(place)
    assert told(place, before, after).jobs == ()


# --- the digest -------------------------------------------------------------------------------


def test_the_digest_names_the_change_and_not_the_moment() -> None:
    place = running(J, world.job("k", gpu=4))
    before, after = wanted(place, j=None)
    first = digests.parse_digest(told(place, before, after).digest)
    place.advance(7200)
    place.commit(world.job("new", gpu=1))
    place.settle()
    later = digests.parse_digest(told(place, before, after).digest)
    other = digests.parse_digest(told(place, *wanted(place, k=None)).digest)
    assert first is not None
    assert later is not None
    assert other is not None
    assert first.removals == later.removals != other.removals
    assert (first.jobs_ended, first.gpu_hours_lost) == (1, 2)
    assert (later.jobs_ended, later.gpu_hours_lost) == (1, 10)


def test_the_same_change_elsewhere_has_another_digest() -> None:
    half, third = pool("a", 2), pool("a", 3)
    digests = [found(state(A4), state(to)).digest for to in (half, third)]
    digests.append(found(state(third), state(half)).digest)
    digests.append(found(state(half), state(A4)).digest)
    assert len(set(digests)) == 4


def test_a_change_of_jobs_alone_needs_no_digest() -> None:
    assert found(state(A4), state(A4, jobs=(J,))).digest == ""
    refused = msgspec.structs.replace(state(A4), refused={"j": "broken"})
    assert found(state(A4, jobs=(J,)), refused).digest == ""


@given(
    st.text("abcdefghjr2345", min_size=26, max_size=26) | st.just(""),
    st.text("abcdefghjr2345", min_size=26, max_size=26) | st.just(""),
    st.integers(0, 10**9 - 1),
    st.integers(0, 10**9 - 1),
)
def test_a_digest_is_read_as_it_is_written(s: str, r: str, jobs: int, hours: int) -> None:
    made = digests.Digest(s, r, jobs, hours)
    assert digests.parse_digest(made.text()) == (made if s or r else None)


@pytest.mark.parametrize(
    "text",
    ["", "j0h0", "s123j0h0", "deadbeef", "s" + "2" * 26, "sXj1h1", f"s{'2' * 25}j0h0"],
)
def test_what_is_no_digest(text: str) -> None:
    assert digests.parse_digest(text) is None


def test_nobody_finds_two_changes_of_one_hash() -> None:
    """A collision of n bits takes 2^(n/2) hashes: with 130 bits more than anybody computes."""
    for value in ({}, {"Queue/a": [None, {"weight": 2}]}):
        made = digests.hash_of(value)
        assert len(made) == 26
        assert digests.parse_digest(f"s{made}j0h0") == digests.Digest(made)


@given(st.permutations(["a", "b", "c"]), st.permutations(["a", "b", "c"]))
def test_the_order_of_documents_makes_no_difference(one: list[str], other: list[str]) -> None:
    def ordered(names: list[str], count: int) -> desired.Desired:
        return state(*(pool(name, count) for name in names))

    changes = [(ordered(names, 4), ordered(names[::-1], 3)) for names in (one, other)]
    first, second = (found(*change) for change in changes)
    assert first == second

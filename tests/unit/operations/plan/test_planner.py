"""A plan as people read it: golden text, verdicts, findings, and snapshots that travel as files."""

import zlib
from pathlib import Path

import msgspec
import pytest

from reconciler.core import job_draft
from reconciler.core.jobs import run_terms
from reconciler.model import desired
from reconciler.model.observed import health_checks, job_commands
from reconciler.operations.plan import (
    change_text,
    cluster_snapshot,
    diff,
    plan_text,
    plan_types,
    planner,
    pull_request_comment,
    revisions,
)
from tests.unit.simulation.forecast import test_cluster_forecast

OLD = desired.Problem("never-fits", "warning", "jobs/a.yaml", "no pool holds it", 3, 1, "Job/a")
NEW = desired.Problem(
    "unknown-queue", "error", "jobs/b.yaml", "unknown queue", 7, 3, "Job/b", "spec.queue",
    found="nowhere", expected="one of default",
)  # fmt: skip


def comparison(
    base: desired.Desired,
    head: desired.Desired,
    before: tuple[desired.Problem, ...] = (),
    after: tuple[desired.Problem, ...] = (),
) -> revisions.Comparison:
    def with_problems(
        state: desired.Desired, found: tuple[desired.Problem, ...]
    ) -> desired.Desired:
        return msgspec.structs.replace(state, status=desired.SyncStatus(problems=found))

    return revisions.Comparison(
        base=with_problems(base, before),
        head=with_problems(head, after),
        base_commit="a" * 40,
        head_commit="b" * 40,
        changes=diff.between(base, head),
        paths=frozenset({"jobs/b.yaml"}),
    )


def live() -> cluster_snapshot.DigestedSnapshot:
    observed, now = test_cluster_forecast.after(
        test_cluster_forecast.LOW,
        test_cluster_forecast.KEPT,
        test_cluster_forecast.WAITS,
        structure=test_cluster_forecast.UNRESERVED,
    )
    return cluster_snapshot.unpack(
        cluster_snapshot.pack(cluster_snapshot.Live("0", now, "a" * 40, "a" * 40, observed)), "here"
    )


BASE = test_cluster_forecast.wanted(
    test_cluster_forecast.LOW,
    test_cluster_forecast.KEPT,
    test_cluster_forecast.WAITS,
    structure=test_cluster_forecast.UNRESERVED,
)
HEAD = test_cluster_forecast.wanted(
    test_cluster_forecast.LOW,
    test_cluster_forecast.KEPT,
    test_cluster_forecast.WAITS,
    test_cluster_forecast.URGENT,
    structure=test_cluster_forecast.UNRESERVED,
)

GOLDEN = """\
aaaaaaaaaaaa -> bbbbbbbbbbbb
against the cluster as of 5s ago, where aaaaaaaaaaaa is in force

+ Job/urgent
    4 GPUs, 1 CPU, 1Gi in default, priority 100, up to 1m

Impact
  low                is preempted for urgent at once; loses 0.67 GPU-hours; back
                     1m later

Forecast for 24h, if nothing else is submitted
  urgent             new: starts at once
  waits              starts 11m later: in 50m -> in 1h01m
  queue default      0 wait; 1 running preempted
  queue other        1 wait: 1 later; 11m longer on average

Plan: 1 to add, 0 to change, 0 to remove.
"""


def text(plan: plan_types.Plan) -> str:
    return "\n".join(line.text for line in plan_text.lines(plan)) + "\n"


def test_a_plan_names_who_is_preempted_and_which_queue_waits_longer() -> None:
    snapshot = live()
    plan = planner.plan(comparison(BASE, HEAD), snapshot, snapshot.live.at + 5)
    told = text(plan)
    assert told.startswith(GOLDEN), told
    assert told.splitlines()[-1].startswith("digest sha256:")
    assert max(map(len, told.splitlines())) <= change_text.WIDTH
    assert plan.verdict == "changes"


def executing(run: int, command: str) -> desired.Desired:
    """``BASE`` with another command of the job that runs."""
    (group,) = test_cluster_forecast.LOW.groups
    groups = (msgspec.structs.replace(group, command=(command,)),)
    changed = msgspec.structs.replace(
        test_cluster_forecast.LOW, run=run, hash="f" * 16, groups=groups
    )
    return test_cluster_forecast.wanted(
        changed,
        test_cluster_forecast.KEPT,
        test_cluster_forecast.WAITS,
        structure=test_cluster_forecast.UNRESERVED,
    )


@pytest.mark.parametrize(
    ("gpu_hours", "expected"),
    [(0.67, "0.67 GPU-hours"), (1.0, "1 GPU-hour"), (1.04, "1 GPU-hour"), (1.2, "1.2 GPU-hours")],
)
def test_gpu_hours_are_in_grammar(gpu_hours: float, expected: str) -> None:
    assert plan_text.hours(gpu_hours) == expected


def test_a_forecast_tells_times_as_its_reader_wants_them() -> None:
    snapshot = live()
    plan = planner.plan(comparison(BASE, HEAD), snapshot, snapshot.live.at + 5)
    assert plan.forecast is not None
    first = msgspec.structs.replace(
        plan.forecast.shifts[0],
        after_s=None,
        reason="kept until 2026-11-26T17:30:00.000Z",
    )
    forecast = msgspec.structs.replace(plan.forecast, shifts=[first])
    plan = msgspec.structs.replace(plan, forecast=forecast)
    told = [one.text for one in plan_text.lines(plan, lambda text: text.replace("2026-11-26T", ""))]
    assert "kept until 17:30:00.000Z" in " ".join(" ".join(told).split())


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("run", "ignored"),
    [(test_cluster_forecast.LOW.run, True), (test_cluster_forecast.LOW.run + 1, False)],
)
def test_what_a_run_executes_is_no_other_while_it_is_alive_and_the_plan_says_so(
    run: int, *, ignored: bool, known: bool
) -> None:
    snapshot = live() if known else None
    found = comparison(BASE, executing(run, "other"))
    plan = planner.plan(found, snapshot, 2e6, forecast=False)
    (change,) = plan.changes
    assert bool(change.note) is ignored
    start = "run 1 of it is alive and" if known else "if run 1 of it is alive, it"
    assert not ignored or change.note.startswith(f"{start} goes on as it was")
    told = "raise spec.run to replace it now"
    assert (told in " ".join(text(plan).split())) is ignored
    assert (told in pull_request_comment.render(plan)) is ignored
    # of what has no run yet, or has changed in other fields, nothing is said
    for other in (HEAD, BASE):
        assert not any(one.note for one in planner.plan(comparison(BASE, other), snapshot, 2e6,
                                                         forecast=False).changes)  # fmt: skip


def test_without_a_controller_there_is_no_forecast_and_it_is_said() -> None:
    plan = planner.plan(comparison(BASE, HEAD), None, 0.0, no_snapshot="nobody answers")
    assert plan.forecast is None
    assert "Forecast\n  none: nobody answers\n" in text(plan)
    assert plan.snapshot is None


def test_nothing_changes() -> None:
    plan = planner.plan(comparison(BASE, BASE), live(), 2e6)
    assert (plan.verdict, plan.changes, plan.forecast) == ("none", [], None)
    assert "No changes." in text(plan)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [((), (), "changes"), ((), (OLD,), "changes"), ((), (OLD, NEW), "refused"),
     ((NEW,), (NEW,), "changes")],
)  # fmt: skip
def test_only_errors_that_are_new_refuse(
    before: tuple[desired.Problem, ...], after: tuple[desired.Problem, ...], verdict: str
) -> None:
    found = comparison(BASE, HEAD, before, after)
    plan = planner.plan(found, None, 0.0)
    assert plan.verdict == verdict
    moved = [msgspec.structs.replace(one, line=one.line + 40) for one in before]
    again = planner.plan(comparison(BASE, HEAD, tuple(moved), after), None, 0.0)
    assert again.verdict == verdict, "a problem that has only moved is not new"


def test_what_approves_does_not_depend_on_options_of_the_controller() -> None:
    """`muster up` lets tasks run as root in every pool, and judges changes as git has them."""
    snapshot = live()

    def state(count: int) -> desired.Desired:
        pools = {
            name: msgspec.structs.replace(pool, nodes=pool.nodes[:count], runs_unmapped=False)
            for name, pool in BASE.structure.pools.items()
        }
        structure = msgspec.structs.replace(BASE.structure, pools=pools)
        return msgspec.structs.replace(BASE, structure=structure)

    rooted = tuple(
        msgspec.structs.replace(pool, runs_unmapped=True)
        for pool in state(9).structure.pools.values()
    )
    behind = msgspec.structs.replace(
        snapshot, live=msgspec.structs.replace(snapshot.live, pools=rooted)
    )
    found = comparison(state(9), state(1))
    plans = [planner.plan(found, one, snapshot.live.at) for one in (snapshot, behind)]
    approvals = [plan.impact.approval for plan in plans]
    assert approvals[0]
    assert approvals[0] == approvals[1]
    assert [[held.digest for held in plan.held] for plan in plans] == [
        [held.digest for held in plans[0].held]
    ] * 2


def test_the_digest_is_of_revisions_snapshot_and_changes() -> None:
    snapshot = live()
    found = comparison(BASE, HEAD)
    first = planner.plan(found, snapshot, 2e6, forecast=False).digest
    assert planner.plan(found, snapshot, 3e6, forecast=False).digest == first
    others = {
        planner.plan(found, None, 2e6).digest,
        planner.plan(msgspec.structs.replace(found, head_commit="c" * 40), snapshot, 2e6,
                      forecast=False).digest,
        planner.plan(comparison(BASE, BASE), snapshot, 2e6).digest,
    }  # fmt: skip
    assert first not in others
    assert len(others) == 3


def test_a_snapshot_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    observed, now = test_cluster_forecast.after(
        test_cluster_forecast.LOW,
        test_cluster_forecast.KEPT,
        test_cluster_forecast.WAITS,
        structure=test_cluster_forecast.UNRESERVED,
    )
    kept = cluster_snapshot.Live("0", now, "a" * 40, None, observed, (test_cluster_forecast.POOL,))
    path = tmp_path / "cluster.snapshot"
    path.write_bytes(cluster_snapshot.pack(kept))
    found = cluster_snapshot.read(path).live
    assert found.observed.jobs == observed.jobs
    assert found.observed.attempts == observed.attempts
    assert (found.at, found.pools) == (now, (test_cluster_forecast.POOL,))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is no snapshot of a controller"),
        (b"{}", "is no snapshot of a controller"),
        (cluster_snapshot.MAGIC + b"x", "can't be read by this version"),
        (cluster_snapshot.MAGIC + zlib.compress(b"\x80"), "can't be read by this version"),
    ],
)
def test_what_is_no_snapshot_is_told_apart(data: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(cluster_snapshot.SnapshotError, match=told):
        cluster_snapshot.read(path)
    with pytest.raises(cluster_snapshot.SnapshotError, match="No such file"):
        cluster_snapshot.read(tmp_path / "missing")


def test_what_is_not_looked_at_is_not_called_untouched() -> None:
    """Who is preempted only a forecast tells; who may not see running work is told that."""
    snapshot = live()
    plan = planner.plan(comparison(BASE, HEAD), snapshot, snapshot.live.at, forecast=False)
    told = " ".join(text(plan).split())
    assert "none: no GPU, guarantee, limit or running job" not in told
    assert "without a forecast it is unknown which jobs are preempted" in told
    plan = planner.plan(comparison(BASE, HEAD), None, 0.0, not_allowed="no role allows snapshot")
    told = " ".join(text(plan).split())
    assert "is unknown here: no role allows snapshot" in told
    assert "without a controller" not in told


def test_who_may_not_know_what_jobs_run_is_not_told_what_was_found_there() -> None:
    def finding(label: str, field: str, found: str) -> desired.Problem:
        return desired.Problem(
            "wrong-type", "error", "a.yaml", "write it in quotes", 5, 1, label, field, found, "text"
        )

    problems = (
        finding("Job/a", "spec.environment.TOKEN", "48121"),
        finding("Job/a", "spec.queue", "48122"),
        finding("Job/a", "spec.command[0]", ""),
    )
    plan = planner.plan(comparison(BASE, BASE, after=problems), None, 0.0)
    shown = {one.field: one for one in plan_types.without_settings(plan).findings}
    hidden = shown["spec.environment.TOKEN"]
    assert (hidden.rule, hidden.path, hidden.line) == ("wrong-type", "a.yaml", 5)
    assert (hidden.message, hidden.found) == ("write it in quotes; expected text", "")
    assert shown["spec.queue"].message == "write it in quotes; found 48122; expected text"
    assert shown["spec.command[0]"].message == "write it in quotes; expected text"
    assert "48121" in str(plan)


def test_who_may_not_know_what_jobs_run_is_not_told_what_policies_set_there() -> None:
    fields: dict[str, tuple[str | None, str | None]] = {
        "setByPolicy.spec.timeLimit": (None, '"1h" by policy p'),
        "setByPolicy.spec.environment.PROXY": (None, '"48121" by policy p'),
        "setByPolicy.spec.groups": (None, '[{"name":"a","command":["48121"]}] by policy p'),
    }
    change = plan_types.ChangeView("changed", "Job", "a", "a.yaml", "", fields)
    plan = planner.plan(comparison(BASE, BASE), None, 0.0)
    plan = msgspec.structs.replace(plan, changes=[change])
    (shown,) = plan_types.without_settings(plan).changes
    assert shown.fields["setByPolicy.spec.timeLimit"] == fields["setByPolicy.spec.timeLimit"]
    assert "48121" not in str(shown)
    assert shown.fields.keys() == fields.keys()


def test_a_plan_says_which_terms_of_a_run_wait_for_its_next_start() -> None:
    snapshot = live()
    name = next(
        name
        for name, record in snapshot.live.observed.jobs.items()
        if record.elements.count(job_draft.RUNNING)
    )
    runs = snapshot.live.observed.jobs[name].spec
    head = msgspec.structs.replace(
        BASE, jobs={**BASE.jobs, name: msgspec.structs.replace(runs, preemptible=False)}
    )
    base = msgspec.structs.replace(BASE, jobs={**BASE.jobs, name: runs})
    changes = planner.plan(comparison(base, head), snapshot, 2e6, forecast=False).changes
    assert [one.note for one in changes] == [run_terms.message(("preemptible",))]


SCRUB = job_commands.JobCommand("scrub", ("/opt/scrub",))


@pytest.mark.parametrize(
    ("changes", "trial", "said"),
    [
        (
            {
                "checks": health_checks.CheckPlan(
                    commands=(health_checks.CheckCommand("a", ("/a",)),)
                )
            },
            True,
            "on 1 node leave service if check a fails: new or stricter, tried there first",
        ),
        (
            {"after_job": (SCRUB,), "brake": desired.HealthBrake(0.1)},
            False,
            "on 1 node leave service if check scrub fails: new or stricter, so no result is known",
        ),
    ],
)
def test_a_plan_calls_tried_first_only_what_is(
    changes: dict[str, object], trial: bool, said: str
) -> None:
    """Commands around jobs have no trial, also if the brake lets one node go."""
    (name, pool), *_ = BASE.structure.pools.items()
    checked = msgspec.structs.replace(pool, checks=health_checks.CheckPlan())

    def having(one: desired.Pool) -> desired.Desired:
        pools = {**BASE.structure.pools, name: one}
        return msgspec.structs.replace(
            BASE, structure=msgspec.structs.replace(BASE.structure, pools=pools)
        )

    found = comparison(having(checked), having(msgspec.structs.replace(checked, **changes)))
    plan = planner.plan(found, None, 0.0)
    assert plan.impact is not None
    assert [(one.nodes, one.trial) for one in plan.impact.risks] == [(1, trial)]
    assert said in " ".join(text(plan).split())


def test_where_every_node_leaves_nothing_starts_for_that_reason() -> None:
    snapshot = live()
    empty = msgspec.structs.replace(
        BASE, structure=msgspec.structs.replace(BASE.structure, pools={}, reservations={})
    )
    plan = planner.plan(comparison(BASE, empty), snapshot, snapshot.live.at + 5)
    assert plan.forecast is not None
    waits = [one.reason for one in plan.forecast.shifts if one.after_s is None]
    assert waits
    assert set(waits) == {planner.NO_NODES}

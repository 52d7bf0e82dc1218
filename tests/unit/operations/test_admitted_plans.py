"""Jobs in force whose documents are refused by now: a plan has them, as the controller has."""

from pathlib import Path

import pytest

from reconciler.model.state import states
from reconciler.operations.plan import cluster_snapshot, plan_types, planner, revisions
from reconciler.simulation.engine import simulated_cluster
from tests.unit.desired.repositories import Repository, documents, job, queue
from tests.unit.operations.plan.test_planner import text
from tests.unit.operations.test_review_plans import POOL, plan_against

#: All that is written before the structure, or the document, by which it is refused.
START: dict[str, str | None] = {
    "c.yaml": documents(POOL % 4, queue("q")),
    **{f"jobs/{name}.yaml": job(name, queue="q") for name in "ab"},
}
POLICY = (
    "apiVersion: muster/v1\nkind: Policy\nmetadata: {name: limits}\nspec:\n"
    "  match: {kinds: [Job]}\n  message: say how long\n"
    "  schema: {properties: {spec: {required: [timeLimit]}}}\n"
)
LATER: dict[str, dict[str, str | None]] = {
    "a policy": {"p.yaml": POLICY},
    "a wrong value": {"jobs/a.yaml": job("a", queue="q", nonsense=1)},
    "no YAML": {"jobs/a.yaml": "kind: [Job\n"},
    "another structure": {"p.yaml": POLICY, "c.yaml": documents(POOL % 4, queue("q"), "kind: [")},
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "state.git")


def running(repository: Repository, later: dict[str, str | None]) -> cluster_snapshot.Live:
    """A controller that runs what was written first, and has a revision since in force."""
    first = repository.commit(START)
    state = revisions.compare(repository.path, "", first, first).base
    now = 1_800_000_000.0
    cluster = simulated_cluster.SimulatedCluster(state.structure, now=now, jobs=state.jobs)
    cluster.run(now + 60)
    observed = cluster.memory.observed((), {})
    assert {one.state for one in observed.jobs.values()} == {states.JobState.RUNNING}
    newest = repository.commit(later)
    kept = first if "kind: [" in (later.get("c.yaml") or "") else newest
    return cluster_snapshot.Live("0", cluster.now, newest, kept, observed)


def told(plan: plan_types.Plan) -> list[tuple[str, str]]:
    return [(one.operation, one.name) for one in plan.changes]


@pytest.mark.parametrize("why", LATER)
def test_a_running_job_whose_document_is_refused_is_removed_with_it(
    repository: Repository, why: str
) -> None:
    live = running(repository, LATER[why])
    base = live.revision or ""
    head = repository.commit({"jobs/a.yaml": None})
    plan = plan_against(repository, live, base, head)
    assert (plan.verdict, told(plan)) == ("changes", [("remove", "a")])
    assert [(one.job, one.how) for one in plan.impact.jobs] == [("a", "cancelled")]
    # what changes nothing of it leaves it as it is, in both futures
    head = repository.commit({"README.md": "words"}, branch="other", parent=base)
    plan = plan_against(repository, live, base, head)
    assert (plan.verdict, plan.changes) == ("none", [])


def test_the_removal_of_a_policy_adds_no_job_that_runs(repository: Repository) -> None:
    live = running(repository, LATER["a policy"])
    head = repository.commit({"p.yaml": None})
    plan = plan_against(repository, live, live.revision or "", head)
    assert told(plan) == [("remove", "limits")]
    assert not plan.impact.jobs


def test_the_forecast_without_the_change_has_what_runs(repository: Repository) -> None:
    """With all GPUs taken by jobs that a policy refuses, nothing new starts at once."""
    live = running(repository, LATER["a policy"])
    new = job("n", queue="q").replace("spec:", "spec:\n  timeLimit: 1h")
    head = repository.commit({"jobs/n.yaml": new})
    snapshot = cluster_snapshot.unpack(cluster_snapshot.pack(live), "here")
    found = revisions.compare(
        repository.path, "", live.revision or "", head, live=planner.in_force(snapshot)
    )
    assert found.base.jobs.keys() == {"a", "b"}
    assert found.head.jobs.keys() == {"a", "b", "n"}


def test_without_a_controller_the_removal_is_told_and_what_is_not_known(
    repository: Repository,
) -> None:
    live = running(repository, LATER["a policy"])
    head = repository.commit({"jobs/a.yaml": None})
    found = revisions.compare(repository.path, "", live.revision or "", head)
    plan = planner.plan(found, None, live.at)
    assert (plan.verdict, told(plan)) == ("changes", [("remove", "a")])
    shown = " ".join(text(plan).split())
    assert "- Job/a its document is refused a run of it that was admitted" in shown
    back = revisions.compare(repository.path, "", live.revision or "", f"{live.revision}~1")
    added = [one for one in planner.plan(back, None, live.at).changes if one.operation == "add"]
    assert [one.name for one in added] == ["a", "b"]
    assert all("its old document was refused" in one.note for one in added)


def test_who_asks_a_controller_without_its_records_is_told_the_same(
    repository: Repository,
) -> None:
    live = running(repository, LATER["a policy"])
    head = repository.commit({"jobs/a.yaml": None})
    standing = revisions.ControllerRevision(live.revision or "", live.structure_revision)
    found = revisions.compare(repository.path, "", live.revision or "", head, live=standing)
    assert [one.name for one in found.changes] == ["a"]


def test_a_refused_document_of_no_run_is_no_change_where_a_controller_says_so(
    repository: Repository,
) -> None:
    live = running(repository, {**LATER["a policy"], "jobs/c.yaml": job("c", queue="q")})
    head = repository.commit({"jobs/c.yaml": None})
    plan = plan_against(repository, live, live.revision or "", head)
    assert plan.verdict == "none"

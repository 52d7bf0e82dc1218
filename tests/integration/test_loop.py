"""The whole loop with real processes: a commit, a decision, a process, a recorded end."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import parser

from reconciler.operations.client import api_client
from tests.integration import beds


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path_factory.mktemp("loop"), gpus=2)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_commit_becomes_a_process_and_its_exit_is_recorded(bed: beds.Bed) -> None:
    bed.commit({"jobs/hello.yaml": beds.job("hello", "  command: [sh, -c, 'echo hi; exit 3']")})
    job = bed.until_state("hello", "Failed")
    (attempt,) = job["attempts"]
    assert (attempt["state"], attempt["exitCode"], attempt["endReason"]) == ("Ended", 3, "Exited")
    assert bed.output("hello") == "hi\n"


def test_earlier_tries_can_be_read(bed: beds.Bed) -> None:
    spec = "  retries: {limit: 1, backoff: 0s}\n  command: [sh, -c, 'echo try $MUSTER_TRY; exit 1']"
    bed.commit({"jobs/twice.yaml": beds.job("twice", spec)})
    bed.until_state("twice", "Failed")
    assert bed.output("twice") == "try 2\n"
    assert bed.output("twice", attempt="1") == "try 1\n"


def test_gpus_are_handed_out_by_device(bed: beds.Bed) -> None:
    spec = "  count: 4\n  resources: {gpu: 1}\n  command: [sh, -c, 'echo $MUSTER_GPUS; sleep 30']"
    bed.commit({"jobs/gpus.yaml": beds.job("gpus", spec)})
    job = bed.until_state("gpus", "Running")
    held = sorted((a["node"], tuple(a["devices"])) for a in job["attempts"])
    nodes = ["virtual-0", "virtual-1"]
    assert held == [(node, (device,)) for node in nodes for device in (0, 1)]
    bed.commit({"jobs/more.yaml": beds.job("more", "  resources: {gpu: 1}\n  command: ['true']")})
    waiting = bed.until(lambda: bed.job("more")["reasons"])
    assert waiting[0]["code"] == "InsufficientResources"
    assert sum(step["count"] for step in waiting[0]["funnel"]) == 2
    bed.commit({"jobs/gpus.yaml": None}, "cancel by deletion")
    bed.until_state("gpus", "Cancelled")
    bed.until_state("more", "Succeeded")


def test_a_mistake_refuses_its_object_and_nothing_else(bed: beds.Bed) -> None:
    bed.commit(
        {
            "bad-queue.yaml": (
                "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: q}\n"
                "spec:\n  limit: {gpu: many}\n"
            ),
            "jobs/bad.yaml": beds.job("bad", "  comand: [echo]"),
            "jobs/good.yaml": beds.job("good", "  command: ['true']"),
        }
    )
    bed.until_state("good", "Succeeded")
    sync = bed.until(lambda: _out_of_sync(bed))
    found = {(p["path"], p["line"], p["field"]) for p in sync["problems"]}
    assert ("bad-queue.yaml", 5, "spec.limit.gpu") in found
    assert ("jobs/bad.yaml", 5, "spec.comand") in found
    assert [q["name"] for q in bed.get("/v1/queues")["items"]] == ["default"]
    bed.commit({"bad-queue.yaml": None, "jobs/bad.yaml": None})
    bed.until(lambda: bed.get("/v1/sync")["sync"]["sync"] == "Synced")


def _out_of_sync(bed: beds.Bed) -> beds.Json:
    sync = bed.get("/v1/sync")["sync"]
    return sync if sync["sync"] == "OutOfSync" else None


def test_submissions_through_the_api_become_commits_of_their_author(bed: beds.Bed) -> None:
    assert bed.api is not None
    text = beds.job("by-api", "  command: [echo, by-api]")
    answer = bed.api.post("/v1/jobs", content=text.encode(), kind="application/yaml")
    commit = answer["items"][0]["commit"]
    bed.until_state("by-api", "Succeeded")
    bed.git("fetch", "--quiet", folder=bed.clone)
    author = bed.git("log", "-1", "--format=%ae", commit, folder=bed.clone)
    assert author == "tester@example.org"
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)


def test_the_controller_is_killed_and_nothing_is_lost(bed: beds.Bed) -> None:
    bed.commit(
        {
            "jobs/long.yaml": beds.job("long", "  command: [sh, -c, 'sleep 3; exit 4']"),
            "jobs/next.yaml": beds.job(
                "next", "  dependsOn: [{job: long, condition: afterAny}]\n  command: ['true']"
            ),
        }
    )
    before = bed.until_state("long", "Running")["attempts"]
    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    job = bed.until_state("long", "Failed")
    assert [a["id"] for a in job["attempts"]] == [a["id"] for a in before]
    assert job["attempts"][0]["exitCode"] == 4
    bed.until_state("next", "Succeeded")


def test_metrics_are_there_and_parse(bed: beds.Bed) -> None:
    headers = {"Authorization": f"Bearer {bed.cluster.endpoint.token()}"}
    page = httpx.get(f"{bed.cluster.url}/metrics", headers=headers).text
    families = {family.name for family in parser.text_string_to_metric_families(page)}
    assert {"muster_jobs", "muster_nodes"} <= families


def test_the_outcome_of_a_revision_is_noted_in_the_repository(bed: beds.Bed) -> None:
    revision = bed.commit({"jobs/noted.yaml": beds.job("noted", "  command: ['true']")})
    bed.until_state("noted", "Succeeded")

    def note() -> str:
        return bed.git("notes", "--ref=muster", "list", folder=bed.folder / "repository.git")

    bed.until(lambda: revision in note())
    shown = bed.git("notes", "--ref=muster", "show", revision, folder=bed.folder / "repository.git")
    assert shown.startswith("muster: Synced with 0 errors")


def test_plan_says_what_a_revision_would_do(bed: beds.Bed) -> None:
    bed.git("checkout", "--quiet", "-b", "proposal", folder=bed.clone)
    (bed.clone / "jobs").mkdir(exist_ok=True)
    (bed.clone / "jobs" / "proposed.yaml").write_text(
        beds.job("proposed", "  resources: {gpu: 1}\n  command: ['true']")
    )
    (bed.clone / "jobs" / "too-big.yaml").write_text(
        beds.job("too-big", "  resources: {gpu: 2}\n  count: 9\n  command: ['true']")
    )
    bed.git("add", "--all", folder=bed.clone)
    bed.git("commit", "--quiet", "--message", "propose", folder=bed.clone)
    bed.git("push", "--quiet", "origin", "proposal", folder=bed.clone)
    revision = bed.git("rev-parse", "HEAD", folder=bed.clone)
    found = bed.get("/v1/plan", revision=revision)
    assert [(c["operation"], c["kind"], c["name"]) for c in found["changes"]] == [
        ("add", "Job", "proposed"),
        ("add", "Job", "too-big"),
    ]
    shifts = {shift["job"]: shift for shift in found["forecast"]["shifts"]}
    assert shifts["proposed"]["after_s"] < 2
    assert shifts["too-big"]["after_s"] is None
    assert shifts["too-big"]["reason"]
    bed.git("checkout", "--quiet", "main", folder=bed.clone)
    assert "proposed" not in {item["name"] for item in bed.get("/v1/jobs")["items"]}


def test_a_lost_store_holds_jobs_until_somebody_says_which_are_new(tmp_path: Path) -> None:
    made = beds.Bed(tmp_path, nodes=1)
    try:
        made.start()
        made.commit(
            {
                "jobs/old.yaml": beds.job(
                    "old", "  command: [sh, -c, 'date >>$MUSTER_SHARED_DIR/old']"
                )
            }
        )
        made.until_state("old", "Succeeded")
        made.cluster.kill_controller()
        for path in made.cluster.state.glob("store.db*"):
            path.unlink()
        made.commit({"jobs/new.yaml": beds.job("new", "  command: ['true']")})
        made.cluster.start_controller()
        made.cluster.wait_ready()
        sync = made.until(lambda: _out_of_sync(made))
        assert "muster adopt" in sync["message"]
        held = made.get("/v1/jobs")["items"]
        assert {item["name"] for item in held} == {"old", "new"}
        assert not any(item["attempts"] for item in held)
        assert {(item["state"], item["reasons"][0]["code"]) for item in held} == {
            ("Pending", "Held")
        }
        assert made.api is not None
        made.until(lambda: not made.get("/v1/adopt")["blocked"])  # until its node was heard
        with pytest.raises(
            api_client.ApiError,
            match=r"nothing was adopted: found the names nwe, .*"
            r"did you mean new\?",
        ):
            made.api.post("/v1/adopt", {"names": ["old", "nwe"]})
        made.api.post("/v1/adopt", {"names": ["new"]})
        made.until_state("new", "Succeeded")
        assert made.until_state("old", "Cancelled")["attempts"] == []
        once = (made.cluster.state / "shared" / "old").read_text().splitlines()
        assert len(once) == 1
    finally:
        made.stop()


def test_the_log_tells_what_happened_one_event_a_line(bed: beds.Bed) -> None:
    revision = bed.commit({"jobs/told.yaml": beds.job("told", "  command: ['true']")})
    bed.until_state("told", "Succeeded")
    happened = [one["kind"] for one in bed.get("/v1/events", job="told")["items"]]

    def told() -> list[str]:
        return [line for line in _log(bed) if " job=told " in line]

    # a line is written once what it tells is in the store, where the job was seen to succeed
    bed.until(lambda: len([line for line in told() if " event=" in line]) >= len(happened))
    kinds = [re.search(r" event=(\w+) ", line) for line in told()]
    assert [kind[1] for kind in kinds if kind] == happened
    assert all(f" revision={revision}" in line for line in told())
    read = f"git is Synced: read and checked revision={revision}"
    bed.until(lambda: any(read in line for line in _log(bed)))


def _log(bed: beds.Bed) -> list[str]:
    return (bed.cluster.state / "controller.log").read_text().splitlines()

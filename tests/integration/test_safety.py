"""A bad merge on a live cluster: held, approved by its digest, and no more than was approved."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds

LIMITS = beds.POOL.replace(
    "spec: {{lease: {lease}, nodeSilence: {silence}}}",
    "spec:\n  lease: 5s\n  nodeSilence: 3s\n  sync: {{limits: {{gpuFloor: 4, jobs: 1}}}}",
)
SLEEPS = "  resources: {gpu: 1}\n  command: [sleep, '600']"


def cluster(nodes: int) -> str:
    return LIMITS.format(nodes=nodes, cpus=4, gpus=2)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path_factory.mktemp("safety"), nodes=4, gpus=2)
    try:
        made.commit({"cluster.yaml": cluster(4)})
        made.git("branch", "--quiet", "--set-upstream-to=origin/main", folder=made.clone)
        made.start()
        yield made
    finally:
        made.stop()


def sync(bed: beds.Bed) -> beds.Json:
    return bed.get("/v1/sync")["sync"]


def held(bed: beds.Bed, revision: str) -> beds.Json:
    """What is held once a revision was looked at."""

    def look() -> beds.Json:
        found = sync(bed)
        return found["attemptedRevision"] == revision and found["held"]

    return bed.until(look)


def in_force(bed: beds.Bed, revision: str) -> None:
    bed.until(lambda: (sync(bed)["sync"], sync(bed)["structureRevision"]) == ("Synced", revision))


def nodes_of_pool(bed: beds.Bed) -> int:
    (pool,) = bed.get("/v1/pools")["items"]
    return int(pool["nodes"])


def muster(
    bed: beds.Bed, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in the clone, or in another folder."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")
    }
    environment |= {
        "MUSTER_SERVER": bed.cluster.url,
        "MUSTER_TOKEN_FILE": str(bed.cluster.endpoint.token_file),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "tester",
        "GIT_AUTHOR_EMAIL": "tester@example.org",
        "GIT_COMMITTER_NAME": "tester",
        "GIT_COMMITTER_EMAIL": "tester@example.org",
    }
    return subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", *arguments],
        cwd=folder or bed.clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def begin(bed: beds.Bed) -> None:
    """All four nodes are in force, whatever a test before has left."""
    if "count: 4" not in (bed.clone / "cluster.yaml").read_text():
        bed.commit({"cluster.yaml": cluster(4)})
    in_force(bed, bed.git("rev-parse", "HEAD", folder=bed.clone))
    bed.until(bed.all_ready)


def test_half_of_the_nodes(bed: beds.Bed) -> None:
    begin(bed)
    revision = bed.commit({"cluster.yaml": cluster(2), "jobs/one.yaml": beds.job("one", SLEEPS)})
    (found,) = held(bed, revision)
    assert "4 of 8 GPUs (50%)" in found["message"]
    assert f"muster approve {found['digest']}" in found["message"]
    bed.until_state("one", "Running")  # jobs of the same revision apply
    assert nodes_of_pool(bed) == 4
    told = muster(bed, "status")
    assert found["digest"] in told.stdout

    # Jobs come and go, and the digest stays what it is.
    bed.commit({"jobs/two.yaml": beds.job("two", SLEEPS), "jobs/one.yaml": None})
    bed.until_state("two", "Running")
    bed.until_state("one", "Cancelled")
    assert [one["digest"] for one in sync(bed)["held"]] == [found["digest"]]

    # A revision that removes more is not what was approved.
    earlier = found["digest"]
    revision = bed.commit({"cluster.yaml": cluster(1)}, f"More\n\nMuster-Approve: {earlier}")
    (other,) = held(bed, revision)
    assert other["digest"] != found["digest"]
    assert sync(bed)["sync"] == "OutOfSync"

    # What was approved applies when it is asked for.
    revision = bed.commit({"cluster.yaml": cluster(2)})
    in_force(bed, revision)
    bed.until(lambda: nodes_of_pool(bed) == 2)
    # The running job goes on: nodes that leave are drained first.
    assert bed.job("two")["state"] == "Running"


def test_a_held_head_is_planned_against_what_is_in_force_then_approved(bed: beds.Bed) -> None:
    begin(bed)
    kept = sync(bed)["structureRevision"]
    revision = bed.commit({"cluster.yaml": cluster(2)})
    (found,) = held(bed, revision)
    planned = muster(bed, "plan", "-o", "json")
    assert planned.returncode == 3, planned.stderr
    plan = json.loads(planned.stdout)
    assert (plan["base"], plan["head"], plan["verdict"]) == (kept, revision, "held")
    assert plan["impact"]["gpusBefore"] == 8
    assert [one["digest"] for one in plan["held"]] == [found["digest"]]
    told = muster(bed, "plan").stdout
    assert f"the structure of {kept[:12]}" in told
    assert "No changes" not in told
    assert [one["digest"] for one in bed.get("/v1/plan", revision=revision)["held"]] == [
        found["digest"]
    ]

    # what is held is known also to who does not want to look ahead
    short = muster(bed, "plan", "--no-forecast", "-o", "json")
    assert short.returncode == 3, short.stderr
    brief = json.loads(short.stdout)
    assert (brief["held"], brief["forecast"]) == (plan["held"], None)
    assert brief["noForecast"] == "it was not asked for (--no-forecast)"

    _plan_beside_what_is_held(bed, plan["held"])

    # a pipeline names the branch as its base: that misses nothing of it
    named = muster(bed, "plan", "--base", "HEAD", "-o", "json")
    assert named.returncode == 3, named.stderr
    assert json.loads(named.stdout)["held"] == plan["held"]

    # a clone that lacks what is in force says so rather than comparing with something else
    other = bed.clone.parent / "behind"
    bed.git("init", "--quiet", str(other), folder=bed.clone)
    lacking = muster(bed, "plan", "--repo", str(other))
    assert lacking.returncode == 1
    assert f"{kept[:12]} is in force, but not in" in lacking.stderr
    assert "`git fetch`" in lacking.stderr

    # a digest that nothing has is refused before anything is committed
    wrong = muster(bed, "approve", "s" + "2" * 26 + "j0h0", "--clone", ".")
    assert wrong.returncode == 1
    assert "nothing was committed" in wrong.stderr
    assert found["digest"] in wrong.stderr
    assert bed.git("rev-parse", "HEAD", folder=bed.clone) == revision

    approved = muster(bed, "approve", found["digest"], "--clone", ".", "-m", "racks go back")
    assert approved.returncode == 0, approved.stderr
    assert approved.stdout == f"{found['digest']}\n"
    assert "approved (" in approved.stderr
    assert "4 of 8 GPUs (50%) leave service" in approved.stderr
    assert "held" not in approved.stderr
    approval = bed.git("rev-parse", "HEAD", folder=bed.clone)
    in_force(bed, approval)
    again = muster(bed, "approve", found["digest"], "--clone", ".")
    assert (again.returncode, again.stdout) == (0, f"{found['digest']}\n")
    assert again.stderr == f"approved already by {approval[:12]}\n"
    assert bed.git("rev-parse", "HEAD", folder=bed.clone) == approval


def _plan_beside_what_is_held(bed: beds.Bed, waiting: beds.Json) -> None:
    """A change of somebody else is planned as what it is, and what is held is told beside it."""
    bed.git("checkout", "--quiet", "-b", "another", folder=bed.clone)
    (bed.clone / "small.yaml").write_text(beds.job("small", "  command: ['true']"))
    bed.git("add", "small.yaml", folder=bed.clone)
    bed.git("commit", "--quiet", "--message", "another", folder=bed.clone)
    beside = muster(bed, "plan", "another", "--no-forecast", "-o", "json")
    assert beside.returncode == 2, beside.stderr
    small = json.loads(beside.stdout)
    assert [one["name"] for one in small["changes"]] == ["small"]
    assert (small["held"], small["waiting"]) == ([], waiting)
    bed.git("checkout", "--quiet", "main", folder=bed.clone)


def test_removing_many_jobs(bed: beds.Bed) -> None:
    begin(bed)
    names = ("many-a", "many-b", "many-c")
    spec = "  command: [sleep, '600']"
    bed.commit({f"jobs/{name}.yaml": beds.job(name, spec) for name in (*names, "other")})
    for name in (*names, "other"):
        bed.until_state(name, "Running")
    revision = bed.commit({f"jobs/{name}.yaml": None for name in names})
    (found,) = held(bed, revision)
    assert "3 running jobs are ended" in found["message"]
    assert found["jobs"] == list(names)
    # They are in force, so that a plan shows what approving their removal does.
    planned = muster(bed, "plan", "-o", "json")
    assert planned.returncode == 3, planned.stderr
    plan = json.loads(planned.stdout)
    assert [(one["operation"], one["name"]) for one in plan["changes"]] == [
        ("remove", name) for name in names
    ]
    assert [one["digest"] for one in plan["held"]] == [found["digest"]]
    # Somebody else's cancel does not wait for it.
    bed.commit({"jobs/other.yaml": None})
    bed.until_state("other", "Cancelled")
    assert {bed.job(name)["state"] for name in names} == {"Running"}
    # Approved through the controller, which commits it.
    assert bed.api is not None
    body = {"verb": "approve", "names": [found["digest"]], "reason": "done"}
    (approved,) = bed.api.post("/v1/changes", body)["items"]
    for name in names:
        bed.until_state(name, "Cancelled")
    bed.until(lambda: sync(bed)["sync"] == "Synced")
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
    message = bed.git("log", "-1", "--format=%B", folder=bed.clone)
    assert f"Muster-Approve: {found['digest']}\nMuster-Submitter: tester@example.org" in message
    (again,) = bed.api.post("/v1/changes", body)["items"]
    assert again["commit"] == approved["commit"] == bed.git("rev-parse", "HEAD", folder=bed.clone)
    assert again["message"] == f"approved already by {approved['commit'][:12]}"


def test_a_hold_outlives_the_controller(bed: beds.Bed) -> None:
    begin(bed)
    before = sync(bed)["structureRevision"]
    revision = bed.commit({"cluster.yaml": cluster(1)})
    (found,) = held(bed, revision)
    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    (again,) = held(bed, revision)
    assert again["digest"] == found["digest"]
    assert sync(bed)["structureRevision"] == before
    in_force(bed, bed.commit({"cluster.yaml": cluster(4)}))


def test_a_rollback_shows_what_it_does_and_that_it_is_held(bed: beds.Bed) -> None:
    begin(bed)
    held(bed, bed.commit({"cluster.yaml": cluster(1)}))
    in_force(bed, bed.commit({"cluster.yaml": cluster(4)}))
    head = bed.git("rev-parse", "HEAD", folder=bed.clone)
    shown = muster(bed, "rollback", "HEAD~1", "--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "nothing was changed\n")
    for told in ("~ NodePool/virtual", "\nImpact\n", " 6 GPUs: ", "\nForecast for 24h"):
        assert told in shown.stdout, told
    assert bed.git("rev-parse", "HEAD", folder=bed.clone) == head
    done = muster(bed, "rollback", "HEAD~1", "--yes", "--no-forecast")
    assert (done.returncode, done.stderr) == (
        0,
        "pushed; safety limits hold it until it is approved\n",
    )
    (found,) = held(bed, bed.git("rev-parse", "HEAD", folder=bed.clone))
    assert f"muster approve {found['digest']}" in shown.stdout
    in_force(bed, bed.commit({"cluster.yaml": cluster(4)}))


def test_after_a_force_push_status_tells_of_it_before_what_was_held(bed: beds.Bed) -> None:
    begin(bed)
    good = bed.git("rev-parse", "HEAD", folder=bed.clone)
    (found,) = held(bed, bed.commit({"cluster.yaml": cluster(1)}))
    newest = bed.git("rev-parse", "HEAD", folder=bed.clone)
    bed.git("reset", "--quiet", "--hard", good, folder=bed.clone)
    bed.git("push", "--quiet", "--force", "origin", "HEAD:main", folder=bed.clone)
    bed.until(lambda: sync(bed)["problems"][0]["rule"] == "not-a-fast-forward")
    shown = " ".join(muster(bed, "status").stdout.split())
    assert "muster approve" not in shown
    assert 0 < shown.index("the branch was rewritten") < shown.index("held: ")
    assert f"--accept-revision {good}" in shown
    asked = muster(bed, "approve", found["digest"], "-m", "yes", "--clone", ".")
    assert asked.returncode != 0
    assert bed.git("rev-parse", "HEAD", folder=bed.clone) == good, "nothing was committed"
    bed.git("reset", "--quiet", "--hard", newest, folder=bed.clone)
    bed.git("push", "--quiet", "--force", "origin", "HEAD:main", folder=bed.clone)
    (again,) = held(bed, newest)
    assert again["digest"] == found["digest"]
    in_force(bed, bed.commit({"cluster.yaml": cluster(4)}))


def test_what_is_submitted_to_an_emptied_branch_cancels_nothing(bed: beds.Bed) -> None:
    begin(bed)
    in_force(
        bed, bed.commit({"jobs/survivor.yaml": beds.job("survivor", "  command: [sleep, '600']")})
    )
    bed.until(lambda: bed.get("/v1/jobs/survivor")["job"]["state"] == "Running")
    before = sync(bed)
    bed.git("rm", "-rq", "cluster.yaml", "jobs", folder=bed.clone)
    bed.git("commit", "--quiet", "-m", "oops", folder=bed.clone)
    bed.git("push", "--quiet", "origin", "HEAD:main", folder=bed.clone)
    emptied = bed.git("rev-parse", "HEAD", folder=bed.clone)
    bed.until(lambda: [one["rule"] for one in sync(bed)["problems"]] == ["became-empty"])
    shown = " ".join(muster(bed, "status").stdout.split())
    assert f"git revert {emptied[:12]}" in shown
    done = muster(bed, "submit", "--name", "newcomer", "--clone", ".", "--", "true")
    assert done.returncode == 3
    assert "not applied yet: nor does what follows it: " in done.stderr
    newest = bed.git("rev-parse", "HEAD", folder=bed.clone)
    bed.until(lambda: sync(bed)["attemptedRevision"] == newest)
    assert [one["rule"] for one in sync(bed)["problems"]] == ["became-empty"]
    assert sync(bed)["structureRevision"] == before["structureRevision"]
    assert bed.get("/v1/jobs/survivor")["job"]["state"] == "Running"
    bed.git("revert", "--no-edit", emptied, folder=bed.clone)
    bed.git("push", "--quiet", "origin", "HEAD:main", folder=bed.clone)
    in_force(bed, bed.git("rev-parse", "HEAD", folder=bed.clone))
    bed.until(lambda: bed.get("/v1/jobs/newcomer")["job"]["state"] == "Succeeded")
    assert bed.get("/v1/jobs/survivor")["job"]["state"] == "Running"
    in_force(bed, bed.commit({"jobs/survivor.yaml": None}))


@pytest.mark.parametrize("with_local", [False, True])
def test_a_held_drain_is_told_beside_unpushed_commits(bed: beds.Bed, *, with_local: bool) -> None:
    begin(bed)
    others = f"others-{int(with_local)}"  # the same contents would not start again
    submitted = muster(bed, "submit", "--name", others, "--", "true", folder=bed.folder)
    assert submitted.returncode == 0, submitted.stderr  # by the controller: the remote is ahead
    (bed.clone / "NOTES.txt").write_text("not for others yet\n")
    bed.git("add", "NOTES.txt", folder=bed.clone)
    bed.git("commit", "--quiet", "-m", "unfinished", folder=bed.clone)
    local = bed.git("rev-parse", "HEAD", folder=bed.clone)
    option = ["--with-local"] if with_local else []
    drained = muster(bed, "drain", "virtual-[0-2]", "-m", "C", "--clone", ".", *option)
    assert drained.returncode == 3, drained
    assert "drained" not in drained.stderr
    assert drained.stderr.startswith("virtual-0: drain not applied yet (")
    assert ("stays unpushed" in drained.stderr) is not with_local
    published = bed.git("rev-list", "main", folder=bed.folder / "repository.git").split()
    assert (local in published) is with_local
    assert bed.all_ready()
    bed.git("fetch", "--quiet", folder=bed.clone)
    bed.git("reset", "--quiet", "--hard", "origin/main", folder=bed.clone)
    (bed.clone / "NOTES.txt").unlink(missing_ok=True)
    in_force(bed, bed.commit({"cluster.yaml": cluster(4), f"jobs/{others}.yaml": None}))


def test_a_force_push_is_held(bed: beds.Bed) -> None:
    begin(bed)
    before = sync(bed)
    newest = bed.git("rev-parse", "HEAD", folder=bed.clone)
    bed.git("reset", "--quiet", "--hard", "HEAD~1", folder=bed.clone)
    bed.git("push", "--quiet", "--force", "origin", "HEAD:main", folder=bed.clone)
    problems = bed.until(lambda: sync(bed)["sync"] == "OutOfSync" and sync(bed)["problems"])
    assert [problem["rule"] for problem in problems] == ["not-a-fast-forward"]
    assert "--accept-revision" in problems[0]["message"]
    assert sync(bed)["structureRevision"] == before["structureRevision"]
    shown = " ".join(muster(bed, "status").stdout.split())
    assert shown.count("the branch was rewritten") == 1, "it is told once"
    assert " : error" not in shown
    # What is committed on top waits as well, and whoever commits hears it.
    drained = muster(bed, "drain", "virtual-0", "-m", "fan", "--clone", ".")
    assert (drained.returncode, drained.stdout) == (3, "virtual-0\n")
    assert drained.stderr.startswith("drain not applied yet (")
    assert "\nnot applied yet: " in drained.stderr
    head = bed.git("rev-parse", "HEAD", folder=bed.clone)
    assert f"--accept-revision {head}" in drained.stderr
    held_back = muster(bed, "suspend", "cluster", "--clone", ".")
    assert (held_back.returncode, held_back.stdout) == (3, "cluster\n")
    assert held_back.stderr.startswith("suspend not applied yet (")
    submitted = muster(bed, "submit", "--clone", ".", "--name", "kept", "--", "true")
    assert (submitted.returncode, submitted.stdout) == (3, "kept\n")
    assert submitted.stderr.startswith("submit not applied yet (")
    head = bed.git("rev-parse", "HEAD", folder=bed.clone)
    assert f"--accept-revision {head}" in submitted.stderr
    back = muster(bed, "rollback", "HEAD~2", "--yes", "--no-forecast")
    assert back.returncode == 3, back
    assert "--accept-revision " in back.stderr
    undrained = muster(bed, "undrain", "virtual-0", folder=bed.folder)  # made by the controller
    assert undrained.returncode == 3
    assert undrained.stdout == "virtual-0\n"
    assert undrained.stderr.startswith("committed, but not in force until the newest")
    assert "\nnot applied yet: " in undrained.stderr
    asked = muster(bed, "submit", "--name", "kept-too", "--", "true", folder=bed.folder)
    assert (asked.returncode, asked.stdout) == (3, "kept-too\n")
    assert asked.stderr.startswith("committed, but not in force until the newest")
    assert "--accept-revision " in asked.stderr
    bed.git("pull", "--quiet", "--ff-only", "origin", "main", folder=bed.clone)
    ran = muster(bed, "run", "--clone", ".", "--name", "early", "--", "true")
    assert ran.returncode == 125
    assert "not applied yet: " in ran.stderr
    assert "early starts once the commit is applied" in ran.stderr
    bed.git("reset", "--quiet", "--hard", newest, folder=bed.clone)
    bed.git("push", "--quiet", "--force", "origin", "HEAD:main", folder=bed.clone)
    bed.until(lambda: sync(bed)["sync"] == "Synced")


def test_what_is_no_digest_is_refused(bed: beds.Bed) -> None:
    told = muster(bed, "approve", "HEAD")
    assert told.returncode == 64
    assert "not the digest of a change" in told.stderr


def test_history_and_audit_tell_what_became_of_revisions(bed: beds.Bed) -> None:
    begin(bed)
    revision = bed.commit({"cluster.yaml": cluster(1)}, "remove most nodes")
    (found,) = held(bed, revision)
    entry = bed.until(
        lambda: next(
            (one for one in bed.get("/v1/audit")["items"] if one["revision"] == revision), None
        )
    )
    assert entry["result"] == "OutOfSync"
    assert found["digest"] in entry["message"]
    assert [(c["author"], c["subject"]) for c in entry["commits"]] == [
        ("tester@example.org", "remove most nodes")
    ]
    told = muster(bed, "audit")
    assert "tester@example.org: remove most nodes" in told.stdout
    assert revision[:12] in muster(bed, "history").stdout
    whole = muster(bed, "audit", "verify")
    assert (whole.returncode, "the chain is intact" in whole.stdout) == (0, True), whole
    repository = bed.folder / "repository.git"
    note = bed.until(lambda: "; audit " in (text := _note(bed, revision, repository)) and text)
    assert f"audit {entry['number']} {entry['hash']}" in note
    in_force(bed, bed.commit({"cluster.yaml": cluster(4)}))
    # A line that somebody changes is seen.
    path = bed.cluster.state / "audit.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"remove most nodes", b"remove more nodes"))
    broken = muster(bed, "audit", "verify")
    path.write_bytes(good)
    assert broken.returncode == 1
    assert "changed after it was written" in broken.stderr


def _note(bed: beds.Bed, revision: str, repository: Path) -> str:
    try:
        return bed.git("notes", "--ref=muster", "show", revision, folder=repository)
    except subprocess.CalledProcessError:
        return ""


def fixed(memory: str) -> str:
    """Return the cluster with its nodes in a pool of machines that nobody makes anew."""
    text = cluster(4).replace("provisioner: virtual\n  count: 4", "hosts: virtual-[0-3]")
    assert "hosts" in text
    return text.replace("memory: 2Gi", f"memory: {memory}")


def test_a_demand_that_no_node_meets_is_planned_and_held(bed: beds.Bed) -> None:
    """It used to be "Impact none", and all nodes of the pool were Unhealthy a second later."""
    begin(bed)
    in_force(
        bed, bed.commit({"cluster.yaml": fixed("2Gi"), "jobs/on.yaml": beds.job("on", SLEEPS)})
    )
    bed.until_state("on", "Running")
    revision = bed.commit({"cluster.yaml": fixed("900Gi")})
    (found,) = held(bed, revision)
    assert "8 of 8 GPUs (100%) leave service (virtual-[0-3]: " in found["message"]
    plan = json.loads(muster(bed, "plan", "--no-forecast", "-o", "json").stdout)
    (out,) = plan["impact"]["exits"]
    assert (out["pool"], out["nodes"], out["gpus"]) == ("virtual", "virtual-[0-3]", 8)
    assert ("on", "drained") in [(one["job"], one["how"]) for one in plan["impact"]["jobs"]]
    told = " ".join(muster(bed, "plan", "--no-forecast").stdout.split())
    assert "out of virtual 8 GPUs on virtual-[0-3]:" in told
    assert "GPUs in service 8 -> 0" in told
    assert bed.all_ready()
    in_force(bed, bed.commit({"cluster.yaml": cluster(4), "jobs/on.yaml": None}))

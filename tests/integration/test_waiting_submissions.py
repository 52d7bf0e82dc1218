"""Jobs submitted while git is away: kept, committed in order when it is back, each once."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from reconciler.changes import requests
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.tokens import token_file
from reconciler.store import StoreReader
from tests.integration import beds
from tests.integration.test_overrides import muster


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path, url=True) as made:
        yield made


@contextlib.contextmanager
def git_away(bed: beds.Bed) -> Iterator[None]:
    """Move the repository away for a while."""
    repository, elsewhere = bed.folder / "repository.git", bed.folder / "away.git"
    repository.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(repository)


def _submit(bed: beds.Bed, *names: str, command: str = "'true'") -> list[beds.Json]:
    assert bed.api is not None
    text = "---\n".join(beds.job(name, f"  command: [{command}]") for name in names)
    found: list[beds.Json] = bed.api.post(
        "/v1/jobs", content=text.encode(), kind="application/yaml"
    )["items"]
    return found


def _gits(bed: beds.Bed) -> list[psutil.Process]:
    """Return the processes of git in the folders of a bed."""
    return [
        process
        for process in psutil.process_iter(["name", "cwd"])
        if process.info["name"].startswith("git")
        and (process.info["cwd"] or "").startswith(str(bed.folder))
    ]


def _submissions(bed: beds.Bed) -> beds.Json:
    return bed.get("/v1/sync")["sync"]["submissions"]


def _drifting(bed: beds.Bed) -> list[tuple[str, str]]:
    return [
        (one["subject"], one["found"])
        for one in bed.get("/v1/drift")["items"]
        if one["kind"] == "submission-not-committed"
    ]


def _commits(bed: beds.Bed) -> list[str]:
    """Return author and subjects of the commits that submitted, the first one first."""
    log = bed.git(
        *("log", "--reverse", "--format=%ae %s %b", "-z", "main"),
        folder=bed.folder / "repository.git",
    )
    return [" ".join(one.split()) for one in log.split("\0") if "ubmit" in one]


def _kinds(bed: beds.Bed, name: str) -> list[str]:
    found = [one["kind"] for one in bed.get("/v1/events", job=name)["items"]]
    return [kind for kind in found if kind.startswith("Submission")]


def _settled(bed: beds.Bed) -> bool:
    return bool(_submissions(bed)["waiting"] == 0)


def test_jobs_wait_for_git_over_a_kill_and_run_once_they_are_committed(bed: beds.Bed) -> None:
    with git_away(bed):
        (first,) = _submit(bed, "first")
        assert (first["status"], first["commit"]) == (202, None)
        assert first["message"].startswith("accepted; waits for git: it is not committed yet")
        why = first["message"].partition("does not start before: ")[2]
        assert why, "it says why git can't take it"
        for command in ("explain", "job"):
            told = "".join(muster(bed, command, "first", code=1))
            assert f"waits for git to commit it: {why}" in " ".join(told.split())
            assert "muster cancel first withdraws it" in " ".join(told.split())
        (bed.folder / "second.yaml").write_text(beds.job("second", "  command: ['true']"))
        (bed.folder / "third.yaml").write_text(beds.job("third", "  command: ['true']"))
        printed, told = muster(bed, "submit", "second.yaml", "third.yaml")
        assert printed == "second\nthird\n"
        assert told.count("accepted; waits for git") == 2
        assert [one["status"] for one in _submit(bed, "first")] == [202], "it may be said again"
        waiting = [(name, "waits for git") for name in ("first", "second", "third")]
        bed.until(lambda: _drifting(bed) == waiting)
        bed.cluster.kill_controller()
        bed.cluster.start_controller()
        bed.cluster.wait_ready()
        bed.until(lambda: _submissions(bed)["waiting"] == 3)
        listed = {one["name"]: one["state"] for one in bed.get("/v1/jobs")["items"]}
        assert listed == dict.fromkeys(("first", "second", "third"), "Submitting")
        for command in ("status", "jobs"):
            told = "".join(muster(bed, command))
            assert "3 submissions wait for git since TIME (`muster overrides`)" in told
        _, told = muster(bed, "overrides")
        assert "first: waits for git, and is committed when that can be reached" in told
    for name in ("first", "second", "third"):
        bed.until_state(name, "Succeeded")
    bed.until(lambda: _settled(bed))
    bed.until(lambda: _drifting(bed) == [])
    text = " ".join(_commits(bed))
    places = [text.index(f"Submit Job/{name}") for name in ("first", "second", "third")]
    assert places == sorted(places)
    assert text.count("Submit Job/") == 3
    assert text.count(f"{requests.SUBMISSION_TRAILER}: ") == 3
    assert all(one.startswith("tester@example.org ") for one in _commits(bed))
    assert _kinds(bed, "second") == ["SubmissionQueued", "SubmissionCommitted"]


def test_what_was_pushed_before_a_kill_is_not_committed_again(bed: beds.Bed) -> None:
    """The commit is there, and even its job has left git since; only the mark is missing."""
    with git_away(bed):
        _submit(bed, "pushed", "left", "open")
        bed.cluster.kill_controller()
        bed.until(lambda: not _gits(bed))  # which would find the repository when it is back
    ids = {
        one.subject: one.submission.id
        for one in StoreReader.open(f"sqlite:///{bed.cluster.state}/store.db").overrides()
        if one.submission
    }
    for name in ("pushed", "left"):
        document = beds.job(name, "  command: ['true']")
        trailer = f"Submit Job/{name}\n\n{requests.SUBMISSION_TRAILER}: {ids[name]}"
        pushed = bed.commit({f"jobs/{name}.yaml": document}, trailer)
    bed.commit({"jobs/left.yaml": None}, "Cancel Job/left")
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    bed.until(lambda: _settled(bed))
    bed.until_state("pushed", "Succeeded")
    bed.until_state("open", "Succeeded")
    text = " ".join(_commits(bed))
    assert [text.count(f"Submit Job/{name}") for name in ("pushed", "left", "open")] == [1, 1, 1]
    names = {one["name"] for one in bed.get("/v1/jobs")["items"]}
    assert names == {"pushed", "open"}, "nobody submitted `left` again"
    told = [one["message"] for one in bed.get("/v1/events", job="left")["items"]]
    assert told[-1] == f"of tester@example.org, in {pushed[:12]}"


def test_kills_at_any_moment_commit_each_submission_once(bed: beds.Bed) -> None:
    names = [f"job-{number}" for number in range(12)]
    with git_away(bed):
        _submit(bed, *names)
    for _ in range(4):
        with contextlib.suppress(api_client.ApiError):
            bed.until(lambda: _submissions(bed)["waiting"] < len(names), timeout_s=5)
        bed.cluster.kill_controller()
        bed.cluster.start_controller()
        bed.cluster.wait_ready()
    bed.until(lambda: _settled(bed))
    text = " ".join(_commits(bed))
    assert [text.count(f"Submit Job/{name} ") for name in names] == [1] * len(names)
    assert text.count(f"{requests.SUBMISSION_TRAILER}: ") == len(names)
    for name in names:
        bed.until_state(name, "Succeeded")


ROLES = """\
apiVersion: muster/v1
kind: Access
metadata: {name: people}
spec:
  identities: [{email: tester@example.org}, {email: bob@example.org}]
  roles:
    - name: own
      members: [tester@example.org, bob@example.org]
      allow: [{verbs: [submit], queues: ["*"]}]
"""


def test_jobs_that_wait_for_git_are_listed_and_cancelled_like_others(bed: beds.Bed) -> None:
    for clone in (False, True):
        at = ["--clone", str(bed.folder / "own")] if clone else []
        if clone:
            bed.git(
                *("clone", "-q", str(bed.folder / "repository.git"), str(bed.folder / "own")),
                folder=bed.folder,
            )
        with git_away(bed):
            _submit(bed, "one", "two", "sweep-1", "sweep-2")
            rows, _ = muster(bed, "jobs", "sweep-*")
            for name in ("sweep-1", "sweep-2"):
                assert f"{name}  default  Submitting" in rows
            assert "waits for git: " in rows
            rows, _ = muster(bed, "jobs", "--state", "submitting", "-o", "json")
            assert rows.count('"Submitting"') == 4
            _, told = muster(bed, "cancel", "sweep-*", "--yes", "--dry-run", *at)
            assert told.count("its submission would be withdrawn") == 2
            printed, told = muster(bed, "cancel", "one", *at)
            assert printed == "one\n"
            assert "submission withdrawn; only a push that is under way may still commit it" in told
            printed, told = muster(bed, "cancel", "sweep-*", "--yes", *at)
            assert sorted(printed.split()) == ["sweep-1", "sweep-2"]
            assert _submissions(bed)["waiting"] == 1
            _, told = muster(bed, *("cancel", "two", "--override", "--reason", "now"), code=1)
            assert "To withdraw it: cancel it without an override" in " ".join(told.split())
            muster(bed, "cancel", "two", *at)
            assert [one["name"] for one in bed.get("/v1/jobs")["items"]] == []
    assert _commits(bed) == []


def test_a_job_that_runs_is_cancelled_together_with_one_of_its_name_that_waits(
    bed: beds.Bed,
) -> None:
    text = beds.POOL.format(nodes=2, cpus=4, gpus=0, lease="5s", silence="3s")
    bed.commit({"cluster.yaml": text.replace("lease: 5s", "ephemeral: allowed, lease: 5s")})
    assert bed.api is not None
    bed.api.post("/v1/hooks/git")  # else a remote repository is looked at once a minute
    bed.until(lambda: bed.get("/v1/sync")["sync"]["ephemeral"])
    for clone in (False, True):
        at = ["--clone", str(bed.clone)] if clone else []
        name = "cloned" if clone else "asked"
        document = beds.job(name, "  command: [sleep, '600']").encode()
        query = {"ephemeral": "required"}
        bed.api.post("/v1/jobs", content=document, kind="application/yaml", query=query)
        bed.until_state(name, "Running")
        with git_away(bed):
            (done,) = _submit(bed, name)
            assert done["status"] == 202
            rows, _ = muster(bed, "jobs", name)
            assert (rows.count(name), rows.count("Running")) == (1, 1)
            told = muster(bed, "cancel", name, "--dry-run", *at)[1]
            assert "would be cancelled; its submission would be withdrawn" in told
            assert _submissions(bed)["waiting"] == 1
            printed, told = muster(bed, "cancel", name, *at)
            assert printed == f"{name}\n"
            assert "cancelled; its submission withdrawn; only a push that is under way" in told
            assert _submissions(bed)["waiting"] == 0
        bed.until_state(name, "Cancelled")
    assert _commits(bed) == []


def test_only_who_may_cancel_the_job_withdraws_its_submission(bed: beds.Bed) -> None:
    tokens, own = bed.cluster.state / "tokens", bed.folder / "bob-token"
    secret = token_file.new_token()
    token_file.write_private(own, secret)
    line = token_file.line_of(secret, "bob@example.org", "user")
    token_file.write_private(tokens, tokens.read_text() + line.text() + "\n")
    bed.cluster.kill_controller()
    commit = bed.commit({"access.yaml": ROLES})
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    bed.until(lambda: bed.get("/v1/sync")["sync"]["structureRevision"] == commit)
    endpoint = endpoints.Endpoint(url=bed.cluster.url, token_file=str(own))

    def knows_bob() -> bool:
        with contextlib.suppress(api_client.ApiError):
            return bool(other.get("/v1/sync"))
        return False

    with contextlib.closing(api_client.ApiClient(endpoint)) as other, git_away(bed):
        bed.until(knows_bob)
        _submit(bed, "stays")
        cancel = {"verb": "cancel", "names": ["stays"]}
        with pytest.raises(api_client.ApiError, match=r"tester@example\.org has submitted") as why:
            other.post("/v1/changes", cancel)
        assert why.value.refused
        with pytest.raises(api_client.ApiError, match=r"tester@example\.org has submitted"):
            other.delete("/v1/overrides/submit/stays")
        document = beds.job("bobs", "  command: ['true']").encode()
        other.post("/v1/jobs", content=document, kind="application/yaml")
        (done,) = other.post("/v1/changes", {"verb": "cancel", "names": ["bobs"]})["items"]
        assert (done["status"], done["commit"]) == (200, None)
    bed.until_state("stays", "Succeeded")


def test_who_lost_the_right_is_refused_and_blocks_nobody(bed: beds.Bed) -> None:
    assert bed.api is not None
    tokens, own = bed.cluster.state / "tokens", bed.folder / "bob-token"
    secret = token_file.new_token()
    token_file.write_private(own, secret)
    before = tokens.read_text()
    line = token_file.line_of(secret, "bob@example.org", "user")
    token_file.write_private(tokens, before + line.text() + "\n")
    other = api_client.ApiClient(endpoints.Endpoint(url=bed.cluster.url, token_file=str(own)))

    def knows_bob() -> bool:
        """Return True if the server has read bob's token, and not its end: it looks each second."""
        with contextlib.suppress(api_client.ApiError):
            return bool(other.get("/v1/sync"))
        return False

    with git_away(bed), contextlib.closing(other):
        document = beds.job("gone", "  command: ['true']").encode()
        bed.until(knows_bob)
        (gone,) = other.post("/v1/jobs", content=document, kind="application/yaml")["items"]
        assert gone["status"] == 202
        _submit(bed, "stays")
        token_file.write_private(tokens, before)
        bed.until(lambda: not knows_bob())
    bed.until_state("stays", "Succeeded")
    bed.until(lambda: _submissions(bed) == {"waiting": 0, "since": None, "refused": 1})
    bed.until(lambda: _drifting(bed) == [("gone", "refused")])
    assert _kinds(bed, "gone") == ["SubmissionQueued", "SubmissionRefused"]
    _, told = muster(bed, "overrides")
    assert "gone: not committed: bob@example.org has no token any more" in told
    printed, _ = muster(bed, "overrides", "clear", "submit", "gone")
    assert printed == "gone\n"
    bed.until(lambda: _drifting(bed) == [])

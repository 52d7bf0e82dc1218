"""Which folder of a clone a change is written to, where a repository holds several clusters."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.changes.clone import working_clone
from reconciler.operations.changes import change_requests, held_changes, local_changes, targets
from reconciler.operations.client import endpoints
from reconciler.operations.validate import object_folders
from tests.unit.desired.repositories import ENVIRONMENT, Repository, git, job

CLUSTER = "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: %s}\nspec: {}\n"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of a repository that holds two clusters."""
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    repository = Repository(tmp_path / "state.git")
    repository.commit(
        {
            "README.md": "two clusters",
            "clusters/test/cluster.yaml": CLUSTER % "test",
            "clusters/test/jobs/a.yaml": job("a"),
            "clusters/prod/cluster.yaml": CLUSTER % "prod",
            "clusters/prod/jobs/a.yaml": job("a", priority=1),
        }
    )
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"


@pytest.fixture
def reading() -> Iterator[tuple[dict[str, Any], str]]:
    """What a controller says of its repository, and where it says so."""
    told: dict[str, Any] = {"sync": "Synced", "folder": "clusters/test"}

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"sync": told}).encode()
            found = 200 if self.path.startswith("/v1/sync") else 404
            self.send_response(401 if "refused" in told else found)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield told, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def find(here: Path, clone: Path | None = None) -> targets.ChangeTarget:
    return local_changes.find_target(clone=clone, server=None, token_file=None, here=here)


def submitted(target: targets.ChangeTarget) -> str:
    """The only file of the commit of a new job."""
    local_changes.carry_out([change_requests.Submit(job("new"))], target)
    assert target.clone is not None
    return git(target.clone.root, "show", "--name-only", "--format=", "HEAD").strip()


@pytest.mark.parametrize(
    ("here", "clone"),
    [("", None), ("clusters/test", None), ("clusters/test/jobs", None), ("", "")],
)
def test_a_job_is_written_where_the_controller_reads(
    work: Path, reading: tuple[dict[str, Any], str], here: str, clone: str | None
) -> None:
    endpoints.write(work, endpoints.Endpoint(reading[1]))
    target = find(work / here, None if clone is None else work)
    assert submitted(target) == "clusters/test/jobs/new.yaml"
    local_changes.carry_out([change_requests.Act("cancel", "a")], target)
    assert not (work / "clusters/test/jobs/a.yaml").exists()
    assert (work / "clusters/prod/jobs/a.yaml").exists(), "of the name in the other cluster"


def test_another_cluster_than_the_controllers_is_refused(
    work: Path, reading: tuple[dict[str, Any], str]
) -> None:
    endpoints.write(work, endpoints.Endpoint(reading[1]))
    for here, clone in ((work / "clusters/prod", None), (work, work / "clusters/prod")):
        with pytest.raises(
            change_requests.ChangeError, match=r"reads clusters/test/ .* clusters/prod/"
        ):
            find(here, clone)


def test_a_controller_of_another_repository_says_nothing_of_this_one(
    work: Path, reading: tuple[dict[str, Any], str]
) -> None:
    reading[0]["folder"] = "sites/north"
    endpoints.write(work, endpoints.Endpoint(reading[1]))
    assert submitted(find(work / "clusters/prod")) == "clusters/prod/jobs/new.yaml"


def named(here: Path, url: str) -> targets.ChangeTarget:
    return local_changes.find_target(clone=None, server=url, token_file=None, here=here)


def test_the_clone_one_stands_in_is_taken_where_the_controller_reads_its_repository(
    work: Path, reading: tuple[dict[str, Any], str]
) -> None:
    told, url = reading
    told["attemptedRevision"] = git(work, "rev-parse", "HEAD").strip()
    target = named(work / "clusters/test", url)
    assert target.way == "in work/"
    assert submitted(target) == "clusters/test/jobs/new.yaml"


def test_a_clone_that_is_behind_is_one_of_it_still(
    work: Path, reading: tuple[dict[str, Any], str]
) -> None:
    told, url = reading
    other = work.parent / "other"
    git(work.parent, "clone", "--quiet", str(work.parent / "state.git"), "other")
    git(other, "commit", "--quiet", "--allow-empty", "--message", "by somebody else")
    git(other, "push", "--quiet")
    told["attemptedRevision"] = git(other, "rev-parse", "HEAD").strip()
    assert submitted(named(work / "clusters/test", url)) == "clusters/test/jobs/new.yaml"


def test_another_repository_than_the_controllers_is_left_alone(
    work: Path, reading: tuple[dict[str, Any], str]
) -> None:
    told, url = reading
    told["attemptedRevision"] = "1" * 40
    before = git(work, "rev-parse", "HEAD")
    target = named(work / "clusters/test", url)
    assert (target.clone, target.way) == (None, "by the controller")
    assert git(work, "rev-parse", "HEAD") == before


def test_where_the_named_controller_can_not_be_asked_nothing_is_changed(work: Path) -> None:
    before = git(work, "rev-parse", "HEAD")
    told = r"nothing was changed: .* http://127\.0\.0\.1:1 .*\(.*\)\. .* --clone "
    with pytest.raises(change_requests.ChangeError, match=told):
        named(work / "clusters/test", "http://127.0.0.1:1")
    assert git(work, "rev-parse", "HEAD") == before


def test_while_the_controller_is_away_the_clone_that_is_named_is_changed(work: Path) -> None:
    folder = work / "clusters/test"
    target = local_changes.find_target(
        clone=folder, server="http://127.0.0.1:1", token_file=None, here=folder
    )
    assert submitted(target) == "clusters/test/jobs/new.yaml"


def test_a_token_that_the_named_controller_refuses_is_told(
    work: Path, reading: tuple[dict[str, Any], str]
) -> None:
    reading[0]["refused"] = "yes"
    with pytest.raises(
        change_requests.ChangeError, match=r"nothing was changed: .*401 Unauthorized"
    ):
        named(work / "clusters/test", reading[1])


def test_a_file_of_the_clone_is_what_is_committed_with_a_controller_named_too(
    work: Path, reading: tuple[dict[str, Any], str]
) -> None:
    told, url = reading
    told["attemptedRevision"] = git(work, "rev-parse", "HEAD").strip()
    file = work / "clusters/test/new.yaml"
    file.write_text(job("new"))
    target = named(file.parent, url)
    local_changes.carry_out([change_requests.Submit(job("new"), place=str(file))], target)
    named_in = git(work, "show", "--name-only", "--format=", "HEAD").strip()
    assert named_in == "clusters/test/new.yaml"


def test_without_a_controller_it_is_where_one_stands(work: Path) -> None:
    assert submitted(find(work / "clusters/prod/jobs")) == "clusters/prod/jobs/new.yaml"
    assert find(work, work / "clusters/test").clone is not None
    with pytest.raises(
        change_requests.ChangeError, match=r"several clusters .*--clone .*clusters/prod"
    ):
        find(work)


def test_one_cluster_is_the_whole_repository(work: Path) -> None:
    git(work, "rm", "--quiet", "-r", "clusters/prod")
    assert submitted(find(work)) == "jobs/new.yaml"


def problem(name: str, message: str) -> dict[str, str]:
    return {
        "rule": "policy/owned",
        "severity": "error",
        "object": f"Job/{name}",
        "message": message,
    }


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("mine", {"a": "as before", "b": "no owner"}),
        # Perhaps the commit before mine, perhaps one after it.
        ("other", {"a": "", "b": "no owner"}),
    ],
)
def test_what_was_wrong_before_is_not_held_against_a_commit_that_may_mend_it(
    reading: tuple[dict[str, Any], str], revision: str, expected: dict[str, str]
) -> None:
    told, url = reading
    before = {
        "sync": "OutOfSync",
        "attemptedRevision": "old",
        "problems": [problem("a", "as before")],
    }
    told.update(
        before,
        attemptedRevision=revision,
        problems=[problem("a", "as before"), problem("b", "no owner")],
    )
    learned = object_folders.learned(endpoints.find(url, None, Path.cwd()), None, "mine", before)
    for name, message in expected.items():
        said = held_changes.job(learned, name)
        assert said == (f"Job/{name} is refused: {message}" if message else "")


@pytest.fixture
def stepping(work: Path) -> Iterator[tuple[list[str], str]]:
    """The revisions that a controller tells one after another, the last again and again."""
    revisions: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            now = revisions.pop(0) if len(revisions) > 1 else revisions[0]
            body = json.dumps({"sync": {"sync": "Synced", "attemptedRevision": now}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield revisions, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_of_several_commits_in_the_clone_it_reads_a_controller_is_seen_to_read_the_last(
    work: Path, stepping: tuple[list[str], str]
) -> None:
    """It looks whenever it likes, so that it may come to the first of them before the last."""
    revisions, url = stepping
    made = [git(work, "rev-parse", "HEAD").strip()]
    for name in "ab":
        git(work, "commit", "--quiet", "--allow-empty", "--message", name)
        made.append(git(work, "rev-parse", "HEAD").strip())
    before, first, last = made
    endpoint, clone = endpoints.find(url, None, work), working_clone.Clone(work)
    at_first = {"sync": "Synced", "attemptedRevision": before}
    revisions[:] = [before, first, last]
    learned = object_folders.learned(endpoint, clone, last, at_first)
    assert learned["attemptedRevision"] == last
    # it may have read past it, as where others have pushed meanwhile
    git(work, "commit", "--quiet", "--allow-empty", "--message", "on top")
    revisions[:] = [before, git(work, "rev-parse", "HEAD").strip()]
    learned = object_folders.learned(endpoint, clone, last, at_first)
    assert learned["attemptedRevision"] == revisions[-1]
    # what leads to another one is somebody else's, and not waited for
    git(work, "checkout", "--quiet", "-b", "other", before)
    git(work, "commit", "--quiet", "--allow-empty", "--message", "aside")
    revisions[:] = [before, git(work, "rev-parse", "HEAD").strip(), last]
    assert object_folders.learned(endpoint, clone, last, at_first) is at_first

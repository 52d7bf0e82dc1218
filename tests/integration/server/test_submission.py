"""What is asked for over HTTP is in the repository when it is answered, in its asker's name."""

import pathlib
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from reconciler.model import desired
from reconciler.model.state.states import JobState
from reconciler.model.values import resources
from reconciler.operations.changes import change_requests, local_changes, targets
from reconciler.operations.client import endpoints
from reconciler.operations.views import stored_views
from tests.integration.server import parts
from tests.unit.store import samples

POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: cpu}
spec:
  hosts: n[1-4]
  nodes: {cpu: 4, memory: 8Gi}
  overrides:  # by hand
  - hosts: n[3-4]
    reason: fans
"""


def job(name: str, command: str = "echo") -> str:
    return (
        f"apiVersion: muster/v1\nkind: Job\nmetadata: {{name: {name}}}\n"
        f"spec:\n  command: [{command}]\n"
    )


class Repository:
    """A bare repository with a pool in it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "desired.git"
        work = folder / "work"
        self._git("init", "-q", "--bare", "-b", "main", str(self.path), cwd=folder)
        self._git("clone", "-q", str(self.path), str(work), cwd=folder)
        (work / "pool.yaml").write_text(POOL)
        self._git("checkout", "-q", "-B", "main", cwd=work)
        self._git("add", ".", cwd=work)
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        self._git(*who, "commit", "-qm", "begin", cwd=work)
        self._git("push", "-q", "origin", "main", cwd=work)

    def _git(self, *arguments: str, cwd: pathlib.Path) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True
        ).stdout

    def commit(self, path: str, text: str) -> None:
        """Put a file into the branch, as somebody else would."""
        work = self.path.parent / "work"
        self._git("pull", "-q", "origin", "main", cwd=work)
        (work / path).parent.mkdir(exist_ok=True)
        (work / path).write_text(text)
        self._git("add", ".", cwd=work)
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        self._git(*who, "commit", "-qm", "more", cwd=work)
        self._git("push", "-q", "origin", "HEAD:main", cwd=work)

    def read(self, path: str) -> str:
        return self._git("show", f"main:{path}", cwd=self.path)

    def files(self) -> set[str]:
        return set(self._git("ls-tree", "-r", "--name-only", "main", cwd=self.path).split())

    def log(self, form: str) -> list[str]:
        return self._git("log", f"--format={form}", "main", cwd=self.path).splitlines()


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
def served(tmp_path: pathlib.Path, repository: Repository) -> Iterator[parts.Served]:
    made = parts.Served(tmp_path, "--repository", str(repository.path))
    try:
        pool = desired.Pool("cpu", ("n1", "n2", "n3", "n4"), resources.Resources())
        made.ready().commit(
            views=stored_views.desired_views(
                desired.Desired(structure=desired.Structure(pools={"cpu": pool}))
            )
        )
        yield made
    finally:
        made.close()


def change(served: parts.Served, verb: str, *names: str, reason: str = "") -> int:
    body = {"verb": verb, "names": names, "reason": reason}
    return served.client.post("/v1/changes", json=body).status_code


def test_a_submission_is_pushed_when_it_is_answered(
    served: parts.Served, repository: Repository
) -> None:
    response = served.client.post("/v1/jobs", content=f"{job('a')}---\n{job('b')}")
    assert response.status_code == 200, response.text
    first, second = response.json()["items"]
    assert (first["name"], second["name"]) == ("a", "b")
    assert first["commit"] == second["commit"] == repository.log("%H")[0]
    assert repository.files() == {"pool.yaml", "jobs/a.yaml", "jobs/b.yaml"}
    assert repository.log("%an")[0] == "local"


def test_the_same_again_is_no_error_and_another_of_the_name_is(
    served: parts.Served, repository: Repository
) -> None:
    post = served.client.post
    assert post("/v1/jobs", content=job("a")).status_code == 200
    commits = repository.log("%H")
    assert post("/v1/jobs", content=job("a")).status_code == 200
    assert repository.log("%H") == commits
    other = post("/v1/jobs", content=job("a", "date"))
    assert other.status_code == 409
    assert "a different job a already exists" in other.json()["error"]["message"]


def test_an_invalid_job_is_refused_with_its_problems(
    served: parts.Served, repository: Repository
) -> None:
    wrong = job("b") + "  coffee: 3\n"
    sent: list[tuple[str | bytes, str]] = [
        (f"{job('a')}---\n{wrong}", "1 problem; nothing was submitted"),
        ("", "no document found"),
        (POOL, "NodePool/cpu is not a Job"),
        (f"{job('a')}---\n{job('a')}", "two documents"),
        (b"\xff", "no UTF-8"),
        ("a: [", "1 problem; nothing was submitted"),
    ]
    for content, told in sent:
        refused = served.client.post("/v1/jobs", content=content)
        assert refused.status_code == 400
        assert told in refused.json()["error"]["message"], refused.text
    problems = served.client.post("/v1/jobs", content=wrong).json()["error"]["problems"]
    assert problems[0]["object"] == "Job/b"
    assert "coffee" in str(problems[0])
    assert repository.files() == {"pool.yaml"}


def test_many_at_once_share_commits(served: parts.Served, repository: Repository) -> None:
    names = [f"job-{number}" for number in range(40)]

    def submit(name: str) -> httpx.Response:
        return served.client.post("/v1/jobs", content=job(name))

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(submit, names))
    assert {answer.status_code for answer in answers} == {200}
    assert repository.files() == {"pool.yaml"} | {f"jobs/{name}.yaml" for name in names}
    assert len(repository.log("%H")) < 1 + len(names)


def test_verbs_edit_what_stands_there(served: parts.Served, repository: Repository) -> None:
    served.client.post("/v1/jobs", content=job("a"))
    assert change(served, "hold", "a", reason="later") == 200
    assert "suspend: true" in repository.read("jobs/a.yaml")
    assert change(served, "release", "a") == 200
    assert "suspend" not in repository.read("jobs/a.yaml")
    assert change(served, "rerun", "a") == 200
    assert change(served, "rerun", "a") == 200
    assert "run: 3" in repository.read("jobs/a.yaml")
    assert change(served, "cancel", "a") == 200
    assert repository.files() == {"pool.yaml"}
    for verb in ("hold", "rerun"):
        assert change(served, verb, "nobody") == 404
    assert change(served, "dance", "a") == 400
    assert change(served, "cancel") == 400


def test_who_has_no_clone_suspends_and_resumes(
    served: parts.Served, repository: Repository
) -> None:
    assert change(served, "suspend", "cluster") == 404, "there is no Cluster yet"
    documents = (
        "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: main}\n---\n"
        "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: research}\n"
    )
    repository.commit("cluster.yaml", documents)
    for subject in ("cluster", "queue/research", "Queue/research"):
        assert change(served, "suspend", subject, reason="repairs") == 200
        assert repository.read("cluster.yaml").count("suspend: true") == 1
        assert change(served, "resume", subject) == 200
        assert "suspend" not in repository.read("cluster.yaml")
    assert "Suspend Queue/research: repairs" in repository.log("%s")
    assert change(served, "suspend", "queue/nobody") == 404
    assert change(served, "suspend", "job/a") == 400


def test_what_is_not_there_is_an_error_that_names_what_is_like_it(
    served: parts.Served, repository: Repository
) -> None:
    for name in ("train-1", "train-2"):
        served.client.post("/v1/jobs", content=job(name))
    head = repository.log("%H")
    for verb in ("cancel", "hold", "release", "rerun"):
        response = served.client.post("/v1/changes", json={"verb": verb, "names": ["tran-1"]})
        assert response.status_code == 404, verb
        assert "did you mean train-1 or train-2?" in response.json()["error"]["message"]
    body = {"verb": "drain", "names": ["m1"], "reason": "x"}
    assert served.client.post("/v1/changes", json=body).status_code == 404
    assert repository.log("%H") == head


def test_a_finished_run_is_not_held(served: parts.Served, repository: Repository) -> None:
    served.client.post("/v1/jobs", content=job("a"))
    served.commit(jobs=(samples.job("a", state=JobState.SUCCEEDED),))
    response = served.client.post("/v1/changes", json={"verb": "hold", "names": ["a"]})
    assert response.status_code == 409
    assert "run 1 of Job/a is Succeeded already" in response.json()["error"]["message"]
    assert "suspend" not in repository.read("jobs/a.yaml")
    assert change(served, "rerun", "a") == 200
    assert change(served, "hold", "a") == 200, "the next run is not that one"
    assert "suspend: true" in repository.read("jobs/a.yaml")


def test_a_dry_run_checks_and_changes_nothing(served: parts.Served, repository: Repository) -> None:
    served.client.post("/v1/jobs", content=job("a"))
    head = repository.log("%H")
    for verb, name, status in (
        ("cancel", "a", 200),
        ("hold", "a", 200),
        ("rerun", "a", 200),
        ("drain", "n1", 200),
        ("undrain", "n3", 200),
        ("cancel", "b", 404),
        ("undrain", "n1", 404),
    ):
        body = {"verb": verb, "names": [name], "reason": "why", "dry_run": True}
        response = served.client.post("/v1/changes", json=body)
        assert response.status_code == status, response.text
        if status == 200:
            assert response.json()["items"][0]["commit"] is None
    assert repository.log("%H") == head


def test_jobs_are_rehearsed(served: parts.Served, repository: Repository) -> None:
    served.client.post("/v1/jobs", content=job("a"))
    head = repository.log("%H")
    for text in (job("b"), job("a"), job("a", "other"), job("b", "[1, 2"), "kind: Queue"):
        rehearsed = served.client.post("/v1/dry-runs", content=text)
        assert repository.log("%H") == head
        if text == job("b"):
            assert rehearsed.status_code == 200, rehearsed.text
            assert rehearsed.json()["items"][0]["commit"] is None
            continue
        submitted = served.client.post("/v1/jobs", content=text)
        assert rehearsed.status_code == submitted.status_code
        assert rehearsed.json().get("error") == submitted.json().get("error")


def test_a_wrong_name_among_several_changes_nothing(
    served: parts.Served, repository: Repository
) -> None:
    served.client.post("/v1/jobs", content=job("a"))
    head = repository.log("%H")
    token_file = str(served.folder / "own-token")
    to = targets.ChangeTarget(endpoint=endpoints.Endpoint(served.address, token_file))
    with pytest.raises(
        change_requests.ChangeError, match=r"^typo: there is no .*; nothing was changed$"
    ):
        local_changes.carry_out(
            [change_requests.Act("cancel", "a"), change_requests.Act("cancel", "typo")], to
        )
    assert repository.log("%H") == head
    others: list[change_requests.Change] = [
        change_requests.Submit(job("c")),
        change_requests.Submit(job("a", "date")),
    ]
    with pytest.raises(
        change_requests.ChangeError, match=r"^nothing was changed: a: a different job"
    ):
        local_changes.carry_out(others, to)
    assert repository.log("%H") == head
    together: list[change_requests.Change] = [
        change_requests.Submit(job("d")),
        change_requests.Submit(job("e")),
    ]
    first, second = local_changes.carry_out(together, to)
    assert (first.name, second.name, first.commit) == ("d", "e", second.commit)
    head = repository.log("%H")
    (done,) = local_changes.carry_out([change_requests.Submit(job("c"))], to, dry_run=True)
    assert done == change_requests.ChangeResult("c", "would be submitted")
    assert repository.log("%H") == head


def test_of_several_all_are_changed_or_none_and_each_that_is_wrong_is_told(
    served: parts.Served, repository: Repository
) -> None:
    served.client.post("/v1/jobs", content=f"{job('a')}---\n{job('b')}")
    served.commit(jobs=(samples.job("b", state=JobState.SUCCEEDED),))
    head = repository.log("%H")

    def told(path: str, **sent: Any) -> tuple[int, str]:
        answer = served.client.post(path, **sent)
        return answer.status_code, answer.json()["error"]["message"]

    for verb, names, status, wrong in (
        ("hold", ["a", "typo"], 404, ["typo: there is no Job/typo in the repository"]),
        (
            "hold",
            ["a", "b", "no"],
            409,
            ["b: run 1 of Job/b is Succeeded", "; no: there is no Job/no"],
        ),
        ("hold", ["a", "a"], 400, ["each once"]),
        ("rerun", ["a", "a"], 400, ["each once"]),
    ):
        code, message = told("/v1/changes", json={"verb": verb, "names": names})
        assert (code, [one for one in wrong if one not in message]) == (status, [])
        assert message.endswith(("; nothing was changed", "each once"))
        assert repository.log("%H") == head
    text = "---\n".join((job("c"), job("a", "date"), job("d"), job("b", "date")))
    code, message = told("/v1/jobs", content=text)
    assert code == 409
    assert "a: a different job a already exists" in message
    assert "b: a different job b already exists" in message
    assert message.endswith("; nothing was changed")
    assert repository.log("%H") == head
    # nodes of one pool and one that is in none
    code, message = told(
        "/v1/changes", json={"verb": "drain", "names": ["n1", "m1"], "reason": "x"}
    )
    assert (code, repository.log("%H")) == (404, head)
    # files of what is over leave each by itself
    served.client.post("/v1/jobs", content=job("alive"))
    code, message = told("/v1/changes", json={"verb": "prune", "names": ["alive", "b"]})
    assert (code, message.endswith("; 1 of 2 were pushed")) == (400, True)
    assert repository.files() == {"pool.yaml", "jobs/a.yaml", "jobs/alive.yaml"}


def test_drains_at_once_all_land(served: parts.Served, repository: Repository) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(lambda node: change(served, "drain", node, reason=f"at {node}"), ("n1", "n2"))
        )
    assert answers == [200, 200]
    text = repository.read("pool.yaml")
    assert "at n1" in text
    assert "at n2" in text


def test_nodes_are_drained_and_undrained(served: parts.Served, repository: Repository) -> None:
    assert change(served, "drain", "n1", "n2") == 400
    assert change(served, "drain", "n1", "n2", reason="smoke") == 200
    text = repository.read("pool.yaml")
    assert "# by hand" in text
    assert "- hosts: n[1-2]\n    reason: smoke" in text  # one override for all of a request
    assert change(served, "undrain", "n1", "n3") == 200
    text = repository.read("pool.yaml")
    assert "n1" not in text.partition("overrides")[2]
    assert "hosts: n4" in text
    assert text.count("smoke") == 1
    assert change(served, "undrain", "n1") == 404
    assert change(served, "drain", "n9", reason="x") == 404


def test_a_repository_that_can_not_be_reached_is_told(
    served: parts.Served, repository: Repository
) -> None:
    repository.path.rename(repository.path.with_name("gone"))
    response = served.client.post("/v1/jobs", content=job("a"))
    assert response.status_code == 200
    (item,) = response.json()["items"]
    assert (item["name"], item["status"]) == ("a", 202)
    assert "waits for git" in item["message"]
    served.loop.answers = "too many wait already"
    response = served.client.post("/v1/jobs", content=job("b"))
    assert response.status_code == 503
    told = response.json()["error"]["message"]
    assert "git can't be reached" in told
    assert "too many wait already" in told


def test_files_of_jobs_that_ended_leave_in_one_commit(
    served: parts.Served, repository: Repository
) -> None:
    for name in ("a", "b", "alive", "unknown"):
        served.client.post("/v1/jobs", content=job(name))
    served.ready().commit(
        jobs=(
            samples.job("a", state=JobState.SUCCEEDED),
            samples.job("b", state=JobState.FAILED),
            samples.job("alive", state=JobState.RUNNING),
        )
    )
    before = repository.log("%H")
    assert change(served, "prune", "a", "b", reason="it ended long ago") == 200
    assert repository.files() == {"pool.yaml", "jobs/alive.yaml", "jobs/unknown.yaml"}
    assert len(repository.log("%H")) == len(before) + 1
    for name in ("alive", "unknown"):
        assert change(served, "prune", name) == 400
    assert repository.files() == {"pool.yaml", "jobs/alive.yaml", "jobs/unknown.yaml"}


def test_a_file_of_a_name_that_is_there_twice_stays_and_costs_no_other(
    served: parts.Served, repository: Repository
) -> None:
    names = ("a", "b", "c")
    for name in names:
        served.client.post("/v1/jobs", content=job(name))
    repository.commit("other/a.yaml", job("a", "date"))
    repository.commit("other/b.yaml", job("b"))
    served.ready().commit(jobs=tuple(samples.job(one, state=JobState.SUCCEEDED) for one in names))
    body = {"verb": "prune", "names": list(names), "reason": "it ended long ago"}
    response = served.client.post("/v1/changes", json=body)
    assert response.status_code == 200
    first, *others = response.json()["items"]
    assert first["message"].startswith("its file stays: Job/a is there 2 times, in jobs/a.yaml, ")
    assert [one["message"] for one in others] == ["", ""]
    assert repository.files() == {"pool.yaml", "jobs/a.yaml", "other/a.yaml"}

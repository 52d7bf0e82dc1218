"""Jobs without a file in git, on real processes: rights, a killed controller, a clean log."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from reconciler.operations.client import api_client, endpoints
from reconciler.operations.tokens import token_file
from tests.integration import beds

ACCESS = """\
apiVersion: muster/v1
kind: Access
metadata: {name: people}
spec:
  identities:
    - {email: tester@example.org, groups: [research]}
    - {email: bob@example.org, groups: [research]}
    - {email: eve@example.org}
  roles:
    - name: researchers
      members: ["group:research"]
      allow: [{verbs: [submit], queues: ["*"]}]
    - name: managers
      members: [bob@example.org]
      allow: [{verbs: [manage], queues: ["*"]}]
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("ephemeral"), nodes=2) as made:
        _set(made, "allowed")
        yield made


def _set(bed: beds.Bed, ephemeral: str) -> None:
    """Have the Cluster allow or forbid jobs without a file in git, and wait until it does."""
    text = beds.POOL.format(nodes=2, cpus=4, gpus=0, lease="5s", silence="3s")
    files = {"cluster.yaml": text.replace("lease: 5s", f"ephemeral: {ephemeral}, lease: 5s")}
    _commit(bed, {**files, "access.yaml": ACCESS})
    bed.until(lambda: bed.get("/v1/sync")["sync"]["ephemeral"] is (ephemeral == "allowed"))


def _commit(bed: beds.Bed, files: dict[str, str | None]) -> None:
    """Commit on top of what the controller has committed."""
    bed.git("pull", "--quiet", "origin", "main", folder=bed.clone)
    bed.commit(files)


def _muster(bed: beds.Bed, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", *arguments],
        check=False,
        cwd=bed.folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
        capture_output=True,
        text=True,
        timeout=120,
    )


def _log(bed: beds.Bed) -> str:
    return bed.git("log", "--oneline", "main", folder=bed.folder / "repository.git")


@contextlib.contextmanager
def _person(bed: beds.Bed, name: str) -> Iterator[api_client.ApiClient]:
    """Give somebody a token, and talk to the controller with it."""
    tokens, own = bed.cluster.state / "tokens", bed.folder / f"{name}-token"
    secret = token_file.new_token()
    token_file.write_private(own, secret)
    line = token_file.line_of(secret, f"{name}@example.org", "user")
    token_file.write_private(tokens, tokens.read_text() + line.text() + "\n")
    api = api_client.ApiClient(endpoints.Endpoint(url=bed.cluster.url, token_file=str(own)))

    def is_known() -> bool:
        with contextlib.suppress(api_client.ApiError):
            return bool(api.get("/v1/sync"))
        return False

    bed.until(is_known)
    with contextlib.closing(api):
        yield api


def _begin(api: api_client.ApiClient, name: str, spec: str, how: str = "required") -> beds.Json:
    return api.post(
        "/v1/jobs",
        content=beds.job(name, spec).encode(),
        kind="application/yaml",
        query={"ephemeral": how},
    )["items"][0]


def _change(api: api_client.ApiClient, verb: str, *names: str) -> list[beds.Json]:
    body = {"verb": verb, "names": list(names), "reason": "a test"}
    found: list[beds.Json] = api.post("/v1/changes", body)["items"]
    return found


def test_a_run_leaves_no_commit_and_is_found_everywhere_else(bed: beds.Bed) -> None:
    before = _log(bed)
    done = _muster(bed, "run", "--name", "short", "--", "sh", "-c", "echo hello; exit 3")
    assert (done.returncode, done.stdout) == (3, "hello\n"), done.stderr
    assert "submitted short (not in git)" in done.stderr
    assert _log(bed) == before
    shown = _muster(bed, "job", "short").stdout
    assert "Document  not in git" in shown
    (line,) = [
        one for one in _muster(bed, "jobs", "-o", "wide").stdout.splitlines() if "short" in one
    ]
    assert "not in git" in line
    assert bed.job("short")["ephemeral"] is True
    assert bed.get("/v1/drift")["items"] == []
    again = _muster(bed, "run", "--name", "short", "--", "sh", "-c", "echo hello; exit 3")
    assert "its run has ended (Failed)" in again.stderr
    rerun = _muster(bed, "rerun", "short")
    assert (rerun.returncode, rerun.stdout) == (0, "short\n"), rerun.stderr
    job = bed.until_state("short", "Failed")
    assert (job["run"], job["ephemeral"]) == (2, True)
    assert _log(bed) == before
    noted = bed.until(
        lambda: [
            (one["identity"], one["request"].split(":")[0])
            for one in bed.get("/v1/audit/access", action="EphemeralJob")["items"]
        ]
    )
    assert any(what.startswith("submit short of tester@example.org") for _, what in noted)
    assert {who for who, _ in noted} == {"tester@example.org"}


def test_who_asks_for_a_commit_gets_one(bed: beds.Bed) -> None:
    done = _muster(bed, "run", "--commit", "--name", "kept", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "kept" in _log(bed)
    assert bed.job("kept")["ephemeral"] is False


def test_in_a_clone_nothing_is_committed_either(bed: beds.Bed) -> None:
    before = _log(bed)
    environment = {**bed.environment, "GIT_CONFIG_GLOBAL": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_NAME": "t", f"GIT_{role}_EMAIL": "tester@example.org"}
    command = [sys.executable, "-m", "reconciler.cli.main"]

    def muster(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            check=False,
            cwd=bed.clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    done = muster("run", "--name", "inside", "--", "true")
    assert done.returncode == 0, done.stderr
    assert _log(bed) == before
    _begin(bed.api, "sleeps", "  command: [sleep, '600']")  # type: ignore[arg-type]
    bed.until_state("sleeps", "Running")
    cancelled = muster("cancel", "sleeps", "--reason", "a test")
    assert cancelled.returncode == 0, cancelled.stderr
    bed.until_state("sleeps", "Cancelled")
    assert _log(bed) == before


def test_it_outlives_a_killed_controller_and_ends_once(bed: beds.Bed) -> None:
    assert bed.api is not None
    starts = bed.folder / "outlives.starts"
    ends = bed.folder / "outlives.ends"
    script = f"echo x >>{starts}; until [ -e {ends} ]; do sleep 0.1; done"
    _begin(bed.api, "outlives", f'  command: [sh, -c, "{script}"]')
    (before,) = bed.until_state("outlives", "Running")["attempts"]
    bed.until(starts.exists)
    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    bed.until(bed.all_ready)
    (after,) = bed.until_state("outlives", "Running")["attempts"]
    assert after["id"] == before["id"]
    _commit(bed, {"note.txt": "a revision without it"})
    ends.touch()
    job = bed.until_state("outlives", "Succeeded", "Failed", "Cancelled")
    assert (job["state"], job["ephemeral"]) == ("Succeeded", True)
    assert starts.read_text() == "x\n"
    kinds = [one["kind"] for one in bed.get("/v1/events", job="outlives")["items"]]
    assert kinds.count("JobSucceeded") == 1


def test_rights_are_those_of_a_commit(bed: beds.Bed) -> None:
    sleeps = "  command: [sleep, '600']"
    with _person(bed, "bob") as bob, _person(bed, "eve") as eve, _person(bed, "tester") as ada:
        with pytest.raises(api_client.ApiError, match=r"eve@example\.org") as refused:
            _begin(eve, "hers", sleeps)
        assert refused.value.status == 403
        begun = _begin(ada, "mine", sleeps)
        assert (begun["ephemeral"], begun["commit"]) == (True, None)
        assert bed.until_state("mine", "Running")["owner"] == "tester@example.org"
        for verb in ("cancel", "hold"):
            with pytest.raises(api_client.ApiError, match=r"eve@example\.org") as refused:
                _change(eve, verb, "mine")
            assert refused.value.status == 403
        assert bed.job("mine")["state"] == "Running"
        (held,) = _change(ada, "hold", "mine")
        assert (held["message"], held["commit"]) == ("held", None)
        bed.until_state("mine", "Held")
        _change(ada, "release", "mine")
        bed.until_state("mine", "Running")
        _change(bob, "cancel", "mine")  # a manager
        message = bed.until_state("mine", "Cancelled")["message"]
        assert message == "cancelled by bob@example.org: a test"
        with pytest.raises(api_client.ApiError, match="priority"):
            _begin(ada, "urgent", "  priority: 900\n  command: ['true']")


def test_jobs_in_git_and_others_are_changed_together_or_not_at_all(bed: beds.Bed) -> None:
    assert bed.api is not None
    _commit(bed, {"jobs/written.yaml": beds.job("written", "  command: [sleep, '600']")})
    _begin(bed.api, "unwritten", "  command: [sleep, '600']")
    for name in ("written", "unwritten"):
        bed.until_state(name, "Running")
    with _person(bed, "eve") as eve, pytest.raises(api_client.ApiError):
        _change(eve, "cancel", "written", "unwritten")
    assert [bed.job(name)["state"] for name in ("written", "unwritten")] == ["Running"] * 2
    done = _change(bed.api, "cancel", "written", "unwritten")
    assert [(one["name"], one["ephemeral"]) for one in done] == [
        ("written", False),
        ("unwritten", True),
    ]
    for name in ("written", "unwritten"):
        bed.until_state(name, "Cancelled")


def test_a_name_in_git_is_taken(bed: beds.Bed) -> None:
    assert bed.api is not None
    _commit(bed, {"jobs/taken.yaml": beds.job("taken", "  command: ['true']")})
    bed.until_state("taken", "Succeeded")
    with pytest.raises(api_client.ApiError, match="Job/taken is in git"):
        _begin(bed.api, "taken", "  command: ['false']")


def test_a_document_of_its_name_waits_and_who_submits_it_is_told(bed: beds.Bed) -> None:
    assert bed.api is not None
    _begin(bed.api, "twice", "  command: [sleep, '600']")
    bed.until_state("twice", "Running")
    text = beds.job("twice", "  command: ['true']")
    (told,) = bed.api.post("/v1/jobs", content=text.encode(), kind="application/yaml")["items"]
    assert told["commit"]
    assert any("starts after its end" in one for one in told["warnings"])
    assert bed.job("twice")["state"] == "Running"
    _change(bed.api, "cancel", "twice")
    assert bed.until_state("twice", "Succeeded")["ephemeral"] is False


def test_a_wrong_document_is_refused_as_at_a_submission(bed: beds.Bed) -> None:
    assert bed.api is not None
    with pytest.raises(api_client.ApiError, match="nothing was submitted"):
        _begin(bed.api, "wrong", "  queue: nowhere\n  command: ['true']")


def test_where_it_is_forbidden_a_commit_is_made_or_nothing(bed: beds.Bed) -> None:
    _set(bed, "forbidden")
    before = _log(bed)
    done = _muster(bed, "run", "--no-commit", "--name", "never", "--", "true")
    assert done.returncode == 125
    assert "forbids jobs without a file in git" in done.stderr
    assert _log(bed) == before
    done = _muster(bed, "run", "--name", "committed", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "committed" in _log(bed)

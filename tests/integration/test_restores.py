"""A store from the past, on real processes: what runs goes on, and what may have run waits."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from reconciler.controller.host import kept_lease
from reconciler.interpreter import module_command
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason
from reconciler.operations.client import api_client
from reconciler.operations.local import free_ports, local_cluster, local_tokens
from tests.integration import beds
from tests.unit.desired.repositories import git

ONE = "  resources: {gpu: 1, cpu: 1}\n  command: [sh, -c, 'echo $MUSTER_ATTEMPT >>%s; sleep 600']"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[beds.Bed]:
    made = beds.Bed(tmp_path, nodes=2, gpus=2, lease="20s")
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _cli(bed: beds.Bed, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*module_command("reconciler.cli.main"), *arguments]
    return subprocess.run(
        command, env=bed.environment, capture_output=True, text=True, timeout=60, check=False
    )


def _begin(bed: beds.Bed, name: str) -> Path:
    """Submit a job that writes the id of each of its attempts, and return the file."""
    starts = bed.folder / f"{name}.starts"
    bed.commit({f"jobs/{name}.yaml": beds.job(name, ONE % starts)})
    bed.until_state(name, "Running")
    bed.until(starts.exists)
    return starts


def _replace_store(bed: beds.Bed, backup: Path | None, *, leader_known: bool = True) -> None:
    """Kill the controller, and start it with an empty store, or one from a backup."""
    bed.cluster.kill_controller()
    if not leader_known:
        git(bed.folder / "repository.git", "update-ref", "-d", "refs/notes/muster.lead")
        (bed.cluster.state / kept_lease.FILE).unlink()  # as in a new folder
    for path in bed.cluster.state.glob("store.db*"):
        path.unlink()
    if backup is not None:
        done = _cli(bed, "restore", str(backup), "--store", f"sqlite:///{_store(bed)}")
        assert done.returncode == 0, done.stderr
    bed.cluster.start_controller()
    bed.cluster.wait_ready()


def _store(bed: beds.Bed) -> Path:
    return bed.cluster.state / "store.db"


def _waiting(bed: beds.Bed) -> Any:
    found = bed.get("/v1/adopt")
    return found if found["pending"] and not found["blocked"] else None


@pytest.mark.parametrize("lost", [False, True], ids=["restored", "lost"])
def test_what_runs_is_taken_over_and_what_may_have_run_waits(bed: beds.Bed, lost: bool) -> None:
    bed.commit({"jobs/first.yaml": beds.job("first", "  command: ['true']")})
    bed.until_state("first", "Succeeded")
    backup = bed.folder / "backup"
    done = _cli(bed, "backup", str(backup), "--store", f"sqlite:///{_store(bed)}")
    assert done.returncode == 0, done.stderr
    runs = _begin(bed, "runs")
    over = bed.folder / "over.starts"
    bed.commit({"jobs/over.yaml": beds.job("over", f"  command: [sh, -c, 'echo x >>{over}']")})
    bed.until_state("over", "Succeeded")
    (before,) = bed.job("runs")["attempts"]
    _replace_store(bed, None if lost else backup)
    bed.until(lambda: "runs" in bed.get("/v1/adopt")["alive"])
    after = bed.until_state("runs", "Running")
    assert [one["id"] for one in after["attempts"]] == [before["id"]]
    found = bed.until(lambda: _waiting(bed))
    assert set(found["awaiting"]) == ({"over", "first"} if lost else {"over"})
    # submitted meanwhile: it is new, and runs
    bed.commit({"jobs/later.yaml": beds.job("later", "  command: ['true']")})
    bed.until_state("later", "Succeeded")
    assert bed.job("over")["state"] in ("Pending", "Held")
    listed = _cli(bed, "adopt")
    assert listed.returncode == 0, listed.stderr
    assert "over" in listed.stdout
    assert "runs" in listed.stdout
    assert listed.stdout.splitlines()[0].split() == [
        *("NAME", "QUEUE", "OWNER", "SUBMITTED", "WHAT")
    ]
    told = json.loads(_cli(bed, "adopt", "-o", "json").stdout)["jobs"]
    assert {one["name"]: one["why"] for one in told} == {"runs": "runs"} | found["awaiting"]
    assert {(one["queue"], bool(one["submitted"])) for one in told} == {("default", True)}
    chosen = _cli(bed, "adopt", "--none")
    assert chosen.returncode == 0, chosen.stderr
    bed.until_state("over", "Cancelled")
    assert bed.job("runs")["state"] == "Running"
    assert len(runs.read_text().splitlines()) == 1
    assert len(over.read_text().splitlines()) == 1


_WRITES = "  resources: {gpu: %d, cpu: 500m}\n  command: [sh, -c, 'echo $MUSTER_ATTEMPT >>%s; %s']"


def _running(bed: beds.Bed, job: str) -> set[tuple[str, str]]:
    """Return the attempts of a job that run, and where."""
    attempts = bed.job(job)["attempts"]
    return {(one["id"], one["node"]) for one in attempts if one["state"] == "Running"}


@pytest.mark.parametrize("lost", [False, True], ids=["restored", "lost"])
def test_a_gang_and_an_array_go_on_as_they_are(bed: beds.Bed, lost: bool) -> None:
    backup = bed.folder / "backup"
    done = _cli(bed, "backup", str(backup), "--store", f"sqlite:///{_store(bed)}")
    assert done.returncode == 0, done.stderr
    gang, array = bed.folder / "gang.starts", bed.folder / "array.starts"
    first_ends = "[ $MUSTER_ARRAY_INDEX = 0 ] || exec sleep 600"
    bed.commit(
        {
            "jobs/gang.yaml": beds.job(
                "gang", "  count: 2\n" + _WRITES % (2, gang, "exec sleep 600")
            ),
            "jobs/array.yaml": beds.job(
                "array",
                "  array: {count: 4, parallelism: 2}\n" + _WRITES % (0, array, first_ends),
            ),
        }
    )
    both = bed.until(lambda: len(found := _running(bed, "gang")) == 2 and found)
    assert len({node for _, node in both}) == 2
    bed.until(lambda: array.exists() and len(array.read_text().splitlines()) == 3)
    parts = bed.until(lambda: len(found := _running(bed, "array")) == 2 and found)
    _replace_store(bed, None if lost else backup)
    bed.until(lambda: "gang" in bed.get("/v1/adopt")["alive"])
    found = bed.until(lambda: _waiting(bed))
    assert set(found["awaiting"]) == {"array"}, "nobody knows of the element that has ended"
    assert bed.until(lambda: len(now := _running(bed, "array")) == 2 and now) == parts
    assert bed.until(lambda: len(now := _running(bed, "gang")) == 2 and now) == both
    events = bed.get("/v1/events")["items"]
    said = [one["message"] for one in events if one["kind"] == "StoreFromThePast"]
    assert len(said) == 1
    assert "budgets" in said[0]
    chosen = _cli(bed, "adopt", "--none")
    assert chosen.returncode == 0, chosen.stderr
    bed.until(lambda: not bed.get("/v1/adopt")["pending"])
    bed.commit({"jobs/later.yaml": beds.job("later", "  command: ['true']")})
    bed.until_state("later", "Succeeded")
    assert (_running(bed, "gang"), _running(bed, "array")) == (both, parts)
    assert len(gang.read_text().splitlines()) == 2
    assert len(array.read_text().splitlines()) == 3


def _report(bed: beds.Bed, node: str, *reports: records.AttemptReport) -> None:
    """Report attempts as anybody can who has the token of a node."""
    told = agent_messages.SyncRequest(
        node=node,
        boot_id="boot",
        incarnation="agent",
        sequence=1,
        attempts=reports,
        inventory=records.Inventory(hostname=node),
        accepts_unrenewed=True,
        held=tuple(records.HeldAttempt(one.id) for one in reports),
        proofs=dict.fromkeys((one.id for one in reports), "00" * 16),
    )
    token = (bed.cluster.state / "node-token").read_text().strip()
    answer = httpx.post(
        f"{bed.cluster.url}/v1/nodes/{node}/sync",
        content=msgspec.msgpack.encode(told),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"},
        timeout=30,
    )
    answer.raise_for_status()
    found = msgspec.msgpack.decode(answer.content, type=agent_messages.SyncResponse)
    assert found.set is None, "it is left alone"


def test_a_node_can_neither_end_a_run_that_waits_nor_take_over_one_of_another(
    bed: beds.Bed,
) -> None:
    backup = bed.folder / "backup.db"
    done = _cli(bed, "backup", str(backup), "--store", f"sqlite:///{_store(bed)}")
    assert done.returncode == 0, done.stderr
    runs = _begin(bed, "runs")
    over = bed.folder / "over.starts"
    bed.commit({"jobs/over.yaml": beds.job("over", f"  command: [sh, -c, 'echo x >>{over}']")})
    bed.until_state("over", "Succeeded")
    (alive,), (ended,) = bed.job("runs")["attempts"], bed.job("over")["attempts"]
    _replace_store(bed, backup)
    bed.until(lambda: "runs" in bed.get("/v1/adopt")["alive"])
    forged = records.AttemptReport(
        ended["id"], AttemptState.ENDED, exit_code=0, end_reason=EndReason.EXITED
    )
    newer = records.AttemptReport(
        alive["id"].removesuffix(".1") + ".2", AttemptState.RUNNING, started_at=time.time()
    )
    _report(bed, "stranger", forged, newer)
    found = bed.until(lambda: _waiting(bed) if bed.get("/v1/adopt")["unproven"] else None)
    assert {one["node"] for one in found["unproven"]} == {"stranger"}
    assert set(found["awaiting"]) == {"over"}
    assert bed.job("over")["state"] in ("Pending", "Held")
    assert [one["id"] for one in bed.job("runs")["attempts"]] == [alive["id"]]
    listed = _cli(bed, "adopt")
    assert re.search(f"^{ended['id']} [- ]+Ended on stranger without", listed.stdout, re.MULTILINE)
    assert re.search("^over +default .* may have run$", listed.stdout, re.MULTILINE)
    refused = _cli(bed, "adopt", "--all")
    assert refused.returncode != 0
    assert "--trust none" in refused.stderr
    doubted = _cli(bed, "adopt", "--all", "--trust", "all")
    assert doubted.returncode != 0
    assert "try 1 is alive on" in doubted.stderr or "in no pool" in doubted.stderr
    chosen = _cli(bed, "adopt", "--all", "--trust", "none")
    assert chosen.returncode == 0, chosen.stderr
    bed.until_state("over", "Succeeded")
    assert len(over.read_text().splitlines()) == 2, "it was started anew"
    assert bed.job("runs")["state"] == "Running"
    assert len(runs.read_text().splitlines()) == 1


@pytest.mark.parametrize("key", ["lost", "in the backup"])
def test_what_runs_outlives_the_loss_of_the_key(bed: beds.Bed, key: str) -> None:
    runs = _begin(bed, "runs")
    (before,) = bed.job("runs")["attempts"]
    backup = bed.folder / "backup.db"
    done = _cli(bed, "backup", str(backup), "--store", f"sqlite:///{_store(bed)}")
    assert done.returncode == 0, done.stderr
    later = _begin(bed, "later")
    (bed.cluster.state / "assignment.key").unlink()
    _replace_store(bed, backup if key != "lost" else None)
    if key == "lost":
        found = bed.until(lambda: _waiting(bed) if len(bed.get("/v1/adopt")["unproven"]) > 1 else 0)
        assert set(found["awaiting"]) == {"runs", "later"}
        assert [one["doubt"] for one in found["unproven"]] == ["", ""]
        refused = _cli(bed, "adopt", "--none")
        assert refused.returncode != 0
        assert "To fix: say which nodes to believe" in refused.stderr
        chosen = _cli(bed, "adopt", "--none", "--trust", "all")
        assert chosen.returncode == 0, chosen.stderr
    bed.until(lambda: not bed.get("/v1/adopt")["pending"])
    bed.until_state("later", "Running")
    assert [one["id"] for one in bed.until_state("runs", "Running")["attempts"]] == [before["id"]]
    # what was taken over has a proof by the new key from now on
    _replace_store(bed, None)
    bed.until(lambda: {"runs", "later"} <= set(bed.get("/v1/adopt")["alive"]))
    assert [len(one.read_text().splitlines()) for one in (runs, later)] == [1, 1]


def test_a_second_controller_with_another_store_leads_nothing_while_the_first_does(
    bed: beds.Bed, tmp_path: Path
) -> None:
    _begin(bed, "runs")
    bed.until(
        lambda: bed.git(
            "for-each-ref", "refs/notes/muster.lead", folder=bed.folder / "repository.git"
        )
    )
    other = tmp_path / "other"
    other.mkdir()

    second = local_cluster.LocalCluster(
        local_cluster.LocalClusterOptions(
            folder=other,
            repository=str(bed.folder / "repository.git"),
            branch="main",
            listen=f"127.0.0.1:{free_ports.free_port()}",
            identity="tester@example.org",
            controller_module="reconciler.controller.process",
            isolate=False,
        )
    )
    second.claim()
    local_tokens.write(second.state, "tester@example.org")
    second.start_controller()
    try:
        with api_client.ApiClient(second.endpoint) as api:
            found = bed.until(
                lambda: api.get("/v1/adopt") if api.get("/v1/adopt")["blocked"] else None
            )
            assert "leads with another store until" in found["blocked"]
            with pytest.raises(api_client.ApiError, match="stop one of the two"):
                api.post("/v1/adopt", {"names": [], "everything": True})
    finally:
        second.stop()


def _push_record(repository: Path, **record: object) -> None:
    """Replace the record of who leads, as anybody can who may push that reference."""
    body = json.dumps(record).encode()
    blob = git(repository, "hash-object", "-w", "--stdin", data=body)
    tree = git(repository, "mktree", data=f"100644 blob {blob}\tlead.json\n".encode())
    commit = git(repository, "commit-tree", tree, "-m", "x")
    git(repository, "update-ref", "refs/notes/muster.lead", commit)


def _leader(repository: Path) -> str:
    """Return the store that leads by the record in git; empty if there is none."""
    try:
        body = git(repository, "cat-file", "blob", "refs/notes/muster.lead:lead.json")
    except subprocess.CalledProcessError:
        return ""
    return str(json.loads(body)["store"])


def _restored(bed: beds.Bed) -> int:
    """Return how often the controller says that it has restored its record."""
    assert bed.api is not None
    page = bed.api.data("/metrics").decode()
    found = re.search(r"^muster_lead_records_restored_total (\d+)", page, re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_forged_record_does_not_stop_a_leader_that_starts_again_within_its_lease(
    bed: beds.Bed,
) -> None:
    repository = bed.folder / "repository.git"
    _begin(bed, "runs")
    store = bed.until(lambda: _leader(repository))
    bed.until((bed.cluster.state / "lead.json").exists)
    bed.cluster.kill_controller()
    now = time.time()
    _push_record(
        repository,
        store="evil",
        epoch=9,
        cycle=1,
        host="evilhost",
        place="",
        revision="",
        renewed_at=now,
        until=now + 300,
    )
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    bed.until(lambda: _leader(repository) == store)
    found = bed.get("/v1/adopt")
    assert (found["pending"], found["blocked"]) == (False, "")
    bed.commit({"jobs/later.yaml": beds.job("later", "  command: ['true']")})
    bed.until_state("later", "Succeeded")
    assert bed.job("runs")["state"] == "Running"
    bed.until(lambda: _restored(bed) > 0)


@pytest.mark.parametrize(
    ("lost", "leader_known"),
    [(False, True), (False, False), (True, True), (True, False)],
    ids=["restored", "restored, lease deleted", "lost", "lost, lease deleted"],
)
def test_what_runs_without_a_file_in_git_goes_on_and_what_ran_is_listed(
    bed: beds.Bed, lost: bool, leader_known: bool
) -> None:
    assert bed.api is not None
    settings = beds.POOL.format(nodes=2, cpus=4, gpus=2, lease="20s", silence="3s")
    bed.commit({"cluster.yaml": settings.replace("{lease", "{ephemeral: allowed, lease")})
    bed.until(lambda: bed.get("/v1/sync")["sync"]["ephemeral"])

    def begin(name: str, then: str) -> Path:
        starts = bed.folder / f"{name}.starts"
        command = f"  command: [sh, -c, 'echo $MUSTER_ATTEMPT >>{starts}; {then}']"
        text = beds.job(name, command).encode()
        bed.api.post(  # type: ignore[union-attr]
            "/v1/jobs", content=text, kind="application/yaml", query={"ephemeral": "required"}
        )
        return starts

    known = begin("known", "exec sleep 600")  # alive in the backup, and over in truth
    bed.until_state("known", "Running")
    backup = bed.folder / "backup"
    done = _cli(bed, "backup", str(backup), "--store", f"sqlite:///{_store(bed)}")
    assert done.returncode == 0, done.stderr
    bed.api.post("/v1/changes", {"verb": "cancel", "names": ["known"], "reason": "over"})
    bed.until_state("known", "Cancelled")
    runs, ran = begin("runs", "exec sleep 600"), begin("ran", "true")
    bed.until_state("ran", "Succeeded")
    (before,) = bed.until_state("runs", "Running")["attempts"]
    repository = bed.folder / "repository.git"

    def noted() -> bool:
        if not git(repository, "for-each-ref", "refs/notes/muster.ephemeral"):
            return False
        shown = git(repository, "show", "refs/notes/muster.ephemeral:ephemeral.json")
        told = {one["name"]: one.get("state", "") for one in json.loads(json.loads(shown)["runs"])}
        return told == {"known": "Cancelled", "runs": "", "ran": "Succeeded"}

    bed.until(noted)
    _replace_store(bed, None if lost else backup, leader_known=leader_known)
    bed.until(lambda: "runs" in bed.get("/v1/adopt")["alive"])
    after = bed.until_state("runs", "Running")
    assert [one["id"] for one in after["attempts"]] == [before["id"]]
    assert after["ephemeral"] is True
    listed = {one["name"]: one["why"] for one in bed.get("/v1/adopt")["ran"]}
    over = {"ran": "Succeeded, not in git"}
    assert listed == (over | {"known": "Cancelled, not in git"} if lost else over)
    if not lost:
        found = bed.until(lambda: _waiting(bed))
        assert set(found["awaiting"]) == {"known"}
        assert _cli(bed, "adopt", "--none").returncode == 0
        bed.until_state("known", "Cancelled")
    told = _cli(bed, "adopt")
    assert "ran" in told.stdout
    assert "Succeeded, not in git" in told.stdout
    bed.commit({"note.txt": "a revision without them"})
    bed.until(lambda: not bed.get("/v1/adopt")["pending"])
    assert bed.job("runs")["state"] == "Running"
    for starts in (known, runs, ran):
        assert len(starts.read_text().splitlines()) == 1

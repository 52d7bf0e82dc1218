"""What scripts, dashboards and others outside rely on, statement by statement, on a live cluster.

The names stand here literally: whoever changes one of them changes a contract, and sees it here.
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from reconciler import package_data
from reconciler.model.state import states
from tests.integration import beds

Json = Any

ROOT = package_data.checkout()
JOB_STATES = [
    "Pending",
    "Starting",
    "Running",
    "Succeeded",
    "Failed",
    "Cancelled",
    "TimedOut",
    "Held",
]
ATTEMPT_STATES = ["Assigned", "Starting", "Running", "Stopping", "Unknown", "Ended"]
NODE_STATES = ["Ready", "Draining", "Drained", "Unhealthy", "Unknown", "Gone"]
ATTEMPT = {"task", "node", "devices", "state", "exitCode", "signal", "started", "ended"}
JOB = {"name", "run", "queue", "owner", "state", "reasons", "place", "estimatedStart", "attempts"}
#: Each path of the contract that users have, with its methods.
ROUTES = {
    "/v1/jobs": {"get", "post"},
    "/v1/jobs/{name}": {"get"},
    "/v1/jobs/{name}/logs": {"get"},
    "/v1/jobs/{name}/explain": {"get"},
    "/v1/nodes": {"get"},
    "/v1/queues": {"get"},
    "/v1/quotas": {"get"},
    "/v1/pools": {"get"},
    "/v1/drift": {"get"},
    "/v1/events": {"get"},
    "/v1/sync": {"get"},
    "/v1/plan": {"get"},
    "/v1/snapshot": {"get"},
    "/v1/hooks/git": {"post"},
    "/metrics": {"get"},
    "/metrics/nodes/{node}": {"get"},
    "/v1/prometheus/targets": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
}
#: Lists of the API, and the command that prints each.
LISTS = {
    "/v1/jobs": "jobs",
    "/v1/nodes": "nodes",
    "/v1/reservations": "",
    "/v1/queues": "queues",
    "/v1/quotas": "quotas",
    "/v1/pools": "",
    "/v1/drift": "drift",
    "/v1/events": "events",
    "/v1/overrides": "overrides",
    "/v1/notifications": "notify list",
    "/v1/audit": "history",
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
TIMES = re.compile(
    r"asOf|at|started|ended|submitted|assigned|estimatedStart|firstSeen|lastReport|made|expires"
)
SCENARIO = """\
scenario: one job on one node
source: own
nodes: {{n0: {{gpu: 4, cpu: 8, memory: 8Gi}}}}
queues: [{{name: q}}]
jobs: [{{name: j0, queue: q, tasks: [{{gpu: 2}}]}}]
rounds: {{settle: 1, stable: 3}}
expect: {{jobs: {{j0: {{state: {state}}}}}}}
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    """A cluster with a job that has run, one that waits, and a cancel behind git."""
    made = beds.Bed(tmp_path_factory.mktemp("relied-on"), gpus=2)
    try:
        made.start()
        big = "  resources: {gpu: 99}\n  command: ['true']"
        files: dict[str, str | None] = {
            "ran.yaml": beds.job("ran", "  resources: {gpu: 1}\n  command: [sh, -c, 'exit 3']"),
            "runs.yaml": beds.job("runs", "  command: [sleep, '600']"),
            "big.yaml": beds.job("big", big),
            "as-big.yaml": beds.job("as-big", big),
        }
        made.commit(files)
        made.until_state("ran", "Failed")
        made.until_state("runs", "Running")
        made.until(lambda: made.job("big")["reasons"] and made.job("as-big")["reasons"])
        yield made
    finally:
        made.stop()


def muster(
    bed: beds.Bed, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", *arguments],
        cwd=folder or bed.folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def walk(value: Json, key: str = "") -> Iterator[tuple[str, Json]]:
    """Every value with the key that it stands under."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from walk(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from walk(one, key)
    else:
        yield key, value


def test_the_distribution_its_command_and_its_licence() -> None:
    told = metadata.metadata("muster-cluster")
    assert told["License-Expression"] == "Apache-2.0"
    commands = {one.name: one.value for one in metadata.entry_points(group="console_scripts")}
    assert commands["muster"].startswith("reconciler.")
    kinds = set((ROOT / "schemas").glob("*.json")) - {ROOT / "schemas" / "muster.json"}
    for schema in kinds:
        api = json.loads(schema.read_text())["properties"]["apiVersion"]
        assert api["enum"] == ["muster/v1"]


def test_states_are_those_that_are_named() -> None:
    assert {one.value for one in states.JobState} == set(JOB_STATES)
    assert {one.value for one in states.NodeState} == set(NODE_STATES)
    # what a start is doing is its phase; as a state that is between controller and agent alone
    shown = {one.value for one in states.AttemptState} - {one.value for one in states.START_PHASES}
    assert shown == set(ATTEMPT_STATES)


def test_a_reason_has_its_parts_and_is_stored_once_for_all_that_wait_alike(bed: beds.Bed) -> None:
    told = [bed.job(name)["reasons"] for name in ("big", "as-big")]
    assert told[0] == told[1]
    for reason in told[0]:
        assert set(reason) == {"code", "message", "funnel", "unblocks", "never", "waitsFor"}
        assert reason["code"] == "NeverFits"
        assert reason["never"]
        assert reason["funnel"]
        assert all(set(step) == {"count", "why"} for step in reason["funnel"])
    with sqlite3.connect(f"file:{bed.cluster.state / 'store.db'}?mode=ro", uri=True) as store:
        ((stored,),) = store.execute("SELECT count(*) FROM reasons").fetchall()
    store.close()
    assert stored == 1


@pytest.mark.parametrize("path", LISTS)
def test_lists_have_one_shape_in_api_and_command(bed: beds.Bed, path: str) -> None:
    pages = [bed.get(path)]
    if LISTS[path]:
        done = muster(bed, *LISTS[path].split(), "-o", "json")
        assert done.returncode in (0, 2), done.stderr
        pages.append(json.loads(done.stdout))
        as_yaml = muster(bed, *LISTS[path].split(), "-o", "yaml").stdout
        assert set(msgspec.yaml.decode(as_yaml)) == set(pages[1])
    for page in pages:
        assert page["apiVersion"] == "muster/v1"
        assert isinstance(page["items"], list)
        assert set(page) - {"next"} == {"apiVersion", "items", "asOf", "revision"}
        assert TIME.fullmatch(page["asOf"])
        assert re.fullmatch(r"[0-9a-f]{40}", page["revision"])
        for key, value in walk(page):
            if TIMES.fullmatch(key) and value is not None:
                assert TIME.fullmatch(value), (key, value)
            assert not re.search(r"[a-z](S|Secs|Seconds)$", key), f"{key}: durations end with _s"


def test_the_audit_log_is_a_list_too(bed: beds.Bed) -> None:
    page = json.loads(muster(bed, "audit", "-o", "json").stdout)
    assert set(page) == {"apiVersion", "items", "asOf", "revision", "next"}
    assert all(isinstance(one["duration_s"], float) for one in page["items"])


def test_events_are_told_oldest_first_and_of_what_was_asked_for(bed: beds.Bed) -> None:
    page = json.loads(muster(bed, "events", "-o", "json").stdout)
    assert [one["at"] for one in page["items"]] == sorted(one["at"] for one in page["items"])
    of_job = json.loads(muster(bed, "events", "--job", "ran", "-o", "json").stdout)["items"]
    assert {one["job"] for one in of_job} == {"ran"}
    kinds = [one["kind"] for one in of_job]
    assert kinds.index("JobPlaced") < kinds.index("JobFailed")
    text = muster(bed, "events", "--job", "ran").stdout.splitlines()
    for kind, line in zip(kinds, text, strict=True):
        assert f"  {kind} " in line
    (node,) = {one["node"] for one in of_job if one["node"]}
    of_node = json.loads(muster(bed, "events", "--node", node, "-o", "json").stdout)["items"]
    assert {one["node"] for one in of_node} == {node}
    for words, near in ((("--job", "rann"), "ran"), (("--node", f"{node}x"), node)):
        wrong = muster(bed, "events", *words)
        assert wrong.returncode == 1
        assert f"did you mean {near}" in wrong.stderr


def test_events_that_are_followed_are_one_object_a_line(bed: beds.Bed) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "reconciler.cli.main",
            *["events", "--job", "ran", "-w", "-o", "json"],
        ],
        cwd=bed.folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        try:
            assert following.stdout is not None
            first = json.loads(following.stdout.readline())
        finally:
            following.terminate()
    assert first["job"] == "ran"


def test_memory_is_in_bytes_and_gpus_are_decimal(bed: beds.Bed) -> None:
    node = bed.get("/v1/nodes")["items"][0]
    assert node["capacity"] == {"cpu": 4.0, "memory": 2 * 2**30, "gpu": 2.0}


def test_a_job_has_its_fields(bed: beds.Bed) -> None:
    done = json.loads(muster(bed, "job", "ran", "-o", "json").stdout)
    for job in (*bed.get("/v1/jobs")["items"], bed.job("ran"), done):
        assert set(job) >= JOB
        assert job["state"] in JOB_STATES
        for attempt in job["attempts"]:
            assert set(attempt) >= ATTEMPT
            assert attempt["state"] in ATTEMPT_STATES
    (attempt,) = done["attempts"]
    assert (attempt["task"], attempt["state"], attempt["exitCode"]) == ("main-0", "Ended", 3)
    assert (attempt["signal"], len(attempt["devices"])) == (None, 1)


def test_exit_codes(bed: beds.Bed) -> None:
    def code(*arguments: str, folder: Path | None = None) -> int:
        return muster(bed, *arguments, folder=folder).returncode

    assert code("jobs") == 0
    assert code("plan", folder=bed.clone) == 0
    assert code("job", "nobody") == 1
    bed.git("checkout", "--quiet", "-b", "other", folder=bed.clone)
    (bed.clone / "more.yaml").write_text(beds.job("more", "  command: ['true']"))
    bed.git("add", "--all", folder=bed.clone)
    bed.git("commit", "--quiet", "--message", "more", folder=bed.clone)
    assert code("plan", folder=bed.clone) == 2
    (bed.clone / "cluster.yaml").write_text("kind: Clutter\n")
    bed.git("commit", "--quiet", "--all", "--message", "wrong", folder=bed.clone)
    assert code("plan", folder=bed.clone) == 3
    bed.git("checkout", "--quiet", "main", folder=bed.clone)
    for wrong in (["fly"], ["jobs", "--fly"], ["jobs", "--state", "Sleeping"], ["job"]):
        assert code(*wrong) == 64, wrong


def test_drift_exits_with_2_where_there_is_some(bed: beds.Bed) -> None:
    assert muster(bed, "drift").returncode == 0
    ghost = (
        "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: ghosts}\n"
        "spec: {hosts: ghost1, nodes: {cpu: 1, memory: 1Gi}}\n"
    )
    bed.commit({"ghosts.yaml": ghost})
    bed.until(lambda: bed.get("/v1/drift")["items"])
    assert muster(bed, "drift").returncode == 2
    bed.commit({"ghosts.yaml": None})
    bed.until(lambda: not bed.get("/v1/drift")["items"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--", "true"), 0),
        (("--", "sh", "-c", "exit 7"), 7),
        (("--", "sh", "-c", "kill -USR1 $$"), 128 + 10),
        (("--time", "1s", "--", "sleep", "60"), 124),
        (("--queue", "nowhere", "--", "true"), 125),
    ],
)
def test_run_exits_as_the_task_did(bed: beds.Bed, arguments: tuple[str, ...], code: int) -> None:
    done = muster(bed, "run", "--clone", str(bed.clone), *arguments)
    assert done.returncode == code, done.stderr


def test_run_has_a_task_on_each_of_the_nodes_asked_for(bed: beds.Bed) -> None:
    words = ("--nodes", "2", "--", "sh", "-c", 'echo "on $MUSTER_NODE"')
    done = muster(bed, "run", "--clone", str(bed.clone), *words)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("on ")
    assert second.startswith("main-1: on ")
    assert first.rpartition(" ")[2] != second.rpartition(" ")[2]


def test_wait_tells_by_its_code(bed: beds.Bed) -> None:
    bed.commit({"well.yaml": beds.job("well", "  command: ['true']")})
    bed.until_state("well", "Succeeded")
    assert muster(bed, "wait", "well").returncode == 0
    assert muster(bed, "wait", "well", "ran").returncode == 1
    assert muster(bed, "wait", "runs", "--timeout", "1s").returncode == 124
    done = muster(bed, "wait", "runs", "well", "--until", "started")
    assert (done.returncode, done.stdout) == (0, "runs: Running\nwell: Succeeded\n")
    assert muster(bed, "wait", "runs", "--until", "held", "--timeout", "1s").returncode == 124


def test_what_can_never_start_is_not_waited_for(bed: beds.Bed) -> None:
    """It used to be waited for without an end."""
    failing = beds.job("breaks", "  command: ['false']")
    after = beds.job("after", "  dependsOn: [{job: breaks}]\n  command: ['true']")
    held = beds.job("kept", "  suspend: true\n  command: ['true']")
    bed.commit({"breaks.yaml": failing, "after.yaml": after, "kept.yaml": held})
    bed.until_state("breaks", "Failed")
    bed.until(lambda: bed.job("after")["reasons"][0]["code"] == "DependencyNeverMet")
    done = muster(bed, "wait", "after", "breaks")
    assert done.returncode == 1
    never, ended = done.stdout.splitlines()
    assert never.startswith("after: DependencyNeverMet: ")
    assert ended == "breaks: Failed"
    done = muster(bed, "wait", "after")
    assert (done.returncode, done.stdout) == (4, f"{never}\n")
    done = muster(bed, "wait", "kept")
    assert done.returncode == 4
    assert done.stdout.startswith("kept: Held: held by its document")
    done = muster(bed, "wait", "kept", "--until", "held")
    assert (done.returncode, done.stdout) == (0, "kept: Held\n")


def test_the_api_has_every_path(bed: beds.Bed) -> None:
    assert bed.api is not None
    told = bed.api.get("/schema")
    assert told["openapi"].startswith("3.")
    there = {re.sub(r":\w+}", "}", path): set(value) for path, value in told["paths"].items()}
    for path, methods in ROUTES.items():
        assert methods <= there[path], path


def test_every_path_that_can_be_asked_answers(bed: beds.Bed) -> None:
    token = bed.cluster.endpoint.token_file
    headers = {"Authorization": f"Bearer {Path(token).read_text().strip()}"} if token else {}
    revision = bed.get("/v1/sync")["revision"]
    filled = {"node": "virtual-0", "name": "ran"}
    with httpx.Client(base_url=bed.cluster.url, headers=headers, timeout=60) as client:
        for path, methods in ROUTES.items():
            if "get" not in methods:
                continue
            query = {"revision": revision} if path == "/v1/plan" else {}
            answer = client.get(path.format_map(filled), params=query)
            assert answer.status_code == 200, (path, answer.text)
            if path not in ("/healthz", "/readyz") and not path.startswith("/metrics"):
                assert "/logs" in path or answer.json() is not None
        assert client.post("/v1/hooks/git").status_code == 202
        (cluster, *nodes) = client.get("/v1/prometheus/targets").json()
        assert set(cluster) == {"targets", "labels"}  # as Prometheus reads http_sd
        assert len(nodes) == 2


def test_what_a_node_says_has_to_be_as_agents_say_it(bed: beds.Bed) -> None:
    token = bed.cluster.endpoint.token_file
    headers = {"Authorization": f"Bearer {Path(token).read_text().strip()}"} if token else {}
    body = msgspec.msgpack.encode({"nothing": "of it"})
    with httpx.Client(base_url=bed.cluster.url, headers=headers, timeout=60) as client:
        answer = client.post("/v1/nodes/n9/sync", content=body)
        assert answer.status_code == 400


def test_scenarios_are_told_in_their_shape(bed: beds.Bed, tmp_path: Path) -> None:
    folder = tmp_path / "fair-share"
    folder.mkdir()
    (folder / "good.yaml").write_text(SCENARIO.format(state="running"))
    done = muster(bed, "scenario", str(folder), "-o", "json")
    told = json.loads(done.stdout)["folders"]["fair-share"]
    assert (done.returncode, told["total"], told["exact"], told["states"]) == (0, 1, 1, 1)
    assert told["diverging"] == []
    (folder / "bad.yaml").write_text(SCENARIO.format(state="pending"))
    done = muster(bed, "scenario", str(folder), "-o", "json")
    told = json.loads(done.stdout)["folders"]["fair-share"]
    assert (done.returncode, told["total"], told["exact"], told["states"]) == (1, 2, 1, 1)
    (one,) = told["diverging"]
    assert set(one) == {"file", "expected", "found", "meant"}
    assert (one["file"], one["meant"]) == ("bad.yaml", None)
    assert one["found"]["j0"]["state"] == "running"
    assert one["expected"]["j0"]["state"] == "pending"


def test_a_benchmark_writes_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "unschedulable", "--json", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(file.read_text())
    assert set(told) == {"bench", "machine", "rows", "not_measured"}
    assert told["bench"] == "unschedulable"
    assert set(told["machine"]) == {"cpus", "memory_gib", "python"}
    assert told["rows"]
    for row in told["rows"]:
        assert {"name", "value", "unit"} <= set(row)

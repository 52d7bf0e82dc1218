"""Users see what the store holds, in the shapes that scripts rely on."""

import os
import pathlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client import parser

from reconciler.model import desired
from reconciler.model.policy.drift_kinds import Drift
from reconciler.model.protocol import loop_messages
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, JobState
from reconciler.operations.views import stored_views
from tests.integration.server import parts
from tests.unit.store import samples


@pytest.fixture
def filled(served: parts.Served) -> parts.Served:
    """A server over a store with a few things in it."""
    waiting = samples.job("wait", order=2, reason_key="r", labels={"team": "a"})
    train = samples.job("train", order=1, state=JobState.RUNNING, elements=3)
    pool = desired.Pool("cpu", ("n1", "n2"), samples.GROUP.resources)
    problem = desired.Problem("unknown-queue", "error", "jobs/x.yaml", "no such queue", line=3)
    served.commit(
        views=stored_views.cycle_views(
            samples.cycle(
                queues=(
                    outcome.QueueUsage(
                        "default", None, (1000, 2**30, 1500), (None, None, 2000), (None,) * 3, 1, 1
                    ),
                )
            )
        )
        | stored_views.desired_views(
            desired.Desired(
                structure=desired.Structure(
                    pools={"cpu": pool},
                    quotas={
                        "q": desired.Quota(
                            "q",
                            user="alice@example.org",
                            resources=desired.QuotaAmounts(cpu_milli=4000),
                        )
                    },
                ),
                refused={"broken": "no such queue"},
                status=desired.SyncStatus("OutOfSync", "abc", "aaa", "bbb", problems=(problem,)),
            )
        ),
        jobs=(train, waiting),
        attempts=(
            samples.attempt(train, 0, state=AttemptState.ENDED, exit_code=3),
            samples.attempt(train, 1, state=AttemptState.RUNNING),
        ),
        nodes=(samples.node(),),
        reasons={"r": (samples.reason(),)},
        drift=(Drift("node-missing", "n2", "never seen", "warning", "report", 90.0),),
        events=(samples.event("it began", job="train"), samples.event("node n1", node="n1")),
    )
    return served


def get(served: parts.Served, path: str, **query: str | int) -> Any:
    response = served.client.get(path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_jobs_have_the_shape_of_the_contract(filled: parts.Served) -> None:
    page = get(filled, "/v1/jobs", state="Pending")
    assert page["apiVersion"] == "muster/v1"
    assert page["asOf"] == "1970-01-01T00:16:40.000Z"
    assert page["revision"] == "abc"
    (job,) = page["items"]
    assert job["name"] == "wait"
    assert job["place"] == 1
    assert job["estimatedStart"] is None
    assert job["reasons"] == [
        {
            "code": "InsufficientResources",
            "message": "nothing is free",
            "funnel": [],
            "unblocks": "",
            "never": False,
            "waitsFor": None,
        }
    ]
    train = get(filled, "/v1/jobs/train")["job"]
    assert train["elements"] == {"Pending": 3}
    running, ended = train["attempts"]
    assert (running["element"], running["task"], running["state"]) == (1, "main-0", "Running")
    assert (ended["exitCode"], ended["devices"], ended["node"]) == (3, [0], "n1")
    assert ended["started"] == "1970-01-01T00:01:42.000Z"


def test_lists_are_filtered_and_paged(filled: parts.Served) -> None:
    def names(**query: str | int) -> list[str]:
        return [job["name"] for job in get(filled, "/v1/jobs", **query)["items"]]

    assert names() == ["broken", "wait", "train"]
    assert names(label="team=a") == ["wait"]
    assert names(queue="other") == []
    page = get(filled, "/v1/jobs", limit=1, queue="default")
    assert names(limit=1, queue="default", after=str(page["next"])) == ["train"]
    number = "9" * 40
    for query in ("after=x", f"after={number}", "label=x", "limit=0", "limit=x", "state=Sleeping"):
        refused = filled.client.get(f"/v1/jobs?{query}")
        assert refused.status_code == 400, query
        assert refused.json()["error"]["code"] == "BadRequest"
    (problem,) = filled.client.get("/v1/jobs?limit=0").json()["error"]["problems"]
    assert (problem["path"], problem["field"]) == ("query", "limit")
    assert filled.client.get("/v1/jobs/nobody").status_code == 404
    for path in ("/v1/jobs/tarin", "/v1/jobs/tarin/logs", "/v1/jobs/tarin/explain"):
        assert "did you mean train?" in filled.client.get(path).json()["error"]["message"]
    known = filled.client.get("/v1/jobs/brokn").json()["error"]["message"]
    assert "did you mean broken?" in known, "a job that is written, and refused"
    assert filled.client.get("/v1/nothing").json()["error"]["code"] == "NotFound"
    assert filled.client.put("/v1/jobs").status_code == 405


def test_nodes_queues_pools_drift_sync_and_all_at_once(filled: parts.Served) -> None:
    (node,) = get(filled, "/v1/nodes")["items"]
    assert node["allocated"] == {"cpu": 1.0, "memory": 0, "gpu": 0.0}
    assert [gpu["attempt"] for gpu in node["gpus"]] == ["train.1.0123456789abcdef.1.main.0.1", None]
    (queue,) = get(filled, "/v1/queues")["items"]
    assert queue["allocated"] == {"cpu": 1.0, "memory": 2**30, "gpu": 1.5}
    assert queue["guaranteed"] == {"cpu": None, "memory": None, "gpu": 2.0}
    (quota,) = get(filled, "/v1/quotas")["items"]
    assert (quota["used"]["cpu"], quota["limit"]["cpu"], quota["running"]) == (1.0, 4.0, 1)
    (pool,) = get(filled, "/v1/pools")["items"]
    assert pool["states"] == {"Missing": 1, "Ready": 1}
    (drift,) = get(filled, "/v1/drift")["items"]
    assert drift["firstSeen"] == "1970-01-01T00:01:30.000Z"
    sync = get(filled, "/v1/sync")["sync"]
    assert (sync["sync"], sync["jobsRevision"]) == ("OutOfSync", "bbb")
    assert sync["problems"][0]["rule"] == "unknown-queue"
    whole = get(filled, "/v1/snapshot")
    assert whole["nodes"] == [node]
    assert whole["sync"] == sync


def test_explain_tells_reasons_and_story(filled: parts.Served) -> None:
    told = get(filled, "/v1/jobs/train/explain")
    assert [event["message"] for event in told["events"]] == ["it began"]
    waits = get(filled, "/v1/jobs/wait/explain")
    assert waits["reasons"][0]["code"] == "InsufficientResources"


def test_events_are_followed(filled: parts.Served) -> None:
    page = get(filled, "/v1/events")
    assert page["next"] == 2
    assert get(filled, "/v1/events", after=2) | {"asOf": 0} == page | {"items": [], "asOf": 0}
    with parts.in_background(lambda: get(filled, "/v1/events", after=2, wait_s=15)) as told:
        filled.commit(events=(samples.event("it goes on", job="train"),))
        filled.loop.publish(events=3)
        assert told()["next"] == 3


def test_hints_come_with_a_token_and_are_not_trusted(served: parts.Served) -> None:
    told = served.client.post("/v1/hooks/git", content=b"\xff not read {")
    assert (told.status_code, told.json()) == (202, {"told": True})
    served.loop.wait(lambda heard: loop_messages.Hint() in heard)
    # of several within a moment the loop hears once more, after the last of them
    again = [served.client.post("/v1/hooks/git").json()["told"] for _ in range(3)]
    heard = 1 + sum(again) + (not again[-1])
    served.loop.wait(lambda told: told.count(loop_messages.Hint()) >= heard)
    # forges send what they like, and none of it is read: a large one is as good a hint
    large = served.client.post("/v1/hooks/git", content=bytes(8 * 2**20))
    assert large.status_code == 202
    # without a secret there are no signatures, and nobody is let in without a token
    signed = {"Authorization": "", "X-Hub-Signature-256": "sha256=" + "0" * 64}
    assert served.client.post("/v1/hooks/git", headers=signed).status_code == 401


def test_metrics_are_served(filled: parts.Served) -> None:
    cluster = filled.client.get("/metrics").text
    assert cluster.startswith("muster_build_info 1\n# HELP muster_api_requests_total ")
    count = 'muster_api_requests_total{handler="/metrics",method="GET",status="2xx"} 1.0\n'
    assert count in filled.client.get("/metrics").text
    page = filled.client.get("/metrics/nodes/n1")
    found = {family.name for family in parser.text_string_to_metric_families(page.text)}
    assert "muster_node_gpus" in found
    packed = filled.client.get("/metrics/nodes/n1", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    plain = filled.client.get("/metrics/nodes/n1", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers
    assert plain.text == packed.text
    assert filled.client.get("/metrics/nodes/n9").status_code == 404
    cluster, node = filled.client.get("/v1/prometheus/targets").json()
    assert cluster["targets"] == [filled.address.removeprefix("http://")]
    assert node["labels"]["__metrics_path__"] == "/metrics/nodes/n1"
    for asked in ("localhost", "localhost:17420", "[::1]:17420"):
        # as it is reached from there: a server may listen on 0.0.0.0, or behind a proxy
        found = filled.client.get("/v1/prometheus/targets", headers={"Host": asked}).json()
        assert [one["targets"] for one in found] == [[asked]] * 2
    odd = filled.client.get("/v1/prometheus/targets", headers={"Host": "localhost:port"})
    assert odd.json()[0]["targets"] == cluster["targets"]


def test_openmetrics_is_for_those_who_put_it_first(filled: parts.Served) -> None:
    def kind(accept: str) -> str:
        answer = filled.client.get("/metrics", headers={"Accept": accept})
        assert answer.text.endswith("\n# EOF\n") == (
            "openmetrics" in answer.headers["content-type"]
        )
        return str(answer.headers["content-type"].split(";")[0])

    prometheus = (
        "application/openmetrics-text;version=1.0.0;q=0.5,"
        "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    )
    assert kind(prometheus) == "application/openmetrics-text"
    assert kind("text/plain, application/openmetrics-text;q=0.5") == "text/plain"
    assert kind("*/*") == "text/plain"
    assert kind("application/openmetrics-text;q=often") == "text/plain"


def test_a_report_is_on_the_nodes_page(filled: parts.Served) -> None:
    def load() -> float | None:
        page = filled.client.get("/metrics/nodes/n1").text
        found = {
            family.name: family.samples[0].value
            for family in parser.text_string_to_metric_families(page)
        }
        return found.get("muster_node_load1")

    load()
    filled.sync(usage=records.NodeUsage(at=1e9, load_1m=7.25))
    filled.until(lambda: load() == 7.25)


def test_what_is_not_built_says_so(served: parts.Served) -> None:
    for response in (
        served.client.get("/v1/plan", params={"revision": "0" * 40}),
        served.client.post("/v1/jobs", content="kind: Job"),
        served.client.post("/v1/changes", json={"verb": "cancel", "names": ["x"]}),
    ):
        assert response.status_code == 501
        assert response.json()["error"]["code"] == "NotBuilt"


@pytest.mark.parametrize("path", ["/v1/changes", "/v1/overrides", "/v1/adopt"])
def test_a_body_that_is_nested_too_deep_is_the_clients(path: str, served: parts.Served) -> None:
    headers = {"Content-Type": "application/json"}
    response = served.client.post(path, content="[" * 80_000, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "BadRequest"


def test_a_damaged_store_is_told_without_a_trace(served: parts.Served) -> None:
    served.commit(jobs=(samples.job(),))
    with sqlite3.connect(served.store.reader.path) as connection:
        connection.execute("UPDATE jobs SET body = x'93'")
    connection.close()
    response = served.client.get("/v1/jobs")
    assert response.status_code == 503
    assert "a record that can't be read" in response.json()["error"]["message"]
    assert "Traceback" not in response.text


class TestTokens:
    @pytest.fixture
    def guarded(self, tmp_path: pathlib.Path) -> Iterator[parts.Served]:
        path = tmp_path / "tokens"
        path.write_text(
            "# who\nroot-token root admin\nu alice@example.org user\nn n1 node\np prom metrics\n"
        )
        path.chmod(0o600)
        made = parts.Served(tmp_path, "--token-file", str(path))
        try:
            yield made.ready()
        finally:
            made.close()

    def test_roles_may_what_they_may(self, guarded: parts.Served) -> None:
        def status(method: str, path: str, token: str | None) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            content = parts.request() if method == "POST" else None
            with httpx.Client(base_url=guarded.address, timeout=60) as client:
                return client.request(method, path, headers=headers, content=content).status_code

        sync, other = "/v1/nodes/n1/sync", "/v1/nodes/n2/sync"
        assert [status("GET", "/v1/jobs", token) for token in (None, "x", "n", "u")] == [
            401,
            401,
            403,
            200,
        ]
        assert [status("POST", sync, token) for token in (None, "u", "n")] == [401, 403, 200]
        assert status("POST", other, "n") == 403
        assert status("POST", sync, "root-token") == 200
        assert [status("GET", path, None) for path in ("/healthz", "/readyz", "/metrics")] == [
            200,
            200,
            401,
        ]
        for path in ("/metrics", "/v1/prometheus/targets"):
            told = [status("GET", path, token) for token in ("root-token", "u", "n", "p")]
            assert told == [200, 403, 403, 200], path
        assert status("GET", "/metrics/nodes/n1", "p") == 404
        assert [status("GET", path, "p") for path in ("/v1/jobs", "/v1/queues", "/v1/events")] == [
            403,
            403,
            403,
        ]


def test_an_answer_of_a_sync_is_what_agents_read() -> None:
    from reconciler.model.protocol import agent_messages
    from reconciler.server import agent_sync

    fields = {
        field.name: field.default for field in msgspec.structs.fields(agent_messages.SyncResponse)
    }
    assert fields == {
        field.name: field.default for field in msgspec.structs.fields(agent_sync.Answer)
    }


def test_a_damaged_view_is_an_error_that_says_what_to_do(served: parts.Served) -> None:
    served.commit(views={"queues": b"\xc1", "pools": b"\xc1", "sync": b"\xc1", "refused": b"\xc1"})
    for path in ("/v1/queues", "/v1/pools", "/v1/sync", "/v1/jobs", "/v1/snapshot"):
        response = served.client.get(path)
        assert response.status_code == 503, path
        assert "restart the controller" in response.json()["error"]["message"]


def test_a_reader_that_has_had_enough_is_no_error(
    served: parts.Served, tmp_path: pathlib.Path
) -> None:
    served.commit(
        jobs=tuple(samples.job(f"j{number}", order=number) for number in range(300)),
        nodes=tuple(samples.node(f"n{number}") for number in range(300)),
        events=tuple(samples.event(f"event {number}", job="j1") for number in range(150)),
        overrides=(records.Override("drain", "n1", "smoke", "alice", 1.0, 2.0),),
        drift=tuple(
            Drift("node-silent", f"n{number}", "x", "warning", "report", 1.0)
            for number in range(300)
        ),
    )
    for command in ("events", "jobs", "jobs -o json", "job j1", "nodes", "drift", "overrides"):
        read, write = os.pipe()
        os.close(read)  # as early as a reader can leave
        words = [*command.split(), *served.endpoint]
        with os.fdopen(write, "wb") as pipe:
            done = subprocess.run(
                [sys.executable, "-m", "reconciler.cli.main", *words],
                check=False,
                stdout=pipe,
                stderr=subprocess.PIPE,
                cwd=tmp_path,
                timeout=60,
            )
        # what it found out it answers all the same
        assert done.returncode == (2 if command == "drift" else 0), (command, done.stderr)
        assert b"roken" not in done.stderr, (command, done.stderr)


DRIFT_ASKED = [
    ("--kind gpu-faild", 64, 'no kind of drift named "gpu-faild"; did you mean gpu-failed'),
    ("--kind x", 64, 'no kind of drift named "x". Kinds: node-missing, '),
    ("--node n11", 1, "there is no Node/n11; did you mean n1"),
    ("--node nosuch -o json", 1, "there is no Node/nosuch"),
    ("--pool cpuu", 1, "there is no NodePool/cpuu; did you mean cpu?"),
    ("--kind gpu-failed --node n1", 0, "no drift of kind gpu-failed at node n1; "),
    ("--kind node-missing", 2, ""),
    ("--pool cpu", 0, "no drift in pool cpu; "),
]


def test_a_job_that_is_not_known_is_told_once(filled: parts.Served) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reconciler.cli.main", "jobs", "nosuch", *filled.endpoint],
        check=False,
        capture_output=True,
        text=True,
        timeout=parts.PATIENCE_S * 3,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "muster: there is no Job/nosuch; `muster jobs` lists them\n"


def test_drift_is_asked_for_of_what_there_is(filled: parts.Served) -> None:
    for arguments, code, told in DRIFT_ASKED:
        command = [sys.executable, "-m", "reconciler.cli.main", "drift", *arguments.split()]
        done = subprocess.run(
            [*command, *filled.endpoint],
            check=False,
            capture_output=True,
            text=True,
            timeout=parts.PATIENCE_S * 3,
        )
        assert done.returncode == code, done
        assert told in done.stderr

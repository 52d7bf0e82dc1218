"""No page in a browser orders or reads anything: it has no token, and no form is read."""

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.server import parts

JOB = "kind: Job"
CHANGE = '{"verb": "cancel", "names": ["x"]}'
#: What a form, or a page that asks nobody first, can say of a body.
OF_FORMS = ("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x", "")  # fmt: skip
PATHS = ("/v1/jobs", "/v1/dry-runs", "/v1/changes", "/v1/overrides", "/v1/adopt",
         "/v1/nodes/n1/sync", "/v1/nodes/n1/logs/x")  # fmt: skip
READ = ("/v1/jobs", "/v1/nodes", "/v1/queues", "/v1/events", "/v1/snapshot", "/metrics",
        "/metrics/nodes/n1", "/v1/prometheus/targets", "/schema/openapi.json")  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("open")
    made = parts.Served(folder)
    try:
        yield made.ready()
    finally:
        made.close()


@pytest.fixture
def stranger(served: parts.Served) -> Iterator[httpx.Client]:
    """A client on the same machine without a token."""
    with httpx.Client(base_url=served.address, timeout=parts.PATIENCE_S) as client:
        yield client


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "http://127.0.0.1:8000"])
@pytest.mark.parametrize("path", PATHS)
def test_nobody_gives_orders_without_a_token(
    stranger: httpx.Client, path: str, origin: str | None
) -> None:
    headers = {"Origin": origin} if origin else {}
    headers["Content-Type"] = "application/json"
    assert stranger.post(path, content=CHANGE, headers=headers).status_code == 401


@pytest.mark.parametrize("host", ["localhost", "evil.example", "127.0.0.1.nip.example"])
@pytest.mark.parametrize("path", READ)
def test_nobody_reads_without_a_token(stranger: httpx.Client, path: str, host: str) -> None:
    assert stranger.get(path, headers={"Host": host}).status_code == 401


def test_probes_are_answered(stranger: httpx.Client) -> None:
    assert stranger.get("/healthz").json() == {"status": "ok"}
    assert stranger.get("/readyz").status_code == 200


def test_a_proxy_may_call_it_what_it_likes(served: parts.Served) -> None:
    headers = {"Host": "muster.example.org", "Origin": "https://grafana.example.org"}
    assert served.client.get("/v1/jobs", headers=headers).status_code == 200


@pytest.mark.parametrize("kind", OF_FORMS)
@pytest.mark.parametrize("path", PATHS)
def test_no_form_is_read(served: parts.Served, path: str, kind: str) -> None:
    answer = served.client.post(path, content=CHANGE, headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "expected application/" in answer.json()["error"]["message"]


def test_what_is_said_to_be_yaml_or_json_is_read(served: parts.Served) -> None:
    """501: this server has no repository, which it says once it is past all that."""
    for kind in ("application/json; charset=utf-8", "application/yaml", "text/yaml", None):
        said = {} if kind is None else {"Content-Type": str(kind)}
        assert served.client.post("/v1/jobs", content=JOB, headers=said).status_code == 501
    told = served.client.post("/v1/changes", json={"verb": "cancel", "names": ["x"]})
    assert told.status_code == 501
    headers = {"Content-Type": "application/msgpack"}
    answer = served.client.post("/v1/nodes/n1/sync", content=parts.request(), headers=headers)
    assert answer.status_code == 200

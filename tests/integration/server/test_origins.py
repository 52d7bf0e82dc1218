"""A controller without tokens listens to programs of its machine and to no page in a browser."""

import pathlib
from collections.abc import Iterator

import httpx
import pytest

from reconciler.server.auth import csrf
from tests.integration.server import parts

JOB = "kind: Job"
CHANGE = '{"verb": "cancel", "names": ["x"]}'
#: What a form, or a page that asks nobody first, can say of a body.
OF_FORMS = ("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x", "")  # fmt: skip
PATHS = ("/v1/jobs", "/v1/dry-runs", "/v1/changes", "/v1/overrides", "/v1/adopt",
         "/v1/nodes/n1/sync", "/v1/nodes/n1/logs/x")  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("open")
    made = parts.Served(folder)
    try:
        yield made.ready()
    finally:
        made.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.touch(0o600)
    tokens.write_text("a-token ada admin\n")
    made = parts.Served(folder, "--token-file", str(tokens))
    try:
        yield made.ready()
    finally:
        made.close()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8000"])
@pytest.mark.parametrize("path", [*PATHS, "/v1/hooks/git"])
def test_a_page_gives_no_order(served: parts.Served, path: str, origin: str) -> None:
    headers = {"Origin": origin, "Content-Type": "application/json"}
    answer = served.client.post(path, content=CHANGE, headers=headers)
    assert answer.status_code == 403
    assert f"Origin: {origin}" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:7070", "10.0.0.1", "",
                                  "127.0.0.1.nip.example", "[2001:db8::1]:80"])  # fmt: skip
def test_a_name_that_was_made_to_lead_here_reads_nothing(served: parts.Served, host: str) -> None:
    for path in ("/v1/jobs", "/v1/snapshot", "/metrics", "/schema/openapi.json", "/healthz"):
        answer = served.client.get(path, headers={"Host": host})
        assert answer.status_code == 403, path
        assert "localhost, 127.0.0.1 and [::1]" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "[::1]",
                                  "LocalHost.:{port}", "127.0.0.1", "localhost:18080"])  # fmt: skip
def test_programs_use_any_name_of_loopback(served: parts.Served, host: str) -> None:
    named = host.format(port=served.address.rpartition(":")[2])
    for path in ("/v1/jobs", "/metrics", "/readyz"):
        assert served.client.get(path, headers={"Host": named}).status_code == 200


def test_with_tokens_a_proxy_may_call_it_what_it_likes(guarded: parts.Served) -> None:
    headers = {"Host": "muster.example.org", "Origin": "https://grafana.example.org"}
    bearer = {"Authorization": "Bearer a-token"}
    assert guarded.client.get("/v1/jobs", headers=headers | bearer).status_code == 200
    assert guarded.client.get("/v1/jobs", headers=headers).status_code == 401
    assert guarded.client.get("/healthz", headers=headers).status_code == 200


@pytest.mark.parametrize("kind", OF_FORMS)
@pytest.mark.parametrize("path", PATHS)
def test_no_form_is_read(served: parts.Served, guarded: parts.Served, path: str, kind: str) -> None:
    for one, token in ((served, {}), (guarded, {"Authorization": "Bearer a-token"})):
        answer = one.client.post(path, content=CHANGE, headers={"Content-Type": kind, **token})
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


def test_of_two_names_both_count() -> None:
    with pytest.raises(Exception, match="evil"):
        csrf.refuse_pages([], ["localhost", "evil.example"])
    csrf.refuse_pages([], ["localhost", "127.0.0.2:1"])
    csrf.refuse_pages([], [])  # an old prober names none; a browser always does


def test_the_address_of_a_client_is_what_it_says(served: parts.Served) -> None:
    port = served.address.rpartition(":")[2]
    with httpx.Client(base_url=f"http://localhost:{port}", timeout=parts.PATIENCE_S) as client:
        assert client.get("/v1/jobs").status_code == 200

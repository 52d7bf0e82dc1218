"""Packs come from the controller once for each owner, are checked, and go when they must."""

import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.code import pack_cache
from agents.link import http_client
from agents.tasks.node_context import UnstartableError
from reconciler.model.observed import job_code
from reconciler.model.state.states import EndReason


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "PackServer"

    def do_GET(self) -> None:
        asked = self.server.asked
        asked.append(self.path)
        *_, attempt, offset = self.path.split("/")
        status, body = 200, self.server.packs.get(attempt, b"")
        body = body[int(offset) :][: job_code.PIECE_BYTES_MAX]
        if attempt not in self.server.packs:
            status, body = 404, json.dumps({"error": {"message": "it is not here"}}).encode()
        elif len(asked) <= self.server.failures:
            status, body = 503, json.dumps({"error": {"message": "try again"}}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class PackServer(http.server.ThreadingHTTPServer):
    """A controller that gives packs by attempt, after some failures."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.packs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.failures = 0


@pytest.fixture
def server() -> Iterator[PackServer]:
    with PackServer() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def cache(folder: Path, server: PackServer, limit: int = 2**30) -> pack_cache.PackCache:
    target = http_client.ControllerTarget(f"http://127.0.0.1:{server.server_port}")
    return pack_cache.PackCache(folder / "packs", "n", target, limit)


def wanted(data: bytes, attempt: str = "a", owner: str = "ada@x.org") -> pack_cache.WantedPack:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return pack_cache.WantedPack(digest, attempt, owner, lambda: True)


def read(packs: pack_cache.PackCache, of: pack_cache.WantedPack) -> bytes:
    with packs.opened(of) as handle:
        return os.read(handle, 2**26)


@pytest.mark.parametrize("size", [0, 1, job_code.PIECE_BYTES_MAX, job_code.PIECE_BYTES_MAX + 1])
def test_a_pack_is_fetched_once(tmp_path: Path, server: PackServer, size: int) -> None:
    data = server.packs["a"] = server.packs["b"] = b"x" * size
    packs = cache(tmp_path, server)
    assert read(packs, wanted(data)) == data
    count = len(server.asked)
    assert read(packs, wanted(data, "b")) == data
    assert read(cache(tmp_path, server), wanted(data)) == data, "by the next agent neither"
    assert len(server.asked) == count
    assert server.asked[0] == "/v1/nodes/n/code/a/0"


def test_what_one_owner_was_given_is_not_given_to_another(
    tmp_path: Path, server: PackServer
) -> None:
    data = server.packs["a"] = b"of ada"
    packs = cache(tmp_path, server)
    assert read(packs, wanted(data)) == data
    with pytest.raises(UnstartableError, match="code: it is not here"):
        read(packs, wanted(data, "b", "bob@x.org"))


def test_another_content_is_refused(tmp_path: Path, server: PackServer) -> None:
    server.packs["a"] = b"something else"
    with pytest.raises(UnstartableError, match="found a pack with the SHA-256") as caught:
        read(cache(tmp_path, server), wanted(b"code"))
    assert caught.value.reason is EndReason.START_FAILED
    assert list((tmp_path / "packs").iterdir()) == []


def test_more_than_a_pack_may_be_is_refused(
    tmp_path: Path, server: PackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_code, "PACK_BYTES_MAX", 2 * job_code.PIECE_BYTES_MAX)
    data = server.packs["a"] = b"x" * (3 * job_code.PIECE_BYTES_MAX)
    with pytest.raises(UnstartableError, match="the pack is larger than"):
        read(cache(tmp_path, server), wanted(data))


def test_a_controller_that_is_away_for_a_while_is_waited_for(
    tmp_path: Path, server: PackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_cache, "PAUSE_S", 0.01)
    data = server.packs["a"] = b"code"
    server.failures = 3
    assert read(cache(tmp_path, server), wanted(data)) == data
    assert len(server.asked) == 4


def test_a_controller_that_stays_away_is_told(
    tmp_path: Path, server: PackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_cache, "PAUSE_S", 0.01)
    monkeypatch.setattr(pack_cache, "FETCH_S", 0.2)
    server.packs["a"] = b"code"
    server.failures = 10**6
    with pytest.raises(UnstartableError, match=r"did not give all of it.*503 try again") as caught:
        read(cache(tmp_path, server), wanted(b"code"))
    assert caught.value.reason is EndReason.STAGE_FAILED


def test_nobody_waits_for_what_nobody_wants(tmp_path: Path, server: PackServer) -> None:
    server.packs["a"] = b"code"
    with pytest.raises(pack_cache.CodeUnwantedError):
        read(cache(tmp_path, server), wanted(b"code")._replace(is_wanted=lambda: False))
    assert server.asked == []


def test_the_least_used_go_beyond_the_limit(tmp_path: Path, server: PackServer) -> None:
    packs = cache(tmp_path, server, 250)
    datas = [bytes([number]) * 100 for number in range(3)]
    for number, data in enumerate(datas[:2]):
        server.packs[str(number)] = data
        read(packs, wanted(data, str(number)))
        os.utime(tmp_path / "packs" / wanted(data).name, (number, number))
    read(packs, wanted(datas[0], "0"))  # used again
    server.packs["2"] = datas[2]
    with packs.opened(wanted(datas[0], "0")) as handle:
        read(packs, wanted(datas[2], "2"))
        names = {path.name for path in (tmp_path / "packs").iterdir()}
        assert names == {wanted(datas[0]).name, wanted(datas[2]).name}
        assert os.read(handle, 1000) == datas[0]


def test_many_that_want_the_same_fetch_it_once(tmp_path: Path, server: PackServer) -> None:
    data = b"x" * job_code.PIECE_BYTES_MAX
    packs, found = cache(tmp_path, server), list[bytes]()
    for number in range(8):
        server.packs[str(number)] = data
    threads = [
        threading.Thread(
            target=lambda name: found.append(read(packs, wanted(data, name))), args=[str(number)]
        )
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [data] * 8
    assert len(server.asked) == 2

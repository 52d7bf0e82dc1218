"""Commands that wait outlive a controller that starts again, and lose and repeat nothing."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reconciler.cli import main, retries, stream_position
from reconciler.operations.client import api_client, endpoints

Handler = http.server.BaseHTTPRequestHandler
#: Answers to one path, in turn; the last one stays.
Script = dict[str, list[Callable[[Handler], None]]]


def told(body: object, status: int = 200) -> Callable[[Handler], None]:
    def answer(to: Handler) -> None:
        data = json.dumps(body).encode()
        to.send_response(status)
        to.send_header("Content-Length", str(len(data)))
        to.end_headers()
        to.wfile.write(data)

    return answer


def cut(to: Handler) -> None:
    """The process was killed: there is no answer."""
    to.close_connection = True


def text(*pieces: bytes, whole: bool = True) -> Callable[[Handler], None]:
    def answer(to: Handler) -> None:
        to.send_response(200)
        to.send_header("Transfer-Encoding", "chunked")
        to.end_headers()
        for piece in (*pieces, b"") if whole else pieces:
            to.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        to.close_connection = not whole

    return answer


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Script, str]]:
    """Return the answers of a controller, for a test to fill in, and its address."""
    script: Script = {"/v1/overrides": [told({"items": []})]}

    class Scripted(Handler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802 - its base's name
            answers = script[self.path.partition("?")[0]]
            (answers.pop(0) if len(answers) > 1 else answers[0])(self)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(retries, "AGAIN_S", 0.01)
    monkeypatch.delenv("MUSTER_TOKEN_FILE", raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield script, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(*words: str) -> int:
    code = main.application(words[0]).main(list(words), prog_name="muster", standalone_mode=False)
    return code if isinstance(code, int) else 0


def job(state: str, *tries: int) -> dict[str, Any]:
    attempts = [{"task": "main-0", "attempt": one, "state": "Running"} for one in tries]
    return {
        "job": {"name": "a", "state": state, "reasons": [], "attempts": attempts, "array": False}
    }


EVENTS = {"items": [], "next": 1}


@pytest.mark.parametrize("away", [cut, told({}, 503)])
def test_a_wait_outlives_a_restart(
    controller: tuple[Script, str], capsys: pytest.CaptureFixture[str], away: Any
) -> None:
    script, url = controller
    running, over = told(job("Running")), told(job("Succeeded"))
    script |= {
        "/v1/jobs/a": [running, running, away, away, over],
        "/v1/events": [told(EVENTS)],
    }
    assert run("wait", "a", "--server", url) == 0
    out, err = capsys.readouterr()
    assert out == "a: Succeeded\n"
    assert err.count("retrying for 60s") == 1
    assert "the controller is back" in err


def test_a_wait_for_what_was_refused_and_has_left_says_why_it_waited(
    controller: tuple[Script, str], capsys: pytest.CaptureFixture[str]
) -> None:
    script, url = controller
    refused = job("Pending")
    refused["job"]["reasons"] = [{"code": "Invalid", "message": "it has no signature"}]
    script |= {
        "/v1/jobs/a": [told(refused), told(refused), told({}, 404)],
        "/v1/events": [told(EVENTS)],
    }
    assert run("wait", "a", "--server", url) == 1
    err = capsys.readouterr().err
    assert "a never started: Invalid: it has no signature" in err
    assert "its YAML was deleted" in err


@pytest.mark.parametrize(
    ("second", "code", "said"),
    [
        ("Succeeded", 0, ("a: Succeeded\nb: Succeeded\n", "")),
        ("Failed", 1, ("a: Succeeded\nb: Failed\n", "")),
        ("Running", 124, ("a: Succeeded\n", "b has not ended after 0s")),
    ],
)
def test_what_has_ended_is_told_where_there_is_no_time_to_wait(
    controller: tuple[Script, str],
    capsys: pytest.CaptureFixture[str],
    second: str,
    code: int,
    said: tuple[str, str],
) -> None:
    script, url = controller
    script |= {"/v1/jobs/a": [told(job("Succeeded"))], "/v1/jobs/b": [told(job(second))]}
    assert run("wait", "a", "b", "--timeout", "0s", "--server", url) == code
    printed = capsys.readouterr()
    assert printed.out == said[0]
    assert said[1] in printed.err


def test_a_wait_that_was_too_short_says_how_long_it_was(
    controller: tuple[Script, str], capsys: pytest.CaptureFixture[str]
) -> None:
    script, url = controller
    script |= {"/v1/jobs/a": [told(job("Running"))], "/v1/events": [told(EVENTS)]}
    assert run("wait", "a", "--timeout", "1", "--server", url) == 124
    assert "a has not ended after 1s" in capsys.readouterr().err


def test_a_controller_that_stays_away_is_no_failed_job(
    controller: tuple[Script, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, url = controller
    script |= {"/v1/jobs/a": [told(job("Running")), cut]}
    monkeypatch.setattr(retries, "AWAY_S_MAX", 0.0)
    assert run("wait", "a", "--server", url) == 125
    assert "a continues without this command: muster wait a" in capsys.readouterr().err
    script["/v1/jobs/a"] = [cut]
    assert run("wait", "a", "--server", url) == 125, "it was never there"
    script |= {"/v1/events": [told(EVENTS), cut]}
    assert run("events", "-w", "--server", url) == 125

    def breaks_off(to: Handler) -> None:
        script["/v1/jobs/a"] = [cut]
        text(b"1\n", whole=False)(to)

    script |= {"/v1/jobs/a": [told(job("Running", 1))], "/v1/jobs/a/logs": [breaks_off]}
    code = run("logs", "-f", "a", "--server", url)
    assert code == 125, capsys.readouterr()
    assert "a continues: muster logs -f a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tries", "first", "again", "shown"),
    [
        ([1, 1], text(b"1\n2", whole=False), text(b"1\n2\n3\n"), b"1\n2\n3\n"),
        ([1, 1], text(b"1\n", b"2\n"), text(b"1", b"\n2\n3\n"), b"1\n2\n3\n"),
        ([1, 2], text(b"1\n2\n", whole=False), text(b"one\n"), b"1\n2\none\n"),
        ([1, 1], cut, text(b"1\n"), b"1\n"),
    ],
    ids=["cut off", "stopped as if at its end", "another try meanwhile", "before it began"],
)
def test_what_is_followed_goes_on_where_it_broke_off(
    controller: tuple[Script, str], tries: list[int], first: Any, again: Any, shown: bytes
) -> None:
    script, url = controller
    before, after = (range(1, one + 1) for one in tries)
    script |= {
        "/v1/jobs/a": [
            told(job("Running", *before)),
            told(job("Running", *after)),
            told(job("Succeeded", *after)),
        ],
        "/v1/jobs/a/logs": [first, again],
    }
    with api_client.ApiClient(endpoints.Endpoint(url)) as api:
        pieces = retries.Patient(api).follow("a", {"stream": "stdout", "follow": "true"})
        assert b"".join(pieces) == shown


HEAD = b"muster: main-0, try 1 on n1, 2026-11-22T10:00:00Z"


@pytest.mark.parametrize(
    ("query", "tries", "streams", "shown"),
    [
        ({"attempt": "1"}, 2, ([b"1\n2"], [b"1\n2\n3\n"]), b"1\n2\n3\n"),
        ({"timestamps": "true"}, 1, ([b"t 1\n"], [b"t 1\n", b"t 2\n"]), b"t 1\nt 2\n"),
        (
            {"since": "2026-11-22T09:00:00Z"},
            2,
            (
                [HEAD + b"\n", b"1\n2"],
                [HEAD + b", 12s, status 1\n1\n2", b"\nmuster: main-0, try 2 on n2\n1\n"],
            ),
            HEAD + b"\n1\n2\nmuster: main-0, try 2 on n2\n1\n",
        ),
        (
            {"every": "true"},
            2,
            (
                [HEAD + b", 12s, status 1\n1\n", b"muster: try 2 on n2\na\n"],
                [HEAD + b", 12s, status 1\n1\nmuster: main-0, tr", b"y 2 on n2\na\nmus", b"t\n"],
            ),
            HEAD + b", 12s, status 1\n1\nmuster: try 2 on n2\na\nmust\n",
        ),
        ({}, 2, ([b"1\n", b"muster: try 2 on n2\na\n"], [b"a\nb\n"]),
         b"1\nmuster: try 2 on n2\na\nb\n"),
    ],
    ids=["one try", "with times", "tries that end meanwhile", "all tries", "the second try"],
)  # fmt: skip
def test_all_that_is_followed_is_taken_up_again(
    controller: tuple[Script, str],
    query: dict[str, str],
    tries: int,
    streams: tuple[list[bytes], list[bytes]],
    shown: bytes,
) -> None:
    script, url = controller
    over = told(job("Succeeded", *range(1, tries + 1)))
    asked = [] if query.keys() & {"since", "every"} else [told(job("Running", 1))]
    script |= {
        "/v1/jobs/a": [*asked, told(job("Running", *range(1, tries + 1))), over],
        "/v1/jobs/a/logs": [text(*streams[0], whole=False), text(*streams[1])],
    }
    with api_client.ApiClient(endpoints.Endpoint(url)) as api:
        pieces = retries.Patient(api).follow("a", {"stream": "stdout", "follow": "true"} | query)
        assert b"".join(pieces) == shown


@pytest.mark.parametrize(
    ("query", "streams", "shown"),
    [
        ({}, [b"hello\nmuster: try 1 on n0\nworld-world\n"], b""),
        ({"attempt": "1"}, [b"hello\nmuster: try 2 on n0\nworld-world\n"], b""),
        ({}, [b"a\nmuster: submitted x\n", b"a\nmuster: submitted x\nb\n"], b""),
        ({}, [b"a\nmuster: node n1 has sent nothing for 20 s\n", b"a\nb\n"],
         b"a\nmuster: node n1 has sent nothing for 20 s\nb\n"),
    ],
    ids=["its own try", "another try", "a line of its own", "what the controller says"],
)  # fmt: skip
def test_what_a_task_writes_is_no_word_of_the_controller(
    query: dict[str, str], streams: list[bytes], shown: bytes
) -> None:
    stream = stream_position.Shown(headings="attempt" not in query)
    found = b""
    for one in streams:
        stream.begin(1)
        found += stream.new(one) + stream.rest()
    assert found == (shown or streams[-1])


@pytest.mark.parametrize(
    ("sink", "words", "status"),
    [
        ("/dev/full", ["wait", "a"], 1),
        ("/dev/full", ["events"], 1),
        ("/dev/full", ["events", "-o", "json"], 1),
        ("/dev/full", ["logs", "a"], 1),
        ("pipe", ["logs", "a"], 0),
    ],
)
def test_what_cant_be_written_is_one_line(
    controller: tuple[Script, str], sink: str, words: list[str], status: int
) -> None:
    script, url = controller
    event = {"at": "2026-11-22T10:00:00Z", "kind": "JobEnded", "job": "a", "message": "m"}
    script |= {
        "/v1/jobs/a": [told(job("Succeeded", 1))],
        "/v1/jobs/a/logs": [text(b"1\n", b"2\n")],
        "/v1/events": [told({"items": [event], "next": 1})],
    }
    if sink == "pipe":
        reads, writes = os.pipe()
        os.close(reads)
    else:
        writes = os.open(sink, os.O_WRONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "reconciler.cli.entry", *words, "--server", url],
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writes)
    expected = "muster: the output can't be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (status, expected if status else "")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["drift"], 2, ""),
        (["drift", "-o", "json"], 2, ""),
        (["wait", "a"], 125, "nobody reads the output any more; a continues without this command"),
    ],
)
def test_what_the_exit_code_says_is_said_where_nobody_reads(
    controller: tuple[Script, str], words: list[str], status: int, said: str
) -> None:
    script, url = controller
    row = {"kind": "task-missing", "subject": "a/0", "message": "m", "action": "report"}
    row |= {"severity": "warning", "first_seen": "2026-11-22T10:00:00Z", "remedy": ""}
    script |= {
        "/v1/jobs/a": [told(job("Succeeded", 1))],
        "/v1/drift": [told({"items": [{**row, "wanted": "", "found": "", "pool": ""}]})],
    }
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "reconciler.cli.entry", *words, "--server", url],
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writes)
    assert done.returncode == status, done.stderr
    assert (said in done.stderr) if said else not done.stderr

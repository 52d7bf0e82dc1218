"""How the tasks of a gang speak with each other, whatever pieces their words arrive in."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from agents import launching

DEADLINE_S = 90.0
COMMAND = [sys.executable, "-I", "-S", launching.__file__]


class Follower:
    """The other task of a gang of two."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.environment = {
            **os.environ,
            "MUSTER_GANG_SECRET": "x",
            "MUSTER_GANG_HELPERS": json.dumps([["127.0.0.1", self.port]]),
            "MUSTER_GANG_LISTEN": f"127.0.0.1:{self.port}",
        }
        self.process = subprocess.Popen([*COMMAND, "follow"], env=self.environment)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *words], env=self.environment, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip


@pytest.fixture
def follower() -> Iterator[Follower]:
    made = Follower()
    yield made
    made.process.kill()
    made.process.wait()


def test_output_on_both_streams_arrives_and_so_does_the_status(follower: Follower) -> None:
    for _ in range(5):
        done = follower.run("reach", "127.0.0.1", "echo out; echo err >&2; exit 3")
        assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_letter_is_not_cut_in_two(follower: Follower) -> None:
    script = "printf '\\303'; sleep 0.3; printf '\\251'; printf '\\303' >&2"
    done = follower.run("reach", "127.0.0.1", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\u00e9", "\ufffd")


def test_the_others_leave_with_a_first_one_that_ends_at_once(follower: Follower) -> None:
    """All that it says may arrive together."""
    link = socket.socket()
    ends_at = time.monotonic() + DEADLINE_S
    while link.connect_ex(("127.0.0.1", follower.port)):
        assert time.monotonic() < ends_at
        link.close()
        time.sleep(0.05)
        link = socket.socket()
    link.settimeout(DEADLINE_S)
    link.sendall(b'{"secret":"x"}\n{"do": "wait"}\n{"status": 0}\n')
    assert follower.process.wait(DEADLINE_S) == 0
    link.close()


def test_a_command_that_can_not_be_run_ends_the_gang(follower: Follower) -> None:
    done = follower.run("lead", "/nonexistent/program")
    assert done.returncode == 127
    assert follower.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("answer", [b'"no"\n', b"HTTP/1.1 400 Bad Request\r\n", b""])
def test_whoever_answers_otherwise_is_not_asked_for_ever(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_GANG_SECRET", "x")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(SystemExit) as ended:
            launching.dial("127.0.0.1", listener.getsockname()[1], time.monotonic() - 1.0)
        thread.join()
    assert ended.value.code == launching.APART
    assert "does not answer" in capsys.readouterr().err

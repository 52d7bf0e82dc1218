"""How the tasks of a gang speak with each other, whatever pieces their words arrive in."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.tasks import mpi_launcher
from reconciler.operations.local import free_ports

DEADLINE_S = 90.0
SECRET = "what nobody is told"
COMMAND = [sys.executable, "-I", "-S", mpi_launcher.__file__]


class Follower:
    """The other task of a gang of two."""

    def __init__(self) -> None:
        self.port = free_ports.free_port()
        self.environment = {
            **os.environ,
            "MUSTER_GANG_SECRET": SECRET,
            "MUSTER_GANG_HELPERS": json.dumps([["127.0.0.1", self.port]]),
            "MUSTER_GANG_LISTEN": f"127.0.0.1:{self.port}",
        }
        self.process = subprocess.Popen([*COMMAND, "follow"], env=self.environment)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *words], env=self.environment, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def dial(self) -> mpi_launcher.LineConnection:
        """A connection to it, when it is there."""
        return mpi_launcher.dial("127.0.0.1", self.port, time.monotonic() + DEADLINE_S)


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    monkeypatch.setenv("MUSTER_GANG_SECRET", SECRET)
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
    line = follower.dial()
    wait = json.dumps({"do": "wait"})
    order = {"order": wait, "proof": mpi_launcher.proof("order", *line.session, wait)}
    line.link.sendall(json.dumps(order).encode() + b'\n{"status": 0}\n')
    assert follower.process.wait(DEADLINE_S) == 0
    line.link.close()


def proofs_of_others(
    line: mpi_launcher.LineConnection, earlier: mpi_launcher.LineConnection, order: str
) -> list[str]:
    """What could be taken for the proof of an order, and is none."""
    return [
        "",
        "0" * 64,
        mpi_launcher.proof("follower", *line.session),  # which the follower has said itself
        mpi_launcher.proof("order", *line.session, order + " "),
        mpi_launcher.proof("order", *earlier.session, order),
        mpi_launcher.proof("order", "127.0.0.1:1", *line.session[1:], order),
    ]


def test_an_order_that_is_not_proved_is_not_carried_out(follower: Follower, tmp_path: Path) -> None:
    order = json.dumps({"do": "run", "line": f"touch {tmp_path}/done; echo done", "cwd": "/"})
    earlier = follower.dial()
    for which in range(len(proofs_of_others(earlier, earlier, order))):
        line = follower.dial()
        line.link.settimeout(DEADLINE_S)
        line.send({"order": order, "proof": proofs_of_others(line, earlier, order)[which]})
        assert line.link.recv(100) == b"", which
        line.link.close()
    assert not (tmp_path / "done").exists()
    earlier.order(json.loads(order))
    assert json.loads(earlier.read()) == {"stream": 1, "text": "done\n"}
    earlier.link.close()


def test_who_listens_in_its_place_hears_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_GANG_SECRET", SECRET)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(b'{"nonce": "0"}\n')
                heard.append(link.recv(4096))
                link.sendall(b'{"proof": "0"}\n')
                while more := link.recv(4096):
                    heard.append(more)

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(SystemExit):
            mpi_launcher.dial("127.0.0.1", listener.getsockname()[1], time.monotonic() - 1.0)
        thread.join()
    assert [[*json.loads(one)] for one in heard] == [["nonce"]]
    assert SECRET.encode() not in b"".join(heard)
    assert "does not know this gang's secret" in capsys.readouterr().err


def test_who_listens_in_its_place_can_not_have_another_answer(follower: Follower) -> None:
    """What a follower proves holds for its own address."""
    follower.dial().link.close()  # it is there
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hand_on() -> None:
            link, _ = listener.accept()
            with link, socket.create_connection(("127.0.0.1", follower.port)) as other:
                link.sendall(other.recv(4096))
                other.sendall(link.recv(4096))
                link.sendall(other.recv(4096))
                link.recv(4096)

        thread = threading.Thread(target=hand_on)
        thread.start()
        with pytest.raises(SystemExit):
            mpi_launcher.dial("127.0.0.1", listener.getsockname()[1], time.monotonic() - 1.0)
        thread.join()


def test_a_command_that_can_not_be_run_ends_the_gang(follower: Follower) -> None:
    done = follower.run("lead", "/nonexistent/program")
    assert done.returncode == 127
    assert follower.process.wait(DEADLINE_S) == 0


ANSWERS = {
    "words": b'"no"\n',
    "http": b"HTTP/1.1 400 Bad Request\r\n",
    "nothing": b"",
    "no text": b'{"nonce": "0"}\n{"proof": "\\ud800"}\n',
    "depth": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_whoever_answers_otherwise_is_not_asked_for_ever(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_GANG_SECRET", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(answer)
                with contextlib.suppress(OSError):  # it may leave in the middle
                    link.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(SystemExit) as ended:
            mpi_launcher.dial("127.0.0.1", listener.getsockname()[1], time.monotonic() - 1.0)
        thread.join()
    assert ended.value.code == mpi_launcher.APART
    assert "does not answer" in capsys.readouterr().err


def test_whoever_says_a_little_now_and_then_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_GANG_SECRET", SECRET)
    monkeypatch.setattr(mpi_launcher, "DIAL_S", 0.5)
    left = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            link, _ = listener.accept()
            ends_at = time.monotonic() + DEADLINE_S
            with link:
                while time.monotonic() < ends_at:
                    try:
                        link.sendall(b" ")
                    except OSError:
                        left.set()
                        return
                    time.sleep(0.02)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(SystemExit):
            mpi_launcher.dial("127.0.0.1", listener.getsockname()[1], time.monotonic() - 1.0)
        thread.join()
    assert left.is_set()
    told = capsys.readouterr().err
    assert "too long" in told or "timed out" in told

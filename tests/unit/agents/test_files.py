"""Journal, logs, settings and the link: what they make of awkward bytes."""

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import settings
from agents.link.http_client import Connection, ControllerTarget, LinkError
from agents.logs import log_streamer
from agents.supervisor import journal


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    first = journal.Journal(path)
    first.add({"record": {"id": "a", "state": "Running"}}, sync=False)
    first.add({"record": {"id": "b", "state": "Running"}}, sync=False)
    first.flush()
    with Path(path).open("ab") as stream:
        stream.write(b'{"record":{"id":"c","st')
    second = journal.Journal(path)
    second.add({"record": {"id": "a", "state": "Ended"}}, sync=True)
    second.add({"forget": ["b"]}, sync=False)
    second.flush()
    assert journal.read(path) == {"a": {"id": "a", "state": "Ended"}}


def test_a_journal_that_has_grown_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BYTES_MAX", 1000)
    path = tmp_path / "journal"
    made = journal.Journal(str(path))
    record = {"id": "a", "state": "Running"}
    for _ in range(100):
        made.add({"record": record}, sync=False)
        made.flush()
        made.compact([record])
    assert path.stat().st_size < 1100
    assert journal.read(str(path)) == {"a": record}


def test_a_log_is_turned_over(tmp_path: Path) -> None:
    path = tmp_path / "a.stdout"
    with path.open("ab", buffering=0) as task:
        task.write(b"0123456789")
        log_streamer.rotate(tmp_path, ["a"], 8)
        task.write(b"x")
    assert (tmp_path / "a.stdout.1").read_bytes() == b"23456789"
    assert path.read_bytes() == b"x"


def test_old_logs_go_first_and_running_ones_never(tmp_path: Path) -> None:
    for age, name in enumerate(["new.stdout", "mid.stderr", "old.stdout.1", "run.stdout"]):
        path = tmp_path / name
        path.write_bytes(b"x" * 4096)
        os.utime(path, (2e9 - age, 2e9 - age))
    log_streamer.prune(tmp_path, {"run"}, 3 * 4096, 1e10)
    assert {path.name for path in tmp_path.iterdir()} == {"new.stdout", "mid.stderr", "run.stdout"}
    log_streamer.prune(tmp_path, {"run"}, 3 * 4096, -1e10)
    assert {path.name for path in tmp_path.iterdir()} == {"run.stdout"}


def test_there_are_never_more_logs_than_can_be_gone_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty ones count too: a node that runs thousands of silent tasks keeps the newest."""
    monkeypatch.setattr(log_streamer, "FILES_MAX", 4)
    for number in range(9):
        path = tmp_path / f"t{number}.stdout"
        path.touch()
        os.utime(path, (2e9 + number, 2e9 + number))
    assert log_streamer.prune(tmp_path, {"t0"}, 1000, 1e10) == 0
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {f"t{number}.stdout" for number in (0, 5, 6, 7, 8)}


REQUIRED = ["--server", "http://localhost:1", "--name", "n1", "--root", "/x"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [*REQUIRED, "--unknown"],
        [*REQUIRED, "--name", "a/b"],
        [*REQUIRED, "--cpus", "many"],
        [*REQUIRED, "--label", "x"],
        [*REQUIRED, "--simulated-gpus", "-1"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        settings.parse(arguments)
    assert left.value.code == 64
    assert "muster-agent" in capsys.readouterr().err


def test_settings() -> None:
    found = settings.parse(
        [*REQUIRED, "--cpus", "2.5", "--memory", "4Gi", "--label", "a=b=c", "--die-with-parent"]
    )
    assert (found.cpu_milli, found.memory_bytes) == (2500, 4 * 2**30)
    assert found.labels == {"a": "b=c"}
    assert found.die_with_parent == 0


@pytest.fixture
def scripted() -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives one prepared answer a connection, whatever is asked."""
    answers: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                link, _ = listener.accept()
                with link:
                    if not answers:
                        return
                    link.recv(65536)
                    link.sendall(answers.pop(0))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/base/", answers
        answers.clear()
        with socket.create_connection(listener.getsockname()):
            pass
        thread.join()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", (200, b"abc")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", (204, b"")),
        (
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"2;x=y\r\nab\r\n1\r\nc\r\n0\r\nt: u\r\n\r\n"
            ),
            (200, b"abc"),
        ),
        (
            b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
            (409, b"no"),
        ),
    ],
)
def test_answers(
    scripted: tuple[str, list[bytes]], answer: bytes, expected: tuple[int, bytes]
) -> None:
    url, answers = scripted
    answers += [answer, answer]
    connection = Connection(ControllerTarget(url))
    # The server closes after each: the second goes over a new connection by itself.
    for _ in range(2):
        assert connection.post("/v1/x", b"body", 20.0) == expected
    connection.close()


def test_the_date_of_an_answer_is_kept(scripted: tuple[str, list[bytes]]) -> None:
    url, answers = scripted
    date = "Sun, 06 Nov 1994 08:49:37 GMT"
    answers += [
        f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ]
    connection = Connection(ControllerTarget(url))
    dates = []
    for _ in range(2):
        connection.post("/v1/x", b"body", 20.0)
        dates.append(connection.date)
    connection.close()
    assert dates == [date, ""]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "without the length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "more than"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000, "header of more"),
    ],
)
def test_answers_that_are_none(
    scripted: tuple[str, list[bytes]], answer: bytes, words: str
) -> None:
    url, answers = scripted
    answers.append(answer)
    connection = Connection(ControllerTarget(url))
    with pytest.raises(LinkError, match=words):
        connection.post("/v1/x", b"body", 20.0)


def test_a_journal_that_can_not_be_written_anew_goes_on_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BYTES_MAX", 1000)
    monkeypatch.setattr(journal, "AHEAD_BYTES", 2000)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    made = journal.Journal(str(tmp_path / "journal"))
    record = {"id": "a", "state": "Running"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        failures, handles = 0, set()
        for _ in range(100):
            made.add({"record": record}, sync=False)
            made.flush()
            try:
                made.compact([record])
            except OSError:
                failures += 1
            handles.add(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    assert 0 < failures < 5, "not at each end"
    assert len(handles) == 1, "no file stays open"
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]
    for _ in range(100):
        made.add({"record": record}, sync=False)
        made.flush()
        made.compact([record])
    assert made.limit == 1000, "it was written anew once there was room"
    assert journal.read(made.path) == {"a": record}
    os.close(made.handle)


def test_a_journal_whose_new_name_can_not_be_kept_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file before it has no name any more: what went there would be lost."""
    made = journal.Journal(str(tmp_path / "journal"))
    real = os.fsync

    def names_fail(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(handle)

    record = {"id": "a", "state": "Running"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", names_fail)
        with pytest.raises(OSError, match="Input/output error"):
            made.renew([record])
    doubts = made.doubtful
    assert doubts
    made.add({"record": record | {"state": "Ended"}}, sync=True)
    made.flush()
    assert journal.read(made.path)["a"]["state"] == "Ended"
    made.renew([record])
    assert not made.doubtful
    os.close(made.handle)


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(LinkError, match="is not a URL"):
        Connection(ControllerTarget(url))


def test_a_full_disk_does_not_keep_an_end_from_being_written(tmp_path: Path) -> None:
    """A task that fills the disk of its node: its own end has room that was taken before."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        made = journal.Journal(str(disk / "journal"))
        with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as stream:
            while stream.write(bytes(4096)) == 4096:
                pass
        with pytest.raises(OSError, match="No space"):
            (disk / "more").write_bytes(bytes(4096))
        for number in range(500):
            made.add({"record": {"id": f"a.{number}", "state": "Ended"}}, sync=True)
            made.flush()
        assert len(journal.read(str(disk / "journal"))) == 500
        os.close(made.handle)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_what_is_kept_of_a_log_is_as_private_as_the_log(tmp_path: Path) -> None:
    path = tmp_path / "a.stderr"
    limit = 10 * 4096
    path.write_bytes(b"x" * 25 * 4096)
    path.chmod(0o640)
    found = log_streamer.rotate(tmp_path, ["a"], limit)
    assert (found.total, found.hurried) == (limit, True)
    assert stat.S_IMODE((tmp_path / "a.stderr.1").stat().st_mode) == 0o640
    path.write_bytes(b"x" * 12 * 4096)
    assert log_streamer.rotate(tmp_path, ["a", "gone"], limit) == log_streamer.Rotation(
        limit, hurried=False
    )


def test_a_log_that_grows_while_it_is_copied_is_cut_all_the_same(tmp_path: Path) -> None:
    """The writer never rests: who copies to the end of the file never comes back."""
    path, limit = tmp_path / "a.stdout", 8 * 2**20
    with path.open("ab") as output:
        writer = subprocess.Popen(
            [sys.executable, "-c", "while True: print('x' * 65536)"], stdout=output
        )
    try:
        deadline = time.monotonic() + 60
        turned = 0
        while turned < 3:
            assert time.monotonic() < deadline
            if path.stat().st_size > limit:
                log_streamer.rotate(tmp_path, ["a"], limit)
                turned += 1
                assert (tmp_path / "a.stdout.1").stat().st_size == limit
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.parametrize(
    ("server", "more", "refused"),
    [
        ("http://ctl.example.org:7420", [], True),
        ("http://10.0.0.5:7420", [], True),
        ("http://10.0.0.5:7420", ["--insecure"], False),
        ("https://10.0.0.5:7420", [], False),
        ("http://127.0.0.1:7420", [], False),
        ("http://[::1]:7420", [], False),
        ("http://localhost:7420", [], False),
    ],
)
def test_a_token_leaves_the_machine_encrypted_alone(
    server: str, more: list[str], refused: bool
) -> None:
    arguments = ["--name=n", "--root=/r", f"--server={server}", "--token-file=/t", *more]
    given = settings.parser().parse_args(arguments)
    assert any("not encrypted" in found for found in settings.problems(given)) == refused
    without = settings.parser().parse_args(arguments[:3])
    assert not list(settings.problems(without))  # there is no token to read


def test_limits_of_users_come_from_the_command_line() -> None:
    found = settings.parse(
        [
            "--name=n",
            "--root=/r",
            "--server=http://localhost:1",
            "--never-root",
            "--min-uid=1000",
            "--users=ada,bob",
        ]
    )
    assert found.user_limits == settings.UserLimits(
        root=False, uid_min=1000, names=frozenset({"ada", "bob"})
    )
    given = settings.parser().parse_args(
        ["--name=n", "--root=/r", "--server=http://localhost:1", "--users=ada,,bob"]
    )
    assert list(settings.problems(given)) == ["--users 'ada,,bob': a name is empty"]

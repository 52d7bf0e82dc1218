"""Programs that run to their end: how they end, what is read, and who ends with them."""

import math
import os
import subprocess
import time
from pathlib import Path

import pytest

from reconciler.child_process import (
    ChildEnd,
    ChildLimits,
    ChildOutput,
    ChildProgram,
    ChildUser,
    Excess,
    Leftovers,
    StuckChildren,
    end_groups,
    run_child,
)

WAIT_S = 60.0


def shell(script: str, folder: Path | None = None) -> ChildProgram:
    return ChildProgram(
        ["sh", "-c", script], folder=folder, stdout=ChildOutput.READ, stderr=ChildOutput.READ
    )


def until_gone(pid: int) -> None:
    ends_at = time.monotonic() + WAIT_S
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < ends_at, pid
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "limits", "end", "status", "stdout", "stderr"),
    [
        ("echo a; echo b >&2", ChildLimits(WAIT_S, 9), ChildEnd.EXITED, 0, b"a\n", b"b\n"),
        ("echo a; exit 3", ChildLimits(WAIT_S, 9), ChildEnd.EXITED, 3, b"a\n", b""),
        ("kill -9 $$", ChildLimits(WAIT_S, 9), ChildEnd.EXITED, -9, b"", b""),
        ("exec >&- 2>&-; sleep 0.1", ChildLimits(math.inf, 9), ChildEnd.EXITED, 0, b"", b""),
        ("sleep 300 & echo a", ChildLimits(WAIT_S, 9), ChildEnd.EXITED, 0, b"a\n", b""),
        ("echo a; sleep 300", ChildLimits(2.0, 9), ChildEnd.TIMED_OUT, None, b"a\n", b""),
        ("echo a; sleep 300 & wait", ChildLimits(2.0, 9), ChildEnd.TIMED_OUT, None, b"a\n", b""),
        ("trap 'echo b; exit 1' TERM; echo a; sleep 300 & wait",
         ChildLimits(2.0, 9, grace_s=WAIT_S), ChildEnd.TIMED_OUT, None, b"a\nb\n", b""),
        ("trap '' TERM; sleep 300", ChildLimits(0.2, grace_s=0.2),
         ChildEnd.TIMED_OUT, None, b"", b""),
        ("printf 123456789", ChildLimits(WAIT_S, 9), ChildEnd.EXITED, 0, b"123456789", b""),
        ("printf 1234567890", ChildLimits(WAIT_S, 9),
         ChildEnd.TOO_MUCH_OUTPUT, None, b"123456789", b""),
        ("yes >&2", ChildLimits(WAIT_S, 4), ChildEnd.TOO_MUCH_OUTPUT, None, b"", b"y\ny\n"),
        ("seq 50000; exit 1", ChildLimits(WAIT_S, 4, Excess.KEEP_BEGINNING),
         ChildEnd.EXITED, 1, b"1\n2\n", b""),
        ("seq 50000; exit 1", ChildLimits(WAIT_S, 6, Excess.KEEP_END),
         ChildEnd.EXITED, 1, b"50000\n", b""),
    ],
)  # fmt: skip
def test_an_end(  # noqa: PLR0917
    script: str,
    limits: ChildLimits,
    end: ChildEnd,
    status: int | None,
    stdout: bytes,
    stderr: bytes,
) -> None:
    started_at = time.monotonic()
    assert run_child(shell(script), limits) == (end, status, stdout, stderr, None)
    assert time.monotonic() - started_at < WAIT_S


def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        run_child(ChildProgram(["/nosuch/program"]), ChildLimits(WAIT_S))


@pytest.mark.parametrize("bytes_given", [0, 5, 300_000])
def test_input_is_given_while_output_is_read(bytes_given: int) -> None:
    given = b"x" * bytes_given
    program = ChildProgram(["cat"], given=given, stdout=ChildOutput.READ)
    assert run_child(program, ChildLimits(WAIT_S, 10**6)).stdout == given


def test_a_program_need_not_read_its_input() -> None:
    program = ChildProgram(["true"], given=b"x" * 300_000)
    assert run_child(program, ChildLimits(WAIT_S)).status == 0


def test_outputs_may_be_merged_discarded_or_files(tmp_path: Path) -> None:
    script = "echo a; echo b >&2"
    merged = shell(script)._replace(stderr=ChildOutput.MERGE)
    assert run_child(merged, ChildLimits(WAIT_S, 9)).stdout == b"a\nb\n"
    discarded = ChildProgram(["sh", "-c", script])
    assert run_child(discarded, ChildLimits(WAIT_S)) == (ChildEnd.EXITED, 0, b"", b"", None)
    with (tmp_path / "file").open("w+b") as file:
        result = run_child(shell(script)._replace(stdout=file), ChildLimits(WAIT_S, 9))
        assert (result.stderr, (tmp_path / "file").read_bytes()) == (b"b\n", b"a\n")
        flood = shell("cat /dev/zero | head -c 100000; sleep 300")._replace(stdout=file)
        assert run_child(flood, ChildLimits(WAIT_S, 9)).end is ChildEnd.TOO_MUCH_OUTPUT


@pytest.mark.parametrize(
    ("leftovers", "status", "ends"),
    [
        (Leftovers.KEEP, 0, False),
        (Leftovers.KEEP, 1, False),
        (Leftovers.KILL, 0, True),
        (Leftovers.KILL, 1, True),
        (Leftovers.END_ON_FAILURE, 0, False),
        (Leftovers.END_ON_FAILURE, 1, True),
    ],
)
def test_what_a_program_leaves(leftovers: Leftovers, status: int, ends: bool) -> None:
    script = shell(f"sleep 300 >&- 2>&- & echo $!; exit {status}")
    pid = int(run_child(script, ChildLimits(WAIT_S, 20, leftovers=leftovers)).stdout)
    if ends:
        until_gone(pid)
    else:
        os.kill(pid, 9)


def test_an_unwanted_program_is_ended_with_what_it_started(tmp_path: Path) -> None:
    script = shell("sleep 300 & echo $! > pid.new; mv pid.new pid; wait", tmp_path)
    pid = tmp_path / "pid"
    result = run_child(script, ChildLimits(WAIT_S), is_wanted=lambda: not pid.exists())
    assert (result.end, result.status) == (ChildEnd.UNWANTED, None)
    until_gone(int(pid.read_text()))


def test_a_program_is_ended_if_its_start_cannot_be_noted() -> None:
    pids = []

    def note(pid: int) -> None:
        pids.append(pid)
        raise KeyError(pid)

    with pytest.raises(KeyError):
        run_child(ChildProgram(["cat"], given=b"x"), ChildLimits(WAIT_S), on_start=note)
    until_gone(pids[0])


def test_credentials_are_a_user() -> None:
    assert ChildUser.of(None) is None
    user = ChildUser.of({"uid": 1, "gid": 2, "groups": [3], "name": "a"})
    assert user == ChildUser(1, 2, [3])


def test_a_stuck_program_is_kept_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed in vain here, like a program that waits in the kernel for a file server."""
    stuck = StuckChildren()
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    script = shell("until [ -e gone ]; do sleep 0.05; done", tmp_path)
    result = run_child(script, ChildLimits(0.1, grace_s=0.1, reap_s=0.1))
    stuck.note("key", result)
    try:
        assert result.stuck is not None
        assert stuck.pids("key") == stuck.pids() == [result.stuck.pid]
        assert stuck.pids("other") == []
    finally:
        (tmp_path / "gone").touch()
        ends_at = time.monotonic() + WAIT_S
        while stuck.pids():
            assert time.monotonic() < ends_at
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "spoil", "stays"),
    [
        ("touch ready; sleep 300", False, False),
        ("trap '' TERM; touch ready; while :; do sleep 0.05; done", False, False),
        ("touch ready; while :; do sleep 0.05; done", True, True),
    ],
)
def test_groups_that_an_earlier_process_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, spoil: bool, stays: bool
) -> None:
    leader = subprocess.Popen(["sh", "-c", script], cwd=tmp_path, start_new_session=True)
    try:
        ends_at = time.monotonic() + WAIT_S
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < ends_at
            time.sleep(0.01)
        with monkeypatch.context() as patch:
            if spoil:
                patch.setattr(os, "killpg", lambda *_: None)
            left = end_groups(
                lambda: {leader.pid} if leader.poll() is None else set(),
                grace_s=0.2,
                reap_s=0.2 if spoil else WAIT_S,
            )
        assert left == ({leader.pid} if stays else set())
    finally:
        leader.kill()
        leader.wait()

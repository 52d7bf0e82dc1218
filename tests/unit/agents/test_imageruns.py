"""Commands of container runtimes: what comes of them, and how those end that take too long."""

import os
import time
from pathlib import Path

import pytest

from agents import images

ENVIRONMENT = dict(os.environ)


def run(script: str, folder: Path, limit_s: float = 60.0) -> tuple[int | None, str]:
    return images.execute(["sh", "-c", script], None, {**ENVIRONMENT, "HERE": str(folder)}, limit_s)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pid: int) -> None:
    ends_at = time.monotonic() + 60
    while is_there(pid):
        assert time.monotonic() < ends_at, pid
        time.sleep(0.01)


def test_the_status_and_the_last_words(tmp_path: Path) -> None:
    assert run("echo out; echo one >&2; echo two >&2; exit 3", tmp_path) == (3, "two")
    assert run("exit 0", tmp_path) == (0, "")
    status, said = images.execute(["/nosuch/runtime"], None, ENVIRONMENT, 1.0)
    assert (status, "No such file" in said) == (127, True)


def test_what_takes_too_long_may_tidy_up_before_it_is_over(tmp_path: Path) -> None:
    """A pull that is killed leaves a layer without a name."""
    script = """
    touch $HERE/layer
    sleep 3600 & child=$!
    echo $child > $HERE/pid
    trap 'kill $child; rm $HERE/layer; exit 1' TERM
    touch $HERE/begun
    wait
    """
    until = 2.0  # long enough to begin on a busy machine; if not, it is tried for longer
    while True:
        assert run(script, tmp_path, until) == (None, "")
        if (tmp_path / "begun").exists():
            break
        until *= 2
    assert not (tmp_path / "layer").exists()
    until_gone(int((tmp_path / "pid").read_text()))


def test_who_does_not_end_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "ENDING_S", 0.2)
    script = """
    trap '' TERM
    sleep 3600 & echo $! > $HERE/pid
    echo words >&2
    while :; do sleep 0.1; done
    """
    until = 1.0
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert run(script, tmp_path, until) == (None, "")
        until *= 2
    until_gone(int((tmp_path / "pid").read_text()))

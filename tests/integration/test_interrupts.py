"""Ctrl-C at any moment of a command: the real program, its status, and what it leaves behind."""

import itertools
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.cluster import top
from tests.integration import beds

DELAYS_S = (0.0, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5)
QUEUES = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
"""
PROGRAM = str(Path(sys.executable).with_name("muster"))


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("interrupts"), nodes=1) as made:
        made.commit({"queues.yaml": QUEUES})
        yield made


def interrupted(
    bed: beds.Bed, words: list[str], delay_s: float, cwd: Path, signals: int = 1
) -> tuple[int, str]:
    """Status and stderr of a command that is interrupted so long after its first own line.

    What the interpreter does before that is no part of the program. It is told apart by the
    interpreter's list of what it has imported, which comes line by line.
    """
    process = subprocess.Popen(
        [PROGRAM, *words],
        cwd=cwd,
        env={**bed.environment, "PYTHONPROFILEIMPORTTIME": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rstrip().endswith(" reconciler.cli.entry"):
            break
    process.stderr.readline()  # what was imported next, with Ctrl-C looked after
    # the moments are what is tried; whether any of them is late makes no difference
    time.sleep(delay_s)
    for _ in range(signals):
        os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    lines = [line for line in told.splitlines() if not line.startswith("import time:")]
    return process.returncode, "\n".join(lines)


@pytest.mark.parametrize("by", ["controller", "clone"])
def test_a_run_that_is_interrupted_leaves_no_job(bed: beds.Bed, by: str) -> None:
    cwd = bed.clone if by == "clone" else bed.folder
    names = []
    for number, delay_s in enumerate(DELAYS_S):
        name = f"{by}-{number:02}"
        words = ["run", "--name", name, "--cpus", "1", "--memory", "16Mi", "--", "sleep", "3600"]
        status, told = interrupted(bed, words, delay_s, cwd, signals=1 + number % 2)
        assert (status in (130, 125), "Traceback" in told) == (True, False), (delay_s, told)
        assert len(told.splitlines()) <= 6, told
        names.append(name)
    for name in names:
        if bed.get("/v1/jobs", prefix=name)["items"]:
            bed.until_state(name, "Cancelled", timeout_s=120)


#: A hook that presses Ctrl-C, once, where a test asks for it, and does not hear of it itself.
HOOK = """\
#!/bin/sh
[ -n "$INTERRUPT_ONCE" ] && [ -e "$INTERRUPT_ONCE" ] || exit 0
rm "$INTERRUPT_ONCE"
trap '' INT
kill -s INT -- "-$INTERRUPT_GROUP"
"""


@pytest.mark.parametrize("hook", ["pre-commit", "pre-push", "pre-receive", "post-receive"])
def test_ctrl_c_while_git_is_at_work_ends_nothing_half_way(
    bed: beds.Bed, hook: str, tmp_path: Path
) -> None:
    place = bed.folder / "repository.git" if "receive" in hook else bed.clone / ".git"
    (place / "hooks").mkdir(exist_ok=True)
    (place / "hooks" / hook).write_text(HOOK)
    (place / "hooks" / hook).chmod(0o755)
    once = tmp_path / "once"
    once.touch()
    name = f"at-{hook}"
    words = [PROGRAM, "run", "--name", name, "--cpus", "1", "--memory", "16Mi"]
    done = subprocess.run(
        ["sh", "-c", 'INTERRUPT_GROUP=$$ exec "$@"', "sh", *words, "--", "sleep", "3600"],
        cwd=bed.clone,
        env={**bed.environment, "INTERRUPT_ONCE": str(once)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        process_group=0,
    )
    assert not once.exists(), done.stderr
    first, second = done.stderr.splitlines()[:2]
    assert (done.returncode, second) == (130, f"cancelling {name}"), done.stderr
    assert re.fullmatch(rf"submitted {name} \([0-9a-f]{{12}}, in clone/\)", first)
    bed.until_state(name, "Cancelled", timeout_s=120)
    assert not (bed.clone / ".git" / "index.lock").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["events", "--watch"],
        ["top"],
        ["wait", "nothing-of-this-name"],
        ["run", "--help"],
        ["validate", "."],
    ],
)
def test_no_command_shows_its_inside(bed: beds.Bed, words: list[str]) -> None:
    for delay_s in (0.0, 0.1, 0.3, 0.7):
        status, told = interrupted(bed, words, delay_s, bed.clone)
        assert "Traceback" not in told, (delay_s, told)
        # it may have ended before, and at its very end the interpreter has no handlers any more
        assert status in (130, -signal.SIGINT, 0, 1), (delay_s, status, told)


def test_the_clock_of_top_goes_on_while_nothing_happens(bed: beds.Bed) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    process = subprocess.Popen(
        [PROGRAM, "top"],
        cwd=bed.folder,
        env=bed.environment | {"TERM": "xterm"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown, clocks = "", set[str]()
    try:
        while len(clocks) < 4:
            shown += os.read(leader, 2**16).decode()
            clocks = set(re.findall(r"(?m)^\S*(\d\d:\d\d:\d\d)  git ", shown))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    hours = [[int(part) for part in one.split(":")] for one in sorted(clocks)]
    seconds = [hour * 3600 + minute * 60 + second for hour, minute, second in hours]
    # without an event lists are asked for every 10 s only; the clock does not wait for that
    assert min(after - at for at, after in itertools.pairwise(seconds)) < top.NEWS_S / 2


@pytest.mark.parametrize(("sink", "status"), [("pipe", 141), ("/dev/full", 125)])
def test_a_run_whose_output_nobody_takes(bed: beds.Bed, sink: str, status: int) -> None:
    name = f"unread-{status}"
    loop = "while sleep 0.1; do echo line; done"
    if sink == "pipe":
        reads, writes = os.pipe()
        os.close(reads)
    else:
        writes = os.open(sink, os.O_WRONLY)
    try:
        done = subprocess.run(
            [PROGRAM, "run", "--name", name, "--cpus", "1", "--", "sh", "-c", loop],
            cwd=bed.folder,
            env=bed.environment,
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        os.close(writes)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    if sink == "pipe":
        assert f"cancelling {name}" in done.stderr
        bed.until_state(name, "Cancelled", timeout_s=120)
    else:
        assert f"{name} continues without this command: muster wait {name}" in done.stderr
        assert bed.job(name)["state"] == "Running"

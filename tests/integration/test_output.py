"""What jobs print, as the command line shows it: arrays, failures, evictions, and after Ctrl-C."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from reconciler.cli.jobs import followed_job
from reconciler.model.values import times
from tests.integration import beds

QUEUES = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
---
apiVersion: muster/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 900}
"""
SWEEP = beds.job(
    "sweep",
    """\
  queue: default
  owner: tester@example.org
  array: {count: 3}
  resources: {cpu: 1, memory: 16Mi}
  command: [sh, -c, 'echo "element $MUSTER_ARRAY_INDEX"; exit $MUSTER_ARRAY_INDEX']""",
)
BROKEN = beds.job(
    "broken",
    """\
  queue: default
  owner: tester@example.org
  resources: {cpu: 1, memory: 16Mi}
  command: [sh, -c, "echo what went wrong >&2; exit 3"]""",
)
VICTIM = beds.job(
    "victim",
    """\
  queue: default
  owner: tester@example.org
  checkpoint: {path: checkpoints/victim, signal: SIGUSR1, grace: 5s}
  resources: {cpu: 4, memory: 16Mi}
  script: |
    echo '{"step": 1, "loss": 0.5}' >> "$MUSTER_METRICS"
    trap 'exit 0' USR1
    while :; do sleep 0.1; done""",
)
URGENT = beds.job(
    "urgent",
    """\
  queue: default
  owner: tester@example.org
  priorityClass: urgent
  resources: {cpu: 4, memory: 16Mi}
  command: [sleep, "3600"]""",
)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("output"), nodes=1) as made:
        made.commit({"queues.yaml": QUEUES})
        yield made


@pytest.fixture(scope="module")
def swept(bed: beds.Bed) -> beds.Bed:
    """With the array ended: tests of this file need not come in this order, nor in one process."""
    bed.commit({"sweep.yaml": SWEEP})
    bed.until_state("sweep", "Failed", timeout_s=120)
    return bed


def command(bed: beds.Bed, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """A command line of ``muster``, and its environment."""
    return (
        [sys.executable, "-u", "-m", "reconciler.cli.main", *arguments],
        {**bed.environment, "COLUMNS": "80"},
    )


def muster(bed: beds.Bed, *arguments: str) -> subprocess.CompletedProcess[str]:
    words, environment = command(bed, *arguments)
    return subprocess.run(
        words,
        cwd=bed.folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )


def test_all_of_an_array_is_shown_under_headings_that_name_the_task(swept: beds.Bed) -> None:
    bed = swept
    lines = muster(bed, "logs", "sweep", "--all").stdout.splitlines()
    assert [line for line in lines if not line.startswith("muster: ")] == [
        "element 0",
        "element 1",
        "element 2",
    ]
    headings = [line for line in lines if line.startswith("muster: ")]
    assert [line.partition(" on ")[0] for line in headings] == [
        f"muster: [{element}] main-0, try 1" for element in range(3)
    ]
    assert [line.rpartition(", ")[2] for line in headings] == ["status 0", "status 1", "status 2"]
    one = muster(bed, "logs", "sweep", "--all", "--element", "2").stdout
    assert one.splitlines()[1:] == ["element 2"]
    plotted = muster(bed, "plot", "sweep")
    assert plotted.stdout == ""
    assert "attempt" not in plotted.stderr
    assert "no metrics: this task of job sweep logged none" in plotted.stderr


def test_where_a_failure_stands_is_said(swept: beds.Bed) -> None:
    bed = swept
    bed.commit({"broken.yaml": BROKEN})
    bed.until_state("broken", "Failed", timeout_s=120)
    told = muster(bed, "logs", "broken")
    assert (told.returncode, told.stdout, told.stderr) == (0, "what went wrong\n", "")
    told = muster(bed, "logs", "broken", "--stdout")
    assert (told.returncode, told.stdout) == (0, "")
    assert told.stderr == "stdout is empty; for stderr: muster logs broken --stderr\n"
    assert muster(bed, "logs", "broken", "--stderr").stdout == "what went wrong\n"
    failed = muster(bed, "logs", "sweep")  # which of the two failed first is not sure
    element = failed.stdout.removeprefix("element ").strip()
    assert element in {"1", "2"}
    assert (
        " ".join(failed.stderr.split())
        == f"sweep[{element}] failed first; others: --element N, all: --all-tasks"
    )
    partly = muster(bed, "logs", "sweep", "-e", "2")
    assert (partly.stdout, partly.stderr) == ("element 2\n", "")


LADDER = beds.job(
    "ladder",
    """\
  queue: default
  owner: tester@example.org
  resources: {cpu: 0.1, memory: 16Mi}
  array: {count: 4, parallelism: 2}
  script: |
    #!/bin/sh
    echo start $MUSTER_ARRAY_INDEX
    until [ -e GO ]; do sleep 0.1; done
    echo end $MUSTER_ARRAY_INDEX
""",
)


def test_all_elements_are_followed_also_those_that_start_later(bed: beds.Bed) -> None:
    go = bed.folder / "rise"
    bed.commit({"ladder.yaml": LADDER.replace("GO", str(go))})
    bed.until_state("ladder", "Running", timeout_s=120)
    shown = bed.folder / "ladder.txt"
    words, environment = command(bed, "logs", "ladder", "-f", "--all")
    with shown.open("w") as file:
        follower = subprocess.Popen(words, cwd=bed.folder, env=environment, stdout=file)
        try:
            bed.until(lambda: shown.read_text().count("start") == 2)
            assert "[1] | start 1" in shown.read_text()
            go.touch()
            assert follower.wait(120) == 0
        finally:
            follower.kill()
            follower.wait()
    lines = [line for line in shown.read_text().splitlines() if "muster: " not in line]
    assert sorted(lines) == [
        f"[{element}] | {word} {element}" for element in range(4) for word in ("end", "start")
    ]
    whole = muster(bed, "logs", "ladder", "--all-tasks").stdout.splitlines()
    assert whole == [
        f"[{element}] | {word} {element}" for element in range(4) for word in ("start", "end")
    ]
    first = muster(bed, "logs", "ladder")
    assert first.stdout == "start 0\nend 0\n"
    assert first.stderr == "ladder: element 0 of 4 (another: --element N)\n"


CRASH = beds.job(
    "crash",
    """\
  queue: default
  owner: tester@example.org
  count: 3
  resources: {cpu: 0.1, memory: 16Mi}
  script: |
    #!/bin/sh
    echo start $MUSTER_TASK_INDEX
    sleep 1
    [ $MUSTER_TASK_INDEX = 2 ] && { echo CUDA out of memory >&2; sleep 1; echo end; exit 9; }
    sleep 60
""",
)
UNSTARTABLE = beds.job(
    "unstartable",
    """\
  queue: default
  owner: tester@example.org
  resources: {cpu: 0.1, memory: 16Mi}
  command: [/no/such/program]
""",
)


def test_both_streams_of_the_task_that_failed_come_first(swept: beds.Bed) -> None:
    bed = swept
    bed.commit({"crash.yaml": CRASH, "unstartable.yaml": UNSTARTABLE})
    bed.until_state("crash", "Failed", timeout_s=120)
    told = muster(bed, "logs", "crash")
    assert told.stdout == "start 2\nCUDA out of memory\nend\n"
    assert "crash: main-2 failed first; others: --task NAME" in " ".join(told.stderr.split())
    assert muster(bed, "logs", "crash", "-n", "2").stdout == "CUDA out of memory\nend\n"
    assert muster(bed, "logs", "crash", "--stdout", "-n", "1").stdout == "end\n"
    lines = muster(bed, "logs", "crash", "--all-tasks").stdout.splitlines()
    assert lines[:3] == ["main-2 | start 2", "main-2 | CUDA out of memory", "main-2 | end"]
    assert sorted(lines[3:]) == ["main-0 | start 0", "main-1 | start 1"]
    followed = muster(bed, "logs", "crash", "-f", "--task", "main-2").stdout
    assert followed == "start 2\nCUDA out of memory\nend\n"

    bed.until_state("unstartable", "Failed", timeout_s=120)
    told = muster(bed, "logs", "unstartable")
    text = " ".join(told.stderr.split())
    assert told.stdout == ""
    assert "StartFailed" in text
    assert "/no/such/program" in text


def test_what_failed_without_a_word_is_told_with_its_reason(bed: beds.Bed) -> None:
    """A task that had filled the disk looked as if it had done nothing."""
    bed.commit(
        {"mute.yaml": BROKEN.replace("broken", "mute").replace("echo what went wrong >&2; ", "")}
    )
    bed.until_state("mute", "Failed", timeout_s=120)
    told = muster(bed, "logs", "mute")
    text = " ".join(told.stderr.split())
    assert text == "mute has no output on stdout or stderr; it failed: Exited with status 3"


def test_what_was_evicted_says_by_whom_and_keeps_what_it_has_told(bed: beds.Bed) -> None:
    bed.commit({"victim.yaml": VICTIM})

    def told() -> bool:
        attempts = bed.job("victim")["attempts"]
        return bool(attempts and attempts[0]["metrics"])

    bed.until(told, 120)
    bed.commit({"urgent.yaml": URGENT})
    bed.until_state("urgent", "Running", timeout_s=120)
    shown = muster(bed, "job", "victim").stdout.splitlines()
    (evicted,) = [line for line in shown if line.startswith("Evicted")]
    assert "preempted by urgent" in evicted
    assert [line.split() for line in shown if line.startswith("TASK")][-1][2] == "METRIC"
    assert any(line.split()[:4] == ["main-0", "1", "loss", "0.5"] for line in shown)
    bed.commit({"urgent.yaml": None, "victim.yaml": None})
    bed.until_state("urgent", "Cancelled", timeout_s=120)


@contextlib.contextmanager
def up(bed: beds.Bed, name: str, script: str) -> Iterator[subprocess.Popen[str]]:
    """A script under ``muster run`` that has said that it is up."""
    options = ("--name", name, "--cpus", "1", "--memory", "16Mi")
    words, environment = command(bed, "run", *options, "--", "sh", "-c", script)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, cwd=bed.folder, env=environment, stdout=pipe, stderr=pipe, text=True
    ) as running:
        give_up = threading.Timer(120, running.kill)
        give_up.start()
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "up\n"
            yield running
        finally:
            give_up.cancel()
            running.kill()


def test_what_a_command_prints_in_its_grace_is_shown(bed: beds.Bed) -> None:
    script = 'trap "sleep 0.5; echo saved; exit 7" TERM; echo up; while :; do sleep 0.1; done'
    with up(bed, "polite", script) as running:
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    assert out == "saved\n", err
    assert running.returncode == 130
    assert "cancelling polite" in err
    assert bed.job("polite")["state"] == "Cancelled"


def test_a_second_ctrl_c_leaves_at_once(bed: beds.Bed) -> None:
    script = 'trap "" TERM; echo up; while :; do sleep 0.1; done'
    with up(bed, "stubborn", script) as running:
        running.send_signal(signal.SIGINT)
        sent = time.monotonic()
        # before that a second one would leave the job as it is, which is said
        bed.until(lambda: bed.job("stubborn")["attempts"][0]["state"] == "Stopping", 120)
        # one that follows at once is taken for the same
        bed.until(lambda: time.monotonic() - sent > 2 * followed_job.ONCE_S, 120)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode == 130
    bed.until_state("stubborn", "Cancelled", timeout_s=120)


def test_lines_are_told_apart_by_when_they_were_written(bed: beds.Bed) -> None:
    """Over two tries: of the first nothing is shown that asks for later."""
    go = bed.folder / "go"
    script = f"""\
  queue: default
  owner: tester@example.org
  retries: {{limit: 1, backoff: 1s}}
  resources: {{cpu: 1, memory: 16Mi}}
  script: |
    echo early $MUSTER_TRY
    [ "$MUSTER_TRY" = 1 ] && exit 1
    while [ ! -e {go} ]; do sleep 0.1; done
    echo late
    sleep 3600"""
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
    bed.commit({"clock.yaml": beds.job("clock", script)})
    bed.until(lambda: "early 2" in muster(bed, "logs", "clock").stdout)
    bed.until(lambda: list(bed.cluster.state.glob("**/logs/clock.*.2.stdout.times")))
    (early,) = muster(bed, "logs", "clock", "--timestamps").stdout.splitlines()
    moment = times.parse_time(early.split()[0]) + 0.005
    between = times.format_time(moment)
    bed.until(lambda: time.time() > moment + 0.005)
    go.touch()
    bed.until(lambda: "late" in muster(bed, "logs", "clock").stdout)
    lines = muster(bed, "logs", "clock", "--timestamps").stdout.splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["early 2", "late"]
    assert lines[0].split()[0] < between < lines[1].split()[0]
    later = muster(bed, "logs", "clock", "--since", between).stdout.splitlines()
    assert [line for line in later if not line.startswith("muster: ")] == ["late"]
    until = times.format_time(times.parse_time(lines[0].split()[0]) - 0.01)
    before = muster(bed, "logs", "clock", "--until", until).stdout.splitlines()
    assert "early 1" in before
    assert "late" not in before
    bed.commit({"clock.yaml": None})  # what it has is another test's, in whatever order they come
    bed.until_state("clock", "Cancelled", timeout_s=120)


def test_a_plot_of_an_array_compares_its_elements(bed: beds.Bed) -> None:
    write = 'echo "{\\"step\\": 1, \\"loss\\": $MUSTER_ARRAY_INDEX}" >> $MUSTER_METRICS'
    job = beds.job("measured", f"  array: {{count: 2}}\n  command: [sh, -c, '{write}']")
    bed.commit({"measured.yaml": job})
    bed.until_state("measured", "Succeeded", timeout_s=120)
    rows = [line.split() for line in muster(bed, "plot", "measured").stdout.splitlines()]
    assert [row[:3] for row in rows[1:]] == [["loss", "0", "0"], ["loss", "1", "1"]]
    alone = muster(bed, "plot", "measured", "-e", "1").stdout
    assert alone.splitlines()[0] == "loss: 1 now, over steps"


def test_a_plot_after_a_partial_rerun_compares_the_whole_array(bed: beds.Bed) -> None:
    """Each element as in its newest run; the newest run has one of them."""
    write = 'echo "{\\"step\\": 1, \\"loss\\": $MUSTER_ARRAY_INDEX}" >> $MUSTER_METRICS'
    fails = f"test $MUSTER_ARRAY_INDEX = 0 -o -e {bed.folder}/parted"
    spec = "  array: {count: 2}\n  retries: {limit: 0}\n"
    spec += f"  command: [sh, -c, '{write}; {fails}']"
    bed.commit({"parted.yaml": beds.job("parted", spec)})
    bed.until_state("parted", "Failed", timeout_s=120)
    (bed.folder / "parted").touch()
    assert muster(bed, "rerun", "parted", "--failed").returncode == 0
    bed.until(lambda: (bed.job("parted")["run"], bed.job("parted")["state"]) == (2, "Succeeded"))
    rows = [line.split() for line in muster(bed, "plot", "parted").stdout.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["loss", "0"], ["loss", "1"]]
    newest = muster(bed, "plot", "parted", "--run", "2").stdout
    assert newest.splitlines()[0].startswith("loss: "), "its only element"

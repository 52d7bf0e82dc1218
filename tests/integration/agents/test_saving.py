"""The signal that asks a task to save, and the grace for whatever is left of it."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason
from tests.integration.agents import supervised

GUIDE = Path(__file__).parents[3] / "docs/guides/researcher/jobs.md"
#: No test waits for the end of it: what has to end before does so by itself.
LONG_S = 600
#: A program that saves in its handler, slowly enough to be killed before, and says when it can.
SAVES = """
import os, signal, sys, time
def save(number, frame):
    print("saving", flush=True)
    time.sleep(0.5)
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, save)
{more}
print("ready", flush=True)
while True:
    time.sleep(600)
"""
#: One that starts it in a session of its own and has no handler, as ``torchrun`` has none of USR1.
LAUNCHER = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-u", sys.argv[1]], start_new_session=True)
worker.wait()
"""


@pytest.fixture(params=["auto", "process-group"])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[supervised.Bed]:
    with supervised.made_in(tmp_path, request.param) as made:
        yield made


def begun(bed: supervised.Bed, script: str, ready: int = 1, **order: Any) -> None:
    """Start a script of ``$PY SAVES`` and others, and wait until it can save."""
    files = {"saves": SAVES.format(more=order.pop("more", "")), "launcher": LAUNCHER}
    bed.start("a.1", f"cd ..\nPY={sys.executable}\n{script}\n", files=files, **order)
    bed.until("a.1", AttemptState.RUNNING)
    supervised.wait(lambda: bed.output("a.1").count("ready") == ready, "a task that can save")


def stopped(
    bed: supervised.Bed, name: str = "SIGUSR1", to: str = "main", grace_s: float = LONG_S
) -> AttemptReport:
    stop(bed, name, to, grace_s)
    return bed.ended("a.1")


def stop(bed: supervised.Bed, name: str, to: str, grace_s: float) -> None:
    order: dict[str, Any] = {"op": "stop", "id": "a.1", "reason": "Preempted", "signal": name}
    bed.supervisor.send([{**order, "to": to, "grace_s": grace_s}])


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_a_shell_around_a_program_dies_of_it_and_the_program_saves(
    bed: supervised.Bed, name: str, shell: str
) -> None:
    begun(bed, f"{shell} -c '$0 saves; echo next' $PY; echo next")
    report = stopped(bed, name)
    assert bed.output("a.1") == "ready\nsaving\nsaved\n"
    assert (report.end_reason, report.signal) == (EndReason.PREEMPTED, signal.Signals[name])


def test_the_script_of_the_guide_saves_as_it_is_written(bed: supervised.Bed) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    specs = [one for block in blocks for one in yaml.safe_load_all(block)]
    (spec,) = [one["spec"] for one in specs if one["metadata"]["name"] == "wrapped"]
    folder = bed.root / "attempts/a.1"
    files = {"train.py": SAVES.format(more="")}
    bed.start("a.1", spec["script"], argv=[f"{folder}/script"], cwd=str(folder), files=files)
    supervised.wait(lambda: "ready" in _told(bed), "a task that can save")
    stopped(bed, spec["checkpoint"]["signal"])
    assert bed.output("a.1") == "ready\nsaving\nsaved\n"


def _told(bed: supervised.Bed) -> str:
    bed.until("a.1", AttemptState.RUNNING)
    return bed.output("a.1")


def test_workers_save_whose_launcher_dies_of_it(bed: supervised.Bed) -> None:
    begun(bed, "exec $PY launcher saves")
    report = stopped(bed)
    assert bed.output("a.1") == "ready\nsaving\nsaved\n"
    assert (report.end_reason, report.signal) == (EndReason.PREEMPTED, signal.SIGUSR1)


def test_workers_save_below_a_shell_and_a_launcher(bed: supervised.Bed) -> None:
    begun(bed, "$PY launcher saves")
    stopped(bed)
    assert bed.output("a.1") == "ready\nsaving\nsaved\n"


def test_a_launcher_that_handles_it_is_told_alone(bed: supervised.Bed) -> None:
    """It asks its workers itself, who would else save twice."""
    begun(bed, "trap 'kill -USR1 -$!' USR1; setsid $PY saves & wait; wait")
    report = stopped(bed)
    assert bed.output("a.1") == "ready\nsaving\nsaved\n"
    assert (report.exit_code, report.signal) == (0, None)


def test_what_prints_for_a_program_lives_on(bed: supervised.Bed) -> None:
    begun(bed, "$PY saves | tee log")
    stopped(bed)
    assert bed.output("a.1") == "ready\nsaving\nsaved\n"


FORK = (
    "import multiprocessing\nif os.fork() == 0:\n    print('ready', flush=True)\n    signal.pause()"
)


@pytest.mark.parametrize(("to", "saves"), [("main", 1), ("all", 2)])
def test_a_fork_of_what_saves_is_asked_only_with_all(
    bed: supervised.Bed, to: str, saves: int
) -> None:
    begun(bed, "$PY saves", ready=2, more=FORK)
    stopped(bed, to=to, grace_s=LONG_S if to == "all" else 3)
    assert bed.output("a.1").count("saving") == saves


def test_all_reaches_workers_below_a_launcher_with_a_handler(bed: supervised.Bed) -> None:
    begun(bed, "trap : USR1; setsid $PY saves & wait; wait")
    stopped(bed, to="all")
    assert bed.output("a.1") == "ready\nsaving\nsaved\n"


@pytest.mark.parametrize("to", ["main", "all"])
def test_a_task_without_any_handler_ends_at_once(bed: supervised.Bed, to: str) -> None:
    begun(bed, f"setsid sleep {LONG_S} & echo ready; sleep {LONG_S}; echo next")
    report = stopped(bed, to=to)
    assert (bed.output("a.1"), report.signal) == ("ready\n", signal.SIGUSR1)


def test_the_rest_is_killed_if_the_first_process_ends_otherwise(bed: supervised.Bed) -> None:
    begun(bed, f"trap 'exit 3' USR1; setsid sleep {LONG_S} & echo ready; wait")
    report = stopped(bed)
    assert (report.exit_code, report.signal) == (3, None)


def test_the_rest_is_killed_if_the_first_process_dies_of_another_signal(
    bed: supervised.Bed,
) -> None:
    begun(bed, f"trap 'kill -KILL $$' USR1; setsid sleep {LONG_S} & echo ready; wait")
    assert stopped(bed).signal == signal.SIGKILL


STUBBORN = "signal.signal(signal.SIGUSR1, lambda *_: print('saving', flush=True))"


def test_the_rest_is_killed_after_the_grace(bed: supervised.Bed) -> None:
    begun(bed, "$PY saves & echo $! > pid; wait", more=STUBBORN)
    pid = int((bed.root / "attempts/a.1/pid").read_text())
    report = stopped(bed, grace_s=1)
    assert (report.end_reason, report.signal) == (EndReason.PREEMPTED, signal.SIGUSR1)
    assert bed.output("a.1") == "ready\nsaving\n"
    assert not supervised.alive(pid)


def test_a_later_order_shortens_the_grace_of_the_rest(bed: supervised.Bed) -> None:
    begun(bed, "echo $$ > pid; $PY saves & wait", more=STUBBORN)
    shell = int((bed.root / "attempts/a.1/pid").read_text())
    stop(bed, "SIGUSR1", "main", LONG_S)
    supervised.wait(lambda: not supervised.alive(shell), "the end of the shell")
    supervised.wait(lambda: "saving" in bed.output("a.1"), "the rest")
    stop(bed, "SIGTERM", "", 0)
    assert bed.ended("a.1").signal == signal.SIGUSR1


def test_a_lease_that_ends_asks_the_same(bed: supervised.Bed) -> None:
    order: dict[str, Any] = {
        "checkpoint_signal": "SIGUSR1",
        "checkpoint_to": "main",
        "grace_s": LONG_S,
    }
    begun(bed, "$PY saves", lease_s=3, **order)
    report = bed.ended("a.1")
    assert bed.output("a.1") == "ready\nsaving\nsaved\n"
    assert report.end_reason is EndReason.LEASE_EXPIRED


def test_a_stop_that_asks_for_no_checkpoint_ends_all_with_the_first_process(
    bed: supervised.Bed,
) -> None:
    begun(bed, f"setsid sleep {LONG_S} & echo $! > pid; echo ready; wait")
    pid = int((bed.root / "attempts/a.1/pid").read_text())
    assert stopped(bed, "SIGTERM", to="").signal == signal.SIGTERM
    assert not supervised.alive(pid)
    assert os.getpid() != pid

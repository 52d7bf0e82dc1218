"""Python files of the current folder are data: nobody who starts Muster beside them runs them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler import interpreter
from reconciler.operations.local import free_ports
from tests.unit.desired.repositories import ENVIRONMENT

BIN = Path(sys.executable).parent
LONG_S = 60.0
#: Modules that some process of Muster imports, from Muster, other packages and the standard
#: library.
NAMES = (
    "uvicorn",
    "watchdog",
    "psutil",
    "msgspec",
    "litestar",
    "pynvml",
    "json",
    "runpy",
    "agents",
)
POISON = """\
import os, sys
with open({marker!r}, "a") as marker:
    marker.write("%s as process %d: %s\\n" % (__file__, os.getpid(), sys.argv))
raise SystemExit(1)
"""


class Poisoned:
    """A repository with Python files that leave a mark when they are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cluster"
        self.marker = folder / "marker"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")},
            **ENVIRONMENT,
        }
        subprocess.run(
            [BIN / "muster", "init", str(self.folder)], env=self.environment, check=True,
            capture_output=True, timeout=LONG_S,
        )  # fmt: skip
        for name in NAMES:
            (self.folder / f"{name}.py").write_text(POISON.format(marker=str(self.marker)))

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder to its end."""
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=LONG_S, check=False,
        )  # fmt: skip

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        """Start a command in the folder."""
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )

    def marks(self) -> str:
        """Return which files were run."""
        return self.marker.read_text() if self.marker.exists() else ""


@pytest.fixture
def poisoned(tmp_path: Path) -> Poisoned:
    return Poisoned(tmp_path)


def test_the_folder_is_poisoned(poisoned: Poisoned) -> None:
    told = poisoned.run(sys.executable, "-m", "reconciler.cli.entry", "--version")
    assert told.returncode == 1
    assert poisoned.marks()


@pytest.mark.parametrize(
    "command",
    [
        ["muster", "validate"],
        ["muster", "agent", "--help"],
        ["muster", "controller", "--help"],
        ["muster-agent", "--check", "--server", "http://127.0.0.1:1", "--name", "n", "--root", "n"],
        ["muster", "agent", "--check", "--server", "http://127.0.0.1:1", "--name", "n",
         "--root", "n"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_runs_none(poisoned: Poisoned, command: list[str]) -> None:
    told = poisoned.run(BIN / command[0], *command[1:])
    assert "Traceback" not in told.stderr
    assert told.stdout or told.stderr
    assert poisoned.marks() == ""


def test_a_cluster_runs_none(poisoned: Poisoned) -> None:
    """Neither controller, server, agents nor the workers of a plan do."""
    address = f"127.0.0.1:{free_ports.free_port()}"
    up = poisoned.start(BIN / "muster", "up", "--listen", address)
    try:
        assert up.stderr is not None
        said = []
        for line in up.stderr:
            said.append(line)
            if "Ctrl-C" in line:
                break
        assert any("Ctrl-C" in line for line in said), said
        planned = poisoned.run(BIN / "muster", "plan", "HEAD")
        assert "Traceback" not in planned.stderr
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=LONG_S)
    assert poisoned.marks() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="a person's own PYTHONPATH is theirs")
@pytest.mark.parametrize("variable", ["PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME"])
def test_children_of_root_follow_no_variable(poisoned: Poisoned, variable: str) -> None:
    poisoned.environment[variable] = str(poisoned.folder)
    told = poisoned.run(*interpreter.module_command("agents", "--help"))
    assert told.returncode == 0, told.stderr
    assert poisoned.marks() == ""

"""The units of systemd: systemd itself takes them, and the programs take their command lines."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agents import settings
from reconciler import package_data
from reconciler.controller import controller_options

ROOT = package_data.checkout()
UNITS = sorted((ROOT / "systemd").glob("*.service"))
PREFIX = "/opt/muster/bin"
#: What the pages tell people to write into the files of /etc/muster.
OPTIONS = {
    "muster-agent": "--server https://muster.example.org --token-file /etc/muster/node-token",
    "muster-controller": "--repo ssh://git@git.example.org/cluster.git --listen 0.0.0.0:7420 "
    "--token-file /etc/muster/tokens",
}
#: What takes from tasks what they need: they have whatever walls their agent has.
WALLS = re.compile(
    r"^(NoNewPrivileges|Private\w+|Protect\w+|Restrict(?!PreventExitStatus)\w+|SystemCall\w+|"
    r"CapabilityBoundingSet|DeviceAllow|DevicePolicy|LockPersonality|ReadOnlyPaths|User|"
    r"MemoryDenyWriteExecute|InaccessiblePaths|MemoryMax|CPUQuota|IPAddressDeny)$"
)
analyzes = [
    pytest.mark.needs("systemd"),
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here"),
]
each = pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)


def unit(path: Path) -> configparser.ConfigParser:
    made = configparser.ConfigParser(interpolation=None, strict=True)
    made.optionxform = str  # type: ignore[assignment,method-assign]
    made.read_string(path.read_text(encoding="utf-8"))
    return made


def words(path: Path) -> list[str]:
    """The command line as systemd makes it, with the options that the pages tell."""
    line = unit(path)["Service"]["ExecStart"].replace("%l", "gpu001")
    found = re.sub(r"\$MUSTER_\w+_OPTIONS", OPTIONS[path.stem], line)
    return shlex.split(found)


def here(path: Path) -> str:
    """A unit whose programs are those of this environment."""
    return path.read_text(encoding="utf-8").replace(PREFIX, str(Path(sys.executable).parent))


def analyze(folder: Path, path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze over a unit."""
    made = folder / path.name
    made.write_text(here(path), encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", *command, str(made)], capture_output=True, text=True, check=False
    )


def test_there_is_a_unit_for_each_program_that_runs_for_long() -> None:
    assert [path.stem for path in UNITS] == ["muster-agent", "muster-controller"]


@each
@pytest.mark.parametrize("_", [pytest.param("", marks=analyzes)])
def test_systemd_takes_it_without_a_word(tmp_path: Path, path: Path, _: str) -> None:
    found = analyze(tmp_path, path, "verify", "--man=no", "--recursive-errors=no")
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


@each
@pytest.mark.parametrize("_", [pytest.param("", marks=analyzes)])
def test_systemd_finds_what_is_wrong_with_one(tmp_path: Path, path: Path, _: str) -> None:
    broken = tmp_path / "broken" / path.name
    broken.parent.mkdir()
    broken.write_text(path.read_text(encoding="utf-8").replace("Restart=always", "Restart=ever"))
    found = analyze(tmp_path, broken, "verify", "--man=no", "--recursive-errors=no")
    assert "ever" in found.stderr


@pytest.mark.parametrize("_", [pytest.param("", marks=analyzes)])
def test_the_controller_is_behind_walls(tmp_path: Path, _: str) -> None:
    """The threshold is in tenths: systemd calls up to 2.0 well."""
    (path,) = [one for one in UNITS if one.stem == "muster-controller"]
    found = analyze(tmp_path, path, "security", "--offline=yes", "--no-pager", "--threshold=20")
    assert found.returncode == 0, found.stdout


def test_the_agent_takes_its_command_line() -> None:
    program, *rest = words(UNITS[0])
    assert program == f"{PREFIX}/muster-agent"
    given = settings.parse(rest)
    assert (given.name, given.server) == ("gpu001", "https://muster.example.org")
    assert str(given.root) == "/var/lib/muster-agent"
    assert given.isolation == "auto"
    assert not given.stop_tasks_on_exit


def test_the_controller_takes_its_command_line() -> None:
    program, command, *rest = words(UNITS[1])
    assert (program, command) == (f"{PREFIX}/muster", "controller")
    given = controller_options.parser().parse_args(rest)
    assert (str(given.state), given.listen) == ("/var/lib/muster", "0.0.0.0:7420")


def test_tasks_outlive_the_agents_unit_and_have_no_walls_of_its() -> None:
    says = unit(UNITS[0])["Service"]
    assert says["KillMode"] == "process"
    assert says["Delegate"] == "yes"
    assert says["OOMPolicy"] == "continue"
    assert [name for name in says if WALLS.match(name)] == []


@each
def test_it_starts_again_but_after_wrong_usage(path: Path) -> None:
    found = unit(path)
    assert found["Service"]["Restart"] == "always"
    assert found["Service"]["RestartPreventExitStatus"] == str(settings.USAGE_ERROR)
    assert found["Unit"]["StartLimitIntervalSec"] == "0"


@each
def test_the_pages_tell_the_same(path: Path) -> None:
    page = (ROOT / "docs" / "operations" / "install.md").read_text(encoding="utf-8")
    name = path.stem.removeprefix("muster-")
    assert f"MUSTER_{name.upper()}_OPTIONS={OPTIONS[path.stem]}" in page
    assert unit(path)["Service"]["EnvironmentFile"] == f"/etc/muster/{name}.env"
    assert f"/etc/muster/{name}.env" in page

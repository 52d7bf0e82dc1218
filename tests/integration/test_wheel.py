"""The distribution as it is installed outside a checkout: its wheel has all that it needs."""

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from reconciler import package_data

ROOT = package_data.checkout()
#: Where they are in the checkout, and in the wheel.
BROUGHT = {"schemas": "schemas", "cluster-state": "cluster-state", "systemd": "systemd"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as pip makes it of the checkout."""
    made = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, f"--wheel-dir={made}", str(ROOT)], check=True)
    (found,) = made.glob("muster_cluster-*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    """A folder of installed packages with what is in the wheel."""
    folder = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def _python(site: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_it_has_its_commands_and_extras(site: Path) -> None:
    (told,) = site.glob("muster_cluster-*.dist-info")
    metadata = email.message_from_string((told / "METADATA").read_text())
    assert {"agent", "controller"} <= set(metadata.get_all("Provides-Extra", []))
    commands = (told / "entry_points.txt").read_text()
    assert "muster = reconciler.cli.entry:main" in commands
    assert "muster-agent = agents.__main__:main" in commands
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.parametrize("folder", BROUGHT)
def test_what_is_no_module_comes_along(folder: str, site: Path) -> None:
    told = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", folder],
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name for name in told.stdout.split("\0") if name]
    assert files
    for name in files:
        brought = site / "reconciler" / "data" / name
        assert brought.read_bytes() == (ROOT / name).read_bytes(), name


def test_no_module_is_missing(site: Path) -> None:
    told = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "reconciler/*.py", "agents/*.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name for name in told.stdout.split("\0") if name]
    assert [name for name in files if not (site / name).is_file()] == []
    assert not (site / "tests").exists()


def test_the_command_works_elsewhere(site: Path, tmp_path: Path) -> None:
    where = _python(site, tmp_path, "-c", "import reconciler; print(reconciler.__file__)")
    assert where.stdout.strip() == str(site / "reconciler" / "__init__.py")
    muster = ("-m", "reconciler.cli.entry")
    made = _python(site, tmp_path, *muster, "init", "mine")
    assert made.returncode == 0, made.stderr
    valid = _python(site, tmp_path / "mine", *muster, "validate")
    assert valid.returncode == 0
    assert valid.stderr.endswith(": 0 errors, 0 warnings\n")
    told = _python(site, tmp_path, *muster, "schema", "job.resources.gpu")
    assert told.stdout.startswith("spec.resources.gpu: number of GPUs")


def test_a_node_needs_nothing_of_the_controllers(site: Path, tmp_path: Path) -> None:
    """No package of the other extras is loaded by an agent, nor missed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {re.split(r"[<>=\[ ]", one)[0] for one in extras["controller"]}
    modules = {"gitpython": "git", "pyyaml": "yaml", "ruamel.yaml": "ruamel"}
    barred = {modules.get(name, name.replace("-", "_")) for name in names}
    assert {"litestar", "git", "numpy", "sqlalchemy", "yaml"} <= barred
    look = (
        "import sys\n"
        f"for name in {sorted(barred)!r}: sys.modules[name] = None\n"
        "sys.argv = ['muster-agent', '--server', 'http://127.0.0.1:1', '--name', 'a', "
        "'--root', 'root', '--check']\n"
        "from agents import __main__\n"
        "__main__.main()\n"
    )
    done = _python(site, tmp_path, "-c", look)
    assert "Traceback" not in done.stderr, done.stderr
    assert "cpu" in done.stdout.lower(), done.stdout + done.stderr

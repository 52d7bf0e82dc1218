"""Peers that are missing are brought: by the real pip from a folder, by an ``apt-get`` of ours."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from reconciler import package_data

PROJECT = package_data.checkout()
#: A name that no index has and nobody has installed.
PEER = "muster_test_peer"


def _wheel(folder: Path, version: str) -> None:
    info = f"{PEER}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{PEER}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{PEER}.py", f"VERSION = {version!r}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PEER}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _bring(tmp_path: Path, found_in: Path) -> subprocess.CompletedProcess[str]:
    """Bring the wheel into a folder beside the environment, and say what came."""
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"attrs==26.1.0\n{PEER}==0.27.0\nzipp==1.0\n")
    into = tmp_path / "installed"
    return _python(
        "from pathlib import Path\n"
        "from bench.peers import bringing\n"
        f"print(bringing.wheel({PEER!r}, Path({str(constraints)!r})))\n"
        f"import {PEER}\n"
        f"print({PEER}.VERSION)\n",
        PIP_TARGET=str(into),
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(found_in),
        PYTHONPATH=f"{PROJECT}:{into}",
    )


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="wheels go into virtual environments")
def test_a_missing_wheel_comes_at_the_version_that_is_pinned(tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for version in ("0.26.0", "0.27.0", "0.28.0"):
        _wheel(index, version)
    done = _bring(tmp_path, index)
    assert done.stdout == "\n0.27.0\n", done.stderr
    assert f"pip install {PEER}==0.27.0" in done.stderr

    for file in index.iterdir():
        file.unlink()
    again = _bring(tmp_path, index)
    assert again.stdout == "\n0.27.0\n", "what is there is asked of nobody"
    assert "pip install" not in again.stderr


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="wheels go into virtual environments")
def test_a_wheel_that_cannot_be_had_is_told_in_a_line(tmp_path: Path) -> None:
    index = tmp_path / "index"
    index.mkdir()
    done = _bring(tmp_path, index)
    (word,) = done.stdout.splitlines()
    assert word.startswith("not installed, and `")
    assert f"-m pip install {PEER}==0.27.0` failed: ERROR: " in word
    assert f"{PEER}==0.27.0" in word.partition("failed: ")[2]


def test_the_wheel_of_hyperqueue_is_pinned() -> None:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("hyperqueue==")]


def _tools(tmp_path: Path, apt_get: str) -> Path:
    """A folder of programs in which only ``apt-get`` does anything."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"apt-get": apt_get, "install": "", "rm": "", "env": 'shift; "$@"'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "sudo").write_text('#!/bin/sh\nshift\n[ "$1" = true ] && exit 0\nexec "$@"\n')
    (folder / "sudo").chmod(0o755)
    return folder


def _programs(folder: Path) -> str:
    done = _python(
        "from bench.peers import bringing\n"
        "print(bringing.programs({'peerd': 'peer-wlm', 'peer': 'peer-client'}))\n",
        PATH=str(folder),
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_missing_programs_come_by_apt_get(tmp_path: Path) -> None:
    said = tmp_path / "said"
    folder = _tools(
        tmp_path,
        f'echo "$@" >> {said}\n'
        f'case "$*" in *install*) echo > {tmp_path}/bin/peerd; echo > {tmp_path}/bin/peer\n'
        f"/bin/chmod 755 {tmp_path}/bin/peerd {tmp_path}/bin/peer;; esac",
    )
    assert not _programs(folder)
    assert said.read_text().splitlines() == [
        "-qq update",
        "-qq install -y --no-install-recommends peer-client peer-wlm",
    ]
    said.unlink()
    assert not _programs(folder)
    assert not said.exists(), "what is there is not installed"


def test_programs_that_cannot_be_had_are_told_with_the_command(tmp_path: Path) -> None:
    word = _programs(_tools(tmp_path, "exit 100"))
    assert word.startswith("not installed (`")
    assert word.endswith(
        "apt-get -qq update` failed); "
        "as root: apt-get install --no-install-recommends peer-client peer-wlm"
    )

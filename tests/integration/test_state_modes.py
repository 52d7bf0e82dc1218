"""Modes of what a controller and its server write are the same, whoever has started them."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import beds
from tests.integration.agents.supervised import wait

MUSTER = (sys.executable, "-m", "reconciler.cli.main")
#: What others need: the address for their commands, and the folders of nodes, whose modes another
#: test tells.
PUBLIC = {"endpoint.json", ".gitignore"}
NODES = {"nodes", "shared"}
#: A file that git keeps, below its folder of objects.
OBJECT = re.compile(r"[0-9a-f]{2}/[0-9a-f]{38}|pack/pack-[0-9a-f]{40}\.(pack|idx|rev)")


def reached_by_others(state: Path) -> dict[str, str]:
    """Files and folders below a state folder that others may read or write, with their modes.

    What is in a folder that nobody else may pass is out of their reach, whatever its mode.
    """
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(state):
        for name in (*folders, *files):
            path = Path(folder, name)
            mode = stat.S_IMODE(path.lstat().st_mode)
            if path.is_symlink() or name in PUBLIC:
                continue
            if mode & 0o077 and not (name in folders and not mode & 0o066):
                found[str(path.relative_to(state))] = f"{mode:04o}"
        folders[:] = [
            name
            for name in folders
            if name not in NODES and Path(folder, name).stat().st_mode & 0o011
        ]
    return {name: mode for name, mode in found.items() if name not in NODES}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077], ids=oct)
def test_modes_of_the_state_are_those_of_no_caller(tmp_path: Path, mask: int) -> None:
    """Store, logs, audit, clones and keys, after a submission by the API and a job's whole life."""
    before = os.umask(mask)
    try:
        with beds.Bed(tmp_path, nodes=1, url=True) as bed:
            objects = tmp_path / "repository.git/objects"
            old = {path for path in objects.rglob("*") if path.is_file()}
            # in a folder without a clone the controller commits and pushes
            elsewhere = tmp_path / "elsewhere"
            elsewhere.mkdir()
            subprocess.run(
                [*MUSTER, "submit", "--name", "a", "--", "true"],
                check=True, cwd=elsewhere, env=bed.environment, capture_output=True, timeout=60,
            )  # fmt: skip
            bed.until_state("a", "Succeeded")
            assert reached_by_others(bed.cluster.state) == {}
            written = {path.name for path in bed.cluster.state.iterdir()}
            assert written >= {"store.db", "audit.jsonl", "submissions", "server.log", "tokens"}
            # the repository is others', too: no file of it is closed to who may read the rest
            new = {path for path in objects.rglob("*") if path.is_file()} - old
            # git sets the mode of an object when it is written, and locks stay closed to others
            whole = {p for p in new if OBJECT.fullmatch(str(p.relative_to(objects)))}
            assert whole
            # a pack has its name for a moment before it has its mode
            wait(
                lambda: {path.stat().st_mode & 0o066 for path in whole} == {0o044},
                "an object is closed to others",
            )
    finally:
        os.umask(before)


def test_a_controllers_own_folder_is_its_own(tmp_path: Path) -> None:
    """As the unit starts it: the folder is made, closed to others."""
    before = os.umask(0o000)
    try:
        subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "r.git")], check=True)
        state = tmp_path / "above" / "state"
        controller = subprocess.Popen(
            [sys.executable, "-m", "reconciler.controller.process", "--repo",
             str(tmp_path / "r.git"), "--state", str(state), "--listen", "127.0.0.1:0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait(
                lambda: (state / "loop.sock").exists() and (state / "server.log").exists(),
                "its start",
            )
            assert stat.S_IMODE(state.stat().st_mode) == 0o700
            assert stat.S_IMODE(state.parent.stat().st_mode) & 0o022 == 0
            loose = [
                p for p in state.rglob("*") if p.lstat().st_mode & 0o022 and not p.is_symlink()
            ]
            assert loose == []
        finally:
            controller.terminate()
            controller.wait(30)
    finally:
        os.umask(before)

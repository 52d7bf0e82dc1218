"""Folders of keys: in the state folder, and gone again whatever became of their process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reconciler.desired.authorize import signatures
from reconciler.desired.git import source
from tests.unit.desired import repositories

LEAVES = """\
import os, sys
from pathlib import Path
from reconciler.desired.authorize import signatures
from reconciler.desired.git import source
made = signatures.Verifier(source.GitSource(sys.argv[1], state=Path(sys.argv[2])))
print(made._folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return repositories.Repository(tmp_path / "repository.git").path


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(f"{signatures.PREFIX}*"))


def test_they_are_in_the_state_folder_and_go_with_the_verifier(
    tmp_path: Path, repository: Path
) -> None:
    state = tmp_path / "state"
    verifier = signatures.Verifier(source.GitSource(str(repository), state=state))
    (name,) = left(state)
    assert (state / name).stat().st_mode & 0o077 == 0
    assert left(tmp_path / "tmp") == []
    verifier.close()
    assert left(state) == []
    verifier.close()


def test_without_a_state_folder_they_are_temporary(tmp_path: Path, repository: Path) -> None:
    verifier = signatures.Verifier(source.GitSource(str(repository)))
    assert len(left(tmp_path / "tmp")) == 1
    verifier.close()
    assert left(tmp_path / "tmp") == []


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(
    tmp_path: Path, repository: Path
) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-c", LEAVES, str(repository), str(state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        name = Path(process.stdout.readline().decode().strip()).name
        first = signatures.Verifier(source.GitSource(str(repository), state=state))
        assert name in left(state)
        process.kill()
        process.wait()
    assert name in left(state)
    second = signatures.Verifier(source.GitSource(str(repository), state=state))
    assert len(left(state)) == 2
    assert name not in left(state)
    first.close()
    second.close()


def test_older_ones_in_the_temporary_folder_go_when_nobody_can_be_making_them(
    tmp_path: Path, repository: Path
) -> None:
    folder = tmp_path / "tmp"
    for name, age_s in (("old", 2 * signatures.UNHELD_S), ("new", 0.0)):
        made = folder / f"{signatures.PREFIX}{name}"
        made.mkdir()
        os.utime(made, (time.time() - age_s,) * 2)
    (folder / f"{signatures.PREFIX}link").symlink_to(repository)
    signatures.Verifier(source.GitSource(str(repository), state=tmp_path / "state")).close()
    assert left(folder) == [f"{signatures.PREFIX}link", f"{signatures.PREFIX}new"]
    assert repository.is_dir()

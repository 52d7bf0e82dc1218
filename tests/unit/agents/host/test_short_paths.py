"""Short names of folders: whose they are, whom they trust, and that they go."""

import os
import socket
from pathlib import Path

import pytest

from agents.host import short_paths


def made(root: Path, base: Path) -> short_paths.ShortPaths:
    return short_paths.ShortPaths(root, (str(base),))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "b"
    folder.mkdir()
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    (folder / "attempts").mkdir(parents=True)
    return folder


def folder_of(root: Path, name: str) -> Path:
    folder = root / "attempts" / name / "tmp"
    folder.mkdir(parents=True)
    return folder


def links(base: Path) -> list[Path]:
    return sorted((base / f"muster-{os.geteuid()}").iterdir())


def test_a_socket_fits_below_a_short_name(root: Path) -> None:
    folder = folder_of(root, "job.1.0123456789abcdef.0.main.0")
    paths = short_paths.ShortPaths(root)
    short = paths.link(str(folder))
    try:
        assert len(short) < 40
        with socket.socket(socket.AF_UNIX) as made_here:
            made_here.bind(f"{short}/s")
        assert (folder / "s").exists()
        assert paths.link(str(folder)) == short
    finally:
        paths.clear()
    assert not os.path.lexists(short)


def test_a_name_goes_with_its_folder(root: Path, base: Path) -> None:
    paths = made(root, base)
    names = [paths.link(str(folder_of(root, name))) for name in ("a.1", "a.2")]
    paths.drop(str(root / "attempts/a.1/tmp"))
    paths.drop(str(root / "attempts/never/tmp"))
    assert [str(link) for link in links(base)] == names[1:]


def test_an_agent_removes_what_an_earlier_one_left_and_nothing_of_others(
    tmp_path: Path, root: Path, base: Path
) -> None:
    other, gone = tmp_path / "other", tmp_path / "gone"
    (other / "attempts").mkdir(parents=True)
    made(root, base).link(str(root / "attempts/ended.1/tmp"))
    kept = {
        made(root, base).link(str(folder_of(root, "runs.1"))),
        made(other, base).link(str(other / "attempts/not-begun.1/tmp")),
    }
    made(gone, base).link(str(gone / "attempts/a.1/tmp"))
    made(root, base).sweep()
    assert {str(link) for link in links(base)} == kept


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_what_another_has_put_there_is_not_trusted(root: Path, base: Path, trap: str) -> None:
    place = base / f"muster-{os.geteuid()}"
    elsewhere = base / "elsewhere"
    elsewhere.mkdir()
    if trap == "link":
        place.symlink_to(elsewhere)
    elif trap == "open":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.touch()
    folder = str(folder_of(root, "a.1"))
    assert made(root, base).link(folder) == folder
    assert not list(elsewhere.iterdir())
    # the next place serves
    more = short_paths.ShortPaths(root, (str(base), str(elsewhere)))
    assert more.link(folder).startswith(f"{elsewhere}/muster-")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_is_not_trusted(root: Path, base: Path) -> None:
    place = base / f"muster-{os.geteuid()}"
    place.mkdir(0o700)
    os.chown(place, 65534, 65534)
    folder = str(folder_of(root, "a.1"))
    assert made(root, base).link(folder) == folder


def test_a_folder_that_was_removed_is_made_again(root: Path, base: Path) -> None:
    paths = made(root, base)
    folder = str(folder_of(root, "a.1"))
    short = paths.link(folder)
    Path(short).unlink()
    Path(short).parent.rmdir()
    assert paths.link(folder) == short
    assert str(Path(short).readlink()) == folder
    assert Path(short).parent.stat().st_mode & 0o022 == 0

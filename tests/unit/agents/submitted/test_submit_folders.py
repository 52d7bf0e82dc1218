"""A folder is the submitter's only if it is that very one, or has a marker of the job's user."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from agents.host import acting_user
from agents.submitted import submit_folders
from reconciler.model.values.folder_identity import FolderIdentity, SubmitPlace
from reconciler.operations.changes import submit_folder

BOOT = submit_folders.machine_boot_id()
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="acts as other users")
STRANGER = acting_user.ActingUser("stranger", 12345, 12345)


def seen(folder: Path) -> FolderIdentity:
    """The folder as a submission there describes it."""
    at = submit_folder.SubmitSurroundings(folder, None)
    found = submit_folder.look(at, "train", time.time(), mark=True).folder
    assert found is not None
    return found


def elsewhere(folder: FolderIdentity) -> FolderIdentity:
    """The same for a node on another machine."""
    return msgspec.structs.replace(folder, boot_id="another", device=1)


def let_in(folder: Path) -> None:
    """Let everybody enter a folder and those above it."""
    for path in (folder, *folder.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def test_it_is_known_by_its_numbers_on_the_same_boot(folder: Path) -> None:
    place = msgspec.structs.replace(seen(folder), marker="", marker_sha256="")
    assert submit_folders.why_other(place, None, BOOT) == ""
    assert "another one" in submit_folders.why_other(place, None, "a later boot")


def test_it_is_known_by_its_marker_anywhere(folder: Path) -> None:
    place = elsewhere(seen(folder))
    assert submit_folders.why_other(place, None, BOOT) == ""
    submit_folder.forget(SubmitPlace(place))
    assert list(folder.iterdir()) == []
    assert "another one" in submit_folders.why_other(place, None, BOOT)


def test_a_submission_twice_keeps_its_marker(folder: Path) -> None:
    assert seen(folder) == seen(folder)


def test_a_marker_that_is_a_link_counts_for_nothing(folder: Path) -> None:
    place = elsewhere(seen(folder))
    marker = folder / ".muster-submit" / "train"
    marker.rename(folder / "kept")
    marker.symlink_to(folder / "kept")
    assert submit_folders.why_other(place, None, BOOT) != ""


@ROOT_ONLY
def test_a_marker_of_somebody_else_counts_for_nothing(folder: Path) -> None:
    """Who knows the marker's content could put it into a folder of that name on another node."""
    place = elsewhere(seen(folder))
    let_in(folder / ".muster-submit")
    (folder / ".muster-submit" / "train").chmod(0o644)
    theirs = submit_folders.why_other(place, STRANGER, BOOT)
    assert theirs == "the marker of its submission belongs to somebody else"
    for path in (folder / ".muster-submit", folder / ".muster-submit" / "train"):
        os.chown(path, STRANGER.uid, STRANGER.gid)
    assert submit_folders.why_other(place, STRANGER, BOOT) == ""


@ROOT_ONLY
def test_a_folder_that_the_user_can_not_enter_is_not_there(folder: Path) -> None:
    place = seen(folder)
    folder.chmod(0o700)
    let_in(folder.parent)
    assert submit_folders.why_other(place, STRANGER, BOOT) == "Permission denied"


def test_markers_of_long_ago_go(folder: Path) -> None:
    seen(folder)
    marker = folder / ".muster-submit" / "train"
    os.utime(marker, (0, 0))
    at = submit_folder.SubmitSurroundings(folder, None)
    submit_folder.look(at, "other", time.time(), mark=True)
    assert sorted(one.name for one in marker.parent.iterdir()) == [".gitignore", "other"]


def test_a_folder_that_is_no_python_environment_is_not_used(folder: Path) -> None:
    place = SubmitPlace(None, seen(folder))
    found = submit_folders.find(place, None, BOOT, chosen=False)
    assert found.python == ""
    assert "neither pyvenv.cfg nor conda-meta" in found.notes[0]
    (folder / "conda-meta").mkdir()
    found = submit_folders.find(place, None, BOOT, chosen=False)
    assert found.variables("/bin") == {"CONDA_PREFIX": str(folder), "PATH": f"{folder}/bin:/bin"}


def test_a_folder_is_named_as_the_shell_names_it(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "home").symlink_to(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        named = submit_folder.around({"PWD": str(tmp_path / "home")}, "/nowhere")
        wrong = submit_folder.around({"PWD": str(tmp_path)}, "/nowhere")
    finally:
        os.chdir(before)
    assert (named.folder, wrong.folder) == (tmp_path / "home", folder)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/v/bin:/c/bin", "/v"), ("/c/bin:/v/bin", "/c"), ("/usr/bin", None), ("/v/bin/", "/v")],
)
def test_the_environment_is_the_one_that_comes_first(path: str, expected: str | None) -> None:
    at = submit_folder.around({"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c", "PATH": path}, "/own")
    assert at.python == (expected and Path(expected))


def test_a_container_sees_none_of_it_and_says_so(folder: Path) -> None:
    place = SubmitPlace(seen(folder))
    found = submit_folders.unseen_by_container(place, ["/shared"], chosen=False)
    assert (found.folder, len(found.notes)) == ("", 1)
    assert f"does not see the folder {folder}" in found.notes[0]
    nothing = submit_folders.FoundPlace()
    assert submit_folders.unseen_by_container(place, [], chosen=True) == nothing
    assert submit_folders.unseen_by_container(SubmitPlace(), [], chosen=False) == nothing


def test_a_container_that_sees_the_folder_is_not_said_not_to(folder: Path) -> None:
    place = SubmitPlace(seen(folder))
    for shown in (str(folder), str(folder.parent), "/"):
        (note,) = submit_folders.unseen_by_container(place, [shown], chosen=False).notes
        assert "does not see" not in note
        assert f"To fix: workingDirectory: {folder}" in note
    (note,) = submit_folders.unseen_by_container(place, [f"{folder}-2"], chosen=False).notes
    assert "does not see" in note


@pytest.mark.parametrize(
    ("environment", "unused"),
    [
        ({"CONDA_PREFIX": "/c", "PATH": "/usr/bin"}, (("CONDA_PREFIX", "/c"),)),
        ({"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c", "PATH": "/v/bin:/usr/bin"}, ()),
        ({"CONDA_PREFIX": "", "PATH": "/usr/bin"}, ()),
        ({"PATH": "/usr/bin"}, ()),
    ],
)
def test_an_environment_that_jobs_do_not_get_is_named(
    environment: dict[str, str], unused: tuple[tuple[str, str], ...]
) -> None:
    assert submit_folder.around(environment, "/own").unused == unused


def test_an_environment_behind_musters_own_is_named_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "bin").mkdir(parents=True)
    found = submit_folder.around(
        {"VIRTUAL_ENV": str(own), "CONDA_PREFIX": "/c", "PATH": f"{own}/bin:/c/bin"}, str(own)
    )
    assert (found.python, found.own, found.unused) == (None, True, (("CONDA_PREFIX", "/c"),))

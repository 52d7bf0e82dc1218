"""A repository to begin with is made whole, or not at all."""

import os
import subprocess
from pathlib import Path

import pytest

from reconciler.operations.local import starter


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git does not know who commits, nor may it guess."""
    for name in [name for name in os.environ if name.startswith("GIT_")] + ["EMAIL"]:
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n\tuseConfigOnly = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_who_could_not_begin_says_the_same_again(
    there: bool, nobody: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "sites" / "mine"
    if there:
        folder.mkdir(parents=True)
    with pytest.raises(starter.StarterError) as told:
        starter.begin(folder)
    assert str(told.value) == (
        "git does not know who you are. To fix: git config --global user.name NAME; "
        "git config --global user.email YOU@HOST"
    )
    assert folder.parent.exists() is there
    assert folder.exists() is there
    assert (not there) or list(folder.iterdir()) == []

    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    starter.begin(folder)
    assert _git(folder, "status", "--short") == ""
    assert _git(folder, "log", "--format=%s %D") == "Start a cluster with Muster HEAD -> main"
    assert [path.name for path in folder.parent.iterdir()] == ["mine"]


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(starter.StarterError, match="exists and is not empty; name a new folder"):
        starter.begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/proc/none", "No such file or directory"),
        ("file", "Not a directory"),
        ("file/mine", "Not a directory"),
        ("long" * 100, "File name too long"),
    ],
)
def test_a_place_where_nothing_can_be_made_is_told(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(starter.StarterError, match=f": {why}$"):
        starter.begin(tmp_path / name)


def test_the_folder_one_stands_in_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    starter.begin(Path())
    assert _git(Path.cwd(), "status", "--short") == ""
    assert (tmp_path / "cluster.yaml").is_file()


def test_a_hook_of_another_repository_begins_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    starter.begin(other)
    before = _git(other, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other / ".git" / "objects"))
    starter.begin(tmp_path / "mine")
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.delenv(name)
    assert _git(other, "rev-parse", "HEAD") == before
    assert _git(other, "status", "--short") == ""
    assert _git(tmp_path / "mine", "log", "--format=%an %s") == "Ada Start a cluster with Muster"
    assert _git(tmp_path / "mine", "status", "--short") == ""

"""What is deleted is the user's own, whatever is moved there, and no user delays others."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from agents.deletion import deleter, subordinate_ids, tree_deletion
from agents.deletion.tree_deletion import DeletionOutcome, TreeDeletion

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

LONG_S = 60.0
ADA, BOB = pwd.getpwnam("games").pw_uid, pwd.getpwnam("news").pw_uid
#: Keeps a handle of its working directory and makes folders in it until it is not allowed to.
FLOODS = """\
import os, sys
handle = os.open(".", os.O_RDONLY)
os.setuid(int(sys.argv[1]))
count = 0
while True:
    try:
        os.mkdir(f"{count}", dir_fd=handle)
    except PermissionError:
        break
    count += 1
    if count == 100:
        print("floods", flush=True)
print(count, flush=True)
"""


class Bin:
    """A folder of the agent's, and a deleter."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "trash"
        self.folder.mkdir()
        self.kept: list[tuple[int, str]] = []
        self.deleter = self.fresh()

    def fresh(self) -> deleter.Deleter:
        """A deleter, as of the next agent."""
        return deleter.Deleter(kept=lambda count, path: self.kept.append((count, path)))

    def lay(self, name: str, *below: str, uid: int = -1) -> Path:
        """A folder of a user, with files in it."""
        uid = os.geteuid() if uid < 0 else uid
        top = Path(deleter.named(str(self.folder), name, uid))
        top.mkdir()
        for path in below:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).touch()
        give(top, uid)
        return top

    def left(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def empty(self) -> None:
        while self.deleter.turn():
            pass


@pytest.fixture
def bin_(tmp_path: Path) -> Bin:
    return Bin(tmp_path)


def give(folder: Path, uid: int) -> None:
    """Give away a folder and all in it."""
    if uid == os.geteuid():
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


@as_root
def test_what_belongs_to_others_stays_where_it_was(bin_: Bin) -> None:
    top = bin_.lay("a", "work/own/file", "work/data", "tmp/x", uid=ADA)
    others = top / "work" / "own" / "moved"
    (others / "deep").mkdir(parents=True)
    (others / "deep" / "precious").write_text("of Bob")
    (top / "work" / "stray").write_text("what the user could delete, too")
    give(others, BOB)
    os.chown(top / "work" / "stray", BOB, BOB)
    (others / "own").mkdir()
    os.chown(others / "own", ADA, ADA)
    bin_.deleter.add(str(top), ADA)
    bin_.empty()
    kept = bin_.folder / f"a@{ADA}.kept"
    assert bin_.kept == [(1, str(kept))]
    left = {str(path.relative_to(kept)) for path in kept.rglob("*") if not path.is_dir()}
    assert left == {"work/own/moved/deep/precious"}
    assert (kept / "work/own/moved/deep/precious").read_text() == "of Bob"
    assert (others.stat() if others.exists() else (kept / "work/own/moved").stat()).st_uid == BOB
    assert (kept / "work/own/moved/own").stat().st_uid == ADA
    assert kept.stat().st_mode & 0o77 == 0, "nobody else reaches what was in a private folder"


@as_root
def test_roots_folders_are_no_exception_but_the_one_around_secrets(bin_: Bin) -> None:
    top = bin_.lay("a", "secrets/token", "secrets/roots", "work/x", uid=ADA)
    os.chown(top / "secrets", 0, 0)
    os.chown(top / "secrets" / "roots", 0, 0)
    moved = top / "work" / "secrets"
    moved.mkdir(mode=0o700)
    (moved / "shadow").touch()
    os.chown(moved / "shadow", ADA, ADA)
    bin_.deleter.add(str(top), ADA)
    bin_.empty()
    kept = bin_.folder / f"a@{ADA}.kept"
    left = {str(path.relative_to(kept)) for path in kept.rglob("*") if not path.is_dir()}
    assert left == {"secrets/roots", "work/secrets/shadow"}


@as_root
def test_files_of_a_users_containers_go(
    bin_: Bin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = pwd.getpwuid(ADA).pw_name
    listed = tmp_path / "subuid"
    listed.write_text(f"# of containers\n{name}:200000:1000\n{BOB}:300000:1000\nbroken:x:1\n")
    monkeypatch.setattr(subordinate_ids.ids_of, "__defaults__", (listed,))
    monkeypatch.setattr(subordinate_ids.user_of, "__defaults__", (listed,))
    monkeypatch.setattr(subordinate_ids.holder_of, "__defaults__", (listed,))
    top = bin_.lay("a", "work/layer/file", uid=ADA)
    give(top / "work" / "layer", 200_999)
    # a user's container may give the folder itself away, within its ids
    second = bin_.lay("b", "work/own/file", uid=200_000)
    give(second / "work" / "own", ADA)
    others = bin_.lay("c", "work/layer/file", uid=ADA)
    give(others / "work" / "layer", 300_000)
    for path, uid in ((top, ADA), (second, 200_000), (others, ADA)):
        bin_.deleter.add(str(path), uid)
    bin_.empty()
    assert bin_.left() == {f"c@{ADA}.kept"}


@as_root
def test_nobody_adds_to_what_is_deleted(bin_: Bin) -> None:
    """By a handle from before a user would fill a folder as fast as it is emptied."""
    top = bin_.lay("a", "work/x", uid=ADA)
    floods = subprocess.Popen(
        [sys.executable, "-c", FLOODS, str(ADA)], cwd=top / "work", stdout=subprocess.PIPE
    )
    assert floods.stdout is not None
    try:
        assert floods.stdout.readline() == b"floods\n"
        assert floods.poll() is None
        bin_.deleter.add(str(top), ADA)
        bin_.empty()
        assert bin_.left() == set()
        # refused, or there is no folder any more
        assert floods.wait(LONG_S) in {0, 1}
    finally:
        floods.kill()
        floods.wait()
        floods.stdout.close()


@as_root
def test_what_a_crash_has_left_half_deleted_is_known_again(bin_: Bin) -> None:
    top = bin_.lay("a", *(f"work/{number}/file" for number in range(50)), uid=ADA)
    first = TreeDeletion(str(top), lambda uid: uid == ADA)
    assert first.step(30, LONG_S) is DeletionOutcome.MORE
    first.close()
    assert (top / "work").stat().st_uid == 0
    bin_.deleter = bin_.fresh()
    bin_.deleter.add_left(str(bin_.folder))
    bin_.empty()
    assert bin_.left() == set()


@as_root
def test_what_was_set_aside_is_tried_again_by_the_next_agent(bin_: Bin) -> None:
    top = bin_.lay("a", "work/x/file", uid=ADA)
    give(top / "work" / "x", BOB)
    bin_.deleter.add(str(top), ADA)
    bin_.empty()
    assert bin_.left() == {f"a@{ADA}.kept"}
    os.chown(bin_.folder / f"a@{ADA}.kept" / "work" / "x", ADA, ADA)
    bin_.deleter = bin_.fresh()
    bin_.deleter.add_left(str(bin_.folder))
    bin_.empty()
    assert bin_.left() == set()


def test_what_an_agent_without_such_names_has_left_goes(bin_: Bin) -> None:
    for name in ("a.1", "a.1.gone", "b@c"):
        (bin_.folder / name / "work").mkdir(parents=True)
        (bin_.folder / name / "work" / "file").touch()
    (bin_.folder / "file").touch()
    bin_.deleter.add_left(str(bin_.folder))
    bin_.empty()
    assert bin_.left() == set()


@as_root
@pytest.mark.parametrize("users", [(ADA, ADA), (ADA, BOB)], ids=["one user", "two users"])
def test_every_turn_gets_on_however_much_of_others_stays(
    bin_: Bin, users: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleter, "TURN_NAMES", 10)
    other = pwd.getpwnam("nobody").pw_uid
    for name, uid in zip("ab", users, strict=True):
        top = bin_.lay(name, *(f"own{number}" for number in range(20)), uid=uid)
        for number in range(40):
            stays = top / f"stays{number}"
            stays.mkdir(0o777)
            (stays / "x").touch()
            give(stays, other)
        bin_.deleter.add(str(top), uid)
    turns = 0
    while bin_.deleter.turn():
        turns += 1
        assert turns < 100, "turns begin again and again with what stays"
    left = {path.name for path in bin_.folder.rglob("*") if path.name.startswith("own")}
    assert left == set()
    assert len(bin_.kept) == 2


def test_users_take_turns(bin_: Bin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleter, "TURN_NAMES", 20)
    gone: list[str] = []
    for uid, name, count in ((1, "large", 500), (1, "next", 10), (2, "small", 5)):
        owner = uid if os.geteuid() == 0 else -1
        top = bin_.lay(name, *(f"work/{number}" for number in range(count)), uid=owner)
        bin_.deleter.add(str(top), uid, lambda name=name: gone.append(name))  # type: ignore[misc]
    bin_.empty()
    assert gone == ["small", "large", "next"], "one user's are deleted one after the other"
    assert bin_.left() == set()


def test_each_folder_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it again after each subfolder would cost the square of their number."""
    count = 400
    for number in range(count):
        (tmp_path / "top" / str(number) / "deep").mkdir(parents=True)
    read: list[int] = []
    scandir = os.scandir

    def counted(handle: int) -> object:
        read.append(handle)
        return scandir(handle)

    monkeypatch.setattr(os, "scandir", counted)
    assert tree_deletion.delete(str(tmp_path / "top"))
    assert len(read) == 1 + count, "`deep` is empty, and need not be read"


def test_a_turn_ends_after_so_many_names_and_goes_on(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    for number in range(100):
        (top / str(number)).touch()
    deletion = TreeDeletion(str(top), lambda _: True)
    assert deletion.step(40, LONG_S) is DeletionOutcome.MORE
    assert len(list(top.iterdir())) == 60
    deletion.close()
    assert deletion.step(61, LONG_S) is DeletionOutcome.DONE


def test_what_can_not_be_emptied_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the agent is not root, a user's process can go on adding: it is the same user."""
    top = tmp_path / "top"
    (top / "work").mkdir(parents=True)
    rmdir = os.rmdir

    def refill(name: str, dir_fd: int | None = None) -> None:
        (top / "work" / "more").touch()
        rmdir(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refill)
        assert not tree_deletion.delete(str(top))
    assert tree_deletion.delete(str(top))

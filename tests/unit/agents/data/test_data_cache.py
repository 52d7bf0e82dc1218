"""The cache of data on a node: bounded, pinned by tasks, found again, and nobody's way out."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agents.data import copy_worker, data_cache
from agents.data.data_cache import CacheNote, DataCache
from agents.deletion import deleter, tree_deletion
from agents.host import file_tree
from reconciler.model.state.states import EndReason

UID, GID = os.geteuid(), os.getegid()
KIB = 1024
LONG_S = 60.0


def opened(root: Path, limit_bytes: int = 0) -> DataCache:
    """A cache whose discarded entries a thread deletes."""
    due = threading.Event()
    remover = deleter.Deleter(due.set)

    def work() -> None:
        while due.wait():
            due.clear()
            while remover.turn():
                pass

    threading.Thread(target=work, daemon=True).start()
    return DataCache(root, remover, limit_bytes)


def fill(cache: DataCache, key: str, kib: int = 8) -> Path:
    """An entry as a stagehand makes one."""
    entry = Path(cache.home(UID, GID)) / key
    (entry / "data").mkdir(parents=True)
    (entry / "data" / "file").write_bytes(b"x" * kib * KIB)
    return entry


def add(cache: DataCache, attempt: str, key: str, kib: int = 8) -> str:
    """Copy something for an attempt; why there was no room."""
    problem = cache.claim(attempt, (UID, key), kib * KIB, there=False)
    if not problem:
        fill(cache, key, kib)
    cache.settle(attempt, ((UID, key),))
    return problem


def found_again(root: Path, limit_bytes: int = 2**20) -> DataCache:
    """A cache of another agent, that has found what is there."""
    cache = opened(root, limit_bytes)
    assert cache.loaded.wait(LONG_S)
    return cache


def wait_for(said: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG_S
    while not said():
        assert time.monotonic() < until
        time.sleep(0.01)


def nest(folder: Path, depth: int, name: str = "d") -> None:
    """Folders below each other, deeper than any path is long."""
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=handle)
        below = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)


def entries(root: Path) -> set[str]:
    return {path.name for path in (root / "cache" / str(UID)).iterdir()}


def test_what_was_used_longest_ago_goes_first_and_what_is_needed_stays(tmp_path: Path) -> None:
    cache = opened(tmp_path, 24 * KIB)
    for number, attempt in enumerate(("a.1", "a.2", "a.3")):
        assert add(cache, attempt, f"k{number}") == ""
    assert cache.size_bytes == 24 * KIB
    for attempt in ("a.2", "a.3"):
        cache.forget(attempt)
    # k0 is older, but pinned; k1 was used after k2 now
    assert cache.claim("a.4", (UID, "k1"), 8 * KIB, there=True) == ""
    cache.forget("a.4")
    assert add(cache, "a.5", "k3") == ""
    assert entries(tmp_path) == {"k0", "k1", "k3"}
    assert cache.size_bytes == 24 * KIB


def test_what_never_fits_says_so_and_evicts_nobody_who_is_needed(tmp_path: Path) -> None:
    cache = opened(tmp_path, 24 * KIB)
    assert add(cache, "a.1", "k0", 16) == ""
    problem = add(cache, "a.2", "k1", 16)
    assert problem.startswith("no room for copies on the node: 0.01562 MiB are to be copied")
    assert "0.01562 MiB of at most 0.02344 MiB of copies are held by tasks" in problem
    assert "e+" not in problem, "a figure of a large disk is written out"
    assert entries(tmp_path) == {"k0"}
    # what a copy under way was promised counts as well
    cache.forget("a.1")
    assert cache.claim("a.3", (UID, "k2"), 16 * KIB, there=False) == ""
    assert "no room" in cache.claim("a.4", (UID, "k3"), 16 * KIB, there=False)
    cache.settle("a.3")
    assert cache.claim("a.4", (UID, "k3"), 16 * KIB, there=False) == ""


def test_nothing_idle_goes_for_what_could_never_fit(tmp_path: Path) -> None:
    cache = opened(tmp_path, 40 * KIB)
    for number in range(4):
        assert add(cache, f"a.{number}", f"k{number}") == ""
    for number in range(3):
        cache.forget(f"a.{number}")
    problem = cache.claim("b.1", (UID, "big"), 36 * KIB, there=False)
    assert "no room for copies on the node" in problem
    assert "8 MiB" not in problem
    assert "0.007812 MiB of at most 0.03906 MiB of copies are held by tasks" in problem
    # what a copy under way was promised is never freed either
    assert cache.claim("b.2", (UID, "some"), 8 * KIB, there=False) == ""
    assert "no room" in cache.claim("b.3", (UID, "more"), 28 * KIB, there=False)
    assert entries(tmp_path) == {"k0", "k1", "k2", "k3"}
    assert cache.claim("b.3", (UID, "more"), 24 * KIB, there=False) == ""
    assert entries(tmp_path) == {"k3"}


def test_room_is_there_once_what_was_evicted_is_deleted(tmp_path: Path) -> None:
    """Until then the copy waits, for no longer than it may take."""
    remover = deleter.Deleter()  # nothing is deleted yet
    cache = DataCache(tmp_path, remover, 24 * KIB)
    assert cache.loaded.wait(LONG_S)
    assert add(cache, "a.1", "k0", 16) == ""
    cache.forget("a.1")
    asked = iter([False, False, True])
    with pytest.raises(data_cache.RoomUnderWayError, match="were still being deleted"):
        cache.claim("a.2", (UID, "k1"), 16 * KIB, there=False, must_end=asked.__next__)
    assert next(asked, None) is None, "it has waited and asked again"
    assert entries(tmp_path) == set()
    assert cache.size_bytes == 16 * KIB, "what is on the disk counts"
    # what fits beside it needs no wait
    assert cache.claim("a.3", (UID, "k2"), 8 * KIB, there=False) == ""
    cache.settle("a.3")

    def delete() -> bool:
        while remover.turn():
            pass
        return False

    assert cache.claim("a.2", (UID, "k1"), 16 * KIB, there=False, must_end=delete) == ""
    assert cache.size_bytes == 0


def test_a_copy_can_not_make_room_by_what_it_says(tmp_path: Path) -> None:
    cache = opened(tmp_path, 24 * KIB)
    assert "does not say" in cache.claim("a.1", (UID, "k0"), -(2**50), there=False)
    assert "no room" in cache.claim("a.1", (UID, "k1"), 25 * KIB, there=False)


@pytest.mark.parametrize("name", ["deep", f"deep{copy_worker.PART}", f"deep{copy_worker.GONE}"])
def test_what_a_user_has_nested_stops_no_agent(tmp_path: Path, name: str) -> None:
    cache = opened(tmp_path, 2**20)
    add(cache, "a.1", "k0")
    nest(Path(cache.home(UID, GID)) / name, 3_000)
    again = found_again(tmp_path)
    assert again.size_bytes == 8 * KIB
    wait_for(lambda: entries(tmp_path) == {"k0"})


def test_a_start_waits_for_no_count_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened(tmp_path, 2**20)
    for key in ("k0", "k1", "k2"):
        fill(cache, key)
    monkeypatch.setattr(data_cache, "NAMES_MAX", 5)  # of an entry: the folder and its file
    again = found_again(tmp_path)
    assert again.size_bytes == 16 * KIB
    wait_for(lambda: entries(tmp_path) == {"k0", "k1"})
    monkeypatch.setattr(data_cache, "ENTRIES_MAX", 1)
    assert found_again(tmp_path).size_bytes == 8 * KIB
    wait_for(lambda: entries(tmp_path) == {"k0"})


def test_trees_are_deleted_in_bounds_and_without_their_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    top = tmp_path / "top"
    nest(top, 2 * file_tree.DEPTH_MAX + 1)
    nest(top, 3, "e")
    (top / "link").symlink_to(outside)
    (top / "d" / "link").symlink_to(outside)
    for number in range(10):
        (top / "e" / f"file{number}").touch()
    assert file_tree.measure(str(top)).size_bytes is None
    first = tree_deletion.TreeDeletion(str(top), lambda _: True)
    assert first.step(5, LONG_S) is tree_deletion.DeletionOutcome.MORE
    first.close()
    assert top.exists()
    assert tree_deletion.delete(str(top))
    assert not top.exists()
    assert tree_deletion.delete(str(top))
    assert (outside / "precious").exists()


def test_another_agent_finds_what_is_whole_and_removes_the_rest(tmp_path: Path) -> None:
    cache = opened(tmp_path, 2**20)
    add(cache, "a.1", "k0")
    fill(cache, f"k1{copy_worker.PART}")
    fill(cache, f"k2{copy_worker.GONE}")
    kept = CacheNote(pins=((UID, "k0"),), outs={"plan": {}}, done=True, problem="x")
    cache.put("a.2", kept)
    (tmp_path / "staging" / ".a.3").write_text("half")
    (tmp_path / "staging" / "a.4").write_text("{broken")
    again = found_again(tmp_path)
    wait_for(lambda: entries(tmp_path) == {"k0"})
    assert again.size_bytes == cache.size_bytes == 8 * KIB
    assert again.note("a.2") == kept
    again.keep({"a.2"})
    assert {path.name for path in (tmp_path / "staging").iterdir()} == {"a.2"}
    again.forget("a.2")
    assert not list((tmp_path / "staging").iterdir())


@pytest.mark.parametrize("kind", ["entry", "inside"])
def test_links_of_users_lead_nowhere(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x" * 64 * KIB)
    cache = opened(tmp_path, 2**20)
    home = Path(cache.home(UID, GID))
    if kind == "entry":
        (home / "k0").symlink_to(outside)
    else:
        (fill(cache, "k0") / "data" / "more").symlink_to(outside)
    cache = found_again(tmp_path, 12 * KIB)
    assert cache.size_bytes == (0 if kind == "entry" else 8 * KIB)
    assert add(cache, "a.1", "k1", 12) == ""
    wait_for(lambda: entries(tmp_path) == {"k1"})
    assert (outside / "precious").exists()


def test_the_default_limit_is_a_part_of_the_disk(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    expected = int(space.f_blocks * space.f_frsize * data_cache.LIMIT_RATIO)
    assert opened(tmp_path).limit_bytes == expected


def test_what_can_not_be_kept_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened(tmp_path, 2**20)

    def refuse(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="No space"):
            cache.put("a.1", CacheNote())
    assert cache.note("a.1") is None
    assert not list((tmp_path / "staging").iterdir())


def test_how_a_copy_out_has_ended_is_kept_on_a_full_disk(tmp_path: Path) -> None:
    """The next agent would copy again, and tell another end than was told."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        cache = opened(disk, 2**20)
        cache.put("a.1", CacheNote(pins=((UID, "k0"),), outs={"plan": {}}))
        with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as stream:
            while stream.write(bytes(4096)) == 4096:
                pass
        with pytest.raises(OSError, match="No space"):
            cache.put("a.2", CacheNote())
        cache.finish("a.1", "no room", EndReason.STAGE_FAILED)
        found = found_again(disk).note("a.1")
        assert found == cache.note("a.1")
        reason = EndReason.STAGE_FAILED
        assert found == CacheNote(
            ((UID, "k0"),), {"plan": {}}, done=True, problem="no room", reason=reason
        )
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_an_end_of_a_copy_that_is_torn_or_long_costs_nothing_else(tmp_path: Path) -> None:
    note = CacheNote(pins=((UID, "k0"),), outs={"plan": {}})
    cache = opened(tmp_path, 2**20)
    for name in ("torn", "long", "old"):
        cache.put(name, note)
    path = tmp_path / "staging" / "torn"
    cache.finish("torn", "no room", None)
    path.write_bytes(path.read_bytes().replace(b"room", b"    ", 1).replace(b'"}', b"  ", 1))
    cache.finish("long", "\0" * 5000, None)
    (tmp_path / "staging" / "old").write_bytes(msgspec.json.encode(note))
    again = found_again(tmp_path)
    assert again.note("torn") == again.note("old") == note
    cut = again.note("long")
    assert cut is not None
    assert (cut.done, cut.outs, set(cut.problem)) == (True, note.outs, {"\0"})
    again.finish("old", "", None)
    again.finish("new", "", None)
    last = found_again(tmp_path)
    assert last.note("old") == msgspec.structs.replace(note, done=True)
    assert last.note("new") == CacheNote(done=True)


def test_results_of_a_failure_are_copied_only_if_asked(tmp_path: Path) -> None:
    cache = found_again(tmp_path)
    outs = {"plan": {"outs": [{"path": "a"}, {"path": "b", "when": "always"}]}}
    cache.put("a.1", CacheNote(outs=outs))
    assert cache.copied_out("a.1", well=True) == ("a", "b")
    assert cache.copied_out("a.1", well=False) == ("b",)
    assert cache.copied_out("other", well=True) == ()

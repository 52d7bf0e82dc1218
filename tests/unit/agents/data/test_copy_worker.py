"""What a copy never does, whatever its source says."""

import errno
import io
import os
from pathlib import Path

import pytest

from agents.data import copy_worker
from agents.deletion import tree_deletion
from agents.host import file_tree


def test_what_grows_while_it_is_copied_is_not_written_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    chunks = iter([b"x" * 600, b"x" * 400, b"x" * 2**20, b"x" * 2**20])
    with pytest.raises(copy_worker.StageError, match="was changed while it was copied"):
        copy_worker._write(
            str(path), chunks, 1000, hashing=False, progress=copy_worker.CopyProgress()
        )
    assert path.stat().st_size == 1000
    assert next(chunks)  # the rest was not asked for


@pytest.mark.parametrize(
    ("number", "is_of_node", "told"),
    [
        (errno.ENOSPC, True, "the node's cache: no space is left on the disk"),
        (errno.EROFS, True, "the node's cache: Read-only file system"),
        (
            errno.EDQUOT,
            False,
            "the node's cache: the disk quota of the job's user is used up there",
        ),
    ],
)
def test_the_quota_of_a_person_is_no_fault_of_the_node(
    number: int, told: str, *, is_of_node: bool
) -> None:
    refusal = copy_worker.refused_by_cache(OSError(number, os.strerror(number)))
    assert refusal.lacks_room is is_of_node
    assert str(refusal).startswith(told)


def test_no_path_leads_up(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    handle = os.open(tmp_path / "a", copy_worker.FOLDER)
    try:
        with pytest.raises(copy_worker.StageError, match="leads elsewhere"):
            copy_worker.descend(handle, "../a")
    finally:
        os.close(handle)


def test_what_grows_is_sent_no_further_than_shows_it(tmp_path: Path) -> None:
    stream = copy_worker.AtMost(io.BytesIO(b"x" * 100), 10)
    with pytest.raises(copy_worker.StageError, match="was changed"):
        copy_worker.CopyFolder(str(tmp_path)).write("file", stream, 10)
    assert stream.read(100) == b""
    assert not list(tmp_path.iterdir())


def nested(top: Path, depth: int) -> Path:
    """A file in so many folders below each other; deeper than any path is long."""
    top.mkdir(parents=True, exist_ok=True)
    handle = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)
    return top


@pytest.mark.parametrize("depth", [copy_worker.DEPTH_MAX + 1, 3_000])
def test_what_is_too_deep_is_refused_and_says_what_to_do(tmp_path: Path, depth: int) -> None:
    source = copy_worker.CopyFolder(str(nested(tmp_path / "deep", depth)))
    with pytest.raises(
        copy_worker.StageError, match="more than 64 folders below each other: put it"
    ):
        source.list("", 10)
    assert tree_deletion.delete(str(tmp_path / "deep"))


class Said(io.StringIO):
    """An agent that lets every copy go on."""

    def readline(self, _: int | None = -1) -> str:  # type: ignore[override]
        return "go\n"


def test_what_is_as_deep_as_it_may_be_is_copied_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = nested(tmp_path / "deep", copy_worker.DEPTH_MAX)
    cache = tmp_path / "cache"
    cache.mkdir()
    item = {
        "name": "in", "path": "", "sha256": "", "checksums": "", "keys": ["", ""],
        "store": {"folder": str(folder)},
    }  # fmt: skip
    monkeypatch.setattr("sys.stdin", Said())
    found = copy_worker.fetch({"items": [item], "cache": str(cache)}, copy_worker.CopyProgress())
    key, data = found["in"]
    assert (cache / key / data / ("d/" * copy_worker.DEPTH_MAX) / "file").exists()
    assert file_tree.measure(str(cache / key)).size_bytes is not None


def test_a_bucket_that_is_too_deep_is_refused_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deep:
        def list(self, _path: str, _most: int) -> tuple[bool, copy_worker.Listing]:
            return False, [("d/" * (copy_worker.DEPTH_MAX + 1) + "file", 0, "tag")]

    monkeypatch.setattr(copy_worker, "store_of", lambda _: Deep())
    item = {"name": "in", "path": "sets", "sha256": ""}
    with pytest.raises(copy_worker.StageError, match="sets has more than 64 folders"):
        copy_worker.fetch({"items": [item], "cache": str(tmp_path)}, copy_worker.CopyProgress())


def test_what_an_earlier_copy_has_left_goes_however_deep(tmp_path: Path) -> None:
    entry = tmp_path / "key"
    nested(entry, 3_000)
    nested(tmp_path / f"key{copy_worker.PART}", 3_000)
    source = copy_worker.CopyFolder(str(nested(tmp_path / "from", 0)))
    item = {"path": "", "sha256": "", "checksums": ""}
    listing = source.list("", 10)[1]
    copy_worker.copy_in(
        source, item, listing, str(entry), single=False, progress=copy_worker.CopyProgress()
    )  # fmt: skip
    assert copy_worker.is_whole(str(entry))
    assert sorted(path.name for path in entry.iterdir()) == ["data", "manifest.json"]

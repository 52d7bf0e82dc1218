"""The writer knows what stands where, and large files are read beside the server."""

import contextlib
from collections.abc import Iterable

import pytest

from reconciler.changes.writer import object_index, object_names
from reconciler.desired.documents import document_reader
from reconciler.desired.git import source
from tests.unit.desired.repositories import Repository, documents, job, queue

LARGE = documents(*(job(f"n{number}") for number in range(800)))


def test_large_files_are_not_parsed_in_this_process(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = document_reader.read
    parsed: list[int] = []

    def counting(data: bytes) -> document_reader.File:
        parsed.append(len(data))
        return read(data)

    monkeypatch.setattr(document_reader, "read", counting)
    head = repository.commit({"large.yaml": LARGE, "q.yaml": queue("q"), "no.yaml": "a: [\n"})
    with contextlib.closing(source.GitSource(str(repository.path))) as opened:
        index = object_index.Index(opened)
        index.advance(head)
        assert index.paths_of("Job", "n799") == ("large.yaml",)
        assert index.paths_of("Queue", "q") == ("q.yaml",)
        assert index.unreadable() == ["no.yaml"]
        assert parsed == [len("a: [\n"), len(queue("q"))]
        parsed.clear()
        index.advance(repository.commit({"large.yaml": None, "b.yaml": job("b")}))
        assert index.paths_of("Job", "n799") == ()
        assert parsed == [len(job("b"))]


def test_a_file_that_is_too_large_for_anybody_is_not_even_loaded(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = repository.commit({"huge.yaml": "# " + "x" * (5 * 2**20), "b.yaml": job("b")})
    with contextlib.closing(source.GitSource(str(repository.path))) as opened:
        index = object_index.Index(opened)
        loaded: list[str] = []
        blobs = opened.blobs

        def counting(ids: Iterable[str]) -> list[bytes]:
            wanted = list(ids)
            loaded.extend(wanted)
            return blobs(wanted)

        monkeypatch.setattr(opened, "blobs", counting)
        index.advance(head)
        assert len(loaded) == 1
        assert index.unreadable() == ["huge.yaml"]
        assert index.has_file("huge.yaml")


def test_what_a_child_cannot_read_in_its_limits_is_unreadable_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(object_names, "READ_S_MAX", 0.0)
    large, small = object_names.of([LARGE.encode(), job("b").encode()])
    assert (large.readable, small.names) == (False, (("Job", "b"),))
    assert "split it" in caplog.text


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], []),
        ([1, 1], [(0, 2)]),
        ([object_names.TOGETHER_BYTES_MAX, 1, 1], [(0, 1), (1, 3)]),
        ([0, 2 * object_names.TOGETHER_BYTES_MAX, 1], [(0, 2), (2, 3)]),
    ],
)
def test_files_are_read_in_parts(sizes: list[int], parts: list[tuple[int, int]]) -> None:
    assert [(one.start, one.stop) for one in object_names.portions(sizes)] == parts

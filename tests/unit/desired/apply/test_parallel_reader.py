"""Files that are read in several processes hold what they hold when read in one."""

import os
from collections.abc import Sequence

import pytest

from reconciler.desired.apply import applied, file_index, last_good, parallel_reader
from reconciler.desired.documents import document_reader, yaml_reader
from reconciler.desired.git import forked_worker
from tests.unit.desired.repositories import documents, job, queue

FILES = [
    job("a").encode(),
    documents(job("b", timeLimit="1h"), queue("q", limit={"gpu": 2}), job("c")).encode(),
    b"",
    b"# nothing\n",
    b"a: [b\n",
    b"apiVersion: muster/v1\nkind: Jab\nmetadata: {name: d}\n",
    documents(job("e"), job("f", retries=3)).encode(),
    job("g", priority=2**70).encode(),
    job("h", resources="{cpu: 0.5, gpu: 2}", workingDirectory='"\\u00e9"').encode(),
    *(job(f"j{number}", environment={"A": str(number)}).encode() for number in range(20)),
]


@pytest.fixture(params=[1, 2, 3])
def processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Between how many the work is parted, however little it is."""
    count: int = request.param
    monkeypatch.setattr(parallel_reader, "BYTES_MIN", 1)
    monkeypatch.setattr(forked_worker, "processors", lambda: count)
    return count


def here(files: Sequence[bytes] = FILES) -> list[object]:
    return shown([document_reader.read(data) for data in files])


def shown(files: list[document_reader.File]) -> list[object]:
    """Errors are compared by what they say."""
    return [(file.documents, str(file.error)) for file in files]


@pytest.mark.parametrize("files", [FILES, FILES[::-1], FILES[:1], FILES[2:3], []])
def test_several_processes_read_what_one_does(files: list[bytes], processes: int) -> None:
    assert shown(parallel_reader.files(files)) == here(files)
    assert processes


def test_the_shares_are_about_as_large_as_each_other() -> None:
    shares = list(parallel_reader._shares(FILES, -(-sum(map(len, FILES)) // 3)))
    assert [data for share in shares for data in share] == FILES
    assert len(shares) == 3
    sizes = [sum(map(len, share)) for share in shares]
    assert max(sizes) < 2 * min(sizes)


def test_a_child_that_fails_is_made_up_for(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()

    def fails(_: bytes) -> None:
        assert os.getpid() == parent, "the child has a defect"

    monkeypatch.setattr(parallel_reader, "_sound", fails)
    assert shown(parallel_reader.files(FILES)) == here()
    assert processes


def test_without_a_process_left_all_is_read_here(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refused)
    assert shown(parallel_reader.files(FILES)) == here()
    assert processes


def test_who_is_interrupted_leaves_no_child(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[int] = []
    fork = os.fork

    def counted() -> int:
        children.append(fork())
        return children[-1]

    def interrupted(_: bytes) -> document_reader.File:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fork", counted)
    monkeypatch.setattr(document_reader, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        parallel_reader.files(FILES)
    assert len(children) == processes - 1
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def test_a_blob_that_is_known_is_not_read_again() -> None:
    changes = [
        file_index.FileChange("a.yaml", "1", FILES[0]),
        file_index.FileChange("b.yaml", "2", None),
        file_index.FileChange("c.yaml", "3", b"not this"),
        file_index.FileChange("d.yaml", "1", FILES[0]),
    ]
    read: dict[str, document_reader.File] = {"3": document_reader.read(FILES[1])}
    found = parallel_reader.changed(changes, read)
    assert [change for change, _ in found] == changes
    first, second = document_reader.read(FILES[0]), document_reader.read(FILES[1])
    assert [file for _, file in found] == [first, document_reader.File(), second, first]
    assert read == {"1": first, "3": second}
    assert parallel_reader.changed(changes[:1], read)[0][1] is read["1"]


@pytest.mark.parametrize("count", [1, 2])
def test_faulty_files_are_parsed_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, or in a child, and not again for the places of their faults."""
    monkeypatch.setattr(parallel_reader, "BYTES_MIN", 1)
    monkeypatch.setattr(forked_worker, "processors", lambda: count)
    parsed: list[bytes] = []
    nodes = yaml_reader._nodes

    def counted(data: bytes) -> list[object]:
        parsed.append(data)
        return nodes(data)

    monkeypatch.setattr(yaml_reader, "_nodes", counted)
    wrong = [
        documents(*(job(f"j{file}-{number}", nonsense=1) for number in range(80))).encode()
        for file in range(4)
    ]
    told = applied.Applied(last_good.LastGood(), lambda blob: wrong[int(blob)])
    changes = [
        file_index.FileChange(f"{number}.yaml", str(number), data)
        for number, data in enumerate(wrong)
    ]
    told.apply("1", changes, {})
    assert len(parsed) == len(wrong) // count
    listed = [one for one in told.problems() if one.path == "3.yaml"]
    assert len(listed) == document_reader.LISTED_MAX + 1
    assert [(one.line, one.column) for one in listed[:2]] == [(6, 3), (13, 3)]
    assert "and 30 more faults in 30 documents" in listed[-1].message
    assert len(told.refused) == 320


def test_faults_of_many_files_do_not_read_the_files_again() -> None:
    """One file was kept, and names go from file to file: each fault read its whole file."""
    wrong = [
        documents(*(job(f"j{file}-{number}", nonsense=1) for number in range(80))).encode()
        for file in range(20)
    ]
    asked: list[str] = []

    def read_blob(blob: str) -> bytes:
        asked.append(blob)
        return wrong[int(blob)]

    told = applied.Applied(last_good.LastGood(), read_blob)
    changes = [
        file_index.FileChange(f"{number}.yaml", str(number), data)
        for number, data in enumerate(wrong)
    ]
    told.apply("1", changes, {})
    assert len(told.refused) == 20 * 80
    assert len(asked) <= len(wrong)

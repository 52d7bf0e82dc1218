"""Many edits of one file: each does what it would alone, and reads what it touches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.changes import yaml_edit
from reconciler.changes.requests import EditObject, Person, RemoveObject, Request, RequestGroup
from reconciler.changes.writer import batch, changed_files, object_index
from reconciler.desired.documents import object_changes, yaml_reader
from reconciler.desired.git import source
from tests.unit.desired.repositories import Repository, documents, job, queue

ANN = Person("Ann", "ann@example.org")
RUN = (("spec", "run"), 2)
COUNT = 24
NAMES = [f"j{number}" for number in range(COUNT)]

#: What may stand before a document, and in it beside its job.
HEADS = st.sampled_from(["---\n", "--- # of the night\n", "---\n# a comment\n", "---\n\n"])
BLOCKS = st.sampled_from(["", "  script: |\n    # no comment\n    ---x\n    echo\n", "# end\n"])
EMPTY = st.sampled_from(["", "---\n", "---\n# nothing here\n"])


@st.composite
def files(draw: st.DrawFn) -> str:
    """A file of three jobs of various looks."""
    text = draw(st.sampled_from(["", "# all jobs\n", "---\n"]))
    for number, name in enumerate("abc"):
        text += (draw(HEADS) if number else "") + job(name) + draw(BLOCKS) + draw(EMPTY)
    return draw(st.sampled_from(["", "\ufeff"])) + text.replace(
        "\n", draw(st.sampled_from(["\n", "\r\n"]))
    )


@given(files(), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=6))
def test_edits_one_after_another_are_as_from_a_fresh_look(
    text: str, steps: list[tuple[str, bool]]
) -> None:
    sheet: yaml_edit.Sheet | None = yaml_edit.Sheet.read(text)
    for name, removes in steps:
        if sheet is None:
            break
        wanted = yaml_edit.documents(sheet.text)
        (before,) = [one for one in wanted if one["metadata"]["name"] == name] or [None]
        if before is None:
            with pytest.raises(yaml_edit.EditError):
                sheet.without("Job", name)
            continue
        if removes:
            wanted.remove(before)
            sheet = sheet.without("Job", name)
        else:
            wanted[wanted.index(before)] = yaml_edit.changed(before, *RUN)
            sheet = sheet.having("Job", name, [RUN])
        if sheet is None:
            assert not wanted
        else:
            assert yaml_edit.documents(sheet.text) == wanted
            assert [one for each in sheet.values for one in each] == wanted


class Reader:
    """Counts how many bytes of YAML are read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.read_bytes = 0
        read = yaml_reader.read

        def counted(data: bytes) -> Any:
            self.read_bytes += len(data)
            return read(data)

        patch.setattr(yaml_reader, "read", counted)


@pytest.fixture
def known(repository: Repository) -> Iterator[object_index.Index]:
    text = documents(*map(job, NAMES))
    head = repository.commit({"jobs/all.yaml": text, "queues.yaml": queue("default")})
    opened = source.GitSource(str(repository.path))
    found = object_index.Index(opened)
    found.advance(head)
    yield found
    opened.close()


def may(found: object_changes.Documents) -> str:
    return "" if [one.kind for one in found] == ["Job"] else f"{len(found)} documents"


def removed(name: str) -> Request:
    return RemoveObject("Job", name, ANN, permit=may)


def held(name: str) -> Request:
    return EditObject("Job", name, ((("spec", "suspend"), True),), ANN, permit=may)


@pytest.mark.parametrize("make", [removed, held])
def test_what_one_request_leaves_of_a_file_is_not_read_again_for_the_next(
    known: object_index.Index, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(known.read("jobs/all.yaml"))
    reader = Reader(monkeypatch)
    judged = batch.Batch(known, "")
    judged.judge(RequestGroup(tuple(map(make, NAMES))))
    assert {one.status for one in judged.results} == {"accepted"}
    assert len(judged.steps) == COUNT
    # Once as a whole and once in parts; then each document with its neighbours, and alone.
    assert reader.read_bytes < 12 * size


@pytest.mark.parametrize("ask", [removed, held])
def test_a_file_that_is_too_large_to_be_edited_is_left_and_not_parsed(
    known: object_index.Index, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], Request]
) -> None:
    monkeypatch.setattr(changed_files, "FILE_BYTES_MAX", 40)
    monkeypatch.setattr(yaml_edit.Sheet, "read", None)
    judged = batch.Batch(known, "")
    judged.judge(ask(NAMES[0]))
    (result,) = judged.results
    assert result.status == "conflict"
    assert "only files of at most 40 bytes are changed from here. To fix: commit" in result.message
    assert not judged.steps


def statuses(known: object_index.Index, asked: Sequence[Request | RequestGroup]) -> list[str]:
    judged = batch.Batch(known, "")
    for one in asked:
        judged.judge(one)
    return [one.status for one in judged.results]


def test_what_was_withdrawn_is_in_the_file_again(known: object_index.Index) -> None:
    both = RequestGroup((removed("j1"), removed("nobody")))
    told = statuses(known, [both, removed("j1"), removed("j1"), held("j2")])
    assert told == ["withdrawn", "missing", "accepted", "missing", "accepted"]


def test_a_field_that_is_wrong_is_told_with_its_place(known: object_index.Index) -> None:
    judged = batch.Batch(known, "")
    judged.judge(removed("j0"))
    judged.judge(EditObject("Job", "j3", ((("spec", "priority"), "high"),), ANN))
    assert [one.status for one in judged.results] == ["accepted", "refused"]
    lines = (judged.files["jobs/all.yaml"] or b"").decode().split("\n")
    (begins,) = [number for number, line in enumerate(lines) if "name: j3" in line]
    assert int(judged.results[1].message.split(":")[1]) in range(begins, begins + 6)

"""Limits of what is read: nothing of a file is parsed, and little explained, beyond them."""

import pytest

from reconciler.desired.documents import document_reader, schema_errors, yaml_reader

JOB = "apiVersion: muster/v1\nkind: Job\nmetadata: {{name: j{0}}}\nspec: {{{1}: [id]}}\n"


def jobs(count: int, field: str = "command", mark: str = "---\n") -> bytes:
    return mark.join(JOB.format(number, field) for number in range(count)).encode()


@pytest.mark.parametrize("mark", ["---\n", "---\r\n", "...\n---\n", "--- # next\n"])
def test_a_file_of_too_many_documents_is_refused_before_it_is_parsed(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = jobs(yaml_reader.FILE_DOCUMENTS_MAX + 1, mark=mark)
    monkeypatch.setattr(yaml_reader, "_Parser", None)
    monkeypatch.setattr("yaml._yaml.CParser", None)
    file = document_reader.read(data)
    assert file.error is not None
    assert file.error.rule == "yaml-too-large"
    assert "more than 5000 documents. To fix: split it" in str(file.error)


def test_a_file_of_just_as_many_is_read() -> None:
    file = document_reader.read(jobs(yaml_reader.FILE_DOCUMENTS_MAX))
    assert file.count == yaml_reader.FILE_DOCUMENTS_MAX
    assert not any(one.faults for one in file.documents)


def test_dashes_within_lines_begin_no_document() -> None:
    script = "a: |\n  ---\n  x\nb: ---x\nc: '--- y'\n# ---\n----\n"
    assert yaml_reader.count_documents(script.encode()) == 1
    assert yaml_reader.count_documents(b"") == 0


def test_fifty_wrong_documents_are_explained_and_the_rest_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explained: list[object] = []
    real = schema_errors.faults

    def counting(kind: str, value: object, refusal: str) -> list[object]:
        explained.append(value)
        return list(real(kind, value, refusal))

    monkeypatch.setattr(schema_errors, "faults", counting)
    data = jobs(1_000, "comand")
    file = document_reader.read(data)
    assert all(one.faults for one in file.documents)
    assert len(explained) == document_reader.EXPLAINED_MAX
    told = document_reader.problems("jobs.yaml", data, file)
    assert len(told) == document_reader.LISTED_MAX + 1
    assert "did you mean `command`?" in told[0].message
    assert told[-1].rule == document_reader.MORE_FAULTS
    assert told[-1].message.startswith("and 950 more faults in 950 documents of this file")
    assert all(one.severity == "error" for one in told)


def test_sound_documents_behind_wrong_ones_are_read() -> None:
    file = document_reader.read(jobs(100, "comand") + b"---\n" + jobs(3))
    assert [bool(one.faults) for one in file.documents] == [True] * 100 + [False] * 3

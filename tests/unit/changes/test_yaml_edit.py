"""Edits change what they say and keep the rest to the letter."""

import pytest

from reconciler.changes import yaml_edit
from reconciler.changes.yaml_edit import REMOVED
from reconciler.desired.documents.yaml_reader import Path

FILE = """\
# yaml-language-server: $schema=../schemas/job.json
apiVersion: muster/v1
kind: Job
metadata:
    name: train   # the first
    labels: {team: vision, "odd": 'quoted'}
spec:
    priority: 50      # raise before the paper deadline
    command:
      - python3
      - train.py  # entry point
    # what follows is rarely changed
    deadline: 2027-01-31T06:00:00Z
    retries:
        limit: 3
---
# the second
apiVersion:   muster/v1
kind: Job
metadata: {name: other}
spec:
  script: |
    #!/bin/sh
    echo  hello   # not a comment
  environment: {A: "1"}
"""


def lines_changed(before: str, after: str) -> tuple[list[str], list[str]]:
    old, new = before.splitlines(), after.splitlines()
    return [x for x in old if x not in new], [x for x in new if x not in old]


CASES: list[tuple[str, Path, object, list[str], list[str]]] = [
    (
        "train",
        ("spec", "priority"),
        80,
        ["    priority: 50      # raise before the paper deadline"],
        ["    priority: 80      # raise before the paper deadline"],
    ),
    ("train", ("spec", "suspend"), True, [], ["    suspend: true"]),
    (
        "train",
        ("spec", "checkpoint", "path"),
        "a b",
        [],
        ['    checkpoint: {path: "a b"}'],
    ),
    ("train", ("spec", "retries", "limit"), 5, ["        limit: 3"], ["        limit: 5"]),
    ("train", ("spec", "retries"), REMOVED, ["    retries:", "        limit: 3"], []),
    ("train", ("spec", "command", 2), "--fast", [], ["      - --fast"]),
    (
        "train",
        ("metadata", "labels", "team"),
        "on",
        ["    labels: {team: vision, \"odd\": 'quoted'}"],
        ["    labels: {team: on, \"odd\": 'quoted'}"],
    ),
    (
        "other",
        ("metadata", "name"),
        "1",
        ["metadata: {name: other}"],
        ['metadata: {name: "1"}'],
    ),
    (
        "other",
        ("spec", "environment", "B"),
        "x: y",
        ['  environment: {A: "1"}'],
        ['  environment: {A: "1", B: "x: y"}'],
    ),
    ("other", ("spec", "nothing"), REMOVED, [], []),
]


@pytest.mark.parametrize(("name", "path", "value", "gone", "came"), CASES)
def test_set_fields(name: str, path: Path, value: object, gone: list[str], came: list[str]) -> None:
    after = yaml_edit.set_fields(FILE, "Job", name, [(path, value)])
    assert lines_changed(FILE, after) == (gone, came)


def test_several_fields_at_once() -> None:
    after = yaml_edit.set_fields(
        FILE, "Job", "train", [(("spec", "run"), 2), (("spec", "suspend"), False)]
    )
    assert yaml_edit.documents(after)[0]["spec"]["run"] == 2
    assert yaml_edit.documents(after)[0]["spec"]["suspend"] is False
    assert yaml_edit.documents(after)[1] == yaml_edit.documents(FILE)[1]


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("Job", "nobody", ("spec", "run")),
        ("Queue", "train", ("spec", "run")),
        ("Job", "train", ("spec", "priority", "x")),
        ("Job", "train", ("spec", "command", 9)),
        ("Job", "train", ()),
    ],
)
def test_refused(kind: str, name: str, path: Path) -> None:
    with pytest.raises(yaml_edit.EditError):
        yaml_edit.set_fields(FILE, kind, name, [(path, 1)])


def test_remove_document() -> None:
    without = yaml_edit.remove_document(FILE, "Job", "train")
    assert without is not None
    assert without == FILE.split("---\n")[1]
    without = yaml_edit.remove_document(FILE, "Job", "other")
    assert without == FILE.split("---\n", maxsplit=1)[0]
    assert yaml_edit.remove_document(without, "Job", "train") is None
    with pytest.raises(yaml_edit.EditError):
        yaml_edit.remove_document(FILE, "Job", "nobody")


def test_append_document() -> None:
    after = yaml_edit.append_document(FILE, "a: b")
    assert after == FILE + "---\na: b\n"
    assert yaml_edit.append_document("", "a: b\n") == "a: b\n"
    assert yaml_edit.append_document("a: b", "---\nc: d\n") == "a: b\n---\nc: d\n"


@pytest.mark.parametrize("text", ["a: [", "%YAML 1.2\n---\nkind: Job\n", "a: 1\na: 2\n"])
def test_strange_files(text: str) -> None:
    with pytest.raises(yaml_edit.EditError):
        yaml_edit.set_fields(text, "Job", "x", [(("spec",), 1)])

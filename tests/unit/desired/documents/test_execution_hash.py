"""A run is what it executes: the hash follows that, and nothing else."""

from typing import Any

import pytest

from reconciler.desired.documents import document_reader

FOLDER = {"path": "/home/ada", "device": 1, "inode": 2, "bootId": "a", "marker": "m"}
BASE: dict[str, Any] = {"command": ["true"], "submitted": {"folder": FOLDER, "python": FOLDER}}


def moved(part: str, **fields: object) -> dict[str, Any]:
    place = BASE["submitted"]
    return {**BASE, "submitted": {**place, part: {**place[part], **fields}}}


@pytest.mark.parametrize("part", ["folder", "python"])
def test_a_submission_after_another_boot_is_the_same_work(part: str) -> None:
    """Its checkpoints are those of the run before."""
    before = document_reader.execution_hash(BASE)
    again = moved(part, device=7, inode=8, bootId="b", marker="n", markerSha256="0" * 64)
    assert document_reader.execution_hash(again) == before
    assert document_reader.execution_hash(moved(part, path="/home/bob")) != before


@pytest.mark.parametrize("field", ["modules", "arguments"])
def test_what_the_command_gets_is_part_of_the_work(field: str) -> None:
    changed = document_reader.execution_hash({**BASE, field: ["x"]})
    assert changed != document_reader.execution_hash(BASE)


@pytest.mark.parametrize("place", ["text", [1], {"folder": "text"}, {"folder": None}, {}])
def test_documents_with_faults_have_a_hash_too(place: object) -> None:
    assert document_reader.execution_hash({**BASE, "submitted": place})

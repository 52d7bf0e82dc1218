"""Edits of documents that concern some elements of an array."""

from typing import Any

import pytest
import yaml

from reconciler.changes import array_edits, requests, yaml_edit
from reconciler.desired.documents import document_reader
from reconciler.operations.changes import pusher, rerun_edit, suspension

TEXT = """apiVersion: muster/v1
kind: Job
metadata: {name: a}
spec:
  array: ARRAY
  command: ['true']  # as it was
"""


def edited(array: str, *fields: requests.Fields) -> Any:
    """The array of a document after edits, and the text is otherwise as it was."""
    text = TEXT.replace("ARRAY", array)
    for one in fields:
        text = yaml_edit.set_fields(text, "Job", "a", one)
        assert "# as it was" in text
    return yaml.safe_load(text)["spec"]


def document(array: str) -> Any:
    return yaml.safe_load(TEXT.replace("ARRAY", array))


def test_elements_are_cancelled_and_held_and_released() -> None:
    array = "{count: 9}"
    cancelled = array_edits.cancelling(document(array), "3")
    assert edited(array, cancelled)["array"] == {"count": 9, "cancelled": "3"}
    array = '{count: 9, cancelled: "3", held: "1-4"}'
    assert array_edits.cancelling(document(array), "3") == ()
    more = array_edits.cancelling(document(array), "4-8")
    assert edited(array, more)["array"]["cancelled"] == "3-8"
    assert edited(array, array_edits.holding(document(array), "7"))["array"]["held"] == "1-4,7"
    assert edited(array, array_edits.releasing(document(array), "2"))["array"]["held"] == "1,3,4"
    whole = edited(array, array_edits.releasing(document(array), "0-8"))
    assert whole["array"] == {"count": 9, "cancelled": "3"}
    assert edited(array, suspension.release_fields(document(array)))["array"] == whole["array"]


def test_elements_that_run_again_are_those_of_the_next_run() -> None:
    array = '{count: 9, cancelled: "3,5"}'
    some = edited(array, rerun_edit.Rerun(fresh=True, elements="3")(document(array)))
    assert some["run"] == 2
    assert some["array"] == {"count": 9, "only": "3", "cancelled": "5"}
    array = '{indexes: "1-9:2", only: "3", cancelled: "5"}'
    whole = edited(array, rerun_edit.Rerun(fresh=True)(document(array)))
    assert whole["array"] == {"indexes": "1-9:2"}


@pytest.mark.parametrize(
    ("array", "elements", "told"),
    [
        ("{count: 9}", "9", "Job/a has no element 9; it has 0-8"),
        ('{indexes: "1-9:2"}', "2,3,4", "Job/a has no element 2,4; it has 1-9:2"),
        ("null", "0", "Job/a is not an array"),
        ("{count: 9}", "x", "expected indexes such as"),
        ("{indexes: x}", "0", "spec.array.indexes of Job/a: found 'x'"),
    ],
)
def test_elements_that_are_not_there_are_refused(array: str, elements: str, told: str) -> None:
    for edit in (*array_edits.EDITS.values(), array_edits.rerunning):
        with pytest.raises(requests.ConflictError) as refused:
            edit(document(array), elements)
        assert told in str(refused.value)


def test_an_element_of_a_held_job_is_not_released_alone() -> None:
    held = document("{count: 9}")
    held["spec"]["suspend"] = True
    with pytest.raises(requests.ConflictError) as refused:
        array_edits.releasing(held, "3")
    assert "muster release a" in str(refused.value)


def test_elements_of_an_alive_run_do_not_run_again() -> None:
    pusher.require_elements_over("a", None)
    pusher.require_elements_over("a", pusher.LastRun(1, "Failed"))
    with pytest.raises(requests.ConflictError) as refused:
        pusher.require_elements_over("a", pusher.LastRun(1))
    assert "run 1 of Job/a has not ended" in str(refused.value)


def test_what_stops_elements_does_not_make_another_run_and_what_chooses_them_does() -> None:
    hashes = {
        document_reader.execution_hash({"command": ["x"], "array": array})
        for array in (
            {"count": 9},
            {"count": 9, "held": "3"},
            {"count": 9, "held": "3", "cancelled": "4"},
        )
    }
    assert len(hashes) == 1
    only = {"command": ["x"], "array": {"count": 9, "only": "3"}}
    assert document_reader.execution_hash(only) not in hashes

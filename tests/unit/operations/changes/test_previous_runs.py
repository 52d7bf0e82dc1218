"""What is said of a job whose last run has left checkpoints that it does not go on from."""

from typing import Any

import pytest

from reconciler.desired.documents import document_reader, yaml_writer
from reconciler.operations.changes import change_requests, previous_runs

SPEC: dict[str, Any] = {"owner": "ada", "command": ["a"], "checkpoint": {}}


def last(spec: dict[str, Any], folder: str = "checkpoints/j/1-0") -> previous_runs.PreviousRun:
    key = f"j.{spec.get('run', 1)}.{document_reader.execution_hash(spec)}"
    return previous_runs.PreviousRun(1, "2026-01-01", "Failed", "ada", key, folder)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, ""),
        ({"command": ["b"]}, "because what it executes has changed"),
        ({"run": 2}, "because it is another run"),
        ({"owner": "bob", "command": ["b"]}, ""),
        ({"command": ["b"], "resumeFrom": "j.1.0123456789abcdef"}, ""),
        ({"command": ["b"], "checkpoint": {"path": "c"}}, ""),
        ({"command": ["b"], "checkpoint": None}, ""),
    ],
)
def test_what_is_left_behind(spec: dict[str, Any], told: str) -> None:
    document = {"apiVersion": "muster/v1", "kind": "Job", "metadata": {"name": "j"}}
    text = yaml_writer.yaml_text({**document, "spec": SPEC | spec})
    before = last(SPEC)
    found = previous_runs.left_checkpoints([change_requests.Submit(text)], {"j": before})
    assert told in found.get("j", "")
    assert bool(found) is bool(told)
    if told:
        assert found["j"].endswith(f"To go on from them instead: spec.resumeFrom: {before.key}")
    for other in (last(SPEC, ""), previous_runs.PreviousRun(1, "", "Failed", "ada")):
        submitted = [change_requests.Submit(text)]
        assert previous_runs.left_checkpoints(submitted, {"j": other}) == {}

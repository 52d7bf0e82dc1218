"""What is written into the document of a job that runs again."""

from typing import Any

import pytest

from reconciler.changes import requests, yaml_edit
from reconciler.desired.documents import document_reader
from reconciler.operations.changes import rerun_edit

CHECKPOINTS = {"command": ["a"], "checkpoint": {}}
KEY = f"j.1.{document_reader.execution_hash(CHECKPOINTS)}"
OLD = "j.1.0123456789abcdef"
RUN, RESUMES = ("spec", "run"), ("spec", "resumeFrom")


def document(spec: Any) -> dict[str, Any]:
    return {"kind": "Job", "metadata": {"name": "j"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "fresh", "fields", "says"),
    [
        ({"command": ["a"]}, False, {RUN: 2}, ""),
        ({"command": ["a"]}, True, {RUN: 2}, ""),
        (CHECKPOINTS, False, {RUN: 2, RESUMES: KEY}, "from the checkpoints of run 1"),
        (CHECKPOINTS, True, {RUN: 2}, "without earlier checkpoints"),
        (
            {**CHECKPOINTS, "run": 4, "resumeFrom": OLD},
            False,
            {RUN: 5, RESUMES: OLD},
            "from the checkpoints of run 1",
        ),
        (
            {**CHECKPOINTS, "resumeFrom": "base.3.0123456789abcdef"},
            False,
            {RUN: 2, RESUMES: "base.3.0123456789abcdef"},
            "from the checkpoints of run 3 of base",
        ),
        (
            {**CHECKPOINTS, "run": 4, "resumeFrom": OLD},
            True,
            {RUN: 5, RESUMES: yaml_edit.REMOVED},
            "without earlier checkpoints",
        ),
        ({"command": ["a"], "checkpoint": {"path": "c"}}, False, {RUN: 2}, ""),
        ({"command": ["a"], "checkpoint": [1]}, False, {RUN: 2}, ""),
    ],
)
def test_fields(spec: Any, fields: dict[Any, Any], says: str, *, fresh: bool) -> None:
    edit = rerun_edit.Rerun(fresh=fresh)
    assert dict(edit(document(spec))) == fields
    assert edit.says.partition(" (")[0] == says


@pytest.mark.parametrize("spec", ["text", {"run": "two"}, {"run": True}])
def test_what_is_no_job_is_refused(spec: Any) -> None:
    with pytest.raises(requests.ConflictError, match="mend the document first"):
        rerun_edit.Rerun(fresh=False)(document(spec))

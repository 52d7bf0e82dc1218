"""What a job runs is not quoted to everybody; all else that was found is."""

import pytest

from reconciler.desired.apply import validate
from reconciler.model.rules import redaction
from tests.unit.desired.repositories import job

HEAD = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("label", "field", "shown"),
    [
        ("Job/a", "spec.command[0]", False),
        ("Job/a", "spec.script", False),
        ("Job/a", "spec.groups[1].command", False),
        ("Job/a", "spec.environment.TOKEN", False),
        ("Job/a", "spec.secrets[0].name", False),
        ("Job/a", "spec.stage", False),
        ("Job/a", "spec.resources.gpu", True),
        ("Job/a", "metadata.labels.commands", True),
        ("NodePool/p", "spec.checks.command", True),
        ("", "", False),  # a file that can't be read, which may be of a job
    ],
)
def test_what_jobs_run_is_not_quoted(label: str, field: str, *, shown: bool) -> None:
    assert redaction.may_quote(label, field) is shown


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("environment: {TOKEN: 48121}", "write it in quotes; expected text"),
        ("secrets: [{name: '48121!'}]", "expected text such as"),
        ("timeLimit: x48121", 'found "x48121"'),
    ],
)
def test_why_a_job_is_refused_tells_nobody_what_it_runs(spec: str, expected: str) -> None:
    written = f"{HEAD}spec:\n  command: [echo]\n  {spec}\n"
    wanted = validate.check({"a.yaml": written.encode()})
    assert expected in wanted.refused["a"]
    assert ("48121" in wanted.refused["a"]) is ("found" in expected)
    (problem,) = (one for one in wanted.status.problems if one.object == "Job/a")
    assert "48121" in problem.text()
    assert ("48121" in redaction.unquoted(problem).text()) is ("found" in expected)


def test_a_file_that_nobody_can_read_is_not_quoted() -> None:
    wanted = validate.check({"a.yaml": (job("a") + "  script: !s3cret x\n").encode()})
    (problem,) = (one for one in wanted.status.problems if one.severity == "error")
    assert "s3cret" in problem.text()
    told = redaction.unquoted(problem)
    assert "s3cret" not in told.text()
    assert (told.rule, told.place) == (problem.rule, problem.place)

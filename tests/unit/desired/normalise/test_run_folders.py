"""What a run leaves behind has a name that no other run has."""

import pytest

from reconciler.desired.apply import validate
from reconciler.model import desired
from reconciler.model.state import identifiers

JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: {name}}}
spec:
  owner: {owner}
  run: {run}
  command: [echo, "{lr}"]
  checkpoint: {{{checkpoint}}}
  stage: {{outputs: [{{path: out, volume: v, to: "{{job}}/{{run}}/x"}}]}}
{more}
"""
VOLUME = """\
---
apiVersion: muster/v1
kind: Volume
metadata: {name: v}
spec: {type: mount, mountPath: /v}
"""


def load(**changes: object) -> desired.Desired:
    values = {
        "name": "a", "owner": "ada@example.org", "run": 1, "lr": 1, "checkpoint": "", "more": "",
    }  # fmt: skip
    text = JOB.format(**(values | changes))
    return validate.check({"x.yaml": (text + VOLUME).encode()})


def one(**changes: object) -> desired.Job:
    (found,) = load(**changes).jobs.values()
    return found


def folders(job: desired.Job) -> tuple[str, str]:
    assert job.checkpoint is not None
    return job.checkpoint.path, job.stage.outs[0].to


@pytest.mark.parametrize(
    "changes", [{"name": "b"}, {"owner": "bob@example.org"}, {"run": 2}, {"lr": 2}]
)
def test_each_run_has_folders_of_its_own(changes: dict[str, object]) -> None:
    mine, other = folders(one()), folders(one(**changes))
    assert mine[0] != other[0]
    assert "name" in changes or mine[1] != other[1], "the job's name stands in it by itself"


def test_what_is_not_executed_makes_no_difference() -> None:
    assert folders(one()) == folders(one(more="  priority: 80\n  timeLimit: 1h"))


def test_a_run_goes_on_in_the_folder_of_another_of_its_owner() -> None:
    first = one()
    second = one(name="b", run=7, lr=3, more=f"  resumeFrom: {first.key}")
    assert folders(second)[0] == folders(first)[0]
    assert folders(second)[1] != folders(first)[1], "its results are its own"
    assert second.hash == one(name="b", run=7, lr=3).hash
    theirs = one(owner="bob@example.org", more=f"  resumeFrom: {first.key}")
    assert folders(theirs)[0] != folders(first)[0]


@pytest.mark.parametrize(
    ("changes", "rule", "told"),
    [
        ({"more": "  resumeFrom: a.1"}, "wrong-value", "spec.resumeFrom"),
        ({"more": "  resumeFrom: ../a.1.0123456789abcdef"}, "wrong-value", "spec.resumeFrom"),
        (
            {"checkpoint": "path: c", "more": "  resumeFrom: a.1.0123456789abcdef"},
            "two-folders",
            "checkpoint.path names the folder already",
        ),
    ],
)
def test_what_can_not_be_gone_on_from_is_refused(
    changes: dict[str, object], rule: str, told: str
) -> None:
    (problem,) = load(**changes).status.problems
    assert (problem.rule, told in problem.text()) == (rule, True), problem.text()


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_the_folder_of_another_run_can_not_be_written(below: str) -> None:
    theirs = folders(one(owner="bob@example.org"))[0] + below
    (problem,) = load(checkpoint=f"path: {theirs}").status.problems
    assert (problem.rule, problem.field) == ("other-run-folder", "spec.checkpoint.path")
    assert "resumeFrom" in problem.text()


@pytest.mark.parametrize("path", ["checkpoints/a/1", "checkpoints/train", "runs/a/1-0123abcd"])
def test_a_folder_that_no_run_has_by_itself_may_be_shared(path: str) -> None:
    assert folders(one(checkpoint=f"path: {path}"))[0] == path


def test_resuming_needs_checkpoints() -> None:
    text = JOB.replace("  checkpoint: {{{checkpoint}}}\n", "").format(
        name="a", owner="ada@example.org", run=1, lr=1, more="  resumeFrom: a.1.0123456789abcdef"
    )
    (problem,) = validate.check({"x.yaml": (text + VOLUME).encode()}).status.problems
    assert "expected spec.checkpoint beside it" in problem.text()


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("train.1.0123456789abcdef", True),
        ("a.1000000.0123456789abcdef", True),
        ("a.0.0123456789abcdef", False),
        ("a.1.0123456789ABCDEF", False),
        ("a.1.0123456789abcde", False),
        ("a.1.0123456789abcdef.0.main.0.1", False),
    ],
)
def test_keys_of_runs(text: str, *, holds: bool) -> None:
    assert (identifiers.RUN_KEY.fullmatch(text) is not None) is holds

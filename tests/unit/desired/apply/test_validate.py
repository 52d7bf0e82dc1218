"""What is said of files that are no revision yet."""

import pytest

from reconciler.desired.apply import validate
from reconciler.desired.checks import submission_checks
from reconciler.desired.documents import document_reader, schema_errors
from reconciler.model.documents import fields
from reconciler.model.values import quantities

HEAD = "apiVersion: muster/v1\n"
QUEUE = HEAD + "kind: Queue\nmetadata: {name: students}\nspec: {limit: {gpu: FOUR}}\n"
JOB = HEAD + "kind: Job\nmetadata: {name: j}\nspec: {queue: students, command: ['true']}\n"
QUOTA = HEAD + "kind: Quota\nmetadata: {name: q}\nspec: {subject: {queue: nowhere}}\n"


def rules(*texts: str) -> list[str]:
    files = {f"{number}.yaml": text.encode() for number, text in enumerate(texts)}
    return [problem.rule for problem in validate.check(files).status.problems]


def test_jobs_are_not_told_that_a_queue_is_missing_which_is_there_and_wrong() -> None:
    assert len(rules(QUEUE, JOB)) == 1
    assert rules(JOB) == ["unknown-queue"]
    assert rules(QUEUE.replace("FOUR", "4"), JOB) == []


def test_what_is_wrong_with_other_structure_is_told_all_the_same() -> None:
    assert "unknown-queue" in rules(QUEUE.replace("FOUR", "4"), JOB, QUOTA)


def test_a_name_or_an_amount_that_does_not_fit_is_told_what_may_stand_there() -> None:
    name = {"type": "string", "pattern": fields.NAME_PATTERN, "examples": ["team-a"]}
    assert schema_errors._expected(name).startswith(
        'text such as "team-a": at most 63 of a-z, 0-9 and -'
    )
    memory = {"anyOf": [{"type": "string", "pattern": quantities.MEMORY_PATTERN}]}
    assert schema_errors._expected(memory | {"examples": ["4Gi"]}).endswith("Ki, Mi, Gi, Ti or Pi")


STRUCTURE = (
    HEAD
    + "kind: NodePool\nmetadata: {name: p}\n"
    + "spec: {hosts: n1, nodes: {cpu: 8, memory: 8Gi, gpus: {count: 2}}}\n---\n"
    + HEAD
    + "kind: Queue\nmetadata: {name: top}\nspec: {limit: {cpu: 4}}\n---\n"
    + HEAD
    + "kind: Queue\nmetadata: {name: leaf}\nspec: {parent: top}\n---\n"
    + HEAD
    + "kind: Policy\nmetadata: {name: owned}\nspec:\n  match: {kinds: [Job]}\n  action: warn\n"
    + "  message: name an owner\n  schema: {properties: {spec: {required: [owner]}}}\n"
)
SPECS = {
    "queue: leaf, owner: a@x.org, resources: {cpu: 1}": [],
    "queue: leaf, owner: a@x.org, count: 5, resources: {cpu: 1}": ["never-within-limit"],
    "queue: leaf, owner: a@x.org, resources: {cpu: 9}": ["never-fits", "never-within-limit"],
    "queue: leaf, resources: {cpu: 1, gpu: 3}": ["never-fits", "policy/owned"],
    "queue: nowhere, owner: a@x.org": ["unknown-queue"],
    "owner: a@x.org, volumes: [data]": ["unknown-volume"],
    "owner: a@x.org, timeLimit: soon": ["wrong-value"],
}


@pytest.mark.parametrize(("spec", "expected"), SPECS.items())
def test_a_job_is_told_the_same_before_it_is_submitted_and_where_it_is_written(
    spec: str, expected: list[str]
) -> None:
    text = HEAD + f"kind: Job\nmetadata: {{name: j}}\nspec: {{{spec}, command: ['true']}}\n"
    structure = validate.check({"s.yaml": STRUCTURE.encode()}).structure
    data = text.encode()
    submitted_ = submission_checks.SubmissionValidator(structure).problems(
        "j.yaml", data, document_reader.read(data), 0.0
    )
    found = validate.check({"s.yaml": STRUCTURE.encode(), "j.yaml": data}).status.problems
    assert sorted(one.rule for one in found) == expected
    assert sorted(one.text() for one in submitted_) == sorted(one.text() for one in found)

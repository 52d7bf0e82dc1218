"""What is said of files that are no revision yet."""

from reconciler.desired import explain, validate
from reconciler.model import quantities
from reconciler.model.documents import fields

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
    assert explain._expected(name).startswith('text such as "team-a": at most 63 of a-z, 0-9 and -')
    memory = {"anyOf": [{"type": "string", "pattern": quantities.MEMORY_PATTERN}]}
    assert explain._expected(memory | {"examples": ["4Gi"]}).endswith("Ki, Mi, Gi, Ti or Pi")

"""What is said of files that are no revision yet."""

from reconciler.desired import validate

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

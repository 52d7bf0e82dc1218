"""What a refused document is told."""

import pytest

from reconciler.desired.apply import validate
from reconciler.desired.documents import document_reader
from tests.unit.desired.repositories import documents, job, queue

HEAD = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  command: [echo]\n"
QUEUE = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: a}\nspec:\n"

TABLE = [
    (HEAD + "  timelimit: 1h\n", "unknown-field", "spec.timelimit", 6, 3, "`timeLimit`"),
    (HEAD + "  time_limit: 1h\n", "unknown-field", "spec.time_limit", 6, 3, "`timeLimit`"),
    (HEAD + "  timeLimit: 5x\n", "wrong-value", "spec.timeLimit", 6, 14, "a duration"),
    (QUEUE + "  flavors: [{}]\n", "missing-field", "spec.flavors[0].pool", 5, 13, "pool"),
    (HEAD + "  runtime: docker\n", "wrong-value", "spec.runtime", 6, 12, "podman"),
    (HEAD + "  count: 0\n", "out-of-range", "spec.count", 6, 10, "from 1 to 10000"),
    (HEAD + "  count: two\n", "wrong-value", "spec.count", 6, 10, '"two"'),
    (HEAD + "  owner: 5\n", "wrong-type", "spec.owner", 6, 10, "in quotes"),
    (HEAD + "  resources: {gpu: half}\n", "wrong-value", "spec.resources.gpu", 6, 20, "half"),
    (HEAD + "  groups: [{count: 1}]\n", "missing-field", "spec.groups[0].name", 6, 12, "`name`"),
    (
        *(HEAD + "  dependsOn: [train]\n", "wrong-type", "spec.dependsOn[0]", 6, 15),
        'a mapping such as {job: "preprocess"}',
    ),
    (HEAD.replace("[echo]", "[true]"), "wrong-type", "spec.command[0]", 5, 13, "in quotes"),
    (HEAD.replace("name: a", "name: A_b"), "wrong-value", "metadata.name", 3, 18, "team-a"),
    (HEAD.replace("Job", "Jobb"), "unknown-kind", "kind", 2, 7, "did you mean Job?"),
    (HEAD.replace("Job", "Zzz"), "unknown-kind", "kind", 2, 7, "NodePool"),
    (HEAD.replace("muster/v1", "muster/v2"), "api-version", "apiVersion", 1, 13, "muster/v1"),
    (HEAD.replace("muster/v1", "v1"), "not-muster", "apiVersion", 1, 13, "muster/v1"),
    ("services: {}\n", "not-muster", "", 1, 1, "no apiVersion"),
    ("- a\n", "not-an-object", "", 1, 1, "mapping"),
    (HEAD.split("spec:", maxsplit=1)[0], "missing-field", "spec", 1, 1, "`spec`"),
]


@pytest.mark.parametrize(("text", "rule", "field", "line", "column", "said"), TABLE)
def test_refusals(  # noqa: PLR0917 - the columns of the table
    text: str, rule: str, field: str, line: int, column: int, said: str
) -> None:
    problems = document_reader.validate("jobs/a.yaml", text.encode())
    assert [(p.rule, p.field, p.line, p.column) for p in problems] == [(rule, field, line, column)]
    assert problems[0].path == "jobs/a.yaml"
    assert said in problems[0].text()


def test_everything_wrong_is_told_at_once() -> None:
    text = HEAD + "  count: x\n  nonsense: 1\n  timeLimit: y\n"
    rules = [p.rule for p in document_reader.validate("a", text.encode())]
    assert sorted(rules) == ["unknown-field", "wrong-value", "wrong-value"]


def test_the_rest_of_the_file_is_read() -> None:
    file = document_reader.read(
        documents(job("a"), "- x\n", job("b", count=0), queue("q")).encode()
    )
    assert [(d.kind, d.name, d.part is not None) for d in file.documents] == [
        ("Job", "a", True),
        ("", "", False),
        ("Job", "b", False),
        ("Queue", "q", True),
    ]


def digest(text: str) -> str:
    return document_reader.read(text.encode()).documents[0].hash


SAME_RUN = ["queue: q", "priority: 4", "timeLimit: 1h", "retries: {limit: 2}", "suspend: true"]
SAME_RUN += ["owner: a@example.org", "deadline: 2027-01-31T06:00:00Z", "lease: none", "run: 2"]
SAME_RUN += ["dependsOn: [{job: b}]", "preemptible: false", "terminationGrace: 5s"]
OTHER_RUN = ["count: 1", "resources: {cpu: 1}", "environment: {A: b}", "workingDirectory: /x"]
OTHER_RUN += ["framework: none", "array: {count: 1}", "checkpoint: {}", "pools: [p]"]
OTHER_RUN += ["nodeSelector: {a: b}", "groups: [{name: main}]"]


@pytest.mark.parametrize("line", SAME_RUN)
def test_fields_that_are_not_in_the_hash(line: str) -> None:
    labelled = HEAD.replace("{name: a}", "{name: b, labels: {x: y}}")
    assert digest(f"# c\n{labelled}  {line}\n") == digest(HEAD)


@pytest.mark.parametrize("line", OTHER_RUN)
def test_fields_that_are_in_the_hash_as_written(line: str) -> None:
    assert digest(f"{HEAD}  {line}\n") != digest(HEAD)


def test_the_hash_is_for_ever() -> None:
    assert digest(HEAD) == "3001397fc278d223"
    assert digest(HEAD.replace("command:", "environment: {B: c, A: b}\n  command:")) == digest(
        HEAD + "  environment:\n    A: b\n    B: c\n"
    )


def test_validate_several_files() -> None:
    files = {"q.yaml": queue("q").encode(), "a.yaml": job("a", queue="q").encode()}
    value = validate.check(files)
    assert set(value.jobs) == {"a"}
    assert value.status.sync == "Synced"
    value = validate.check({"a.yaml": files["a.yaml"]})
    assert [p.rule for p in value.status.problems] == ["unknown-queue"]
    assert value.status.problems[0].line == 6

"""A field that stands in the wrong place is told its own."""

import pytest

from reconciler.desired.documents import document_reader, field_hints, schema

JOB = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: a%s}\n%sspec:\n  command: [echo]\n%s"
QUEUE = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: a}\nspec: {gpus: 8}\n"
POOL = "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: a}\nspec: {nodes: {mig: {}}}\n"


@pytest.mark.parametrize(
    ("text", "field", "place"),
    [
        (JOB % ("", "", "  gpus: 1\n"), "spec.gpus", "spec.resources.gpu"),
        (JOB % ("", "", "  cpu: 1\n"), "spec.cpu", "spec.resources.cpu"),
        (JOB % ("", "", "  CPUs_per-task: 1\n"), "spec.CPUs_per-task", "spec.resources.cpu"),
        (JOB % ("", "", "  partition: a\n"), "spec.partition", "spec.pools"),
        (JOB % ("", "", "  labels: {}\n"), "spec.labels", "metadata.labels"),
        (JOB % ("", "time_limit: 1h\n", ""), "time_limit", "spec.timeLimit"),
        (JOB % ("", "script: x\n", ""), "script", "spec.script"),
        (JOB % ("", "gpus: 1\n", ""), "gpus", "spec.resources.gpu"),
        (JOB % ("", "name: b\n", ""), "name", "metadata.name"),
        (JOB % (", queue: b", "", ""), "metadata.queue", "spec.queue"),
        (
            JOB % ("", "", "  groups: [{name: b, gpus: 1}]\n"),
            "spec.groups[0].gpus",
            "spec.groups[0].resources.gpu",
        ),
        (QUEUE, "spec.gpus", "spec.guaranteed.gpu"),
        (POOL, "spec.nodes.mig", "spec.nodes.gpus.mig"),
        (JOB % ("", "", "  comand: [a]\n"), "spec.comand", "command"),
    ],
)
def test_the_place_of_a_field(text: str, field: str, place: str) -> None:
    told = {one.field: one.message for one in document_reader.validate("a.yaml", text.encode())}
    assert f"did you mean `{place}`?" in told[field]


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in field_hints.PLACES}))
def test_every_place_is_one(kind: str) -> None:
    whole = schema.of_kind(kind)
    for (of, where), table in field_hints.PLACES.items():
        if of != kind:
            continue
        for key, target in table.items():
            path = target if target.startswith("metadata.") else f"{where}.{target}"
            assert _stands(whole, path), path
            assert not _stands(whole, f"{where}.{key}"), key


def _stands(whole: schema.Schema, path: str) -> bool:
    """Whether a schema has a field of this path."""
    part = whole
    for step in path.split("."):
        if step not in part.get("properties", {}):
            return False
        field = part["properties"][step]
        for one in field.get("anyOf", [field]):
            inner = one.get("items", one)
            if "$ref" in inner:
                part = whole["$defs"][inner["$ref"].rsplit("/", 1)[-1]]
    return True


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "  comand: [a]\n",
            "such as command or code or count: `muster schema job.spec` lists them",
        ),
        ("  zzzz: 1\n", " fields: `muster schema job.spec` lists them"),
        ("  gpus: 1\n", " fields: `muster schema job.spec` lists them"),
        ("  resources: {zzzz: 1}\n", "one of cpu, memory, gpu, gpuMemory, mig"),
    ],
)
def test_a_long_list_of_fields_is_not_told(line: str, told: str) -> None:
    (problem,) = document_reader.validate("a.yaml", (JOB % ("", "", line)).encode())
    assert told in problem.expected
    assert len(problem.expected) < 120

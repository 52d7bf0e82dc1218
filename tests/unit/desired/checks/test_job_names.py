"""Everybody who checks a job says the same about names that nothing has."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from reconciler.desired.apply import validate
from reconciler.desired.checks import submission_checks
from reconciler.desired.documents import document_reader
from reconciler.model import desired
from reconciler.operations.validate import folder_check
from tests.unit.core.world import World, job

LOST = """apiVersion: muster/v1
kind: Job
metadata: {name: lost}
spec:
  queue: nowhere
  priorityClass: urgent
  pools: [nopool]
  volumes: [data]
  stage: {inputs: [{volume: sets}], outputs: [{path: out, volume: results}]}
  dependsOn: [{job: ghost}]
  command: [sleep, "1"]
"""
FIELDS = [
    "spec.queue",
    "spec.priorityClass",
    "spec.pools[0]",
    "spec.volumes[0]",
    "spec.stage.inputs[0].volume",
    "spec.stage.outputs[0].volume",
    "spec.dependsOn[0].job",
]


def told(problems: Iterable[desired.Problem]) -> list[str]:
    ordered = sorted(problems, key=lambda one: (one.line, one.column))
    return [one.text() for one in ordered]


def test_validate_status_and_submit_find_the_same_in_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "j.yaml").write_text(LOST)
    data = LOST.encode()
    in_force = validate.check({"j.yaml": data})
    checked = folder_check.read_folder(tmp_path).status.problems
    submitted = submission_checks.SubmissionValidator(in_force.structure).problems(
        "j.yaml", data, document_reader.read(data), 0.0, known=lambda _: ()
    )
    assert [one.field for one in checked] == FIELDS
    assert told(in_force.status.problems) == told(checked) == told(submitted)


def test_a_job_whose_queue_is_gone_waits_with_the_words_of_the_check() -> None:
    problem = validate.check({"j.yaml": LOST.encode()}).status.problems[0]
    world = World()
    world.commit(job("lost", queue="nowhere"))
    world.cycle()
    (reason,) = world.memory.reasons[world.memory.jobs["lost"].reason_key]
    assert f"{reason.message} ({problem.place}:{problem.column})" == problem.told()


POOLS = """apiVersion: muster/v1
kind: NodePool
metadata: {{name: {name}}}
spec: {{hosts: "{hosts}", nodes: {{cpu: 4, memory: 1Gi}}}}
"""


@pytest.mark.parametrize(
    ("terms", "messages"),
    [
        ("hosts: n1", []),
        ("excludeHosts: n1", []),
        (
            "excludeHosts: nosuch",
            ["excludeHosts: no pool has a node nosuch; known: m1, n[1-2]"],
        ),
        (
            "hosts: 'n1,gone[1-4]'",
            ["hosts: no pool has a node gone1, gone2, gone3 and 1 more; known: m1, n[1-2]"],
        ),
        ("hosts: nosuch", ["hosts: no pool has a node nosuch; known: m1, n[1-2]"]),
        (
            "pools: [nosuch]",
            ["there is no NodePool nosuch: the job waits until there is; known: a, b"],
        ),
    ],
)
def test_nodes_and_pools_that_are_not_there_are_named(terms: str, messages: list[str]) -> None:
    text = LOST.partition("spec:")[0] + f"spec: {{{terms}, command: [sleep, '1']}}\n"
    pools = "---\n".join(
        POOLS.format(name=name, hosts=hosts) for name, hosts in (("a", "m1"), ("b", "n[1-2]"))
    )
    found = validate.check({"j.yaml": text.encode(), "p.yaml": pools.encode()}).status.problems
    assert [one.message for one in found] == messages
    assert all(one.severity == "warning" for one in found)

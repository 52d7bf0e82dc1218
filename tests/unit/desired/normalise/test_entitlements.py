"""What guarantees, lending and quotas never let start is told where the job is written."""

import pytest

from reconciler.desired.apply import applied, last_good, validate
from tests.unit.desired.apply.test_applied import changes, read

HEAD = "apiVersion: muster/v1\n"
STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: p}
spec: {hosts: 'n[1-3]', nodes: {cpu: 64, memory: 64Gi, gpus: {count: 8}}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: top}
spec: {guaranteed: {gpu: 8}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: leaf}
spec: {parent: top, guaranteed: {gpu: 4}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: other}
spec: {guaranteed: {gpu: 16}, lendingLimit: {gpu: 6}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: students}
spec: {}
---
apiVersion: muster/v1
kind: Quota
metadata: {name: few}
spec: {subject: {queue: students}, resources: {gpu: 2}, jobs: {running: 4}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: one}
spec: {}
---
apiVersion: muster/v1
kind: Quota
metadata: {name: single}
spec: {subject: {queue: one}, resources: {gpu: 1}}
---
apiVersion: muster/v1
kind: Quota
metadata: {name: hours}
spec: {subject: {user: a@x.org}, budget: {gpuHours: 10, window: 7d}}
---
apiVersion: muster/v1
kind: Quota
metadata: {name: nobody}
spec: {subject: {group: guests}, jobs: {running: 0}}
---
apiVersion: muster/v1
kind: Access
metadata: {name: people}
spec: {identities: [{email: g@x.org, groups: [guests]}]}
"""
GANG = "resources: {gpu: 2}, count: "
SPECS = {
    f"queue: leaf, preemptible: false, {GANG}2": None,
    f"queue: leaf, preemptible: false, {GANG}3": "never-within-guarantee: 6 GPUs asked for what "
    "starts together, more than is guaranteed to queue leaf, 4 GPUs: work that is not preemptible "
    "may "
    "not borrow, and can't start",
    f"queue: leaf, {GANG}3": None,
    f"queue: leaf, {GANG}7": None,
    f"queue: leaf, {GANG}8": "never-within-lending: 16 GPUs asked for what starts together, more "
    "than queue leaf can ever have, 14 GPUs: 4 GPUs guaranteed to it, and 10 GPUs that are "
    "nobody's own or that "
    "others lend",
    f"queue: leaf, {GANG}8, min: 3": None,
    f"queue: other, {GANG}12": None,
    f"queue: students, {GANG}1": None,
    f"queue: students, {GANG}2": "never-within-quota: Quota few limits queue students to 2 GPUs, "
    "and one start asks 4 GPUs: it can't start under it",
    f"queue: one, {GANG}1": "never-within-quota: Quota single limits queue one to 1 GPU, and one "
    "start asks 2 GPUs: it can't start under it",
    f"queue: leaf, owner: a@x.org, timeLimit: 5h, {GANG}1": None,
    f"queue: leaf, owner: a@x.org, timeLimit: 6h, {GANG}1": "never-within-quota: Quota hours gives "
    "a@x.org 10 GPU-hours in 1w, and one start asks 12 (GPUs times time limit): more than all of "
    "it, it can't start under it",
    "queue: leaf, owner: g@x.org, resources: {cpu: 1}": "never-within-quota: Quota nobody lets no "
    "job of group guests run: it can't start under it",
}


def told(spec: str, structure: str = STRUCTURE) -> list[str]:
    text = HEAD + f"kind: Job\nmetadata: {{name: j}}\nspec: {{{spec}, command: ['true']}}\n"
    found = validate.check({"s.yaml": structure.encode(), "j.yaml": text.encode()})
    assert {one.severity for one in found.status.problems} <= {"warning"}, found.status.problems
    return [f"{one.rule}: {one.message}" for one in found.status.problems]


@pytest.mark.parametrize(("spec", "expected"), SPECS.items())
def test_what_can_never_start_as_things_are_written_is_told(
    spec: str, expected: str | None
) -> None:
    assert told(spec) == ([] if expected is None else [expected])


BOUNDS = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: p}
spec: {hosts: 'n[1-NODES]', nodes: {cpu: 64, memory: 64Gi, gpus: {count: 1}}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: keeps}
spec: {guaranteed: {gpu: 3}, lendingLimit: {gpu: 0}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: q}
spec: {limit: {gpu: LIMIT}, guaranteed: {gpu: 2}}
"""


@pytest.mark.parametrize(
    ("nodes", "limit", "more", "expected"),
    [
        (10, 6, "", ["never-within-limit"]),
        (10, 8, "", ["never-within-lending"]),
        (10, 7, "", ["never-within-limit"]),
        (6, 4, "", ["never-within-lending"]),
        (10, 6, ", preemptible: false", ["never-within-guarantee"]),
        (10, 8, ", resources: {gpu: 1, cpu: 65}", ["never-fits", "never-within-lending"]),
    ],
)
def test_of_several_bounds_on_one_amount_the_smallest_is_told(
    nodes: int, limit: int, more: str, expected: list[str]
) -> None:
    structure = BOUNDS.replace("NODES", str(nodes)).replace("LIMIT", str(limit))
    asked = "" if "resources" in more else ", resources: {gpu: 1}"
    found = told(f"queue: q, count: 11{asked}{more}", structure)
    assert [one.partition(":")[0] for one in found] == expected, found


def test_nodes_that_are_fewer_than_a_limit_are_told_instead_of_it() -> None:
    structure = (
        BOUNDS.replace("NODES", "4").replace("LIMIT", "5").replace(", lendingLimit: {gpu: 0}", "")
    )
    (found,) = told("queue: q, count: 11, resources: {gpu: 1}", structure)
    assert found.startswith("never-fits: 11 GPUs asked for what starts together, and all nodes")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{parent: top, guaranteed: {gpu: 4}}", "{parent: top, guaranteed: {gpu: 8}}"),
        ("lendingLimit: {gpu: 6}", "lendingLimit: {gpu: 8}"),
        ("resources: {gpu: 2}, jobs", "resources: {gpu: 4}, jobs"),
        ("email: g@x.org", "email: h@x.org"),
    ],
)
def test_it_is_told_no_more_once_what_says_so_changes(before: str, after: str) -> None:
    specs = [spec for spec, expected in SPECS.items() if expected is not None]
    files: dict[str, str | None] = {
        f"{number}.yaml": HEAD
        + f"kind: Job\nmetadata: {{name: j{number}}}\nspec: {{{spec}, command: ['true']}}\n"
        for number, spec in enumerate(specs)
    }
    files["s.yaml"] = STRUCTURE
    state = applied.Applied(last_good.LastGood(), read)
    state.apply("1", changes(files), {})
    first = {one.object for one in state.problems()}
    assert len(first) == len(specs)
    state.apply("2", changes({"s.yaml": STRUCTURE.replace(before, after)}), {})
    assert len({one.object for one in state.problems()}) == len(specs) - 1
    state.apply("3", changes({"s.yaml": STRUCTURE}), {})
    assert {one.object for one in state.problems()} == first


@pytest.mark.parametrize(("nodes", "rest"), [(6, "1 GPU that is"), (7, "2 GPUs that are")])
def test_what_others_leave_is_told_in_grammar(nodes: int, rest: str) -> None:
    structure = BOUNDS.replace("NODES", str(nodes)).replace("limit: {gpu: LIMIT}, ", "")
    (message,) = told(f"queue: q, count: {nodes}, resources: {{gpu: 1}}", structure)
    assert f"2 GPUs guaranteed to it, and {rest} nobody's own or that others lend" in message

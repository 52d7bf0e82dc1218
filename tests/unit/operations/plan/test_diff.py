"""In which order changes are told: what others need comes before them, and leaves after them."""

from reconciler.desired.apply import validate
from reconciler.model import desired
from reconciler.model.documents import kinds
from reconciler.operations.plan import diff

CLUSTER = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: main}
"""
EACH = """\
apiVersion: muster/v1
kind: Job
metadata: {name: a}
spec: {queue: a, priorityClass: a, command: ['true']}
---
apiVersion: muster/v1
kind: Reservation
metadata: {name: a}
spec: {pools: [a], users: [ada@x.org], start: "2090-01-01T00:00:00Z", end: "2090-01-02T00:00:00Z"}
---
apiVersion: muster/v1
kind: Quota
metadata: {name: a}
spec: {subject: {queue: a}, jobs: {running: 1}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: a}
---
apiVersion: muster/v1
kind: Volume
metadata: {name: a}
spec: {mountPath: /data}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: a}
spec: {hosts: "n[1-2]", nodes: {cpu: 4, memory: 8Gi}}
---
apiVersion: muster/v1
kind: PriorityClass
metadata: {name: a}
spec: {value: 5}
---
apiVersion: muster/v1
kind: Policy
metadata: {name: a}
spec: {match: {kinds: [Job]}, schema: {}, message: m}
---
apiVersion: muster/v1
kind: Access
metadata: {name: a}
spec:
  identities: [{email: ada@x.org, keys: []}]
  roles: [{name: a, members: ["*"], allow: [{verbs: [submit], queues: ["*"]}]}]
"""
ORDER = ["Person", "Role", "Policy", "PriorityClass", "NodePool", "Volume", "Queue", "Quota",
         "Reservation", "Job"]  # fmt: skip


def state(*texts: str) -> desired.Desired:
    found = validate.check({"all.yaml": "---\n".join(texts).encode()})
    assert [one.text() for one in found.status.problems if one.severity == "error"] == []
    return found


def test_each_kind_is_among_them() -> None:
    written = set(kinds.STRUCTURAL_KINDS) - {"Cluster", "Access"} | {"Job", "Person", "Role"}
    assert written == set(ORDER)


def test_kinds_are_added_in_one_order_and_removed_in_the_reverse() -> None:
    nothing, everything = state(CLUSTER), state(CLUSTER, EACH)
    added = diff.between(nothing, everything)
    assert [(one.operation, one.kind) for one in added] == [("add", kind) for kind in ORDER]
    removed = diff.between(everything, nothing)
    assert [(one.operation, one.kind) for one in removed] == [
        ("remove", kind) for kind in reversed(ORDER)
    ]


def test_removals_come_first_then_changes_then_additions() -> None:
    old = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: {0}}\nspec: {weight: {1}}\n"

    def queue(name: str, weight: int) -> str:
        return old.replace("{0}", name).replace("{1}", str(weight))

    found = diff.between(
        state(CLUSTER, queue("gone", 1), queue("kept", 1)),
        state(CLUSTER, queue("kept", 2), queue("came", 1)),
    )
    assert [(one.operation, one.name) for one in found] == [
        ("remove", "gone"),
        ("change", "kept"),
        ("add", "came"),
    ]


def test_queues_come_after_those_that_they_are_in_and_leave_before_them() -> None:
    one = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: {0}}\nspec: {1}\n"
    tree = {"z": "{}", "m": "{parent: z}", "a": "{parent: m}", "b": "{parent: m}"}
    texts = [one.replace("{0}", name).replace("{1}", spec) for name, spec in tree.items()]
    nothing, everything = state(CLUSTER), state(CLUSTER, *texts)
    assert [x.name for x in diff.between(nothing, everything)] == ["z", "m", "a", "b"]
    assert [x.name for x in diff.between(everything, nothing)] == ["a", "b", "m", "z"]

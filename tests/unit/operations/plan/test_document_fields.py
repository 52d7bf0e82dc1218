"""Normalised objects in the words of documents: each path is one that a document has."""

import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from reconciler.desired.apply import validate
from reconciler.model import desired
from reconciler.model.documents import kinds
from reconciler.model.policy import access
from reconciler.model.values.resources import Resources
from reconciler.operations.plan import diff, document_fields

BEFORE = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: c}
spec: {lease: 15m}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: p}
spec: {hosts: "gpu[001-128]", nodes: {cpu: 64, memory: 512Gi, gpus: {count: 8, model: H200}}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: q}
spec: {guaranteed: {gpu: 4}, limit: {gpu: 8}}
---
apiVersion: muster/v1
kind: Job
metadata: {name: j}
spec:
  queue: q
  count: 2
  resources: {cpu: 500m, memory: 1Gi, gpu: 0.5}
  environment: {EPOCHS: "3"}
  timeLimit: 90m
  script: |
    echo one
    echo two
"""
WINDOWS = (
    '{kind: allow, schedule: "0 9,10 * * 1-5", duration: 8h}, '
    '{kind: deny, schedule: "0 12 * * *", duration: 1h}'
)
#: (what is written instead of what, the fields that are told)
CHANGES = {
    ("timeLimit: 90m", f"timeLimit: 90m\n  code: {{digest: 'sha256:{'0' * 64}', path: a/b}}"): {
        "code.digest": (None, f"sha256:{'0' * 64}"),
        "code.path": (None, "a/b"),
    },
    ("timeLimit: 90m", f"timeLimit: 90m\n  code: {{git: 'file:///a', revision: '{'1' * 40}'}}"): {
        "code.git": (None, "file:///a"),
        "code.revision": (None, "1" * 40),
    },
    ("lease: 15m", "lease: 1h"): {"lease": ("15m", "1h")},
    ("[001-128]", "[001-096]"): {"hosts": ("gpu[001-128]", "gpu[001-096]")},
    ("count: 8, model: H200", "count: 4, model: H200"): {"nodes.gpus.count": ("8", "4")},
    ("gpus: {count: 8, model: H200}}", "gpus: {count: 8, model: H200}}, mode: observe"): {
        "mode": ("manage", "observe")
    },
    ("guaranteed: {gpu: 4}", "guaranteed: {gpu: 4.5}"): {"guaranteed.gpu": ("4", "4.5")},
    ("guaranteed: {gpu: 4}, ", ""): {"guaranteed.gpu": ("4", None)},
    ("limit: {gpu: 8}", "limit: {gpu: 8, memory: 1Ti}"): {"limit.memory": (None, "1Ti")},
    ("count: 2", "count: 3"): {"count": ("2", "3")},
    ("gpu: 0.5", "gpu: 1"): {"resources.gpu": ("0.5", "1")},
    ("cpu: 500m", "cpu: 2"): {"resources.cpu": ("500m", "2")},
    ("timeLimit: 90m", "timeLimit: 2h"): {"timeLimit": ("1h30m", "2h")},
    ('EPOCHS: "3"', 'EPOCHS: "4", X: y'): {
        "environment.EPOCHS": ("3", "4"),
        "environment.X": (None, "y"),
    },
    # of what is new only what was written
    ("model: H200}}", "model: H200}}, health: {diskFree: 0.1, blackHole: {}}"): {
        "health.diskFree": (None, "0.1"),
        "health.blackHole": (None, "{}"),
    },
    ("model: H200}}", "model: H200}}, health: {}"): {"health": (None, "{}")},
    ("model: H200}}", "model: H200}, mounts: [/a]}, health: {interval: 2m}"): {
        "health.interval": (None, "2m"),
        "nodes.mounts": (None, "[/a]"),
    },
    ("{lease: 15m}", "{lease: 15m, sync: {windows: [" + WINDOWS + "]}}"): {
        "sync.windows": (None, WINDOWS.replace("}, {", "}\n{")),
    },
    ("echo two", "echo 2"): {"script": ("echo one\necho two\n", "echo one\necho 2\n")},
    # written otherwise, and the same
    ("timeLimit: 90m", "timeLimit: 1h30m"): {},
    ("count: 2\n", "count: 2\n  priority: 50\n"): {},
}


def state(text: str) -> desired.Desired:
    found = validate.check({"all.yaml": text.encode()})
    assert [p.text() for p in found.status.problems if p.severity == "error"] == []
    return found


@pytest.mark.parametrize("written", CHANGES, ids=lambda pair: f"{pair[0]} to {pair[1]}"[:60])
def test_a_change_is_told_as_it_was_written(written: tuple[str, str]) -> None:
    old, new = written
    assert old in BEFORE
    found = diff.between(state(BEFORE), state(BEFORE.replace(old, new)))
    told = {path: values for change in found for path, values in change.fields.items()}
    assert told == CHANGES[written]
    assert "milli" not in str(found)


def test_nodes_that_are_counted_are_told_by_their_count() -> None:
    written = BEFORE.replace('hosts: "gpu[001-128]"', "provisioner: virtual, count: 4")
    (found,) = diff.between(state(written), state(written.replace("count: 4", "count: 5")))
    assert found.fields == {"count": ("4", "5")}


def paths(kind: type, prefix: str = "") -> Iterator[str]:
    """Dotted paths of a normalised type as they are told."""
    for name, hint in typing.get_type_hints(kind).items():
        if name in document_fields._NOT_SHOWN:
            continue
        path, _ = document_fields._field(kind, name, None)
        inner = [one for one in (hint, *typing.get_args(hint)) if _is_struct(one)]
        if (kind, name) in document_fields._DERIVED:
            continue
        if inner and name not in {"drains", "node_resources"}:
            yield from paths(inner[0], f"{prefix}{path}.")
        else:
            yield document_fields._join(prefix.removesuffix("."), path)


def _is_struct(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, msgspec.Struct)


def schema_paths(kind: type, prefix: str = "") -> Iterator[str]:
    """Dotted paths of a document, lists and mappings of parts looked through."""
    for field in msgspec.structs.fields(kind):
        path = f"{prefix}{field.encode_name}"
        yield path
        waiting, inner = [field.type], []
        while waiting:
            one = waiting.pop()
            if _is_struct(one):
                inner.append(one)
            waiting.extend(typing.get_args(one))
        for part in inner:
            yield from schema_paths(part, f"{path}.")


#: Normalised beyond recognition: where the value comes from stands behind.
DERIVED = {
    "Job": {
        *("resources.devices", "leases", "affinity.jobs.jobs", "affinity.jobs.level"),
        *("affinity.jobs.apart", "affinity.jobs.weight", "prune"),
        *("setByPolicy.policy", "setByPolicy.field", "setByPolicy.value"),
    },
    "Cluster": {"scheduling.depth"},
}


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("NodePool", desired.Pool),
        ("Queue", desired.Queue),
        ("Quota", desired.Quota),
        ("Reservation", desired.Reservation),
        ("Volume", desired.Volume),
        ("Job", desired.Job),
    ],
)
def test_every_path_is_one_of_a_document(kind: str, type_: type) -> None:
    spec = next(f.type for f in msgspec.structs.fields(kinds.KINDS[kind]) if f.name == "spec")
    while not _is_struct(spec):
        spec = typing.get_args(spec)[0]
    known = set(schema_paths(spec)) | DERIVED.get(kind, set()) | {"labels"}
    told = {path.replace("groups.resources", "resources") for path in paths(type_)}
    assert told - known == set()


def test_all_rules_of_a_new_role_and_all_waivers_of_a_new_policy_are_told() -> None:
    """Whoever reads a plan finds the one that gives most away also where it comes last."""
    verbs: tuple[access.Verb, ...] = ("submit", "manage", "drain", "approve")
    rules = tuple(access.AccessRule((verb,)) for verb in verbs)
    assert "allow.3.verbs: [approve]" in document_fields.summary(
        access.Role("r", ("a@x.org",), rules)
    )
    waivers = tuple(desired.Waiver(f"Job/{name}", "because", 1e9) for name in "ab")
    policy = desired.AdmissionPolicy("p", "m", "{}", kinds=("Job",), queues=("q",), waivers=waivers)
    assert "waivers.Job/b.reason: because" in document_fields.summary(policy)


def test_people_are_told_as_they_are_written() -> None:
    key = access.Key("ssh", "ssh-ed25519 AAAA", 1_767_225_600.0)
    one = access.Identity("a@x.org", ("g",), (access.Key("gpg", "armoured\ntext"), key))
    assert document_fields.fields(one) == {
        "email": "a@x.org",
        "groups": "[g]",
        "keys.0.gpg": "armoured\ntext",
        "keys.1.ssh": "ssh-ed25519 AAAA",
        "keys.1.validBefore": "2026-01-01T00:00:00.000Z",
        "acts": "self",
    }


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (None, 1, "1 GPU, 1 CPU in"),
        (None, 4, "4 x (1 GPU, 1 CPU) in"),
        (4, 4, "4 x (1 GPU, 1 CPU) in"),
        (1, 4, "1 to 4 x (1 GPU, 1 CPU) in"),
    ],
)
def test_a_job_is_summed_up_with_the_fewest_and_the_most_of_its_tasks(
    least: int | None, most: int, expected: str
) -> None:
    group = desired.TaskGroup("main", most, Resources(1000, 0, 1000), minimum=least)
    job = desired.Job("j", 1, "0" * 16, "default", (group,))
    assert document_fields.summary(job).startswith(expected)


def test_what_a_summary_leaves_out_it_counts() -> None:
    rules = tuple(
        access.AccessRule(("submit",)) for _ in range(document_fields.SUMMARY_FIELDS_MAX + 2)
    )
    told = document_fields.summary(access.Role("r", ("a@x.org",), rules))
    assert told.endswith(", and 3 more fields")
    policy = desired.AdmissionPolicy("p", "one\ntwo", "{}", kinds=("Job",))
    assert document_fields.summary(policy).endswith("and 1 more field")


def test_items_are_told_by_what_they_are_known_by_which_is_no_field_of_theirs() -> None:
    """Those that are known by the same, by their place as well: none hides another."""

    def tainted(taints: str) -> desired.Desired:
        text = BEFORE.replace('hosts: "gpu', f'taints: {taints}, hosts: "gpu')
        found = validate.check({"a.yaml": text.encode()})
        assert {one.rule for one in found.status.problems} <= {"never-fits"}
        return found

    def told(before: str, after: str) -> dict[str, tuple[str | None, str | None]]:
        (change,) = diff.between(tainted(before), tainted(after))
        return change.fields

    added = told("[]", "[{key: gpu, value: a100}, {key: only}]")
    assert added == {"taints.gpu.value": (None, "a100"), "taints.only": (None, "{}")}
    changed = told("[{key: gpu, value: a100}]", "[{key: gpu, value: h100}]")
    assert changed == {"taints.gpu.value": ("a100", "h100")}
    twice = "[{key: gpu, value: a100}, {key: gpu, value: h100}]"
    assert told("[]", twice) == {
        "taints.gpu.0.value": (None, "a100"),
        "taints.gpu.1.value": (None, "h100"),
    }


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"starts_at": 1_800_000_000.0, "ends_at": 1_800_003_600.0}, {"start", "end"}),
        (
            {"schedule": ((0,), (8,), None, None, None), "duration_s": 3600},
            {"schedule", "duration"},
        ),
    ],
)
def test_a_reservation_tells_only_the_times_that_it_has(
    written: dict[str, Any], expected: set[str]
) -> None:
    """Once it is a start and an end, again and again a schedule and a duration: never both."""
    told = document_fields.fields(desired.Reservation("r", ("n",), **written))
    assert set(told) == {"hosts", "maintenance"} | expected


QUOTA = """\
apiVersion: muster/v1
kind: Quota
metadata: {name: q}
spec: {subject: {user: ada@example.org}, %s}
"""


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("jobs: {running: 1}", "jobs.running: 1"),
        ("budget: {gpuHours: 2}", "budget.gpuHours: 2"),
        ("budget: {gpuHours: 2, window: 7d, onExhausted: end}",
         "budget.gpuHours: 2, budget.window: 1w, budget.onExhausted: end"),
    ],
)  # fmt: skip
def test_a_new_object_is_told_without_what_nobody_wrote(written: str, told: str) -> None:
    structure = validate.check({"c.yaml": (QUOTA % written).encode()}).structure
    assert structure is not None
    (quota,) = structure.quotas.values()
    assert document_fields.summary(quota) == f"subject.user: ada@example.org, {told}"

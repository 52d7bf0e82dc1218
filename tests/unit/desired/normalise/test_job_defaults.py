"""Jobs and structure as normalised, and what is wrong with them, by one table each."""

import json
import subprocess

import pytest

from reconciler.desired.apply import validate
from reconciler.model import desired
from reconciler.model.values import exec_limits
from reconciler.model.values.resources import Resources
from tests.unit.desired.repositories import documents, job, queue

CLASSES = (
    "apiVersion: muster/v1\nkind: PriorityClass\nmetadata: {name: high}\n"
    "spec: {value: 90, preemptible: false}\n"
)


def load(*texts: str) -> desired.Desired:
    return validate.check({"x.yaml": documents(CLASSES, queue("q"), *texts).encode()})


def one(text: str) -> desired.Job:
    value = load(text)
    assert value.status.problems == ()
    return value.jobs["a"]


def test_defaults() -> None:
    made = one(job("a"))
    assert made.groups == (
        desired.TaskGroup("main", 1, Resources(1000, 0, 0), command=("echo",), environment={}),
    )
    assert made == desired.Job("a", 1, made.hash, "default", made.groups, path="x.yaml")


def test_group_sugar() -> None:
    made = one(
        job(
            "a",
            count=3,
            resources="{cpu: 500m, memory: 1Gi, gpu: 2}",
            environment="{A: x, B: y}",
            groups="[{name: w}, {name: v, count: 1, script: hi, resources: {}, environment: "
            "{B: z}}]",
        )
    )
    assert made.groups == (
        desired.TaskGroup(
            "w", 3, Resources(500, 2**30, 2000), ("echo",), None, {"A": "x", "B": "y"}
        ),
        desired.TaskGroup("v", 1, Resources(1000, 0, 0), (), "hi", {"A": "x", "B": "z"}),
    )


CASES = [
    ({"priority": 7}, "priority", 7),
    ({"priorityClass": "high"}, "priority", 90),
    ({"priorityClass": "high"}, "preemptible", False),
    ({"priorityClass": "high", "preemptible": "true"}, "preemptible", True),
    ({"timeLimit": "1h30m"}, "time_limit_s", 5400),
    ({"deadline": "2027-01-31T07:00:00+01:00"}, "deadline", 1_801_375_200.0),
    ({"terminationGrace": 5}, "grace_s", 5),
    ({"retries": "{limit: 2}"}, "retries", desired.Retries(2, 10, 600)),
    ({"retries": "{limit: 2}"}, "lease_s", 900),
    ({"retries": "{limit: 2}", "lease": "none"}, "lease_s", None),
    ({"lease": "5m"}, "lease_s", 300),
    ({}, "lease_s", None),
    ({"checkpoint": "{}"}, "lease_s", 900),
    (
        {"checkpoint": "{}"},
        "checkpoint",
        desired.Checkpoint("SIGTERM", 30, "checkpoints/a/1-30246e15"),
    ),
    ({"checkpoint": "{path: x/y}"}, "checkpoint", desired.Checkpoint("SIGTERM", 30, "x/y")),
    (
        {"checkpoint": "{path: x, to: all, signalBeforeLimit: 5m}"},
        "checkpoint",
        desired.Checkpoint("SIGTERM", 30, "x", to="all", before_limit_s=300),
    ),
    ({"array": "{count: 4, parallelism: 2}"}, "array_count", 4),
    ({"array": "{count: 4, parallelism: 2}"}, "parallelism", 2),
    ({"framework": "torchrun"}, "framework", "torchrun"),
]


@pytest.mark.parametrize(("spec", "field", "value"), CASES)
def test_fields(spec: dict[str, object], field: str, value: object) -> None:
    text = job("a", command="echo", **spec)
    assert getattr(one(text), field) == value


WRONG = [
    ({"script": "x"}, "command-or-script", "spec.script"),
    ({"groups": "[{name: a, command: [x], script: y}]"}, "command-or-script", None),
    ({"groups": "[{name: a}, {name: a}]"}, "duplicate-group", "spec.groups[1].name"),
    ({"priority": 1, "priorityClass": "high"}, "exclusive-fields", "spec.priority"),
    ({"priorityClass": "nobody"}, "unknown-priority-class", "spec.priorityClass"),
    ({"deadline": "2027-13-31T06:00:00Z"}, "bad-time", "spec.deadline"),
    ({"resources": "{cpu: 0.00001}"}, "bad-quantity", "spec.resources.cpu"),
    ({"timeLimit": "99999999999999999999w"}, "bad-quantity", "spec.timeLimit"),
    (
        {"checkpoint": "{requeueOnTimeLimit: true}"},
        "requeue-without-retries",
        "spec.checkpoint.requeueOnTimeLimit",
    ),
    (
        {"timeLimit": "5m", "checkpoint": "{signalBeforeLimit: 5m}"},
        "signal-before-start",
        "spec.checkpoint.signalBeforeLimit",
    ),
    ({"count": 9999, "groups": "[{name: a}, {name: b}]"}, "too-many-tasks", "spec.groups"),
    ({"count": 101, "array": "{count: 10000}"}, "too-many-tasks", "spec.array"),
    ({"count": 2, "resources": "{memory: 2048Pi}"}, "out-of-range", "spec.resources.memory"),
    (
        {"resources": "{memory: 1Pi}", "groups": "[{name: a}, {name: b, max: 2048, min: 1}]"},
        "out-of-range",
        "spec.resources.memory",
    ),
    (
        {"groups": "[{name: a}, {name: b, count: 999, resources: {cpu: 2400000000000000}}]"},
        "out-of-range",
        "spec.groups[1].resources.cpu",
    ),
    (
        {"resources": "{memory: 1Pi}", "array": "{count: 10000}"},
        "out-of-range",
        "spec.resources.memory",
    ),
    ({"dependsOn": "[{job: a}]"}, "depends-on-itself", "spec.dependsOn[0].job"),
    ({"dependsOn": "[{job: b, perElement: true}]"}, "per-element", None),
    ({"queue": "nowhere"}, "unknown-queue", "spec.queue"),
]


@pytest.mark.parametrize(("spec", "rule", "field"), WRONG)
def test_faults(spec: dict[str, object], rule: str, field: str | None) -> None:
    value = load(job("a", command="echo", **spec))
    assert set(value.refused) == {"a"}
    (problem,) = [one for one in value.status.problems if one.severity == "error"]
    assert problem.rule == rule
    assert field is None or problem.field == field
    assert problem.object == "Job/a"
    assert problem.line > 14


def quoted(size: int) -> str:
    return "'" + "x" * size + "'"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (f"script: {quoted(exec_limits.SCRIPT_BYTES_MAX)}", None),
        (f"script: {quoted(exec_limits.SCRIPT_BYTES_MAX + 1)}", "spec.script"),
        (f"command: [echo, {quoted(exec_limits.STRING_BYTES_MAX)}]", None),
        (f"command: [echo, {quoted(exec_limits.STRING_BYTES_MAX + 1)}]", "spec.command[1]"),
        (f"environment: {{A: {quoted(exec_limits.STRING_BYTES_MAX - 2)}}}", None),
        (f"environment: {{A: {quoted(exec_limits.STRING_BYTES_MAX - 1)}}}", "spec.environment.A"),
        (f"environment: {{A: {'é' * (exec_limits.STRING_BYTES_MAX // 2)}}}", "spec.environment.A"),
        (f"command: [{', '.join([quoted(100_000)] * 10)}]", None),
        (f"command: [{', '.join([quoted(100_000)] * 11)}]", "spec.command"),
        (f"groups: [{{name: g, script: {quoted(2**20 + 1)}}}]", "spec.groups[0].script"),
    ],
    ids=range(10),
)
def test_what_no_program_can_be_started_with_is_refused(spec: str, field: str | None) -> None:
    head = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  "
    default = "\n  command: [echo]" if spec.startswith("environment") else ""
    found = load(f"{head}{spec}{default}\n").status.problems
    assert [(one.rule, one.field) for one in found] == ([("too-large", field)] if field else [])
    assert all(len(one.text()) < 400 for one in found)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\necho hi\n", ""),
        ("echo hi\n", ""),
        ("# a comment\n\necho '#!/bin/sh' > x\n", ""),
        ("cat > x <<E\n#!/bin/sh\nE\n", ""),
        ("echo hi\r\n", ""),
        ("#!/bin/sh\r\necho hi\r\n", "its first line ends as in Windows"),
        ("\n#!/bin/bash\n[[ a ]]\n", "its #! line is line 2, where it counts for nothing"),
        ("# mine\n#!/usr/bin/env python3\n", "its #! line is line 2"),
        ("  #!/bin/bash\n", "its #! line is indented"),
        ("\ufeff#!/bin/bash\n", "its #! line is indented"),
        ("#!/bin/sh echo hi echo there\n", "there is nothing behind its first line"),
        ("#!/bin/sh\n\n  \n", "there is nothing behind its first line"),
    ],
)
def test_a_script_that_would_not_run_as_it_says_is_refused(script: str, why: str) -> None:
    """Each was accepted, and ended as "No such file" of the script, or ran below sh."""
    head = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: a}\nspec: "
    found = load(f"{head}{{script: {json.dumps(script)}}}\n").status.problems
    assert [(one.rule, one.field) for one in found] == (
        [("script-line", "spec.script")] if why else []
    )
    assert all(why in one.message for one in found)


@pytest.mark.parametrize(
    ("spec", "rule", "field"),
    [
        ("timeLimit: 0", "ends-at-once", "spec.timeLimit"),
        ("timeLimit: 0h", "ends-at-once", "spec.timeLimit"),
        ("timeLimit: 1s", None, None),
        ("resources: {memory: 4096}", "too-little-memory", "spec.resources.memory"),
        ("resources: {memory: 1000Ki}", "too-little-memory", "spec.resources.memory"),
        ("resources: {memory: 1Mi}", None, None),
        ("resources: {memory: 0}", None, None),
    ],
)
def test_amounts_with_which_nothing_runs_are_refused(
    spec: str, rule: str | None, field: str | None
) -> None:
    head = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  "
    found = load(f"{head}{spec}\n  command: [echo]\n").status.problems
    assert [(one.rule, one.field) for one in found] == ([(rule, field)] if rule else [])


@pytest.mark.parametrize("part", ["defaults", "maxima"])
def test_no_queue_ends_its_jobs_at_once(part: str) -> None:
    head = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: short}\nspec: "
    found = load(f"{head}{{{part}: {{timeLimit: 0}}}}\n").status.problems
    assert [(one.rule, one.field) for one in found] == [("ends-at-once", f"spec.{part}.timeLimit")]


def test_a_kernel_takes_what_is_let_through_and_not_one_byte_more() -> None:
    """One argument; how much it takes of all together hangs on the limit of its stack."""
    most = "x" * exec_limits.STRING_BYTES_MAX
    assert subprocess.run(["true", most], check=False).returncode == 0
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true", most + "x"], check=False)


def pool(name: str, spec: str) -> str:
    return (
        f"apiVersion: muster/v1\nkind: NodePool\nmetadata: {{name: {name}}}\n"
        f"spec: {{nodes: {{cpu: 8, memory: 32Gi, gpus: {{count: 2, model: H200}}}}, {spec}}}\n"
    )


CLUSTER = "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: NAME}\n"
ACCESS = (
    "apiVersion: muster/v1\nkind: Access\nmetadata: {name: p}\n"
    "spec: {identities: [{email: a@x.org, unixUser: a}, {email: b@x.org}]}\n"
)


@pytest.mark.parametrize(
    "address",
    [
        *("group:admins", "ann\\u200b@example.org", "\\u202Egro.elpmaxe@nna", "\\x1b[2Jann@x.org"),
        *("ann@x.org,bob@x.org", "ann\\xad@x.org", "ann\\ufeff@x.org"),
    ],
)
def test_an_address_is_one_and_can_be_seen(address: str) -> None:
    (problem,) = load(ACCESS.replace("b@x.org", f'"{address}"')).status.problems
    assert problem.field == "spec.identities[1].email"


@pytest.mark.parametrize(
    ("image", "refused"),
    [
        ("docker.io/library/busybox:1@sha256:00ff", False),
        *((image, True) for image in ("a b", "busybox --privileged", "a\\nb", "a\\u200bb")),
    ],
)
@pytest.mark.parametrize("runtime", ["podman", "apptainer"])
def test_an_image_is_one_word(runtime: str, image: str, *, refused: bool) -> None:
    found = load(job("a", image=f'"{image}"', runtime=runtime)).status.problems
    assert [(one.rule, one.field) for one in found] == [("bad-image", "spec.image")] * refused


@pytest.mark.parametrize(("written", "days"), [("399d", 399), ("730d", 400)])
def test_a_budget_counts_no_longer_than_what_is_spent_is_kept(written: str, days: int) -> None:
    value = load(BUDGET % written)
    assert value.status.problems == ()
    assert value.structure.quotas["b"].window_s == days * 86_400


def test_structure() -> None:
    value = load(
        queue("child", parent="root", guaranteed="{gpu: 2}"),
        queue("root", guaranteed="{gpu: 4, cpu: 500m}", limit="{gpu: 8, memory: 1Gi}"),
        pool("s", "hosts: 'g[1-2]', overrides: [{hosts: g2, reason: fan, owner: ops}]"),
        pool("v", "count: 2, provisioner: virtual, mode: observe, labels: {gpu-model: other}"),
        CLUSTER.replace("NAME", "c") + "spec: {lease: 10m, retention: {events: 1d, audit: 1d}}\n",
        ACCESS,
    )
    assert value.status.problems == ()
    made = value.structure
    assert list(made.queues) == ["default", "q", "root", "child"]
    assert made.queues["root"].guaranteed == desired.QuotaAmounts(500, None, 4000)
    assert made.queues["root"].limit == desired.QuotaAmounts(None, 2**30, 8000)
    assert made.pools["s"].nodes == ("g1", "g2")
    assert made.pools["s"].drains == {"g2": desired.NodeDrain("fan", "ops")}
    assert made.pools["s"].labels == {"gpu-model": "H200"}
    assert made.pools["v"].nodes == ("v-0", "v-1")
    assert made.pools["v"].labels == {"gpu-model": "other"}
    assert made.pools["v"].observe_only
    assert made.settings == desired.ClusterSettings(
        name=made.settings.name, lease_s=600, retain_events_s=86_400, retain_audit_s=86_400
    )
    assert made.settings.name
    assert made.unix_users == {"a@x.org": "a"}


POOL = pool("p", "hosts: n1")  # two GPUs

SHORT = "spec: {retention: {audit: %s}}\n"

BUDGET = (
    "apiVersion: muster/v1\nkind: Quota\nmetadata: {name: b}\n"
    "spec: {subject: {queue: default}, budget: {gpuHours: 5, window: %s}}\n"
)

BAD = [
    ([BUDGET % "59m"], ["out-of-range"]),
    ([BUDGET % "9999999999999999999d"], ["bad-quantity"]),
    ([CLUSTER.replace("NAME", "c") + SHORT % "1m"], ["short-retention"]),
    ([CLUSTER.replace("NAME", "c") + SHORT % "0s"], ["short-retention"]),
    ([queue("c", parent="nobody")], ["unknown-parent"]),
    ([queue("a", parent="b"), queue("b", parent="a")], ["parent-cycle", "parent-cycle"]),
    ([queue("a", parent="a")], ["parent-cycle"]),
    (
        [queue("a", guaranteed="{gpu: 1}"), queue("b", parent="a", guaranteed="{gpu: 2}")],
        ["guarantees-exceed-parent"],
    ),
    ([queue("a", guaranteed="{gpu: 3}", limit="{gpu: 2}")], ["limit-below-guaranteed"]),
    (
        [queue("a", limit="{gpu: 2}"), queue("b", parent="a", guaranteed="{gpu: 3}")],
        ["limit-below-guaranteed"],
    ),
    ([pool("a", "hosts: 'n[1-3]'"), pool("b", "hosts: 'n[3-4]'")], ["host-in-two-pools"]),
    ([pool("a", "hosts: 'n[1-3]'").replace("32Gi", "1024Pi")], ["out-of-range"]),
    ([pool(n, f"hosts: {n}").replace("32Gi", "1024Pi") for n in "abc"], ["out-of-range"]),
    (
        [pool("a", "hosts: n1, overcommit: {memory: 2.5}").replace("32Gi", "1024Pi")],
        ["out-of-range"],
    ),
    ([pool("a", "count: 1")], ["exclusive-fields", "missing-field"]),
    ([pool("a", "provisioner: virtual")], ["missing-field"]),
    ([pool("a", "hosts: 'n[3-'")], ["bad-host-list"]),
    ([pool("a", "hosts: n1, overrides: [{hosts: n2, reason: x}]")], ["unknown-host"]),
    ([CLUSTER.replace("NAME", "a"), CLUSTER.replace("NAME", "b")], ["two-clusters"]),
    ([queue("q")], ["duplicate-name"]),
    ([queue("c", flavors="[{pool: nowhere}]")], ["unknown-pool"]),
    ([POOL, queue("c", flavors="[{pool: p}, {pool: p}]")], ["duplicate-pool"]),
    ([POOL, queue("c", flavors="[{pool: p, guaranteed: {gpu: 3}}]")], ["guarantees-exceed-pool"]),
    (
        [POOL, *[queue(n, flavors="[{pool: p, guaranteed: {gpu: 2}}]") for n in ("c", "d")]],
        ["guarantees-exceed-pool"],
    ),
    (
        [POOL, queue("c", guaranteed="{gpu: 1}", flavors="[{pool: p, guaranteed: {gpu: 2}}]")],
        ["pools-exceed-cluster"],
    ),
    (
        [
            POOL,
            queue("c", flavors="[{pool: p, guaranteed: {gpu: 1}}]"),
            queue("d", parent="c", flavors="[{pool: p, guaranteed: {gpu: 2}}]"),
        ],
        ["guarantees-exceed-parent"],
    ),
    (
        [POOL, queue("c", flavors="[{pool: p, guaranteed: {gpu: 2}, limit: {gpu: 1}}]")],
        ["limit-below-guaranteed"],
    ),
    (
        [ACCESS, ACCESS.replace("name: p", "name: o").replace("User: a", "User: b")],
        ["two-unix-users"],
    ),
]


@pytest.mark.parametrize(("texts", "rules"), BAD)
def test_bad_structure(texts: list[str], rules: list[str]) -> None:
    value = load(*texts)
    assert sorted(p.rule for p in value.status.problems) == rules
    assert all(p.line and p.object for p in value.status.problems)
    assert list(value.structure.queues) == ["default"]


def test_a_job_that_fits_nowhere_is_a_warning() -> None:
    value = load(
        pool("p", "hosts: n1"),
        job("a", resources="{gpu: 3}"),
        job("b", resources="{gpu: 2}"),
        job("c", pools="[nobody]"),
        job("d", nodeSelector="{gpu-model: H100}"),
    )
    assert set(value.jobs) == {"a", "b", "c", "d"}
    assert value.status.sync == "Synced"
    warnings = {p.object: p.message for p in value.status.problems}
    assert set(warnings) == {"Job/a", "Job/c", "Job/d"}
    assert "3 GPUs asked, 2 there" in warnings["Job/a"]

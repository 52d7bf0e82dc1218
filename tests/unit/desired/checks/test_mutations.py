"""Jobs as policies change them before they are checked."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.desired.apply import loader, structure, validate
from reconciler.desired.checks import job_validator, mutations, submission_checks
from reconciler.desired.documents import document_reader
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.state import records
from reconciler.model.state.states import JobState
from reconciler.operations.plan import document_fields
from reconciler.operations.views import job_views, view_types
from tests.unit.desired.repositories import Repository

UNLIMITED = {"properties": {"spec": {"not": {"required": ["timeLimit"]}}}}


def document(kind: str, name: str, spec: Any, **metadata: Any) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "muster/v1",
            "kind": kind,
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }
    )


def policy(name: str, *mutate: Any, **spec: Any) -> bytes:
    return document("Policy", name, {"match": {"kinds": ["Job"]}, "mutate": list(mutate), **spec})


def placed(*documents: bytes) -> list[structure.Placed]:
    return [
        structure.Placed(f"{number}.yaml", one)
        for number, data in enumerate(documents)
        for one in document_reader.read(data).documents
    ]


def faults_of(*documents: bytes) -> list[tuple[str, str]]:
    basis, noted = structure.build(placed(*documents))
    assert basis is None
    return [(fault.rule, ".".join(map(str, fault.path))) for _, fault in noted]


def judged(
    spec: dict[str, Any], *documents: bytes, now: float = 0.0, **metadata: Any
) -> tuple[desired.Job | None, list[str]]:
    """Return a job under policies, and what is wrong with it."""
    basis, noted = structure.build(placed(*documents))
    assert basis is not None, noted
    (item,) = placed(document("Job", "j", {"command": ["true"], **spec}, **metadata))
    part = item.document.part
    assert isinstance(part, job_spec.JobDocument)
    validator = job_validator.JobValidator(basis)
    job, faults, _ = validator.job(part, item.document.hash, "j.yaml", now)
    return job, [f"{fault.rule}: {fault.message}" for fault in faults]


def set_in(job: desired.Job | None) -> list[tuple[str, str, str]]:
    assert job is not None
    return [(one.policy, one.field, one.value) for one in job.mutations]


def test_a_patch_is_made_where_its_schema_holds() -> None:
    limited = policy("limit", {"when": UNLIMITED, "patch": {"spec": {"timeLimit": "4h"}}})
    job, faults = judged({}, limited)
    assert faults == []
    assert job is not None
    assert job.time_limit_s == 4 * 3600
    assert set_in(job) == [("limit", "spec.timeLimit", '"4h"')]
    assert job.mutated == ("time_limit_s",)
    job, _ = judged({"timeLimit": "1h"}, limited)
    assert job is not None
    assert (job.time_limit_s, job.mutations, job.mutated) == (3600, (), ())


def test_the_hash_is_that_of_the_document_as_written() -> None:
    changed, _ = judged({}, policy("p", {"patch": {"spec": {"environment": {"A": "x"}}}}))
    plain, _ = judged({})
    assert changed is not None
    assert plain is not None
    assert changed.groups[0].environment == {"A": "x"}
    assert changed.hash == plain.hash


def test_policies_come_in_the_order_of_their_names_and_see_what_was_changed() -> None:
    second = policy(
        "b",
        {
            "when": {"properties": {"metadata": {"required": ["labels"]}}},
            "patch": {"spec": {"timeLimit": "2h"}},
        },
    )
    first = policy("a", {"patch": {"metadata": {"labels": {"tier": "x"}}}})
    for order in ([first, second], [second, first]):
        job, _ = judged({}, *order)
        assert set_in(job) == [
            ("a", "metadata.labels.tier", '"x"'),
            ("b", "spec.timeLimit", '"2h"'),
        ]


def test_null_removes_a_field() -> None:
    job, _ = judged({"timeLimit": "9h"}, policy("p", {"patch": {"spec": {"timeLimit": None}}}))
    assert job is not None
    assert job.time_limit_s is None
    assert set_in(job) == [("p", "spec.timeLimit", "")]


def test_changes_come_before_the_checks_of_policies() -> None:
    need = document(
        "Policy",
        "a-need",
        {
            "match": {"kinds": ["Job"]},
            "schema": {"properties": {"spec": {"required": ["timeLimit"]}}},
            "message": "say how long",
        },
    )
    assert judged({}, need)[1] == ["policy/a-need: say how long"]
    job, faults = judged({}, need, policy("limit", {"patch": {"spec": {"timeLimit": "4h"}}}))
    assert job is not None
    assert faults == []


def test_a_patch_may_go_by_queue_and_label() -> None:
    queue = document("Queue", "top", {})
    below = document("Queue", "below", {"parent": "top"})
    other = document("Queue", "other", {})
    match = {"kinds": ["Job"], "queues": ["top"], "labels": {"a": "b"}}
    rule = policy("p", {"patch": {"spec": {"timeLimit": "1h"}}}, match=match)
    for name, labels, changes in (
        ("below", {"a": "b"}, True),
        ("top", {}, False),
        ("other", {"a": "b"}, False),
    ):
        job, _ = judged({"queue": name}, queue, below, other, rule, labels=labels)
        assert bool(set_in(job)) is changes, name


def test_who_is_let_off_is_not_changed_until_then() -> None:
    waiver = {"object": "Job/j", "reason": "paper", "expires": "1970-01-02T00:00:00Z"}
    rule = policy("p", {"patch": {"spec": {"timeLimit": "1h"}}}, waivers=[waiver])
    assert set_in(judged({}, rule, now=10.0)[0]) == []
    assert len(set_in(judged({}, rule, now=90_000.0)[0])) == 1


def test_what_makes_a_job_invalid_is_told_with_the_policy() -> None:
    job, (said,) = judged({}, policy("p", {"patch": {"spec": {"count": "many"}}}))
    assert job is None
    assert said.startswith("policy/p: spec.mutate[0] of the policy makes the job invalid: ")
    assert "$.spec.count" in said
    job, (said,) = judged({}, policy("p", {"patch": {"spec": {"priorityClass": "none"}}}))
    assert job is None
    assert said.startswith("unknown-priority-class: ")
    assert said.endswith("(after changes by policy/p)")


@pytest.mark.parametrize(
    ("patch", "place"),
    [
        ({"spec": {"owner": "eve@example.org"}}, "patch.spec.owner"),
        ({"spec": {"queue": "top"}}, "patch.spec.queue"),
        ({"spec": {"run": 2}}, "patch.spec.run"),
        ({"spec": {"array": {"count": 2}}}, "patch.spec.array"),
        ({"spec": {"dependsOn": []}}, "patch.spec.dependsOn"),
        ({"spec": {"timelimit": "1h"}}, "patch.spec.timelimit"),
        ({"metadata": {"name": "k"}}, "patch.metadata.name"),
        ({"metadata": {"annotations": {"muster/prune": "auto"}}}, "patch.metadata.annotations"),
        ({"spec": {"groups": {"*": {"name": "x"}}}}, "patch.spec.groups.*.name"),
        ({"spec": {"groups": {"*": {"timeLimit": "1h"}}}}, "patch.spec.groups.*.timeLimit"),
        ({"spec": {"groups": {"*": None}}}, "patch.spec.groups.*"),
        ({"spec": {"groups": {"worker": {"count": 1}}}}, "patch.spec.groups.worker"),
        ({"kind": "Queue"}, "patch.kind"),
        ({"apiVersion": "muster/v2"}, "patch.apiVersion"),
        ({"spec": None}, "patch.spec"),
    ],
)
def test_what_says_whose_a_job_is_stays(patch: dict[str, Any], place: str) -> None:
    rule = policy("p", {"patch": patch})
    assert faults_of(rule) == [("mutation-field", f"spec.mutate.0.{place}")]


def test_a_policy_that_can_not_be_meant_is_refused() -> None:
    rule = policy("p", {"patch": {"spec": {"script": "x" * 20_000}}})
    assert faults_of(rule) == [("mutation-size", "spec.mutate.0.patch")]
    deep: Any = "x"
    for _ in range(25):
        deep = {"a": deep}
    assert (
        faults_of(policy("p", {"patch": {"spec": {"environment": deep}}}))[0][0] == "mutation-size"
    )
    rule = policy("p", {"patch": {}}, match={"kinds": ["Job", "Queue"]})
    assert faults_of(rule) == [("mutation-kind", "spec.match.kinds")]
    rule = policy("p", {"when": {"type": 7}, "patch": {}})
    assert faults_of(rule) == [("bad-schema", "spec.mutate.0.when.type")]
    assert faults_of(policy("p")) == [("empty-policy", "spec")]
    rule = policy("p", schema={"type": "object"})
    assert faults_of(rule) == [("policy-message", "spec.message")]


def test_a_condition_that_takes_too_much_refuses_the_job() -> None:
    slow = {"properties": {"metadata": {"properties": {"annotations": {"properties": {
        "note": {"pattern": "^(a|aa)+$"}}}}}}}  # fmt: skip
    rule = policy("p", {"when": slow, "patch": {"spec": {"timeLimit": "1h"}}})
    job, (said,) = judged({}, rule, annotations={"note": "a" * 60 + "!"})
    assert job is None
    assert said.startswith("policy/p: spec.mutate[0].when of the policy can't be judged: ")


RESOURCES = {"gpu": 1, "memory": "8Gi"}
GROUPS = [
    {"name": "plain", "environment": {"B": "own"}},
    {"name": "own", "resources": {"gpu": 8, "cpu": 2}, "environment": {"A": "own"}},
]


def test_a_group_does_not_get_round_a_policy() -> None:
    """What a group has of its own is patched, and what it takes from the job is the job's."""
    rule = policy(
        "p",
        {
            "patch": {
                "spec": {
                    "resources": {"gpu": 1},
                    "environment": {"A": "site"},
                    "groups": {"*": {"resources": {"gpu": 1}, "environment": {"A": "site"}}},
                }
            }
        },
    )
    job, faults = judged({"resources": RESOURCES, "groups": GROUPS}, rule)
    assert faults == []
    assert job is not None
    plain, own = job.groups
    assert (plain.resources.gpu_milli, plain.resources.memory_bytes) == (1000, 8 * 2**30)
    assert (own.resources.gpu_milli, own.resources.cpu_milli) == (1000, 2000)
    assert own.resources.memory_bytes == 0, "it is not given what the job has"
    assert plain.environment == {"A": "site", "B": "own"}
    assert own.environment == {"A": "site"}
    assert "spec.groups" in [field for _, field, _ in set_in(job)]
    alone, faults = judged({"resources": RESOURCES}, rule)
    assert faults == []
    assert alone is not None
    assert [group.name for group in alone.groups] == ["main"]


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"resources": {"gpu": 1}}, ["resources"]),
        ({"resources": {"gpu": 1}, "groups": {"*": {"resources": {"cpu": 1}}}}, ["resources"]),
        ({"resources": {"gpu": 1}, "groups": {"*": {"resources": {"gpu": 1}}}}, []),
        ({"resources": {"gpu": 1}, "groups": {"*": {"resources": None}}}, []),
        ({"resources": {"gpu": 1}, "groups": [{"name": "one"}]}, []),
        ({"command": ["a"], "environment": {"A": "b"}}, ["command", "environment"]),
        ({"timeLimit": "1h", "priorityClass": "low"}, []),
    ],
)
def test_a_policy_that_groups_get_round_is_warned_of(
    spec: dict[str, Any], fields: list[str]
) -> None:
    basis, noted = structure.build(placed(policy("p", {"patch": {"spec": spec}})))
    assert basis is not None, "a warning refuses nothing"
    found = [
        (fault.rule, fault.severity, fault.path[-1])
        for _, fault in noted
        if fault.rule.startswith("mutation")
    ]
    assert found == [("mutation-groups", "warning", name) for name in fields]


def test_a_submitter_is_told_what_policies_set() -> None:
    basis, _ = structure.build(placed(policy("p", {"patch": {"spec": {"timeLimit": "1h"}}})))
    assert basis is not None
    data = document("Job", "j", {"command": ["true"]})
    found = submission_checks.SubmissionValidator(basis.structure).problems(
        "j.yaml", data, document_reader.read(data), 0.0
    )
    assert [(one.rule, one.severity, one.message) for one in found] == [
        ("policy/p", "warning", 'sets spec.timeLimit to "1h"')
    ]


def test_a_policy_in_git_changes_jobs_that_are_in_force_and_goes_again(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "state.git")
    repository.commit({"a.yaml": document("Job", "a", {"command": ["true"]})})
    reader = loader.Loader(source.GitSource(str(repository.path), branch="main"))
    try:
        key = reader.load().jobs["a"].key
        rule = policy("p", {"patch": {"spec": {"timeLimit": "1h"}}})
        repository.commit({"p.yaml": rule})
        changed = reader.load().jobs["a"]
        assert (changed.time_limit_s, changed.key) == (3600, key)
        # what a policy makes invalid stays as it was, and says why
        repository.commit({"p.yaml": policy("p", {"patch": {"spec": {"deadline": "soon"}}})})
        state = reader.load()
        assert state.jobs["a"] == changed
        assert [one.rule for one in reader.last.status.problems] == ["policy/p"]
        repository.commit({"p.yaml": None})
        plain = reader.load().jobs["a"]
        assert (plain.time_limit_s, plain.mutations, plain.key) == (None, (), key)
    finally:
        reader.close()


def test_a_plan_says_what_a_policy_sets() -> None:
    rule = policy("p", {"patch": {"spec": {"timeLimit": "1h"}}})
    states = [
        validate.check({"a.yaml": document("Job", "a", {"command": ["true"]}), **more}, now=0.0)
        for more in ({}, {"p.yaml": rule})
    ]
    before, after = (document_fields.fields(one.jobs["a"]) for one in states)
    assert dict(after.items() - before.items()) == {
        "timeLimit": "1h",
        "setByPolicy.spec.timeLimit": '"1h" by policy p',
    }


def test_a_view_of_a_job_says_what_policies_set() -> None:
    job, _ = judged({}, policy("p", {"patch": {"spec": {"timeLimit": "1h"}}}))
    assert job is not None
    record = records.JobRecord(job, JobState.PENDING, b"\0", 0.0)
    shown = job_views.job_view(record).set_by_policy
    assert shown == [view_types.FieldMutationView("p", "spec.timeLimit", '"1h"')]


VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_merge_patches_are_those_of_the_standard(target: Any, patch: Any) -> None:
    kept = json.dumps(target)
    found = mutations.merged(target, patch)
    assert json.dumps(target) == kept
    # a patch is idempotent, and what it does not name stays
    assert mutations.merged(found, patch) == found
    if isinstance(patch, dict) and isinstance(target, dict):
        assert {k: v for k, v in found.items() if k not in patch} == {
            k: v for k, v in target.items() if k not in patch
        }
        assert all(found.get(k) == v for k, v in patch.items() if not isinstance(v, dict))


@pytest.mark.parametrize(
    ("target", "patch", "found"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_the_standard(target: Any, patch: Any, found: Any) -> None:
    assert mutations.merged(target, patch) == found

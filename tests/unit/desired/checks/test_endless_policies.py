"""A policy whose references lead to ever more of them comes to an end, and costs nobody else."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from reconciler.desired.checks import policies, policy_process, safe_patterns
from reconciler.desired.documents import document_reader
from reconciler.model import desired
from tests.unit.desired.loaders import Loaders, Make
from tests.unit.desired.repositories import Repository, job, queue


def chain(length: int, last: str = "nope") -> dict[str, Any]:
    """A schema whose judgement takes two to the power of ``length`` references."""
    parts: dict[str, Any] = {"d0": {"const": last}}
    for number in range(1, length + 1):
        parts[f"d{number}"] = {"anyOf": [{"$ref": f"#/$defs/d{number - 1}"}] * 2}
    return {"$defs": parts, "$ref": f"#/$defs/d{length}"}


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    with contextlib.closing(Loaders(repository, lambda: 5.0)) as made:
        yield made.make


def policy(schema: dict[str, Any]) -> str:
    return (
        "apiVersion: muster/v1\nkind: Policy\nmetadata: {name: slow}\n"
        f"spec: {{match: {{kinds: [Job]}}, message: no, schema: {json.dumps(schema)}}}\n"
    )


def test_a_policy_that_comes_to_no_end_is_refused_and_jobs_go_on(
    repository: Repository, make: Make
) -> None:
    repository.commit({"q.yaml": queue("q"), "a.yaml": job("a", queue="q")})
    one = make()
    one.load()
    repository.commit({"p.yaml": policy(chain(35)), "b.yaml": job("b", queue="q")})
    value = one.load()
    assert set(value.jobs) == {"a", "b"}
    (told,) = value.status.problems
    assert (told.rule, told.object) == ("bad-schema", "Policy/slow")
    assert "more than 10000 references" in told.message


def test_a_policy_that_comes_to_no_end_on_an_object_is_tried_once_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = desired.AdmissionPolicy("slow", "no", json.dumps(chain(35)), kinds=("Queue",), path="p")
    rules = policies.PolicyRules({"slow": rule})
    part = document_reader.read(queue("q").encode()).documents[0].part
    assert part is not None
    (first,) = rules.faults("Queue", "q", part, 0.0)
    assert first.rule == "policy/slow"
    assert first.severity == "error"
    assert "cannot be applied to this object" in first.message
    monkeypatch.setattr(policy_process.PolicyProcess, "_ask", None)
    assert rules.faults("Queue", "q", part, 0.0) == [first]


def test_a_policy_that_comes_to_no_end_on_an_object_judges_others(
    repository: Repository, make: Make
) -> None:
    """Only who writes a queue like that is refused, before and after it is there."""
    endless = chain(35)
    schema = {
        "$defs": endless["$defs"],
        "if": {"properties": {"metadata": {"required": ["labels"]}}},
        "then": {"$ref": endless["$ref"]},
    }
    repository.commit({"p.yaml": policy(schema), "q.yaml": queue("q")})
    one = make()
    one.load()
    mean = job("a-mean", queue="q").replace("{name: a-mean}", "{name: a-mean, labels: {x: y}}")
    assert "labels" in mean
    repository.commit({"a.yaml": mean, "b.yaml": job("b", queue="q"), "z.yaml": job("z")})
    value = one.load()
    assert set(value.jobs) == {"b", "z"}
    (told,) = value.status.problems
    assert (told.rule, told.object) == ("policy/slow", "Job/a-mean")
    repository.commit({"c.yaml": job("c", queue="q")})
    assert set(one.load().jobs) == {"b", "c", "z"}


def test_a_few_references_are_followed() -> None:
    schema = {
        "$defs": {"name": {"pattern": "^a"}},
        "properties": {"spec": {"properties": {"owner": {"$ref": "#/$defs/name"}}}},
    }
    validator = safe_patterns.validator(schema)
    for _ in range(3):
        with safe_patterns.bounded():
            assert validator.is_valid({"spec": {"owner": "ada"}})
            assert not validator.is_valid({"spec": {"owner": "bob"}})
            assert [one.json_path for one in validator.iter_errors({"spec": {"owner": "b"}})] == [
                "$.spec.owner"
            ]


def test_each_object_may_follow_as_many() -> None:
    validator = safe_patterns.validator(chain(10))
    for _ in range(20):
        with safe_patterns.bounded():
            assert not validator.is_valid({})

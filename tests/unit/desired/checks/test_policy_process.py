"""A schema that takes too much time or memory costs its policy, and nobody else."""

import contextlib
import json
import os
import signal
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from reconciler.desired.checks import (
    policies,
    policy_answers,
    policy_process,
    policy_worker,
    safe_patterns,
)
from reconciler.desired.documents import document_reader
from reconciler.model import desired
from tests.unit.desired.checks.test_endless_policies import policy
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, job, queue

#: It takes longer than a minute to compile.
SLOW_TO_COMPILE = {"pattern": "(?i:" + r"(?:[^\W\d_]|ß)" * 100_000 + ")"}
OWNED = {"properties": {"spec": {"required": ["owner"]}}}


def many_searches(count: int = 20_000) -> dict[str, Any]:
    """A schema with as many patterns for each variable of a job, each of them fast."""
    each = {"allOf": [{"pattern": "^x"}] * count}
    return {"properties": {"spec": {"properties": {"environment": {"additionalProperties": each}}}}}


@pytest.fixture
def process() -> Iterator[policy_process.PolicyProcess]:
    with contextlib.closing(policy_process.PolicyProcess()) as made:
        yield made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[policy_process.PolicyProcess]:
    """The process that all use, with less patience."""
    with contextlib.closing(policy_process.PolicyProcess(answer_s_max=2.0)) as made:
        monkeypatch.setattr(policy_process, "SHARED", made)
        monkeypatch.setattr(policies, "_checked", OrderedDict())
        yield made


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    with contextlib.closing(Loaders(repository, lambda: 5.0)) as made:
        yield made.make


def test_a_new_policy_over_a_limit_is_refused_alone(
    repository: Repository, make: Make, hasty: policy_process.PolicyProcess
) -> None:
    del hasty
    repository.commit({"q.yaml": queue("q"), "a.yaml": job("a", queue="q")})
    one = make()
    one.load()
    repository.commit(
        {
            "p.yaml": policy(SLOW_TO_COMPILE),
            "owned.yaml": policy(OWNED).replace("slow", "owned"),
            "other.yaml": queue("other"),
            "b.yaml": job("b", queue="other"),
            "c.yaml": job("c", queue="other", owner="ada@x.org"),
        }
    )
    for value in (one.load(), restarted(make, one).load()):
        assert value.structure.policies.keys() == {"owned"}
        assert set(value.jobs) == {"a", "c"}
        (told,) = (one for one in value.status.problems if one.rule == "bad-schema")
        assert told.object == "Policy/slow"
        assert "its schema can't be checked: it takes longer than 2 s: write it" in told.message


def test_a_changed_policy_over_a_limit_keeps_its_last_version_and_judges_by_it(
    repository: Repository, make: Make, hasty: policy_process.PolicyProcess
) -> None:
    del hasty
    repository.commit({"p.yaml": policy(OWNED), "a.yaml": job("a", owner="ada@x.org")})
    one = make()
    before = one.load().structure.policies
    repository.commit({"p.yaml": policy(SLOW_TO_COMPILE), "b.yaml": job("b"), "q.yaml": queue("q")})
    for value in (one.load(), restarted(make, one).load()):
        assert value.structure.policies == before
        assert "q" in value.structure.queues
        assert set(value.jobs) == {"a"}
        assert {p.rule for p in value.status.problems} == {"bad-schema", "policy/slow"}


def test_a_policy_in_force_is_not_checked_again_after_a_restart(
    repository: Repository, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"p.yaml": policy(OWNED), "a.yaml": job("a", owner="ada@x.org")})
    one = make()
    value = one.load()
    policies._checked.clear()

    def fail(*_: object) -> None:
        raise policy_process.PolicyLimitError("it takes longer than it did")

    monkeypatch.setattr(policy_process.PolicyProcess, "faults", fail)
    again = restarted(make, one).load()
    assert again.structure == value.structure
    assert again.status.sync == "Synced"


def test_a_policy_that_takes_too_long_on_an_object_is_told_and_others_go_on(
    hasty: policy_process.PolicyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {
        name: desired.AdmissionPolicy(name, "no", json.dumps(schema), kinds=("Job",), path="p")
        for name, schema in (("owned", OWNED), ("slow", many_searches()))
    }
    rules = policies.PolicyRules(made)
    text = job("a", environment="{" + ", ".join(f"A{n}: xx" for n in range(3_000)) + "}")
    part = document_reader.read(text.encode()).documents[0].part
    assert part is not None
    found = {one.rule: one.message for one in rules.faults("Job", "a", part, 0.0)}
    assert found["policy/owned"] == "no"
    told = "the policy cannot be applied to this object: it takes longer than 2 s"
    assert found["policy/slow"].startswith(told)
    ask, asked = hasty._ask, []

    def counted(request: dict[str, Any]) -> policy_answers.PolicyAnswer:
        asked.extend(request["schemas"])
        return ask(request)

    monkeypatch.setattr(hasty, "_ask", counted)
    assert len(rules.faults("Job", "a", part, 0.0)) == 2
    assert asked == [json.dumps(OWNED)], "the other is not tried again"


def test_the_time_of_the_processor_is_bounded(process: policy_process.PolicyProcess) -> None:
    with pytest.raises(policy_process.PolicyLimitError, match="more than 5 s of processor time"):
        process.faults(json.dumps(SLOW_TO_COMPILE))
    assert process.faults(json.dumps(OWNED)) == []


def test_the_memory_is_bounded(process: policy_process.PolicyProcess) -> None:
    (found,) = process.violations(["{}"], [{"": 0}] * 5_000_000, 1.0)
    assert found is not None
    assert "more than 1024 MiB of memory" in found.endless
    # another schema: on a slow machine this one is not applied for a while
    assert process.violations(["true", "false"], 1, 1.0)[0] is None


def test_a_child_that_died_is_replaced(process: policy_process.PolicyProcess) -> None:
    assert process.faults("{}") == []
    child = process._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert process.faults("{}") == []


def test_schemas_that_take_long_do_not_take_for_ever(
    process: policy_process.PolicyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_process, "LOST_S_MAX", 0.1)
    monkeypatch.setattr(process, "_answer_s_max", 0.3)
    with pytest.raises(policy_process.PolicyLimitError, match="longer than 0"):
        process.faults(json.dumps(SLOW_TO_COMPILE))
    monkeypatch.setattr(process, "_ask", None)
    with pytest.raises(policy_process.UndecidedPolicyError, match="with a later revision"):
        process.faults(json.dumps(OWNED))


def test_the_searches_of_one_object_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"additionalProperties": {"pattern": "^(a|aa)+$"}}
    value = {str(number): "a" * 29 + "!" for number in range(200)}
    validator = safe_patterns.validator(schema)
    with (
        pytest.raises(safe_patterns.SlowPatternError),
        safe_patterns.bounded(0.3),
    ):
        list(validator.iter_errors(value))


def test_the_worker_answers_as_the_process_asks() -> None:
    answer = policy_worker.answer({"schemas": ["false"], "value": 1, "searchesS": 1.0})
    assert answer.violations[0] is not None
    assert policy_worker.answer({"schema": '{"type": "x"}'}).faults


def test_what_took_too_long_is_not_tried_again_on_the_same_value(
    process: policy_process.PolicyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A structure is tried up to forty times, each time with rules that know nothing."""
    asked: list[object] = []
    ask = process._ask

    def counted(request: dict[str, object]) -> policy_answers.PolicyAnswer:
        asked.append(request["value"])
        if request["value"] == "long":
            raise policy_process.PolicyLimitError("it takes longer than it may")
        return ask(request)

    monkeypatch.setattr(process, "_ask", counted)
    for _ in range(3):
        found = process.violations(["{}", "false"], "long", 1.0)
        assert [one is not None and "longer" in one.endless for one in found] == [True, True]
    assert asked == ["long"] * 3  # together, and each alone, once
    assert process.violations(["{}"], "short", 1.0) == [None]


def test_a_number_that_a_schema_can_not_be_applied_to_is_no_lack_of_memory(
    process: policy_process.PolicyProcess,
) -> None:
    (found,) = process.violations(['{"multipleOf": 0.5}'], 10**400, 1.0)
    assert found is not None
    assert "can't be applied to a number there" in found.broken


TOLD = "it takes longer than it may"


def test_an_owner_whose_objects_take_too_long_waits_and_others_do_not(
    process: policy_process.PolicyProcess,
) -> None:
    process._exceeded("{}", "long", "bob", TOLD, 15.0)
    (first,) = process.violations(["{}"], "long", 1.0, "ada")
    assert first is not None
    assert first.endless == TOLD
    (second,) = process.violations(["{}"], "short", 1.0, "bob")
    assert second is not None
    assert "other objects of bob took it too long" in second.paused
    assert 90 < second.pause_s <= 100
    (third,) = process.violations(["false"], "short", 1.0, "bob")
    assert third is not None
    assert not third.paused, "another policy judges on"
    assert process.violations(["{}"], "short", 1.0, "ada") == [None]


def test_a_schema_that_takes_too_long_on_many_objects_waits(
    process: policy_process.PolicyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        process._exceeded("{}", f"long {number}", f"user-{number}", TOLD, 9.0)
    monkeypatch.setattr(process, "_ask", None)
    for number in range(20):
        (found,) = process.violations(["{}"], f"short {number}", 1.0, f"user-{number}")
        assert found is not None
        assert found.paused.startswith("other objects took it too long")


def test_the_time_that_a_schema_costs_others_beside_it_counts_as_well(
    process: policy_process.PolicyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together with others it takes too long, and once more alone; the next one pays for itself."""
    now = 0.0

    def ask(request: dict[str, Any]) -> policy_answers.PolicyAnswer:
        nonlocal now
        if not {"slow", "slower"}.isdisjoint(request["schemas"]):
            now += 4.0
            raise policy_process.PolicyLimitError(TOLD)
        return policy_answers.PolicyAnswer(violations=[None])

    monkeypatch.setattr(process, "_ask", ask)
    monkeypatch.setattr(policy_process, "time", types.SimpleNamespace(monotonic=lambda: now))
    counted: list[tuple[object, float]] = []
    monkeypatch.setattr(process, "_exceeded", lambda *given: counted.append((given[0], given[-1])))
    process.violations(["{}", "slow", "false", "slower"], "value", 1.0, "bob")
    assert counted == [("slow", 8.0), ("slower", 4.0)]


def test_lost_time_is_regained() -> None:
    lost = policy_process.LostTime()
    lost.add("a", 4.0, 10.0, 0.0)
    assert lost.pause_s("a", 0.0) == 0
    lost.add("a", 7.0, 10.0, 10.0)  # one second is regained
    assert lost.pause_s("a", 10.0) == pytest.approx(50.0)
    assert lost.pause_s("b", 10.0) == 0
    assert lost.pause_s("a", 60.1) == 0
    lost.add("a", 4.0, 10.0, 60.0)
    assert lost.pause_s("a", 60.1) == 0, "half of it was regained"
    for number in range(policy_process._LOST_MAX):
        lost.add(str(number), 99.0, 10.0, 70.0)
    assert len(lost._lost) == policy_process._LOST_MAX


def test_who_waits_for_a_policy_is_judged_again_by_itself(
    hasty: policy_process.PolicyProcess,
) -> None:
    rule = desired.AdmissionPolicy("slow", "no", "{}", kinds=("Queue", "Job"), path="p")
    rules = policies.PolicyRules({"slow": rule})
    hasty._exceeded("{}", "long", "", TOLD, 11.0)
    part = document_reader.read(queue("q").encode()).documents[0].part
    assert part is not None
    (told,) = rules.faults("Queue", "q", part, 100.0)
    assert (told.rule, told.severity) == ("policy/slow", "error")
    assert told.message.startswith("the policy is not applied now: other objects without an owner")
    assert 150 < rules.until <= 160

"""Each field of a ``Policy`` makes a difference in what is said of an object.

``test_fields_of_scheduling`` holds that no field is forgotten here.
"""

from typing import Any

import msgspec
import pytest

from reconciler.desired.apply import validate
from reconciler.model import desired
from reconciler.operations.plan import planner, revisions
from tests.unit import test_fields_honoured

Json = Any
OWNER = {"properties": {"spec": {"required": ["owner"]}}}
TEXT = "say whose job it is: spec.owner"
RULE = "policy/owned"


def policy(**spec: Json) -> test_fields_honoured.Document:
    given = {"match": {"kinds": ["Job"]}, "schema": OWNER, "message": TEXT}
    return test_fields_honoured.document("Policy", "owned", given | spec)


WAIVER = {"object": "Job/j", "reason": "until the move", "expires": "2090-01-01T00:00:00Z"}
IN_QUEUE = (
    policy(),
    test_fields_honoured.queue("q"),
    test_fields_honoured.pool(),
    test_fields_honoured.job(queue="q"),
)
DENIED = [(RULE, "error", "Job/j", TEXT)]
MUTATED = (
    "spec.mutate[0] of the policy makes the job invalid: Expected `bool`, got `str` - at "
    "`$.spec.suspend`; to fix: correct the policy, or write the field so that its `when` does not "
    "apply"
)
LET_OFF = "waived until 2090-01-01T00:00:00.000Z"
WAIVED = [(RULE, "warning", "Job/j", f"{TEXT} ({LET_OFF}: until the move)")]

#: Field to two values, what is told of each: (rule, severity, object, message).
TABLE: dict[
    str, tuple[tuple[Json, Json], tuple[Json, Json], tuple[test_fields_honoured.Document, ...]]
] = {
    "Policy.metadata.name": (
        ("owned", "mine"),
        (DENIED, [("policy/mine", "error", "Job/j", TEXT)]),
        (policy(), *test_fields_honoured.BASE),
    ),
    "Policy.spec.match.kinds": (
        (["Job"], ["Volume"]),
        (DENIED, []),
        (policy(), *test_fields_honoured.BASE),
    ),
    "Policy.spec.match.queues": ((["q"], ["other"]), (DENIED, []), IN_QUEUE),
    "Policy.spec.match.labels": (
        ({"a": "b"}, {"a": "c"}),
        (DENIED, []),
        (
            policy(),
            test_fields_honoured.pool(),
            test_fields_honoured.document("Job", "j", {"command": ["x"]}, labels={"a": "b"}),
        ),
    ),
    "Policy.spec.schema": (
        (OWNER, {"properties": {"effective": {"properties": {"cpu": {"maximum": 1}}}}}),
        (DENIED, []),
        (policy(), *test_fields_honoured.BASE),
    ),
    "Policy.spec.mutate[].when": (
        ({"properties": {"spec": {"required": ["owner"]}}}, {"type": "object"}),
        (DENIED, [(RULE, "error", "Job/j", MUTATED)]),
        (policy(mutate=[{"patch": {"spec": {"suspend": "many"}}}]), *test_fields_honoured.BASE),
    ),
    "Policy.spec.mutate[].patch": (
        ({"spec": {"timeLimit": "1h"}}, {"spec": {"suspend": "many"}}),
        (
            [(RULE, "error", "Job/j", f"{TEXT} (after changes by policy/owned)")],
            [(RULE, "error", "Job/j", MUTATED)],
        ),
        (policy(mutate=[{"patch": {}}]), *test_fields_honoured.BASE),
    ),
    "Policy.spec.message": (
        (TEXT, "no"),
        (DENIED, [(RULE, "error", "Job/j", "no")]),
        (policy(), *test_fields_honoured.BASE),
    ),
    "Policy.spec.action": (
        ("deny", "warn"),
        (DENIED, [(RULE, "warning", "Job/j", TEXT)]),
        (policy(), *test_fields_honoured.BASE),
    ),
    "Policy.spec.waivers[].object": (
        ("Job/j", "Job/k"),
        (WAIVED, DENIED),
        (policy(waivers=[WAIVER]), *test_fields_honoured.BASE),
    ),
    "Policy.spec.waivers[].reason": (
        ("until the move", "x"),
        (WAIVED, [(RULE, "warning", "Job/j", f"{TEXT} ({LET_OFF}: x)")]),
        (policy(waivers=[WAIVER]), *test_fields_honoured.BASE),
    ),
    "Policy.spec.waivers[].expires": (
        ("2090-01-01T00:00:00Z", "1970-01-02T00:00:00Z"),
        (
            WAIVED,
            [
                (
                    *DENIED[0][:3],
                    f"{TEXT} (its waiver ended 1970-01-02T00:00:00.000Z: until the move)",
                )
            ],
        ),
        (policy(waivers=[WAIVER]), *test_fields_honoured.BASE),
    ),
}
#: Fields that say to people what to do, and are seen in plans.
TOLD = {"Policy.spec.owners"}
NOT_READ = {"Policy.metadata.labels": "as for Access"}
KNOWN = TABLE.keys() | TOLD | NOT_READ.keys()


def found(documents: tuple[test_fields_honoured.Document, ...]) -> list[tuple[str, str, str, str]]:
    files = {"all.yaml": b"\n---\n".join(map(msgspec.json.encode, documents))}
    judged = validate.check(files, now=1e9)
    return [(p.rule, p.severity, p.object, p.message) for p in judged.status.problems]


@pytest.mark.parametrize("field", TABLE)
def test_two_values_are_judged_differently(field: str) -> None:
    values, seen, (target, *others) = TABLE[field]
    for value, expected in zip(values, seen, strict=True):
        chosen = test_fields_honoured.put(target, field.split(".", 1)[1], value)
        assert found((chosen, *others)) == expected


@pytest.mark.parametrize("owners", [["ops@example.org"], []])
def test_a_plan_says_who_may_waive(owners: list[str]) -> None:
    head = test_fields_honoured.read((policy(owners=owners), *test_fields_honoured.BASE))
    compared = revisions.Comparison(desired.Desired(), head, "a" * 40, "b" * 40, ())
    (finding,) = planner.plan(compared, None, 0.0).findings
    asked = f"ask {owners[0]}" if owners else "ask who may change it"
    assert finding.waiver.startswith(f"to let it off, {asked}: add to spec.waivers of all.yaml")
    assert finding.line == 7

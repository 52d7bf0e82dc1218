"""Findings that many objects have in common are shown a few times, and all are counted."""

import msgspec

from reconciler.operations.plan import alike_findings, plan_text, plan_types

FINDING = plan_types.FindingView(
    rule="policy/time-limit",
    severity="warning",
    path="jobs/a.yaml",
    line=3,
    column=1,
    object="Job/a",
    field="spec.timeLimit",
    message="Job/a has no time limit, so nobody can tell when what waits starts",
    is_new=True,
    touched=False,
    waiver="",
)


def _of(name: str, **fields: object) -> plan_types.FindingView:
    said = FINDING.message.replace("Job/a", f"Job/{name}")
    return msgspec.structs.replace(
        FINDING, object=f"Job/{name}", path=f"jobs/{name}.yaml", message=said, **fields
    )


def _text(findings: list[plan_types.FindingView]) -> list[str]:
    return [line.text.strip() for line in plan_text.finding_lines(findings)]


def test_many_that_are_alike_are_counted() -> None:
    shown = _text([_of(f"job{number}") for number in range(1667)])
    assert sum(line.startswith("warning policy/time-limit: jobs/") for line in shown) == 3
    assert shown[-1] == "... and 1664 more warnings policy/time-limit like these; -o json has all"
    assert len(shown) <= 4 * alike_findings.EXAMPLES_MAX


def test_a_few_are_shown_in_full() -> None:
    shown = _text([_of(f"job{number}") for number in range(3)])
    assert [line for line in shown if line.startswith("...")] == []
    assert sum("jobs/job" in line for line in shown) == 3


def test_what_differs_is_not_put_together() -> None:
    others = [
        _of("b", severity="error"),
        _of("c", is_new=False),
        _of("d", field="spec.owner"),
        _of("e", rule="policy/owner"),
        _of("f", waiver="ask an admin"),
        msgspec.structs.replace(_of("g"), message="Job/g has another defect"),
    ]
    assert [len(one) for one in alike_findings.groups([_of("a"), *others, _of("h")])] == [
        2, 1, 1, 1, 1, 1, 1,
    ]  # fmt: skip


def test_what_is_written_does_not_keep_findings_apart() -> None:
    found = [
        msgspec.structs.replace(
            _of(name), found=limit, message=f"Job/{name}: found {limit}, expected at most 8h"
        )
        for name, limit in (("a", "9h"), ("b", "12h"), ("c", "2d"))
    ]
    assert [len(one) for one in alike_findings.groups(found)] == [3]

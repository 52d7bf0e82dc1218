"""A job that names a reservation which its owner may not use is told so where it is written."""

import pytest

from reconciler.desired.apply import applied, last_good, validate
from tests.unit.desired.apply.test_applied import changes, read

STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: p}
spec: {hosts: 'n[1-3]', nodes: {cpu: 64, memory: 64Gi}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: top}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: leaf}
spec: {parent: top}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: other}
"""
KEPT = """\
---
apiVersion: muster/v1
kind: Reservation
metadata: {name: kept}
spec:
  pools: [p]
  start: "2027-01-31T06:00:00Z"
  end: "2027-01-31T18:00:00Z"
"""
JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {name: j}
spec: {%s, command: ['true']}
"""
USERS = "users: [a@x.org, b@x.org]"


@pytest.mark.parametrize(
    ("kept", "spec", "expected"),
    [
        ("", "leaf, owner: c@x.org, reservation: kept", None),
        (USERS, "leaf, owner: a@x.org, reservation: kept", None),
        (USERS, "leaf, owner: c@x.org", None),
        (
            USERS,
            "leaf, reservation: kept",
            ("a@x.org, b@x.org", "a job without owner in "),
        ),
        ("queues: [top]", "leaf, owner: c@x.org, reservation: kept", None),
        (USERS, "leaf, owner: c@x.org, reservation: kept", ("a@x.org, b@x.org", "c@x.org in ")),
        (
            "queues: [top], users: [a@x.org]",
            "other, owner: c@x.org, reservation: kept",
            ("a@x.org, queue top", "c@x.org in "),
        ),
        ("queues: [top]", "other, reservation: kept", ("queue top", "")),
        (
            "users: [a@x.org, b@x.org, d@x.org, e@x.org, f@x.org]",
            "other, owner: c@x.org, reservation: kept",
            ("a@x.org, b@x.org, d@x.org and 2 more", "c@x.org in "),
        ),
        (
            "maintenance: true",
            "leaf, owner: a@x.org, reservation: kept",
            ("maintenance, for nobody", "a@x.org in "),
        ),
    ],
)
def test_a_reservation_that_is_for_others_is_told(
    kept: str, spec: str, expected: tuple[str, str] | None
) -> None:
    structure = STRUCTURE + KEPT + "".join(f"  {one}\n" for one in _fields(kept))
    files = {"s.yaml": structure.encode(), "j.yaml": (JOB % f"queue: {spec}").encode()}
    found = validate.check(files).status.problems
    told = [(one.rule, one.severity, one.line, one.message) for one in found]
    if expected is None:
        assert told == []
        return
    whom, owner = expected
    message = (
        f"reservation kept is kept for {whom}: {owner}queue {spec.partition(',')[0]} may not use "
        "it, and the job is placed as if it named none"
    )
    assert told == [("never-in-reservation", "warning", 4, message)]


def _fields(kept: str) -> list[str]:
    """``a: [x], b: [y]`` as lines."""
    return [one for one in kept.replace("], ", "]\n").split("\n") if one]


def test_what_is_told_follows_whom_it_is_kept_for() -> None:
    state = applied.Applied(last_good.LastGood(), read)
    text = JOB % "queue: leaf, owner: c@x.org, reservation: kept"
    for users, told in (("a@x.org", True), ("c@x.org", False), ("b@x.org", True)):
        kept = f"{STRUCTURE}{KEPT}  users: [{users}]\n"
        files: dict[str, str | None] = {"s.yaml": kept, "j.yaml": text}
        state.apply(users, changes(files), {})
        rules = [problem.rule for problem in state.problems()]
        assert rules == (["never-in-reservation"] if told else []), users

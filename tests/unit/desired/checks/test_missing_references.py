"""Everything that a job names and that is written nowhere is told at once."""

import pytest

from reconciler.desired.checks import missing_references

HEAD = "apiVersion: muster/v1\nkind: Job\nmetadata: {name: j}\n"
POOL = "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: h200}\nspec: {hosts: n1}\n"


def told(spec: str, **others: str) -> list[tuple[str, str, str, int]]:
    files = {"j.yaml": (HEAD + spec).encode()}
    files |= {f"{name}.yaml": text.encode() for name, text in others.items()}
    found = missing_references.complete(files, ())
    return [(one.rule, one.severity, one.found, one.line) for one in found]


def test_all_that_is_named_and_is_nowhere_is_told_beside_what_else_is_wrong() -> None:
    spec = (
        "spec:\n"
        "  comand: [true]\n"
        "  queue: nowhere\n"
        "  priorityClass: urgnet\n"
        "  volumes: [nothing]\n"
        "  reservation: never\n"
        "  pools: [nopool]\n"
        "  dependsOn: [{job: j}, {job: nobody}, 7, {job: 8}]\n"
    )
    assert told(spec) == [
        ("unknown-queue", "error", '"nowhere"', 6),
        ("unknown-priority-class", "error", '"urgnet"', 7),
        ("unknown-volume", "error", '"nothing"', 8),
        ("unknown-reservation", "error", '"never"', 9),
        ("unknown-pool", "warning", '"nopool"', 10),
        ("unknown-dependency", "warning", '"nobody"', 11),
    ]


@pytest.mark.parametrize(
    ("pools", "missing"),
    [("[h200]", 0), ("[nopool, h200]", 0), ("[nopool]", 1), ("[]", 0), ("h200", 0), ("[7]", 0)],
)
def test_one_pool_of_several_is_enough(pools: str, missing: int) -> None:
    assert len(told(f"spec: {{pools: {pools}}}\n", pool=POOL)) == missing


def test_a_file_that_nobody_can_read_may_have_it() -> None:
    assert told("spec: {queue: nowhere}\n", other="a: [") == []

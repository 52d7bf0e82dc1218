"""What the value of a field may be, in words that say no less than its schema accepts."""

import pytest

from reconciler.desired.documents import schema
from reconciler.operations import kind_fields

ROWS = {
    (kind, row[0].strip("`")): row
    for kind in ("Cluster", "Job", "NodePool", "Policy", "Queue", "Quota")
    for whole in (schema.of_kind(kind),)
    for row in kind_fields.rows(whole, whole["$defs"][f"{kind}Spec"], "spec.")
}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("Job", "spec.resources.gpu", "number of GPUs"),
        ("Queue", "spec.guaranteed.gpu", "number of GPUs"),
        ("NodePool", "spec.nodes.gpus.count", "whole number"),
        ("Cluster", "spec.sync.limits.gpus", "whole number"),
        ("Queue", "spec.weight", "number, 0 to 1000000"),
        ("NodePool", "spec.overcommit.cpu", "number, 1 to 100"),
        ("Cluster", "spec.scheduling.learnedRunTimes.quantile", "number above 0, at most 1"),
        ("Cluster", "spec.sync.limits.gpuHours", "number from 0"),
        ("Quota", "spec.budget.gpuHours", "number, 0 to 1000000000"),
        ("Job", "spec.count", "whole number, 1 to 10000"),
        ("NodePool", "spec.nodes.gpus.numa", "list of lists of whole numbers, 0 to 999999"),
        ("NodePool", "spec.nodes.gpus.mig[].devices", "list of whole numbers, 0 to 999999"),
        ("NodePool", "spec.nodes.gpus.mig[].instances", "mapping of whole numbers, 1 to 7"),
        ("Cluster", "spec.sync.prune", "mapping of `auto`, `confirm`, `never`"),
        ("Policy", "spec.match.kinds", "list of `Access`, `Cluster`"),
        ("Policy", "spec.schema", "mapping"),
        ("Job", "spec.environment", "mapping of strings"),
        ("Job", "spec.groups", "list of mappings"),
        ("Job", "spec.command", "list of strings"),
        ("Job", "spec.suspend", "`true`, `false`"),
        ("Job", "spec.timeLimit", "duration"),
    ],
)
def test_the_value_of_a_field(kind: str, field: str, value: str) -> None:
    told = ROWS[kind, field][1]
    assert told == value or (value.endswith("`Cluster`") and told.startswith(f"{value}, `Job`"))


def test_no_list_of_words_has_a_plural() -> None:
    assert [row for row in ROWS.values() if row[1].endswith("`s")] == []

"""A grace that is longer than others have to wait is cut, and its owner is told."""

import pytest

from reconciler.desired.checks import feasibility
from reconciler.model import desired
from tests.unit.core.world import job


@pytest.mark.parametrize(
    ("longest_s", "saves_s", "ends_s", "told"),
    [
        (864_000, 864_000, 864_000, set()),
        (3600, 3600, None, set()),
        (3600, 3601, 10, {("spec", "checkpoint", "grace")}),
        (60, 30, 61, {("spec", "terminationGrace")}),
        (60, 61, 61, {("spec", "checkpoint", "grace"), ("spec", "terminationGrace")}),
    ],
)
def test_what_is_cut_is_told(
    longest_s: int, saves_s: int, ends_s: int | None, told: set[tuple[str, ...]]
) -> None:
    scheduling = desired.Scheduling(grace_max_s=longest_s)
    pool = desired.Pool(name="p", nodes=("n1",), node_resources=job("x").groups[0].resources)
    structure = desired.Structure(
        settings=desired.ClusterSettings(scheduling=scheduling),
        pools={"p": pool},
        queues={"default": desired.Queue("default")},
    )
    saving = desired.Checkpoint(grace_s=saves_s)
    warnings = feasibility.Fitting(structure).warnings(job("a", checkpoint=saving, grace_s=ends_s))
    assert {one.path for one in warnings} == told
    assert {one.rule for one in warnings} <= {"grace-cut"}
    assert {one.severity for one in warnings} <= {"warning"}

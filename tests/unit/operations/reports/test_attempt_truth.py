"""Of two rows of one attempt: whether they tell of one execution, and which is the truer."""

import pytest

from reconciler.operations.reports.attempt_truth import RowEnd, is_same_execution, is_truer

SUCCESS = RowEnd(1.0, 2.0, 50.0, succeeded=True, reason="Exited", gpu_seconds=49.0)
FAILURE = RowEnd(1.0, 2.0, 50.0, reason="Exited", gpu_seconds=49.0)
PREEMPTED = RowEnd(1.0, 2.0, 60.0, reason="Preempted", gpu_seconds=59.0)
EXPIRED = RowEnd(1.0, 2.0, 40.0, reason="LeaseExpired", gpu_seconds=39.0)
LOST = RowEnd(1.0, 2.0, 90.0, reason="Lost", gpu_seconds=89.0)
LOST_EARLY = RowEnd(1.0, 2.0, 2.0, reason="NodeLost", gpu_seconds=0.0)
SILENT = RowEnd(1.0, 2.0, 95.0)


@pytest.mark.parametrize(
    ("truer", "lesser"),
    [
        (SUCCESS, FAILURE),
        (SUCCESS, PREEMPTED),
        (SUCCESS, LOST),
        (FAILURE, LOST),
        (FAILURE, SILENT),
        (EXPIRED, LOST),
        (PREEMPTED, FAILURE),
        (LOST, LOST_EARLY),
        (LOST, RowEnd(1.0, 2.0, 90.0, reason="NodeLost", gpu_seconds=0.0)),
        (LOST_EARLY, RowEnd(1.0, reason="Lost")),
    ],
)
def test_the_truer_row_stays_whichever_came_first(truer: RowEnd, lesser: RowEnd) -> None:
    assert is_truer(truer, lesser)
    assert not is_truer(lesser, truer)


@pytest.mark.parametrize("row", [SUCCESS, LOST, SILENT, RowEnd()])
def test_of_two_that_are_alike_the_new_one_counts(row: RowEnd) -> None:
    assert not is_truer(row, row)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (SUCCESS, LOST_EARLY, True),
        (RowEnd(1.0, 2.0), RowEnd(2.0, 2.0), True),  # taken over: only its start is known
        (RowEnd(1.0, None), RowEnd(1.0, 2.0), True),
        (RowEnd(1.0, None), RowEnd(1.0, None), True),
        (RowEnd(), SUCCESS, True),
        (RowEnd(1.0, 2.0), RowEnd(11.0, 12.0), False),
        (RowEnd(1.0, None), RowEnd(11.0, 12.0), False),
        (RowEnd(1.0, None), RowEnd(11.0, None), False),
    ],
)
def test_one_execution_has_one_start(one: RowEnd, other: RowEnd, *, is_same: bool) -> None:
    assert is_same_execution(one, other) is is_same
    assert is_same_execution(other, one) is is_same

"""What people see of a job that they may not read."""

import pytest

from reconciler.model import desired
from reconciler.model.values import index_ranges
from reconciler.operations.views import unread_views, view_types


@pytest.mark.parametrize("is_cancel", [True, False])
def test_who_took_a_job_out_of_git_is_not_everybodys(is_cancel: bool) -> None:
    removal = desired.Removal("ada@example.org", "1a2b3c4d", 60.0, is_cancel, "a customer's name")
    event = view_types.EventView(1, "t", "JobRemoved", removal.text(), "train", "", "")
    assert unread_views.has_detail(event)
    assert unread_views.event_view(event).message == desired.REMOVED


@pytest.mark.parametrize(
    "message",
    ["cancelled by override of bob until 2026-11-28T10:00:00Z: x", "cancelled by bob: a test"],
)
def test_who_cancelled_outside_of_git_is_not_everybodys(message: str) -> None:
    assert desired.without_remover(message) == "cancelled"


@pytest.mark.parametrize(
    "message", ["", "exit code 3", "cancelled", "its job was cancelled by bob"]
)
def test_other_ends_are_told_as_they_are(message: str) -> None:
    assert desired.without_remover(message) == message


@pytest.mark.parametrize("elements", [(3,), (1, 2, 3, 9), tuple(n * n for n in range(300))])
def test_who_cancelled_elements_is_not_everybodys(elements: tuple[int, ...]) -> None:
    removal = desired.Removal("ada@example.org", "1a2b3c4d", 60.0, True, "a customer's name")
    named = desired.elements_text(elements)
    job = f"s[{index_ranges.fold(elements)}]"
    (told,) = desired.Desired(removals={job: removal}).why_elements_cancelled("s", elements)
    assert told == removal.text(named)
    assert desired.without_remover(told) == f"{named} cancelled by its document"

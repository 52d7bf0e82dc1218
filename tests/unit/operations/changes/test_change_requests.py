"""What is said of where a commit is."""

import pytest

from reconciler.operations.changes import change_requests


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, "submitted; committed in this clone, which pushes nowhere"),
        ({}, "submitted; committed in this clone, which pushes nowhere"),
        ({"attemptedRevision": "b"}, "submitted; committed in this clone, which pushes nowhere"),
        (
            {"attemptedRevision": "a"},
            "submitted; committed in this clone, which the controller reads",
        ),
    ],
)
def test_what_the_controller_has_read_is_in_its_repository(
    told: dict[str, str] | None, expected: str
) -> None:
    assert change_requests.placed("submitted" + change_requests.LOCAL, "a", told) == expected

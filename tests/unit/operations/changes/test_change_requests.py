"""What is said of where a commit is."""

import pytest

from reconciler.operations.changes import change_requests


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, "submitted; committed locally; this clone has no remote"),
        ({}, "submitted; committed locally; this clone has no remote"),
        ({"attemptedRevision": "b"}, "submitted; committed locally; this clone has no remote"),
        ({"attemptedRevision": "a"}, "submitted"),
    ],
)
def test_what_the_controller_has_read_is_in_its_repository(
    told: dict[str, str] | None, expected: str
) -> None:
    assert change_requests.placed("submitted" + change_requests.LOCAL, "a", told) == expected

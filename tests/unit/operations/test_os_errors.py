"""Sentences of errors never say None."""

import errno
import os

import pytest

from reconciler.operations import os_errors

FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, FULL, "file"), f"file: {FULL}"),
        (OSError(errno.ENOSPC, FULL), f"place: {FULL}"),
        (OSError("too short"), "place: too short"),
    ],
)
def test_an_error_is_about_something(error: OSError, told: str) -> None:
    assert os_errors.told(error, "place") == told

"""What tests of commands share."""

import time
from collections.abc import Iterator

import pytest


@pytest.fixture
def in_utc() -> Iterator[None]:
    """Clocks are read in UTC, and afterwards in the machine's own zone again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()

"""What tests of commands share."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.cluster import serve
from tests.unit.desired import repositories


@pytest.fixture
def in_utc() -> Iterator[None]:
    """Clocks are read in UTC, and afterwards in the machine's own zone again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository as ``muster init`` writes it, with no controller anywhere."""
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    for name, value in repositories.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    serve.init(tmp_path / "cluster")
    return tmp_path / "cluster"

"""A repository for tests of the controller."""

from pathlib import Path

import pytest

from tests.unit.desired.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "state.git")

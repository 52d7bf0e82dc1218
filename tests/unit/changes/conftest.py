"""Git without any configuration of the machine, and a repository to begin with."""

from pathlib import Path

import pytest

from tests.unit.desired.repositories import ENVIRONMENT, Repository


@pytest.fixture(autouse=True)
def _git_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, ENVIRONMENT[name])


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody commits here, and git has no other configuration."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "state.git")

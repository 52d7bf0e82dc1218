"""What tests of changes share."""

import os
from pathlib import Path

import pytest

from tests.unit.desired.repositories import ENVIRONMENT, Repository, git, job


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of desired state with a folder in it."""
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    repository = Repository(tmp_path / "state.git")
    repository.commit({"jobs/a.yaml": job("train")})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"

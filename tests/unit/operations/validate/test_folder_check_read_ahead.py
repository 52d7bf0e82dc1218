"""What is read ahead is what loaders would read, and they read it no second time."""

import subprocess
from pathlib import Path

import pytest

from reconciler.desired.documents import document_reader
from reconciler.operations.plan import revisions
from reconciler.operations.validate import folder_check
from tests.unit.desired.repositories import Repository, documents, job, queue


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "state.git")


FILES: dict[str, str | None] = {
    "state/q.yaml": queue("q"),
    "state/jobs.yaml": documents(job("a", queue="q"), job("b", queue="q")),
    "state/broken.yaml": "a: [b\n",
    "other.yaml": job("c"),
}


def blobs_of(repository: Repository, commit: str, *paths: str) -> set[str]:
    listed = [f"{commit}:{path}" for path in paths]
    told = subprocess.run(
        ["git", "-C", str(repository.path), "rev-parse", *listed],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(told.stdout.split())


@pytest.mark.parametrize("revision", ["main", "HEAD", None])
def test_the_files_below_the_folder_are_read(repository: Repository, revision: str | None) -> None:
    commit = repository.commit(FILES)
    found = folder_check.read(repository.path, "state", revision or commit)
    below = [path for path in FILES if path.startswith("state/")]
    assert found.keys() == blobs_of(repository, commit, *below)
    assert sum(file.count for file in found.values()) == 4
    assert sum(file.error is not None for file in found.values()) == 1


@pytest.mark.parametrize(
    ("folder", "below", "revision"),
    [("state.git", "", "maim"), ("state.git", "../x", "main"), (".", "", "main"), ("no", "", "x")],
)
def test_what_can_not_be_read_is_left_to_who_compares(
    repository: Repository, tmp_path: Path, folder: str, below: str, revision: str
) -> None:
    repository.commit(FILES)
    assert folder_check.read(tmp_path / folder, below, revision) == {}


def test_a_comparison_is_the_same_and_reads_only_what_is_new(repository: Repository) -> None:
    base = repository.commit(FILES)
    head = repository.commit({"state/more.yaml": job("d", queue="q"), "state/jobs.yaml": None})
    expected = revisions.compare(repository.path, "state", base, head)
    ahead = folder_check.read(repository.path, "state", head)
    known = dict(ahead)
    found = revisions.compare(repository.path, "state", base, head, read=ahead)
    assert (found.changes, found.base.jobs, found.head.jobs) == (
        expected.changes,
        expected.base.jobs,
        expected.head.jobs,
    )
    assert found.head.status.problems == expected.head.status.problems
    assert ahead.keys() - known.keys() == blobs_of(repository, base, "state/jobs.yaml")
    assert all(ahead[blob] is file for blob, file in known.items())


def test_a_comparison_goes_by_what_was_read_ahead(repository: Repository) -> None:
    base = repository.commit(FILES)
    head = repository.commit({"state/more.yaml": job("d", queue="q")})
    (blob,) = blobs_of(repository, head, "state/more.yaml")
    ahead = {blob: document_reader.read(job("e", queue="q").encode())}
    found = revisions.compare(repository.path, "state", base, head, read=ahead)
    assert found.head.jobs.keys() - found.base.jobs.keys() == {"e"}

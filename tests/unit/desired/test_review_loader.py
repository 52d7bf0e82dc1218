"""What outlives a restart: revisions whose remote is gone, and the age of a suspension."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.desired.apply import last_good, loader
from reconciler.desired.git import source
from tests.unit.desired.repositories import Repository, git, job, queue

Make = Callable[..., loader.Loader]


@pytest.fixture
def make(repository: Repository, tmp_path: Path) -> Iterator[Make]:
    """Loaders of a repository elsewhere, which is mirrored."""
    made: list[loader.Loader] = []

    def _make(before: loader.Loader | None = None, now: float = 5.0) -> loader.Loader:
        known = last_good.LastGood()
        if before is not None:
            known = last_good.decode(last_good.encode(before.incumbents()))
        place = source.GitSource(f"file://{repository.path}", state=tmp_path / "state")
        one = loader.Loader(place, known, clock=lambda: now)
        made.append(one)
        return one

    yield _make
    for one in made:
        one.close()


def test_a_restart_without_the_remote_goes_on_with_the_last_good_revisions(
    repository: Repository, make: Make
) -> None:
    good = repository.commit({"q.yaml": queue("q"), "a.yaml": job("a", queue="q")})
    first = make()
    first.load()
    # The structure of the next one is refused, and a job of it applies.
    head = repository.commit(
        {"q.yaml": queue("q", parent="nowhere"), "b.yaml": job("b", queue="q")}
    )
    before = first.load()
    assert set(before.jobs) == {"a", "b"}
    repository.path.rename(repository.path.with_name("gone.git"))
    for last in (first, make(first)):
        value = last.load()
        assert value.status.sync == "Unknown"
        assert value.status.structure_revision == good
        assert value.status.jobs_revision == head
        assert value.jobs == before.jobs
        assert value.structure == before.structure
        assert value.generation >= before.generation
    # It comes back, with something new.
    repository.path.with_name("gone.git").rename(repository.path)
    repository.commit({"c.yaml": job("c", queue="q")})
    assert set(last.load().jobs) == {"a", "b", "c"}


def test_the_mirror_keeps_the_revision_in_force_when_history_is_rewritten(
    repository: Repository, make: Make, tmp_path: Path
) -> None:
    head = repository.commit({"a.yaml": job("a")})
    first = make()
    first.load()
    (mirror,) = (tmp_path / "state").glob("mirror-*.git")
    assert git(mirror, "rev-parse", "refs/muster/kept").strip() == head
    git(repository.path, "update-ref", "-d", "refs/heads/main")
    repository.commit({"b.yaml": job("b")})
    first.load()
    git(mirror, "gc", "--quiet", "--prune=now")
    value = make(first).load()
    assert set(value.jobs) == {"a"}
    assert value.status.sync == "OutOfSync"


def test_how_long_something_is_suspended_outlives_a_restart(
    repository: Repository, make: Make
) -> None:
    repository.commit({"q.yaml": queue("q", suspend=True)})
    first = make(now=100.0)
    assert first.load().status.suspended == {"Queue/q": 100.0}
    repository.commit({"r.yaml": queue("r", suspend=True)})
    second = make(first, now=200.0)
    assert second.load().status.suspended == {"Queue/q": 100.0, "Queue/r": 200.0}
    repository.commit({"q.yaml": queue("q")})
    assert make(second, now=300.0).load().status.suspended == {"Queue/r": 200.0}

"""Hints that a repository may have changed."""

import queue
from collections.abc import Callable

import pytest

from reconciler.desired import gitobjects, watch
from tests.unit.desired.repositories import Repository, git, job


def pack(repository: Repository) -> None:
    git(repository.path, "pack-refs", "--all")


def push(repository: Repository) -> None:
    git(repository.path, "update-ref", "refs/heads/team/feature", "refs/heads/main")


def delete(repository: Repository) -> None:
    git(repository.path, "update-ref", "-d", "refs/heads/main")


@pytest.mark.parametrize("change", [push, delete, pack])
def test_local_watch_tells_of_references(
    repository: Repository, change: Callable[[Repository], None]
) -> None:
    repository.commit({"a.yaml": job("a")})
    told: queue.Queue[None] = queue.Queue()
    watching = watch.LocalWatch(repository.path, lambda: told.put(None))
    try:
        change(repository)
        told.get(timeout=10)
    finally:
        watching.close()


def test_no_repository(repository: Repository) -> None:
    with pytest.raises(gitobjects.GitError):
        watch.LocalWatch(repository.path / "objects", lambda: None)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_polling_has_jitter_and_slows_down() -> None:
    clock = Clock()
    chance = iter([0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    polling = watch.Polling(random=lambda: next(chance), clock=clock, interval_s=60)
    assert polling.next_poll_s() == 0
    polling.polled(reached=True)
    assert polling.next_poll_s() == pytest.approx(48)
    polling.polled(reached=True)
    assert polling.next_poll_s() == pytest.approx(72)
    expected = [120, 240, 480, 600]
    for seconds in expected:
        polling.polled(reached=False)
        assert polling.next_poll_s() == pytest.approx(seconds)
    polling.polled(reached=True)
    assert polling.next_poll_s() == pytest.approx(60)


def test_hint_is_bounded() -> None:
    clock = Clock()
    polling = watch.Polling(random=lambda: 0.5, clock=clock, interval_s=60, hint_s_min=2)
    polling.polled(reached=True)
    polling.hint()
    assert polling.next_poll_s() == pytest.approx(2)
    clock.now += 10
    polling.hint()
    assert polling.next_poll_s() == 0

"""Hints that a repository may have changed."""

import queue
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.desired.git import git_commands, watch
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
        told.get(timeout=60)
    finally:
        watching.close()


def test_a_linked_work_tree_tells_of_references(repository: Repository, tmp_path: Path) -> None:
    """The branches stand in the repository that it belongs to."""
    repository.commit({"a.yaml": job("a")})
    linked = tmp_path / "linked"
    git(repository.path, "worktree", "add", "--quiet", str(linked), "main")
    told: queue.Queue[None] = queue.Queue()
    watching = watch.LocalWatch(linked, lambda: told.put(None))
    try:
        push(repository)
        told.get(timeout=60)
        while not told.empty():
            told.get()
        git(linked, "checkout", "--quiet", "-b", "other")
        told.get(timeout=60)
    finally:
        watching.close()
    own = git_commands.git_folder(linked)
    assert own != git_commands.common_folder(own) == repository.path.resolve()
    assert not (own / "refs" / "heads").exists()


def test_what_takes_the_place_of_a_watched_repository_is_watched(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"a.yaml": job("a")})
    told: queue.Queue[None] = queue.Queue()
    watching = watch.LocalWatch(repository.path, lambda: told.put(None))
    try:
        repository.path.rename(tmp_path / "away")
        with pytest.raises(git_commands.GitError):
            watching.renew()
        shutil.copytree(tmp_path / "away", repository.path)
        watching.renew()
        while not told.empty():
            told.get()
        push(repository)
        told.get(timeout=60)
    finally:
        watching.close()


def test_no_repository(repository: Repository) -> None:
    with pytest.raises(git_commands.GitError):
        watch.LocalWatch(repository.path / "objects", lambda: None)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_polling_has_jitter_and_slows_down_where_it_fails_again_and_again() -> None:
    clock = Clock()
    chance = iter([0.0, 1.0, *[0.5] * 12])
    polling = watch.Polling(random=lambda: next(chance), clock=clock, interval_s=60)
    assert polling.next_poll_s() == 0
    polling.polled(reached=True)
    assert polling.next_poll_s() == pytest.approx(48)
    polling.polled(reached=True)
    assert polling.next_poll_s() == pytest.approx(72)
    expected = [5, 10, 20, 40, 80, 160, 320, 600, 600]
    for seconds in expected:
        polling.polled(reached=False)
        assert polling.next_poll_s() == pytest.approx(seconds)
    polling.polled(reached=True)
    assert polling.next_poll_s() == pytest.approx(60)
    polling.polled(reached=False)
    assert polling.next_poll_s() == pytest.approx(5)


def test_hint_is_bounded() -> None:
    clock = Clock()
    polling = watch.Polling(random=lambda: 0.5, clock=clock, interval_s=60, hint_s_min=2)
    polling.polled(reached=True)
    polling.hint()
    assert polling.next_poll_s() == pytest.approx(2)
    clock.now += 10
    polling.hint()
    assert polling.next_poll_s() == 0


def test_hints_leave_who_cannot_be_reached_time_for_that() -> None:
    """Whoever may hint all the time, as anybody may."""
    clock = Clock()
    polling = watch.Polling(random=lambda: 0.5, clock=clock, interval_s=60)
    waited = []
    for _ in range(8):
        polling.polled(reached=False)
        polling.hint()
        waited.append(polling.next_poll_s())
        clock.now += waited[-1]
    assert waited == [2.5, 5, 10, 20, 30, 30, 30, 30]
    polling.polled(reached=True)
    polling.hint()
    assert polling.next_poll_s() == 1


@pytest.mark.parametrize("reached", [True, False])
def test_a_hint_while_a_look_goes_on_is_not_forgotten(*, reached: bool) -> None:
    """What came meanwhile may be newer than what the look saw."""
    clock = Clock()
    polling = watch.Polling(random=lambda: 0.5, clock=clock, interval_s=60, hint_s_min=2)
    polling.hint()  # before it: it is what the look is for
    polling.begin()
    clock.now += 3
    polling.polled(reached=True)
    assert polling.next_poll_s() == pytest.approx(60)
    polling.begin()
    polling.hint()
    clock.now += 3
    polling.polled(reached=reached)
    assert polling.next_poll_s() == pytest.approx(2 if reached else 2.5)
    clock.now += 2
    polling.begin()
    polling.polled(reached=True)
    assert polling.next_poll_s() == pytest.approx(60)

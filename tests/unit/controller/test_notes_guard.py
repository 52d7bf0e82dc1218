"""Notes that others removed: shown for a day, counted once, and looked for once in a while."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler import metrics
from reconciler.changes import notes
from reconciler.controller import notes_guard
from reconciler.desired.git import source
from reconciler.model import desired
from tests.unit.desired.repositories import Repository, git, job


@pytest.fixture
def opened(repository: Repository, tmp_path: Path) -> Iterator[source.GitSource]:
    address = f"file://{repository.path}"
    with contextlib.closing(source.GitSource(address, state=tmp_path / "state")) as made:
        yield made


def test_a_loss_is_shown_for_a_day_and_counted_once(
    repository: Repository, opened: source.GitSource, caplog: pytest.LogCaptureFixture
) -> None:
    head = repository.commit({"jobs/x.yaml": job("x")})
    opened.fetch()
    now = 0.0
    told: list[float] = []
    guard = notes_guard.NotesGuard(opened, lambda: told.append(now), lambda: now)
    guard.look(is_reached=True)
    guard.write(head, "muster: Synced")
    git(repository.path, "update-ref", "-d", notes.REFERENCE)
    now += notes_guard.LOOK_S / 2
    guard.look(is_reached=True)
    guard.look(is_reached=False)
    assert guard.take_losses() == 0, "it is not time to look"
    now += notes_guard.LOOK_S / 2
    guard.look(is_reached=True)
    assert (told, guard.take_losses(), guard.take_losses()) == ([notes_guard.LOOK_S], 1, 0)
    (problem,) = guard.shown(desired.Desired()).status.problems
    assert (problem.rule, problem.severity) == ("notes-changed", "warning")
    assert problem.message in caplog.text
    assert git(repository.path, "notes", "--ref=muster", "show", head) == "muster: Synced"
    now += notes_guard.SHOWN_S
    guard.look(is_reached=True)
    assert guard.shown(desired.Desired()) == desired.Desired()


def test_a_repository_that_does_not_answer_is_no_loss(
    repository: Repository, opened: source.GitSource, caplog: pytest.LogCaptureFixture
) -> None:
    head = repository.commit({"jobs/x.yaml": job("x")})
    opened.fetch()
    guard = notes_guard.NotesGuard(opened, pytest.fail, lambda: 0.0)
    guard.write(head, "muster: Synced")
    repository.path.rename(repository.path.with_name("away"))
    guard.look(is_reached=True)
    assert "nobody knows if the notes in git are still there" in caplog.text


def test_the_loop_counts_losses() -> None:
    counters = metrics.Counters()
    for lost in (0, 1, 2):
        counters.look(metrics.RepositoryLook("synced", 1.0, 0.1, notes_lost=lost))
    assert counters.notes_lost == 3

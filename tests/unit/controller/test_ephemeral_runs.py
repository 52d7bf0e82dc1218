"""The note in git of runs without a file there: what it lists, and whom it is believed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reconciler.changes import ephemeral_notes
from reconciler.controller import ephemeral_runs
from reconciler.desired.git import git_commands, source
from reconciler.model.state import adoption_state, outcome, records
from reconciler.model.state.states import JobState
from tests.unit.core.world import job
from tests.unit.desired.repositories import Repository, git

KEY, OTHER = b"k" * 32, b"o" * 32


class Noted:
    """A repository with a note, and a clock."""

    def __init__(self, repository: source.GitSource) -> None:
        self.repository = repository
        self.now = 0.0
        self.woken = 0
        self.runs = self.of(KEY)

    def of(self, *keys: bytes) -> ephemeral_runs.EphemeralRuns:
        """Another controller, with these keys."""
        return ephemeral_runs.EphemeralRuns(
            self.repository, keys, self._wake, clock=lambda: self.now
        )

    def _wake(self) -> None:
        self.woken += 1

    def cycle(self, *jobs: records.JobRecord) -> None:
        """A cycle with these jobs."""
        self.runs.note(outcome.Outcome(now=1.0, desired_generation=1, jobs=jobs), {})

    def write(self) -> dict[str, str]:
        """What the note says a while later: states by name."""
        self.now += ephemeral_runs.WRITE_AFTER_S
        self.runs.write_if_due()
        return {one.name: one.state for one in self.of(KEY).read()}


@pytest.fixture(params=[False, True], ids=["local", "remote"])
def noted(
    repository: Repository, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Noted]:
    address = f"file://{repository.path}" if request.param else str(repository.path)
    repository.commit({"note.txt": "x"})
    made = source.GitSource(address, state=tmp_path / "state")
    made.fetch()
    with contextlib.closing(made):
        yield Noted(made)


def record(name: str, state: JobState = JobState.RUNNING, at: float = 1.0) -> records.JobRecord:
    ended = at if state is JobState.SUCCEEDED else None
    return records.JobRecord(job(name), state, b"\0", at, ended_at=ended, ephemeral=True)


def test_begins_and_ends_are_noted_and_nothing_between(noted: Noted) -> None:
    assert noted.of(KEY).read() == ()
    noted.cycle(record("a", JobState.PENDING))
    assert noted.write() == {"a": ""}
    assert noted.woken == 1
    noted.cycle(record("a", JobState.RUNNING))
    assert noted.woken == 1
    noted.cycle(record("a", JobState.SUCCEEDED))
    assert noted.write() == {"a": "Succeeded"}
    in_git = msgspec.structs.replace(record("a"), ephemeral=False)
    noted.cycle(in_git, msgspec.structs.replace(in_git, spec=job("b")))
    assert noted.write() == {}


def test_what_had_not_ended_keeps_its_document(noted: Noted) -> None:
    noted.cycle(record("a"), record("b", JobState.SUCCEEDED))
    noted.write()
    alive, over = noted.of(OTHER, KEY).read()  # an older key of the cluster counts too
    assert (alive.job, over.job) == (job("a"), None)
    assert over.ended_at == 1.0


def test_whoever_else_wrote_it_is_not_believed(noted: Noted) -> None:
    forged = adoption_state.EphemeralRun("evil", "evil.1.x", "root", "q", 1.0, job=job("evil"))
    ephemeral_notes.write(noted.repository, ephemeral_notes.pack([forged], OTHER))
    (found,) = noted.runs.read()
    assert (found.name, found.job) == ("evil", None)
    noted.cycle(record("a"))
    assert noted.write() == {"a": ""}  # it is not kept either


@pytest.mark.parametrize("body", [b"", b"{", b'{"runs": "[1]", "proof": ""}'])
def test_what_no_controller_wrote_is_an_error(noted: Noted, body: bytes) -> None:
    ephemeral_notes.write(noted.repository, body)
    with pytest.raises(git_commands.GitError, match="can't be read"):
        noted.runs.read()


def test_a_controller_that_starts_notes_what_its_store_has(noted: Noted) -> None:
    known = {"a": record("a"), "b": msgspec.structs.replace(record("b"), ephemeral=False)}
    noted.runs.note(outcome.Outcome(now=1.0, desired_generation=1), known)
    assert noted.write() == {"a": ""}


def test_a_restored_one_keeps_what_the_note_knows_besides(noted: Noted) -> None:
    noted.cycle(record("a"), record("b", JobState.SUCCEEDED))
    noted.write()
    noted.runs = noted.of(KEY)
    noted.runs.read()
    noted.cycle(record("c"))
    assert noted.write() == {"a": "", "b": "Succeeded", "c": ""}


def test_there_is_a_limit(noted: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ephemeral_runs, "ENDED_MAX", 2)
    noted.cycle(*[record(f"e{at}", JobState.SUCCEEDED, float(at)) for at in range(5)], record("a"))
    assert noted.write() == {"e3": "Succeeded", "e4": "Succeeded", "a": ""}
    monkeypatch.setattr(ephemeral_runs, "DOCUMENTS_BYTES_MAX", 1)
    noted.cycle(record("b"))
    noted.write()
    assert all(one.job is None for one in noted.of(KEY).read())


def test_what_git_does_not_take_is_tried_again(repository: Repository, noted: Noted) -> None:
    noted.cycle(record("a"))
    name = f"{ephemeral_notes.reference(noted.repository)}.lock"
    lock = repository.path / git(repository.path, "rev-parse", "--git-path", name)
    lock.parent.mkdir(exist_ok=True)
    lock.touch()  # as if another git process wrote it
    noted.now += 1
    noted.runs.write_if_due()
    lock.unlink()
    assert noted.runs.wait_s(999) == ephemeral_runs.AGAIN_S
    noted.now += ephemeral_runs.AGAIN_S
    assert noted.write() == {"a": ""}
    assert noted.runs.wait_s(999) == 999

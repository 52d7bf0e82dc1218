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

    def __init__(self, repository: source.GitSource, state: Path) -> None:
        self.repository = repository
        self.state = state
        self.now = 0.0
        self.woken = 0
        self.runs = self.of(KEY)

    def of(self, *keys: bytes, state: Path | None = None) -> ephemeral_runs.EphemeralRuns:
        """Another controller, with these keys, of the same state folder or another."""
        return ephemeral_runs.EphemeralRuns(
            *(self.repository, keys, state or self.state, self._wake),
            clock=lambda: self.now,
            wall=lambda: 1e9,  # as if all came at once
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
        yield Noted(made, tmp_path)


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
    """Neither what it says to run, nor what it says to have ended: it is named, and not kept."""
    alive = adoption_state.EphemeralRun("evil", "evil.1.x", "root", "q", 1.0, job=job("evil"))
    over = adoption_state.EphemeralRun("over", "over.1.x", "root", "q", 1.0, "Succeeded", 2.0)
    body = ephemeral_notes.pack([alive, over], OTHER, 2e9)
    ephemeral_notes.write(noted.repository, body)
    found = noted.runs.read()
    assert [(one.name, one.state, one.job, one.doubt) for one in found] == [
        (name, "", None, adoption_state.UNPROVEN) for name in ("evil", "over")
    ]
    noted.cycle(record("a"))
    assert noted.write() == {"a": ""}


def test_of_a_note_that_nothing_proves_few_are_named(noted: Noted) -> None:
    many = [
        adoption_state.EphemeralRun(f"e{number}", "k", "root", "q", 1.0)
        for number in range(ephemeral_runs.UNPROVEN_MAX + 1)
    ]
    ephemeral_notes.write(noted.repository, ephemeral_notes.pack(many, OTHER, 1.0))
    assert len(noted.runs.read()) == ephemeral_runs.UNPROVEN_MAX


def test_a_note_says_when_by_its_proof(noted: Noted) -> None:
    noted.cycle(record("a"))
    noted.write()
    body = _body(noted)
    for changed in (body.replace(b"1000000000.0", b"2000000000.0"), _without_time(body)):
        assert changed != body
        assert not ephemeral_notes.unpack(changed, [KEY]).is_proven
    assert ephemeral_notes.unpack(body, [OTHER, KEY]).is_proven


def test_one_of_an_earlier_version_says_no_time(noted: Noted) -> None:
    run = ephemeral_runs.run_of(record("a"))
    ephemeral_notes.write(noted.repository, _without_time(ephemeral_notes.pack([run], KEY, 0.0)))
    assert noted.runs.read() == (run,)


def test_an_older_note_that_is_put_back_starts_nothing(noted: Noted) -> None:
    """By it ``once`` had not ended, which it has since."""
    noted.cycle(record("once"), record("over", JobState.FAILED, 1.0))
    noted.write()
    older = _body(noted)
    noted.cycle(record("once", JobState.SUCCEEDED))
    noted.write()
    ephemeral_notes.write(noted.repository, older)
    found = {one.name: one for one in noted.of(KEY).read()}
    assert (found["once"].job, found["once"].doubt) == (None, adoption_state.OLDER)
    assert (found["over"].state, found["over"].doubt) == ("Failed", "")
    elsewhere = noted.of(KEY, state=noted.state / "state")  # nobody there can tell
    assert {one.name: one.doubt for one in elsewhere.read()} == {"once": "", "over": ""}


def test_who_has_read_a_note_writes_a_newer_one(noted: Noted) -> None:
    """Also if its clock is behind that of the machine that wrote it."""
    run = ephemeral_runs.run_of(record("a"))
    ephemeral_notes.write(noted.repository, ephemeral_notes.pack([run], KEY, 2e9))
    noted.runs.read()
    noted.cycle(record("b"))
    assert noted.write() == {"a": "", "b": ""}
    assert ephemeral_notes.unpack(_body(noted), [KEY]).written_at > 2e9


def _body(noted: Noted) -> bytes:
    """Return the note as it is in git."""
    name = ephemeral_notes.reference(noted.repository)
    folder = noted.repository.folder
    if not noted.repository.local:
        git_commands.run(folder, "fetch", "--", noted.repository.address, f"+{name}:{name}")
    return git_commands.run(folder, "cat-file", "blob", f"{name}:{ephemeral_notes.FILE}").stdout


def _without_time(body: bytes) -> bytes:
    """Return a note as earlier versions wrote it."""
    note = msgspec.json.decode(body)
    del note["written_at"]
    return msgspec.json.encode(note)


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

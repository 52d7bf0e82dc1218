"""The runs without a file in git, as they are noted there for a store that is lost or restored.

The loop tells what a cycle changed of them; the thread that follows the repository writes the note.
What began within the last seconds before a store is lost may be missing from it.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from reconciler.changes import ephemeral_notes
from reconciler.core import observed_state
from reconciler.desired.git import git_commands, source
from reconciler.model import desired
from reconciler.model.state import adoption_state, outcome, records
from reconciler.model.values import times
from reconciler.operations.tokens import token_file

log = logging.getLogger("muster.controller")

#: Tells somebody of a durable outcome, with the state before it and the desired state.
_Tell = Callable[[outcome.Outcome, observed_state.ObservedState, desired.Desired], None]

#: How long a change waits for others, and how long after a failure it is tried again.
WRITE_AFTER_S, AGAIN_S = 1.0, 30.0
#: The most runs that have ended which the note lists; the newest stay.
ENDED_MAX = 200
#: The most runs of a note that are listed although nothing proves it.
UNPROVEN_MAX = 200
#: The file of the state folder with the time of the newest note that this machine knows.
FILE = "ephemeral-note.json"
#: The least by which the time of a note is later than that of the one before.
_LATER_S = 0.001
#: The most bytes of all documents in the note; runs beyond it are listed without theirs.
DOCUMENTS_BYTES_MAX = 4 * 2**20


_decode_time = msgspec.json.Decoder(float).decode


def _in_doubt(run: adoption_state.EphemeralRun, doubt: str) -> adoption_state.EphemeralRun:
    """Return a run of which only that it may have run is known."""
    return msgspec.structs.replace(run, state="", ended_at=None, job=None, doubt=doubt)


def run_of(record: records.JobRecord) -> adoption_state.EphemeralRun:
    """Return what the note says of a run."""
    spec = record.spec
    return adoption_state.EphemeralRun(
        *(spec.name, spec.key, spec.owner, spec.queue, record.submitted_at),
        state=record.state.value if record.finished else "",
        ended_at=record.ended_at,
        job=None if record.finished else spec,
    )


class EphemeralRuns:
    """The runs of one cluster, and the note about them. For two threads.

    Args:
        repository: that holds the note.
        keys: of the cluster; the first proves what is written.
        state: the folder that remembers which note is the newest.
        wake: called when there is something to write.
        clock: seconds that only grow.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        repository: source.GitSource,
        keys: Sequence[bytes],
        state: Path,
        wake: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = state / FILE
        self._wall = wall
        self._repository = repository
        self._keys = tuple(keys)
        self._lock = threading.Lock()
        self._runs: dict[str, adoption_state.EphemeralRun] = {}
        self._is_seeded = False
        self.wake = wake
        self._clock = clock
        self._due_at: float | None = None

    def first(self, tell: _Tell) -> _Tell:
        """Return a function that notes an outcome, and then tells others of it."""

        def noted(
            result: outcome.Outcome, before: observed_state.ObservedState, wanted: desired.Desired
        ) -> None:
            self.note(result, before.jobs)
            tell(result, before, wanted)

        return noted

    def note(self, result: outcome.Outcome, before: Mapping[str, records.JobRecord]) -> None:
        """Note what a durable cycle has begun and ended. Called by the loop; returns at once.

        ``before`` are the jobs before it. The first time all of them are noted: a controller may
        have been killed before it noted what the store has.
        """
        is_new = False
        with self._lock:
            if not self._is_seeded:
                self._is_seeded = True
                known = {name: run_of(one) for name, one in before.items() if one.ephemeral}
                self._runs |= known
                is_new = bool(known)
            for record in result.jobs:
                earlier = self._runs.get(record.name)
                if not record.ephemeral:
                    # git describes it now, or another job of its name
                    is_new |= self._runs.pop(record.name, None) is not None
                    continue
                after = run_of(record)
                self._runs[record.name] = after
                is_new |= earlier is None or (earlier.key, earlier.state) != (
                    after.key,
                    after.state,
                )
            if is_new and self._due_at is None:
                self._due_at = self._clock() + WRITE_AFTER_S
        if is_new:
            self.wake()

    def wait_s(self, most_s: float) -> float:
        """Return in how many seconds the note is to be written, ``most_s`` at the most."""
        due_at = self._due_at
        return most_s if due_at is None else min(most_s, max(0.0, due_at - self._clock()))

    def write_if_due(self) -> None:
        """Write the note if a change has waited for long enough."""
        if self._due_at is not None and self._clock() >= self._due_at:
            self.write()

    def write(self) -> None:
        """Write the note if there is something new; what fails is tried again later."""
        with self._lock:
            if self._due_at is None:
                return
            runs, self._due_at = self._listed(), None
        try:
            written_at = max(self._wall(), self._newest() + _LATER_S)
            body = ephemeral_notes.pack(runs, self._keys[0], written_at)
            ephemeral_notes.write(self._repository, body)
        except (git_commands.GitError, OSError) as error:
            log.warning("git does not know which jobs without a file ran: %s", error)
            with self._lock:
                self._due_at = self._clock() + AGAIN_S
            return
        self._remember(written_at)

    def read(self) -> tuple[adoption_state.EphemeralRun, ...]:
        """Return the runs that the note has. Those that are new here stay in it.

        Of a note without a proof nothing is taken over. By an older one than was known here it is
        only certain what had ended: all else may have ended since.

        Raises:
            GitError, OSError: it can't be read.
        """
        found = ephemeral_notes.read(self._repository, self._keys)
        if not found.is_proven:
            log.warning(
                "no key of this cluster proves the note in git of jobs without a file: nothing is "
                "taken over of the %d runs that it lists",
                len(found.runs),
            )
            listed = found.runs[-UNPROVEN_MAX:]
            return tuple(_in_doubt(one, adoption_state.UNPROVEN) for one in listed)
        runs, newest = found.runs, self._newest()
        if found.written_at < newest:
            log.warning(
                "the note in git of jobs without a file is older (%s) than one that was written "
                "before (%s): somebody has put it back. What had not ended by it may have run",
                *(times.format_time(found.written_at), times.format_time(newest)),
            )
            runs = tuple(
                one if one.state else _in_doubt(one, adoption_state.OLDER) for one in found.runs
            )
        else:
            self._remember(found.written_at)
        with self._lock:
            for one in runs:
                if one.state or one.job is not None:
                    self._runs.setdefault(one.name, one)
        return runs

    def _newest(self) -> float:
        """Return when the newest note was written that is known here; 0: none is known.

        Raises:
            OSError: it can't be read.
        """
        try:
            return _decode_time(self._path.read_bytes())
        except FileNotFoundError:
            return 0.0
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("%s can't be read and does not count: %s", self._path, error)
            return 0.0

    def _remember(self, written_at: float) -> None:
        """Keep the time of the newest note, after it is in git."""
        try:
            token_file.write_private(self._path, msgspec.json.encode(written_at).decode())
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error)

    def _listed(self) -> list[adoption_state.EphemeralRun]:
        """Return what the note lists, oldest first, and forget ended runs beyond the limit."""
        ended = [one for one in self._runs.values() if one.state]
        ended.sort(key=lambda one: one.ended_at or 0.0)
        for one in ended[: max(0, len(ended) - ENDED_MAX)]:
            del self._runs[one.name]
        listed, size = [], 0
        for one in sorted(self._runs.values(), key=lambda one: (one.submitted_at, one.name)):
            own = len(msgspec.json.encode(one))
            if size + own > DOCUMENTS_BYTES_MAX:
                listed.append(msgspec.structs.replace(one, job=None))
            else:
                listed.append(one)
                size += own
        return listed

"""The record in git of the store that leads a cluster, and its lease.

The store knows what has run; git outlives it. One reference names the store that led last, how far
it was, and until when nobody else may lead. A controller whose store is another, or behind that,
starts nothing that may be running. The reference holds one commit without a parent, so that
renewing it does not grow the repository, and is only ever replaced if nobody else has replaced it.
"""

import re
import time
from collections.abc import Callable

import msgspec

from reconciler.changes import notes, repository_writes
from reconciler.desired.git import commit_log, git_commands, mirror_fetch, source
from reconciler.model.state import epochs
from reconciler.model.values.text_lines import split_lines

#: Name of the only file of the record's commit.
FILE = "lead.json"
_BYTES_MAX = 64 * 2**10
#: The most that is fetched for a record, which has a few hundred bytes.
_FETCH_BYTES_MAX = 2**20
_WORD_CHARACTERS_MAX = 512
_REVISION = re.compile(r"([0-9a-f]{40,64})?")
#: The end of the year 9999 or so, in seconds since the epoch.
_TIME_MAX = 2.5e11
#: More cycles than a controller can ever make.
_CYCLE_MAX = 10**15


class LeadRecord(msgspec.Struct, frozen=True):
    """A record of who leads, and until when.

    Attributes:
        store: identity of its store.
        epoch: in which it leads.
        cycle: how far its store was.
        host: the machine of its controller, for people.
        place: its state folder, to the kernel of that machine.
        revision: newest revision whose jobs were in force; empty: none.
        renewed_at: when this was written, seconds since the epoch.
        until: end of the lease; a controller that was stopped gives it back.
    """

    store: str
    epoch: int
    cycle: int
    host: str
    place: str
    revision: str
    renewed_at: float
    until: float


_decode_record = msgspec.json.Decoder(LeadRecord).decode


class OtherLeaderError(git_commands.GitError):
    """Error: another controller has replaced the record."""


class UnreadableRecordError(git_commands.GitError):
    """Error: the reference holds no record that a controller wrote; ``commit`` is what it holds."""

    def __init__(self, name: str, why: object, commit: str) -> None:
        super().__init__(
            f"{name} can't be read ({why}). To fix: if no other controller leads this cluster, "
            f"delete the reference: git push origin :{name}"
        )
        self.commit = commit


def reference(repository: source.GitSource) -> str:
    """Return the record's reference; each cluster in a folder has one of its own."""
    # no folder's name has a dot in a reference of notes
    return notes.reference(repository).replace(notes.REFERENCE, f"{notes.REFERENCE}.lead", 1)


def find(repository: source.GitSource) -> str:
    """Return the commit that holds the record, whatever is in it; empty if there is none.

    Raises:
        GitError: the repository cannot be read.
    """
    return git_commands.reference_there(
        repository.folder, "" if repository.local else repository.address, reference(repository)
    )


def read(repository: source.GitSource, now: float) -> tuple[LeadRecord | None, str]:
    """Return the record and the commit that holds it; None and ``""`` if there is none.

    Args:
        repository: of the cluster.
        now: seconds since the epoch.

    Raises:
        UnreadableRecordError: what is there is no record.
        GitError: the repository cannot be read.
    """
    name, commit = reference(repository), find(repository)
    if not commit:
        return None, ""
    if not repository.local:
        limits = (git_commands.REMOTE_TIMEOUT_S, _FETCH_BYTES_MAX)
        try:
            mirror_fetch.fetch(repository.folder, (repository.address, name), name, *limits)
        except git_commands.LimitError as error:
            raise UnreadableRecordError(name, error, commit) from None
    try:
        body = git_commands.run(repository.folder, "cat-file", "blob", f"{commit}:{FILE}").stdout
        return _plausible(_decode_record(body[:_BYTES_MAX]), now), commit
    except (git_commands.GitError, msgspec.DecodeError, ValueError) as error:
        raise UnreadableRecordError(name, error, commit) from None


def _plausible(record: LeadRecord, now: float) -> LeadRecord:
    """Return a record if a controller can have written it: its words go into logs and to git.

    Raises:
        ValueError: no controller writes such a record.
    """
    words = (record.store, record.host, record.place)
    if not all(len(word) <= _WORD_CHARACTERS_MAX and word.isprintable() for word in words):
        raise ValueError("a word that is too long or not printable")
    if not _REVISION.fullmatch(record.revision):
        raise ValueError("no revision")
    if not 0 <= record.renewed_at <= _TIME_MAX:
        raise ValueError("no time")
    if not 0 <= record.epoch <= epochs.highest(now):  # nothing is above the highest number
        raise ValueError("an epoch that no controller has reached")
    if not 0 <= record.cycle <= _CYCLE_MAX:
        raise ValueError("more cycles than a controller makes")
    return record


def write(repository: source.GitSource, record: LeadRecord, before: str | None) -> str:
    """Replace the record, and return the commit that holds it.

    Args:
        repository: of the cluster.
        record: the new one.
        before: the commit that is replaced; empty: there is none; None: whatever is there.

    Raises:
        OtherLeaderError: the record is not the one before.
        GitError: it could not be written.
    """
    name, folder = reference(repository), repository.folder
    body = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    text = f"muster: the store {record.store} leads as epoch {record.epoch}"
    commit = repository_writes.commit_file(folder, FILE, body, text)
    try:
        if repository.local:
            unchanged = () if before is None else (before or "0" * 40,)
            repository_writes.run(folder, "update-ref", "--no-deref", name, commit, *unchanged)
        else:
            how = "--force" if before is None else f"--force-with-lease={name}:{before}"
            repository_writes.push(repository, f"{commit}:{name}", how)
    except git_commands.LimitError:
        raise
    except git_commands.GitError as error:
        if before is not None and find(repository) != before:
            raise OtherLeaderError(str(error)) from None
        raise
    return commit


class RecordPlace:
    """The record of a cluster in its repository, and what else git tells a controller of the past.

    Args:
        repository: of the cluster.
        clock: seconds since the epoch.
    """

    def __init__(
        self, repository: source.GitSource, clock: Callable[[], float] = time.time
    ) -> None:
        self._repository = repository
        self._clock = clock
        #: The reference that holds the record.
        self.name = reference(repository)

    def read(self) -> tuple[LeadRecord | None, str]:
        """Return the record and the commit that holds it; see ``read``."""
        return read(self._repository, self._clock())

    def write(self, record: LeadRecord, before: str | None) -> str:
        """Replace the record, and return the commit that holds it; see ``write``."""
        return write(self._repository, record, before)

    def was_run(self) -> bool:
        """Return True if notes say that the repository was run before.

        Raises:
            GitError: the repository cannot be read.
        """
        return notes.exist(self._repository)

    def added_since(self, revision: str, head: str, until: float | None) -> frozenset[str]:
        """Return the files of ``head`` that came after all that may have been in force.

        Args:
            revision: what was in force when the record was renewed.
            head: the newest revision.
            until: when the leader may have followed the repository last, in seconds since the
                epoch; None: it has said that ``revision`` was the last one.

        Raises:
            GitError: a revision cannot be read.
        """
        found = self._repository.differences(revision, head)
        added = frozenset(path for path, before, _ in found if before is None)
        last = _last_in_force(self._repository, (revision, head), until) if added else ""
        return added - _ever_added(self._repository, revision, last) if last else added


def _last_in_force(
    repository: source.GitSource, between: tuple[str, str], until: float | None
) -> str:
    """Return the newest commit between two whose jobs may have been in force; empty: none.

    That is what the notes say, which a leader writes within seconds of each revision, and what came
    before it may have ended.
    """
    revision, head = between
    listed = git_commands.run(
        repository.folder,
        *("rev-list", "--topo-order", "--timestamp", f"--max-count={commit_log.LISTED_MAX}"),
        *(head, f"^{revision}", "--"),
    ).stdout.decode()
    times = {commit: int(at) for at, commit in map(str.split, split_lines(listed))}
    noted = tuple(notes.jobs_in_force(repository, times.keys()))
    for commit, at in times.items():
        if (until is not None and at <= until) or commit.startswith(noted):
            return commit
    return ""


def _ever_added(repository: source.GitSource, revision: str, last: str) -> frozenset[str]:
    """Return the files that came after a revision, up to another, also those that left again."""
    told = git_commands.run(
        repository.folder,
        *("log", "-z", "-m", "--no-renames", "--diff-filter=A", "--name-only", "--format="),
        *(last, f"^{revision}", "--"),
    ).stdout
    return frozenset(path.decode(errors="replace") for path in told.split(b"\0") if path)

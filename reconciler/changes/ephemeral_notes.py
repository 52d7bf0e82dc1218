"""The note in git of jobs that no file describes: what ran, for a store that was lost or restored.

One reference holds one commit without a parent, with one file, so that it does not grow. Whoever
may push could write it, so it counts only with a proof by the cluster's key: of one without it the
names are listed, and nothing is taken over. Who writes it says when, so that an older one that
somebody puts back is not taken for the newest.
"""

import hmac
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from reconciler.changes import notes, repository_writes
from reconciler.desired.git import git_commands, mirror_fetch, source
from reconciler.model.state import adoption_state

#: Name of the only file of the note's commit.
FILE = "ephemeral.json"
#: The most bytes of a note, and of what is fetched for it.
BYTES_MAX = 8 * 2**20
#: What the proof is about, so that no other proof by the same key can stand for it.
_PURPOSE = b"muster ephemeral note\0"


class _Note(msgspec.Struct, frozen=True):
    """The file: runs as JSON text, and when it was written, with the proof of both in hexadecimal
    digits. Controllers of earlier versions did not say when.
    """

    runs: str
    proof: str
    written_at: float = 0.0


class FoundNote(NamedTuple):
    """A note that was read.

    Attributes:
        runs: that it lists.
        written_at: seconds since the epoch, which grow with each note; 0: nobody says.
        is_proven: a key of the cluster proves it.
    """

    runs: tuple[adoption_state.EphemeralRun, ...] = ()
    written_at: float = 0.0
    is_proven: bool = True


_decode_note = msgspec.json.Decoder(_Note).decode
_decode_runs = msgspec.json.Decoder(tuple[adoption_state.EphemeralRun, ...]).decode


def reference(repository: source.GitSource) -> str:
    """Return the note's reference; each cluster in a folder has one of its own."""
    # no folder's name has a dot in a reference of notes
    name = f"{notes.REFERENCE}.ephemeral"
    return notes.reference(repository).replace(notes.REFERENCE, name, 1)


def pack(runs: Sequence[adoption_state.EphemeralRun], key: bytes, written_at: float) -> bytes:
    """Return the content of the file, with a proof by the cluster's key."""
    text = msgspec.json.encode(runs).decode()
    body = msgspec.json.encode(_Note(text, _proof(text, written_at, key), written_at))
    return msgspec.json.format(body, indent=1) + b"\n"


def unpack(body: bytes, keys: Sequence[bytes]) -> FoundNote:
    """Return what a file says, and if a key of ``keys`` proves it.

    Raises:
        DecodeError: no controller writes such a file.
    """
    note = _decode_note(body)
    proofs = [_proof(note.runs, note.written_at, key) for key in keys]
    is_proven = any(hmac.compare_digest(one, note.proof) for one in proofs)
    return FoundNote(_decode_runs(note.runs), note.written_at, is_proven)


def _proof(text: str, written_at: float, key: bytes) -> str:
    when = f"{written_at!r}\0" if written_at else ""  # earlier versions did not say it
    return hmac.digest(key, _PURPOSE + (when + text).encode(), "sha256").hex()


def write(repository: source.GitSource, body: bytes) -> None:
    """Replace the note.

    Raises:
        GitError: it could not be written or pushed.
    """
    name, folder = reference(repository), repository.folder
    text = "muster: jobs without a file in git"
    commit = repository_writes.commit_file(folder, FILE, body, text)
    if repository.local:
        repository_writes.run(folder, "update-ref", "--no-deref", name, commit)
    else:
        repository_writes.push(repository, f"{commit}:{name}", "--force")


def read(repository: source.GitSource, keys: Sequence[bytes]) -> FoundNote:
    """Return the note; an empty one if there is none.

    Raises:
        GitError: it can't be read, or no controller wrote it.
    """
    name, folder = reference(repository), repository.folder
    address = "" if repository.local else repository.address
    commit = git_commands.reference_there(folder, address, name)
    if not commit:
        return FoundNote()
    if not repository.local:
        limits = (git_commands.REMOTE_TIMEOUT_S, BYTES_MAX)
        mirror_fetch.fetch(folder, (repository.address, name), name, *limits)
    size = git_commands.run(folder, "cat-file", "-s", f"{commit}:{FILE}").stdout
    if int(size) > BYTES_MAX:
        raise git_commands.GitError(
            f"{name} has {int(size)} bytes, more than the {BYTES_MAX} that a controller writes"
        )
    body = git_commands.run(folder, "cat-file", "blob", f"{commit}:{FILE}").stdout
    try:
        return unpack(body, keys)
    except msgspec.DecodeError as error:
        raise git_commands.GitError(f"{name} can't be read ({error})") from None

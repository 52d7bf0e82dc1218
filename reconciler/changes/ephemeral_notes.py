"""The note in git of jobs that no file describes: what ran, for a store that was lost or restored.

One reference holds one commit without a parent, with one file, so that it does not grow. Whoever
may push could write it, so its documents count only with a proof by the cluster's key: those
without one are listed, and nothing is taken over by them.
"""

import hmac
from collections.abc import Sequence

import msgspec

from reconciler.changes import notes
from reconciler.desired.git import git_commands, mirror_fetch, source
from reconciler.model.state import adoption_state

#: Name of the only file of the note's commit.
FILE = "ephemeral.json"
#: The most bytes of a note, and of what is fetched for it.
BYTES_MAX = 8 * 2**20
_IDENTITY = {
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "muster"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "muster@localhost"),
}
#: What the proof is about, so that no other proof by the same key can stand for it.
_PURPOSE = b"muster ephemeral note\0"


class _Note(msgspec.Struct, frozen=True):
    """The file: runs as JSON text, with the proof of that text in hexadecimal digits."""

    runs: str
    proof: str


_decode_note = msgspec.json.Decoder(_Note).decode
_decode_runs = msgspec.json.Decoder(tuple[adoption_state.EphemeralRun, ...]).decode


def reference(repository: source.GitSource) -> str:
    """Return the note's reference; each cluster in a folder has one of its own."""
    # no folder's name has a dot in a reference of notes
    name = f"{notes.REFERENCE}.ephemeral"
    return notes.reference(repository).replace(notes.REFERENCE, name, 1)


def pack(runs: Sequence[adoption_state.EphemeralRun], key: bytes) -> bytes:
    """Return the content of the file, with a proof by the cluster's key."""
    text = msgspec.json.encode(runs).decode()
    body = msgspec.json.encode(_Note(text, _proof(text, key)))
    return msgspec.json.format(body, indent=1) + b"\n"


def unpack(body: bytes, keys: Sequence[bytes]) -> tuple[adoption_state.EphemeralRun, ...]:
    """Return the runs of a file; without documents if no key of ``keys`` proves it.

    Raises:
        DecodeError: no controller writes such a file.
    """
    note = _decode_note(body)
    runs = _decode_runs(note.runs)
    if any(hmac.compare_digest(_proof(note.runs, key), note.proof) for key in keys):
        return runs
    return tuple(msgspec.structs.replace(one, job=None) for one in runs)


def _proof(text: str, key: bytes) -> str:
    return hmac.digest(key, _PURPOSE + text.encode(), "sha256").hex()


def write(repository: source.GitSource, body: bytes) -> None:
    """Replace the note.

    Raises:
        GitError: it could not be written or pushed.
    """
    name, folder = reference(repository), repository.folder
    blob = git_commands.run(folder, "hash-object", "-w", "--stdin", data=body).stdout
    entry = f"100644 blob {blob.decode().strip()}\t{FILE}\n".encode()
    tree = git_commands.run(folder, "mktree", data=entry).stdout.decode().strip()
    text = "muster: jobs without a file in git"
    made = git_commands.run(folder, "commit-tree", tree, "-m", text, extra=_IDENTITY).stdout
    commit = made.decode().strip()
    if repository.local:
        git_commands.run(folder, "update-ref", "--no-deref", name, commit)
        return
    git_commands.run(
        folder,
        *("push", "--quiet", "--force", "--", repository.address, f"{commit}:{name}"),
        timeout_s=git_commands.REMOTE_TIMEOUT_S,
    )


def read(
    repository: source.GitSource, keys: Sequence[bytes]
) -> tuple[adoption_state.EphemeralRun, ...]:
    """Return the runs of the note; none if there is no note.

    Raises:
        GitError: it can't be read, or no controller wrote it.
    """
    name, folder = reference(repository), repository.folder
    address = "" if repository.local else repository.address
    commit = git_commands.reference_there(folder, address, name)
    if not commit:
        return ()
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

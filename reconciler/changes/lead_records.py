"""The record in git of the store that leads a cluster, and its lease.

The store knows what has run; git outlives it. One reference names the store that led last, how far
it was, and until when nobody else may lead. A controller whose store is another, or behind that,
starts nothing that may be running. The reference holds one commit without a parent, so that
renewing it does not grow the repository, and is only ever replaced if nobody else has replaced it.
"""

import msgspec

from reconciler.changes import notes
from reconciler.desired.git import git_commands, mirror_fetch, source

#: Name of the only file of the record's commit.
FILE = "lead.json"
_IDENTITY = {
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "muster"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "muster@localhost"),
}
_BYTES_MAX = 64 * 2**10


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


def reference(repository: source.GitSource) -> str:
    """Return the record's reference; each cluster in a folder has one of its own."""
    # no folder's name has a dot in a reference of notes
    return notes.reference(repository).replace(notes.REFERENCE, f"{notes.REFERENCE}.lead", 1)


def read(repository: source.GitSource) -> tuple[LeadRecord | None, str]:
    """Return the record and the commit that holds it; None and ``""`` if there is none.

    Raises:
        GitError: the repository cannot be read.
    """
    name = reference(repository)
    if repository.local:
        found = git_commands.run(
            repository.folder, "for-each-ref", "--format=%(objectname)", name
        ).stdout
        commit = found.decode().strip()
    else:
        found = git_commands.run(
            repository.folder,
            *("ls-remote", "--quiet", "--", repository.address, name),
            timeout_s=git_commands.REMOTE_TIMEOUT_S,
        ).stdout
        commit = found.decode().partition("\t")[0].strip()
        if commit:
            limits = (git_commands.REMOTE_TIMEOUT_S, mirror_fetch.FETCH_BYTES_MAX)
            mirror_fetch.fetch(repository.folder, (repository.address, name), name, *limits)
    if not commit:
        return None, ""
    body = git_commands.run(repository.folder, "cat-file", "blob", f"{commit}:{FILE}").stdout
    try:
        return _decode_record(body[:_BYTES_MAX]), commit
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise git_commands.GitError(
            f"{name} can't be read ({error}). To fix: if no other controller leads this cluster, "
            f"delete the reference: git push origin :{name}"
        ) from None


def write(repository: source.GitSource, record: LeadRecord, before: str) -> str:
    """Replace the record, and return the commit that holds it.

    Args:
        repository: of the cluster.
        record: the new one.
        before: the commit that is replaced; empty: there is none.

    Raises:
        OtherLeaderError: the record is not the one before.
        GitError: it could not be written.
    """
    name, folder = reference(repository), repository.folder
    body = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    blob = git_commands.run(folder, "hash-object", "-w", "--stdin", data=body).stdout
    entry = f"100644 blob {blob.decode().strip()}\t{FILE}\n".encode()
    tree = git_commands.run(folder, "mktree", data=entry).stdout.decode().strip()
    text = f"muster: the store {record.store} leads as epoch {record.epoch}"
    made = git_commands.run(folder, "commit-tree", tree, "-m", text, extra=_IDENTITY).stdout
    commit = made.decode().strip()
    try:
        if repository.local:
            git_commands.run(folder, "update-ref", name, commit, before or "0" * 40)
            return commit
        git_commands.run(
            folder,
            *("push", "--quiet", f"--force-with-lease={name}:{before}"),
            *("--", repository.address, f"{commit}:{name}"),
            timeout_s=git_commands.REMOTE_TIMEOUT_S,
        )
    except git_commands.LimitError:
        raise
    except git_commands.GitError as error:
        if read(repository)[1] != before:
            raise OtherLeaderError(str(error)) from None
        raise
    return commit

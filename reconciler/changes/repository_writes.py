"""Writing to a cluster's repository beside its branches: by the controller, readable by others."""

from pathlib import Path

from reconciler.changes.requests import MUSTER
from reconciler.desired.git import git_commands, source

#: The controller's own umask closes what it writes to all others. A repository on this machine is
#: theirs as well, and they must be able to read all of it.
_READABLE = ("sh", "-c", 'umask 022 && exec "$@"', "sh")
_IDENTITY = {
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), MUSTER.name),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), MUSTER.email),
}


def run(folder: Path, *arguments: str, data: bytes = b"") -> str:
    """Run a git command that writes, as the controller, and return what it prints.

    Raises:
        GitError: it failed.
    """
    done = git_commands.run(folder, *arguments, data=data, extra=_IDENTITY, prefix=_READABLE)
    return done.stdout.decode().strip()


def commit_file(folder: Path, name: str, body: bytes, message: str) -> str:
    """Write a commit without a parent that holds one file, and return its hash.

    Raises:
        GitError: it could not be written.
    """
    blob = run(folder, "hash-object", "-w", "--stdin", data=body)
    tree = run(folder, "mktree", data=f"100644 blob {blob}\t{name}\n".encode())
    return run(folder, "commit-tree", tree, "-m", message)


def push(repository: source.GitSource, what: str, *how: str) -> None:
    """Push a reference or a commit to the repository's address.

    Args:
        what: the two sides, such as ``COMMIT:REFERENCE``.
        how: options of git.

    Raises:
        GitError: it was not taken.
    """
    git_commands.run(
        repository.folder,
        *("push", "--quiet", *how, "--", repository.address, what),
        timeout_s=git_commands.REMOTE_TIMEOUT_S,
        prefix=_READABLE,
    )

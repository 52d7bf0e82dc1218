"""The repository to which a controller pushes changes: its mirror, and the key that signs them."""

from pathlib import Path

from reconciler.changes.writer import signing
from reconciler.desired.git import remote_urls, source


def open_mirror(address: str, *, branch: str, sub_path: str, state: Path) -> source.GitSource:
    """Return the branch of a repository.

    Args:
        address: of the repository.
        branch: to push to.
        sub_path: folder of the repository with the cluster's YAML.
        state: folder of a mirror for this process only; the loop fetches into another one.
    """
    return source.GitSource(address, branch=branch, sub_path=sub_path, state=state)


def require_no_password(address: str) -> None:
    """Raise ValueError if the URL of a repository holds a password."""
    remote_urls.require_no_password(address)


def local_folder(address: str) -> Path | None:
    """Return the folder of a repository on this machine, or None if it is elsewhere."""
    return Path(address) if source.is_local(address) else None


def public_key(key: Path) -> str:
    """Return the public key of a file with an SSH key; empty if it can't be read."""
    return signing.public_key(key)

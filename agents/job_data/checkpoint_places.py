"""Finds and creates the folder of a job's checkpoints, as the user of the job.

If the agent is root, a user's folders are below ``SHARED/USER``. Otherwise all tasks have the
agent's own user, and their folders are below ``SHARED``. A folder of another user is never used.
The shared storage may hang, so nothing here may be called under a lock.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence

from agents.host.acting_user import ActingUser, acting_as

#: Names that are read to see if a folder that an earlier agent has made is all its user's.
NAMES_MAX = 20_000
#: Mode of folders that are created: nobody else learns names or plants files.
PRIVATE_MODE = 0o700
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = 0o022


class CheckpointPlaceError(Exception):
    """A checkpoint folder that cannot be used."""


def find(shared: str, relative: str, user: ActingUser | None) -> str | None:
    """Return the path below ``shared`` of a job's checkpoint folder; None if there is none yet.

    A folder at ``SHARED/PATH``, where earlier agents made them, is adopted if it is all the user's.

    Args:
        shared: the folder shared by nodes; it is trusted, but nothing below it.
        relative: ``checkpoint.path`` of the job.
        user: the job's user; None for the agent's own.

    Raises:
        CheckpointPlaceError: the path leads elsewhere, or a folder there must not be used.
    """
    parts = _parts(shared, relative)
    with _opened(shared) as handle, _acting(shared, user) as uid:
        return _find(shared, handle, parts, user, uid)


def make(shared: str, relative: str, user: ActingUser | None) -> str:
    """Return the path below ``shared`` of a job's checkpoint folder, creating it if needed.

    Raises:
        CheckpointPlaceError: it cannot be created, or must not be used.
    """
    parts = _parts(shared, relative)
    with _opened(shared) as handle:
        with _acting(shared, user) as uid:
            found = _find(shared, handle, parts, user, uid)
        if found is not None:
            return found
        if user is not None:
            _make_home(shared, handle, user)
            parts = (user.name, *parts)
        path = f"{shared}/{'/'.join(parts)}"
        try:
            with _acting(shared, user), _walk(handle, parts, PRIVATE_MODE) as (_, owners):
                _check_owners(path, owners, uid, user)
        except OSError as problem:
            raise _refused(path, problem) from None
    return "/".join(parts)


def _parts(shared: str, relative: str) -> tuple[str, ...]:
    parts = tuple(part for part in relative.split("/") if part not in {"", "."})
    if relative.startswith("/") or ".." in parts or not parts:
        raise CheckpointPlaceError(
            f"checkpoint path {relative!r} must be relative to the shared folder {shared} and "
            "stay in it. To fix: change checkpoint.path of the job"
        )
    return parts


@contextlib.contextmanager
def _opened(shared: str) -> Iterator[int]:
    """Give a handle of the shared folder, whose own path may have links."""
    try:
        handle = os.open(shared, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        raise _refused(shared, problem) from None
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _acting(shared: str, user: ActingUser | None) -> Iterator[int]:
    """Act as a user whose name can be that of a folder."""
    if user is not None and (user.name in {"", ".", ".."} or "/" in user.name):
        raise CheckpointPlaceError(
            f"user {user.name!r} can have no folder of that name in {shared}. To fix: run the job "
            "as another user"
        )
    with acting_as(user) as uid:
        yield uid


def _find(
    shared: str, handle: int, parts: Sequence[str], user: ActingUser | None, uid: int
) -> str | None:
    """Return the existing folder of the user who is acted as."""
    own = parts if user is None else (user.name, *parts)
    path = f"{shared}/{'/'.join(own)}"
    try:
        with _walk(handle, own) as (_, owners):
            _check_owners(path, owners, uid, user)
    except FileNotFoundError:
        return None if user is None else _find_earlier(shared, handle, parts, user)
    except OSError as problem:
        raise _refused(path, problem) from None
    return "/".join(own)


def _find_earlier(shared: str, handle: int, parts: Sequence[str], user: ActingUser) -> str | None:
    """Return the user's folder at ``SHARED/PATH``; None if there is none, or it is another's.

    Raises:
        CheckpointPlaceError: it is the user's, but something in it is not.
    """
    path = f"{shared}/{'/'.join(parts)}"
    try:
        with _walk(handle, parts) as (folder, owners):
            if owners[-1] != user.uid or not {user.uid, os.geteuid()}.issuperset(owners):
                return None
            with os.scandir(folder) as entries:
                for entry in itertools.islice(entries, NAMES_MAX):
                    owner = entry.stat(follow_symlinks=False).st_uid
                    if owner != user.uid:
                        raise _of_another(f"{path}/{entry.name}", owner, user)
    except OSError:
        return None
    return "/".join(parts)


@contextlib.contextmanager
def _walk(handle: int, parts: Sequence[str], make_mode: int = 0) -> Iterator[tuple[int, list[int]]]:
    """Give a handle of a folder below another, and the owners of the folders on the way to it.

    No link is followed. With ``make_mode``, folders that are missing are created.
    """
    at, owners = os.dup(handle), []
    try:
        for number, part in enumerate(parts, 1):
            if make_mode:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, make_mode, dir_fd=at)
            # what is only passed through needs not be readable
            further = os.O_RDONLY if number == len(parts) else os.O_PATH
            below = os.open(part, _FOLDER | further, dir_fd=at)
            os.close(at)
            at = below
            owners.append(os.fstat(at).st_uid)
        yield at, owners
    finally:
        os.close(at)


def _make_home(shared: str, handle: int, user: ActingUser) -> None:
    """Create the folder of a user in the shared one, as the user if that is allowed there."""
    path = f"{shared}/{user.name}"
    try:
        with acting_as(user), contextlib.suppress(FileExistsError, PermissionError):
            os.mkdir(user.name, PRIVATE_MODE, dir_fd=handle)
            return
        with contextlib.suppress(FileNotFoundError):
            os.stat(user.name, dir_fd=handle, follow_symlinks=False)
            return  # its owner is checked on the way through it
        if os.fstat(handle).st_mode & _OTHERS_WRITE:
            # whoever may write there could put another folder in its place
            raise PermissionError(1, f"{user.name} may not create it, though others may")
        os.mkdir(user.name, PRIVATE_MODE, dir_fd=handle)
        home = os.open(user.name, _FOLDER | os.O_RDONLY, dir_fd=handle)
        try:
            os.fchown(home, user.uid, user.gid)
        except OSError:
            os.rmdir(user.name, dir_fd=handle)
            raise
        finally:
            os.close(home)
    except OSError as problem:
        raise CheckpointPlaceError(
            f"folder {path} for the checkpoints of user {user.name}: {problem.strerror}. To fix: "
            f"create it with owner {user.name} and mode 0700"
        ) from None


def _check_owners(path: str, owners: Sequence[int], uid: int, user: ActingUser | None) -> None:
    """Raise CheckpointPlaceError if a folder, or one above it, is another user's.

    For the agent's own user, who has no folder of its own, only the folder itself counts.
    """
    parts = path.split("/")
    first = len(parts) - len(owners) + 1
    for number, owner in enumerate(owners):
        if owner != uid and (user is not None or number == len(owners) - 1):
            raise _of_another("/".join(parts[: first + number]), owner, user)


def _of_another(path: str, owner: int, user: ActingUser | None) -> CheckpointPlaceError:
    name = "the agent's user" if user is None else user.name
    return CheckpointPlaceError(
        f"checkpoint folder {path} belongs to uid {owner}, not to {name}, and what belongs to "
        f"others is never used. To fix: give it to {name} (chown), move it away, or change "
        "checkpoint.path of the job"
    )


def _refused(path: str, problem: OSError) -> CheckpointPlaceError:
    return CheckpointPlaceError(
        f"checkpoint folder {path}: {os.strerror(problem.errno or 0)}; symbolic links are not "
        "followed. To fix: see that its user may create folders there, or change checkpoint.path "
        "of the job"
    )

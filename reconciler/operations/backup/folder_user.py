"""Writes into a folder with the rights of the user who could lead root elsewhere by it.

Root that opens names in a folder of somebody else opens what that user puts there: a link in place
of the folder, a journal beside a database. So a process that has become that user writes there, for
good and not for a while. It is a fork of root's, which that user can't trace.
"""

import os
import pathlib
import pwd
import stat
from collections.abc import Callable

import msgspec

from reconciler.child_process import ChildUser
from reconciler.desired.git import forked_worker
from reconciler.operations.backup.backup_contents import BackupError
from reconciler.store import errors

#: As many links as the kernel follows on one path.
_LINKS_MAX = 40


class _Outcome(msgspec.Struct, frozen=True):
    """The outcome of a piece of work: its answer, or what went wrong."""

    answer: bool = False
    wrong: str = ""


_DECODE = msgspec.msgpack.Decoder(_Outcome).decode


def user_of(*folders: pathlib.Path) -> ChildUser | None:
    """Return the user who has to write in folders; None: this process may, as it is.

    That is the one user beside root to whom they belong, or a folder or link on the way to them.

    Raises:
        BackupError: several users could change where they lead, or everybody could.
        OSError: they can't be looked at.
    """
    if os.geteuid() != 0:
        return None
    owners: dict[int, pathlib.Path] = {}
    for folder in folders:
        end = folder.stat()
        for path, found in _way(folder).items():
            if found.st_uid:
                owners.setdefault(found.st_uid, path)
            elif _is_open(found, is_end=os.path.samestat(found, end)):
                raise BackupError(
                    f"{path} may be changed by everybody, who could lead root elsewhere. To fix: "
                    f"`chmod o-w {path}`, or name another folder"
                )
    if len(owners) > 1:
        told = ", ".join(f"{path} to {_name(uid)}" for uid, path in owners.items())
        raise BackupError(
            f"{folders[-1]} is reached by folders of several users, found {told}; expected one "
            "user beside root. To fix: change their owners, or name another folder"
        )
    return _user(*next(iter(owners.items()))) if owners else None


def _way(folder: pathlib.Path) -> dict[pathlib.Path, os.stat_result]:
    """Return the folders and links on the way to a folder, and itself."""
    found: dict[pathlib.Path, os.stat_result] = {}
    pending, links = [folder.absolute()], 0
    while pending:
        end = pending.pop()
        for path in (*reversed(end.parents), end):
            if path in found:
                continue
            found[path] = path.lstat()
            if stat.S_ISLNK(found[path].st_mode):
                links += 1
                if links > _LINKS_MAX:
                    raise BackupError(f"{folder}: found more than {_LINKS_MAX} links on its way")
                pending.append(path.parent / path.readlink())
    return found


def _is_open(found: os.stat_result, *, is_end: bool) -> bool:
    """Return True if everybody can exchange a folder's entries, or add some at the end of a way."""
    mode = found.st_mode
    if stat.S_ISLNK(mode) or not mode & stat.S_IWOTH:
        return False
    return is_end or not mode & stat.S_ISVTX


def _user(uid: int, path: pathlib.Path) -> ChildUser:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        gid = path.lstat().st_gid
        return ChildUser(uid, gid, (gid,))
    return ChildUser(uid, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid))


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def run_as(user: ChildUser | None, work: Callable[[], bool]) -> bool:
    """Do a piece of work as a user, and return its answer.

    Args:
        user: None: do it here.
        work: raises StoreError, BackupError or OSError if it fails. It opens by itself only what
            the user may open.

    Raises:
        BackupError: it failed, or nothing could be started.
    """
    if user is None:
        outcome = _outcome(work)
    else:
        worker = forked_worker.begin(lambda: _as_bytes(user, work))
        result = None if worker is None else worker.result()
        if result is None:
            raise BackupError(
                f"the process that writes as {_name(user.uid)} could not be started or was ended. "
                "To fix: try again"
            )
        outcome = _DECODE(result)
    if outcome.wrong:
        raise BackupError(outcome.wrong)
    return outcome.answer


def _as_bytes(user: ChildUser, work: Callable[[], bool]) -> bytes:
    """Become a user for good, then work."""
    became = _outcome(lambda: _become(user))
    if became.wrong:
        return msgspec.msgpack.encode(became)
    done = _outcome(work)
    if done.wrong:
        done = msgspec.structs.replace(done, wrong=f"as {_name(user.uid)}: {done.wrong}")
    return msgspec.msgpack.encode(done)


def _become(user: ChildUser) -> bool:
    """Become a user for good.

    Raises:
        BackupError: this root may not, as in many containers.
    """
    capability = "CAP_SETGID"
    try:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        capability = "CAP_SETUID"
        os.setresuid(user.uid, user.uid, user.uid)
    except OSError as error:
        name = _name(user.uid)
        raise BackupError(
            f"this process can't become {name}, to whom the folder belongs: {error.strerror}; "
            f"expected {capability}, and a user namespace that has uid {user.uid} and its "
            f"groups. To fix: run this as {name}, or as a root with CAP_SETGID and CAP_SETUID"
        ) from error
    return True


def _outcome(work: Callable[[], bool]) -> _Outcome:
    try:
        return _Outcome(work())
    except (errors.StoreError, BackupError) as error:
        return _Outcome(wrong=str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        return _Outcome(wrong=f"{place}{error.strerror or error}")

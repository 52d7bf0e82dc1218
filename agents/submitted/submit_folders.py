"""Tells whether folders of a submitter are on this node, with the rights of the job's user alone.

The same path may be another folder here, so a name is never enough: on the machine of the
submission device and inode tell, elsewhere the marker that the submitter's command wrote. Storage
may hang, so nothing here may be called under the agent's lock.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from agents.host import acting_user
from reconciler.model.values.folder_identity import MARKER_FOLDER, FolderIdentity, SubmitPlace

#: The most bytes of a marker.
MARKER_BYTES_MAX = 128
#: What marks a virtual environment, and a conda one.
_VENV, _CONDA = "pyvenv.cfg", "conda-meta"
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FoundPlace(NamedTuple):
    """The folder and Python environment of a submission that a node has.

    Attributes:
        folder: path of the folder; empty: it is not here.
        python: path of the Python environment; empty: it is not here, or there was none.
        is_conda: True if that is a conda environment.
        notes: why something is not here, for people.
    """

    folder: str = ""
    python: str = ""
    is_conda: bool = False
    notes: tuple[str, ...] = ()

    def variables(self, path: str) -> dict[str, str]:
        """Return the variables that a task gets by it.

        Args:
            path: the task's ``PATH`` otherwise.
        """
        found: dict[str, str] = {}
        if self.python:
            found["CONDA_PREFIX" if self.is_conda else "VIRTUAL_ENV"] = self.python
            found["PATH"] = f"{self.python}/bin:{path}"
        if self.folder:
            found["MUSTER_SUBMIT_DIR"] = self.folder
        return found


def machine_boot_id() -> str:
    """Return the id of the machine's boot, as the kernel names it."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def find(
    place: SubmitPlace, user: acting_user.ActingUser | None, boot_id: str, *, chosen: bool
) -> FoundPlace:
    """Return what this node has of a place.

    Args:
        user: the job's; None for this process's own.
        boot_id: of this machine.
        chosen: True if the job names its working directory, so that there is nothing to explain
    """
    notes = []
    folder = python = ""
    is_conda = False
    if place.folder is not None and not chosen:
        why = why_other(place.folder, user, boot_id)
        folder = "" if why else place.folder.path
        if why:
            notes.append(
                f"the folder {place.folder.path}, where it was submitted, is not on this node "
                f"({why}): it starts in an empty folder. To fix: send its files along (--code .), "
                "or submit it in a folder that nodes share"
            )
    if place.python is not None:
        why = why_other(place.python, user, boot_id)
        if not why:
            python = place.python.path
            is_conda, why = _kind_of(place.python, user)
        if why:
            python = ""
            notes.append(
                f"the Python environment {place.python.path} is not on this node ({why}): "
                "`python3` is the node's. To have it everywhere: a shared home, or an image"
            )
    return FoundPlace(folder, python, is_conda, tuple(notes))


def unseen_by_container(place: SubmitPlace, shown: Iterable[str], *, chosen: bool) -> FoundPlace:
    """Return what a container has of a place: nothing, and why.

    Args:
        shown: folders of this node that it sees under their own names.
        chosen: True if the job names its working directory, so that there is nothing to explain
    """
    if place.folder is None or chosen:
        return FoundPlace()
    path = place.folder.path
    if any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in shown):
        note = (
            f"a container does not start in {path}, where it was submitted, although it sees that "
            f"folder: it starts in an empty one. To fix: workingDirectory: {path}"
        )
    else:
        note = (
            f"a container does not see the folder {path}, where it was submitted: it starts in an "
            "empty folder. To fix: send its files along (--code .), or have them in an image or a "
            "volume"
        )
    return FoundPlace(notes=(note,))


def why_other(place: FolderIdentity, user: acting_user.ActingUser | None, boot_id: str) -> str:
    """Return why a folder here is not the one that was seen; empty: it is that one."""
    handle = -1
    try:
        with acting_user.acting_as(user) as uid:
            handle = os.open(place.path, _FOLDER)
            found = os.fstat(handle)
            if (boot_id, found.st_dev, found.st_ino) == (place.boot_id, place.device, place.inode):
                os.stat(".", dir_fd=handle)  # its user has to be able to enter it
                return ""
            if not place.marker:
                return "a folder of that name is another one"
            return _why_other_marker(handle, place, uid)
    except FileNotFoundError:
        return "there is no such folder"
    except (OSError, ValueError) as problem:
        return getattr(problem, "strerror", None) or str(problem)
    finally:
        if handle >= 0:
            os.close(handle)


def _why_other_marker(folder: int, place: FolderIdentity, uid: int) -> str:
    """Return why the marker in an open folder is not the submitter's; empty: it is.

    Others may know which marker is looked for. So it counts only if it belongs to the job's user,
    with the folder in which it is, and neither is a link.
    """
    with contextlib.ExitStack() as opened:
        try:
            inner = os.open(MARKER_FOLDER, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            opened.callback(os.close, inner)
            marker = os.open(
                place.marker, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                dir_fd=inner,
            )  # fmt: skip
            opened.callback(os.close, marker)
        except FileNotFoundError:
            return "a folder of that name is another one"
        facts = os.fstat(marker)
        owners = {facts.st_uid, os.fstat(inner).st_uid}
        if not stat.S_ISREG(facts.st_mode) or owners != {uid}:
            return "the marker of its submission belongs to somebody else"
        value = os.read(marker, MARKER_BYTES_MAX + 1)
    if hashlib.sha256(value).hexdigest() != place.marker_sha256:
        return "a folder of that name is another one"
    return ""


def _kind_of(place: FolderIdentity, user: acting_user.ActingUser | None) -> tuple[bool, str]:
    """Return True for a conda environment, and why a folder is no environment at all."""
    with acting_user.acting_as(user):
        names = [name for name in (_VENV, _CONDA) if os.path.lexists(f"{place.path}/{name}")]
    if not names:
        return False, f"it has neither {_VENV} nor {_CONDA}"
    return names[0] == _CONDA, ""

"""Folders by what they are: a node uses the folder of a submission only if it is that one.

A name alone says nothing: ``/home/ada/work`` exists on many machines. On one kernel, device and
inode tell; on another one, a file that the submitter's command wrote into the folder.
"""

import msgspec

#: Folder for markers in a submitter's folder; it holds a ``.gitignore``.
MARKER_FOLDER = ".muster-submit"


class FolderIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder as the submitter's command saw it.

    Attributes:
        path: absolute, as the submitter names it.
        device, inode: its numbers, which count on the same boot of the same machine only.
        boot_id: that boot, as the kernel names it.
        marker: name of a file in its ``MARKER_FOLDER``; empty: the folder could not be written to.
        marker_sha256: SHA-256 of what that file holds, in hex. The content itself is in no
            document, so that nobody who reads documents can make such a file.
    """

    path: str
    device: int
    inode: int
    boot_id: str
    marker: str = ""
    marker_sha256: str = ""


class SubmitPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a command was submitted: its folder, and the Python environment that was active."""

    folder: FolderIdentity | None = None
    python: FolderIdentity | None = None


NOWHERE = SubmitPlace()

"""Reads the files of a revision before anybody knows what it is to be compared with.

A plan waits until a controller has told what runs there. Most of its own work needs nothing of
that: two revisions of a repository hold mostly the same files, and parsing them takes the longest.
A revision goes in, and what its blobs hold comes out, for all loaders that read them afterwards.
"""

import contextlib
from pathlib import Path

from reconciler.desired.apply import file_index as filed
from reconciler.desired.apply import parallel_reader as reading
from reconciler.desired.documents import document_reader as documents
from reconciler.desired.git import git_commands as gitobjects
from reconciler.desired.git import source
from reconciler.operations import scratch_repository as scratch


def read(repository: Path, sub_path: str, revision: str) -> reading.Read:
    """What the blobs of a revision hold; none of them where it can't be read.

    Whoever compares it finds out why, and says so.

    Args:
        repository: a clone, or a bare repository.
        sub_path: the folder of it that is read.
        revision: anything that names a commit.
    """
    found: dict[str, documents.File] = {}
    with contextlib.suppress(scratch.RevisionError, gitobjects.GitError, OSError, ValueError):
        folder = Path(scratch.git_folder(repository))
        commit = scratch.known_commit(folder, revision)
        if commit is not None:
            with contextlib.closing(source.Source(str(folder), sub_path=sub_path)) as copy:
                present = [one for one in copy.files(commit).files if one.blob is not None]
                blobs = [one.blob or "" for one in present]
                changes = [
                    filed.FileChange(one.path, blob, data)
                    for one, blob, data in zip(present, blobs, copy.blobs(blobs), strict=True)
                ]
                reading.changed(changes, found)
    return found

"""Reads the files of a revision before anybody knows what it is to be compared with.

A plan waits until a controller has told what runs there. Most of its own work needs nothing of
that: two revisions of a repository hold mostly the same files, and parsing them takes the longest.
A revision goes in, and what its blobs hold comes out, for all loaders that read them afterwards.
"""

import contextlib
from pathlib import Path

from reconciler.desired.apply import file_index, parallel_reader
from reconciler.desired.documents import document_reader
from reconciler.desired.git import git_commands, source
from reconciler.operations import scratch_repository


def read(repository: Path, sub_path: str, revision: str) -> parallel_reader.Read:
    """What the blobs of a revision hold; none of them where it can't be read.

    Whoever compares it finds out why, and says so.

    Args:
        repository: a clone, or a bare repository.
        sub_path: the folder of it that is read.
        revision: anything that names a commit.
    """
    found: dict[str, document_reader.File] = {}
    with contextlib.suppress(
        scratch_repository.RevisionError, git_commands.GitError, OSError, ValueError
    ):
        folder = Path(scratch_repository.git_folder(repository))
        commit = scratch_repository.known_commit(folder, revision)
        if commit is not None:
            with contextlib.closing(source.Source(str(folder), sub_path=sub_path)) as copy:
                present = [one for one in copy.files(commit).files if one.blob is not None]
                blobs = [one.blob or "" for one in present]
                changes = [
                    file_index.FileChange(one.path, blob, data)
                    for one, blob, data in zip(present, blobs, copy.blobs(blobs), strict=True)
                ]
                parallel_reader.changed(changes, found)
    return found

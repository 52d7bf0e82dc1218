"""Names the files that a task's output is copied to."""

import posixpath
from collections.abc import Mapping

from agents.logs import output_copies
from reconciler.model.observed import output_files


def copy_of(
    files: output_files.OutputFiles,
    words: Mapping[str, str],
    base: str,
    place: output_copies.FilePlace,
) -> output_copies.OutputCopy | None:
    """Return what is copied of a task's output and where to; None for nothing.

    A path without the rank is written by rank 0 alone: tasks on several nodes can't share a file.

    Args:
        words: values of the words in paths, by letter.
        base: folder of relative paths; empty if this node has it not.

    Raises:
        OutputFileError: a relative path, and the node lacks its folder.
    """
    named = {"stdout": files.output, "stderr": files.error or files.output}
    full: dict[str, str] = {}
    for stream, path in named.items():
        if not path or path == output_files.NOWHERE:
            continue
        if words["t"] != "0" and "t" not in output_files.words_in(path):
            continue
        full[stream] = posixpath.join(base, output_files.fill(path, lambda word: words[word]))
        if not posixpath.isabs(full[stream]):
            raise output_copies.OutputFileError(
                f"output file {path} is to lie in the folder of its submission, which is not on "
                "this node. To fix: write its full path, or submit the job in a folder that nodes "
                "share"
            )
    return output_copies.OutputCopy(place, full) if full else None

"""Files that a job's output is copied to, and words in their paths that stand for its tasks."""

import re
from collections.abc import Callable, Mapping

import msgspec

#: What stands for what in a path, as in Slurm.
WORDS: Mapping[str, str] = {
    "x": "name of the job",
    "j": "number of the job, of an element in an array",
    "A": "number of the array",
    "a": "index in the array",
    "t": "rank of the task",
    "N": "node",
    "u": "user",
    "%": "a percent sign",
}
#: Those that are numbers, which a width such as `%4a` fills with zeros.
_NUMBERS = frozenset("jAat")
_WORD = re.compile(r"%(\d?)(.|$)", re.DOTALL)
#: The file that takes everything and keeps nothing.
NOWHERE = "/dev/null"


class OutputFiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """Paths of files for the output of a job's tasks, empty for none.

    Attributes:
        error: for standard error; empty: it goes to ``output``, too.
        appends: True if what is in the files stays, else they are emptied when a task starts.
    """

    output: str = ""
    error: str = ""
    appends: bool = False


NONE = OutputFiles()


def unknown_words(path: str) -> list[str]:
    """Return what stands behind a percent sign of a path and means nothing."""
    return [match[0] for match in _WORD.finditer(path) if match[2] not in WORDS]


def words_in(path: str) -> set[str]:
    """Return the letters behind the percent signs of a path."""
    return {match[2] for match in _WORD.finditer(path)}


def fill(path: str, value_of: Callable[[str], str]) -> str:
    """Return a path with the values of its words, which are asked for by their letters."""

    def text(match: re.Match[str]) -> str:
        if match[2] == "%":
            return "%"
        value = value_of(match[2])
        return value.zfill(int(match[1] or 0)) if match[2] in _NUMBERS else value

    return _WORD.sub(text, path)

"""Which of several documents of one name was there first, by the commits that brought them.

Where none of them is in force yet, the files and the commits of the look come in, and the file that
counts comes out: the one that would be in force if somebody had looked after every commit. It is
remembered for as long as the name is written more than once. Commits are read for such a name only.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from reconciler.desired.documents import document_reader
from reconciler.desired.git import source

#: The most commits that are gone through, the newest; what is older counts as having come at once.
COMMITS_MAX = 1000

#: Names that are written more than once and looked for; of further ones the path decides, since
#: each takes a look at every commit.
NAMES_MAX = 100

#: From a label and the files that hold it to the file that was first.
Look = Callable[[str, Sequence[str]], str]


class NameOwners:
    """What counts of each name that is written more than once.

    Args:
        known: what counted before a restart; a job by its name, anything else by its label.
        look: finds out of a name whose files nothing is known of; None: the path decides.
    """

    def __init__(self, known: Mapping[str, str], look: Look | None) -> None:
        self._known = dict(known)
        self._look = look

    def get(self, key: str) -> str | None:
        """The file that was told last of a name."""
        return self._known.get(key)

    def forget(self, key: str) -> None:
        """A name is written once, or nowhere."""
        self._known.pop(key, None)

    def of(self, key: str, label: str, paths: Collection[str], home: str | None) -> str:
        """The one of some files whose document counts; ``home``: that of what is in force."""
        ordered = sorted(set(paths))
        found = next((one for one in (home, self._known.get(key)) if one in ordered), None)
        if found is None:
            found = ordered[0]
            if self._look and len(ordered) > 1 and len(self._known) < NAMES_MAX:
                found = self._look(label, ordered)
        self._known[key] = found
        return found

    def structural(self) -> dict[str, str]:
        """What is to be remembered of names of structure."""
        return {label: path for label, path in self._known.items() if "/" in label}

    def keep(self, twice: Collection[str]) -> None:
        """Forget what is no job's, but for these labels."""
        for label in self.structural().keys() - set(twice):
            del self._known[label]


def first(
    repository: source.GitSource, line: Sequence[source.Commit], label: str, paths: Sequence[str]
) -> str:
    """Which of ``paths``, that all hold ``label`` now, held it first and ever since.

    Args:
        repository: where the commits are.
        line: those that lead to now, the oldest first; each is compared with its parent.
        label: kind and name of the object.
        paths: more than one file. Of those that came in one commit the first by path counts.

    Raises:
        GitError: a commit can't be read.
    """
    steps = [
        [one for one in repository.differences(commit.parent, commit.id) if one[0] in paths]
        for commit in line[-COMMITS_MAX:]
        if commit.parent
    ]
    before = {path: old for step in reversed(steps) for path, old, _ in step}
    holding = {
        path: path not in before or _holds(repository, before[path], label, before=False)
        for path in paths
    }
    counts = min((path for path in paths if holding[path]), default=None)
    for step in steps:
        for path, _, new in step:
            holding[path] = _holds(repository, new, label, before=holding[path])
        if counts is None or not holding[counts]:
            counts = min((path for path in paths if holding[path]), default=None)
    return counts or min(paths)


def _holds(repository: source.GitSource, blob: str | None, label: str, *, before: bool) -> bool:
    """Whether a file holds an object; as it was before where nobody can tell."""
    if blob is None:
        return False
    file = document_reader.read(repository.blobs([blob])[0])
    return any(one.label == label for one in file.documents) or (file.opaque and before)

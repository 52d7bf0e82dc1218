"""Changes of commits that are too large to be read, until they are gone or can be read.

Files of such commits come in, with who stands behind them. A file that is written back costs
nothing. Any other is judged when a later commit of a size that can be read changes it, or at the
end of the walk, by all who had a hand in it. Of a commit with a tree that git would never write
nobody can tell the files: what differs behind it from before it is nobody's.
"""

from collections.abc import Iterable, Iterator

import msgspec

from reconciler.desired.authorize import authority, signatures
from reconciler.desired.documents import object_changes, revision_limits
from reconciler.desired.git import commit_log, tree_diff
from reconciler.model import desired

#: The most changes that are remembered of one file. With more nobody is taken to have the right.
TOUCHES_MAX = 20
_CROWDED = signatures.SignatureRefusal(
    "not-allowed",
    f"its file was changed more than {TOUCHES_MAX} times by commits that are too large to be read, "
    "so nobody can tell who may: commit it as it is meant once more",
)
_ODD = signatures.SignatureRefusal(
    "not-allowed",
    "its file changed together with a tree that git never writes, so nobody can tell who changed "
    "it: commit it as it is meant once more",
)


class OddTree(msgspec.Struct, frozen=True):
    """The last of some commits whose trees git would never write.

    ``base`` is the commit before the first of them; ``query`` and ``error`` are of that first one.
    """

    base: str
    commit: commit_log.Commit
    query: authority.AuthorityQuery | None
    error: tree_diff.BrokenTreeError


class Touch(msgspec.Struct, frozen=True):
    """One person's change of a file that was not read; ``query`` None: nothing is required.

    ``number`` counts them.
    """

    number: int
    commit: commit_log.Commit
    query: authority.AuthorityQuery | None
    before: str | None
    after: str | None


class UnreadChanges:
    """The files that commits changed and nobody has read, along the walks of one head.

    Args:
        limits: of one revision; None: no limit.

    Attributes:
        walk: what may still be read of large commits until the next look.
        odd: commits with odd trees that no other has followed yet; None: there are none.
    """

    def __init__(self, limits: desired.RevisionLimits | None) -> None:
        self._number = 0
        self._touches: dict[str, tuple[Touch, ...]] = {}
        self.walk = revision_limits.of_walk(limits)
        self.odd: OddTree | None = None

    def __bool__(self) -> bool:
        """Return True if there are any."""
        return bool(self._touches) or self.odd is not None

    def add(
        self,
        commit: commit_log.Commit,
        query: authority.AuthorityQuery | None,
        entries: Iterable[object_changes.Entry],
    ) -> None:
        """Note a commit that can't be read."""
        for path, before, after in entries:
            known = self._touches.get(path, ())
            if known and known[0].before == after:
                del self._touches[path]
                continue
            self._number += 1
            touch = Touch(self._number, commit, query, before, after)
            if known and known[-1].query == query:
                touch = msgspec.structs.replace(touch, before=known[-1].before)
                known = known[:-1]
            elif len(known) == TOUCHES_MAX:
                touch = _crowded(known, touch)
                known = known[:1]
            self._touches[path] = (*known, touch)

    def pass_over(
        self,
        commit: commit_log.Commit,
        query: authority.AuthorityQuery | None,
        error: tree_diff.BrokenTreeError,
    ) -> None:
        """Note a commit with a tree that git would never write."""
        first = self.odd or OddTree(commit.parent, commit, query, error)
        self.odd = msgspec.structs.replace(first, commit=commit, query=first.query or query)

    def settle_odd(
        self,
        query: authority.AuthorityQuery | None,
        entries: Iterable[object_changes.Entry],
    ) -> None:
        """Note what differs behind odd trees from before them; if anything is required, nobody has
        the right to it.

        Args:
            query: of the commit behind them. entries: its files that differ from before them.
        """
        odd, self.odd = self.odd, None
        if odd is None:
            return
        query = odd.query or query
        if query is not None:
            query = msgspec.structs.replace(query, signer=_ODD, early=None, also=None)
        self.add(odd.commit, query, entries)

    def of(self, path: str) -> tuple[Touch, ...]:
        """Return the changes of a file that were not read, the oldest first."""
        return self._touches.get(path, ())

    def forget(self, paths: Iterable[str]) -> None:
        """Forget files that have been read."""
        for path in paths:
            self._touches.pop(path, None)

    def files(self) -> Iterator[tuple[object_changes.Entry, tuple[Touch, ...]]]:
        """Return each file with its blobs before and after all of its changes."""
        for path, touches in sorted(self._touches.items()):
            yield (path, touches[0].before, touches[-1].after), touches


def _crowded(known: tuple[Touch, ...], touch: Touch) -> Touch:
    """Return one change for many, which nobody has the right to if anything was required."""
    query = next((one.query for one in (*known, touch) if one.query is not None), None)
    if query is not None:
        query = msgspec.structs.replace(query, signer=_CROWDED, early=None, also=None)
    return msgspec.structs.replace(touch, query=query, before=known[1].before)

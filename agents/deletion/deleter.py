"""Deletes folders of many users in turns, so that no user's folder keeps those of others waiting.

Each turn is short, and then another user's folder is next. Of one user's folders, one after the
other is deleted: each goes on where its last turn ended, so that every turn gets on. A folder that
can't be deleted gets the suffix ``.kept`` and is left there; the next agent tries it again.
"""

import contextlib
import os
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from agents.deletion import subordinate_ids
from agents.deletion.tree_deletion import DeletionOutcome, TreeDeletion

#: Names and time of one turn.
TURN_NAMES, TURN_S = 20_000, 0.25
#: Suffixes of what is being deleted, and of what can't be.
GONE, KEPT = ".gone", ".kept"
#: Users whose deletions stay open between turns, each with some handles.
OPEN_MAX = 16
#: What is before the uid in a name. No attempt has it in its id.
_OF = "@"
_STEM_CHARACTERS_MAX = 230


class _Tree(NamedTuple):
    """A path to delete, and what is called once it is gone or given up."""

    path: str
    uid: int
    turns_of: str
    done: Callable[[], None] | None


class Deleter:
    """The deletions of one node. Different threads may add to it; one calls ``turn``.

    Args:
        added: called when there is something to delete.
        kept: called with the number of paths that could not be deleted, and the last of them.
    """

    def __init__(
        self,
        added: Callable[[], None] = lambda: None,
        kept: Callable[[int, str], None] = lambda _count, _path: None,
    ) -> None:
        self._added = added
        self._kept = kept
        self._kept_count = 0
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[_Tree]] = OrderedDict()
        #: Deletions that go on where they were, by user; that of the last turn is the last.
        self._open: OrderedDict[str, tuple[_Tree, TreeDeletion]] = OrderedDict()

    def add(self, path: str, uid: int, done: Callable[[], None] | None = None) -> None:
        """Delete a path of a user, which :func:`named` has made in a folder of the agent's own.

        Args:
            done: called once it is gone, or set aside.
        """
        tree = _Tree(path, uid, subordinate_ids.holder_of(uid), done)
        with self._lock:
            self._waiting.setdefault(tree.turns_of, deque()).append(tree)
        self._added()

    def add_left(self, folder: str) -> None:
        """Delete what an earlier agent has put in a folder."""
        for name in os.listdir(folder):  # noqa: PTH208 - names are what is wanted
            path = f"{folder}/{name}"
            with contextlib.suppress(OSError):  # nothing of it keeps an agent from its start
                stem, _, uid = name.removesuffix(GONE).removesuffix(KEPT).rpartition(_OF)
                if not (stem and uid.isdecimal()):
                    stem, uid = name.removesuffix(GONE), str(os.lstat(path).st_uid)
                self.add(move(path, folder, stem, int(uid)), int(uid))

    def turn(self) -> bool:
        """Delete a part of what is next. Return True if there is more to delete."""
        with self._lock:
            if not self._waiting:
                return False
            user, trees = self._waiting.popitem(last=False)
            tree = trees.popleft()
            if trees:
                self._waiting[user] = trees  # behind the others
        deletion = self._resume(tree)
        outcome = deletion.step(TURN_NAMES, TURN_S)
        if outcome is not DeletionOutcome.MORE:
            deletion.close()
            del self._open[tree.turns_of]
            if outcome is DeletionOutcome.STUCK:
                self._set_aside(tree)
            if tree.done is not None:
                tree.done()
        with self._lock:
            if outcome is DeletionOutcome.MORE:
                self._waiting.setdefault(tree.turns_of, deque()).appendleft(tree)
            return bool(self._waiting)

    def _resume(self, tree: _Tree) -> TreeDeletion:
        """Return the deletion of a path, as its last turn left it unless too many users wait."""
        found = self._open.pop(tree.turns_of, None)
        if found is None:
            found = tree, TreeDeletion(tree.path, _owner_check(tree.uid))
        if len(self._open) == OPEN_MAX:
            self._open.popitem(last=False)[1][1].close()
        self._open[tree.turns_of] = found
        return found[1]

    def _set_aside(self, tree: _Tree) -> None:
        kept = f"{tree.path.removesuffix(GONE)}{KEPT}"
        try:
            os.rename(tree.path, kept)  # noqa: PTH104
        except OSError:
            kept = tree.path
        self._kept_count += 1
        self._kept(self._kept_count, kept)


def named(folder: str, name: str, uid: int) -> str:
    """Return a path in a folder for what is to be deleted. It tells the next agent whose it is."""
    return f"{folder}/{name[-_STEM_CHARACTERS_MAX:]}{_OF}{uid}{GONE}"


def move(path: str, folder: str, name: str, uid: int) -> str:
    """Move a path to where it is deleted. Return its new path.

    Raises:
        OSError: it is not there any more, or can't be moved.
    """
    gone = named(folder, name, uid)
    if os.path.lexists(gone):
        gone = named(folder, f"{name}.{secrets.token_hex(4)}", uid)
    os.rename(path, gone)  # noqa: PTH104
    return gone


def _owner_check(uid: int) -> Callable[[int], bool]:
    """Return a test if an id is a user's, also by a container. Everything is root's."""
    ranges: tuple[range, ...] | None = None

    def owns(found: int) -> bool:
        nonlocal ranges
        if uid in {0, found}:
            return True
        if ranges is None:  # rare, and it may take a while
            user = subordinate_ids.user_of(uid)
            ranges = (range(user, user + 1), *subordinate_ids.ids_of(user))
        return any(found in one for one in ranges)

    return owns

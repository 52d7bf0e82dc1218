"""Tells when a repository may have changed, so that nobody has to look every second.

A repository on this machine is watched: its references, never its objects. One elsewhere is
polled, on a schedule with jitter that slows down while it can't be reached. Both are hints only:
what the head is, and what it changed, the loader finds out by itself.
"""

from collections.abc import Callable
from pathlib import Path

from watchdog import events, observers

from reconciler.desired.git import git_commands

_IGNORED_SUFFIX = ".lock"
#: A hint brings a look at a repository that could not be reached after so long at the latest.
HINT_S_MAX = 30.0
_TOP_FILES = frozenset({"packed-refs", "HEAD"})


class _References(events.FileSystemEventHandler):
    """Calls back when a reference was written.

    Args:
        folder: the git folder that has the branches.
        own: that of the work tree, which has its HEAD; mostly the same.
    """

    def __init__(self, folder: Path, own: Path, changed: Callable[[], None]) -> None:
        self._tops = (folder, own)
        self._heads = folder / "refs" / "heads"
        self._changed = changed

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        """Called by the observer's thread for everything in the watched folders."""
        if event.event_type not in {"created", "modified", "moved", "deleted", "closed"}:
            return
        for text in (event.src_path, event.dest_path):
            name = text if isinstance(text, str) else bytes(text).decode("utf-8", "replace")
            if not name or name.endswith(_IGNORED_SUFFIX):
                continue
            path = Path(name)
            if self._heads in path.parents or (
                path.parent in self._tops and path.name in _TOP_FILES
            ):
                self._changed()
                return


class LocalWatch:
    """Watches the references of a repository on this machine.

    Args:
        repository: its folder, bare or not.
        changed: called from a thread of the watch, sometimes more than once for one change.

    Raises:
        GitError: there is no repository.
        OSError: the machine has no watches left; poll instead.
    """

    def __init__(self, repository: Path, changed: Callable[[], None]) -> None:
        self._repository = repository
        self._changed = changed
        self._observer = observers.Observer()
        self._watched: tuple[tuple[Path, git_commands.Identity], ...] = ()
        self._schedule()
        self._observer.start()

    def renew(self) -> None:
        """Watch what is in the repository's place now, where that is another one.

        Who moves a repository away moves what is watched along, and nobody tells of what comes in
        its place: to be called after each look at it.

        Raises:
            GitError: there is no repository.
            OSError: it can't be watched.
        """
        if any(git_commands.identity(path) != seen for path, seen in self._watched):
            self._observer.unschedule_all()
            self._watched = ()
        if not self._watched:
            self._schedule()

    def _schedule(self) -> None:
        own = git_commands.git_folder(self._repository).resolve()
        folder = git_commands.common_folder(own)
        heads = folder / "refs" / "heads"
        heads.mkdir(parents=True, exist_ok=True)
        places = {folder, own, heads}
        watched = tuple((path, git_commands.identity(path)) for path in places)
        handler = _References(folder, own, self._changed)
        for path in places:
            self._observer.schedule(handler, str(path), recursive=path == heads)
        self._watched = watched

    def close(self) -> None:
        """Stop watching."""
        self._observer.stop()
        self._observer.join(timeout=10)


class Polling:
    """When to look at a repository that can't be watched. Nothing here sleeps.

    Args:
        random: a number from 0 to 1, new each time.
        clock: seconds that only grow.
        interval_s: between two looks while all is well.
        jitter: by which part of it the interval varies, so that controllers don't fall in step.
        again_s: until the look after the first that failed, then twice as long each time: what is
            moved away for a moment is back soon.
        interval_s_max: the longest interval while the repository can't be reached.
        hint_s_min: how soon after a look a hint may cause another.
    """

    def __init__(
        self,
        *,
        random: Callable[[], float],
        clock: Callable[[], float],
        interval_s: float = 60.0,
        jitter: float = 0.2,
        again_s: float = 5.0,
        interval_s_max: float = 600.0,
        hint_s_min: float = 1.0,
    ) -> None:
        self._random = random
        self._clock = clock
        self._interval_s = interval_s
        self._jitter = jitter
        self._again_s = again_s
        self._interval_s_max = max(interval_s, interval_s_max)
        self._hint_s_min = hint_s_min
        self._failures = 0
        #: How long after a look a hint may bring the next.
        self._least_s = hint_s_min
        self._polled_at: float | None = None
        self._next_at = clock()
        #: Whether somebody hinted since the last look began: what it saw may be older than that.
        self._hinted = False

    def next_poll_s(self) -> float:
        """How many seconds from now the next look is due; 0 where it is due now."""
        return max(0.0, self._next_at - self._clock())

    def begin(self) -> None:
        """A look begins: what is hinted from here on may be news that it does not see."""
        self._hinted = False

    def polled(self, *, reached: bool) -> None:
        """The repository was looked at just now."""
        now = self._clock()
        self._polled_at = now
        self._failures = 0 if reached else min(self._failures + 1, 30)
        interval_s = self._interval_s
        if self._failures:
            again_s = min(self._again_s, interval_s) * 2.0 ** (self._failures - 1)
            interval_s = min(again_s, self._interval_s_max)
        beside_s = min(interval_s / 2, HINT_S_MAX) if self._failures else 0.0
        self._least_s = max(self._hint_s_min, beside_s)
        self._next_at = now + interval_s * (1 + self._jitter * (2 * self._random() - 1))
        if self._hinted:  # looked at last: a hint from another thread is in one place or the other
            self.hint()

    def hint(self) -> None:
        """Somebody says that there is news: look soon, but not more often than is bearable.

        Anybody may say so: a repository that can't be reached is left half of its time for that.
        """
        self._hinted = True
        earliest = self._clock()
        if self._polled_at is not None:
            earliest = max(earliest, self._polled_at + self._least_s)
        self._next_at = min(self._next_at, earliest)

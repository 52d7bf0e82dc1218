"""Notices that a repository may have changed.

The references of a local repository are watched, never its objects. A remote one is polled, with
jitter and with backoff while it cannot be reached. Both give hints only: the loader finds out what
the head is.
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
    """A handler that calls back when a reference was written.

    Args:
        folder: the git folder with the branches.
        own: the git folder of the work tree, with its HEAD; usually the same.
    """

    def __init__(self, folder: Path, own: Path, changed: Callable[[], None]) -> None:
        self._tops = (folder, own)
        self._heads = folder / "refs" / "heads"
        self._changed = changed

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        """Handle an event in the watched folders, in the observer's thread."""
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
    """A watch on the references of a local repository.

    Args:
        repository: its folder, bare or not.
        changed: called from a thread of the watch, possibly more than once for one change.

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
        """Watch the repository that is there now, if it was replaced. Call this after each look.

        A moved repository takes its watch along, and nothing reports its successor.

        Raises:
            GitError: there is no repository.
            OSError: it cannot be watched.
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
    """Times of looks at a repository that cannot be watched. Nothing here sleeps.

    Args:
        random: a number from 0 to 1, new each time.
        clock: seconds that only grow.
        interval_s: between two looks while all is well.
        jitter: fraction by which the interval varies, so that controllers do not fall in step.
        again_s: wait after the first failed look, doubled after each further one.
        interval_s_max: the longest interval while the repository cannot be reached.
        hint_s_min: shortest time after a look at which a hint may cause another.
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
        """Return the seconds until the next look; 0 if it is due."""
        return max(0.0, self._next_at - self._clock())

    def begin(self) -> None:
        """Begin a look: hints from here on may be about news that it does not see."""
        self._hinted = False

    def polled(self, *, reached: bool) -> None:
        """Record that the repository was looked at just now."""
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
        """Look soon because of a hint, but not too often.

        Anybody may send hints; an unreachable repository is left alone for half of its interval
        anyway.
        """
        self._hinted = True
        earliest = self._clock()
        if self._polled_at is not None:
            earliest = max(earliest, self._polled_at + self._least_s)
        self._next_at = min(self._next_at, earliest)

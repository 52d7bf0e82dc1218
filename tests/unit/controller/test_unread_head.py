"""A head that is not read yet is shown while reading goes on, and no longer."""

import select
import subprocess
import threading
import time
from pathlib import Path

from reconciler.controller import git_watcher, loop_inbox, unread_head
from reconciler.desired.apply import loader
from reconciler.desired.git import source, watch
from reconciler.model import desired


def test_it_is_told_once_reading_takes_long() -> None:
    told: list[tuple[str, float]] = []
    heard = threading.Event()

    def tell(head: str, seen_at: float) -> None:
        told.append((head, seen_at))
        heard.set()

    one = unread_head.UnreadHead(tell, after_s=0.0, clock=lambda: 7.0)
    one.begin("abc")
    assert heard.wait(30)
    one.end()
    assert told == [("abc", 7.0)]


def test_it_is_not_told_of_a_head_that_was_read() -> None:
    told: list[str] = []
    one = unread_head.UnreadHead(lambda head, _: told.append(head), after_s=3600.0)
    one.begin("abc")
    timer = one._timer
    assert timer is not None
    one.end()
    one._due(timer, "abc", 7.0)  # as if it had fired just then
    timer.join(30)
    assert told == []


class _Stuck(loader.Loader):
    """A loader that reads until it is let go."""

    def __init__(self, repository: source.GitSource) -> None:
        super().__init__(repository)
        self.go_on = threading.Event()

    def load(self, *, fetch: bool = True) -> desired.Desired:
        self.on_head("a" * 40)
        assert self.go_on.wait(60)
        return super().load(fetch=fetch)


def _next(inbox: loop_inbox.Inbox) -> desired.Desired:
    while True:
        assert select.select([inbox.descriptor], [], [], 30)[0], "nothing came"
        inbox.drain()
        value, _ = inbox.take_desired()
        if value is not None:
            return value


def test_status_shows_it_while_the_watcher_reads(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
    read = source.GitSource(str(repository), branch="main", state=tmp_path)
    inbox = loop_inbox.Inbox()
    polling = watch.Polling(random=lambda: 0.5, clock=time.monotonic, interval_s=3600)
    stuck = _Stuck(read)
    reading = git_watcher.GitWatcher(read, stuck, inbox, polling, allow_root=False)
    reading._unread._after_s = 0.0
    reading.start()
    try:
        status = _next(inbox).status
        assert status.sync == "OutOfSync"
        assert status.attempted_revision == "a" * 40
        assert status.unread_since is not None
        assert "is not read yet" in status.message
        stuck.go_on.set()
        after = _next(inbox).status
        assert after.unread_since is None
        assert "is not read yet" not in after.message
    finally:
        stuck.go_on.set()
        reading.stop()
        reading.join(30)

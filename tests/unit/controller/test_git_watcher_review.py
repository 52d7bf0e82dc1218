"""The git watcher survives its own internal errors, and reports them."""

import select
import subprocess
import time
from pathlib import Path

import pytest

from reconciler import metrics
from reconciler.controller import git_watcher, loop_inbox
from reconciler.controller.quarantine import internal_errors
from reconciler.desired.apply import loader
from reconciler.desired.git import source, watch
from reconciler.model import desired


class _Defective(loader.Loader):
    """A loader whose first look raises."""

    looks = 0

    def load(self, *, fetch: bool = True) -> desired.Desired:
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("a secret of somebody's")
        return super().load(fetch=fetch)


def _next(inbox: loop_inbox.Inbox) -> desired.Desired:
    for _ in range(100):
        assert select.select([inbox.descriptor], [], [], 30)[0], "nothing came"
        inbox.drain()
        value, _ = inbox.take_desired()
        if value is not None:
            return value
    raise AssertionError("nothing came")


def test_a_defect_of_a_look_is_shown_and_the_next_look_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
    read = source.GitSource(str(repository), branch="main", sub_path="", state=tmp_path)
    inbox = loop_inbox.Inbox()
    polling = watch.Polling(random=lambda: 0.5, clock=time.monotonic, interval_s=3600)
    reading = git_watcher.GitWatcher(read, _Defective(read), inbox, polling, allow_root=False)
    reading.start()
    try:
        failed = _next(inbox)
        assert failed.status.sync == "Unknown"
        assert failed.status.message.startswith(internal_errors.MARK)
        assert "RuntimeError in " in failed.status.message
        assert "secret" not in failed.status.message
        (look,) = inbox.take_looks()
        counters = metrics.Counters(0.0)
        counters.look(look)
        assert counters.defects["repository"] == 1
        assert any(internal_errors.MARK in one for one in caplog.messages)
        reading.changed()
        assert internal_errors.MARK not in _next(inbox).status.message
    finally:
        reading.stop()
        reading.join(30)
    assert not reading.is_alive()


def test_each_look_that_fails_says_when_the_next_one_is(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    read = source.GitSource(str(repository), branch="main", sub_path="", state=tmp_path)
    inbox = loop_inbox.Inbox()
    polling = watch.Polling(
        random=lambda: 0.5, clock=time.monotonic, interval_s=3600, again_s=900, interval_s_max=3600
    )
    watching = git_watcher.GitWatcher(read, loader.Loader(read), inbox, polling, allow_root=False)
    watching.start()
    try:
        for again_s in (900, 1800, 3600):
            before = time.time()
            status = _next(inbox).status
            assert (status.sync, status.next_look_at is None) == ("Unknown", False)
            assert status.next_look_at is not None
            assert before + again_s - 60 < status.next_look_at < time.time() + again_s
            watching.changed()
        _next(inbox)
        subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
        watching.changed()
        assert _next(inbox).status.next_look_at is not None  # a repository without a commit
    finally:
        watching.stop()
        watching.join(30)


@pytest.mark.parametrize("count", [0, 3, 4, 90])
def test_warnings_without_end_are_not_kept_and_all_errors_are(count: int) -> None:
    errors = [desired.Problem("e", "error", f"{number}.yaml", "wrong") for number in range(9)]
    warnings = [desired.Problem("w", "warning", f"{number}.yaml", "hm") for number in range(count)]
    mixed = tuple(sorted([*errors, *warnings], key=lambda one: one.path))
    value = desired.Desired(status=desired.SyncStatus(problems=mixed))
    kept = git_watcher.limit_warnings(value, most=3).status.problems
    assert [one for one in kept if one.severity == "error"] == [
        one for one in mixed if one.severity == "error"
    ]
    of_warnings = [one for one in kept if one.severity == "warning"]
    assert of_warnings[:3] == [one for one in mixed if one.severity == "warning"][:3]
    told = [one.message for one in of_warnings[3:]]
    more = f"and {count - 3} more warnings: `muster validate` in a clone lists them"
    assert told == ([more] if count > 3 else [])

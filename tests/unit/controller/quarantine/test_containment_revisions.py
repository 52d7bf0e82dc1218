"""The git watcher takes back a revision that the loop could not apply.

The loop and the thread are real, over a real repository and store. The core raises for one queue's
name.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from reconciler.controller import control_loop, git_watcher
from reconciler.controller.quarantine import cycle_rescue
from reconciler.desired.apply import last_good, loader
from reconciler.desired.git import source, watch
from reconciler.model import desired
from reconciler.model.state.states import JobState
from reconciler.notifications import delivery, messages
from reconciler.operations.audit import audit_log
from reconciler.store import sql_store
from tests.unit.controller.quarantine.test_containment import POISON, Contained
from tests.unit.core.world import World
from tests.unit.desired import repositories
from tests.unit.test_replay import url

STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: pool}
spec:
  hosts: n[0-3]
  nodes: {cpu: 4, memory: 8Gi}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: research}
spec: {limit: {cpu: LIMIT}}
"""
#: A queue that no cycle passes with.
QUEUE = f"{{apiVersion: muster/v1, kind: Queue, metadata: {{name: {POISON}}}, spec: {{}}}}\n"


class Told(delivery.Notifier):
    """Notices that would go to people."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            folder / "told",
            clock=time.time,
            monotonic=time.monotonic,
            random=lambda: 0.5,
        )
        self.notices: list[messages.Notice] = []

    def tell(
        self, notices: Iterable[messages.Notice], channels: Iterable[desired.NotificationChannel]
    ) -> None:
        self.notices += notices


def refuse_by(
    loop: control_loop.Loop, refuse: Callable[[cycle_rescue.RevisionRefusal], None]
) -> None:
    """Let a loop hand what it did not apply to somebody else."""
    loop._outputs = loop._outputs._replace(refuse=refuse)


class RevisionSite:
    """A repository, the git watcher, and a loop driven by hand."""

    def __init__(
        self, folder: Path, repository: repositories.Repository, *, starts: bool = True
    ) -> None:
        self.repository = repository
        self.told = Told(folder)
        state = folder / "state"
        state.mkdir(exist_ok=True)
        with contextlib.closing(sql_store.Store.open(url(state))) as store:
            packed = store.reader.incumbents()
        before = last_good.decode(packed) if packed else last_good.LastGood()
        self.leader = Contained(
            state,
            World(nodes=4),
            before=cycle_rescue.accepted_in(before),
            accepted=packed or b"",
        )
        read = source.GitSource(str(repository.path), state=state)
        polling = watch.Polling(random=lambda: 0.5, clock=time.monotonic, interval_s=3600)
        self.loader = loader.Loader(read, before)
        self.reading = git_watcher.GitWatcher(
            read,
            self.loader,
            self.leader.inbox,
            polling,
            allow_root=False,
            audit=audit_log.Log(folder / audit_log.FILE),
            notifier=self.told,
        )
        refuse_by(self.leader.loop, self.reading.refuse)
        self.leader.core.queues = {POISON}
        if starts:
            self.reading.start()

    @property
    def sync(self) -> str:
        """The loop's sync status."""
        last = self.leader.loop._track.desired
        return last.status.sync if last is not None else ""

    def step(self) -> None:
        """Run a cycle if something has come."""
        self.leader.now += 1
        if self.leader.loop._take(self.leader.loop._selector.select(0.2)):
            self.leader.loop.cycle()

    def until(self, revision: str, sync: str) -> desired.SyncStatus:
        """Run cycles until the status of a revision is as expected."""
        ends_at = time.monotonic() + 60
        while time.monotonic() < ends_at:
            self.step()
            last = self.leader.loop._track.desired
            read = self.reading._last
            if (
                last is not None
                and read is not None
                and read.generation in {0, last.generation}
                and (last.status.attempted_revision, last.status.sync) == (revision, sync)
                and not self.reading._refusals
            ):
                return last.status
        raise AssertionError("it did not become so")

    def commit(self, files: dict[str, str | bytes | None]) -> str:
        revision = self.repository.commit(files)
        self.reading.changed()
        return revision

    def close(self) -> None:
        self.reading.stop()
        self.reading.join(60)
        self.leader.close()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> repositories.Repository:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, repositories.ENVIRONMENT[name])
    return repositories.Repository(tmp_path / "repository.git")


def test_a_revision_is_taken_back_and_the_next_is_judged_by_what_is_in_force(
    tmp_path: Path, repository: repositories.Repository
) -> None:
    site = RevisionSite(tmp_path, repository)
    good = site.commit(
        {"structure.yaml": STRUCTURE.replace("LIMIT", "3"), "a.yaml": repositories.job("a")}
    )
    site.until(good, "Synced")
    bad = site.commit(
        {
            "structure.yaml": STRUCTURE.replace("LIMIT", "2"),
            "p.yaml": QUEUE,
            "b.yaml": repositories.job("b"),
        }
    )
    status = site.until(bad, "OutOfSync")
    assert (status.structure_revision, status.jobs_revision) == (good, good)
    assert [one.rule for one in status.problems] == ["defect"]
    now = site.leader.loop._track.desired
    assert now is not None
    assert now.jobs.keys() == {"a"}
    assert now.structure.queues["research"].limit.cpu_milli == 3000
    packed = site.leader.store.reader.incumbents()
    assert packed is not None
    assert last_good.decode(packed).head == good
    fixed = site.commit({"p.yaml": None})
    site.until(fixed, "Synced")
    assert [one.id for one in site.loader.line] == [bad, fixed], "both are judged anew"
    now = site.leader.loop._track.desired
    assert now is not None
    assert now.structure.queues["research"].limit.cpu_milli == 2000
    assert set(site.leader.states()) == {"a", "b"}
    site.close()
    note = repositories.git(repository.path, "notes", "--ref=muster", "show", bad)
    assert note.startswith("muster: OutOfSync with 1 errors;")
    assert "an internal error" in note
    assert "KeyError in " in note


def test_after_a_restart_it_is_tried_anew_and_nothing_ends(
    tmp_path: Path, repository: repositories.Repository
) -> None:
    site = RevisionSite(tmp_path, repository)
    good = site.commit(
        {"structure.yaml": STRUCTURE.replace("LIMIT", "3"), "a.yaml": repositories.job("a")}
    )
    site.until(good, "Synced")
    site.close()
    bad = repository.commit({"p.yaml": QUEUE})
    site = RevisionSite(tmp_path, repository)
    status = site.until(bad, "OutOfSync")
    assert status.jobs_revision == good
    assert site.leader.states() == {"a": JobState.PENDING}
    site.close()
    site = RevisionSite(tmp_path, repository)
    site.leader.core.queues = set()  # as another version of Muster may be
    site.until(bad, "Synced")
    assert site.leader.loop._track.desired is not None
    assert POISON in site.leader.loop._track.desired.structure.queues
    site.close()


def test_the_very_first_revision_may_be_the_one(
    tmp_path: Path, repository: repositories.Repository
) -> None:
    site = RevisionSite(tmp_path, repository)
    bad = site.commit({"structure.yaml": STRUCTURE.replace("LIMIT", "3"), "p.yaml": QUEUE})
    status = site.until(bad, "OutOfSync")
    assert (status.structure_revision, status.jobs_revision) == (None, None)
    fixed = site.commit({"p.yaml": repositories.job("a")})
    site.until(fixed, "Synced")
    assert set(site.leader.states()) == {"a"}
    site.close()


@pytest.mark.parametrize(
    ("again_at", "looked_s", "left_s"),
    [
        (None, 0.0, git_watcher.SLEEP_S_MAX),
        (130.0, 0.0, 30.0),
        (1e9, 0.0, git_watcher.SLEEP_S_MAX),
        (100.25, 0.5, 0.5),
        (90.0, 0.25, 0.75),
        (90.0, 1.0, 0.0),
        (0.0, 1e6, 0.0),
    ],
)
def test_what_stays_due_is_no_reason_to_look_without_a_pause(
    again_at: float | None, looked_s: float, left_s: float
) -> None:
    assert git_watcher.wait_s(again_at, 100.0, looked_s) == left_s


def test_nobody_is_told_of_a_revision_before_the_loop_goes_by_it(
    tmp_path: Path, repository: repositories.Repository
) -> None:
    """However long that takes, because it may be refused."""
    site = RevisionSite(tmp_path, repository, starts=False)
    good = repository.commit({"structure.yaml": STRUCTURE.replace("LIMIT", "3")})
    site.reading._load()
    assert not site.reading._has_news()
    site.reading._write_notes()
    assert not site.told.notices
    site.step()
    assert site.reading._has_news()
    site.reading._write_notes()
    assert [(one.revision, one.reason) for one in site.told.notices] == [(good, "applied")]
    bad = repository.commit({"p.yaml": QUEUE})
    site.reading._load()
    site.step()
    site.reading._write_notes()
    assert len(site.told.notices) == 1
    better = repository.commit({"p.yaml": None})
    for _ in range(2):
        site.reading._load()
        site.step()
    site.reading._write_notes()
    assert {(one.revision, one.reason) for one in site.told.notices} == {
        (good, "applied"),
        (better, "applied"),
    }
    told = repositories.git(repository.path, "notes", "--ref=muster", "list")
    noted = {line.split()[1] for line in told.splitlines()}
    assert noted == {good, better}, f"of {bad} nobody knew more than that it was read"
    site.leader.close()
    site.loader.close()


def test_what_people_are_told_of_a_refused_revision_came_to_pass(
    tmp_path: Path, repository: repositories.Repository
) -> None:
    site = RevisionSite(tmp_path, repository)
    good = site.commit(
        {"structure.yaml": STRUCTURE.replace("LIMIT", "3"), "a.yaml": repositories.job("a")}
    )
    site.until(good, "Synced")
    bad = site.commit({"p.yaml": QUEUE, "b.yaml": repositories.job("b")})
    site.until(bad, "OutOfSync")
    fixed = site.commit({"p.yaml": None})
    site.until(fixed, "Synced")
    site.close()
    lines = audit_log.Log(tmp_path / audit_log.FILE).tail(10)[::-1]
    assert [(one.entry.revision, one.entry.result) for one in lines] == [
        (good, "Synced"),
        (bad, "Synced"),
        (bad, "OutOfSync"),
        (fixed, "Synced"),
    ]
    refused = lines[2].entry
    assert "entry 2 was written before that was known" in refused.message
    assert (refused.jobs_revision, refused.objects) == (good, ())
    assert lines[3].entry.objects == ("+ Job/b",), "by what was in force"
    assert "was written" not in lines[3].entry.message
    told = {(one.revision, one.reason) for one in site.told.notices}
    assert (bad, "refused") in told
    assert (bad, "applied") not in told
    assert (fixed, "applied") in told


def test_a_revision_that_is_refused_twice_is_taken_back_once(
    tmp_path: Path, repository: repositories.Repository
) -> None:
    """Another look may hand over the same state again before the first refusal is read."""
    site = RevisionSite(tmp_path, repository)
    refuse = site.reading.refuse
    tries: list[int] = []

    def twice(refusal: cycle_rescue.RevisionRefusal) -> None:
        tries.append(refusal.generation)
        site.reading._refusals.append(refusal)
        refuse(refusal)

    refuse_by(site.leader.loop, twice)
    good = site.commit(
        {"structure.yaml": STRUCTURE.replace("LIMIT", "3"), "a.yaml": repositories.job("a")}
    )
    site.until(good, "Synced")
    bad = site.commit({"p.yaml": QUEUE})
    status = site.until(bad, "OutOfSync")
    assert [one.rule for one in status.problems] == ["defect"]
    assert len(tries) == 1
    site.close()


def test_what_was_refused_is_not_handed_over_again_while_nothing_can_be_read(
    tmp_path: Path, repository: repositories.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = RevisionSite(tmp_path, repository)
    refuse = site.reading.refuse
    tries: list[int] = []
    load = site.loader.load

    def fail(*, fetch: bool = True) -> desired.Desired:
        if tries:
            raise LookupError
        return load(fetch=fetch)

    def refused(refusal: cycle_rescue.RevisionRefusal) -> None:
        tries.append(refusal.generation)
        refuse(refusal)

    monkeypatch.setattr(site.loader, "load", fail)
    refuse_by(site.leader.loop, refused)
    good = site.commit(
        {"structure.yaml": STRUCTURE.replace("LIMIT", "3"), "a.yaml": repositories.job("a")}
    )
    site.until(good, "Synced")
    bad = site.commit({"p.yaml": QUEUE})
    ends_at = time.monotonic() + 60
    while site.sync != "Unknown" and time.monotonic() < ends_at:
        site.step()
    assert site.sync == "Unknown"
    assert len(tries) == 1, bad
    site.close()

"""Files of jobs that ended long ago leave the repository when the Cluster says so, once each."""

import asyncio
import pathlib
from collections.abc import Iterator

import msgspec
import pytest

from reconciler import store
from reconciler.desired.documents import cron
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.policy.access import Access, AccessRule, Identity, Role
from reconciler.model.state import records
from reconciler.model.state.states import JobState
from reconciler.operations.changes import pusher, remote_changes
from reconciler.operations.views import stored_views
from reconciler.server.background import prune_timer
from reconciler.server.repository_facts import RepositoryFacts
from reconciler.server.repository_hints import RepositoryHints
from reconciler.server.server_store import ServerStore
from reconciler.store import periodic
from tests.integration.server.test_submission import Repository, job
from tests.unit.store import samples

DAY = 86_400.0
#: A day at 00:00 UTC, and a schedule that names 04:00 of each.
MIDNIGHT = 20_000 * DAY
FOUR = 4 * 3600.0
FILES = desired.FileRetention(int(30 * DAY), cron.parse("0 4 * * *"), "house@example.org")


def opened(url: str) -> ServerStore:
    """The store as a server that has started has it."""
    found = ServerStore(url)
    asyncio.run(found.open())
    return found


class Scene:
    """A store, a repository and the housekeeping between them, at a time of the test's own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.repository = Repository(folder)
        self.state = folder / "state"
        self.state.mkdir()
        self.url = f"sqlite:///{folder / 'muster.db'}"
        self.store = store.Store.open(self.url)
        self.epoch = self.store.lead("test", 1.0)
        self.cycle = 0
        self.now = MIDNIGHT
        found = source.GitSource(
            str(self.repository.path), branch="main", state=self.state / "mirror"
        )
        self.reader = store.StoreReader.open(self.url)
        self.push = pusher.GitPusher(found, dict, self._last_run)
        self.opened = opened(self.url)

    def _last_run(self, name: str) -> pusher.LastRun | None:
        found = self.reader.job(name)
        if found is None:
            return None
        return pusher.LastRun(found.spec.run, found.state.value if found.finished else "")

    def commit(self, structure: desired.Structure, *jobs: records.JobRecord) -> None:
        """A cycle with these jobs, and this structure in force."""
        self.cycle += 1
        status = desired.SyncStatus("Synced", "a", "a", "a")
        stored = {
            stored_views.STRUCTURE: msgspec.msgpack.encode(structure),
            stored_views.SYNC: msgspec.msgpack.encode(status),
        }
        self.store.commit(
            self.epoch, self.cycle, samples.cycle(jobs=jobs), store.CycleExtras(views=stored)
        )

    def look(self, after_s: float = 0.0) -> prune_timer.PruneResult | None:
        """One look of a controller that has just been started, some time later."""
        self.now += after_s

        async def run() -> prune_timer.PruneResult | None:
            batcher = remote_changes.Batcher(self.push)
            chore = prune_timer.Housekeeping(
                self.opened,
                batcher,
                RepositoryHints(lambda: None),
                RepositoryFacts(),
                lambda: self.now,
            )
            task = asyncio.create_task(batcher.run())
            try:
                async with asyncio.timeout(120):
                    return await chore.look()
            finally:
                task.cancel()

        return asyncio.run(run())

    def close(self) -> None:
        """Let go of the store."""
        self.opened.close()
        self.reader.close()
        self.store.close()


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def ended(name: str, days_ago: float, **changes: object) -> records.JobRecord:
    made = samples.job(name, state=JobState.SUCCEEDED)
    spec = msgspec.structs.replace(made.spec, path=f"jobs/{name}.yaml", **changes)
    return msgspec.structs.replace(made, spec=spec, ended_at=MIDNIGHT - days_ago * DAY)


def structure(**changes: object) -> desired.Structure:
    settings = desired.ClusterSettings(retain_files=FILES)
    return msgspec.structs.replace(desired.Structure(settings=settings), **changes)


def test_files_leave_at_the_hour_of_the_schedule_in_one_commit(scene: Scene) -> None:
    for name in ("old", "older", "new", "alive"):
        scene.repository.commit(f"{name}.yaml", job(name))
    alive = samples.job("alive", state=JobState.RUNNING)
    scene.commit(structure(), ended("old", 31), ended("older", 60), ended("new", 20), alive)
    before = scene.repository.log("%H")
    assert scene.look() is None  # it counts from here
    assert scene.look(FOUR - 1) is None
    done = scene.look(2)
    assert done is not None
    assert sorted(done.left) == ["old", "older"]
    assert scene.repository.files() == {"pool.yaml", "new.yaml", "alive.yaml"}
    assert len(scene.repository.log("%H")) == len(before) + 1
    assert scene.repository.log("%ae")[0] == "house@example.org"
    assert scene.look(60) is None  # once a day, also after a restart
    again = scene.look(DAY)
    assert again is not None
    assert (again.left, again.commits) == ((), ())  # the store has them, git no longer


def test_a_time_that_passed_unseen_is_made_up_for_once(scene: Scene) -> None:
    scene.repository.commit("old.yaml", job("old"))
    scene.commit(structure(), ended("old", 60))
    scene.look()
    done = scene.look(9 * DAY + 3600)
    assert done is not None
    assert done.left == ("old",)
    assert scene.look(60) is None


def test_files_leave_after_a_month_where_nothing_is_said(scene: Scene) -> None:
    for name in ("old", "new"):
        scene.repository.commit(f"{name}.yaml", job(name))
    scene.commit(desired.Structure(), ended("old", 31), ended("new", 29))
    scene.look()
    done = scene.look(FOUR + 1)
    assert done is not None
    assert done.left == ("old",)
    assert scene.repository.log("%ae")[0] == "muster@localhost"


def test_nothing_leaves_where_the_cluster_keeps_files(scene: Scene) -> None:
    scene.repository.commit("old.yaml", job("old"))
    kept = desired.Structure(settings=desired.ClusterSettings(retain_files=None))
    scene.commit(kept, ended("old", 60))
    assert [scene.look(DAY) for _ in range(3)] == [None] * 3
    scene.commit(structure())
    assert scene.look() is None  # asked for now: what was missed before is not made up for
    assert "old.yaml" in scene.repository.files()


def test_who_may_not_change_a_job_may_not_take_its_file(scene: Scene) -> None:
    """The rules are those of what people ask for, by the identity that the Cluster names."""
    for name in ("ours", "theirs"):
        scene.repository.commit(f"{name}.yaml", job(name))
    everybody = Access(
        identities={"house@example.org": Identity("house@example.org")},
        roles=(Role("keepers", ("house@example.org",), (AccessRule(("manage",), ("ours",)),)),),
    )
    both = {name: desired.Queue(name) for name in ("ours", "theirs")}
    scene.commit(
        structure(access=everybody, queues=both),
        ended("ours", 60, queue="ours", owner="a@example.org"),
        ended("theirs", 60, queue="theirs", owner="b@example.org"),
    )
    scene.look()
    done = scene.look(FOUR + 1)
    assert done is not None
    assert (done.left, done.refused) == (("ours",), ("theirs",))
    assert "theirs.yaml" in scene.repository.files()


def test_it_is_tried_again_when_git_can_not_be_reached(scene: Scene) -> None:
    scene.repository.commit("old.yaml", job("old"))
    scene.commit(structure(), ended("old", 60))
    scene.look()
    away = scene.repository.path.with_name("away")
    scene.repository.path.rename(away)
    assert scene.look(FOUR + 1) is None
    away.rename(scene.repository.path)
    done = scene.look(60)
    assert done is not None
    assert done.left == ("old",)


def test_a_controller_that_takes_over_does_not_do_it_again(scene: Scene) -> None:
    scene.repository.commit("old.yaml", job("old"))
    scene.commit(structure(), ended("old", 60))
    scene.look()
    first = scene.opened
    scene.opened = opened(scene.url)
    done = scene.look(FOUR + 1)  # it counts from when the first one began to
    assert done is not None
    assert done.left == ("old",)
    scene.opened.close()
    scene.opened = first
    assert scene.look(3600) is None


def test_one_of_those_that_find_it_due_at_once_does_it(scene: Scene) -> None:
    name = prune_timer.CHORE
    assert periodic.last(scene.reader, name) is None
    assert [periodic.move(scene.reader, name, None, at) for at in (1.25, 2.0)] == [True, False]
    assert periodic.last(scene.reader, name) == 1.25
    assert [periodic.move(scene.reader, name, 1.25, at) for at in (3.1, 4.0)] == [True, False]
    assert periodic.last(scene.reader, name) == 3.1
    periodic.forget(scene.reader, name)
    assert not periodic.move(scene.reader, name, 3.1, 5.0)
    assert periodic.last(scene.reader, name) is None

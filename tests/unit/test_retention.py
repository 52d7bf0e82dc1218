"""Weeks of a busy cluster through the real loop and store: what is over does not pile up.

Jobs come, end and go; documents of old ones are committed again; nodes are taken out of the pool
for good; the controller starts anew now and then. Memory and store stay as small as the retention
says, nothing runs twice, and what is loaded is what was remembered.
"""

import random
from pathlib import Path

import msgspec
import sqlalchemy as sa

from reconciler.controller import retention
from reconciler.model import desired
from reconciler.model.state.states import AttemptState, JobState
from reconciler.model.values import run_set
from reconciler.store import schema, sql_store
from tests.unit.core.world import VirtualNode, World, job
from tests.unit.store import samples
from tests.unit.test_replay import Leader, url

DAY_S = 86_400
SETTINGS = desired.ClusterSettings(
    retain_events_s=DAY_S,
    retain_journal_s=DAY_S,
    retain_finished_jobs_s=2 * DAY_S,
    retain_finished_jobs_max=12,
    retain_history_s=5 * DAY_S,
    retain_gone_nodes_s=DAY_S,
)
STEP_S = 6 * 3600
STEPS = 4 * 7 * 4
JOBS_A_STEP = 3
SLOTS = 4


class Weeks:
    """The story, with what must hold after each step."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        world = World(nodes=SLOTS, cpu=4)
        self.structure = msgspec.structs.replace(world.structure, settings=SETTINGS)
        self.pool = world.pool
        self.nodes = dict(world.nodes)
        self.jobs: dict[str, desired.Job] = {}
        self.ever: list[desired.Job] = []
        self.begun: list[str] = []
        self.generation = 0
        self.replaced = SLOTS
        self.leader = Leader(folder, world.now)

    def _want(self) -> None:
        self.generation += 1
        pool = msgspec.structs.replace(self.pool, nodes=tuple(self.nodes))
        structure = msgspec.structs.replace(self.structure, pools={"pool": pool})
        status = desired.SyncStatus(sync="Synced")
        self.leader.want(desired.Desired(self.generation, structure, self.jobs, status=status))

    def change_git(self) -> None:
        """New documents, old ones again, and some go."""
        new = [job(f"j{len(self.ever) + number}") for number in range(JOBS_A_STEP)]
        self.ever += new
        again = self.random.sample(self.ever, min(2, len(self.ever)))
        gone = set(self.random.sample(sorted(self.jobs), len(self.jobs) // 2))
        kept = {name: spec for name, spec in self.jobs.items() if name not in gone}
        self.jobs = kept | {spec.name: spec for spec in (*new, *again)}
        self._want()

    def change_machines(self) -> None:
        """One machine makes room for another, under another name."""
        del self.nodes[next(iter(self.nodes))]
        name = f"n{self.replaced}"
        self.replaced += 1
        self.nodes[name] = VirtualNode(name, self.pool)
        self._want()

    def talk(self) -> None:
        """Nodes report, the loop decides, what runs ends."""
        leader, memory = self.leader, self.leader.loop._state
        for _ in range(4):
            leader.report(*(node.report(leader.now) for node in self.nodes.values()))
            self.begun += leader.cycle().new_runs
            for node in self.nodes.values():
                update = leader.loop._engine.update(node.name, self.structure, memory)
                assert update.payload is not None
                done = tuple(name for name in node.attempts if name not in memory.attempts)
                node.take(update.payload, done, leader.now)
                for name, told in list(node.attempts.items()):
                    if told.state is not AttemptState.ENDED:
                        node.end(name, leader.now, exit_code=self.random.choice([0, 1]))

    def rest(self) -> None:
        """Time passes; cycles come when the loop would wake."""
        leader = self.leader
        ends_at = leader.now + STEP_S
        for _ in range(100):
            wake_at = leader.loop._wake_at
            if wake_at is None or wake_at > ends_at:
                break
            leader.now = max(leader.now, wake_at)
            self.begun += leader.cycle().new_runs
        else:
            raise AssertionError("it wakes again and again")
        leader.now = ends_at
        for _ in range(100):
            leader.loop._pruner.next_at = leader.now
            leader.loop._prune()
            if leader.loop._pruner.next_at - leader.now == retention.PRUNE_EVERY_S:
                return
        raise AssertionError("there is always more to prune")

    def start_anew(self) -> None:
        """Another controller loads what this one remembered."""
        self._want()
        self.talk()
        held, now = self.leader.loop._state.observed((), {}), self.leader.now
        self.leader.close()
        self.leader = Leader(self.folder, now)
        found = self.leader.loop._state.observed((), {})
        for field in ("jobs", "active", "watched", "past_runs", "attempts", "reasons"):
            assert getattr(found, field) == getattr(held, field), field
        # times of nodes are committed once a minute
        assert {name: node.state for name, node in found.nodes.items()} == {
            name: node.state for name, node in held.nodes.items()
        }
        self._want()

    def check(self) -> None:
        """All that must stay small is small, and no run began twice."""
        memory, now = self.leader.loop._state, self.leader.now
        assert len(self.begun) == len(set(self.begun)), "a run began twice"
        assert len(memory.past_runs) == len(self.begun)
        unasked = memory.jobs.keys() - self.jobs.keys()
        # one step may pass until the look that lets them go
        assert len(unasked) <= SETTINGS.retain_finished_jobs_max + JOBS_A_STEP + len(self.jobs)
        assert len(memory.nodes) <= SLOTS + 1 + (SETTINGS.retain_gone_nodes_s + 2 * STEP_S) / DAY_S
        jobs = schema.JOBS.c
        oldest = now - SETTINGS.retain_history_s - 2 * STEP_S
        with self.leader.store._engine.connect() as connection:
            rows = connection.execute(sa.select(jobs.name, jobs.newest, jobs.ended_at)).all()
            attempts = connection.execute(sa.select(schema.ATTEMPTS.c.ended_at)).scalars().all()
            nodes = connection.execute(sa.select(schema.NODES.c.name)).scalars().all()
        assert {row.name for row in rows if row.newest} == memory.jobs.keys()
        assert all(row.ended_at >= oldest for row in rows if not row.newest)
        assert all(at is None or at >= oldest for at in attempts)
        assert set(nodes) == memory.nodes.keys()


def test_weeks_leave_no_more_than_the_retention_says(tmp_path: Path) -> None:
    weeks = Weeks(tmp_path, seed=1)
    sizes = []
    for step in range(STEPS):
        weeks.change_git()
        if step % 4 == 3:
            weeks.change_machines()
        weeks.talk()
        weeks.rest()
        weeks.check()
        if step % 25 == 24:
            weeks.start_anew()
        sizes.append(len(weeks.leader.loop._state.jobs))
    assert len(weeks.begun) == JOBS_A_STEP * STEPS
    half = len(sizes) // 2
    assert max(sizes[half:]) <= 1.5 * max(sizes[:half])
    first, *_ = weeks.ever
    if first.name not in weeks.leader.loop._state.jobs:
        assert weeks.leader.store.reader.job(first.name) is None, "its history is over"
    weeks.leader.close()


def test_what_is_listed_no_longer_is_history_for_a_time(tmp_path: Path) -> None:
    store = sql_store.Store.open(url(tmp_path))
    epoch = store.lead("one", 50.0)
    ended = msgspec.structs.replace(samples.job(), state=JobState.SUCCEEDED, ended_at=100.0)
    attempt = samples.attempt(ended, state=AttemptState.ENDED, concluded=True)
    attempt = msgspec.structs.replace(attempt, ended_at=99.0)
    cycles = (
        samples.cycle(jobs=(ended,), attempts=(attempt,), new_runs=(ended.key,)),
        samples.cycle(left_jobs=("train",)),
    )
    for number, cycle in enumerate(cycles, 1):
        store.commit(epoch, number, cycle)
    assert store.reader.jobs() == []
    assert store.load().jobs == {}
    assert store.reader.job("train") == ended
    assert store.reader.attempts(ended.key) == [attempt]
    assert ended.key in store.load().past_runs

    def prune(before: float) -> int:
        return store.prune(
            epoch, 200.0, events_before=0.0, journal_before=0.0, history_before=before
        )

    assert prune(99.0) == 0
    assert prune(99.5) == 1
    assert store.reader.attempts(ended.key) == []
    assert prune(101.0) == 1
    assert store.reader.job("train") is None
    assert ended.key in store.load().past_runs
    store.close()


def test_a_listed_job_is_never_pruned(tmp_path: Path) -> None:
    store = sql_store.Store.open(url(tmp_path))
    epoch = store.lead("one", 50.0)
    ended = msgspec.structs.replace(samples.job(), state=JobState.SUCCEEDED, ended_at=100.0)
    cycle = samples.cycle(jobs=(ended,), new_runs=(ended.key,))
    store.commit(epoch, 1, cycle)
    assert store.prune(epoch, 200.0, events_before=0.0, journal_before=0.0, history_before=1e9) == 0
    assert store.reader.job("train") == ended
    store.close()


def test_a_key_takes_few_bytes_in_the_store(tmp_path: Path) -> None:
    """Fewer than the text of one alone, which has 33 here."""
    store = sql_store.Store.open(url(tmp_path))
    epoch = store.lead("one", 50.0)
    keys = tuple(f"job-{number:06d}.1.{number:016x}" for number in range(20_000))
    before = store.reader.path.stat().st_size
    store.commit(epoch, 1, samples.cycle(new_runs=keys))
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store.load().past_runs == run_set.RunSet.of(keys)
    assert (store.reader.path.stat().st_size - before) / len(keys) < 25
    store.close()

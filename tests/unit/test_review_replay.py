"""Snapshot and journal are enough to decide again as was decided."""

import random
import zlib
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from reconciler import controller
from reconciler.core import memory as core_memory
from reconciler.core import reconcile
from reconciler.model import desired, records
from reconciler.store import store as stores
from tests.unit.core.world import VirtualNode, World, job


class _Leader:
    """A loop over a store, driven by hand, and every desired state it was given."""

    def __init__(self, folder: Path, now: float, wanted: dict[int, desired.Desired]) -> None:
        self.now = now
        self.wanted = wanted
        self.inbox = controller.Inbox()
        self.store = stores.Store.open(f"sqlite:///{folder / 'store.db'}")
        self.loop = controller.Loop(
            store=self.store,
            epoch=self.store.lead("test", now),
            socket_path=folder / "loop.sock",
            inbox=self.inbox,
            hint=lambda: None,
            clock=lambda: self.now,
        )

    def want(self, value: desired.Desired) -> None:
        self.wanted[value.generation] = value
        self.inbox.put_desired(value, b"")
        self.loop._take_desired()

    def cycle(self, nodes: list[VirtualNode]) -> None:
        memory = self.loop._memory
        for node in nodes:
            memory.add_report(node.report(self.now))
            memory.answered[node.name] = self.now
        self.loop.cycle()
        assert self.loop._desired is not None
        for node in nodes:
            update = self.loop._engine.update(node.name, self.loop._desired.structure, memory)
            assert update.payload is not None
            done = tuple(name for name in node.attempts if name not in memory.attempts)
            node.take(update.payload, done, self.now)

    def close(self) -> None:
        self.loop._link.close()
        self.loop._selector.close()
        self.store.close()


def _replayed(folder: Path, wanted: dict[int, desired.Desired], skip: int) -> records.Observed:
    """Memory as of the last entry, from the snapshot ``skip`` places before the last."""
    engine = sa.create_engine(f"sqlite:///{folder / 'store.db'}")
    with engine.connect() as connection:
        snapshots = connection.execute(
            sa.text("select epoch, cycle, body from snapshots order by epoch, cycle")
        ).all()
        first = snapshots[-1 - skip]
        entries = connection.execute(
            sa.text(
                "select body from journal where epoch = :epoch and cycle >= :cycle order by cycle"
            ),
            {"epoch": first.epoch, "cycle": first.cycle},
        ).all()
    engine.dispose()
    start = msgspec.msgpack.decode(zlib.decompress(first.body), type=records.Observed)
    memory = core_memory.Memory(start, start.leader_since)
    memory.desired_generation = start.desired_generation
    for entry in entries:
        inputs = msgspec.msgpack.decode(
            zlib.decompress(entry.body), type=list[controller.JournalInput]
        )
        for one in inputs:
            memory.leader_since = one.leader_since
            observed = memory.observed(one.reports, one.answered, one.asked)
            memory.absorb(reconcile.reconcile(wanted[one.desired_generation], observed, one.now))
    return memory.observed((), {})


@pytest.mark.parametrize("seed", range(3))
def test_replay_comes_to_what_the_store_holds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "SNAPSHOT_CYCLES", 7)
    choose = random.Random(seed)
    world = World(nodes=3, cpu=4, gpu=2)
    nodes = list(world.nodes.values())
    wanted: dict[int, desired.Desired] = {}
    jobs: dict[str, desired.Job] = {}
    leader = _Leader(tmp_path, world.now, wanted)
    for step in range(1, 61):
        if step % 3 == 1 or step == 31:
            spec = job(
                f"j{step}",
                count=choose.choice([1, 2]),
                gpu=choose.choice([0, 1]),
                priority=choose.choice([10, 90]),
                retries=desired.Retries(limit=1),
            )
            jobs = {**jobs, spec.name: spec}
            status = desired.SyncStatus(sync="Synced")
            leader.want(desired.Desired(step, world.structure, jobs, status=status))
        speaking = [node for node in nodes if choose.random() < 0.8]
        for node in speaking:
            for name in list(node.attempts):
                if choose.random() < 0.2:
                    node.end(name, leader.now, exit_code=choose.choice([0, 1]))
        if step % 10 == 5:
            drain = records.Override(
                "drain", "n0", "smoke", "alice", leader.now, leader.now + choose.choice([5, 50])
            )
            leader.loop._memory.ask(records.PutOverride(str(step), drain))
        leader.cycle(speaking)
        leader.now += choose.choice([0, 1, 20])
        if step == 30:
            leader.close()
            leader = _Leader(tmp_path, leader.now, wanted)
    leader.want(desired.Desired(99, world.structure, {}, status=desired.SyncStatus()))
    leader.cycle(nodes)  # ends with a commit, so that all is journalled
    held = leader.loop._memory.observed((), {})
    leader.close()
    for skip in (0, 1, 2):
        again = _replayed(tmp_path, wanted, skip)
        assert again.jobs == held.jobs
        assert again.attempts == held.attempts
        assert again.nodes == held.nodes
        assert (again.reasons, again.promised) == (held.reasons, held.promised)
        assert again.overrides == held.overrides

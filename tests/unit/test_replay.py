"""The store alone is enough to repeat every past decision to the byte.

Random stories run through the real loop over a real store. Then the store is opened again, and
every cycle in it is replayed and compared with its recorded outcome.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.controller import control_loop, cycle_decider, loop_inbox
from reconciler.controller.host import wall_clock
from reconciler.core import cycle_journal, outcome_checksums
from reconciler.desired.apply import last_good, loader
from reconciler.desired.git import source
from reconciler.model import desired
from reconciler.model.policy import drift_kinds
from reconciler.model.protocol import loop_messages
from reconciler.model.state import adoption_state, outcome, records, scheduler_state
from reconciler.model.state.pending_reasons import FunnelStep, Reason, ReasonCode
from reconciler.model.state.states import AttemptState, NodeState
from reconciler.operations.history import cycle_replay
from reconciler.store import StoreReader, journal_entries, schema, sql_store
from tests.unit import replays
from tests.unit.core import test_storm
from tests.unit.core.world import World, job
from tests.unit.desired import repositories
from tests.unit.store import samples

STORIES = 10
STEPS = 30
REFUSED = "spec.queue: there is no queue nowhere"
REMOVAL = desired.Removal("ada@example.org", "1a2b3c4d" * 5, 60.0, True, "wrong data")


class Leader:
    """A loop over a store, driven by hand, with all that it decided and committed."""

    def __init__(self, folder: Path, now: float, **options: Any) -> None:
        self.folder = folder
        self.now = now
        self.inbox = loop_inbox.Inbox()
        self.store = sql_store.Store.open(url(folder))
        self.epoch = self.store.lead("test", now)

        def chosen(fields: tuple[str, ...]) -> dict[str, Any]:
            return {name: value for name, value in options.items() if name in fields}

        self.loop = control_loop.Loop(
            led=sql_store.LedStore(self.store, self.epoch),
            socket_path=folder / "loop.sock",
            inbox=self.inbox,
            clock=lambda: self.now,
            start=control_loop.LoopStart(**chosen(control_loop.LoopStart._fields)),
            outputs=control_loop.LoopOutputs(**chosen(control_loop.LoopOutputs._fields)),
            core=cycle_decider.CoreOptions(**chosen(cycle_decider.CoreOptions._fields)),
        )
        self.decided: list[tuple[int, int, int, outcome.Outcome]] = []
        self._waiting: list[outcome.Outcome] = []

    def want(self, value: desired.Desired, packed: bytes | None = None) -> None:
        self.inbox.put_desired(value, packed)
        self.loop._take_desired()

    def report(self, *reports: records.NodeReport) -> None:
        for report in reports:
            self.loop._state.add_report(report)

    def cycle(self) -> outcome.Outcome:
        before = self.store.cycle
        # the time of a story is no step of the clock
        self.loop._steps = wall_clock.ClockSteps(self.now)
        result = self.loop.cycle()
        assert result is not None
        self._waiting.append(result)
        if self.store.cycle != before:
            self.decided += [
                (self.epoch, self.store.cycle, step, one) for step, one in enumerate(self._waiting)
            ]
            self._waiting.clear()
        return result

    def close(self) -> None:
        self.loop._link.close()
        self.loop._selector.close()
        self.store.close()

    def crash(self, folder: Path) -> None:
        """Leave in ``folder`` what a power cut would leave of the store, and end."""
        folder.mkdir()
        for path in self.folder.glob("store.db*"):
            if path.suffix != ".lock":
                shutil.copy(path, folder)
        self.close()


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


class Lived(test_storm.Story):
    """A story whose cycles are those of the real loop."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.folder = folder / "0"
        self.folder.mkdir()
        self.decided: list[tuple[int, int, int, outcome.Outcome]] = []
        self._known: dict[str, None] = {}
        super().__init__(seed)
        self._begin()

    def _begin(self) -> None:
        self.leader = Leader(self.folder, self.now)
        self.memory = self.leader.loop._state
        self.engine = self.leader.loop._engine

    def end(self) -> None:
        self.decided += self.leader.decided
        self.leader.close()

    def change_leader(self) -> None:
        """End the controller or its machine, and let another one continue from the store."""
        self.decided += self.leader.decided
        if self.random.random() < 0.5:
            self.leader.close()
        else:
            folder = self.folder.parent / str(int(self.folder.name) + 1)
            self.leader.crash(folder)
            self.folder = folder
        self._begin()
        for name in self.memory.nodes:
            self.payloads[name] = self._payload(name)
        self.acknowledged = {name: [] for name in self.nodes}

    def _payload(self, node: str) -> bytes:
        payload = self.engine.update(node, self.structure, self.memory).payload
        assert payload is not None
        return payload

    def decide(self) -> outcome.Outcome:
        refused = {"bad": REFUSED} if self.random.random() < 0.3 else {}
        status = desired.SyncStatus(
            sync=self.sync,
            attempted_revision=f"{self.generation:040x}",
            checked_at=self.now,
        )
        self.leader.now = self.now
        self._known |= dict.fromkeys(self.jobs)
        removals = {name: REMOVAL for name in self._known if name not in self.jobs}
        value = desired.Desired(self.generation, self.structure, dict(self.jobs), refused, status)
        self.leader.want(
            msgspec.structs.replace(value, removals=removals),
            b"" if self.random.random() < 0.1 else None,
        )
        live_before = self._usage()
        before = self.memory.observed((), {}, tuple(self.memory.asked))
        result = self.leader.cycle()
        told = [a for a in result.actions if not isinstance(a, outcome.RunProvisioner)]
        for name in {action.node for action in told}:
            if name in self.memory.nodes:
                self.payloads[name] = self._payload(name)
        for action in result.actions:
            if isinstance(action, outcome.Acknowledge):
                self.acknowledged[action.node].append(action.attempt)
        self.check(result, live_before, before)
        return result


def _compare(reader: StoreReader, decided: list[tuple[int, int, int, outcome.Outcome]]) -> None:
    """Check that every cycle is replayed as it was."""
    again = list(replays.replay_all(reader))
    assert [(one.epoch, one.cycle, one.step) for one in again] == [one[:3] for one in decided]
    for one, (_, _, _, result) in zip(again, decided, strict=True):
        assert one.call.result == result
        assert msgspec.msgpack.encode(one.call.result) == msgspec.msgpack.encode(result)
        assert one.call.disagreements == ()


@pytest.mark.parametrize("seed", range(STORIES))
def test_every_cycle_of_a_story_is_replayed_from_the_store(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_journal, "SNAPSHOT_CALLS", 11)
    story = Lived(seed, tmp_path)
    for _ in range(STEPS):
        story.step()
    story.end()
    assert len({epoch for epoch, *_ in story.decided}) > 1 or "change_leader" not in str(story.log)
    with contextlib.closing(StoreReader.open(url(story.folder))) as reader:
        _compare(reader, story.decided)
        assert len(journal_entries.snapshots(reader)) > 2
        for which in story.random.sample(story.decided, 3):
            _one_by_one(reader, which, story.decided)


def _one_by_one(
    reader: StoreReader,
    which: tuple[int, int, int, outcome.Outcome],
    decided: list[tuple[int, int, int, outcome.Outcome]],
) -> None:
    """Check a cycle by its number, and the last call at or before a moment."""
    _, cycle, _, result = which
    last = [one for one in decided if one[1] == cycle][-1]
    assert cycle_replay.replay(reader, cycle=cycle).call.result == last[3]
    until = [one for one in decided if one[3].now <= result.now][-1]
    for at in (result.now, result.now + 0.01):
        if not any(result.now < one[3].now <= at for one in decided):
            found = cycle_replay.replay(reader, at=at)
            assert (found.epoch, found.cycle, found.step) == until[:3]
            assert found.call.result == until[3]


def test_another_process_comes_to_the_same(tmp_path: Path) -> None:
    """Text hashes differ there, so nothing may depend on the order of a set."""
    story = Lived(99, tmp_path)
    for _ in range(STEPS):
        story.step()
    story.end()
    program = (
        "import sys\n"
        "from tests.unit import replays\n"
        "from reconciler.store import StoreReader\n"
        "calls = [one.call for one in replays.replay_all(StoreReader.open(sys.argv[1]))]\n"
        "print(len(calls), *{part for call in calls for part in call.disagreements})\n"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program, url(story.folder)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [str(len(story.decided))]


def test_nothing_new_costs_nothing(tmp_path: Path) -> None:
    world = World(nodes=1)
    leader = Leader(tmp_path, world.now)
    wanted = desired.Desired(1, world.structure, {f"j{n}": job(f"j{n}") for n in range(100)})
    leader.want(wanted)
    leader.cycle()
    for _ in range(20):
        leader.now += 1
        leader.cycle()
    assert leader.store.cycle == 1, "no cycle without news is committed"
    one_more = {**wanted.jobs, "more": job("more")}
    leader.want(msgspec.structs.replace(wanted, generation=2, jobs=one_more))
    leader.cycle()
    entry = journal_entries.entry(leader.store.reader, 2)
    assert entry is not None
    inputs = cycle_journal.unpack_inputs(entry.body)
    assert [one.wanted for one in inputs[:-1]] == [None] * 20
    assert inputs[-1].wanted == cycle_journal.DesiredDelta(2, jobs={"more": job("more")})
    assert len(msgspec.msgpack.encode(inputs[:-1])) < 20 * 120
    leader.close()


def test_reports_that_lead_to_nothing_are_written_before_they_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_journal, "WAITING_REPORTS_MAX", 5)
    world = World(nodes=1)
    (node,) = world.nodes.values()
    leader = Leader(tmp_path, world.now)
    leader.want(desired.Desired(1, world.structure))
    for _ in range(20):
        leader.report(node.report(leader.now))
        leader.cycle()
    counts = [
        sum(len(one.reports) for one in cycle_journal.unpack_inputs(entry.body))
        for entry in journal_entries.entries(leader.store.reader, leader.epoch, 0, None)
    ]
    assert sum(counts) >= 15
    assert max(counts) <= 5
    leader.close()


def test_adoption_is_replayed(tmp_path: Path) -> None:
    world = World(nodes=1)
    old = adoption_state.AdoptionState(pending=True, why="told")
    leader = Leader(tmp_path, world.now, adoption=old)
    jobs = {name: job(name) for name in ("alive", "done", "new")}
    leader.want(desired.Desired(1, world.structure, jobs, status=desired.SyncStatus(sync="Synced")))
    leader.cycle()
    node = next(iter(world.nodes.values()))
    leader.now += 1
    attempt = f"alive.1.{jobs['alive'].hash}.0.main.0.3"
    told = records.AttemptReport(attempt, AttemptState.RUNNING, started_at=leader.now)
    report = msgspec.structs.replace(
        node.report(leader.now),
        attempts=(told,),
        held=(records.HeldAttempt(attempt),),
        proven=(attempt,),
    )
    leader.report(report)
    taken = leader.cycle()
    assert [(one.id, one.node) for one in taken.attempts] == [(attempt, node.name)]
    assert {one.name: one.state.value for one in taken.jobs} == {"alive": "Running"}
    assert leader.loop._adoption.state.awaiting.keys() == {"done", "new"}
    assert leader.loop._wake_at == leader.now, "what was found out is shown without other news"
    leader.loop._take_message(loop_messages.Adopt(names=("new",)))
    adopted = leader.cycle()
    assert {one.name: one.state.value for one in adopted.jobs} == {
        "done": "Cancelled",
        "new": "Starting",
    }
    leader.now += 1
    leader.cycle()
    assert not leader.loop._in_force.adopted(leader.loop._track.current).recovery
    leader.close()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        _compare(reader, leader.decided)


def test_what_an_adoption_finds_out_is_stored_in_an_idle_cluster(tmp_path: Path) -> None:
    world = World(nodes=1)
    old = adoption_state.AdoptionState(pending=True, why="told")
    leader = Leader(tmp_path, world.now, adoption=old)
    jobs = {"a": job("a")}
    leader.want(desired.Desired(1, world.structure, jobs, status=desired.SyncStatus(sync="Synced")))
    node = next(iter(world.nodes.values()))
    for _ in range(4):
        leader.report(node.report(leader.now))
        leader.cycle()
    attempt = f"a.1.{jobs['a'].hash}.0.main.0.3"
    told = records.AttemptReport(attempt, AttemptState.RUNNING, started_at=leader.now)
    leader.report(
        msgspec.structs.replace(
            node.report(leader.now), attempts=(told,), held=(records.HeldAttempt(attempt),)
        )
    )
    leader.cycle()
    leader.cycle()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        shown = adoption_state.decode(reader.view(adoption_state.VIEW))
    assert [one.attempt for one in shown.unproven] == [attempt]
    leader.close()


STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: pool}
spec:
  hosts: n[0-1]
  nodes: {cpu: 4, memory: 8Gi}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: research}
spec: {limit: {cpu: LIMIT}}
"""


def test_incumbents_are_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits with a bad queue and a bad job, and a leader that starts after them."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, repositories.ENVIRONMENT[name])
    repository = repositories.Repository(tmp_path / "state.git")
    commits: list[Mapping[str, str | bytes | None]] = [
        {
            "structure.yaml": STRUCTURE.replace("LIMIT", "3"),
            "a.yaml": repositories.job("a", queue="research"),
        },
        {"structure.yaml": STRUCTURE.replace("LIMIT", "many")},
        {"b.yaml": repositories.job("b", queue="research", priority="urgent")},
        {"a.yaml": repositories.job("a", queue="nowhere"), "c.yaml": repositories.job("c")},
        {"a.yaml": None, "d.yaml": repositories.job("d", queue="research")},
        {"structure.yaml": STRUCTURE.replace("LIMIT", "2")},
    ]
    decided, at, before = [], 1_000_000.0, last_good.LastGood()
    for number, files in enumerate(commits):
        if number in (0, 3):
            leader = Leader(tmp_path, at)
            reading = loader.Loader(source.GitSource(str(repository.path)), before)
        repository.commit(files)
        value = reading.load()
        before = reading.incumbents()
        leader.want(value, last_good.encode(before))
        leader.now = at = at + 5
        leader.cycle()
        if number in (2, 5):
            reading.close()
            leader.close()
            decided += leader.decided
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        _compare(reader, decided)
        wanted = [one.call.wanted for one in replays.replay_all(reader)]
    limits = [one.structure.queues["research"].limit.cpu_milli for one in wanted]
    assert limits == [3000, 3000, 3000, 3000, 3000, 2000]
    assert [one.status.sync for one in wanted[1:3]] == ["OutOfSync"] * 2
    assert "b" in wanted[2].refused
    assert [wanted[3].jobs["a"].queue, "a" in wanted[4].jobs] == ["research", False]


def test_a_replay_that_disagrees_says_so(tmp_path: Path) -> None:
    world = World(nodes=1)
    leader = Leader(tmp_path, world.now)
    leader.want(desired.Desired(1, world.structure, {"one": job("one")}))
    leader.cycle()
    entry = journal_entries.entry(leader.store.reader, 1)
    assert entry is not None
    (told,) = cycle_journal.unpack_inputs(entry.body)
    forged = msgspec.structs.replace(told, now=told.now + 1)
    again = cycle_journal.Replay(
        journal_entries.snapshot(
            leader.store.reader, journal_entries.JournalPosition(leader.epoch, 1)
        )
        or b""
    )
    (call,) = again.through([forged])
    assert set(call.disagreements) == {"jobs", "events", "drift", "times"}
    leader.close()


def test_what_is_not_in_the_journal_is_told(tmp_path: Path) -> None:
    world = World(nodes=1)
    leader = Leader(tmp_path, world.now)
    for generation in (1, 2, 3):
        leader.now = world.now + generation
        leader.want(desired.Desired(generation, world.structure))
        leader.cycle()
    oldest = "the oldest that can be replayed is cycle 1, of 1970-01-12T13:46:41.000Z"
    with pytest.raises(cycle_replay.ReplayError, match=f"holds no cycle 9; {oldest}"):
        cycle_replay.replay(leader.store.reader, cycle=9)
    with pytest.raises(
        cycle_replay.ReplayError, match=f"before the first cycle in the journal; {oldest}"
    ):
        cycle_replay.replay(leader.store.reader, at=world.now)
    with leader.store._engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM journal WHERE cycle = 2")
    with pytest.raises(cycle_replay.ReplayError, match="the journal of cycle 2 is missing"):
        cycle_replay.replay(leader.store.reader, cycle=3)
    with leader.store._engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM snapshots")
    with pytest.raises(cycle_replay.ReplayError, match=r"cycle 1, .* snapshot .* was not kept"):
        cycle_replay.replay(leader.store.reader, cycle=1)
    leader.close()


def test_a_cycle_in_an_older_format_is_refused(tmp_path: Path) -> None:
    world = World(nodes=1)
    leader = Leader(tmp_path, world.now)
    leader.want(desired.Desired(1, world.structure))
    leader.cycle()
    assert schema.JOURNAL_FORMAT == 7
    with leader.store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE journal SET format = 6")
        connection.exec_driver_sql("UPDATE snapshots SET format = 6")
    expected = (
        "cycle 1, .*, can't be replayed: an earlier version of Muster recorded it in journal "
        "format 6, and this one replays format 7; it holds nothing that can be replayed"
    )
    for which in ({"cycle": 1}, {"at": world.now}):
        with pytest.raises(cycle_replay.ReplayError, match=expected):
            cycle_replay.replay(leader.store.reader, **which)
    leader.close()


def test_differences_are_applied_as_they_were_found() -> None:
    a, b, c = (job(name) for name in "abc")
    other = job("b", priority=1)
    states: list[dict[str, desired.Job]] = [
        {},
        {"a": a, "b": b},
        {"a": a, "b": other},
        {"b": other, "a": a},
        {"c": c, "b": other},
        {"b": other, "c": c, "a": a},
        {"a": a},
        {},
    ]
    for before in states:
        for after in states:
            one, two = desired.Desired(1, jobs=before), desired.Desired(2, jobs=after)
            delta = cycle_journal.difference(one, two)
            assert delta is not None
            made = cycle_journal.changed(one, delta)
            assert made == two
            assert list(made.jobs) == list(after)
    removals: list[dict[str, desired.Removal]] = [{}, {"a": REMOVAL}, {"b": REMOVAL, "a": REMOVAL}]
    for earlier in removals:
        for later in removals:
            one, two = desired.Desired(1, removals=earlier), desired.Desired(2, removals=later)
            delta = cycle_journal.difference(one, two)
            assert delta is not None
            assert cycle_journal.changed(one, delta) == two
    assert cycle_journal.difference(one, msgspec.structs.replace(one)) is None


def test_nothing_that_decides_is_left_out() -> None:
    """A new field of either type has to be journalled, or to be a record that outcomes renew."""
    renewed = {"desired_generation", "jobs", "active", "past_runs", "attempts", "nodes", "reasons"}
    renewed |= {
        "overrides",
        "drift",
        "nominations",
        "next_order",
        "watched",
        "schedule_inputs",
        "forget_at",
    }
    renewed |= {"scheduler_state", "remedies", "provisions"}
    inputs = set(cycle_journal.Input.__struct_fields__) - {"now", "wanted", "adopted", "checks"}
    renewed |= {"quarantined"}  # records of jobs, by what is wanted
    assert set(records.Observed.__struct_fields__) == renewed | inputs
    delta = {name.partition("_")[0] for name in cycle_journal.DesiredDelta.__struct_fields__}
    assert set(desired.Desired.__struct_fields__) == delta


def test_every_part_of_an_outcome_is_checked() -> None:
    empty = outcome.Outcome(now=1.0, desired_generation=1)
    one = records.NodeRecord(name="n", state=NodeState.READY)
    other: dict[str, Any] = {
        "now": 2.0,
        "desired_generation": 2,
        "jobs": (samples.job(),),
        "attempts": (samples.attempt(samples.job()),),
        "nodes": (one,),
        "new_runs": ("key",),
        "reasons": {"key": ()},
        "actions": (outcome.StopAttempt("a", "n"),),
        "events": (samples.event("x"),),
        "drift": (drift_kinds.Drift("k", "s", "m", "info", "report", 1.0),),
        "remedies": (drift_kinds.DriftRemedy("i", "tell", "c", "p", 1.0),),
        "overrides": (records.Override("drain", "n", "r", "o", 1.0, 2.0),),
        "answers": {"id": "no"},
        "provisions": {"pool": None},
        "queues": (outcome.QueueUsage("q", None, (0, 0, 0), (0, 0, 0), (0, 0, 0)),),
        "nominations": {"job": 1},
        "schedule_inputs": records.ScheduleInputs(1.0, 1),
        "left_jobs": ("job",),
        "left_nodes": ("n",),
        "forget_at": 7.0,
        "scheduler_state": scheduler_state.SchedulerState(turn=1),
        "expected": {"job": outcome.ExpectedStart(1.0)},
        "next_order": 9,
        "wake_at": 5.0,
    }
    assert set(other) == set(outcome.Outcome.__struct_fields__)
    for field, value in other.items():
        changed = msgspec.structs.replace(empty, **{field: value})
        assert outcome_checksums.checksums(changed) != outcome_checksums.checksums(empty), field
    assert len(outcome_checksums.checksums(empty)) == len(outcome_checksums.PARTS)


def _worded(text: str) -> outcome.Outcome:
    """An outcome whose words for people are ``text``."""
    run = samples.job()
    reason = Reason(
        ReasonCode.WAITING_FOR_QUOTA, text, (FunnelStep(4, text),), text, never=bool(text)
    )
    return outcome.Outcome(
        now=1.0,
        desired_generation=1,
        jobs=(msgspec.structs.replace(run, message=text),),
        attempts=(msgspec.structs.replace(samples.attempt(run), message=text),),
        reasons={"key": (reason,)},
        events=(msgspec.structs.replace(samples.event("x"), message=text),),
        drift=(drift_kinds.Drift("k", "s", text, "info", "report", 1.0, remedy=text),),
        remedies=(drift_kinds.DriftRemedy("i", "tell", "c", "p", 1.0, message=text),),
        answers={"id": f"no {text}"},
    )


def test_words_for_people_may_change_between_versions() -> None:
    before, after = _worded(""), _worded("other words")
    assert outcome_checksums.checksums(before) == outcome_checksums.checksums(after)
    step = Reason(ReasonCode.WAITING_FOR_QUOTA, "", (FunnelStep(5, ""),))
    for reason in (step, Reason(ReasonCode.INSUFFICIENT_RESOURCES, "", (FunnelStep(4, ""),))):
        changed = msgspec.structs.replace(before, reasons={"key": (reason,)})
        assert outcome_checksums.checksums(changed) != outcome_checksums.checksums(before)
    accepted = msgspec.structs.replace(before, answers={"id": ""})
    assert outcome_checksums.checksums(accepted) != outcome_checksums.checksums(before)


@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    [
        ("SNAPSHOT_CALLS", 3, [1, 4, 7]),
        ("SNAPSHOT_DECIDE_S", 2.5, [1, 6]),
        ("SNAPSHOT_INPUT_BYTES", 1, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("SNAPSHOT_EVERY_S", 20.0, [1, 3, 5, 7]),
        ("", 0, [1]),
    ],
)
def test_a_snapshot_is_due_before_a_replay_has_too_much_to_do(
    limit: str, value: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setattr(cycle_journal, limit, value)
    recorder = cycle_journal.Recorder("test")
    wanted, observed = desired.Desired(), records.Observed()
    taken = []
    for call in range(1, 9):
        recorder.begin(wanted, observed, now=100.0 + 10 * call)
        result = outcome.Outcome(now=100.0 + 10 * call, desired_generation=0)
        recorder.add(wanted, observed, result, decide_s=0.5)
        if recorder.take().snapshot is not None:
            taken.append(call)
    assert taken == expected


def test_a_snapshot_that_is_too_large_is_told_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cycle_journal, "SNAPSHOT_BYTES_MAX", 10)
    world = World(nodes=1)
    leader = Leader(tmp_path, world.now)
    leader.want(desired.Desired(1, world.structure))
    leader.cycle()
    assert "more than the maximum of 10" in caplog.text
    with pytest.raises(cycle_replay.ReplayError, match="the snapshot that it starts from was not"):
        cycle_replay.replay(leader.store.reader, cycle=1)
    leader.close()

"""What is committed is there after a restart, as a whole, and only the leader commits."""

import contextlib
import itertools
import os
import pathlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from reconciler import store
from reconciler.model.policy import drift_kinds
from reconciler.model.state import epochs, outcome, records
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.state.states import AttemptState, JobState
from reconciler.model.values import run_set
from reconciler.store import database, journal_entries, sql_store, statements, store_reader
from tests.unit.store import samples

#: Nothing is too old.
_KEPT: dict[str, Any] = {"events_before": 0.0, "journal_before": 0.0, "history_before": 0.0}


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite:///{tmp_path / 'muster.db'}"


@pytest.fixture
def opened(url: str) -> Iterator[store.Store]:
    made = store.Store.open(url)
    yield made
    made.close()


def commit(
    to: store.Store,
    epoch: int,
    cycle: int,
    decided: outcome.Outcome,
    *,
    journal: bytes = b"delta",
    snapshot: bytes | None = None,
    views: dict[str, bytes] | None = None,
    incumbents: bytes | None = None,
) -> int:
    return to.commit(
        epoch,
        cycle,
        decided,
        store.CycleExtras(
            journal=journal, snapshot=snapshot, views=views or {}, incumbents=incumbents
        ),
    )


def reopened(of: store.Store) -> records.Observed:
    of.close()
    again = store.Store.open(of.reader.url)
    try:
        again.lead("again", 500.0)
        return again.load()
    finally:
        again.close()


def test_an_empty_store_loads_as_nothing_observed(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    assert epoch == 50, "at least the time: a store that was lost begins later than the last"
    assert opened.load() == records.Observed(leader_since=50.0)


def test_a_store_is_its_owners_alone(opened: store.Store, tmp_path: pathlib.Path) -> None:
    commit(opened, opened.lead("one", 50.0), 1, samples.cycle())
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes.keys() >= {"muster.db", "muster.db-wal"}
    assert set(modes.values()) == {0o600}


def test_what_was_committed_is_loaded_after_a_restart(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    notes = {3: records.ElementNote(tries=2, not_before=7.5), 4: records.ElementNote(tries=1)}
    train = samples.job(elements=5, notes=notes, reason_key="default/shape", labels={"a": "b"})
    alive = samples.attempt(train, 1, state=AttemptState.RUNNING)
    waiting = samples.attempt(train, 2, state=AttemptState.ENDED, exit_code=3)
    ended = samples.attempt(train, 3, state=AttemptState.ENDED, concluded=True)
    missing = drift_kinds.Drift("node-missing", "n2", "never seen", "warning", "report", 90.0)
    decided = samples.cycle(
        jobs=(train,),
        attempts=(alive, waiting, ended),
        nodes=(samples.node(),),
        new_runs=(train.key,),
        reasons={"default/shape": (samples.reason(),)},
        drift=(missing,),
        next_order=2,
    )
    commit(opened, epoch, 7, decided, incumbents=b"kept")
    found = reopened(opened)
    assert found == records.Observed(
        jobs={"train": train},
        active=frozenset({"train"}),
        past_runs=run_set.RunSet.of({train.key}),
        attempts={alive.id: alive, waiting.id: waiting},
        nodes={"n1": samples.node()},
        reasons={"default/shape": (samples.reason(),)},
        drift=(missing,),
        leader_since=500.0,
        next_order=2,
    )


def test_counters_go_on_after_a_restart(opened: store.Store, url: str) -> None:
    epoch = opened.lead("one", 50.0)
    happened = tuple(samples.event(f"event {number}") for number in range(3))
    assert commit(opened, epoch, 7, samples.cycle(events=happened)) == 3
    opened.close()
    again = store.Store.open(url)
    assert again.lead("two", 50.0) == epoch + 1
    assert (again.cycle, again.last_event_sequence) == (7, 3)
    assert commit(again, epoch + 1, 8, samples.cycle(events=happened[:1])) == 4
    assert [event.sequence for event in again.reader.events()] == [1, 2, 3, 4]
    again.close()


def test_notes_that_change_are_rewritten_and_those_that_go_are_deleted(
    opened: store.Store,
) -> None:
    epoch = opened.lead("one", 50.0)
    first = records.ElementNote(tries=1)
    train = samples.job(elements=3, notes={0: first, 1: first})
    commit(opened, epoch, 1, samples.cycle(jobs=(train,)))
    notes = {1: first, 2: records.ElementNote(tries=2)}
    train = msgspec.structs.replace(train, notes=notes)
    commit(opened, epoch, 2, samples.cycle(jobs=(train,)))
    assert opened.reader.job("train") == train
    notes = {1: first, 2: records.ElementNote(tries=3), 0: first}
    train = msgspec.structs.replace(train, notes=notes)
    commit(opened, epoch, 3, samples.cycle(jobs=(train,)))
    assert opened.reader.job("train") == train
    assert reopened(opened).jobs["train"].notes == notes


@pytest.mark.parametrize("known", ["committed", "loaded"])
def test_notes_that_go_are_deleted_though_a_commit_has_failed(
    opened: store.Store, known: str
) -> None:
    epoch = opened.lead("one", 50.0)
    note = records.ElementNote(tries=1)
    train = samples.job(elements=3, notes={0: note, 1: note})
    commit(opened, epoch, 1, samples.cycle(jobs=(train,)))
    if known == "loaded":
        epoch = opened.lead("one", 60.0)
        opened.load()
    train = msgspec.structs.replace(train, notes={1: note})
    unwritable: Any = {"a view": object()}
    with pytest.raises(store.StoreError, match="object"):
        commit(opened, epoch, 2, samples.cycle(jobs=(train,)), views=unwritable)
    commit(opened, epoch, 2, samples.cycle(jobs=(train,)))
    assert reopened(opened).jobs["train"].notes == {1: note}


def test_only_the_newest_run_of_a_name_is_loaded(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    old = samples.job(run=1, state=JobState.SUCCEEDED)
    new = samples.job(run=2, order=2)
    commit(opened, epoch, 1, samples.cycle(jobs=(old,), new_runs=(old.key,)))
    commit(opened, epoch, 2, samples.cycle(jobs=(new,), new_runs=(new.key,)))
    assert opened.reader.job("train", run=1) == old
    assert opened.reader.job("train") == new
    assert opened.reader.job("nobody") is None
    found = reopened(opened)
    assert found.jobs == {"train": new}
    assert found.past_runs == run_set.RunSet.of({old.key, new.key})


def test_states_of_many_jobs_are_those_of_their_newest_runs(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    old = samples.job(run=1, state=JobState.SUCCEEDED)
    new = samples.job(run=2, order=2, state=JobState.PENDING)
    many = [
        samples.job(name=f"m{number}", order=number + 3, state=JobState.RUNNING)
        for number in range(2 * statements.KEYS_MAX)
    ]
    commit(opened, epoch, 1, samples.cycle(jobs=(old,), new_runs=(old.key,)))
    commit(opened, epoch, 2, samples.cycle(jobs=(new, *many), new_runs=(new.key,)))
    wanted = {one.name: (one.key, "Running") for one in many} | {"train": (new.key, "Pending")}
    assert opened.reader.newest_states([*wanted, "nobody"]) == wanted
    assert opened.reader.newest_states(()) == {}


def test_a_reason_that_ended_is_removed(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    why = (samples.reason(),)
    commit(opened, epoch, 1, samples.cycle(reasons={"a": why, "b": why}))
    commit(opened, epoch, 2, samples.cycle(reasons={"a": ()}))
    assert opened.reader.reasons(["a", "b", ""]) == {"b": why}


def test_a_deposed_leader_writes_nothing(opened: store.Store) -> None:
    first = opened.lead("one", 50.0)
    second = opened.lead("two", 60.0)
    with pytest.raises(store.DeposedError, match=r"epoch 50 no longer leads; two does"):
        commit(opened, first, 1, samples.cycle(jobs=(samples.job(),)), views={"queues": b"x"})
    with pytest.raises(store.DeposedError):
        opened.prune(first, 70.0, events_before=1e9, journal_before=1e9, history_before=1e9)
    assert opened.reader.job("train") is None
    assert opened.reader.view("queues") is None
    commit(opened, second, 1, samples.cycle(jobs=(samples.job(),)))
    assert opened.reader.job("train") == samples.job()


@pytest.mark.parametrize("other", [2**63 - 2, 2**63 - 1, 10**30])
def test_an_epoch_that_nobody_can_have_reached_does_not_fill_the_store(
    opened: store.Store, other: int
) -> None:
    led = sql_store.LedStore(opened, opened.lead("one", 50.0))
    assert led.lead_above(other, 60.0) == epochs.highest(60.0) + 1
    commit(opened, led.epoch, 1, samples.cycle())
    assert opened.lead("two", 70.0) == led.epoch + 1


def test_a_leader_goes_above_the_epoch_of_another_store(opened: store.Store) -> None:
    led = sql_store.LedStore(opened, opened.lead("one", 50.0))
    assert led.lead_above(49, 60.0) == 50
    assert led.lead_above(10**6, 60.0) == 10**6 + 1


def test_a_commit_that_fails_leaves_nothing_of_itself(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    commit(opened, epoch, 1, samples.cycle())
    bad = samples.cycle(jobs=(samples.job(),), events=(samples.event("x", at=None),))  # type: ignore[arg-type]
    with pytest.raises(store.StoreError, match="NOT NULL"):
        commit(opened, epoch, 2, bad)
    assert opened.reader.job("train") is None
    assert opened.cycle == 1
    commit(opened, epoch, 2, samples.cycle(jobs=(samples.job(),)))
    assert opened.reader.job("train") == samples.job()


def test_a_second_live_controller_is_refused_by_process_number(
    opened: store.Store, url: str
) -> None:
    opened.lead("one", 50.0)
    script = (
        "import sys\nfrom reconciler import store\n"
        "try:\n    store.Store.open(sys.argv[1]).lead('two', 60.0)\n"
        "except store.StoreBusyError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, url], capture_output=True, text=True, check=True
    )
    assert f"process number {os.getpid()}" in done.stdout
    assert opened.load() == records.Observed(leader_since=50.0)


def test_a_reader_sees_commits_and_does_not_block_them(opened: store.Store, url: str) -> None:
    epoch = opened.lead("one", 50.0)
    reading = store.StoreReader.open(url)
    with reading._engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT * FROM jobs").all()
        commit(opened, epoch, 1, samples.cycle(jobs=(samples.job(),)))
    assert reading.job("train") == samples.job()
    with pytest.raises(store.StoreError, match="readonly"):
        reading.rows(sa.text("DELETE FROM jobs"))  # type: ignore[arg-type]
    reading.close()


def test_jobs_are_filtered_and_paged(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    jobs = tuple(
        samples.job(
            f"job_{number}",
            order=number,
            queue="a" if number % 2 else "b",
            owner=f"{number % 3}@example.org",
            state=JobState.RUNNING if number > 6 else JobState.PENDING,
            labels={"team": f"t{number % 2}", "x": "y"},
        )
        for number in range(10)
    )
    commit(opened, epoch, 1, samples.cycle(jobs=jobs))

    def names(limit: int = 100, after: str | None = None, **filters: Any) -> list[int]:
        choice = statements.JobChoice(**filters)
        found = opened.reader.jobs(choice, limit=limit, after=after)
        return [int(one.name[4:]) for one in found]

    assert names() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert names(states=["Running"]) == [9, 8, 7]
    assert names(queue="b", owner="0@example.org") == [6, 0]
    assert names(name_prefix="job_3") == [3]
    assert names(name_prefix="job%") == []
    assert names(patterns=["job_3", "*8"], queue="a") == [3]
    assert names(labels={"team": "t1"}, limit=2) == [9, 7]
    assert names(labels={"team": "t"}) == []
    assert names(limit=3, after=statements.cursor(jobs[8])) == [7, 6, 5]
    assert opened.reader.places(["job_0", "job_4", "job_9"]) == {"job_0": 1, "job_4": 3}
    with pytest.raises(ValueError, match="no place in a list"):
        opened.reader.jobs(after="x")


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("job_1", ["job_1"]),
        ("job?1", ["job_1", "job%1", "jobs1"]),
        ("job%*", ["job%1"]),
        ("*1", ["job_1", "job%1", "jobs1"]),
        ("job*", ["job_1", "job%1", "jobs1"]),
        ("job", []),
        ("/*", []),
    ],
)
def test_names_fit_patterns_with_two_wildcards_only(
    opened: store.Store, pattern: str, fits: list[str]
) -> None:
    jobs = tuple(samples.job(name, order=1) for name in ("job_1", "job%1", "jobs1"))
    commit(opened, opened.lead("one", 50.0), 1, samples.cycle(jobs=jobs))
    choice = statements.JobChoice(patterns=[pattern, "nothing"])
    found = {one.name for one in opened.reader.jobs(choice)}
    assert found == set(fits)


def test_what_ended_long_ago_can_be_left_out(opened: store.Store) -> None:
    ended = (("old", 100.0), ("new", 200.0), ("alive", None))
    jobs = tuple(
        msgspec.structs.replace(samples.job(name, order=n), ended_at=at)
        for n, (name, at) in enumerate(ended)
    )
    commit(opened, opened.lead("one", 50.0), 1, samples.cycle(jobs=jobs))
    choice = statements.JobChoice(ended_since=150.0)
    assert [one.name for one in opened.reader.jobs(choice)] == ["alive", "new"]


NEVER = {
    "never fits": Reason(ReasonCode.NEVER_FITS, "no node could ever hold it"),
    "too large": Reason(ReasonCode.NO_TOPOLOGY_DOMAIN, "2 racks: none is large enough", never=True),
    "quota": Reason(ReasonCode.OVER_LIMIT, "Quota q: it can't start under it", never=True),
    "account": Reason(ReasonCode.NO_UNIX_USER, "nobody is called so"),
}
WAITS = {
    "room": Reason(ReasonCode.INSUFFICIENT_RESOURCES, "never say never"),
    "limit": Reason(ReasonCode.OVER_LIMIT, "2 in use, 1 asked"),
}


def test_what_waits_in_vain_takes_nobody_s_place(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    names = [name for pair in zip(NEVER, [*WAITS, *WAITS], strict=True) for name in pair]
    jobs = [
        samples.job(f"j{number}", order=number + 1, reason_key=name)
        for number, name in enumerate([*names, ""])
    ]
    told = {name: (one,) for name, one in (NEVER | WAITS).items()}
    commit(opened, epoch, 1, samples.cycle(jobs=tuple(jobs), reasons=told))
    places = {"j1": 1, "j3": 2, "j5": 3, "j7": 4, "j8": 5}
    assert opened.reader.places([job.name for job in jobs]) == places
    moved = samples.job("j0", order=1, reason_key="room")
    commit(opened, epoch, 2, samples.cycle(jobs=(moved,)))
    assert opened.reader.places(["j0", "j8"]) == {"j0": 1, "j8": 6}


def test_running_tasks_of_elastic_gangs_are_counted(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    gang, other = samples.job("gang"), samples.job("other")
    grows = tuple(msgspec.structs.replace(one, count=6, minimum=1) for one in gang.spec.groups)
    gang = msgspec.structs.replace(gang, spec=msgspec.structs.replace(gang.spec, groups=grows))
    states = [AttemptState.RUNNING, AttemptState.ENDED, AttemptState.RUNNING, AttemptState.ASSIGNED]
    made = [
        samples.attempt(of, 0, try_number=number, state=state)
        for of in (gang, other)
        for number, state in enumerate(states, start=1)
    ]
    commit(opened, epoch, 1, samples.cycle(attempts=tuple(made)))
    assert opened.reader.tasks_running([other, gang]) == {gang.key: 2}
    assert opened.reader.tasks_running([]) == {}


def test_attempts_are_found_by_job_element_and_node(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    train = samples.job(elements=3)
    made = [
        samples.attempt(train, 0, state=AttemptState.ENDED),
        samples.attempt(train, 0, try_number=2, node="n2"),
        samples.attempt(train, 1, state=AttemptState.RUNNING),
    ]
    commit(opened, epoch, 1, samples.cycle(attempts=tuple(made)))
    assert opened.reader.attempts(train.key) == made
    assert opened.reader.attempts(train.key, element=0) == made[:2]
    assert opened.reader.attempts(train.key, alive=False) == made[:1]
    assert opened.reader.attempts(train.key, limit=1) == made[:1]
    assert opened.reader.attempts(samples.job(run=2).key) == []
    assert opened.reader.attempts(train.key, alive_first=True) == [*made[1:], made[0]]
    assert opened.reader.attempts_of([train, samples.job("other")], 2) == {train.key: made[:2]}
    assert opened.reader.attempts_alive("n1") == made[2:]
    assert opened.reader.attempts_alive() == made[1:]


def test_events_come_in_order_and_on_from_a_number(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    happened = tuple(
        samples.event(f"event {number}", job="a" if number % 2 else "", node="n1")
        for number in range(1, 7)
    )
    commit(opened, epoch, 1, samples.cycle(events=happened))
    assert [event.sequence for event in opened.reader.events(limit=2)] == [5, 6]
    assert [event.sequence for event in opened.reader.events(after=2, limit=2)] == [3, 4]
    assert [event.sequence for event in opened.reader.events(job="a", after=1)] == [3, 5]
    assert len(opened.reader.events(node="n1")) == 6
    assert opened.reader.events(node="n2") == []
    assert opened.reader.last_event() == 6


def test_drift_is_replaced_as_a_whole(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    one = drift_kinds.Drift("node-missing", "n1", "never seen", "warning", "report", 90.0)
    two = drift_kinds.Drift("node-missing", "n2", "never seen", "warning", "report", 90.0)
    commit(opened, epoch, 1, samples.cycle(drift=(one, two)))
    assert opened.reader.drift() == [one, two]
    commit(opened, epoch, 2, samples.cycle(drift=(two,)))
    assert opened.reader.drift() == [two]


def test_views_journal_and_snapshots_are_kept(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    commit(opened, epoch, 1, samples.cycle(), journal=b"one", snapshot=b"whole", views={"q": b"1"})
    commit(opened, epoch, 2, samples.cycle(), journal=b"two", views={"q": b"2"}, incumbents=b"i")
    assert opened.reader.view("q") == b"2"
    assert opened.reader.view("none") is None
    assert opened.reader.incumbents() == b"i"
    found = [journal_entries.entry(opened.reader, cycle) for cycle in (1, 2, 3)]
    assert [one.body if one else None for one in found] == [b"one", b"two", None]
    assert found[1] is not None
    assert found[1].replayable
    place = journal_entries.snapshot_place(opened.reader, found[1])
    assert place == (epoch, 1)
    assert journal_entries.snapshot(opened.reader, place) == b"whole"
    assert (
        journal_entries.snapshot(opened.reader, journal_entries.JournalPosition(epoch, 2)) is None
    )
    assert journal_entries.oldest(opened.reader) == found[0]


def test_overrides_are_loaded(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    drain = records.Override("drain", "n1", "smoke", "alice@example.org", 1.0, 2.0)
    cancel = records.Override(
        "cancel", "train", "runs away", "bob@example.org", 1.5, 3.0, run_key="train.1.0123"
    )
    commit(opened, epoch, 1, samples.cycle(overrides=(drain, cancel)))
    assert opened.load().overrides == (drain, cancel)
    assert opened.reader.overrides() == (drain, cancel)
    commit(opened, epoch, 2, samples.cycle(overrides=(cancel,)))
    assert opened.load().overrides == (cancel,)


def test_what_is_too_old_goes_in_bounded_batches(
    opened: store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.store.retention.BATCH", 4)
    epoch = opened.lead("one", 50.0)
    for number in range(1, 11):
        at = float(number)
        commit(
            opened,
            epoch,
            number,
            samples.cycle(now=at, events=(samples.event("x", at=at),)),
            journal=b"x" * 100,
            snapshot=b"s" if number % 3 == 1 else None,
        )

    def prune(**limits: Any) -> int:
        return opened.prune(epoch, 100.0, **(_KEPT | limits))

    assert prune() == 0
    assert prune(events_before=6.0) == 4
    assert prune(events_before=6.0) == 1
    assert [event.sequence for event in opened.reader.events()] == [6, 7, 8, 9, 10]

    # stretches begin with cycles 1, 4, 7 and 10
    def kept() -> list[int]:
        return [one.cycle for one in journal_entries.entries(opened.reader, epoch, 0, None)]

    assert prune(journal_before=4.0) == 3 + 1
    assert kept() == list(range(4, 11))
    assert journal_entries.snapshots(opened.reader) == [(epoch, 4), (epoch, 7), (epoch, 10)]
    assert prune(journal_bytes_max=703) == 0, "seven entries and three snapshots of a byte"
    assert prune(journal_bytes_max=702) == 3 + 1
    assert kept() == [7, 8, 9, 10]
    assert prune(journal_bytes_max=0, journal_before=99.0) == 3 + 1
    assert prune(journal_bytes_max=0, journal_before=99.0) == 0, "the newest stretch goes on"
    assert kept() == [10]
    assert journal_entries.oldest(opened.reader) == journal_entries.entry(opened.reader, 10)


def test_journal_entries_are_found_by_time(
    opened: store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.store.journal_entries.BATCH", 2)
    epoch = opened.lead("one", 50.0)
    for number in range(1, 6):
        commit(opened, epoch, number, samples.cycle(now=60.0 + number // 2))

    def cycle_of(found: journal_entries.JournalEntry | None) -> int | None:
        return None if found is None else found.cycle

    moments = (59.0, 60.0, 60.5, 61.0, 62.0, 70.0)
    through = [cycle_of(journal_entries.entry_through(opened.reader, at)) for at in moments]
    across = [cycle_of(journal_entries.entry_across(opened.reader, at)) for at in moments]
    assert through == [None, 1, 1, 3, 5, 5]
    assert across == [1, 2, 2, 4, None, None]
    assert [one.cycle for one in journal_entries.entries(opened.reader, epoch, 2, 4)] == [2, 3, 4]


def test_entries_without_a_snapshot_go_by_age_too(
    opened: store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.store.retention.BATCH", 2)
    epoch = opened.lead("one", 50.0)
    for number in range(1, 7):
        snapshot = b"s" if number == 5 else None
        commit(opened, epoch, number, samples.cycle(now=float(number)), snapshot=snapshot)
    limits = _KEPT | {"journal_before": 4.0}
    assert [opened.prune(epoch, 100.0, **limits) for _ in range(3)] == [2, 1, 0]
    assert [one.cycle for one in journal_entries.entries(opened.reader, epoch, 0, None)] == [
        4,
        5,
        6,
    ]


def test_a_newer_store_is_refused(opened: store.Store, url: str) -> None:
    opened.close()
    with sqlite3.connect(opened.reader.path) as connection:
        connection.execute("INSERT INTO schema_version VALUES (99)")
    connection.close()
    for kind in (store.Store, store.StoreReader):
        with pytest.raises(store.StoreError, match="schema version 99; this Muster knows"):
            kind.open(url)


def test_a_store_that_was_not_made_yet_is_refused_to_engine(url: str) -> None:
    with pytest.raises(store.StoreError, match="there is no file"):
        store.StoreReader.open(url)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("nonsense", "is no store address"),
        ("sqlite://", "names no file"),
        ("sqlite:////no/such/folder/x.db", "there is no folder"),
        ("postgresql://host/db", "only SQLite is built"),
    ],
)
def test_an_address_that_can_not_be_used_is_told(address: str, told: str) -> None:
    with pytest.raises(store.StoreError, match=told):
        store.Store.open(address)


def test_a_damaged_file_is_told(tmp_path: pathlib.Path, url: str) -> None:
    path = tmp_path / "muster.db"
    path.write_bytes(b"this is no database at all" * 100)
    for kind in (store.Store, store.StoreReader):
        with pytest.raises(store.DamagedError, match=r"restore a backup"):
            kind.open(url)


def test_a_file_cut_short_is_told(opened: store.Store, url: str) -> None:
    epoch = opened.lead("one", 50.0)
    jobs = tuple(samples.job(f"job-{number}", order=number) for number in range(500))
    commit(opened, epoch, 1, samples.cycle(jobs=jobs))
    opened.close()
    content = opened.reader.path.read_bytes()
    opened.reader.path.write_bytes(content[: len(content) // 2])
    with pytest.raises(store.DamagedError), contextlib.closing(store.Store.open(url)) as again:
        again.load()


def test_a_database_of_something_else_is_told(tmp_path: pathlib.Path, url: str) -> None:
    with sqlite3.connect(tmp_path / "muster.db") as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    with pytest.raises(store.DamagedError, match="something else: it holds the tables recipes"):
        store.Store.open(url)


def test_a_record_that_can_not_be_read_is_told(opened: store.Store) -> None:
    epoch = opened.lead("one", 50.0)
    commit(opened, epoch, 1, samples.cycle(jobs=(samples.job(),)))
    with opened._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET body = x'93'")
    with pytest.raises(store.DamagedError, match="a record that can't be read"):
        opened.load()
    with pytest.raises(store.DamagedError, match="a record that can't be read"):
        opened.reader.jobs()


def test_what_holds_something_is_read_as_of_one_commit(opened: store.Store, url: str) -> None:
    epoch = opened.lead("one", 50.0)
    first, second = samples.job("first"), samples.job("second", order=2)
    begun = {of.name: samples.attempt(of, state=AttemptState.RUNNING) for of in (first, second)}
    before = samples.cycle(jobs=(first,), attempts=(begun["first"],), new_runs=(first.key,))
    commit(opened, epoch, 1, before)
    reading = store_reader.StoreReader.open(url)
    commits: list[int] = []

    def commit_another(
        _connection: object, _cursor: object, statement: str, *_rest: object
    ) -> None:
        if "FROM jobs" in statement.replace("\n", " ") and not commits:
            commits.append(2)
            after = samples.cycle(jobs=(second,), attempts=(begun["second"],))
            commit(opened, epoch, 2, after)

    def holding() -> tuple[set[str], set[str]]:
        found = reading.holders()
        return set(found.jobs), {one.job for one in found.attempts.values()}

    sa.event.listen(reading._engine, "after_cursor_execute", commit_another)
    try:
        assert holding() == ({"first"}, {"first"})
        assert commits == [2]
        assert holding() == ({"first", "second"}, {"first", "second"})
    finally:
        reading.close()


def _read_without_a_pause(path: pathlib.Path, ends: threading.Event) -> None:
    """Read so that at every moment somebody does: one begins before the other ends."""
    readers = [sqlite3.connect(path, isolation_level=None) for _ in range(2)]
    for turn in itertools.cycle(readers):
        if ends.is_set():
            break
        turn.execute("BEGIN")
        turn.execute("SELECT count(*) FROM journal").fetchone()
        (other,) = (one for one in readers if one is not turn)
        if other.in_transaction:
            other.execute("COMMIT")
        ends.wait(0.005)
    for one in readers:
        one.close()


def test_the_log_stays_small_while_others_read_without_a_pause(
    url: str, opened: store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite itself starts it over only at a moment at which nobody reads."""
    monkeypatch.setattr(database, "LOG_BYTES_MAX", 2 * 2**20)
    path = database.path_of(url)
    epoch = opened.lead("me", 1.0)
    ends = threading.Event()
    reader = threading.Thread(target=_read_without_a_pause, args=(path, ends))
    reader.start()
    try:
        for cycle in range(1, 61):
            decided = samples.cycle(10.0 * cycle)
            commit(opened, epoch, cycle, decided, journal=os.urandom(2**18))
    finally:
        ends.set()
        reader.join(30)
    assert database.log_of(path).stat().st_size < 4 * 2**20
    assert path.stat().st_size > 14 * 2**20

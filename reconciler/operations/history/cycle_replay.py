"""Past decisions, decided again from the store alone, and compared with what was recorded.

A moment or the number of a cycle leads to a journal entry, the entry to the nearest snapshot of
its leader; from there every call of ``reconcile`` is made again until the one that is asked for.
Between two snapshots there are ``cycle_journal.SNAPSHOT_CALLS`` calls: no replay has more to do.
"""

from collections.abc import Iterator

import msgspec

from reconciler.core import cycle_journal
from reconciler.model.values import times
from reconciler.store import StoreReader, journal_entries, schema


class ReplayError(Exception):
    """There is nothing to replay there; says why, and how far back the journal reaches."""


class ReplayedCall(msgspec.Struct, frozen=True):
    """One call of ``reconcile``.

    ``step`` counts the calls of one commit from 0: calls without a change are committed with the
    next one that has any. ``muster`` is the version that decided then.
    """

    epoch: int
    cycle: int
    step: int
    muster: str
    call: cycle_journal.JournalledCycle


def replay(
    reader: StoreReader, *, cycle: int | None = None, at: float | None = None
) -> ReplayedCall:
    """Return the last call of a cycle, or the last one at or before a moment, with its result.

    Args:
        reader: the store.
        cycle: number of a commit; if two leaders have the number, the newer leader's.
        at: seconds since the epoch.

    Raises:
        ReplayError: there is no such cycle, or it can't be replayed.
        StoreError: the store can't be read.
    """
    if cycle is not None:
        entry = journal_entries.entry(reader, cycle)
        if entry is None:
            raise ReplayError(f"the journal holds no cycle {cycle}{_reach(reader)}")
        step = None
    elif at is not None:
        entry, step = _entry_at(reader, at)
    else:
        raise ValueError("either cycle or at")
    found = None
    for replayed in _through(reader, entry):
        found = replayed
        if replayed.cycle == entry.cycle and replayed.step == step:
            break
    if found is None or found.cycle != entry.cycle:
        raise ReplayError(_missing(entry.cycle))
    return found


def _entry_at(reader: StoreReader, at: float) -> tuple[journal_entries.JournalEntry, int | None]:
    """Return the entry and the step of the last call at or before a moment; None: its last step."""
    across = journal_entries.entry_across(reader, at)
    if across is not None and across.replayable:
        inputs = _inputs(across)
        before = [step for step, one in enumerate(inputs) if one.now <= at]
        if before:
            return across, before[-1]
    through = journal_entries.entry_through(reader, at)
    if through is None:
        raise ReplayError(
            f"{times.format_time(at)} is before the first cycle in the journal{_reach(reader)}"
        )
    return through, None


def _through(reader: StoreReader, entry: journal_entries.JournalEntry) -> Iterator[ReplayedCall]:
    """Return the calls from the nearest snapshot to the end of an entry."""
    which = f"cycle {entry.cycle}, of {times.format_time(entry.at)},"
    if not entry.replayable:
        raise ReplayError(
            f"{which} can't be replayed: an earlier version of Muster recorded it in journal "
            f"format {entry.format}, and this one replays format {schema.JOURNAL_FORMAT}"
            f"{_reach(reader)}"
        )
    start = journal_entries.snapshot_place(reader, entry)
    if start is None:
        raise ReplayError(
            f"{which} can't be replayed: the snapshot that it starts from was not kept"
            f"{_reach(reader)}"
        )
    yield from _calls(reader, start, entry.cycle)


def _calls(
    reader: StoreReader, start: journal_entries.JournalPosition, last: int | None
) -> Iterator[ReplayedCall]:
    """Yield the calls from a snapshot through a cycle, or through all that its leader
    journalled.
    """
    body = journal_entries.snapshot(reader, start)
    if body is None:
        raise ReplayError(_missing(start.cycle))
    try:
        replaying = cycle_journal.Replay(body)
    except msgspec.DecodeError as error:
        raise ReplayError(
            f"the snapshot of cycle {start.cycle} can't be read by this version of Muster ({error})"
        ) from None
    expected = start.cycle
    for entry in journal_entries.entries(reader, start.epoch, start.cycle, last):
        if entry.cycle != expected:
            raise ReplayError(_missing(expected))
        expected += 1
        for step, call in enumerate(replaying.through(_inputs(entry))):
            yield ReplayedCall(start.epoch, entry.cycle, step, replaying.muster, call)


def _inputs(entry: journal_entries.JournalEntry) -> tuple[cycle_journal.Input, ...]:
    try:
        return cycle_journal.unpack_inputs(entry.body)
    except msgspec.DecodeError as error:
        raise ReplayError(
            f"the journal of cycle {entry.cycle} can't be read by this version of Muster ({error})"
        ) from None


def _missing(cycle: int) -> str:
    return f"the journal of cycle {cycle} is missing: what follows it can't be replayed"


def _reach(reader: StoreReader) -> str:
    """Return how far back a replay can go, as the end of a sentence."""
    oldest = journal_entries.oldest(reader)
    if oldest is None:
        return "; it holds nothing that can be replayed"
    return (
        f"; the oldest that can be replayed is cycle {oldest.cycle}, of "
        f"{times.format_time(oldest.at)}"
    )

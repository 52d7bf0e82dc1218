"""Takes what is over age out of the audit log, so that the log says so and still verifies.

Whole files leave, the oldest first, one a call. Before one is taken away it is verified, for what
was tampered with is evidence and stays; then a line that names its last number and hash is added to
the chain; only then the file goes. Killed at any step, the log verifies, and the next call goes on.
The file that grows always stays, and with it the newest entry about a revision.
"""

from pathlib import Path

import msgspec

from reconciler.model.values import quantities, times
from reconciler.operations.audit import audit_entries, audit_log

#: Part of the retention time that one file covers, unless it is full before.
PARTS = 10


class _Part(msgspec.Struct, frozen=True):
    """A closed file: its first and last line, and the time of its newest line."""

    first: audit_log.ChainEntry
    last: audit_log.ChainEntry
    newest_at: float


def part_s(keep_s: float | None) -> float | None:
    """Return after how many seconds a file is put aside, or None if only its size decides."""
    return None if keep_s is None else keep_s / PARTS


def drop(
    log: audit_log.Log, *, keep_s: int, now: float, revision: str
) -> audit_log.ChainEntry | None:
    """Take the oldest file away if all that is in it is older than ``keep_s``.

    Args:
        log: the one process that appends to it calls this.
        keep_s: how long lines are kept, in seconds.
        now: seconds since the epoch.
        revision: whose ``Cluster`` says so.

    Returns:
        The line that tells of it; None: there was nothing to take away.

    Raises:
        OSError: a file can't be read, written or taken away.
        ValueError: the file was tampered with, and stays.
    """
    parts = log.parts()
    if not parts or next(audit_log.lines_backwards(log.path), None) is None:
        return None
    oldest, before = parts[0], now - keep_s
    if audit_log.newest_of(oldest).entry.at > before:
        return None
    part = _verified(oldest, parts[1] if len(parts) > 1 else log.path)
    if part.newest_at > before:
        return None
    drop_entry = next(log.newest_first(only_dropped=True), None)
    if drop_entry is None or _names(drop_entry) != (part.last.number, part.last.hash):
        drop_entry = log.append(_entry(log, part, keep_s=keep_s, now=now, revision=revision))
    oldest.unlink()
    audit_log.sync_folder(log.path.parent)
    return drop_entry


def _verified(path: Path, following: Path) -> _Part:
    """Return a file that is intact and continued by the next one.

    Raises:
        ValueError: it is not.
    """
    first = audit_log.oldest_of(path)
    last, newest_at = first, first.entry.at
    walk = audit_log.ChainWalk(first.number)
    with path.open("rb") as file:
        for text in file:
            line = walk.step(text)
            if line is None:
                break
            last, newest_at = line, max(newest_at, line.entry.at)
    wrong = walk.verdict().wrong
    beyond = audit_log.oldest_of(following)
    if not wrong and (beyond.number, beyond.previous) != (last.number + 1, last.hash):
        wrong = f"line {beyond.number} of {following.name} does not follow line {last.number}"
    if wrong:
        raise ValueError(
            f"{path.name} is too old and is kept, because it was changed: {wrong}. To fix: check "
            "it with `muster audit verify`, then move it away by hand"
        )
    return _Part(first, last, newest_at)


def _entry(
    log: audit_log.Log, part: _Part, *, keep_s: int, now: float, revision: str
) -> audit_entries.AuditEntry:
    """Return the entry recording that a file is gone."""
    first, last = part.first, part.last
    which = f"lines {first.number} to {last.number}"
    if first.number == last.number:
        which = f"line {last.number}"
    dropped = audit_entries.Dropped(
        begins=_begins(log, first),
        first=first.number,
        last=last.number,
        hash=last.hash,
        newest_at=part.newest_at,
        keep_s=keep_s,
    )
    return audit_entries.AuditEntry(
        at=now,
        revision=revision,
        result="Dropped",
        message=(
            f"{which} of this log, the newest of {times.format_time(part.newest_at)}, dropped: "
            f"`retention.audit` is {quantities.format_duration(keep_s)}"
        ),
        dropped=dropped,
    )


def _begins(log: audit_log.Log, first: audit_log.ChainEntry) -> int:
    """From which line on the log is accounted for, where ``first`` is the oldest that is there."""
    if first.number == 1:
        return 1
    for line in log.newest_first(only_dropped=True):
        dropped = line.entry.dropped
        if dropped is not msgspec.UNSET and _names(line) == (first.number - 1, first.previous):
            return dropped.begins
    return first.number


def _names(line: audit_log.ChainEntry) -> tuple[int, str] | None:
    """Return the last line that an entry records as dropped."""
    dropped = line.entry.dropped
    return None if dropped is msgspec.UNSET else (dropped.last, dropped.hash)

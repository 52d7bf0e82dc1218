"""The audit log: what is in it, and that tampering with it is seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.desired.git import commit_log
from reconciler.model import desired
from reconciler.operations.audit import audit_entries, audit_log


def entry(revision: str = "abc", **more: Any) -> audit_entries.AuditEntry:
    return audit_entries.AuditEntry(at=1.0, revision=revision, result="Synced", **more)


@pytest.fixture
def log(tmp_path: Path) -> audit_log.Log:
    made = audit_log.Log(tmp_path / audit_log.FILE)
    for revision in "abcde":
        made.append(entry(revision))
    return made


def test_lines_are_chained_and_listed_backwards(log: audit_log.Log) -> None:
    assert [line.entry.revision for line in log.tail(3)] == ["e", "d", "c"]
    assert [line.number for line in log.tail(99)] == [5, 4, 3, 2, 1]
    found = log.verify()
    assert (found.lines, found.wrong) == (5, "")
    assert found.last == log.tail(1)[0].hash
    assert log.path.stat().st_mode & 0o077 == 0


def lines(log: audit_log.Log) -> list[bytes]:
    return log.path.read_bytes().splitlines(keepends=True)


TAMPERING: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int, str]] = {
    "changed": (
        lambda x: [*x[:2], x[2].replace(b'"c"', b'"z"'), *x[3:]],
        2,
        "changed after it was written",
    ),
    "removed": (lambda x: [*x[:2], *x[3:]], 2, "found number 4, expected 3"),
    "first removed": (lambda x: x[1:], 0, "found number 2, expected 1"),
    "put in": (lambda x: [*x[:2], x[1], *x[2:]], 2, "found number 2, expected 3"),
    "turned round": (lambda x: [x[1], x[0], *x[2:]], 0, "found number 2, expected 1"),
    "no line": (lambda x: [*x[:4], b"{}\n"], 4, "can't be read"),
}


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_seen(log: audit_log.Log, how: str) -> None:
    tamper, good, told = TAMPERING[how]
    log.path.write_bytes(b"".join(tamper(lines(log))))
    found = log.verify()
    assert found.lines == good
    assert told in found.wrong


def test_a_line_made_anew_breaks_the_next_one(log: audit_log.Log, tmp_path: Path) -> None:
    whole = lines(log)
    other = audit_log.Log(tmp_path / "other")
    for revision in "abz":
        other.append(entry(revision))
    log.path.write_bytes(b"".join([*lines(other), *whole[3:]]))
    found = log.verify()
    assert found.lines == 3
    assert "does not follow the line before it" in found.wrong


def test_what_a_crash_left_half_written_is_dropped(log: audit_log.Log) -> None:
    with log.path.open("ab") as file:
        file.write(b'{"number":6,"previous":')
    log.append(entry("f"))
    assert (log.verify().lines, log.verify().wrong) == (6, "")


@pytest.mark.parametrize("missing", [1, 30])
def test_what_lacks_its_line_end_is_not_there_for_anybody(log: audit_log.Log, missing: int) -> None:
    """No number has two hashes over time: who adds the next line cuts the half one off."""
    last = log.append(entry("f")).previous
    log.path.write_bytes(log.path.read_bytes()[:-missing])
    assert log.verify(mark=5) == audit_log.ChainVerdict(5, last, torn=True, marked=last)
    assert [line.number for line in log.tail(2)] == [5, 4]
    log.append(entry("g"))
    assert [line.entry.revision for line in log.tail(2)] == ["g", "e"]
    assert (log.verify().lines, log.verify().torn) == (6, False)


def test_it_does_not_go_on_after_what_it_can_not_read(log: audit_log.Log) -> None:
    with log.path.open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(ValueError, match="JSON"):
        log.append(entry("f"))
    with pytest.raises(ValueError, match="can't be read"):
        log.tail(1)


def test_a_log_that_has_become_large_goes_on_in_the_next_file(tmp_path: Path) -> None:
    """What was put aside may be taken away, oldest first, and that is told unless it is said."""
    log = audit_log.Log(tmp_path / audit_log.FILE, part_bytes_max=1000)
    for number in range(1, 31):
        assert log.append(entry(str(number))).number == number
    parts = log.parts()
    assert len(parts) > 3
    assert all(part.stat().st_size < 2000 for part in (*parts, log.path))
    assert log.verify() == audit_log.ChainVerdict(30, log.tail(1)[0].hash)
    assert [line.number for line in log.tail(100)] == list(range(30, 0, -1))
    assert audit_log.Log(log.path).append(entry("31")).number == 31

    # Killed after a file was put aside and before there was a new one.
    log.path.rename(tmp_path / "audit-000000000031.jsonl")
    assert log.append(entry("32")).number == 32
    assert log.verify().lines == 32

    gone = audit_log.Log(parts[0]).tail(1)[0].number
    parts[0].unlink()
    assert log.verify().lines == 0
    assert f"found number {gone + 1}, expected 1" in log.verify().wrong
    assert log.verify(gone + 1) == audit_log.ChainVerdict(32, log.tail(1)[0].hash)
    early = f"the log begins with line {gone + 1}, before line {gone + 2}: without a first"
    assert log.verify(gone + 2).wrong.startswith(early)
    assert log.append(entry("33")).number == 33

    # One in the middle that is gone is never right.
    parts[2].unlink()
    assert "lines are missing" in log.verify(gone + 1).wrong


def test_parts_are_verified_from_where_they_begin(tmp_path: Path) -> None:
    log = audit_log.Log(tmp_path / audit_log.FILE, part_bytes_max=1)
    for number in range(4):
        log.append(entry(str(number)))
    (first, second, *_) = log.parts()
    assert first.name == "audit-000000000001.jsonl"
    assert "the log begins with line 1, before line 9: without" in log.verify(9).wrong
    assert audit_log.Log(tmp_path / "none").verify(9).wrong == "there is no line 9"
    second.write_bytes(second.read_bytes().replace(b'"1"', b'"7"'))
    assert log.verify().wrong == "line 2: it was changed after it was written"
    first.unlink()
    assert log.verify(2).wrong == "line 2: it was changed after it was written"


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    log = audit_log.Log(tmp_path / "none")
    assert log.tail(5) == []
    assert log.verify() == audit_log.ChainVerdict(0, audit_log.BEGINNING)


def test_long_lines_and_many(tmp_path: Path) -> None:
    log = audit_log.Log(tmp_path / "long")
    for number in range(30):
        log.append(entry(str(number), message="x" * 9000))
    assert [line.entry.revision for line in log.tail(30)] == [str(n) for n in reversed(range(30))]
    assert log.verify().lines == 30


def test_what_changed_is_counted_and_the_first_of_it_listed() -> None:
    def state(generation: int, **queues: float) -> desired.Desired:
        jobs = {f"j{n}": desired.Job(f"j{n}", generation, "h", "q", ()) for n in range(60)}
        made = {name: desired.Queue(name, weight=weight) for name, weight in queues.items()}
        return desired.Desired(generation, desired.Structure(queues=made), jobs)

    status = desired.SyncStatus(sync="Synced", attempted_revision="abc")
    found = audit_entries.entry_of(
        status, [], before=state(1, a=1, b=1), after=state(2, b=2, c=1), at=1.0, duration_s=0.5
    )
    assert (found.added, found.changed, found.removed) == (1, 61, 1)
    assert found.objects[:3] == ("- Queue/a", "~ Queue/b", "+ Queue/c")
    assert len(found.objects) == audit_entries.LISTED_MAX
    unknown = audit_entries.entry_of(
        status, [], before=None, after=state(1), at=1.0, duration_s=0.5
    )
    assert (unknown.added, unknown.objects) == (0, ())


def test_what_is_news() -> None:
    assert audit_entries.is_news(entry(), None)
    assert not audit_entries.is_news(entry(), entry(duration_s=3.0))
    assert audit_entries.is_news(entry(message="held"), entry())


@pytest.mark.parametrize(
    ("weight", "more"), [(1.0, ()), (2.0, ("+ Queue/default",))]
)  # fmt: skip
def test_the_first_commit_adds_all_that_it_brings(weight: float, more: tuple[str, ...]) -> None:
    made = {"default": desired.Queue("default", weight=weight), "q": desired.Queue("q")}
    settings = desired.ClusterSettings(name="main", lease_s=60)
    after = desired.Desired(
        1,
        desired.Structure(settings=settings, queues=made),
        {"j": desired.Job("j", 1, "h", "q", ())},
    )
    status = desired.SyncStatus(sync="Synced", attempted_revision="abc")
    found = audit_entries.entry_of(
        status, [], before=audit_entries.NOTHING, after=after, at=1.0, duration_s=0.5
    )
    assert found.objects == ("+ Cluster/main", *more, "+ Queue/q", "+ Job/j")
    assert (found.added, found.changed, found.removed) == (3 + len(more), 0, 0)


def settings(**values: Any) -> desired.Structure:
    return desired.Structure(settings=desired.ClusterSettings(**values))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (settings(), settings(), ()),
        (settings(), settings(name="main"), ("+ Cluster/main",)),
        (settings(name="main"), settings(), ("- Cluster/main",)),
        (settings(name="main"), settings(name="main", suspend=True), ("~ Cluster/main",)),
        (settings(name="old", suspend=True), settings(name="new"), ("~ Cluster/new",)),
        (settings(suspend=True), settings(name="main", suspend=True), ()),
        (settings(suspend=True), settings(lease_s=1), ("~ Cluster/settings",)),
    ],
)  # fmt: skip
def test_the_cluster_has_the_name_of_its_document(
    before: desired.Structure, after: desired.Structure, told: tuple[str, ...]
) -> None:
    status = desired.SyncStatus(sync="Synced", attempted_revision="abc")
    states = [desired.Desired(1, one) for one in (before, after)]
    found = audit_entries.entry_of(
        status, [], before=states[0], after=states[1], at=1.0, duration_s=0.5
    )
    assert found.objects == told


#: A log of one line, as it was written before signers were in it.
OLDER = (
    '{"number":1,"previous":"00000000000000000000000000000000000000000000000000000000'
    '00000000","entry":{"at":1.0,"revision":"abc","result":"Synced","structure_revisi'
    'on":null,"jobs_revision":null,"duration_s":0.0,"commits":[{"id":"1","author":"a@'
    'x.org","subject":"s","submitter":"b@x.org"}],"added":0,"changed":0,"removed":0,"'
    'objects":[],"message":"","problems":[]},"hash":"933f16773d7c518f8a82c10981373c93'
    'c2e2e944fae7757990e1bef884c19c59"}'
    "\n"
)


def test_who_signed_is_told_where_that_was_looked_at_and_older_lines_keep_their_hashes(
    tmp_path: Path,
) -> None:
    line = [
        commit_log.Commit(one, "", "ada@x.org", "", 0, "s", (("Muster-Submitter", "c@x.org"),))
        for one in ("1", "2", "3")
    ]
    status = desired.SyncStatus(sync="Synced", attempted_revision="3")
    found = audit_entries.entry_of(
        *(status, line),
        signers={"1": "bob@x.org", "2": ""},
        before=None,
        after=desired.Desired(),
        at=1.0,
        duration_s=0.5,
    )
    assert [one.signer for one in found.commits] == ["bob@x.org", "", msgspec.UNSET]
    log = audit_log.Log(tmp_path / "audit.jsonl")
    log.append(found)
    assert log.verify() == audit_log.ChainVerdict(1, log.tail(1)[0].hash)
    log.path.write_text(OLDER)
    assert log.verify().wrong == ""
    assert log.append(found).number == 2
    assert log.verify().lines == 2

"""The audit log is searched by person, object, action and time, page by page."""

from pathlib import Path

import msgspec
import pytest

from reconciler.cli.repository import audit
from reconciler.operations.audit import audit_entries, audit_log, audit_search

ADA = audit_entries.CommitEntry("c1", "Ada@x.org", "Grow research", signer="ada@x.org")
BOB = audit_entries.CommitEntry("c2", "muster", "Submit", submitter="bob@x.org")
REFUSED = audit_entries.ProblemEntry("access", "Queue/prod", "no role allows it")


def revision(
    at: float, *commits: audit_entries.CommitEntry, **more: object
) -> audit_entries.AuditEntry:
    made = audit_entries.AuditEntry(at, f"{at:040.0f}", "Synced", commits=commits)
    return msgspec.structs.replace(made, **more)


def call(
    at: float, action: audit_entries.Action, who: str, request: str, why: str = ""
) -> audit_entries.AuditEntry:
    access = audit_entries.AccessEntry(action, who, "10.0.0.7", request)
    return audit_entries.AuditEntry(at, "", "Access", message=why, access=access)


ENTRIES = [
    revision(10, ADA, objects=("~ Queue/research", "+ Job/train")),
    revision(20, BOB, objects=("+ Job/eval",)),
    revision(30, ADA, BOB, objects=("- Job/train",), problems=(REFUSED,)),
    call(40, "LogsRead", "eve@x.org", "GET /v1/jobs/train/logs", "of ada@x.org"),
    call(
        50, "OverrideChanged", "root@x.org", "POST /v1/overrides", "cancel train, eval: maintenance"
    ),
    call(60, "Unauthenticated", "", "GET /v1/jobs", "a call without a valid token (unknown)"),
]
FOUND = {
    "all": ({}, [6, 5, 4, 3, 2, 1]),
    "signer": ({"person": "ada@X"}, [3, 1]),
    "submitter": ({"person": "bob"}, [3, 2]),
    "caller": ({"person": "eve"}, [4]),
    "address": ({"person": "10.0.0.7"}, [6, 5, 4]),
    "job": ({"object": "Job/train"}, [5, 4, 3, 1]),
    "kind": ({"object": "Queue"}, [3, 1]),
    "part of a name": ({"object": "Job/trai"}, []),
    "removed": ({"action": "Removed"}, [3]),
    "changed there": ({"action": "Changed", "object": "Job/train"}, []),
    "refused there": ({"action": "Refused", "object": "Queue/prod"}, [3]),
    "override of": ({"action": "OverrideChanged", "object": "Job/eval"}, [5]),
    "since": ({"since": 30.0}, [6, 5, 4, 3]),
    "until": ({"until": 30.0}, [3, 2, 1]),
    "between": ({"since": 20.0, "until": 30.0, "person": "bob"}, [3, 2]),
}


def test_commands_offer_what_can_be_asked_for() -> None:
    assert tuple(audit.RevisionAction) == audit_search.REVISION_ACTIONS
    assert tuple(audit.AccessAction) == audit_search.ACCESS_ACTIONS


@pytest.fixture
def log(tmp_path: Path) -> audit_log.Log:
    made = audit_log.Log(tmp_path / audit_log.FILE, part_bytes_max=700)
    for entry in ENTRIES:
        made.append(entry)
    assert made.parts()
    return made


@pytest.mark.parametrize(("asked", "numbers"), FOUND.values(), ids=list(FOUND))
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_what_is_asked_for_is_found_whatever_the_size_of_pages(
    log: audit_log.Log, asked: dict[str, object], numbers: list[int], limit: int
) -> None:
    query = msgspec.convert(asked, audit_search.AuditQuery)
    found, before = list[int](), None
    for _ in range(len(ENTRIES) + 1):
        page = audit_search.search(log, query, before=before, limit=limit)
        assert len(page.lines) <= limit
        found += [line.number for line in page.lines]
        before = page.next
        if before is None:
            break
    assert before is None
    assert found == numbers


def test_an_answer_looks_at_so_many_lines(
    log: audit_log.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_search, "LINES_MAX", 2)
    rare = audit_search.AuditQuery(person="nobody")
    assert audit_search.search(log, rare, before=None, limit=5) == ([], 5)
    assert audit_search.search(log, rare, before=3, limit=5) == ([], None)


def test_files_behind_a_page_are_not_read(log: audit_log.Log) -> None:
    newest = log.parts()[-1]
    first = audit_log.oldest_of(newest).number
    newest.write_bytes(b"not a line\n")
    found = audit_search.search(log, audit_search.AuditQuery(), before=first, limit=100)
    assert [line.number for line in found.lines] == list(range(first - 1, 0, -1))
    with pytest.raises(ValueError, match="can't be read"):
        audit_search.search(log, audit_search.AuditQuery(), before=None, limit=100)

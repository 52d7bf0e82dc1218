"""The audit log is searched and exported through the server, by commands."""

import json
import pathlib
from collections.abc import Iterator

import pytest

from reconciler.operations.audit import access_audit, audit_entries, audit_log
from tests.integration.server import parts

ADA = audit_entries.CommitEntry("c" * 40, "ada@x.org", "Grow research", signer="ada@x.org")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("audit")
    made = parts.Served(folder)
    log = audit_log.Log(folder / audit_log.FILE)
    for number in range(1200):
        commits = (ADA,) if number == 3 else ()
        objects = (f"+ Job/train-{number}",)
        entry = audit_entries.AuditEntry(
            1000.0 + number, f"{number:040x}", "Synced", commits=commits, objects=objects
        )
        log.append(entry)
    read = audit_entries.AccessEntry("LogsRead", "eve@x.org", "::1", "GET /v1/jobs/train/logs")
    audit_log.Log(folder / access_audit.FILE).append(
        audit_entries.AuditEntry(1000.0, "", "Access", message="of ada@x.org", access=read)
    )
    try:
        yield made.ready()
    finally:
        made.close()


def test_an_entry_is_found_by_person_and_by_object(served: parts.Served) -> None:
    by_ada = parts.muster(served, "audit", "--person", "ADA@", "-o", "json")
    assert [one["number"] for one in json.loads(by_ada.stdout)["items"]] == [4]
    shown = parts.muster(served, "audit", "--object", "Job/train-3")
    assert "ada@x.org: Grow research" in shown.stdout
    none = parts.muster(served, "audit", "--object", "Job/train-3", "--action", "Removed")
    assert (none.stdout, none.stderr) == ("", "no entry matches\n")


def test_calls_are_found_and_shown(served: parts.Served) -> None:
    shown = parts.muster(served, "audit", "access", "--object", "Job/train", "--person", "eve")
    assert "LogsRead  eve@x.org" in shown.stdout
    assert "GET /v1/jobs/train/logs: of ada@x.org" in shown.stdout


def test_a_wrong_action_is_told_with_the_right_ones(served: parts.Served) -> None:
    wrong = parts.muster(served, "audit", "--action", "Remove")
    assert wrong.returncode == 64
    assert "Removed" in wrong.stderr
    path = "/v1/audit/access?action=Forbiden"
    answer = served.client.get(path)
    assert answer.status_code == 400
    assert "did you mean Forbidden?" in answer.json()["error"]["message"]


def test_all_is_exported_over_several_pages(served: parts.Served) -> None:
    done = parts.muster(served, "audit", "export")
    assert done.returncode == 0, done.stderr
    numbers = [json.loads(line)["number"] for line in done.stdout.splitlines()]
    assert numbers == list(range(1200, 0, -1))
    assert done.stderr == "1200 lines\n"
    since = parts.muster(served, "audit", "export", "--since", "1970-01-01T00:36:00Z")
    assert len(since.stdout.splitlines()) == 40

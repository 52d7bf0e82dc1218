"""What reads the repository keeps the audit log as long as the ``Cluster`` in force says.

The thread is the real one, over a real repository.
"""

from pathlib import Path

import pytest

from reconciler.operations.audit import audit_entries, audit_log
from tests.unit.controller.quarantine.test_containment_revisions import STRUCTURE, RevisionSite
from tests.unit.controller.quarantine.test_containment_revisions import (
    repository as repository,  # noqa: PLC0414 - fixture
)
from tests.unit.desired import repositories

CLUSTER = "{apiVersion: muster/v1, kind: Cluster, metadata: {name: main}, spec: {retention: %s}}\n"


@pytest.mark.parametrize(
    ("retention", "dropped"), [("{}", 0), ("{audit: 30000d}", 0), ("{audit: 30d}", 1)]
)
def test_one_file_that_is_over_age_leaves_at_a_time_and_no_entry_is_written_twice(
    tmp_path: Path, repository: repositories.Repository, retention: str, dropped: int
) -> None:
    log = audit_log.Log(tmp_path / audit_log.FILE, part_bytes_max=1)
    for second in range(3):
        log.append(
            audit_entries.AuditEntry(at=float(second), revision=f"r{second}", result="Synced")
        )
    files = {"structure.yaml": STRUCTURE.replace("LIMIT", "3"), "c.yaml": CLUSTER % retention}
    revision = repository.commit(files)
    site = RevisionSite(tmp_path, repository)
    site.until(revision, "Synced")
    site.close()
    again = RevisionSite(tmp_path, repository)
    again.until(revision, "Synced")
    again.close()
    found = log.verify()
    assert found.wrong == ""
    lines = log.tail(10)[::-1]
    assert [line.entry.revision for line in lines if line.entry.result == "Synced"] == [
        *[f"r{second}" for second in range(3)][2 * dropped :],
        revision,
    ]
    told = [line for line in lines if line.entry.result == "Dropped"]
    assert len(told) == 2 * dropped, "one for each start: an hour passes between two"
    assert all(line.entry.revision == revision for line in told)

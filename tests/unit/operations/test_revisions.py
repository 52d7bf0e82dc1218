"""What two revisions ask for, side by side: every kind is compared."""

from pathlib import Path

import msgspec
import pytest

from reconciler.model import desired
from reconciler.operations import revisions
from tests.unit.desired.repositories import ENVIRONMENT, Repository

POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: p}
spec: {hosts: "n[1-2]", nodes: {cpu: 4, memory: 8Gi}}
"""
ADDED = {
    "Queue": "{limit: {gpu: 4}}",
    "PriorityClass": "{value: 7}",
    "Quota": "{subject: {user: ada@example.org}, resources: {gpu: 1}}",
    "Reservation": '{pools: [p], start: "2027-01-01T00:00:00Z", end: "2027-01-02T00:00:00Z"}',
    "Volume": "{mountPath: /data}",
    "Job": "{command: [echo, hello]}",
}


def document(kind: str, spec: str) -> str:
    return f"apiVersion: muster/v1\nkind: {kind}\nmetadata: {{name: new}}\nspec: {spec}\n"


@pytest.mark.parametrize("kind", ADDED)
def test_what_is_added_is_told(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    repository = Repository(tmp_path / "state.git")
    before = repository.commit({"pool.yaml": POOL})
    after = repository.commit({"new.yaml": document(kind, ADDED[kind])})
    found = revisions.compare(repository.path, "", before, after)
    assert not found.head.status.problems
    assert found.changes == (revisions.Change("add", kind, "new"),)


def test_every_part_of_the_structure_is_compared() -> None:
    """A new kind can't be forgotten: its field makes this fail until it is compared."""
    compared = {"settings", "pools", "queues", "priority_classes", "unix_users"}
    compared |= {"quotas", "reservations", "volumes", "prune", "access"}
    assert {field.name for field in msgspec.structs.fields(desired.Structure)} == compared

"""Somebody without the right is told so before there is a commit."""

from pathlib import Path

import pytest

from reconciler.operations.changes import change_requests, local_changes, targets
from tests.unit.desired.repositories import documents, git, job, queue

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICFJP0+klXZBF7oAvSYXO/L3NJs0fYK/r2SgkhSjdXUZ"
ACCESS = """\
apiVersion: muster/v1
kind: Access
metadata: {name: people}
spec:
  identities:
    - {email: ada@x.org, keys: [{ssh: "KEY"}]}
    - {email: bob@x.org, keys: []}
    - {email: eve@x.org, keys: []}
  roles:
    - name: everything
      members: [ada@x.org]
      allow:
        - {verbs: [change, drain, approve], objects: ["*"]}
        - {verbs: [manage, submit], queues: ["*"]}
    - name: some
      members: [bob@x.org]
      allow: [{verbs: [submit], queues: [vision]}]
"""
CLUSTER = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: main}
spec: {verification: {mode: %s}}
"""
POOL = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: p}
spec: {hosts: n1, nodes: {cpu: 4, memory: 8Gi}}
"""
BOB = change_requests.Submit(job("new", queue="vision", owner="bob@x.org"))
DIGEST = "sdramovcrs6en5cgkcqgp3by4s6j2h15"
#: A change, and who may make it.
CHANGES: dict[str, tuple[change_requests.Change, set[str]]] = {
    "approve": (change_requests.Act("approve", DIGEST), {"ada"}),
    "drain": (change_requests.DrainRequest("drain", ("n1",), "dust"), {"ada"}),
    "suspend": (change_requests.Act("suspend", "queue/vision", "full"), {"ada"}),
    "suspend all": (change_requests.Act("suspend", "cluster", "full"), {"ada"}),
    "hold own": (change_requests.Act("hold", "mine", "later"), {"ada", "bob"}),
    "cancel other's": (change_requests.Act("cancel", "hers"), {"ada"}),
    "submit": (BOB, {"bob"}),
    "submit urgent": (
        change_requests.Submit(job("new", queue="vision", owner="bob@x.org", priority=60)), set()
    ),
    "submit humble": (
        change_requests.Submit(job("new", queue="vision", owner="bob@x.org", priority=40)), {"bob"}
    ),
    "submit elsewhere": (
        change_requests.Submit(job("new", queue="default", owner="ada@x.org")), {"ada"}
    ),
}  # fmt: skip


def _target(work: Path, who: str, mode: str) -> targets.ChangeTarget:
    """A clone in which somebody commits, of a cluster with roles."""
    files = {
        "access.yaml": ACCESS.replace("KEY", KEY),
        "cluster.yaml": CLUSTER % mode,
        "pool.yaml": POOL,
        "queues.yaml": documents(queue("vision"), queue("default")),
        "jobs/mine.yaml": job("mine", queue="vision", owner="bob@x.org"),
        "jobs/hers.yaml": job("hers", queue="vision", owner="ada@x.org"),
    }
    for name, text in files.items():
        (work / name).write_text(text)
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "-m", "people")
    git(work, "push", "--quiet", "origin", "HEAD:main")
    return local_changes.find_target(clone=work, server=None, token_file=None, here=work)


@pytest.mark.parametrize("who", ["ada", "bob", "eve"])
@pytest.mark.parametrize("name", CHANGES)
def test_only_who_may_gets_as_far_as_a_commit(
    name: str, who: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, allowed = CHANGES[name]
    target = _target(work, who, "required")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", f"{who}@x.org")
    before = git(work, "rev-parse", "origin/main")
    if who in allowed:
        (done,) = local_changes.carry_out([change], target)
        assert done.commit
        return
    with pytest.raises(change_requests.ChangeError, match="nothing was committed") as told:
        local_changes.carry_out([change], target)
    assert told.value.refused
    assert git(work, "rev-parse", "HEAD") == git(work, "rev-parse", "origin/main") == before


@pytest.mark.parametrize(
    ("who", "mode"), [("eve@x.org", "off"), ("eve@x.org", "warn"), ("nobody@x.org", "required")]
)
def test_what_may_be_allowed_elsewhere_is_not_refused(
    who: str, mode: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without verification anybody may; an address that nobody knows may sign with a known key."""
    target = _target(work, "eve", mode)
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", who)
    (done,) = local_changes.carry_out([change_requests.Act("hold", "mine", "later")], target)
    assert done.commit

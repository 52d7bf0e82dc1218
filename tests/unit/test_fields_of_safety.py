"""A field that is accepted is honoured, for what a revision may do by itself.

The cases are of the form of ``test_fields_honoured``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.core.safety import sync_limits
from reconciler.desired.documents import revision_limits
from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.rules import recurrence
from reconciler.notifications import messages
from reconciler.operations import permission_check
from reconciler.operations.audit import audit_entries, audit_log, retention
from tests.unit import test_fields_honoured
from tests.unit.test_fields_honoured import Case, Document, Json, Run, job, pool, queue

#: Monday, 13:46:40 UTC: the second at which the world of the tests begins.
EIGHT_GPUS = (
    test_fields_honoured.document("Cluster", "c", {}),
    pool(),
    queue("q"),
    job(resources={"gpu": 1}),
)
ONE_NODE_LESS = pool(count=1)
HALF_THE_GPUS = pool(nodes={"cpu": 4, "memory": "8Gi", "gpus": {"count": 2, "model": "simulated"}})


def held(*left_out: str, other: Document | None = None) -> Callable[[Run, Path], Json]:
    """Which rules hold a revision that lacks objects, or has another pool."""

    def look(run: Run, _: Path) -> Json:
        run.advance(3600)
        documents = [
            other if other is not None and one["kind"] == "NodePool" else one
            for one in run.documents
            if f"{one['kind']}/{one['metadata']['name']}" not in left_out
        ]
        after = test_fields_honoured.read(tuple(documents))
        before = desired.Desired(structure=run.structure, jobs=run.jobs)
        gate = sync_limits.SafetyGate(lambda: run.memory.observed((), {}), lambda: run.now)
        found = gate.judge(before, after, frozenset())
        return sorted({one.rule for one in found.findings})

    return look


def safe(**sync: Json) -> tuple[Document, ...]:
    return (test_fields_honoured.document("Cluster", "c", {"sync": sync}), *EIGHT_GPUS[1:])


class _Blobs:
    """A repository whose blobs are all the same two documents."""

    def blobs(self, ids: list[str]) -> list[bytes]:
        return [b"a: 1\n---\na: 2\n" for _ in ids]


def is_read(run: Run, _: Path) -> Json:
    """Whether a revision of two files with two documents each is read."""
    blobs: Any = _Blobs()
    budget = revision_limits.ReadingBudget(run.structure.settings.revision)
    try:
        return len(budget.read(blobs, ["1", "2"]))
    except revision_limits.RevisionTooLargeError:
        return None


OPEN = {"limits": {"gpuShare": None}}
OVER = ["over-limit"]

TABLE: dict[str, Case] = {
    "Cluster.spec.sync.limits.gpuShare": Case(
        (0.4, 0.6), held(other=HALF_THE_GPUS), (OVER, []), safe(limits={"gpuFloor": 1})
    ),
    "Cluster.spec.sync.limits.gpuFloor": Case(
        (8, 9), held(other=HALF_THE_GPUS), (OVER, []), EIGHT_GPUS
    ),
    "Cluster.spec.sync.limits.gpus": Case(
        (3, 4), held(other=ONE_NODE_LESS), (OVER, []), EIGHT_GPUS
    ),
    "Cluster.spec.sync.limits.queues": Case((0, 1), held("Queue/q"), (OVER, []), EIGHT_GPUS),
    "Cluster.spec.sync.limits.jobs": Case((0, 1), held("Job/j"), (OVER, []), EIGHT_GPUS),
    "Cluster.spec.sync.limits.jobShare": Case(
        (0.5, 1), held("Job/j"), (OVER, []), safe(limits={"jobFloor": 1})
    ),
    "Cluster.spec.sync.limits.jobFloor": Case((1, 2), held("Job/j"), (OVER, []), EIGHT_GPUS),
    "Cluster.spec.sync.limits.gpuHours": Case((0.5, 2), held("Job/j"), (OVER, []), EIGHT_GPUS),
    "Cluster.spec.sync.revision.documents": Case((4, 3), is_read, (2, None), EIGHT_GPUS),
    "Cluster.spec.sync.revision.bytes": Case((28, 27), is_read, (2, None), EIGHT_GPUS),
    "Cluster.spec.sync.approval": Case(
        (["Queue"], ["NodePool/p"]), held("Queue/q"), (["needs-approval"], []), EIGHT_GPUS
    ),
    "Cluster.spec.sync.prune": Case(
        ({"Queue": "confirm"}, {"Queue": "never"}),
        held("Queue/q"),
        (["prune-confirm"], ["prune-never"]),
        EIGHT_GPUS,
    ),
    "Cluster.spec.sync.windows[].kind": Case(
        ("deny", "allow"),
        held(other=ONE_NODE_LESS),
        (["outside-window"], []),
        safe(**OPEN, windows=[{"kind": "deny", "schedule": "0 13 * * *", "duration": "3h"}]),
    ),
    "Cluster.spec.sync.windows[].schedule": Case(
        ("0 13 * * 1", "0 13 * * 2"),
        held(other=ONE_NODE_LESS),
        (["outside-window"], []),
        safe(**OPEN, windows=[{"kind": "deny", "schedule": "0 13 * * *", "duration": "3h"}]),
    ),
    "Cluster.spec.sync.windows[].duration": Case(
        ("3h", "1h"),
        held(other=ONE_NODE_LESS),
        (["outside-window"], []),
        safe(**OPEN, windows=[{"kind": "deny", "schedule": "0 13 * * *", "duration": "3h"}]),
    ),
}

CHAT: Json = {"name": "chat", "kind": "webhook", "url": "https://x.org/h", "secret": "k"}
TOLD = (test_fields_honoured.document("Cluster", "c", {"notifications": [CHAT]}),)
FORGE: Json = {"name": "f", "kind": "github", "repository": "o/r", "secret": "k"}
OF_FORGE = (test_fields_honoured.document("Cluster", "c", {"notifications": [FORGE]}),)
NEWS = messages.Notice("Revision", "held", "a" * 40, "it waits", "2027-01-01T00:00:00Z")


def sent(run: Run) -> messages.HttpPost:
    """What the first channel is sent; what becomes of it is told by ``notices/test_delivery``."""
    made = messages.request(run.structure.settings.notifications[0], NEWS, "secret", 1.0)
    assert made is not None
    return made


#: What becomes of it is told by ``server/test_housekeeping``.
KEPT = (test_fields_honoured.document("Cluster", "c", {"retention": {"files": {}}}),)
ALL: Json = {**CHAT, "on": ["job-failed", "node-lost"]}
OF_ALL = (test_fields_honoured.document("Cluster", "c", {"notifications": [ALL]}),)


def files(run: Run) -> desired.FileRetention:
    """When files of jobs leave the repository."""
    found = run.structure.settings.retain_files
    assert found is not None
    return found


def audited(run: Run, folder: Path) -> Json:
    """How many lines of a log of a hundred days leave it."""
    keep_s = run.structure.settings.retain_audit_s
    assert keep_s is not None
    log = audit_log.Log(folder / audit_log.FILE, part_bytes_max=1)
    for day in (0, 50, 100):
        log.append(audit_entries.AuditEntry(at=day * 86_400.0, revision="r", result="Synced"))
    while retention.drop(log, keep_s=keep_s, now=100 * 86_400.0, revision="r"):
        pass
    found = log.verify().anchor
    return found.entry.dropped.last if found is not None and found.entry.dropped else 0


def chosen(reason: messages.Reason, **about: str) -> Callable[[Run, Path], Json]:
    """Whether the first channel is told of something."""
    notice = messages.Notice("Job/j", reason, "r", "m", "t", about=about)

    def look(run: Run, _: Path) -> Json:
        return messages.is_wanted(run.structure.settings.notifications[0], notice)

    return look


TABLE |= {
    "Cluster.spec.notifications[].name": Case(
        ("one", "two"),
        lambda run, _: msgspec.json.decode(sent(run).body)["channel"],
        ("one", "two"),
        TOLD,
    ),
    "Cluster.spec.notifications[].kind": Case(
        ("github", "gitlab"),
        lambda run, _: sent(run).url,
        (
            f"https://api.github.com/repos/o/r/statuses/{NEWS.revision}",
            f"https://gitlab.com/api/v4/projects/o%2Fr/statuses/{NEWS.revision}",
        ),
        OF_FORGE,
    ),
    "Cluster.spec.notifications[].secret": Case(
        ("k", "other"),
        lambda run, _: run.structure.settings.notifications[0].secret,
        ("k", "other"),
        TOLD,
    ),
    "Cluster.spec.notifications[].url": Case(
        ("https://a.org/x", "http://127.0.0.1:1/y"),
        lambda run, _: sent(run).url,
        ("https://a.org/x", "http://127.0.0.1:1/y"),
        TOLD,
    ),
    "Cluster.spec.notifications[].repository": Case(
        ("o/r", "o/s"),
        lambda run, _: sent(run).url.split("/")[5],
        ("r", "s"),
        OF_FORGE,
    ),
    "Cluster.spec.notifications[].on": Case(
        (["held"], ["applied"]),
        lambda run, _: list(run.structure.settings.notifications[0].on),
        (["held"], ["applied"]),
        TOLD,
    ),
    "Cluster.spec.notifications[].queues": Case(
        (["a-*"], ["b"]), chosen("job-failed", queue="a-1"), (True, False), OF_ALL
    ),
    "Cluster.spec.notifications[].owners": Case(
        (["a@*"], ["b@x"]), chosen("job-failed", owner="a@x"), (True, False), OF_ALL
    ),
    "Cluster.spec.notifications[].pools": Case(
        (["h*"], ["a"]), chosen("node-lost", pool="h200"), (True, False), OF_ALL
    ),
    # what that lets begin is told by ``core/test_ephemeral_jobs``
    "Cluster.spec.ephemeral": Case(
        ("forbidden", "allowed"),
        lambda run, _: run.structure.settings.ephemeral,
        (False, True),
        KEPT,
    ),
    "Cluster.spec.retention.files.after": Case(
        ("1d", "2w"),
        lambda run, _: files(run).after_s,
        (86_400, 1_209_600),
        KEPT,
    ),
    "Cluster.spec.retention.files.schedule": Case(
        ("0 4 * * *", "30 4 * * *"),
        lambda run, _: recurrence.newest_start(files(run).schedule, 0.0, 86_400.0),
        (4 * 3600, 4.5 * 3600),
        KEPT,
    ),
    "Cluster.spec.retention.audit": Case(("30d", "365d"), audited, (2, 0), KEPT),
    "Cluster.spec.retention.files.identity": Case(
        ("a@x.org", "b@x.org"), lambda run, _: files(run).identity, ("a@x.org", "b@x.org"), KEPT
    ),
}

BOB = "bob@example.org"
RULE: Json = {"verbs": ["submit"], "queues": ["default"], "objects": ["Queue"]}
ROLE: Json = {"name": "role", "members": ["group:g"], "allow": [RULE]}
ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPm0bTgUaYWVSMX0qJ5mjyPyPbDUpiKkQa6ri4YPSxCK"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJQBxIzGVwlfVYSlXC3tWGyqDaGm/ZoScwFjCBs3hSxN"
ONE: Json = {"email": BOB, "groups": ["g"], "keys": [{"ssh": ED25519}]}
PEOPLE = (
    test_fields_honoured.document("Access", "people", {"identities": [ONE], "roles": [ROLE]}),
    pool(),
    queue("q"),
)


def put_verb(whole: Document, verb: str) -> Document:
    """The documents with another verb allowed."""
    return test_fields_honoured.put(whole, "spec.roles[].allow[].verbs", [verb])


def may(verb: str, subject: str) -> Callable[[Run, Path], Json]:
    """What ``muster access can`` answers for one person."""
    return lambda run, _: permission_check.can(run.structure, BOB, verb, subject).allowed


def may_say(priority: access.JobPriority) -> Callable[[Run, Path], Json]:
    """Whether one person may submit a job of a priority."""
    return lambda run, _: access.of_priority(run.structure.access, BOB, priority, "default").allowed


def key(field: str) -> Callable[[Run, Path], Json]:
    """The first key; which commits it signs is told by ``test_provenance``."""
    return lambda run, _: getattr(run.structure.access.identities[BOB].keys[0], field)


GPG = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
IDENTITY = "Access.spec.identities[]"
#: Somebody who can sign: without anybody signatures are not required of anybody.
SIGNS = test_fields_honoured.document(
    "Access", "signs", {"identities": [{"email": BOB, "keys": [{"ssh": ED25519}]}]}
)
TABLE |= {
    "Cluster.spec.verification.mode": Case(
        ("off", "required"),
        lambda run, _: run.structure.settings.verification,
        ("off", "required"),
        (*EIGHT_GPUS, SIGNS),
    ),
    f"{IDENTITY}.groups": Case(
        (["g"], ["h"]), may("submit", "Queue/default"), (True, False), PEOPLE
    ),
    f"{IDENTITY}.keys[].ssh": Case(
        (ED25519, OTHER),
        key("text"),
        (ED25519, OTHER),
        PEOPLE,
    ),
    f"{IDENTITY}.keys[].validBefore": Case(
        ("1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"), key("valid_before"), (1, 2), PEOPLE
    ),
    f"{IDENTITY}.acts": Case(
        ("self", "author"),
        lambda run, _: run.structure.access.identities[BOB].acts,
        ("self", "author"),
        PEOPLE,
    ),
    "Access.spec.roles[].name": Case(
        ("one", "other"),
        lambda run, _: permission_check.can(run.structure, BOB, "submit", "Queue/default").why,
        (
            "the role one allows submit on Queue/default",
            "the role other allows submit on Queue/default",
        ),
        PEOPLE,
    ),
    "Access.spec.roles[].members": Case(
        ([BOB], ["eve"]), may("submit", "Queue/default"), (True, False), PEOPLE
    ),
    "Access.spec.roles[].allow[].verbs": Case(
        (["submit"], ["drain"]), may("submit", "Queue/default"), (True, False), PEOPLE
    ),
    "Access.spec.roles[].allow[].queues": Case(
        (["def*"], ["q"]), may("submit", "Queue/default"), (True, False), PEOPLE
    ),
    "Access.spec.roles[].allow[].maxPriority": Case(
        (69, 70), may_say(access.JobPriority(70)), (False, True), PEOPLE
    ),
    "Access.spec.roles[].allow[].priorityClasses": Case(
        (["calm"], ["urg*"]), may_say(access.JobPriority(None, "urgent")), (False, True), PEOPLE
    ),
    "Access.spec.roles[].allow[].owners": Case(
        (["eve*"], ["adam*"]),
        may("impersonate", "eve@example.org"),
        (True, False),
        (put_verb(PEOPLE[0], "impersonate"), *PEOPLE[1:]),
    ),
    "Access.spec.roles[].allow[].objects": Case(
        (["NodePool"], ["Queue"]),
        may("change", "NodePool/p"),
        (True, False),
        (put_verb(PEOPLE[0], "change"), *PEOPLE[1:]),
    ),
}
TABLE_OF_PROBLEMS: dict[str, tuple[tuple[Json, Json], tuple[Json, Json], tuple[Document, ...]]] = {
    f"{IDENTITY}.keys[].gpg": (
        (GPG, "x"),
        ([], [("bad-key", "Access/people")]),
        (
            test_fields_honoured.document(
                "Access", "people", {"identities": [{"email": BOB, "keys": [{}]}]}
            ),
        ),
    ),
}


@pytest.mark.parametrize("field", TABLE_OF_PROBLEMS)
def test_two_values_are_judged_differently(field: str) -> None:
    values, seen, (target, *others) = TABLE_OF_PROBLEMS[field]
    for value, expected in zip(values, seen, strict=True):
        chosen = test_fields_honoured.put(target, field.split(".", 1)[1], value)
        assert test_fields_honoured.problems((chosen, *others)) == expected


@pytest.mark.parametrize("field", TABLE)
@pytest.mark.parametrize("which", [0, 1])
def test_two_values_make_a_difference(field: str, which: int, tmp_path: Path) -> None:
    test_fields_honoured.check_difference(field, TABLE[field], which, tmp_path)


def test_a_window_that_is_no_schedule_is_a_mistake() -> None:
    (cluster, *others) = safe(windows=[{"kind": "deny", "schedule": "0 25 * * *", "duration": 1}])
    assert test_fields_honoured.problems((cluster, *others)) == [("bad-schedule", "Cluster/c")]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("Queu", "; did you mean Queue?"),
        ("cluster", "; did you mean Cluster?"),
        ("Clusters/main", "; did you mean Cluster?"),
        ("Job", ""),
        ("/main", ""),
    ],
)
def test_approval_of_a_kind_that_there_is_not_is_a_mistake(pattern: str, hint: str) -> None:
    (cluster, *others) = safe(approval=["Q*", pattern])
    problems = [
        p
        for p in test_fields_honoured.read((cluster, *others)).status.problems
        if p.severity == "error"
    ]
    assert [(p.rule, p.object) for p in problems] == [("no-such-kind", "Cluster/c")]
    assert f"it matches nothing{hint}" in problems[0].message
    assert problems[0].found == f'"{pattern}"'

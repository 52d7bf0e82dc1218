"""What is only missing because something else is wrong is not told beside it."""

import base64

import pytest

from reconciler.desired.apply import structure
from reconciler.desired.documents import document_reader

QUEUE = "kind: Queue\nmetadata: {name: research}\nspec: {limit: {gpu%s: 6}}\n"
CHILD = "kind: Queue\nmetadata: {name: vision}\nspec: {parent: research}\n"
POOL = "kind: NodePool\nmetadata: {name: h200}\nspec: {hosts%s: n1, nodes: {cpu: 4, memory: 8Gi}}\n"
QUOTA = (
    "kind: Quota\nmetadata: {name: few}\nspec: {subject: {queue: research}, jobs: {running: 3}}\n"
)
FIRM = "kind: Quota\nmetadata: {name: firm}\nspec: {subject: {group: staff}, jobs: {running: 3}}\n"
KEPT = (
    "kind: Reservation\nmetadata: {name: night}\n"
    "spec: {start: '2027-01-01T00:00:00Z', end: '2027-01-02T00:00:00Z', %s}\n"
)
VOLUME = "kind: Volume\nmetadata: {name: data}\nspec: {mountPath: /data, pools: [h200]}\n"
ACCESS = (
    "kind: Access\nmetadata: {name: all}\n"
    "spec: {identities: [{email: a@example.org, groups%s: [staff]}]}\n"
)


def told(*texts: str, opaque: bool = False) -> list[tuple[str, str]] | None:
    """Label and rule of each fault; None where the structure is in force."""
    placed = [
        structure.Placed(f"{number}.yaml", document)
        for number, text in enumerate(texts)
        for document in document_reader.read(f"apiVersion: muster/v1\n{text}".encode()).documents
    ]
    basis, noted = structure.build(placed, opaque=opaque)
    assert (basis is None) == any(fault.severity == "error" for _, fault in noted) or opaque
    return [(item.document.label, fault.rule) for item, fault in noted] if basis is None else None


@pytest.mark.parametrize(
    ("named", "by", "label", "rule"),
    [
        (QUEUE, CHILD, "Queue/vision", "unknown-parent"),
        (QUEUE, QUOTA, "Quota/few", "unknown-queue"),
        (
            QUEUE,
            POOL % "" + "---\napiVersion: muster/v1\n" + KEPT % "hosts: n1, queues: [research]",
            "Reservation/night",
            "unknown-queue",
        ),
        (POOL, VOLUME, "Volume/data", "unknown-pool"),
        (POOL, KEPT % "pools: [h200]", "Reservation/night", "unknown-pool"),
        (POOL, KEPT % "hosts: n1", "Reservation/night", "unknown-host"),
        (ACCESS, FIRM, "Quota/firm", "unknown-group"),
    ],
)
def test_what_is_named_is_missing_only_where_nobody_has_written_it(
    named: str, by: str, label: str, rule: str
) -> None:
    assert told(named % "", by) is None
    assert (label, rule) in (told(by) or [])
    wrong = told(named % "s_", by)
    assert wrong
    assert [one for one in wrong if one[0] == label] == []
    assert told(by, opaque=True) == []


def test_a_pool_answers_for_its_own_hosts_whatever_others_say() -> None:
    own = POOL.replace("h200", "a100").replace(
        "spec: {", "spec: {overrides: [{hosts: n7, reason: old}], "
    )
    found = told(POOL % "s_", own % "")
    assert found is not None
    assert ("NodePool/a100", "unknown-host") in found


def test_hosts_of_a_reservation_are_told_to_be_of_no_pool() -> None:
    text = f"apiVersion: muster/v1\n{KEPT}" % 'hosts: "x[1-3]"'
    placed = [
        structure.Placed("r.yaml", one) for one in document_reader.read(text.encode()).documents
    ]
    _, noted = structure.build(placed, opaque=False)
    assert [(fault.message, fault.found) for _, fault in noted] == [
        ("these nodes are of no NodePool: correct the names or remove them", '"x[1-3]"')
    ]


KEY = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(32)).decode()
REQUIRED = "kind: Cluster\nmetadata: {name: c}\nspec: {verification: {mode: %s}}\n"
ROLES = "[{name: few, members: [a@example.org], allow: [{verbs: [change], objects: [%s]}]}]"


def people(*, keys: str = f"[{{ssh: {KEY}}}]", acts: str = "self", roles: str = "[]") -> str:
    return (
        "kind: Access\nmetadata: {name: people}\nspec:\n  identities:\n"
        f"    - {{email: a@example.org, keys: {keys}, acts: {acts}}}\n  roles: {roles}\n"
    )


@pytest.mark.parametrize(
    ("texts", "fits"),
    [
        ([REQUIRED % "required"], False),
        ([REQUIRED % "warn"], True),
        ([REQUIRED % "required", people()], True),
        ([REQUIRED % "required", people(keys="[]")], False),
        ([REQUIRED % "required", people(acts="submitter")], False),
        ([REQUIRED % "required", people(acts="author")], True),
        ([REQUIRED % "required", people(roles=ROLES % "Queue")], False),
        ([REQUIRED % "required", people(roles=ROLES % "Cluster")], True),
        ([REQUIRED % "required", people(roles=ROLES % "Access/people")], True),
    ],
)
def test_signatures_are_required_where_somebody_can_sign(texts: list[str], *, fits: bool) -> None:
    """Else nobody could ever take it back: not by a commit."""
    assert told(*texts) == (None if fits else [("Cluster/c", "nobody-signs")])

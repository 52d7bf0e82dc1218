"""Who may do what over the API: what the right is asked for is what is acted upon."""

from collections.abc import Iterator, Mapping
from typing import get_args

import msgspec
import pytest

from reconciler.desired.apply import validate
from reconciler.desired.documents import document_reader
from reconciler.model import desired
from reconciler.model.policy import access
from reconciler.model.state import records
from reconciler.operations.changes import remote_changes, suspension
from reconciler.operations.views import stored_views
from reconciler.server import errors
from reconciler.server.auth import authorization, tokens
from reconciler.store import CycleExtras, Store, StoreReader
from tests.unit.desired.repositories import job
from tests.unit.store import samples

ACCESS = """\
apiVersion: muster/v1
kind: Cluster
metadata: {name: main}
---
apiVersion: muster/v1
kind: Access
metadata: {name: people}
spec:
  identities:
    - {email: kind@x.org, keys: []}
    - {email: every@x.org, keys: []}
    - {email: pool@x.org, keys: []}
    - {email: cluster@x.org, keys: []}
    - {email: queue@x.org, keys: []}
    - {email: none@x.org, keys: []}
  roles:
    - {name: a, members: [kind@x.org], allow: [{verbs: [drain], objects: [NodePool]}]}
    - {name: b, members: [every@x.org], allow: [{verbs: [change], objects: ["NodePool/*"]}]}
    - name: c
      members: [pool@x.org]
      allow: [{verbs: [drain], objects: [NodePool/cpu, "NodePool/[!c]*", "NodePool/?*"]}]
    - {name: d, members: [cluster@x.org], allow: [{verbs: [change], objects: [Cluster]}]}
    - {name: e, members: [queue@x.org], allow: [{verbs: [change], objects: [Queue/research]}]}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: research}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: cpu}
spec: {hosts: "n[1-2]", provisioner: static, nodes: {cpu: 4, memory: 8Gi}}
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreReader]:
    """``n1`` is of a pool in force; ``left`` is known, and no pool in force declares it."""
    wanted = validate.check({"a.yaml": ACCESS.encode()})
    assert not [one for one in wanted.status.problems if one.severity == "error"]
    status = msgspec.structs.replace(wanted.status, structure_revision="abc")
    wanted = msgspec.structs.replace(wanted, status=status)
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('store') / 'store.db'}")
    store.commit(
        store.lead("tests", 1000.0),
        1,
        samples.cycle(nodes=[samples.node("n1"), samples.node("left")]),
        CycleExtras(views=stored_views.desired_views(wanted)),
    )
    try:
        yield store.reader
    finally:
        store.close()


def why_not(reader: StoreReader, who: str, verb: remote_changes.Verb, name: str) -> str:
    """Why somebody with a user's token may not do something; empty where it is allowed."""
    change = remote_changes.SubmittedDocument(verb, who, name, reason="smoke")
    caller = tokens.Caller(f"{who}@x.org", "user")
    return authorization.refusals(reader, caller, [change]).get(0, "")


@pytest.mark.parametrize("verb", ["drain", "undrain"])
@pytest.mark.parametrize(
    ("who", "in_force", "elsewhere"),
    [
        ("kind", True, True),
        ("every", True, True),
        ("pool", True, False),  # of some pools by their names, and it is in none of them
        ("cluster", False, False),
        ("none", False, False),
        ("stranger", False, False),
    ],
)
def test_nodes_of_no_pool_in_force_take_the_right_to_all_pools(
    reader: StoreReader, verb: remote_changes.Verb, who: str, *, in_force: bool, elsewhere: bool
) -> None:
    told = why_not(reader, who, verb, "n1")
    assert (told == "") is in_force, told
    assert in_force or "drain on NodePool/cpu" in told or "is not an identity in Access" in told
    # a list of hosts names no node, whatever hosts are in it
    for name, known in (("left", True), ("gone", False), ("n[1-2]", False), ("N1", False)):
        told = why_not(reader, who, verb, name)
        assert (told == "") is elsewhere, (name, told)
        if not elsewhere:
            assert "is in no pool in force, so draining it needs" in told
            assert ("there is no Node/" in told) is not known


@pytest.mark.parametrize("verb", ["suspend", "resume"])
@pytest.mark.parametrize(
    ("name", "canonical", "cluster", "queue"),
    [
        ("cluster", "cluster", True, False),
        ("Cluster", "cluster", True, False),
        ("cluster/", "cluster", True, False),
        ("queue/research", "queue/research", False, True),
        ("Queue/research", "queue/research", False, True),
        ("QUEUE/research", "queue/research", False, True),
        ("queue/Research", "queue/Research", False, False),
        ("queue//research", "queue//research", False, False),
    ],
)
def test_a_queue_is_a_queue_however_it_is_written(
    reader: StoreReader,
    verb: remote_changes.Verb,
    name: str,
    canonical: str,
    *,
    cluster: bool,
    queue: bool,
) -> None:
    assert authorization.canonical_names(verb, [name]) == [canonical]
    assert suspension.parse(canonical) == suspension.parse(name)
    for who, allowed in (("cluster", cluster), ("queue", queue), ("none", False)):
        told = why_not(reader, who, verb, name)
        assert (told == "") is allowed, (who, told)


@pytest.mark.parametrize("name", ["job/a", "queue", "queue/", "cluster/main", "", "pool/cpu"])
def test_what_can_not_be_suspended_is_refused_before_any_right_is_asked(
    reader: StoreReader, name: str
) -> None:
    with pytest.raises(errors.Failure, match="expected cluster, queue/NAME") as refused:
        authorization.canonical_names("suspend", ["cluster", name])
    assert refused.value.status == 400
    assert "expected cluster, queue/NAME" in why_not(reader, "cluster", "suspend", name)


@pytest.mark.parametrize("verb", ["submit", *get_args(remote_changes.ChangeVerb)])
def test_no_verb_is_for_who_has_no_role(reader: StoreReader, verb: remote_changes.Verb) -> None:
    """Whatever nobody can tell the owner of is not for everybody."""
    for name in ("n1", "left", "queue/research", "cluster", "train", ""):
        assert why_not(reader, "none", verb, name), (verb, name)


KEYS = {
    None: "this controller has no --signing-key",
    "": "",
    "ssh-ed25519 ours": "",
    "ssh-ed25519 old": "was valid until 2026-01-01T00:00:00.000Z by the Access in force",
    "ssh-ed25519 renewed": "",
    "ssh-ed25519 other": "ssh-ed25519 other, is nobody's in the Access in force",
}


@pytest.mark.parametrize(("key", "said"), KEYS.items())
def test_what_the_controller_signs_in_vain_is_refused_before_it_is_committed(
    key: str | None, said: str
) -> None:
    def listed(text: str, until: float | None = None) -> access.Key:
        return access.Key("ssh", f"ssh-ed25519 {text}", until)

    old, soon = 1767225600.0, 1798761600.0  # the beginning of 2026, and its end
    people = {
        "muster": access.Identity("muster", (), (listed("ours"), listed("old", old)), "submitter"),
        "other": access.Identity("other", (), (listed("renewed", soon),), "submitter"),
    }
    structure = desired.Structure(
        access=access.Access(people), settings=desired.ClusterSettings(verification="required")
    )
    bodies = {stored_views.STRUCTURE: msgspec.msgpack.encode(structure)}
    change = remote_changes.SubmittedDocument("submit", "a@x.org", "train")
    found = authorization.uncommittable(Views(bodies), [change], key=key, now=1780000000.0)
    assert list(found) == ([0] if said else [])
    assert said in found.get(0, "")
    assert not said or found[0].endswith("commit it yourself, signed, in a clone (--clone)")


PEOPLE = access.Access(
    {f"{who}@x.org": access.Identity(f"{who}@x.org") for who in ("ada", "bob", "eve")},
    (
        access.Role("own", ("bob@x.org",), (access.AccessRule(("submit",), ("research",)),)),
        access.Role("all", ("ada@x.org",), (access.AccessRule(("manage",), ("*",)),)),
    ),
)


@pytest.mark.parametrize(
    ("number", "class_name", "allowed"),
    [(None, None, True), (50, None, True), (51, None, False), (None, "urgent", True)],
)
def test_a_submission_above_the_cap_is_refused(
    number: int | None, class_name: str | None, *, allowed: bool
) -> None:
    queues = {"research": desired.Queue("research")}
    structure = desired.Structure(queues=queues, access=PEOPLE)
    reader = Views(stored_views.desired_views(in_force(structure)), None)
    change = remote_changes.SubmittedDocument(
        "submit",
        "bob@x.org",
        "train",
        queue="research",
        owner="bob@x.org",
        priority=access.JobPriority(number, class_name),
    )
    told = authorization.refusals(reader, tokens.Caller("bob@x.org", "user"), [change])
    assert (told == {}) is allowed
    assert allowed or "allows submit on priority: 51 in Queue/research" in told[0]


BOBS, ADAS = ("research", "bob@x.org"), ("ops", "ada@x.org")


def document(queue: str, owner: str) -> str:
    return job("train", queue=queue, owner=owner)


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "rerun", "prune"])
@pytest.mark.parametrize(
    ("record", "written", "allowed"),
    [
        (None, [document(*BOBS)], True),
        (ADAS, [document(*BOBS)], True),  # of her run the record tells, and of no document
        (BOBS, [document(*ADAS)], False),
        (BOBS, [document("ops", "bob@x.org")], False),
        (BOBS, [document("research", "ada@x.org")], False),
        (BOBS, [document(*BOBS), document(*ADAS)], False),
        # what can't be read is whose it was
        (BOBS, [document(*BOBS).replace("command", "comand")], True),
        (ADAS, [document(*BOBS).replace("command", "comand")], False),
        (ADAS, [document(*BOBS), document(*BOBS).replace("command", "comand")], False),
        (None, [document(*BOBS).replace("command", "comand")], False),
        (BOBS, [], True),
        (None, [], False),
    ],
)
def test_a_job_is_whose_its_documents_say_at_the_commit(
    verb: remote_changes.ChangeVerb,
    record: tuple[str, str] | None,
    written: list[str],
    *,
    allowed: bool,
) -> None:
    queues = {name: desired.Queue(name) for name in ("research", "ops")}
    reader = Views(
        stored_views.desired_views(in_force(desired.Structure(queues=queues, access=PEOPLE))),
        None if record is None else samples.job(queue=record[0], owner=record[1]),
    )
    found = tuple(one for text in written for one in document_reader.read(text.encode()).documents)
    asked = {who: remote_changes.SubmittedDocument(verb, f"{who}@x.org", "train") for who in WHO}
    told = {who: authorization.at_commit(reader, one, found) for who, one in asked.items()}
    assert (told["bob"] == "") is allowed, told["bob"]
    assert told["eve"]
    assert bool(told["ada"]) is (record is None and not any("command:" in one for one in written))
    above = msgspec.structs.replace(asked["eve"], above=True)
    assert authorization.at_commit(reader, above, found) == ""


WHO = ("ada", "bob", "eve")


def in_force(structure: desired.Structure) -> desired.Desired:
    status = desired.SyncStatus(structure_revision="abc")
    return desired.Desired(structure=structure, status=status)


def test_what_was_allowed_when_it_was_asked_is_judged_again_at_the_commit() -> None:
    """Somebody's role may have gone while the change waited for its commit."""
    queues = {"research": desired.Queue("research")}
    bodies = stored_views.desired_views(in_force(desired.Structure(queues=queues, access=PEOPLE)))
    reader = Views(dict(bodies))
    caller = tokens.Caller("bob@x.org", "user")
    asked = remote_changes.SubmittedDocument(
        "submit", caller.name, "train", queue="research", owner=caller.name
    )
    assert authorization.early_refusals(reader, caller, [asked]) == {}
    assert authorization.at_commit(reader, asked, ()) == ""
    later = access.Access(PEOPLE.identities, PEOPLE.roles[1:])
    bodies = stored_views.desired_views(in_force(desired.Structure(queues=queues, access=later)))
    told = authorization.at_commit(Views(dict(bodies)), asked, ())
    assert "no role of bob@x.org allows submit on Queue/research" in told


@pytest.mark.parametrize("verb", sorted(authorization.OF_DOCUMENTS))
def test_who_may_change_no_job_is_told_so_before_one_is_looked_for(
    verb: remote_changes.Verb,
) -> None:
    queues = {"research": desired.Queue("research")}
    bodies = stored_views.desired_views(in_force(desired.Structure(queues=queues, access=PEOPLE)))
    empty = stored_views.desired_views(desired.Desired())
    for who, role, of, told in (
        ("eve", "user", bodies, "no role of eve@x.org allows submit on any queue"),
        ("ada", "user", bodies, ""),  # it may be hers
        ("bob", "user", bodies, ""),
        ("eve", authorization.ADMIN, bodies, ""),
        ("ada", "user", empty, authorization.NOTHING_IN_FORCE),
    ):
        caller = tokens.Caller(f"{who}@x.org", role)
        asked = [remote_changes.SubmittedDocument(verb, caller.name, name) for name in ("a", "b")]
        found = authorization.early_refusals(Views(dict(of)), caller, asked)
        assert [found.get(position, "").startswith(told) for position in (0, 1)] == [True] * 2
        assert bool(found) is bool(told), (who, found)


class Views:
    """A store that has nothing but views, and one job."""

    def __init__(self, bodies: Mapping[str, bytes], job: records.JobRecord | None = None) -> None:
        self._bodies = bodies
        self._job = job

    def view(self, name: str) -> bytes | None:
        return self._bodies.get(name)

    def job(self, name: str) -> records.JobRecord | None:
        return self._job

    def node(self, name: str) -> records.NodeRecord | None:
        raise AssertionError(name)


ROBOT = access.AccessRule(("impersonate",), owners=("b*@x.org",))


@pytest.mark.parametrize(
    ("rules", "who", "owner", "allowed"),
    [
        # nobody acts as somebody else by default: neither without roles nor by `manage`
        (None, "ada", "bob@x.org", False),
        (None, "ada", "ada@x.org", True),
        (None, "ada", "", True),
        ((), "ada", "bob@x.org", False),
        ((), "ada", "ada@x.org", True),
        ((ROBOT,), "ada", "bob@x.org", True),
        ((ROBOT,), "ada", "eve@x.org", False),
        ((ROBOT,), "bob", "ada@x.org", False),
        ((ROBOT,), "eve", "bob@x.org", False),
    ],
)
def test_acting_as_somebody_else_takes_a_right_of_its_own(
    rules: tuple[access.AccessRule, ...] | None, who: str, owner: str, *, allowed: bool
) -> None:
    known = access.Access(PEOPLE.identities)
    if rules is not None:
        known = PEOPLE.merged(access.Access(roles=(access.Role("robot", ("ada@x.org",), rules),)))
    structure = desired.Structure(queues={"research": desired.Queue("research")}, access=known)
    reader = Views(stored_views.desired_views(in_force(structure)))
    name = f"{who}@x.org"
    asked = remote_changes.SubmittedDocument("submit", name, "train", queue="research", owner=owner)
    found = authorization.refusals(reader, tokens.Caller(name, "user"), [asked])
    assert (found == {}) is allowed, found
    assert allowed or owner in found[0]
    assert (authorization.why_not_owner(reader, name, owner) == "") is allowed
    above = tokens.Caller(name, "admin")
    assert authorization.refusals(reader, above, [asked]) == {}

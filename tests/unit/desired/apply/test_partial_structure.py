"""What is refused of a structure stays as it was, alone: nobody can freeze what others change."""

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.desired.apply import applied, last_good, loader, partial_structure
from reconciler.model import desired
from tests.unit.desired import signing
from tests.unit.desired.apply.test_applied import changes, read
from tests.unit.desired.authorize import test_provenance
from tests.unit.desired.authorize.test_provenance import Keys, access, base, cluster, pool
from tests.unit.desired.loaders import Make, restarted
from tests.unit.desired.repositories import Repository, documents, job, queue

make, keys = test_provenance.make, test_provenance.keys
Files = Mapping[str, str | None]

QUOTA = (
    "apiVersion: muster/v1\nkind: Quota\nmetadata: {name: few}\n"
    "spec: {subject: {queue: q}, jobs: {running: 3}}\n"
)
POLICY = (
    "apiVersion: muster/v1\nkind: Policy\nmetadata: {name: limited}\n"
    "spec: {match: {kinds: [Queue]}, message: say its limit, "
    "schema: {properties: {spec: {required: [limit]}}}}\n"
)


def hosts(name: str, listed: str) -> str:
    return (
        f"apiVersion: muster/v1\nkind: NodePool\nmetadata: {{name: {name}}}\n"
        f"spec: {{hosts: '{listed}', nodes: {{cpu: 4, memory: 8Gi}}}}\n"
    )


def denial(label: str) -> desired.Problem:
    return desired.Problem("not-allowed", "error", "", "nobody with the right", object=label)


def wrong(state: applied.Applied) -> set[str]:
    """The objects of which an error is told."""
    return {p.object for p in state.problems() if p.severity == "error" and p.object}


class Bed:
    """A state with a first revision, to which a second one is applied."""

    def __init__(self, first: Files) -> None:
        self.state = applied.Applied(last_good.LastGood(), read)
        self.files = dict(first)
        assert self.state.apply("1", changes(self.files), {})
        assert not self.state.structure_refused, self.state.problems()

    def apply(self, second: Files, denied: tuple[str, ...] = ()) -> applied.Applied:
        problems = {label: denial(label) for label in denied}
        assert self.state.apply("2", changes(dict(second)), {}, denied=problems)
        self.files |= second
        known = last_good.decode(last_good.encode(self.state.incumbents()))
        again = applied.Applied(known, read)
        assert again.apply("2", changes(self.files), {}, denied=problems)
        assert again.basis == self.state.basis, "a restart changes nothing"
        assert wrong(again) == wrong(self.state)
        return self.state


FIRST = {
    "q.yaml": queue("q", limit="{gpu: 8}"),
    "c.yaml": queue("c", parent="q", guaranteed="{gpu: 2}"),
    "a.yaml": hosts("a", "n[1-2]"),
    "b.yaml": hosts("b", "n[3-4]"),
}
OTHER = {"other.yaml": queue("other")}


@pytest.mark.parametrize(
    ("second", "denied", "told"),
    [
        ({"q.yaml": queue("q", nonsense=1)}, (), {"Queue/q"}),
        ({"q.yaml": "a: [\n"}, (), {"Queue/q"}),
        ({"q.yaml": queue("q", parent="nobody")}, (), {"Queue/q"}),
        ({"q.yaml": None}, ("Queue/q",), {"Queue/q"}),
        ({"new.yaml": queue("new", limit="{gpu: 1, cpu: no}")}, (), {"Queue/new"}),
        ({"new.yaml": documents(queue("new"), queue("new"))}, (), {"Queue/new"}),
        # a new object that needs a refused one
        (
            {"p.yaml": queue("p", nonsense=1), "x.yaml": queue("x", parent="p")},
            (),
            {"Queue/p", "Queue/x"},
        ),
        ({"p.yaml": queue("p"), "x.yaml": queue("x", parent="p")}, ("Queue/p",), {"Queue/p",
         "Queue/x"}),
        # what others need does not leave
        ({"q.yaml": None}, (), {"Queue/q"}),
        # a host that moves from a pool that stays
        ({"a.yaml": hosts("a", "n1"), "b.yaml": hosts("b", "n[2-4]")}, ("NodePool/a",),
         {"NodePool/a", "NodePool/b"}),
        ({"a.yaml": hosts("a", "n1"), "b.yaml": hosts("b", "n[2-4]")}, ("NodePool/b",),
         {"NodePool/b"}),
        # a queue that is guaranteed more than the one above it has
        ({"q.yaml": queue("q", limit="{gpu: 1}")}, (), {"Queue/q"}),
        ({"c.yaml": queue("c", parent="q", guaranteed="{gpu: 9}")}, (), {"Queue/c"}),
        # a policy that what is in force violates
        ({"policy.yaml": POLICY}, (), {"Policy/limited"}),
        # a renamed object, and a mistake in it
        ({"a.yaml": hosts("aa", "n[1-2")}, (), {"NodePool/a", "NodePool/aa"}),
    ],
)  # fmt: skip
def test_all_else_applies(second: Files, denied: tuple[str, ...], told: set[str]) -> None:
    bed = Bed(FIRST)
    before = bed.state.basis.structure
    state = bed.apply({**OTHER, **second}, denied)
    after = state.basis.structure
    assert wrong(state) == told
    assert state.structure_refused
    assert state.structure_revision == "1"
    assert "other" in after.queues
    for name in before.queues:
        if f"Queue/{name}" in told:
            assert after.queues[name] == before.queues[name]
    for name in before.pools:
        if f"NodePool/{name}" in told:
            assert after.pools[name] == before.pools[name]
    assert not {"new", "x", "p"} & after.queues.keys()
    assert not after.policies


def test_what_is_mended_applies_and_what_was_refused_leaves_no_trace() -> None:
    bed = Bed(FIRST)
    bed.apply({"q.yaml": queue("q", nonsense=1), **OTHER})
    state = bed.apply({"q.yaml": queue("q", limit="{gpu: 9}")})
    assert not state.structure_refused
    assert state.problems() == ()
    assert state.structure_revision == "2"


def test_nothing_applies_of_a_first_structure_with_errors() -> None:
    """The Cluster could be what is missing, and with it who may do what."""
    state = applied.Applied(last_good.LastGood(), read)
    files: dict[str, str | None] = {"c.yaml": "kind: [", "q.yaml": queue("q", no=1), **OTHER}
    assert state.apply("1", changes(files), {})
    assert set(state.basis.structure.queues) == {"default"}
    assert state.structure_revision is None


@pytest.mark.parametrize("wrong", ["spec: {nonsense: 1}\n", "spec: {lease: soon}\n"])
def test_a_renamed_cluster_with_a_mistake_turns_no_verification_off(keys: Keys, wrong: str) -> None:
    bed = Bed({"access.yaml": access(keys), "cluster.yaml": cluster()})
    text = f"apiVersion: muster/v1\nkind: Cluster\nmetadata: {{name: d}}\n{wrong}"
    state = bed.apply({"cluster.yaml": None, "new.yaml": text, **OTHER})
    assert state.basis.structure.settings.verification == "required"
    assert state.basis.structure.settings.name == "c"
    assert "other" in state.basis.structure.queues


def test_verification_is_not_required_while_the_keys_for_it_are_refused(keys: Keys) -> None:
    bed = Bed({"q.yaml": queue("q")})
    state = bed.apply(
        {"access.yaml": access(keys, "    - nonsense: 1"), "cluster.yaml": cluster(), **OTHER}
    )
    assert state.basis.structure.settings.verification == "off"
    assert {p.object for p in state.problems()} == {"Access/people", "Cluster/c"}
    assert "other" in state.basis.structure.queues


def test_a_queue_in_use_stays_and_what_is_above_it() -> None:
    bed = Bed({**FIRST, "j.yaml": job("j", queue="c")})
    state = bed.apply({"q.yaml": None, "c.yaml": None, "a.yaml": hosts("a", "n1"), **OTHER})
    assert set(state.basis.structure.queues) == {"default", "q", "c", "other"}
    assert len(state.basis.structure.pools["a"].nodes) == 1
    assert wrong(state) == {"Queue/c", "Queue/q"}


# --- who changes what ------------------------------------------------------------------------

BOBS = {
    "pool.yaml": pool(9),
    "evil.yaml": queue("evil"),
    "broken.yaml": queue("broken", nonsense=1),
}


@pytest.fixture
def one(repository: Repository, make: Make, keys: Keys) -> loader.Loader:
    repository.commit(base(keys))
    made = make()
    assert made.load().status.sync == "Synced"
    return made


def test_who_may_not_change_structure_cannot_freeze_it(
    repository: Repository, one: loader.Loader, make: Make, keys: Keys
) -> None:
    repository.commit(BOBS)
    signing.sign(repository, keys["bob"])
    one.load()
    repository.commit({"more.yaml": queue("more"), "q2.yaml": queue("under", parent="more")})
    signing.sign(repository, keys["ada"])
    for value in (one.load(), restarted(make, one).load()):
        assert {"more", "under"} <= value.structure.queues.keys()
        assert not {"evil", "broken"} & value.structure.queues.keys()
        assert len(value.structure.pools["a"].nodes) == 8
        assert {p.object for p in value.status.problems if p.severity == "error"} == {
            *("NodePool/a", "Queue/evil", "Queue/broken")
        }
        assert value.status.sync == "OutOfSync"


def test_one_commit_with_right_and_wrong_of_one_person(
    repository: Repository, one: loader.Loader, keys: Keys
) -> None:
    repository.commit({"more.yaml": queue("more"), "pool.yaml": pool(9), "x.yaml": "kind: [\n"})
    signing.sign(repository, keys["ada"])
    value = one.load()
    assert "more" in value.structure.queues
    assert len(value.structure.pools["a"].nodes) == 9


# --- any set of refused objects --------------------------------------------------------------

NAMES = ("q", "r", "s")
QUEUES = st.one_of(
    st.none(),
    st.builds(
        lambda parent, guaranteed, limit: {
            **({"parent": parent} if parent else {}),
            "guaranteed": f"{{gpu: {guaranteed}}}",
            "limit": f"{{gpu: {limit}}}",
        },
        st.sampled_from(["", *NAMES]),
        st.integers(0, 3),
        st.integers(2, 6),
    ),
)
POOLS = st.none() | st.sampled_from(["n1", "n[1-2]", "n[2-3]", "n4"])
COMMIT = st.fixed_dictionaries(
    {
        **{f"Queue/{name}": QUEUES for name in NAMES},
        **{f"NodePool/{name}": POOLS for name in ("a", "b")},
        "Quota/few": st.booleans(),
    }
)


def texts(commit: Mapping[str, object]) -> Iterator[tuple[str, str | None]]:
    for label, value in commit.items():
        kind, _, name = label.partition("/")
        path = label.replace("/", "-") + ".yaml"
        if kind == "Quota":
            yield path, QUOTA if value else None
        elif isinstance(value, str):
            yield path, hosts(name, value)
        elif isinstance(value, dict):
            yield path, queue(name, **value)
        else:
            yield path, None


@settings(max_examples=150, deadline=None)
@given(COMMIT, COMMIT, st.sets(st.sampled_from(["Queue/q", "Queue/r", "NodePool/a", "Quota/few"])))
def test_the_result_is_that_of_a_commit_without_the_refused_objects(
    first: dict[str, object], second: dict[str, object], refused: set[str]
) -> None:
    start: dict[str, str | None] = {"keep.yaml": queue("keep"), **dict(texts(first))}
    before = applied.Applied(last_good.LastGood(), read)
    assert before.apply("1", changes(start), {})
    if wrong(before):
        return
    state = Bed(start).apply(dict(texts(second)), tuple(refused))
    without = {label: first[label] if label in refused else second[label] for label in second}
    before.apply("2", changes(dict(texts(without))), {})
    if not wrong(before):
        assert state.basis == before.basis
        return
    held = wrong(state) - refused
    assert held, "what stays besides is named"
    once_more = {**without, **{label: first[label] for label in held if label in first}}
    after = Bed(start).apply(dict(texts(once_more)))
    assert after.basis == state.basis


def test_a_structure_that_takes_too_many_tries_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partial_structure, "TRIES_MAX", 1)
    bed = Bed(FIRST)
    before = bed.state.basis
    state = bed.apply({"q.yaml": queue("q", parent="nobody"), **OTHER})
    assert state.basis is before
    assert [p.rule for p in state.problems()] == ["unknown-parent"]

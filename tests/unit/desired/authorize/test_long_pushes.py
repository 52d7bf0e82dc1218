"""A large or a long push stops git for nobody: what comes after it is judged as ever."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from reconciler.desired.apply import revision_in_force
from reconciler.desired.documents import document_reader, revision_limits
from reconciler.desired.git import commit_log
from reconciler.model import desired
from tests.unit.desired import signing, test_broken_trees
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, documents, git, job, queue

NOW = 1_800_000_000.0
Keys = dict[str, signing.Key]
#: More documents than the limit of the revision in force.
LARGE = documents(*(job(f"n{number}", queue="q", owner="eve@x.org") for number in range(40)))
MODES = ("off", "warn", "required")


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    with contextlib.closing(Loaders(repository, lambda: NOW)) as made:
        yield made.make


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    folder = tmp_path_factory.mktemp("keys")
    return {name: signing.Key(folder, name) for name in ("ada", "eve")}


def access(keys: Keys, *names: str) -> str:
    people = "".join(
        f"    - {{email: {name}@x.org, keys: [{keys[name].listed()}]}}\n" for name in names
    )
    return (
        "apiVersion: muster/v1\nkind: Access\nmetadata: {name: people}\nspec:\n  identities:\n"
        f"{people}  roles:\n"
        "    - name: admins\n      members: [ada@x.org]\n      allow:\n"
        '        - {verbs: [change, approve], objects: ["*"]}\n'
        '        - {verbs: [manage], queues: ["*"]}\n'
        '        - {verbs: [impersonate], owners: ["*"]}\n'
        "    - name: people\n      members: [eve@x.org]\n      allow:\n"
        "        - {verbs: [submit], queues: [open]}\n"
    )


def base(keys: Keys, mode: str = "required") -> dict[str, str]:
    return {
        "access.yaml": access(keys, "ada", "eve"),
        "cluster.yaml": (
            "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\nspec:\n"
            f"  verification: {{mode: {mode}}}\n  sync: {{revision: {{documents: 30}}}}\n"
        ),
        "q.yaml": documents(queue("q"), queue("open")),
        "jobs/a.yaml": job("a", queue="q", owner="ada@x.org"),
    }


def pool(count: int) -> str:
    return (
        "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: a}\nspec:\n"
        f"  hosts: a[1-{count}]\n"
        "  nodes: {cpu: 8, memory: 8Gi, gpus: {count: 8, model: H200}}\n"
    )


class Bed:
    """A repository with a loader that has read its first revision."""

    def __init__(self, repository: Repository, make: Make, keys: Keys, mode: str) -> None:
        self.repository, self.keys, self.make = repository, keys, make
        self.first = repository.commit(base(keys, mode))
        self.loader = make()
        self.loader.load()
        assert self.loader.last.status.sync == "Synced"

    def push(
        self,
        files: Mapping[str, str | None],
        who: str = "",
        *,
        branch: str = "main",
        parent: str | None = None,
        merge: str | None = None,
        message: str = "test",
    ) -> str:
        """Commit files, signed by somebody, and return the commit."""
        found = self.repository.commit(
            files, branch=branch, parent=parent, merge=merge, message=message
        )
        return signing.sign(self.repository, self.keys[who]) if who else found

    def flood(
        self, commits: Sequence[Mapping[str, str | None]], onto: str = "refs/heads/main"
    ) -> None:
        """Push many commits at once, which nobody has signed."""
        lines = [
            b"reset refs/heads/flood\nfrom %s^0\n\n"
            % git(self.repository.path, "rev-parse", onto).encode()
        ]
        for files in commits:
            lines.append(
                b"commit refs/heads/flood\ncommitter Eve <eve@x.org> 0 +0000\ndata 5\nflood\n"
            )
            for path, text in files.items():
                data = (text or "").encode()
                lines.append(
                    f"D {path}\n".encode()
                    if text is None
                    else f"M 100644 inline {path}\ndata {len(data)}\n".encode() + data + b"\n"
                )
        git(self.repository.path, "fast-import", "--quiet", "--force", data=b"".join(lines))

    def take_flood(self) -> None:
        """Move the branch to what was pushed."""
        git(self.repository.path, "update-ref", "refs/heads/main", "refs/heads/flood")

    def settle(self, most: int = 20) -> desired.Desired:
        """Look until all commits are judged, and return the last look."""
        for _ in range(most):
            value = self.loader.load()
            if "too-many-commits" not in rules(value):
                return value
            assert self.loader.judge_again_at is not None, "it must go on by itself"
        raise AssertionError(f"it did not get on in {most} looks: {value.status.message}")


def rules(value: desired.Desired) -> list[str]:
    return sorted({problem.rule for problem in value.status.problems})


@pytest.fixture(params=MODES)
def any_mode(request: pytest.FixtureRequest, repository: Repository, make: Make, keys: Keys) -> Bed:
    return Bed(repository, make, keys, request.param)


@pytest.fixture
def bed(repository: Repository, make: Make, keys: Keys) -> Bed:
    """Commits have to be signed."""
    return Bed(repository, make, keys, "required")


# --- one large commit --------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [False, True])
def test_a_revert_of_a_large_commit_is_enough(any_mode: Bed, *, seen: bool) -> None:
    any_mode.push({"large.yaml": LARGE})
    if seen:
        assert rules(any_mode.loader.load()) == ["revision-too-large"]
    any_mode.push({"large.yaml": None}, "ada")
    any_mode.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = any_mode.settle()
    assert (value.status.sync, set(value.jobs)) == ("Synced", {"a", "b"})


def test_a_commit_on_top_that_leaves_it_is_held_and_told_what_to_revert(any_mode: Bed) -> None:
    large = any_mode.push({"large.yaml": LARGE, "small.yaml": job("s", queue="q")})
    any_mode.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = any_mode.loader.load()
    assert rules(value) == ["revision-too-large"]
    assert set(value.jobs) == {"a"}
    for told in (large[:12], "test@example.org", "large.yaml", f"git revert {large[:12]}"):
        assert told in value.status.message


def test_a_head_that_is_too_large_is_read_once(
    any_mode: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_mode.push({"large.yaml": LARGE})
    before = any_mode.loader.load()
    monkeypatch.setattr(revision_limits.ReadingBudget, "read", None)
    after = any_mode.loader.load()
    assert rules(after) == ["revision-too-large"]
    assert after.status.message == before.status.message


def test_what_came_before_it_is_in_force_while_it_is_held(bed: Bed) -> None:
    before = bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    bed.push({"large.yaml": LARGE})
    value = bed.loader.load()
    assert rules(value) == ["revision-too-large"]
    assert (value.status.jobs_revision, set(value.jobs)) == (before, {"a", "b"})


def test_nothing_that_a_large_commit_smuggled_comes_into_force(bed: Bed) -> None:
    """What it leaves in small files is attributed to it, also after a good commit on top."""
    smuggled = documents(queue("q", weight=9), queue("open"))
    large = bed.push({"large.yaml": LARGE, "q.yaml": smuggled, "jobs/e.yaml": job("e", queue="q")})
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    bed.push({"large.yaml": None}, "ada")
    value = bed.settle()
    assert rules(value) == ["unsigned-commit"]
    assert set(value.jobs) == {"a", "b"}
    assert value.structure.queues["q"].weight == 1
    assert {p.object for p in value.status.problems} == {"Queue/q", "Job/e"}
    assert all(large[:12] in p.message for p in value.status.problems)
    # whoever has the right answers for it with a commit that changes it
    bed.push({"q.yaml": documents(queue("q", weight=2), queue("open"))}, "ada")
    bed.push({"jobs/e.yaml": None}, "ada")
    value = bed.settle()
    assert (rules(value), value.structure.queues["q"].weight) == ([], 2)


def test_a_right_that_was_taken_away_meanwhile_stays_away(bed: Bed) -> None:
    """Although the large commit has touched the file, and whoever lost it writes it back."""
    whole = access(bed.keys, "ada", "eve")
    bed.push({"large.yaml": LARGE, "access.yaml": whole + "# eve\n"}, "eve")
    bed.push({"access.yaml": access(bed.keys, "ada")}, "ada")
    bed.push({"large.yaml": None, "access.yaml": whole}, "eve")
    bed.push({"jobs/e.yaml": job("e", queue="open", owner="eve@x.org")}, "eve")
    value = bed.settle()
    assert set(value.jobs) == {"a"}
    assert {p.object for p in value.status.problems} == {"Access/people", "Job/e"}


@pytest.mark.parametrize("who", ["", "eve"])
def test_a_large_commit_that_takes_things_out_takes_nothing_out(bed: Bed, who: str) -> None:
    bed.push({"large.yaml": LARGE, "jobs/a.yaml": None}, who)
    bed.push({"large.yaml": None}, who)
    value = bed.settle()
    assert set(value.jobs) == {"a"}
    assert {p.object for p in value.status.problems} == {"Job/a"}


def test_whoever_changed_a_file_unread_needs_the_right_to_what_is_left(bed: Bed) -> None:
    """A large commit by somebody with the right answers for nothing that nobody has read."""
    smuggled = documents(queue("q", weight=9), queue("open"))
    bed.push({"large.yaml": LARGE, "q.yaml": smuggled}, "eve")
    bed.push({"large.yaml": None, "other.yaml": LARGE, "q.yaml": smuggled + "# ada\n"}, "ada")
    bed.push({"other.yaml": None}, "ada")
    value = bed.settle()
    assert value.structure.queues["q"].weight == 1
    assert {p.object for p in value.status.problems} == {"Queue/q"}


@pytest.mark.parametrize("flooded", [False, True])
def test_nothing_comes_into_force_on_the_way_that_was_not_read(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, *, flooded: bool
) -> None:
    """The revision is small enough, and the change is more than may still be read."""

    def jobs(priority: int) -> str:
        return documents(
            *(job(f"n{n}", queue="q", owner="ada@x.org", priority=priority) for n in range(20))
        )

    bed.push({"jobs/n.yaml": jobs(1)}, "ada")
    bed.settle()
    monkeypatch.setattr(commit_log, "LINE_MAX", 5)
    monkeypatch.setattr(revision_limits, "SMALL_DOCUMENTS", 10)
    monkeypatch.setattr(revision_limits, "WALK_REVISIONS", 0)
    bed.push({"jobs/n.yaml": jobs(9)})
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    bed.push({"jobs/b.yaml": None}, "eve")  # a revision before it would have to be in force
    bed.push({"access.yaml": access(bed.keys, "ada")}, "ada")
    if flooded:
        bed.flood([{"x.yaml": job("e", queue="q", priority=number)} for number in range(20)])
        bed.take_flood()
    applied: list[str] = []
    apply = revision_in_force.RevisionInForce.apply

    def noting(
        self: revision_in_force.RevisionInForce, head: str, *more: Any, **named: Any
    ) -> None:
        apply(self, head, *more, **named)
        applied.append(head)
        assert {one.priority for name, one in self.view().jobs.items() if name != "a"} <= {1}

    monkeypatch.setattr(revision_in_force.RevisionInForce, "apply", noting)
    value = bed.settle()
    assert applied == [git(bed.repository.path, "rev-parse", "main")]
    assert set(value.jobs) == {"a", *(f"n{n}" for n in range(20))}
    assert {value.jobs[f"n{n}"].priority for n in range(20)} == {1}


def test_a_merge_of_such_a_branch_is_what_it_leaves(bed: Bed) -> None:
    side = bed.push({"large.yaml": LARGE}, branch="side", parent=bed.first)
    side = bed.push({"large.yaml": None, "jobs/b.yaml": job("b", queue="q")}, branch="side")
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada", merge=side)
    value = bed.settle()
    assert (value.status.sync, set(value.jobs)) == ("Synced", {"a", "b"})


def test_many_commits_that_are_large_together_can_be_reverted_at_once(bed: Bed) -> None:
    """Each can be read, and their revert can't."""
    for part in range(4):
        texts = [job(f"n{part}-{number}", queue="q") for number in range(12)]
        bed.push({f"{part}.yaml": documents(*texts)})
    assert rules(bed.loader.load()) == ["revision-too-large"]
    bed.push({f"{part}.yaml": None for part in range(4)}, "ada")
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = bed.settle()
    assert (rules(value), set(value.jobs)) == ([], {"a", "b"})


def test_it_goes_on_after_a_restart_too(bed: Bed) -> None:
    bed.push({"large.yaml": LARGE})
    bed.loader.load()
    bed.loader = restarted(bed.make, bed.loader)
    assert rules(bed.loader.load()) == ["revision-too-large"]
    bed.push({"large.yaml": None}, "ada")
    assert bed.settle().status.sync == "Synced"


# --- many commits ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_empty_commits_cost_nobody_anything(
    repository: Repository, make: Make, keys: Keys, mode: str
) -> None:
    bed = Bed(repository, make, keys, mode)
    bed.flood([{}] * 12_000)
    bed.take_flood()
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = bed.loader.load()
    assert (value.status.sync, set(value.jobs)) == ("Synced", {"a", "b"})


def test_an_approval_among_empty_commits_is_found(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "LINE_MAX", 4)
    bed.push({"pool.yaml": pool(8)}, "ada")
    bed.settle()
    bed.push({"pool.yaml": pool(4)}, "ada")
    (held,) = bed.settle().status.held
    bed.flood([{}] * 6)
    bed.take_flood()
    bed.push({}, "ada", message=f"Yes\n\nMuster-Approve: {held.digest}")
    bed.flood([{}] * 6)
    bed.take_flood()
    value = bed.settle()
    assert value.status.held == ()
    assert len(value.structure.pools["a"].nodes) == 4


def test_thousands_of_commits_of_one_file_are_judged_in_portions(bed: Bed) -> None:
    bed.flood([{"jobs/e.yaml": job("e", queue="q", priority=number)} for number in range(12_000)])
    bed.take_flood()
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = bed.loader.load()
    assert rules(value) == ["too-many-commits", "unsigned-commit"]
    assert "goes on by itself" in value.status.message
    assert "eve@x.org" in value.status.message
    value = bed.settle()
    assert set(value.jobs) == {"a", "b"}
    assert rules(value) == ["unsigned-commit"]


@pytest.mark.parametrize("reverted", [False, True])
def test_a_change_hidden_in_the_middle_stays_out(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, *, reverted: bool
) -> None:
    monkeypatch.setattr(commit_log, "LINE_MAX", 10)
    notes: list[Mapping[str, str | None]] = [
        {"notes.yaml": job("e", queue="q", priority=number)} for number in range(60)
    ]
    notes[33] = {"q.yaml": documents(queue("q", weight=9), queue("open"))}
    if reverted:
        notes[44] = {"q.yaml": documents(queue("q"), queue("open"))}
    bed.flood([*notes, {"notes.yaml": None}])
    bed.take_flood()
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = bed.settle()
    assert value.structure.queues["q"].weight == 1
    assert set(value.jobs) == {"a", "b"}
    assert {p.object for p in value.status.problems} == (set() if reverted else {"Queue/q"})


def test_what_counted_in_an_earlier_portion_cannot_be_taken_back(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "LINE_MAX", 5)
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    bed.flood([{"x.yaml": job("e", queue="q", priority=number)} for number in range(20)])
    bed.take_flood()
    bed.push({"jobs/b.yaml": None, "x.yaml": None}, "eve")
    value = bed.settle()
    assert set(value.jobs) == {"a", "b"}


@pytest.mark.parametrize("outer", [False, True])
def test_a_merge_of_a_long_branch(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, *, outer: bool
) -> None:
    """Whether it is merged, or somebody pulled into it and pushed that merge."""
    monkeypatch.setattr(commit_log, "LINE_MAX", 10)
    files: list[Mapping[str, str | None]] = [
        {"x.yaml": job("e", queue="q", priority=number)} for number in range(40)
    ]
    bed.flood([*files, {"x.yaml": None}], onto=bed.first)
    long = git(bed.repository.path, "rev-parse", "refs/heads/flood")
    if outer:  # its first parent does not lead to what is in force
        other = bed.repository.commit({"r": "r"}, root=True, branch="other")
        whole = base(bed.keys) | {"r": None}
        bed.push(whole, branch="other", parent=other, merge=long)
        git(bed.repository.path, "update-ref", "refs/heads/main", "refs/heads/other")
    else:
        bed.push({}, merge=long)
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = bed.settle()
    assert (rules(value), set(value.jobs)) == ([], {"a", "b"})


@pytest.mark.parametrize("empty", [False, True])
def test_a_line_too_long_to_be_listed_is_taken_from_its_beginning(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, *, empty: bool
) -> None:
    monkeypatch.setattr(commit_log, "LINE_MAX", 4)
    monkeypatch.setattr(commit_log, "LISTED_MAX", 9)
    files = [{} if empty else {"x.yaml": job("e", queue="q", priority=n)} for n in range(30)]
    bed.flood(files)
    bed.take_flood()
    bed.push({"x.yaml": None, "jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = bed.settle()
    assert (rules(value), set(value.jobs)) == ([], {"a", "b"})


def test_a_flood_on_top_of_a_large_commit_is_walked_to_its_revert(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "LINE_MAX", 10)
    bed.push({"large.yaml": LARGE})
    bed.flood([{"x.yaml": job("e", queue="q", priority=number)} for number in range(40)])
    bed.take_flood()
    assert rules(bed.loader.load()) == ["revision-too-large"]
    bed.push({"large.yaml": None, "x.yaml": None}, "ada")
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = bed.settle()
    assert (rules(value), set(value.jobs)) == ([], {"a", "b"})


@pytest.mark.parametrize("behind_a_large_one", [False, True])
def test_commits_that_are_large_together_are_read_within_a_bound(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, *, behind_a_large_one: bool
) -> None:
    """Each may be read; all of them at once would take for ever."""
    monkeypatch.setattr(revision_limits, "SMALL_DOCUMENTS", 10)
    parsed: list[bytes] = []
    read = document_reader.read

    def counting(data: bytes) -> document_reader.File:
        parsed.append(data)
        return read(data)

    monkeypatch.setattr(document_reader, "read", counting)
    if behind_a_large_one:
        bed.push({"large.yaml": LARGE})
    sides: list[Mapping[str, str | None]] = [
        {"x.yaml": documents(*(job(f"n{n}", queue="q", priority=p) for n in range(14)))}
        for p in range(60)
    ]
    bed.flood(sides)
    bed.take_flood()
    bed.push({"x.yaml": None, "large.yaml": None}, "ada")
    bed.push({"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    looks = []
    for _ in range(20):
        parsed.clear()
        value = bed.loader.load()
        looks.append(len(parsed))
        if "too-many-commits" not in rules(value):
            break
    assert (rules(value), set(value.jobs)) == ([], {"a", "b"})
    assert max(looks) < 40
    assert (len(looks) > 1) != behind_a_large_one


# --- trees that git would never write ------------------------------------------------------------


def odd(bed: Bed, files: Mapping[str, str | None] | None = None) -> str:
    """Push a commit, unsigned, in whose tree one name stands twice, beside other files."""
    start = bed.push(files or {}, branch="main") if files else "refs/heads/main"
    path = bed.repository.path
    written = [
        ("100644", b"zz.yaml", test_broken_trees.blob(bed.repository, job(name, queue="q")))
        for name in ("one", "other")
    ]
    there = test_broken_trees.entries(bed.repository, start)
    of = test_broken_trees.tree(bed.repository, [*there, *written])
    parent = git(path, "rev-parse", f"{start}^" if files else start)
    return test_broken_trees.commit(bed.repository, of, parent)


def put_right(bed: Bed, files: Mapping[str, str | None], who: str = "ada") -> str:
    """Push a commit behind an odd tree, with all files of before it but some."""
    path = bed.repository.path
    top = git(path, "rev-parse", "main")
    bed.push(files, parent=git(path, "rev-parse", "main^"), branch="aside")
    of = git(path, "rev-parse", "aside^{tree}")
    test_broken_trees.commit(bed.repository, of, top)
    return signing.sign(bed.repository, bed.keys[who])


B = {"jobs/b.yaml": job("b", queue="q", owner="ada@x.org")}


@pytest.mark.parametrize("seen", [False, True])
def test_a_revert_of_an_odd_tree_is_enough(any_mode: Bed, *, seen: bool) -> None:
    any_mode.push(B, "ada")
    odd(any_mode)
    if seen:
        value = any_mode.loader.load()
        assert (rules(value), set(value.jobs)) == (["broken-tree"], {"a", "b"})
    put_right(any_mode, {})
    any_mode.push({"jobs/c.yaml": job("c", queue="q", owner="ada@x.org")}, "ada")
    value = any_mode.settle()
    assert (value.status.sync, set(value.jobs)) == ("Synced", {"a", "b", "c"})


def test_odd_trees_after_each_other_and_as_the_head_again(bed: Bed) -> None:
    odd(bed)
    odd(bed)
    put_right_behind = git(bed.repository.path, "rev-parse", f"{bed.first}^{{tree}}")
    test_broken_trees.commit(bed.repository, put_right_behind, "refs/heads/main")
    bed.push(B, "ada")
    assert set(bed.settle().jobs) == {"a", "b"}
    odd(bed)
    value = bed.loader.load()
    assert (rules(value), set(value.jobs)) == (["broken-tree"], {"a", "b"})


@pytest.mark.parametrize("again", [False, True])
def test_nothing_beside_an_odd_tree_comes_into_force(bed: Bed, *, again: bool) -> None:
    """Not by the commit that puts it right, which may not know, nor by what comes after."""
    smuggled = documents(queue("q", weight=9), queue("open"))
    odd(bed, {"q.yaml": smuggled, "jobs/e.yaml": job("e", queue="q")})
    put_right(bed, {"q.yaml": smuggled, "jobs/e.yaml": job("e", queue="q"), **B})
    if again:
        changed = documents(queue("q", weight=9), queue("open", weight=2))
        bed.push({"q.yaml": changed}, "ada")
    bed.push({"jobs/c.yaml": job("c", queue="q", owner="ada@x.org")}, "ada")
    value = bed.settle()
    assert rules(value) == ["not-allowed"]
    assert set(value.jobs) == {"a", "c"}
    assert value.structure.queues["q"].weight == 1
    bed.push({"jobs/b.yaml": B["jobs/b.yaml"] + "# once more\n"}, "ada")
    assert set(bed.settle().jobs) == {"a", "c"}, "a comment changes no object"
    bed.push({"jobs/b.yaml": None}, "ada")
    bed.push(B, "ada")
    assert set(bed.settle().jobs) == {"a", "b", "c"}


def test_who_held_a_name_first_is_found_past_an_odd_tree(any_mode: Bed) -> None:
    odd(any_mode)
    put_right(any_mode, {})
    any_mode.push({"z.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    any_mode.push({"c.yaml": job("b", queue="q", owner="ada@x.org")}, "ada")
    value = any_mode.settle()
    assert value.jobs["b"].path == "z.yaml"
    assert "broken-tree" not in rules(value)


def test_what_brought_most_is_told_past_an_odd_tree(bed: Bed) -> None:
    odd(bed)
    large = put_right(bed, {"large.yaml": LARGE})
    value = bed.loader.load()
    assert rules(value) == ["revision-too-large"]
    assert f"git revert {large[:12]}" in value.status.message

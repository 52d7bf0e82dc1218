"""Trees that no git would write are read by nobody: else each reads something else in them."""

import pytest

from reconciler.desired.git import git_commands, source, tree_diff
from tests.unit.desired import signing
from tests.unit.desired.authorize import test_provenance
from tests.unit.desired.authorize.test_provenance import Keys, base, rules
from tests.unit.desired.loaders import Make, restarted
from tests.unit.desired.repositories import Repository, documents, git, job, queue

make, keys = test_provenance.make, test_provenance.keys

#: Mode, name, and id of the object, as they are to stand in a tree.
Entries = list[tuple[str, bytes, str]]


def entries(repository: Repository, tree: str) -> Entries:
    """What stands in a tree."""
    found = []
    for line in git(repository.path, "ls-tree", tree).splitlines():
        head, _, name = line.partition("\t")
        mode, _, identity = head.split()
        found.append((mode.lstrip("0"), name.encode(), identity))
    return found


def tree(repository: Repository, written: Entries, more: bytes = b"") -> str:
    """Write a tree as it stands, whatever it holds."""
    data = b"".join(
        mode.encode() + b" " + name + b"\0" + bytes.fromhex(identity)
        for mode, name, identity in written
    )
    how = ("hash-object", "-t", "tree", "-w", "--stdin", "--literally")
    return git(repository.path, *how, data=data + more)


def blob(repository: Repository, text: str) -> str:
    return git(repository.path, "hash-object", "-w", "--stdin", data=text.encode())


def commit(repository: Repository, of: str, parent: str) -> str:
    """Commit a tree, unsigned, to the branch."""
    made = git(repository.path, "commit-tree", "-p", parent, "-m", "odd", of)
    git(repository.path, "update-ref", "refs/heads/main", made)
    return made


BROKEN = [
    "a file twice",
    "a folder twice",
    "a file and a folder alike",
    "a path for a name",
    "two dots",
    "a mode that is none",
    "bytes behind",
    "the same twice",
]


def broken(repository: Repository, what: str, head: str) -> tuple[str, str]:
    """The topmost tree of ``head`` made wrong, and what is told of it."""
    there = entries(repository, head)
    (folder,) = [one for one in there if one[1] == b"jobs"]
    one, other = (blob(repository, job(name, queue="ops")) for name in ("one", "other"))
    inside = tree(repository, [("100644", b"ada.yaml", one)])
    wrong: dict[str, tuple[Entries, bytes, str]] = {
        "a file twice": (
            [("100644", b"zz.yaml", one), ("100644", b"zz.yaml", other)],
            b"",
            "has two entries of one name",
        ),
        "a folder twice": ([("40000", b"jobs", inside)], b"", "has two entries of one name"),
        "a file and a folder alike": (
            [("100644", b"jobs", one)],
            b"",
            "has two entries of one name",
        ),
        "a path for a name": (
            [("100644", b"jobs/ada.yaml", one)],
            b"",
            "has jobs/ada.yaml, which is no name",
        ),
        "two dots": ([("40000", b"..", inside)], b"", "has .., which is no name"),
        "a mode that is none": (
            [("120777", b"zz.yaml", one)],
            b"",
            "has zz.yaml with mode 120777",
        ),
        "bytes behind": ([], b"100644 zz", "has bytes that are not an entry"),
        "the same twice": ([folder], b"", "has two entries of one name"),
    }
    added, more, told = wrong[what]
    return tree(repository, sorted([*there, *added], key=lambda entry: entry[1]), more), told


@pytest.mark.parametrize("what", BROKEN)
def test_what_no_git_writes_is_not_read(repository: Repository, what: str) -> None:
    """Not as a difference, nor as a whole, nor where git has to be asked."""
    good = repository.commit({"jobs/a.yaml": job("a"), "q.yaml": queue("q")})
    of, told = broken(repository, what, good)
    bad = commit(repository, of, good)
    one = source.GitSource(str(repository.path))
    with pytest.raises(tree_diff.BrokenTreeError, match=f"the topmost folder {told}"):
        tree_diff.differing(one.objects, good, bad)
    with pytest.raises(tree_diff.BrokenTreeError, match=f"the tree {of} {told}"):
        tree_diff.check(one.folder, one.objects, [of])
    with pytest.raises(git_commands.GitError):
        one.files(bad)
    one.close()


def test_a_folder_that_is_read_alone_is_looked_at_too(repository: Repository) -> None:
    good = repository.commit({"sub/a.yaml": job("a")})
    (folder,) = entries(repository, good)
    twice = tree(repository, [*entries(repository, folder[2])] * 2)
    bad = commit(repository, tree(repository, [("40000", b"sub", twice)]), good)
    one = source.GitSource(str(repository.path), sub_path="sub")
    with pytest.raises(
        tree_diff.BrokenTreeError, match="the folder sub has two entries of one name"
    ):
        one.changes(good, bad)
    with pytest.raises(tree_diff.BrokenTreeError, match="has two entries of one name"):
        one.files(bad)
    one.close()


def test_many_new_files_are_looked_at_as_one_is(repository: Repository) -> None:
    good = repository.commit({"a.yaml": job("a"), "b.yaml": job("b")})
    there = entries(repository, good)
    other = blob(repository, "# other\n")
    many = [("100644", b"n%03d.yaml" % number, other) for number in range(100)]
    fine = commit(repository, tree(repository, [*there, *many]), good)
    odd = tree(repository, sorted([*there, *many, ("100644", b"b.yaml", other)]))
    bad = commit(repository, odd, good)
    one = source.GitSource(str(repository.path))
    assert len(one.changes(good, fine).files) == 100
    with pytest.raises(tree_diff.BrokenTreeError, match="has two entries of one name"):
        one.changes(good, bad)
    one.close()


def test_where_git_is_asked_its_answer_is_looked_at(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where more differs than is compared here."""
    good = repository.commit({"deep/jobs/a.yaml": job("a"), "deep/q.yaml": queue("q")})
    (deep,) = entries(repository, good)
    of, _ = broken(repository, "a file twice", deep[2])
    bad = commit(repository, tree(repository, [("40000", b"deep", of)]), good)
    fine = repository.commit({"deep/jobs/b.yaml": job("b")}, parent=good)
    monkeypatch.setattr(tree_diff, "TREES_MAX", 0)
    one = source.GitSource(str(repository.path))
    assert [path for path, _, _ in one.differences(good, fine)] == ["deep/jobs/b.yaml"]
    with pytest.raises(tree_diff.BrokenTreeError, match="has two entries of one name"):
        one.changes(good, bad)
    one.close()


def test_a_tree_too_large_to_be_handed_out_is_looked_at(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = repository.commit({"jobs/a.yaml": job("a"), "q.yaml": queue("q")})
    of, _ = broken(repository, "a file twice", good)
    monkeypatch.setattr(git_commands, "OBJECT_BYTES_MAX", 40)
    one = source.GitSource(str(repository.path))
    with pytest.raises(tree_diff.BrokenTreeError, match="has two entries of one name"):
        tree_diff.check(one.folder, one.objects, [of])
    tree_diff.check(
        one.folder, one.objects, [git(repository.path, "rev-parse", f"{good}^{{tree}}")]
    )
    one.close()


def test_two_unsigned_commits_bring_nobody_any_right(
    repository: Repository, make: Make, keys: Keys
) -> None:
    """The second has no name twice; what it says was in the first, beside what is harmless."""
    repository.commit(base(keys))
    one = make()
    before = one.load()
    start = git(repository.path, "rev-parse", "main")
    there = entries(repository, start)
    evil = blob(
        repository,
        documents(
            "apiVersion: muster/v1\nkind: Access\nmetadata: {name: evil}\nspec:\n"
            f"  identities:\n    - {{email: m@x.org, keys: [{keys['old'].listed()}]}}\n",
            job("evil", queue="ops", owner="ada@x.org"),
        ),
    )
    others = [blob(repository, f"# {number}\n") for number in range(40)]
    many = [*there, *[("100644", b"zz.yaml", one) for one in (evil, *others)]]
    first = commit(repository, tree(repository, many), start)
    head = commit(repository, tree(repository, [*there, ("100644", b"zz.yaml", evil)]), first)
    for value in (one.load(), restarted(make, one).load()):
        assert set(rules(value)) == {"not-allowed"}
        assert value.status.attempted_revision == head
        assert value.structure == before.structure
        assert value.jobs == before.jobs


def test_a_head_put_right_by_hand_goes_on(repository: Repository, make: Make, keys: Keys) -> None:
    repository.commit(base(keys))
    one = make()
    one.load()
    start = git(repository.path, "rev-parse", "main")
    of, _ = broken(repository, "two dots", start)
    commit(repository, of, start)
    assert rules(one.load()) == ["broken-tree"]
    git(repository.path, "update-ref", "refs/heads/main", start)
    repository.commit({"jobs/b.yaml": job("b", queue="ops")})
    signing.sign(repository, keys["ada"])
    value = one.load()
    assert value.status.sync == "Synced"
    assert "b" in value.jobs

"""What is read of commits from objects alone is what git itself says of them."""

import random

import pytest

from reconciler.desired.git import git_commands, source, tree_diff
from tests.unit.desired import repositories

#: What a path may become, with the mode: a file, a program, a link.
_MODES = ("100644", "100755", "120000")
_NAMES = ("a", "a.b", "a-b", "b", "deep", "z.yaml", "with space.yaml", "\u00fcmlaut.yaml")


def _drawn(chance: random.Random, present: set[str]) -> dict[str, str | None]:
    """Some files to write, and some of those present to remove; no file is another's folder."""
    files: dict[str, str | None] = {}
    for _ in range(chance.randint(0, 4)):
        path = "/".join(chance.choices(_NAMES, k=chance.randint(1, 4)))
        taken = present | {one for one, text in files.items() if text is not None}
        if not any(_nested(path, other) for other in taken if other != path):
            files[path] = str(chance.randint(0, 3))
    leaving = chance.sample(sorted(present), min(len(present), chance.randint(0, 3)))
    return files | {path: None for path in leaving if path not in files}


def _nested(one: str, other: str) -> bool:
    return one.startswith(other + "/") or other.startswith(one + "/")


def _of_git(repository: repositories.Repository, *arguments: str) -> list[tree_diff.FileDifference]:
    wanted = ("diff-tree", "-r", "-z", "--no-renames", "--raw", *arguments)
    return list(tree_diff.told(git_commands.run(repository.path, *wanted).stdout))


@pytest.mark.parametrize("seed", range(3))
def test_trees_differ_as_git_says(repository: repositories.Repository, seed: int) -> None:
    chance = random.Random(seed)
    present: set[str] = set()
    commits = [repository.commit({})]
    for _ in range(25):
        files = _drawn(chance, present)
        modes = {path: chance.choice(_MODES) for path in files}
        commits.append(repository.commit(files, modes=modes))
        present = present - {path for path in files if files[path] is None}
        present |= {path for path in files if files[path] is not None}
    objects = git_commands.Objects(repository.path)
    seen = 0
    for number in range(1, len(commits)):
        for before in (commits[number - 1], commits[chance.randrange(number)]):
            found = tree_diff.differing(objects, before, commits[number])
            assert found == _of_git(repository, before, commits[number])
            below = tree_diff.differing(objects, before, commits[number], "deep")
            assert below == _of_git(repository, before, commits[number], "--", "deep/")
            seen += len(found) + len(below)
    objects.close()
    assert seen > 100


def test_where_a_file_becomes_a_folder(repository: repositories.Repository) -> None:
    before = repository.commit({"a": "1", "b/c": "2"})
    after = repository.commit({"a": None, "a/b": "1", "b/c": None, "b": "2"})
    objects = git_commands.Objects(repository.path)
    assert tree_diff.differing(objects, before, after) == _of_git(repository, before, after)
    objects.close()


def test_many_folders_are_left_to_git(repository: repositories.Repository) -> None:
    before = repository.commit({"keep": "1"})
    files = {f"{number}/a.yaml": "1" for number in range(tree_diff.TREES_MAX + 1)}
    after = repository.commit(files)
    objects = git_commands.Objects(repository.path)
    with pytest.raises(tree_diff.TooManyError, match="more than"):
        tree_diff.differing(objects, before, after)
    objects.close()
    place = source.GitSource(str(repository.path))
    assert [one.path for one in place.changes(before, after).files] == sorted(files)
    place.close()


def test_a_link_that_goes_is_no_link_any_more(repository: repositories.Repository) -> None:
    before = repository.commit({"a.yaml": "b.yaml", "c": "1"}, modes={"a.yaml": "120000"})
    after = repository.commit({"a.yaml": None})
    place = source.GitSource(str(repository.path))
    assert place.changes(before, after).ignored == {"a.yaml": None}
    place.close()


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("Add a job", True),
        ("Add a job\n", True),
        ("Key: value", True),
        ("Add a job\n\nMuster-Approve: abc\n", False),
        ("Add a job\nMuster-Approve: abc\n", False),
        (" Add a job ", False),
        ("", False),
        ("J\u00f6b", False),
        ("a\rb", False),
    ],
)
def test_one_commit_is_what_git_log_says(
    repository: repositories.Repository, message: str, plain: bool
) -> None:
    base = repository.commit({"a.yaml": "1"})
    head = repository.commit({"a.yaml": "2"}, message=message)
    place = source.GitSource(str(repository.path))
    by_git = place.log.commit(head)
    assert place.log.between(base, head) == [by_git]
    found = place.log._plain(head)
    assert found == (by_git if plain else None)
    place.close()


def test_a_merge_is_left_to_git(repository: repositories.Repository) -> None:
    base = repository.commit({"a.yaml": "1"})
    side = repository.commit({"b.yaml": "1"}, branch="side", parent=base)
    head = repository.commit({"b.yaml": "1"}, merge=side)
    place = source.GitSource(str(repository.path))
    assert place.log._plain(head) is None
    assert place.log.between(base, head) == [place.log.commit(head)]
    place.close()


@pytest.mark.parametrize(
    "author",
    ["A <a@b> 1 +0000", "<a@b> 1 +0000", "A B <> 1 +0000", "A <a b> 1 +0000", "A <a@b> 1 -9999"],
)
def test_idents_are_what_git_says(repository: repositories.Repository, author: str) -> None:
    base = repository.commit({"a.yaml": "1"})
    tree = repositories.git(repository.path, "rev-parse", f"{base}^{{tree}}")
    text = f"tree {tree}\nparent {base}\nauthor {author}\ncommitter C <c@d> 7 +0100\n\nSubject\n"
    head = repositories.git(
        repository.path,
        *("hash-object", "-t", "commit", "-w", "--literally", "--stdin"),
        data=text.encode(),
    )
    place = source.GitSource(str(repository.path))
    found = place.log._plain(head)
    assert found is None or found == place.log.commit(head)
    place.close()


def _committed(repository: repositories.Repository, tree: str, parent: str) -> str:
    text = f"tree {tree}\nparent {parent}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n"
    wanted = ("hash-object", "-t", "commit", "-w", "--literally", "--stdin")
    return repositories.git(repository.path, *wanted, data=text.encode())


def test_modes_filled_up_with_zeros_are_folders_all_the_same(
    repository: repositories.Repository,
) -> None:
    base = repository.commit({"jobs/a.yaml": "1"})
    after = repository.commit({"jobs/a.yaml": "2"})
    inner = repositories.git(repository.path, "rev-parse", f"{after}:jobs")
    wanted = ("hash-object", "-t", "tree", "-w", "--literally", "--stdin")
    old_style = b"040000 jobs\0" + bytes.fromhex(inner)
    tree = repositories.git(repository.path, *wanted, data=old_style)
    head = _committed(repository, tree, base)
    place = source.GitSource(str(repository.path))
    assert [one.path for one in place.changes(base, head).files] == ["jobs/a.yaml"]
    place.close()


@pytest.mark.parametrize("below", ["", "jobs"])
def test_a_missing_tree_is_no_empty_one(repository: repositories.Repository, below: str) -> None:
    base = repository.commit({"jobs/a.yaml": "1"})
    head = _committed(repository, "12" * 20, base)
    place = source.GitSource(str(repository.path), sub_path=below)
    with pytest.raises(git_commands.GitError, match="missing"):
        place.changes(base, head)
    place.close()


def test_of_a_large_object_just_the_beginning_is_kept(
    repository: repositories.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 100_000
    monkeypatch.setattr(git_commands, "OBJECT_BYTES_MAX", limit)
    texts = [bytes([65 + number]) * size for number, size in enumerate((7, limit, 3 * limit, 0, 5))]
    head = repository.commit({f"{number}.yaml": text for number, text in enumerate(texts)})
    objects = git_commands.Objects(repository.path)
    found = objects.read_many([f"{head}:{number}.yaml" for number in range(len(texts))])
    objects.close()
    assert [one and one[2] for one in found] == [text[:limit] for text in texts]


def test_names_that_are_no_text_are_told_apart_and_not_read(
    repository: repositories.Repository,
) -> None:
    blob = repositories.git(repository.path, "hash-object", "-w", "--stdin", data=b"kind: Job\n")
    names = (b"caf\xe8.yaml", b"caf\xe9.yaml", b"good.yaml", b"note\xe9.txt")
    listed = b"".join(b"100644 blob %s\t%s\0" % (blob.encode(), name) for name in names)
    base = repository.commit({"keep.yaml": "1"})
    tree = repositories.git(repository.path, "mktree", "-z", data=listed)
    head = _committed(repository, tree, base)
    place = source.GitSource(str(repository.path))
    for changes in (place.changes(base, head), place.files(head)):
        assert "good.yaml" in [one.path for one in changes.files if one.blob]
        ignored = {path: one.rule for path, one in changes.ignored.items() if one is not None}
        assert ignored == dict.fromkeys((r"caf\xe8.yaml", r"caf\xe9.yaml"), "ignored-name")
    gone = place.changes(head, base)
    assert gone.ignored[r"caf\xe9.yaml"] is None
    place.close()

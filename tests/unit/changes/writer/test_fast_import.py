"""What commits of several requests say of themselves."""

import pytest

from reconciler.changes.requests import Person
from reconciler.changes.writer import fast_import
from reconciler.desired.git.git_commands import GitError
from tests.unit.desired.repositories import Repository, git

ALICE = Person("Alice", "alice@example.org")


@pytest.mark.parametrize(
    ("subjects", "heading"),
    [
        (("Cancel Job/a: wrong data",), "Cancel Job/a: wrong data"),
        (
            ("Prune Job/a: ended before 2026-10-23", "Prune Job/b: ended before 2026-10-23"),
            "Remove the files of 2 jobs: ended before 2026-10-23",
        ),
        (("Submit Job/a", "Submit Job/b", "Submit Job/c"), "Submit 3 jobs"),
        (("Cancel Job/a: no", "Cancel Job/b: other"), "Cancel 2 jobs"),
        (
            ("Submit Job/a", "Cancel Job/x: a repeats it", "Submit Job/b"),
            "Submit 2 jobs, cancel 1 job",
        ),
        (("Drain gpu001 of NodePool/a100: fan", "Cancel Job/a: fan"), "Apply 2 requests"),
    ],
)
def test_the_subject_says_what_is_done(subjects: tuple[str, ...], heading: str) -> None:
    text = fast_import.message(fast_import.ImportedCommit(ALICE, list(subjects), {}, []))
    assert text.splitlines()[0] == heading
    assert text.splitlines()[-1] == "Muster-Submitter: alice@example.org"
    listed = [line[2:] for line in text.splitlines() if line.startswith("- ")]
    assert listed == (list(subjects) if len(subjects) > 1 else [])


def test_a_long_list_is_cut_and_says_so() -> None:
    subjects = [f"Submit Job/j{number}" for number in range(60)]
    lines = fast_import.message(fast_import.ImportedCommit(ALICE, subjects, {}, [])).splitlines()
    assert lines[0] == "Submit 60 jobs"
    assert lines[-3] == "- and 10 more"


@pytest.mark.parametrize(
    ("there", "made", "told"),
    [
        ("jobs/d.yaml/inner.yaml", "jobs/d.yaml", "jobs/d.yaml is a folder in "),
        ("jobs", "jobs/d.yaml", "jobs is a file in "),
    ],
)
def test_no_commit_drops_what_is_in_the_way(
    repository: Repository, there: str, made: str, told: str
) -> None:
    head = repository.commit({there: "mine"})
    group = fast_import.ImportedCommit(ALICE, ["Submit Job/d"], {made: b"d"}, [])
    with pytest.raises(GitError, match=told):
        fast_import.commits(repository.path, head, [group], ALICE, 1)
    assert git(repository.path, "show", f"{head}:{there}") == "mine"

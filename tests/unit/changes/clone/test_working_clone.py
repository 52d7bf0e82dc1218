"""Changes in a person's own clone touch one file and nothing else of what is going on there."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reconciler.changes.clone import clone_lock, files, working_clone
from reconciler.desired.git.git_commands import GitError
from tests.unit.desired.repositories import Repository, documents, git, job

pytestmark = pytest.mark.usefixtures("identity")


@pytest.fixture
def work(repository: Repository, tmp_path: Path) -> Path:
    repository.commit({"jobs/a.yaml": documents(job("a"), job("b")), "notes.txt": "x\n"})
    git(tmp_path, "clone", "--quiet", str(repository.path), "work")
    return tmp_path / "work"


def test_add_edit_remove_and_push(repository: Repository, work: Path) -> None:
    mine = working_clone.Clone(work / "jobs")
    assert mine.add_job(job("c"), "c").status == "pushed"
    assert mine.add_job(job("c"), "c").status == "unchanged"
    changed = mine.set_fields("Job", "b", ((("spec", "suspend"), True),), message="hold b")
    assert changed.path == "jobs/a.yaml"
    assert changed.commit == git(repository.path, "rev-parse", "main")
    assert mine.remove("Job", "c").status == "pushed"
    assert not (work / "jobs" / "c.yaml").exists()
    log = git(repository.path, "log", "--format=%s|%an", "main").splitlines()
    assert log[:3] == ["Remove Job/c|Test", "hold b|Test", "Submit Job/c|Test"]


def test_unrelated_changes_stay(repository: Repository, work: Path) -> None:
    (work / "notes.txt").write_text("changed\n")
    (work / "staged.txt").write_text("staged\n")
    git(work, "add", "staged.txt")
    mine = working_clone.Clone(work)
    assert mine.add_job(job("c"), "c").status == "pushed"
    assert git(work, "status", "--porcelain").splitlines() == ["M notes.txt", "A  staged.txt"]
    assert git(repository.path, "show", "--name-only", "--format=", "main") == "jobs/c.yaml"


def test_others_pushed(repository: Repository, work: Path) -> None:
    repository.commit({"jobs/z.yaml": job("z")})
    mine = working_clone.Clone(work)
    assert mine.add_job(job("c"), "c").status == "pushed"
    assert (work / "jobs" / "z.yaml").exists()
    assert len(git(repository.path, "rev-list", "main").splitlines()) == 3


def test_others_pushed_while_something_is_changed(repository: Repository, work: Path) -> None:
    repository.commit({"jobs/z.yaml": job("z")})
    (work / "notes.txt").write_text("changed\n")
    (work / "staged.txt").write_text("staged\n")
    git(work, "add", "staged.txt")
    mine = working_clone.Clone(work)
    with mine.together() as push:
        mine.add_job(job("c"), "c")
    assert push.told == ()
    head = git(work, "rev-parse", "main")
    assert push.now(push.made[0].commit) == head == git(repository.path, "rev-parse", "main")
    assert (work / "jobs" / "z.yaml").exists()
    assert git(work, "status", "--porcelain").splitlines() == ["M notes.txt", "A  staged.txt"]


@pytest.mark.parametrize("stage", [True, False], ids=["staged", "not staged"])
def test_others_pushed_what_is_changed_here(
    repository: Repository, work: Path, *, stage: bool
) -> None:
    theirs = repository.commit({"notes.txt": "theirs\n", "jobs/z.yaml": job("z")})
    (work / "notes.txt").write_text("mine\n")
    if stage:
        git(work, "add", "notes.txt")
    mine = working_clone.Clone(work)
    for number, name in enumerate(("c", "d")):
        with mine.together() as push:
            mine.add_job(job(name), name)
        assert "since others changed notes.txt as well, which is changed there and" in push.told[0]
        made = push.now(push.made[0].commit) or ""
        assert git(work, "rev-parse", "main") == made
        git(repository.path, "merge-base", "--is-ancestor", made, "main")
        # a merge whose own difference is the job alone: its signer answers for nothing else
        own = git(repository.path, "diff", "--name-only", "main^1", "main")
        assert own == f"jobs/{name}.yaml"
        assert git(repository.path, "show", "main:notes.txt") == "theirs"
        count = git(repository.path, "rev-list", "--count", "--first-parent", f"{theirs}..main")
        assert count == str(number + 1)
        assert (work / "notes.txt").read_text() == "mine\n"
        assert not (work / "jobs" / "z.yaml").exists()
    git(work, "stash", "--quiet")
    git(work, "pull", "--quiet", "--ff-only")
    assert git(work, "rev-parse", "main") == git(repository.path, "rev-parse", "main")
    assert (work / "jobs" / "d.yaml").exists()


def test_what_others_pushed_lies_here_uncommitted(repository: Repository, work: Path) -> None:
    repository.commit({"jobs/z.yaml": job("z")})
    (work / "jobs" / "z.yaml").write_text("mine\n")
    mine = working_clone.Clone(work)
    with mine.together() as push:
        mine.add_job(job("c"), "c")
    assert "others changed jobs/z.yaml as well" in push.told[0]
    assert (work / "jobs" / "z.yaml").read_text() == "mine\n"
    assert git(repository.path, "show", "--name-only", "--format=", "main^2") == "jobs/c.yaml"


def test_commits_of_ones_own_are_merged_beside_what_is_in_hand(
    repository: Repository, work: Path
) -> None:
    theirs = repository.commit({"jobs/z.yaml": job("z")})
    (work / "more.txt").write_text("more\n")
    git(work, "add", "more.txt")
    git(work, "commit", "--quiet", "-m", "by hand")
    by_hand = git(work, "rev-parse", "main")
    (work / "notes.txt").write_text("mine\n")
    git(work, "add", "notes.txt")
    mine = working_clone.Clone(work)
    mine.with_local = True
    done = mine.add_job(job("c"), "c")
    for commit in (theirs, by_hand, done.commit or ""):
        git(work, "merge-base", "--is-ancestor", commit, "main")
    assert git(work, "rev-parse", "main") == git(repository.path, "rev-parse", "main")
    assert git(work, "rev-parse", "main^1") == theirs
    assert git(work, "status", "--porcelain") == "M  notes.txt"


def test_another_branch_that_is_checked_out_meanwhile_stays(
    repository: Repository, work: Path
) -> None:
    hook = work / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n[ -e once ] || git checkout --quiet -b other main~1; : > once\n")
    hook.chmod(0o755)
    repository.commit({"jobs/z.yaml": job("z")})
    assert working_clone.Clone(work).add_job(job("c"), "c").status == "pushed"
    assert git(work, "rev-parse", "main") == git(repository.path, "rev-parse", "main")
    assert git(work, "log", "-1", "--format=%s", "other") != "Submit Job/c"
    assert git(work, "status", "--porcelain") == "?? once"


def test_contradiction(repository: Repository, work: Path) -> None:
    repository.commit({"jobs/a.yaml": job("a", priority=1)})
    with pytest.raises(files.CloneError, match="by hand"):
        working_clone.Clone(work).set_fields("Job", "a", ((("spec", "priority"), 2),), message="m")
    assert git(work, "status", "--porcelain") == ""
    assert git(work, "log", "-1", "--format=%s") == "m"


def test_refused(repository: Repository, work: Path, tmp_path: Path) -> None:
    mine = working_clone.Clone(work)
    with pytest.raises(files.CloneError, match="a different job"):
        mine.add_job(job("b", priority=3), "b")
    with pytest.raises(files.CloneError, match="no field `nonsense`"):
        mine.add_job(job("d", nonsense=3), "d")
    with pytest.raises(files.CloneError, match="no field `nonsense`"):
        mine.set_fields("Job", "b", ((("spec", "nonsense"), 2),), message="m")
    with pytest.raises(files.CloneError, match="there is no Job/x"):
        mine.remove("Job", "x")
    (work / "jobs" / "a.yaml").write_text(job("b"))
    with pytest.raises(files.CloneError, match="not committed"):
        mine.remove("Job", "b")
    with pytest.raises(files.CloneError, match="bare"):
        working_clone.Clone(repository.path)
    (tmp_path / "plain").mkdir()
    with pytest.raises(files.CloneError, match="no git repository"):
        working_clone.Clone(tmp_path / "plain")
    git(work, "checkout", "--quiet", "--force", "--detach")
    with pytest.raises(files.CloneError, match="no branch"):
        working_clone.Clone(work)


def test_a_hook_that_refuses_leaves_no_trace(work: Path) -> None:
    hook = work / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(files.CloneError, match="nothing was changed"):
        working_clone.Clone(work).add_job(job("c"), "c")
    assert git(work, "status", "--porcelain") == ""


def test_what_a_hook_says_is_cut_at_the_end_of_a_line(work: Path) -> None:
    hook = work / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    line = "jobs/old.yaml:5:3: error: Job/hello: spec: say whose job it is"
    hook.write_text(f"#!/bin/sh\nfor n in $(seq 90); do echo '{line}' >&2; done\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(files.CloneError) as refused:
        working_clone.Clone(work).add_job(job("c"), "c")
    first, *rest = str(refused.value).splitlines()
    assert first.endswith("failed: …")
    assert rest
    assert all(one.strip() == line for one in rest), rest


def test_several_documents_of_a_name_are_left_to_a_person(work: Path) -> None:
    (work / "jobs" / "z.yaml").write_text(job("b", priority=3))
    git(work, "add", ".")
    git(work, "commit", "--quiet", "-m", "another b")
    mine = working_clone.Clone(work)
    told = "Job/b is there 2 times, in jobs/a.yaml, jobs/z.yaml: take out all but one first"
    with pytest.raises(files.CloneError, match=told):
        mine.remove("Job", "b")
    with pytest.raises(files.CloneError, match=told):
        mine.set_fields("Job", "b", ((("spec", "suspend"), True),), message="hold b")
    assert git(work, "log", "-1", "--format=%s") == "another b"


_ADD = """
import sys
from pathlib import Path
from reconciler.changes.clone import working_clone
from tests.unit.desired.repositories import job
done = working_clone.Clone(Path(sys.argv[1])).add_job(job(sys.argv[2]), sys.argv[2])
print(done.commit)
"""


@pytest.mark.parametrize("remote", [True, False], ids=["with a remote", "without one"])
def test_commands_at_once_in_one_clone_keep_each_others_commits(
    repository: Repository, work: Path, *, remote: bool
) -> None:
    if not remote:
        git(work, "remote", "remove", "origin")
    names = [f"par{number}" for number in range(8)]
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", _ADD, str(work), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    if remote:
        repository.commit({"jobs/z.yaml": job("z")})
    told = {name: process.communicate(timeout=240) for name, process in running.items()}
    assert {name: error for name, (_, error) in told.items() if running[name].returncode} == {}
    for name, (commit, _) in told.items():
        assert git(work, "show", "--name-only", "--format=", commit.strip()) == f"jobs/{name}.yaml"
        git(work, "merge-base", "--is-ancestor", commit.strip(), "main")
    assert git(work, "status", "--porcelain") == ""
    if remote:
        assert git(work, "rev-parse", "main") == git(repository.path, "rev-parse", "main")


def test_a_commit_of_somebody_else_before_a_push_that_loses_stays(
    repository: Repository, work: Path
) -> None:
    hook = work / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\n[ -e once ] && exit 0\n: > once\n"
        "git commit --quiet --allow-empty -m theirs && git rev-parse HEAD > .git/theirs\n"
    )
    hook.chmod(0o755)
    repository.commit({"jobs/z.yaml": job("z")})
    done = working_clone.Clone(work).add_job(job("c"), "c")
    theirs = (work / ".git" / "theirs").read_text().strip()
    assert git(work, "rev-parse", "main") == theirs
    assert git(work, "show", "--name-only", "--format=", done.commit or "") == "jobs/c.yaml"
    assert git(repository.path, "rev-parse", "main") == done.commit
    assert theirs not in git(repository.path, "rev-list", "main").split()


def test_a_commit_of_somebody_else_before_the_second_push_that_loses_stays(
    repository: Repository, work: Path
) -> None:
    hook = work / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    bare = f"git --git-dir {repository.path}"
    made = f"$({bare} commit-tree 'main^{{tree}}' -p main -m again)"
    hook.write_text(
        "#!/bin/sh\necho x >> .git/calls\n[ $(wc -l < .git/calls) = 2 ] || exit 0\n"
        "git commit --quiet --allow-empty -m theirs && git rev-parse HEAD > .git/theirs\n"
        f"{bare} update-ref refs/heads/main {made}\n"
    )
    hook.chmod(0o755)
    repository.commit({"jobs/z.yaml": job("z")})
    mine = working_clone.Clone(work)
    with mine.together() as push:
        done = mine.add_job(job("c"), "c")
    theirs = (work / ".git" / "theirs").read_text().strip()
    assert (work / ".git" / "calls").read_text().count("x") == 3
    assert git(repository.path, "rev-parse", "main") == push.now(done.commit)
    assert git(repository.path, "show", "--name-only", "--format=", "main") == "jobs/c.yaml"
    assert theirs not in git(repository.path, "rev-list", "main").split()


def test_a_copy_that_could_not_be_pushed_is_pushed_by_the_next_command(
    repository: Repository, work: Path
) -> None:
    by_hand = _by_hand(work, {"more.txt": "more\n"})
    hook = repository.path / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    mine = working_clone.Clone(work)
    with pytest.raises(files.CloneError, match="and not pushed"):
        mine.add_job(job("c"), "c")
    hook.unlink()
    assert mine.add_job(job("d"), "d").status == "pushed"
    there = git(repository.path, "ls-tree", "-r", "--name-only", "main").split()
    assert {"jobs/c.yaml", "jobs/d.yaml"} <= {*there}
    assert by_hand not in git(repository.path, "rev-list", "main").split()


def _by_hand(work: Path, files: dict[str, str]) -> str:
    """Commit files in a clone as a person does; the commit."""
    for path, text in files.items():
        (work / path).write_text(text)
    git(work, "add", *files)
    git(work, "commit", "--quiet", "-m", "unfinished, $(not) for others")
    return git(work, "rev-parse", "main")


@pytest.mark.parametrize("behind", [False, True])
def test_a_commit_of_ones_own_stays_local(
    repository: Repository, work: Path, *, behind: bool
) -> None:
    if behind:
        repository.commit({"jobs/z.yaml": job("z")})
    base = git(repository.path, "rev-parse", "main")
    _by_hand(work, {"more.txt": "more\n", "jobs/y.yaml": job("y")})
    mine = working_clone.Clone(work)
    for number, name in enumerate(("c", "d"), start=1):
        with mine.together() as push:
            done = mine.add_job(job(name), name)
        pushed = git(repository.path, "rev-parse", "main")
        assert push.now(done.commit) == pushed
        assert git(repository.path, "rev-list", "--count", f"{base}..main") == str(number)
        assert git(repository.path, "show", "--name-only", "--format=", "main") == (
            f"jobs/{name}.yaml"
        )
        assert "stays unpushed" in push.told[0]
        assert '"unfinished, $(not) for others"' in push.told[0]
    assert mine.add_job(job("c"), "c").status == "unchanged"
    assert mine.set_fields("Job", "c", ((("spec", "suspend"), True),), message="x").status == (
        "pushed"
    )
    assert "suspend: true" in git(repository.path, "show", "main:jobs/c.yaml")
    git(work, "pull", "--quiet", "--rebase")
    assert git(work, "log", "--format=%s", "origin/main..main") == "unfinished, $(not) for others"
    assert git(work, "status", "--porcelain") == ""


def test_with_local_publishes_commits_of_ones_own(repository: Repository, work: Path) -> None:
    by_hand = _by_hand(work, {"more.txt": "more\n"})
    mine = working_clone.Clone(work)
    mine.with_local = True
    done = mine.add_job(job("c"), "c")
    assert git(repository.path, "rev-parse", "main") == done.commit
    git(repository.path, "merge-base", "--is-ancestor", by_hand, "main")


def test_a_change_of_what_is_only_local_is_refused_with_the_way_out(
    repository: Repository, work: Path
) -> None:
    by_hand = _by_hand(work, {"jobs/y.yaml": job("y")})
    mine = working_clone.Clone(work)
    suspend = ((("spec", "suspend"), True),)
    with pytest.raises(files.CloneError, match="not pushed: it stands on commits of yours") as told:
        mine.set_fields("Job", "y", suspend, message="hold y")
    assert by_hand[:12] in str(told.value)
    assert "jobs/y.yaml" not in git(repository.path, "ls-tree", "-r", "--name-only", "main")
    mine.with_local = True
    assert mine.set_fields("Job", "y", suspend, message="hold y").status == "pushed"
    assert "suspend: true" in git(repository.path, "show", "main:jobs/y.yaml")


def test_an_approval_is_pushed_without_commits_of_ones_own(
    repository: Repository, work: Path
) -> None:
    base = git(repository.path, "rev-parse", "main")
    _by_hand(work, {"more.txt": "more\n"})
    mine = working_clone.Clone(work)
    done = mine.approve("Approve", "sdramovcrs6en5cgkcqgp3by4s6j2h15")
    assert git(repository.path, "rev-parse", "main") == done.commit
    assert git(repository.path, "rev-list", f"{base}..main") == done.commit


def _fail_between(mine: working_clone.Clone, *, theirs: bool) -> None:
    with mine.together():
        mine.add_job(job("c"), "c")
        if theirs:
            git(mine.root, "commit", "--quiet", "--allow-empty", "-m", "theirs")
        mine.add_job(job("d"), "d")
        raise RuntimeError("no")


def test_what_is_undone_is_ours_alone(work: Path) -> None:
    mine = working_clone.Clone(work)
    before = git(work, "rev-parse", "main")
    with pytest.raises(RuntimeError, match="no"):
        _fail_between(mine, theirs=False)
    assert git(work, "rev-parse", "main") == before
    assert git(work, "status", "--porcelain") == ""
    with pytest.raises(RuntimeError, match="no"):
        _fail_between(mine, theirs=True)
    assert git(work, "log", "-2", "--format=%s").splitlines() == ["theirs", "Submit Job/c"]
    assert git(work, "status", "--porcelain") == ""
    assert not (work / "jobs" / "d.yaml").exists()


def test_a_lock_of_somebody_elses_git_is_waited_for(work: Path) -> None:
    lock = work / ".git" / "index.lock"
    lock.touch()
    opener = threading.Timer(1.0, lock.unlink)
    opener.start()
    assert working_clone.Clone(work).add_job(job("c"), "c").status == "pushed"
    opener.join()


def test_a_turn_is_waited_for_with_a_bound_and_says_for_whom(work: Path) -> None:
    folder = work / ".git"
    with (
        clone_lock.taken(folder),
        pytest.raises(GitError, match=rf"process {os.getpid()} .*has been changing this clone"),
        clone_lock.taken(folder, wait_s=0.1),
    ):
        pass
    with clone_lock.taken(folder, wait_s=0):
        pass


@pytest.mark.parametrize("flags", [["--assume-unchanged"], ["--skip-worktree"], []])
def test_what_somebody_has_told_git_of_a_file_outlives_a_refusal(
    work: Path, flags: list[str]
) -> None:
    hook = work / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    for flag in flags:
        git(work, "update-index", flag, "jobs/a.yaml")
    before = git(work, "ls-files", "-v", "--stage")
    mine = working_clone.Clone(work)
    with pytest.raises(files.CloneError, match="nothing was changed"):
        mine.set_fields("Job", "a", ((("spec", "suspend"), True),), message="hold")
    assert git(work, "ls-files", "-v", "--stage") == before
    assert git(work, "status", "--porcelain") == ""

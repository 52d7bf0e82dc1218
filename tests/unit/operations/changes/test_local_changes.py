"""Where a change is made: in the clone that somebody stands in, or at a controller."""

import os
from pathlib import Path
from typing import Any

import pytest

from reconciler.changes import requests
from reconciler.operations.changes import change_requests, local_changes, remote_changes, targets
from reconciler.operations.client import endpoints
from tests.unit.desired.repositories import documents, git, job, queue


def find(here: Path, **changes: Any) -> targets.ChangeTarget:
    options: dict[str, Any] = {"clone": None, "server": None, "token_file": None}
    return local_changes.find_target(here=here, **(options | changes))


@pytest.mark.parametrize("below", ["", "jobs"])
def test_the_clone_around_you_is_where_you_change(work: Path, below: str) -> None:
    target = find(work / below)
    assert target.clone is not None
    assert target.clone.root == work
    with pytest.raises(change_requests.ChangeError, match=r"does not tell which repository"):
        find(work / below, server="http://127.0.0.1:1")


def test_elsewhere_it_is_the_controller(work: Path, tmp_path: Path) -> None:
    with pytest.raises(change_requests.ChangeError, match="no controller is known here"):
        find(tmp_path)
    endpoints.write(tmp_path, endpoints.Endpoint("http://127.0.0.1:1"))
    assert find(tmp_path).clone is None
    assert find(tmp_path, clone=work).clone is not None


def test_who_has_no_name_in_git_has_one_at_the_controller(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("GIT_AUTHOR", "GIT_COMMITTER"))]:
        monkeypatch.delenv(name)
    git(work, "config", "user.useConfigOnly", "true")
    assert find(work).clone is not None, "there is no other place"
    endpoints.write(work, endpoints.Endpoint("http://127.0.0.1:1"))
    assert find(work).clone is None
    git(work, "config", "user.name", "Ada")
    git(work, "config", "user.email", "ada@example.org")
    assert find(work).clone is not None


def test_a_clone_tells_what_is_like_a_name_it_does_not_have(work: Path) -> None:
    target = find(work)
    for verb in ("cancel", "hold", "release", "rerun"):
        act = change_requests.Act(verb, "trian")
        with pytest.raises(
            change_requests.ChangeError, match=r"there is no Job/trian .*; did you mean"
        ):
            local_changes.carry_out([act], target)
    (done,) = local_changes.carry_out(
        [change_requests.Act("cancel", "train")], target, dry_run=True
    )
    assert done == change_requests.ChangeResult("train", "would be cancelled, its YAML deleted")
    assert (work / "jobs" / "a.yaml").exists()


def test_what_could_not_be_pushed_is_told_apart(work: Path, tmp_path: Path) -> None:
    (tmp_path / "state.git").rename(tmp_path / "away.git")
    with pytest.raises(change_requests.ChangeError, match="and not pushed") as told:
        local_changes.carry_out([change_requests.Act("cancel", "train")], find(work))
    assert told.value.unreachable


def written(work: Path, path: str) -> str:
    return git(work, "show", f"HEAD:{path}")


def test_a_job_of_a_file_belongs_to_who_submits_it(work: Path) -> None:
    target = find(work)
    text = documents(
        "# by hand\n" + job("x"), job("y", owner="ada@example.org"), '{"apiVersion": "muster/v1", '
        '"kind": "Job", "metadata": {"name": "z"}, "spec": {"command": ["true"]}}\n'
    )  # fmt: skip
    submit = change_requests.Submit(text, "test@example.org")
    assert [one.name for one in local_changes.carry_out([submit], target)] == ["x", "y", "z"]
    assert written(work, "jobs/x.yaml").startswith("# by hand\n")
    for name, owner in (("x", "test"), ("y", "ada"), ("z", "test")):
        assert f"owner: {owner}@example.org" in written(work, f"jobs/{name}.yaml")
    again = local_changes.carry_out([submit], target)
    assert {one.message for one in again} == {requests.IS_THERE}
    # what stands there without an owner stays so
    (as_is,) = local_changes.carry_out(
        [change_requests.Submit(job("train"), "test@example.org")], target
    )
    assert as_is.message == requests.IS_THERE


def test_a_hold_says_why_and_a_release_takes_it_out(work: Path) -> None:
    target = find(work)
    before = written(work, "jobs/a.yaml")
    local_changes.carry_out([change_requests.Act("hold", "train", "the data is wrong")], target)
    assert "suspendReason: the data is wrong" in written(work, "jobs/a.yaml").replace('"', "")
    held = written(work, "jobs/a.yaml")
    (again,) = local_changes.carry_out([change_requests.Act("hold", "train")], target)
    assert (written(work, "jobs/a.yaml"), again.message) == (held, "it is held already")
    local_changes.carry_out([change_requests.Act("hold", "train", "so is the code")], target)
    assert "suspendReason: so is the code" in written(work, "jobs/a.yaml").replace('"', "")
    local_changes.carry_out([change_requests.Act("release", "train")], target)
    assert written(work, "jobs/a.yaml") == before


POOLS = documents(
    "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: a}\nspec:\n"
    "  hosts: a[1-8]\n  nodes: {cpu: 8, memory: 8Gi}\n",
    "apiVersion: muster/v1\nkind: NodePool\nmetadata: {name: b}\nspec:\n"
    "  hosts: b[1-2]\n  nodes: {cpu: 8, memory: 8Gi}\n",
)


def test_nodes_are_drained_by_one_commit_a_pool(work: Path) -> None:
    (work / "pools.yaml").write_text(POOLS)
    git(work, "add", "pools.yaml")
    git(work, "commit", "--quiet", "--message", "pools")
    git(work, "push", "--quiet")
    target, before = find(work), git(work, "rev-list", "--count", "HEAD")
    nodes = ("a1", "a2", "a3", "b1")
    done = local_changes.carry_out([change_requests.DrainRequest("drain", nodes, "moved")], target)
    assert [one.name for one in done] == list(nodes)
    assert int(git(work, "rev-list", "--count", "HEAD")) == int(before) + 2
    assert "a[1-3]" in written(work, "pools.yaml")
    assert git(work, "log", "-1", "--format=%s") == "Drain b1: moved"
    local_changes.carry_out([change_requests.DrainRequest("undrain", ("a2", "b1"))], target)
    assert "a[1,3]" in written(work, "pools.yaml")
    with pytest.raises(change_requests.ChangeError, match=r"no override of pool a drains a2"):
        local_changes.carry_out([change_requests.DrainRequest("undrain", ("a1", "a2"))], target)
    with pytest.raises(change_requests.ChangeError, match="there is no Node/c1 in any pool"):
        local_changes.carry_out(
            [change_requests.DrainRequest("drain", ("a4", "c1"), "moved")], target
        )
    with pytest.raises(change_requests.ChangeError, match=r"draining a\[4-5\] needs a --reason"):
        local_changes.carry_out([change_requests.DrainRequest("drain", ("a4", "a5"))], target)
    # what lies about and is not committed keeps nobody from it
    (work / "copy.yaml").write_text(written(work, "pools.yaml"))
    (work / "broken.yaml").write_text("kind: NodePool\nmetadata: {name: x\n")
    (smoking,) = local_changes.carry_out(
        [change_requests.DrainRequest("drain", ("a4",), "smokes")], target
    )
    assert smoking.pushed


@pytest.mark.parametrize("where", ["queues.yaml", "pools.yaml"])
def test_a_mistake_in_another_file_keeps_nobody_from_a_drain(work: Path, where: str) -> None:
    wrong = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: q}\nspec: {guarantee: {gpu: 1}}\n"
    files = {"pools.yaml": POOLS}
    files[where] = f"{files.get(where, '')}\n---\n{wrong}" if where in files else wrong
    for name, text in files.items():
        (work / name).write_text(text)
    git(work, "add", *files)
    git(work, "commit", "--quiet", "--message", "pools, and a queue")
    git(work, "push", "--quiet")
    drain = change_requests.DrainRequest("drain", ("a1",), "smokes")
    if where == "pools.yaml":
        with pytest.raises(change_requests.ChangeError, match=r"correct this first: pools\.yaml"):
            local_changes.carry_out([drain], find(work))
    else:
        (done,) = local_changes.carry_out([drain], find(work))
        assert done.pushed
        assert "smokes" in written(work, "pools.yaml")


def head(work: Path) -> str:
    return git(work, "rev-parse", "HEAD")


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "rerun"])
def test_a_wrong_name_among_several_changes_nothing(
    work: Path, verb: remote_changes.ChangeVerb
) -> None:
    before = head(work)
    acts: list[change_requests.Change] = [
        change_requests.Act(verb, name) for name in ("train", "typo", "x")
    ]
    with pytest.raises(change_requests.ChangeError) as told:
        local_changes.carry_out(acts, find(work))
    assert str(told.value).startswith("nothing was changed: there is no Job/typo in ")
    assert [text[:20] for text in told.value.problems] == ["there is no Job/x in"]
    assert head(work) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (job("new").replace("command", "comand"), "problems?; nothing was submitted"),
        (job("new", queue="nowhere"), "1 problem; nothing was submitted"),
        (job("train", command="other"), "a different job train already exists"),
    ],
)
def test_a_rehearsed_job_is_refused_as_a_submitted_one(work: Path, text: str, message: str) -> None:
    (work / "queues.yaml").write_text(
        "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: default}\nspec: {}\n"
    )
    before, told = head(work), []
    for dry_run in (True, False):
        with pytest.raises(change_requests.ChangeError, match=message) as error:
            local_changes.carry_out([change_requests.Submit(text)], find(work), dry_run=dry_run)
        told.append((str(error.value), error.value.problems))
    assert told[0] == told[1]
    assert head(work) == before


@pytest.mark.parametrize(("queue", "refused"), [("default", True), ("nowhere", False)])
def test_who_is_refused_by_a_policy_alone_is_told_so(work: Path, queue: str, refused: bool) -> None:
    """So that a script tells a rule of the house from a mistake."""
    (work / "policy.yaml").write_text(
        "apiVersion: muster/v1\nkind: Policy\nmetadata: {name: owned}\n"
        "spec: {match: {kinds: [Job]}, message: say where, "
        "schema: {properties: {spec: {required: [reservation]}}}}\n"
    )
    git(work, "add", "policy.yaml")
    git(work, "commit", "--quiet", "--message", "policy")
    text = documents(job("new"), job("other", queue=queue))
    with pytest.raises(change_requests.ChangeError) as told:
        local_changes.carry_out([change_requests.Submit(text)], find(work))
    assert any("say where" in problem for problem in told.value.problems)
    assert told.value.refused is refused


def test_a_rehearsed_job_is_not_submitted(work: Path) -> None:
    before = head(work)
    new = change_requests.Submit(job("new"), "ada@example.org")
    (done,) = local_changes.carry_out([new], find(work), dry_run=True)
    assert done == change_requests.ChangeResult("new", "would be submitted")
    assert head(work) == before
    assert not (work / "jobs" / "new.yaml").exists()


def test_of_a_text_all_jobs_are_submitted_or_none(work: Path) -> None:
    (work / "notes.txt").write_text("mine")
    git(work, "add", "notes.txt")
    (work / "jobs" / "a.yaml").write_text(job("train") + "# later\n")
    before = head(work)
    taken = documents(job("x"), job("train", command="other"), job("y"))
    for wrong in (taken, documents(taken, job("z").replace("command", "comand"))):
        with pytest.raises(change_requests.ChangeError, match=r"nothing was "):
            local_changes.carry_out([change_requests.Submit(wrong)], find(work))
        assert head(work) == before
        assert [path.name for path in (work / "jobs").iterdir()] == ["a.yaml"]
        # what somebody else has in hand there stays as it is
        assert git(work, "status", "--porcelain").split() == ["M", "jobs/a.yaml", "A", "notes.txt"]
    done = local_changes.carry_out(
        [change_requests.Submit(documents(job("x"), job("y")))], find(work)
    )
    assert [one.commit for one in done] == [git(work, "rev-parse", "HEAD~1"), head(work)]
    assert git(work, "rev-parse", "origin/main") == head(work)


def test_several_changes_are_one_push_on_top_of_what_others_pushed(
    work: Path, tmp_path: Path
) -> None:
    for name in ("x", "y"):
        local_changes.carry_out([change_requests.Submit(job(name))], find(work))
    git(tmp_path, "clone", "--quiet", str(tmp_path / "state.git"), "other")
    local_changes.carry_out([change_requests.Submit(job("z"))], find(tmp_path / "other"))
    acts: list[change_requests.Change] = [
        change_requests.Act("cancel", name) for name in ("x", "y")
    ]
    done = local_changes.carry_out(acts, find(work))
    pushed = git(tmp_path / "state.git", "rev-list", "--reverse", "-2", "main").splitlines()
    assert [one.commit for one in done] == pushed, "each is told the commit that holds its change"
    assert sorted(path.name for path in (work / "jobs").iterdir()) == ["a.yaml", "z.yaml"]
    # what can't be pushed stays in the clone, all of it
    local_changes.carry_out([change_requests.Act("cancel", "z")], find(tmp_path / "other"))
    acts = [change_requests.Act("hold", name) for name in ("train", "z")]
    with pytest.raises(change_requests.ChangeError, match="and not pushed: it contradicts"):
        local_changes.carry_out(acts, find(work))
    assert git(work, "rev-list", "--count", "origin/main..HEAD") == "2"


def test_a_clone_that_stays_behind_what_was_pushed_says_so_once(work: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", str(tmp_path / "state.git"), "other")
    local_changes.carry_out([change_requests.Act("hold", "train")], find(tmp_path / "other"))
    with (work / "jobs" / "a.yaml").open("a") as file:
        file.write("# mine\n")
    done = local_changes.carry_out(
        [change_requests.Submit(documents(job("x"), job("y")))], find(work)
    )
    first, second = ([told for told in one.warnings if "stays behind" in told] for one in done)
    assert (len(first), second) == (1, [])
    assert "others changed jobs/a.yaml as well" in first[0]
    pushed = git(tmp_path / "state.git", "rev-list", "main").splitlines()
    assert {one.commit for one in done} <= set(pushed)


def test_who_submits_what_depends_on_nothing_that_is_there_is_told(work: Path) -> None:
    depends = job("b").replace("spec:\n", "spec:\n  dependsOn: [{job: train}, {job: trane}]\n")
    (done,) = local_changes.carry_out([change_requests.Submit(depends)], find(work))
    assert [one for one in done.warnings if "is not there" in one] == [
        "the job trane is not there: this one waits until it is"
    ]


def test_what_is_not_committed_keeps_no_queue_from_being_checked(work: Path) -> None:
    asked = change_requests.Submit(job("b", queue="nosuch"))
    told = "nosuch"
    (work / "pools.yaml").write_text(queue("research", limits=3))
    (work / "queues.yaml").write_text(queue("team"))
    git(work, "add", "queues.yaml")
    git(work, "commit", "--quiet", "-m", "a queue")
    (work / "queues.yaml").write_text(queue("team", nonsense=3))
    for dry_run in (True, False):
        with pytest.raises(change_requests.ChangeError) as error:
            local_changes.carry_out([asked], find(work), dry_run=dry_run)
        assert told in " ".join((str(error.value), *error.value.problems))
    git(work, "add", "queues.yaml")
    git(work, "commit", "--quiet", "-m", "a mistake")
    target = find(work)
    (done,) = local_changes.carry_out([asked], target)
    assert any("could not be checked: queues.yaml" in one for one in done.warnings)
    # where a controller says what is in force, that is what counts
    unknown = "0" * 40
    for kept in (unknown, git(work, "rev-parse", "HEAD~2")):
        target.standing = {"structureRevision": kept}
        again = change_requests.Submit(job("c", queue="nosuch"))
        if kept == unknown:
            (done,) = local_changes.carry_out([again], target, dry_run=True)
            assert any("could not be checked: queues.yaml" in one for one in done.warnings)
            continue
        with pytest.raises(change_requests.ChangeError) as error:
            local_changes.carry_out([again], target)
        assert "nosuch" in " ".join(error.value.problems)
        assert f"against revision {kept[:12]}, in force: queues" in str(error.value)
        (done,) = local_changes.carry_out([change_requests.Submit(job("d", queue="team"))], target)
        assert any(
            f"against revision {kept[:12]}, in force: queues" in one for one in done.warnings
        )


@pytest.mark.parametrize("follows", [True, False])
def test_what_goes_to_another_branch_than_is_read_is_said_not_to_apply(
    work: Path, *, follows: bool
) -> None:
    git(work, "checkout", "--quiet", "-b", "side")
    if follows:
        git(work, "push", "--quiet", "-u", "origin", "side")
    target = find(work)
    target.standing = {"sync": "Synced", "branch": "main"}
    (done,) = local_changes.carry_out([change_requests.Act("hold", "train")], target)
    assert done.refused
    assert "hold not applied yet" in done.message
    assert "reads branch main, but the commit is on side" in done.withheld
    target.standing["branch"] = "side"
    (done,) = local_changes.carry_out([change_requests.Act("release", "train")], target)
    assert (done.refused, done.withheld) == (False, "")


def test_a_branch_of_another_name_that_follows_the_one_that_is_read_is_that_one(work: Path) -> None:
    git(work, "checkout", "--quiet", "-b", "mine", "--track", "origin/main")
    target = find(work)
    target.standing = {"sync": "Synced", "branch": "main"}
    (done,) = local_changes.carry_out([change_requests.Act("hold", "train")], target)
    assert (done.refused, done.withheld) == (False, "")


def test_a_file_that_was_saved_again_meanwhile_is_not_written_over(work: Path) -> None:
    file = work / "jobs" / "new.yaml"
    file.write_text(job("new") + "# saved a moment later\n")
    read = change_requests.Submit(job("new"), place=str(file))
    with pytest.raises(change_requests.ChangeError, match="was changed meanwhile"):
        local_changes.carry_out([read], find(work))
    assert file.read_text().endswith("# saved a moment later\n")
    assert git(work, "status", "--porcelain") == "?? jobs/new.yaml"


def pushed_by_others(tmp_path: Path, path: str) -> None:
    git(tmp_path, "clone", "--quiet", str(tmp_path / "state.git"), "others")
    (tmp_path / "others" / path).parent.mkdir(exist_ok=True)
    (tmp_path / "others" / path).write_text("theirs\n")
    git(tmp_path / "others", "add", "--force", path)
    git(tmp_path / "others", "commit", "--quiet", "-m", "theirs")
    git(tmp_path / "others", "push", "--quiet")


def test_a_file_that_git_ignores_here_is_not_overwritten_by_others(
    work: Path, tmp_path: Path
) -> None:
    (work / ".git" / "info" / "exclude").write_text("notes.txt\n")
    (work / "notes.txt").write_text("mine\n")
    pushed_by_others(tmp_path, "notes.txt")
    (done,) = local_changes.carry_out([change_requests.Act("hold", "train")], find(work))
    assert (work / "notes.txt").read_text() == "mine\n"
    assert any("others changed notes.txt as well" in one for one in done.warnings)
    pushed = git(tmp_path / "state.git", "ls-tree", "-r", "--name-only", "main").split()
    assert {"notes.txt", "jobs/a.yaml"} <= set(pushed)


@pytest.mark.parametrize(
    ("mine", "theirs"), [("kept/data", "kept"), ("kept", "kept/data")], ids=["folder", "file"]
)
def test_what_git_ignores_is_not_removed_for_what_others_added_in_its_place(
    work: Path, tmp_path: Path, mine: str, theirs: str
) -> None:
    (work / ".git" / "info" / "exclude").write_text("kept\n")
    (work / mine).parent.mkdir(exist_ok=True)
    (work / mine).write_text("mine\n")
    pushed_by_others(tmp_path, theirs)
    (done,) = local_changes.carry_out([change_requests.Act("hold", "train")], find(work))
    assert (work / mine).read_text() == "mine\n"
    assert any("stays behind what was pushed" in one for one in done.warnings)


def test_a_file_of_others_is_not_dropped_for_a_folder_of_ours(work: Path, tmp_path: Path) -> None:
    (work / "team").mkdir()
    (work / "team" / "x.yaml").write_text(job("x"))
    pushed_by_others(tmp_path, "team")
    submitted = change_requests.Submit(job("x"), place=str(work / "team" / "x.yaml"))
    with pytest.raises(change_requests.ChangeError, match="others made a file of team"):
        local_changes.carry_out([submitted], find(work))
    assert "team" in git(tmp_path / "state.git", "ls-tree", "--name-only", "main").split()


def test_a_submission_by_a_clone_says_that_nobody_leads(work: Path) -> None:
    """As the controller says it where it makes the commit itself."""
    target = find(work)
    target.standing = {"sync": "Synced", "branch": "main", "blocked": "another store leads"}
    (done,) = local_changes.carry_out([change_requests.Submit(job("x"))], target)
    (warning,) = [one for one in done.warnings if "nothing starts yet" in one]
    assert "this controller does not lead: another store leads. When it does" in warning
    assert (bool(done.commit), done.refused, done.withheld) == (True, False, "")
    (again,) = local_changes.carry_out([change_requests.Submit(job("x"))], target)
    assert not [one for one in again.warnings if "nothing starts" in one], "nothing was made"
    (held,) = local_changes.carry_out([change_requests.Act("hold", "x")], target)
    assert held.warnings == ()
    target.standing["blocked"] = ""
    (led,) = local_changes.carry_out([change_requests.Submit(job("y"))], target)
    assert not [one for one in led.warnings if "nothing starts" in one]

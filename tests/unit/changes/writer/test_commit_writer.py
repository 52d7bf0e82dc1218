"""Requests become commits in real repositories: local, remote, and checked out."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from reconciler.changes import yaml_edit
from reconciler.changes.requests import (
    AddJob,
    EditObject,
    Fields,
    Person,
    RemoveObject,
    Request,
    RequestGroup,
    ReviseObject,
)
from reconciler.changes.writer import batch, commit_writer, signing
from reconciler.desired.apply import loader
from reconciler.desired.git import source
from reconciler.model import desired
from tests.unit.desired.repositories import Repository, documents, git, job, queue

ALICE = Person("Alice", "alice@example.org")
BOB = Person("Bob <bob>", "bob@example.org")
NOW = 1_800_000_000

Make = Callable[..., commit_writer.CommitWriter]


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    made: list[commit_writer.CommitWriter] = []

    def _make(address: str | Path | None = None, **more: Any) -> commit_writer.CommitWriter:
        place = source.GitSource(str(address or repository.path), **more)
        made.append(commit_writer.CommitWriter(place))
        return made[-1]

    yield _make
    for one in made:
        one.close()


def add(name: str, author: Person = ALICE, **spec: int) -> AddJob:
    return AddJob(job(name, command="echo", **spec), name, author)


def show(repository: Repository, path: str) -> str:
    return git(repository.path, "show", f"main:{path}")


def log(repository: Repository, form: str) -> list[str]:
    return git(repository.path, "log", f"--format={form}", "main").splitlines()


def test_submit(repository: Repository, make: Make) -> None:
    repository.commit({"queues.yaml": queue("research")})
    one = make()
    requests = [add("a"), add("b"), add("c", BOB), add("a"), add("b", priority=9)]
    results = one.write(requests, now=NOW)
    assert [r.status for r in results] == [
        "accepted",
        "accepted",
        "accepted",
        "unchanged",
        "refused",
    ]
    head = git(repository.path, "rev-parse", "main")
    assert results[0].commit == results[2].commit == head
    assert "use another name" in results[4].message
    assert show(repository, "jobs/c.yaml") + "\n" == job("c")
    assert log(repository, "%an|%ae|%cn|%ct")[:2] == [
        f"Bob bob|bob@example.org|muster|{NOW}",
        f"Alice|alice@example.org|muster|{NOW}",
    ]
    assert one.write([add("a")], now=NOW)[0].status == "unchanged"
    assert git(repository.path, "rev-parse", "main") == head
    git(repository.path, "fsck", "--strict")
    reading = loader.Loader(source.GitSource(str(repository.path)))
    assert set(reading.load().jobs) == {"a", "b", "c"}
    reading.close()


def test_bad_submissions(repository: Repository, make: Make) -> None:
    repository.commit({"x/y.yaml": documents(job("taken"), queue("q"))})
    bad = [
        AddJob("a: [", "a", ALICE),
        AddJob(job("a"), "b", ALICE),
        AddJob(queue("a"), "a", ALICE),
        AddJob(documents(job("a"), job("b")), "a", ALICE),
        AddJob(job("a", nonsense=1), "a", ALICE),
        AddJob(job("../a"), "../a", ALICE),
        add("taken", priority=4),
    ]
    results = make().write([*bad, add("good")], now=NOW)
    assert [r.status for r in results] == ["refused"] * 7 + ["accepted"]
    assert all(r.message for r in results[:-1])
    assert make().write([add("taken")], now=NOW)[0].status == "unchanged"


def test_what_a_bad_submission_runs_is_not_quoted(repository: Repository, make: Make) -> None:
    """Everybody sees why one that waited for git is refused."""
    repository.commit({"a.yaml": job("a")})
    text = add("e").text + "  environment: {TOKEN: 48121}\n"
    (result,) = make().write([AddJob(text, "e", ALICE)], now=NOW)
    assert "spec.environment.TOKEN" in result.message
    assert "48121" not in result.message


def test_what_goes_together_is_done_whole_or_not_at_all(repository: Repository, make: Make) -> None:
    repository.commit({"x.yaml": documents(job("taken"), queue("q"))})
    one = make()
    drop = RemoveObject("Job", "taken", ALICE)
    results = one.write(
        [
            RequestGroup((add("a"), drop, add("a", priority=9), add("b"))),
            add("b", BOB),
            RequestGroup((add("c"), add("b"), drop)),
        ],
        now=NOW,
    )
    assert [r.status for r in results] == [
        *("withdrawn", "withdrawn", "refused", "withdrawn"),
        "accepted",
        *("accepted", "unchanged", "accepted"),
    ]
    assert "use another name" in results[2].message
    assert [results[position].commit for position in (0, 1, 3)] == [None] * 3
    listed = git(repository.path, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert listed == ["jobs/b.yaml", "jobs/c.yaml", "x.yaml"]
    assert "taken" not in show(repository, "x.yaml")
    assert log(repository, "%an")[:2] == ["Alice", "Bob bob"]
    head = git(repository.path, "rev-parse", "main")
    (gone, kept) = one.write([RequestGroup((drop, add("d")))], now=NOW)
    assert (gone.status, kept.status) == ("missing", "withdrawn")
    assert git(repository.path, "rev-parse", "main") == head
    git(repository.path, "update-ref", "-d", "refs/heads/main")
    git(repository.path, "update-ref", "refs/heads/other", head)
    failed = one.write([RequestGroup((add("e"), add("f"))), add("g")], now=NOW)
    assert [r.status for r in failed] == ["failed"] * 3


def test_edit_and_remove(repository: Repository, make: Make) -> None:
    text = "# mine\n" + documents(job("a"), "# b's\n" + job("b"))
    repository.commit({"team/jobs.yaml": text, "c.yaml": job("c")})
    one = make()
    requests: list[Request] = [
        EditObject("Job", "b", ((("spec", "suspend"), True),), ALICE, "paper"),
        EditObject("Job", "b", ((("spec", "nonsense"), True),), ALICE),
        EditObject("Job", "nobody", ((("spec", "run"), 2),), ALICE),
        RemoveObject("Job", "c", BOB),
        RemoveObject("Job", "nobody", BOB),
        EditObject("Job", "a", ((("spec", "suspend"), yaml_edit.REMOVED),), ALICE),
        RemoveObject("Job", "a", BOB),
        add("a", BOB),
    ]
    results = one.write(requests, now=NOW)
    assert [r.status for r in results] == [
        "accepted",
        "refused",
        "missing",
        "accepted",
        "missing",
        "unchanged",
        "accepted",
        "accepted",
    ]
    assert show(repository, "team/jobs.yaml").splitlines()[0] == "# b's"
    assert "  suspend: true" in show(repository, "team/jobs.yaml").splitlines()
    names = git(repository.path, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert names == ["jobs/a.yaml", "team/jobs.yaml"]
    assert log(repository, "%s")[1] == "Change suspend of Job/b: paper"


def test_others_push_in_between(repository: Repository, make: Make) -> None:
    repository.commit({"a.yaml": job("a")})
    one, other = make(), make()
    for number in range(3):
        assert one.write([add(f"one-{number}")], now=NOW)[0].status == "accepted"
        assert other.write([add(f"other-{number}")], now=NOW)[0].status == "accepted"
    assert one.write([add("other-1", priority=3)], now=NOW)[0].status == "refused"
    assert len(log(repository, "%H")) == 7


def test_remote(repository: Repository, make: Make, tmp_path: Path) -> None:
    repository.commit({"state/a.yaml": job("a")})
    address = f"file://{repository.path}"
    one = make(address, state=tmp_path / "one", sub_path="state")
    other = make(address, state=tmp_path / "other", sub_path="state")
    assert one.write([add("b")], now=NOW)[0].status == "accepted"
    result = other.write([add("c")], now=NOW)[0]
    assert (result.status, result.path) == ("accepted", "state/jobs/c.yaml")
    assert one.write([add("d")], now=NOW)[0].commit == git(repository.path, "rev-parse", "main")
    repository.path.rename(tmp_path / "away")
    assert one.write([add("e")], now=NOW)[0].status == "failed"


def _refuse_secrets(repository: Repository) -> None:
    """Have the remote refuse what contains a certain word, as scanners of secrets do."""
    hook = repository.path / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\n"
        "while read _ new _; do\n"
        "  git grep -q AKIA $new -- || continue\n"
        "  echo 'a secret in the push' >&2; exit 1\n"
        "done\n"
    )
    hook.chmod(0o755)


def _secret(name: str) -> AddJob:
    return AddJob(f"{job(name)}# AKIA1234\n", name, BOB)


def test_what_the_remote_refuses_costs_the_others_nothing(
    repository: Repository, make: Make, tmp_path: Path
) -> None:
    repository.commit({"a.yaml": job("a")})
    _refuse_secrets(repository)
    one = make(f"file://{repository.path}", state=tmp_path / "state")
    together = RequestGroup((add("d"), _secret("e")))
    batch_: list[Request | RequestGroup] = [
        add("b"),
        _secret("c"),
        together,
        *(add(f"good-{n}") for n in range(5)),
        _secret("f"),
    ]
    results = one.write(batch_, now=NOW)
    expected = ["accepted", "rejected", "rejected", "rejected", *["accepted"] * 5, "rejected"]
    assert [result.status for result in results] == expected
    told = "the repository refuses it (pre-receive hook declined): a secret in the push"
    assert results[1].message == told
    assert show(repository, "jobs/good-4.yaml")
    assert git(repository.path, "ls-tree", "--name-only", "main", "jobs/").split() == [
        "jobs/b.yaml", *(f"jobs/good-{n}.yaml" for n in range(5))
    ]  # fmt: skip
    assert one.write([add("last")], now=NOW)[0].status == "accepted"


def test_a_remote_that_refuses_everything_is_not_asked_for_ever(
    repository: Repository, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"a.yaml": job("a")})
    _refuse_secrets(repository)
    monkeypatch.setattr(commit_writer, "REFUSALS_MAX", 4)
    one = make(f"file://{repository.path}", state=tmp_path / "state")
    results = one.write([_secret(f"b-{n}") for n in range(8)], now=NOW)
    assert [result.status for result in results] == ["rejected"] * 2 + ["failed"] * 6


def test_a_remote_that_can_take_nothing_now_refuses_nothing(
    repository: Repository, make: Make, tmp_path: Path
) -> None:
    repository.commit({"a.yaml": job("a")})
    git(repository.path, "config", "receive.maxInputSize", "1")
    one = make(f"file://{repository.path}", state=tmp_path / "state")
    assert [result.status for result in one.write([add("b"), add("c")], now=NOW)] == ["failed"] * 2


def test_losing_the_race_is_tried_again(repository: Repository, make: Make, tmp_path: Path) -> None:
    """A hook lets somebody else's commit in right before ours, twice."""
    repository.commit({"a.yaml": job("a")})
    git(repository.path, "branch", "spare", "main")
    hook = repository.path / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\n"
        "n=$(git rev-list --count main)\n"
        "[ $n -ge 3 ] && exit 0\n"
        "unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES\n"
        "export GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x\n"
        "git update-ref refs/heads/main "
        '"$(git commit-tree -p main -m other main^{tree})"\n'
    )
    hook.chmod(0o755)
    one = make(f"file://{repository.path}", state=tmp_path / "state")
    assert one.write([add("b")], now=NOW)[0].status == "accepted"
    assert log(repository, "%s") == ["Submit Job/b", "other", "other", "test"]


def test_empty_repository(repository: Repository, make: Make) -> None:
    assert make().write([add("a")], now=NOW)[0].status == "accepted"
    assert log(repository, "%s") == ["Submit Job/a", "Begin"]


def test_missing_branch_is_not_made(repository: Repository, make: Make) -> None:
    repository.commit({"a.yaml": job("a")}, branch="other")
    result = make().write([add("a")], now=NOW)[0]
    assert result.status == "failed"
    assert "no branch main" in result.message


def test_checked_out_branch(repository: Repository, make: Make, tmp_path: Path) -> None:
    repository.commit({"a.yaml": job("a")})
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(repository.path), str(clone))
    (clone / "untracked.txt").write_text("mine")
    one = make(clone)
    assert one.write([add("b")], now=NOW)[0].status == "accepted"
    assert (clone / "jobs" / "b.yaml").read_text() == job("b")
    assert git(clone, "status", "--porcelain") == "?? untracked.txt"
    (clone / "jobs" / "c.yaml").write_text("mine")
    result = one.write([add("c")], now=NOW)[0]
    assert result.status == "conflict"
    assert (clone / "jobs" / "c.yaml").read_text() == "mine"
    (clone / "jobs" / "c.yaml").unlink()
    (clone / "a.yaml").write_text("changed")
    result = one.write([add("c")], now=NOW)[0]
    assert result.status == "failed"
    assert "not committed" in result.message
    assert (clone / "a.yaml").read_text() == "changed"
    git(clone, "checkout", "--quiet", "-b", "work")
    assert one.write([add("c")], now=NOW)[0].status == "accepted"
    assert (clone / "a.yaml").read_text() == "changed"


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"jobs/d.yaml/inner.yaml": job("inner")}, "jobs/d.yaml is a folder"),
        ({"jobs/d.yaml/README": "mine"}, "jobs/d.yaml is a folder"),
        ({"jobs": "mine"}, "jobs is a file"),
        ({"jobs/d.yaml": "../q.yaml"}, "jobs/d.yaml is a link"),
    ],
)
def test_a_submission_takes_the_place_of_nothing(
    repository: Repository, make: Make, there: dict[str, str], told: str
) -> None:
    modes = {path: "120000" for path, text in there.items() if text.startswith("../")}
    repository.commit({"q.yaml": queue("q"), **there}, modes=modes)
    before = git(repository.path, "ls-tree", "-r", "main").splitlines()
    one = make()
    results = one.write(
        [add("d"), EditObject("Queue", "q", ((("spec", "suspend"), True),), ALICE)], now=NOW
    )
    assert [result.status for result in results] == ["conflict", "accepted"]
    assert told in results[0].message
    assert "choose another name" in results[0].message
    after = git(repository.path, "ls-tree", "-r", "main").splitlines()
    kept = [line for line in before if not line.endswith("\tq.yaml")]
    assert kept == [line for line in after if not line.endswith("\tq.yaml")]


def test_what_is_in_the_way_is_looked_for_in_each_revision(
    repository: Repository, make: Make
) -> None:
    repository.commit({"jobs": "mine", "q.yaml": queue("q")})
    one = make()
    assert one.write([add("d")], now=NOW)[0].status == "conflict"
    repository.commit({"jobs": None})
    assert one.write([add("d")], now=NOW)[0].status == "accepted"
    repository.commit({"jobs/e.yaml/inner.yaml": job("inner")})
    assert one.write([add("e")], now=NOW)[0].status == "conflict"
    repository.commit({"jobs/e.yaml/inner.yaml": None})
    assert one.write([add("e")], now=NOW)[0].status == "accepted"


def test_files_with_strange_names(repository: Repository, make: Make) -> None:
    path = 'team "x"/grüße.yaml'
    repository.commit({f'"{path}"'.replace(' "x"', ' \\"x\\"'): job("a")})
    one = make()
    result = one.write([EditObject("Job", "a", ((("spec", "run"), 2),), ALICE)], now=NOW)[0]
    assert (result.status, result.path) == ("accepted", path)
    assert "run: 2" in show(repository, path)


def test_what_depends_on_the_document_is_worked_out_again_when_others_were_faster(
    repository: Repository, make: Make
) -> None:
    spec = "{hosts: 'n[1-9]', nodes: {cpu: 4, memory: 8Gi}}"
    pool = f"apiVersion: muster/v1\nkind: NodePool\nmetadata: {{name: p}}\nspec: {spec}\n"
    repository.commit({"pool.yaml": pool})
    one, other = make(), make()
    seen: list[int] = []

    def drain(node: str, meanwhile: Callable[[], object]) -> ReviseObject:
        def revise(document: Mapping[str, Any]) -> Fields:
            there = document["spec"].get("overrides", [])
            seen.append(len(there))
            meanwhile()
            added = {"hosts": node, "reason": "fan"}
            return ((("spec", "overrides", len(there)), added),)

        return ReviseObject("NodePool", "p", revise, ALICE)

    def push_first() -> None:
        if len(seen) == 1:
            (done,) = other.write([drain("n2", lambda: None)], now=NOW)
            assert done.status == "accepted"

    results = one.write([drain("n1", push_first), drain("n3", lambda: None)], now=NOW)
    assert [result.status for result in results] == ["accepted", "accepted"]
    text = show(repository, "pool.yaml")
    assert [text.count(node) for node in ("hosts: n1", "hosts: n2", "hosts: n3")] == [1, 1, 1]
    assert seen[-2:] == [1, 2], "each was worked out below what came before it"


def test_a_dry_run_tells_and_writes_nothing(repository: Repository, make: Make) -> None:
    repository.commit({"jobs/train.yaml": job("train")})
    head = git(repository.path, "rev-parse", "main")
    requests: list[Request] = [RemoveObject("Job", "train", ALICE), RemoveObject("Job", "x", ALICE)]
    results = make().write(requests, now=NOW, dry_run=True)
    assert [(r.status, r.commit) for r in results] == [("accepted", None), ("missing", None)]
    assert git(repository.path, "rev-parse", "main") == head


def test_names_that_are_like_it_are_told(repository: Repository, make: Make) -> None:
    repository.commit({"jobs/a.yaml": documents(job("train-1"), job("train-2"), job("test"))})
    (result,) = make().write([RemoveObject("Job", "trian-1", ALICE)], now=NOW)
    told = "there is no Job/trian-1 in the repository; did you mean train-1 or train-2?"
    assert result.message == told


def test_many_names_that_are_not_there_are_not_all_compared(
    repository: Repository, make: Make
) -> None:
    """Everybody's changes wait in one line, and to look for what is alike takes long."""
    repository.commit({"jobs/a.yaml": job("train-1")})
    names = [f"trian-{number}" for number in range(2 * batch.REFUSED_MAX)]
    asked = RequestGroup(tuple(RemoveObject("Job", name, ALICE) for name in names))
    together, by_itself = [make().write([one], now=NOW) for one in (asked, *asked.requests[:1])]
    assert [one.status for one in together] == (
        ["missing"] * batch.REFUSED_MAX + ["withdrawn"] * batch.REFUSED_MAX
    )
    assert sum("did you mean" in one.message for one in together) == batch.HINTS_MAX
    assert by_itself[0].message == together[0].message


def test_a_document_that_moves_to_another_file_is_found_there(
    repository: Repository, make: Make
) -> None:
    repository.commit({"a.yaml": job("a"), "z.yaml": documents(job("b"), job("x"))})
    one = make()
    assert one.write([add("a")], now=NOW)[0].status == "unchanged"
    repository.commit({"a.yaml": documents(job("a"), job("x")), "z.yaml": job("b")})
    hold = EditObject("Job", "x", ((("spec", "suspend"), True),), ALICE)
    results = one.write([hold, add("x", priority=3)], now=NOW)
    assert [(result.status, result.path) for result in results] == [
        ("accepted", "a.yaml"),
        ("refused", "a.yaml"),
    ]
    assert one.write([RemoveObject("Job", "x", ALICE)], now=NOW)[0].status == "accepted"
    assert show(repository, "a.yaml") + "\n" == job("a")


def test_the_second_of_a_name_is_found_when_the_first_goes(
    repository: Repository, make: Make
) -> None:
    repository.commit({"a.yaml": job("x")})
    one = make()
    assert one.write([add("x")], now=NOW)[0].status == "unchanged"
    repository.commit({"b.yaml": job("x", priority=2)})
    assert one.write([add("x")], now=NOW)[0].path == "a.yaml"
    assert one.write([add("x", priority=2)], now=NOW)[0].path == "b.yaml"
    repository.commit({"a.yaml": None})
    assert one.write([add("x")], now=NOW)[0].status == "refused"
    assert one.write([RemoveObject("Job", "x", ALICE)], now=NOW)[0].path == "b.yaml"


def test_several_documents_of_a_name(repository: Repository, make: Make) -> None:
    """Which one counts is not the writer's to say; what is to go goes wherever it stands."""
    alike = documents(job("x"), job("a"), job("x", priority=3))
    repository.commit({"a.yaml": alike, "b.yaml": job("x", priority=2)})
    one = make()
    hold = EditObject("Job", "x", ((("spec", "suspend"), True),), ALICE)
    results = one.write(
        [
            hold,
            RemoveObject("Job", "x", ALICE),
            RemoveObject("Job", "x", ALICE, several="all"),
            RemoveObject("Job", "x", ALICE, several="all"),
            hold,
        ],
        now=NOW,
    )
    assert [result.status for result in results] == [
        "conflict",
        "conflict",
        "accepted",
        "missing",
        "missing",
    ]
    told = "Job/x is there 3 times, in a.yaml (2 times), b.yaml: take out all but one first"
    assert results[0].message == told
    assert git(repository.path, "ls-tree", "-r", "--name-only", "main").splitlines() == ["a.yaml"]
    assert show(repository, "a.yaml") + "\n" == job("a")


def test_copies_of_a_document_leave_together(repository: Repository, make: Make) -> None:
    copies = {"a.yaml": documents(job("x"), job("x")), "b.yaml": "# a copy\n" + job("x")}
    others = {"c.yaml": job("y"), "d.yaml": job("y", priority=2)}
    repository.commit({**copies, **others})
    one = make()
    wanted = [RemoveObject("Job", name, ALICE, several="alike") for name in "xy"]
    assert [result.status for result in one.write(wanted, now=NOW)] == ["accepted", "conflict"]
    left = git(repository.path, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert left == ["c.yaml", "d.yaml"]


def test_no_name_of_a_commit_is_left(
    repository: Repository, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a process that was killed before it took the name away, nor of this one."""
    repository.commit({"a.yaml": job("a")})
    head = git(repository.path, "rev-parse", "main").strip()
    git(repository.path, "update-ref", "refs/muster/writing/1-2", head)
    one = make()
    assert one.write([add("b")], now=NOW)[0].status == "accepted"
    assert not git(repository.path, "for-each-ref", "refs/muster/writing/")

    def killed(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(one, "_publish", killed)
    monkeypatch.setattr(signing, "sign", killed)
    monkeypatch.setattr(one, "_signing_key", repository.path)
    with pytest.raises(KeyboardInterrupt):
        one.write([add("c")], now=NOW)
    assert not git(repository.path, "for-each-ref", "refs/muster/writing/")


def test_an_object_that_is_not_of_muster_is_left_alone(repository: Repository, make: Make) -> None:
    foreign = job("x").replace("muster/v1", "batch/v1")
    repository.commit({"a.yaml": documents(foreign, "note: mine\n", job("x"))})
    revise = ReviseObject("Job", "x", lambda _: ((("spec", "suspend"), True),), ALICE)
    assert make().write([revise], now=NOW)[0].status == "accepted"
    assert make().write([RemoveObject("Job", "x", ALICE)], now=NOW)[0].status == "accepted"
    assert show(repository, "a.yaml") + "\n" == documents(foreign, "note: mine\n")


def test_a_file_that_cannot_be_read_may_hold_what_is_missing(
    repository: Repository, make: Make
) -> None:
    repository.commit({"a.yaml": "a: [", "b.yaml": job("b")})
    (result,) = make().write([RemoveObject("Job", "x", ALICE)], now=NOW)
    assert result.status == "missing"
    assert result.message.endswith("; a.yaml can't be read and may hold it: mend that file first")


def test_what_nobody_thought_of_costs_one_request_only(
    repository: Repository, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    repository.commit({"a.yaml": documents(job("a"), job("b"))})

    def revise(document: Mapping[str, Any]) -> Fields:
        return ((("spec", "run"), document["spec"]["nobody wrote this"]),)

    broken = ReviseObject("Job", "a", revise, ALICE)
    group = RequestGroup((add("d"), broken))
    results = make().write([broken, add("c", BOB), group], now=NOW)
    assert [result.status for result in results] == ["defect", "accepted", "withdrawn", "defect"]
    assert "nobody wrote this" in caplog.text
    assert show(repository, "jobs/c.yaml") + "\n" == job("c")


def test_text_that_is_none_costs_one_request_only(repository: Repository, make: Make) -> None:
    repository.commit({"a.yaml": job("a")})
    odd = "\ud800"
    results = make().write(
        [
            EditObject("Job", "a", ((("spec", "suspendReason"), odd),), ALICE),
            EditObject("Job", "a", ((("spec", "suspend"), True),), Person(odd, odd), odd),
            add("b"),
        ],
        now=NOW,
    )
    assert [result.status for result in results] == ["refused", "accepted", "accepted"]


def test_a_file_whose_name_git_can_t_be_asked_for_costs_nobody_else(
    repository: Repository, make: Make
) -> None:
    repository.commit({"queues.yaml": queue("research"), '"jobs/a\\nb.yaml"': job("odd")})
    remove, submit = make().write([RemoveObject("Job", "odd", ALICE), add("fine", BOB)], now=NOW)
    assert (remove.status, submit.status) == ("conflict", "accepted")
    assert "line break in its name: rename it" in remove.message


COPIES = {"jobs/a.yaml": job("a"), "x/a.yaml": job("a", priority=1), "y/a.yaml": job("a")}
RAISED = EditObject("Job", "a", ((("spec", "run"), 2),), ALICE)
SAME = EditObject("Job", "a", ((("metadata", "name"), "a"),), ALICE)


@pytest.mark.parametrize(
    ("home", "later", "request_", "told"),
    [
        ("jobs/a.yaml", {}, RAISED, ("accepted", ["jobs/a.yaml"])),
        ("jobs/a.yaml", {}, RemoveObject("Job", "a", ALICE), ("accepted", [])),
        ("jobs/a.yaml", {}, add("a", priority=9), ("refused", list(COPIES))),
        ("jobs/a.yaml", {}, SAME, ("unchanged", list(COPIES))),
        ("", {}, add("a"), ("accepted", ["jobs/a.yaml"])),
        ("", {}, RAISED, ("conflict", list(COPIES))),
        # what changed since the controller judged may count by now
        ("jobs/a.yaml", {"x/a.yaml": job("a", priority=2)}, RAISED, ("conflict", list(COPIES))),
        # nobody knows what is in force
        ("z/a.yaml", {}, RAISED, ("conflict", list(COPIES))),
    ],
)  # fmt: skip
def test_refused_documents_go_with_a_change_that_is_accepted_and_else_stay(
    repository: Repository,
    home: str,
    later: dict[str, str],
    request_: Request,
    told: tuple[str, list[str]],
) -> None:
    judged = repository.commit({"queues.yaml": queue("research"), **COPIES})
    repository.commit(later or {"other.yaml": queue("other")})
    one = commit_writer.CommitWriter(
        source.GitSource(str(repository.path)),
        refused=lambda name: desired.RefusedJob(judged, home) if name == "a" else None,
    )
    (result,) = one.write([request_], now=NOW)
    one.close()
    listed = git(repository.path, "ls-tree", "-r", "--name-only", "main").splitlines()
    assert (result.status, [path for path in listed if path.endswith("a.yaml")]) == told
    if result.status == "accepted":
        assert log(repository, "%an %s")[1] == "muster Take out refused documents of Job/a"

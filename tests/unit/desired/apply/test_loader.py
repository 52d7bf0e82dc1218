"""What is in force after each commit: by real repositories."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from reconciler.desired.apply import last_good, loader, structure
from reconciler.desired.git import source
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired
from reconciler.model.rules import review_findings
from tests.unit.desired.repositories import Repository, documents, git, job, queue

Make = Callable[..., loader.Loader]


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    made: list[loader.Loader] = []

    def _make(known: last_good.LastGood | None = None, **more: Any) -> loader.Loader:
        start = known or last_good.LastGood()
        one = loader.Loader(
            source.GitSource(str(repository.path)), start, clock=lambda: 5.0, **more
        )
        made.append(one)
        return one

    yield _make
    for one in made:
        one.close()


def restarted(make: Make, before: loader.Loader, **more: Any) -> loader.Loader:
    """A new loader that knows only what was remembered."""
    return make(last_good.decode(last_good.encode(before.incumbents())), **more)


def rules(value: desired.Desired) -> list[str]:
    return sorted(problem.rule for problem in value.status.problems)


BASE = {"queues.yaml": queue("research"), "jobs/a.yaml": job("a", queue="research")}


def test_first_load(repository: Repository, make: Make) -> None:
    head = repository.commit(BASE)
    value = make().load()
    assert value.generation == 1
    assert value.status == desired.SyncStatus(
        sync="Synced",
        attempted_revision=head,
        structure_revision=head,
        jobs_revision=head,
        checked_at=5.0,
    )
    assert set(value.jobs) == {"a"}
    assert value.jobs["a"].path == "jobs/a.yaml"
    assert set(value.structure.queues) == {"default", "research"}


def test_nothing_changed_is_the_same_generation(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    first = one.load()
    assert one.load().generation == first.generation
    head = repository.commit({"jobs/a.yaml": "# a comment\n" + BASE["jobs/a.yaml"]})
    again = one.load()
    assert again.generation == first.generation
    assert again.jobs is not None
    assert again.status.jobs_revision == again.status.structure_revision == head


def test_change_and_removal(repository: Repository, make: Make) -> None:
    repository.commit({**BASE, "jobs/b.yaml": job("b"), "jobs/c.yaml": job("c")})
    one = make()
    first = one.load()
    repository.commit({"jobs/b.yaml": None, "jobs/a.yaml": job("a", queue="research", priority=9)})
    second = one.load()
    assert set(second.jobs) == {"a", "c"}
    assert second.jobs["a"].priority == 9
    assert second.jobs["a"].hash == first.jobs["a"].hash
    assert second.jobs["c"] is first.jobs["c"]


BAD_STRUCTURE = {
    "schema": queue("research", nonsense=1),
    "unknown kind": "apiVersion: muster/v1\nkind: Pool\nmetadata: {name: x}\nspec: {}\n",
    "not built": queue("research", borrowingLimit={"gpu": 1}),
    "unknown parent": queue("research", parent="nobody"),
    "duplicate": documents(queue("research"), queue("research")),
    "unreadable": "a: [\n",
}


@pytest.mark.parametrize("text", BAD_STRUCTURE.values(), ids=BAD_STRUCTURE.keys())
def test_bad_structure_stays_as_it_was_alone_and_jobs_apply(
    repository: Repository, make: Make, text: str
) -> None:
    good = repository.commit(BASE)
    one = make()
    first = one.load()
    head = repository.commit(
        {
            "queues.yaml": text,
            "other.yaml": queue("other"),
            "jobs/b.yaml": job("b", queue="research"),
            "jobs/c.yaml": job("c", queue="other"),
        }
    )
    for value in (one.load(), restarted(make, one).load()):
        assert value.structure.queues["research"] == first.structure.queues["research"]
        assert set(value.structure.queues) == {"default", "research", "other"}
        assert set(value.jobs) == {"a", "b", "c"}
        assert value.status.sync == "OutOfSync"
        assert value.status.structure_revision == good
        assert value.status.jobs_revision == value.status.attempted_revision == head
    fixed = repository.commit({"queues.yaml": queue("research")})
    value = one.load()
    assert set(value.jobs) == {"a", "b", "c"}
    assert value.status.sync == "Synced"
    assert value.status.structure_revision == fixed


BAD_JOBS = {
    "schema": job("a", queue="research", nonsense=1),
    "both": job("a", queue="research", script="x"),
    "unknown queue": job("a", queue="nowhere"),
    "unknown class": job("a", queue="research", priorityClass="nowhere"),
    "unreadable": "a: [\n",
    "no name": job("a").replace("name: a", "nam: a"),
    "nothing of muster": "services: {}\n",
    "kind in lower case": job("a").replace("Job", "job"),
    "duplicate key": job("a") + "spec: {}\n",
}


@pytest.mark.parametrize("text", BAD_JOBS.values(), ids=BAD_JOBS.keys())
def test_bad_job_keeps_its_last_good_version(repository: Repository, make: Make, text: str) -> None:
    repository.commit({**BASE, "jobs/b.yaml": job("b")})
    one = make()
    first = one.load()
    head = repository.commit({"jobs/a.yaml": text, "more.yaml": queue("more")})
    for value in (one.load(), restarted(make, one).load()):
        assert value.jobs["a"] == first.jobs["a"]
        assert set(value.jobs) == {"a", "b"}
        assert not value.refused
        assert value.status.sync == "OutOfSync"
        assert value.status.structure_revision == head
        problem = next(p for p in value.status.problems if p.severity == "error")
        assert problem.path == "jobs/a.yaml"
        assert problem.line > 0
    repository.commit({"jobs/a.yaml": None})
    assert set(one.load().jobs) == {"b"}


def test_commits_while_the_controller_was_away(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    first = one.load()
    known = one.incumbents()
    repository.commit({"jobs/a.yaml": "a: ["})
    repository.commit({"queues.yaml": queue("research", nonsense=1)})
    value = make(known).load()
    assert value.jobs == first.jobs
    assert value.structure == first.structure
    assert value.generation > first.generation


def test_a_job_that_cannot_be_read_is_told_of_as_a_validation_does(
    repository: Repository, make: Make
) -> None:
    repository.commit({**BASE, "jobs/b.yaml": job("b").replace("command:", "comand:")})
    value = make().load()
    (problem,) = (one for one in value.status.problems if one.object == "Job/b")
    assert (problem.line, problem.field) == (5, "spec.comand")
    assert value.refused["b"] == problem.told()
    assert value.refused["b"].startswith("spec.comand: ")
    assert value.refused["b"].endswith(f" (jobs/b.yaml:5:{problem.column})")


def test_job_without_any_good_version_is_refused(repository: Repository, make: Make) -> None:
    repository.commit({**BASE, "jobs/b.yaml": job("b", queue="nowhere")})
    one = make()
    value = one.load()
    assert set(value.refused) == {"b"}
    told = value.refused["b"]
    assert told.startswith('spec.queue: unknown queue: add it or name another; found "nowhere"; ')
    assert "expected one of " in told
    assert told.endswith(" (jobs/b.yaml:6:10)")
    repository.commit({"jobs/b.yaml": job("b", queue="reserch")})
    assert "did you mean research? (jobs/b.yaml:6:10)" in one.load().refused["b"]
    repository.commit({"jobs/b.yaml": job("b", queue="nowhere")})
    repository.commit({"nowhere.yaml": queue("nowhere")})
    value = one.load()
    assert set(value.jobs) == {"a", "b"}
    assert not value.refused


def test_first_load_with_bad_structure(repository: Repository, make: Make) -> None:
    repository.commit(
        {"q.yaml": queue("q", parent="no"), "a.yaml": job("a", queue="q"), "b.yaml": job("b")}
    )
    value = make().load()
    assert set(value.structure.queues) == {"default"}
    assert set(value.refused) == {"a"}
    assert set(value.jobs) == {"b"}
    assert value.status.structure_revision is None
    assert value.status.sync == "OutOfSync"


def test_of_two_of_one_name_the_incumbent_stays(repository: Repository, make: Make) -> None:
    repository.commit({"z.yaml": job("a", priority=1)})
    one = make()
    one.load()
    repository.commit({"b.yaml": job("a", priority=2)})
    for value in (one.load(), restarted(make, one).load()):
        assert value.jobs["a"].priority == 1
        (problem,) = value.status.problems
        assert problem.rule == "duplicate-name"
        assert problem.path == "b.yaml"
        assert "z.yaml:1" in problem.message
    repository.commit({"z.yaml": None})
    value = one.load()
    assert value.jobs["a"].priority == 2
    assert value.status.sync == "Synced"


def test_newcomer_beside_an_unreadable_incumbent(repository: Repository, make: Make) -> None:
    repository.commit({"z.yaml": job("a", priority=1)})
    one = make()
    one.load()
    repository.commit({"z.yaml": "a: [", "b.yaml": job("a", priority=2)})
    for value in (one.load(), restarted(make, one).load()):
        assert value.jobs["a"].priority == 1
        assert "duplicate-name" in rules(value)


def test_a_move_is_no_duplicate(repository: Repository, make: Make) -> None:
    repository.commit({"z.yaml": job("a")})
    one = make()
    one.load()
    repository.commit({"z.yaml": None, "b.yml": job("a")})
    value = one.load()
    assert value.jobs["a"].path == "b.yml"
    assert value.status.sync == "Synced"


def test_rewritten_history_is_held_until_accepted(repository: Repository, make: Make) -> None:
    first_commit = repository.commit(BASE)
    repository.commit({"jobs/b.yaml": job("b")})
    one = make()
    first = one.load()
    head = repository.commit({"jobs/c.yaml": job("c")}, parent=first_commit)
    for held in (one.load(), restarted(make, one).load()):
        assert held.jobs == first.jobs
        assert held.status.sync == "OutOfSync"
        assert held.status.attempted_revision == head
        assert rules(held) == ["not-a-fast-forward"]
        assert f"--accept-revision {head}" in held.status.message
    with pytest.raises(ValueError, match="first 16 characters or more"):
        one.accept(head[:12])
    one.accept(head[:16])
    value = one.load()
    assert set(value.jobs) == {"a", "c"}
    assert value.status.sync == "Synced"


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_what_was_accepted_once_is_not_taken_again(
    repository: Repository, make: Make, *, over_a_restart: bool
) -> None:
    """Also by a controller that is started with the same words each time."""
    first = repository.commit(BASE)
    repository.commit({"jobs/b.yaml": job("b")})
    one = make()
    one.load()
    accepted = repository.commit({"jobs/c.yaml": job("c")}, parent=first)
    one = restarted(make, one, accept_revision=accepted)
    assert one.load().status.sync == "Synced"
    good = repository.commit({"jobs/c.yaml": None})
    assert set(one.load().jobs) == {"a"}
    git(repository.path, "update-ref", "refs/heads/main", accepted)
    if over_a_restart:
        one = restarted(make, one, accept_revision=accepted)
    value = one.load()
    assert rules(value) == ["not-a-fast-forward"]
    assert set(value.jobs) == {"a"}
    git(repository.path, "update-ref", "refs/heads/main", good)
    assert one.load().status.sync == "Synced"


def test_what_was_accepted_is_taken_where_the_cycle_with_it_did_not_pass(
    repository: Repository, make: Make
) -> None:
    first = repository.commit(BASE)
    repository.commit({"jobs/b.yaml": job("b")})
    one = make()
    one.load()
    before = one.incumbents()
    accepted = repository.commit({"jobs/c.yaml": job("c")}, parent=first)
    one = restarted(make, one, accept_revision=accepted)
    one.load()
    one.leave(before, ())
    assert set(one.load().jobs) == {"a", "c"}


def test_last_head_is_gone(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    known = one.incumbents()
    one.close()
    head = repository.commit({"jobs/c.yaml": job("c")}, root=True)
    git(repository.path, "reflog", "expire", "--expire=now", "--all")
    git(repository.path, "gc", "--quiet", "--prune=now")
    value = make(known).load()
    assert value.generation == 0
    assert rules(value) == ["history-rewritten"]
    value = make(known, accept_revision=head).load()
    assert set(value.jobs) == {"c"}


def test_what_takes_the_place_of_a_repository_that_was_moved_away_is_read(
    repository: Repository, make: Make, tmp_path: Path
) -> None:
    """Also while the old one is there still, under another name."""
    repository.commit(BASE)
    one = make()
    one.load()
    repository.path.rename(tmp_path / "away")
    assert one.load().status.sync == "Unknown"
    shutil.copytree(tmp_path / "away", repository.path)
    assert one.load().status.sync == "Synced"
    repository.path.rename(tmp_path / "farther")
    shutil.copytree(tmp_path / "away", repository.path)
    repository.commit({"jobs/b.yaml": job("b")})
    assert set(one.load().jobs) == {"a", "b"}


def test_emptied_repository_is_refused(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    first = one.load()
    repository.commit({"queues.yaml": None, "jobs/a.yaml": None, "README.md": "x"})
    for value in (one.load(), restarted(make, one).load()):
        assert value.jobs == first.jobs
        assert value.structure == first.structure
        assert rules(value) == ["became-empty"]
    repository.commit({"jobs/a.yaml": job("a")})
    assert one.load().status.sync == "Synced"


def test_what_follows_an_emptied_revision_is_measured_by_what_is_in_force(
    repository: Repository, make: Make
) -> None:
    good = repository.commit(BASE)
    one = make()
    first = one.load()
    bad = repository.commit({"queues.yaml": None, "jobs/a.yaml": None})
    assert f"`git revert {bad[:12]}`" in one.load().status.message
    head = repository.commit({"jobs/new.yaml": job("new")})
    for value in (one.load(), restarted(make, one).load()):
        assert (value.jobs, value.structure) == (first.jobs, first.structure)
        assert rules(value) == ["became-empty"]
        assert value.status.message.startswith(f"{head} leaves nothing of what is in force")
        assert f"`git checkout {good[:12]} -- .`" in value.status.message
    # The same in one commit, without the empty one between.
    git(repository.path, "update-ref", "refs/heads/main", good)
    assert one.load().status.sync == "Synced"
    repository.commit({"queues.yaml": None, "jobs/a.yaml": None, "jobs/b.yaml": job("b")})
    assert rules(one.load()) == ["became-empty"]
    repository.commit({"queues.yaml": BASE["queues.yaml"]})
    value = one.load()
    assert set(value.jobs) == {"b"}
    assert value.status.sync == "Synced"


def test_everything_may_be_replaced_where_people_accept_it(
    repository: Repository, make: Make
) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    head = repository.commit({"queues.yaml": None, "jobs/a.yaml": None, "b.yaml": job("b")})
    assert rules(one.load()) == ["became-empty"]
    one.accept(head)
    assert set(one.load().jobs) == {"b"}


def test_a_lone_object_gives_way_to_another(repository: Repository, make: Make) -> None:
    repository.commit({"a.yaml": job("a")})
    one = make()
    one.load()
    repository.commit({"a.yaml": None, "b.yaml": job("b")})
    assert set(one.load().jobs) == {"b"}


def test_only_the_folder_that_is_read_counts(repository: Repository) -> None:
    there = {f"here/{path}": text for path, text in BASE.items()}
    repository.commit({**there, "elsewhere/c.yaml": job("c")})
    where = source.GitSource(str(repository.path), sub_path="here")
    one = loader.Loader(where, last_good.LastGood(), clock=lambda: 5.0)
    first = one.load()
    assert set(first.jobs) == {"a"}
    repository.commit({**dict.fromkeys(there), "here/jobs/n.yaml": job("n")})
    value = one.load()
    one.close()
    assert rules(value) == ["became-empty"]
    assert value.jobs == first.jobs


def test_deleted_branch_and_lost_repository(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    first = one.load()
    git(repository.path, "update-ref", "-d", "refs/heads/main")
    value = one.load()
    assert value.status.sync == "Unknown"
    assert "no branch main" in value.status.message
    assert value.jobs is first.jobs
    repository.path.rename(repository.path.with_name("elsewhere.git"))
    value = one.load()
    assert value.status.sync == "Unknown"
    assert value.jobs is first.jobs
    repository.path.with_name("elsewhere.git").rename(repository.path)
    repository.commit(BASE)
    assert one.load().status.sync in {"Synced", "OutOfSync"}


def test_no_repository_at_all(tmp_path: Path) -> None:
    one = loader.Loader(source.GitSource(str(tmp_path / "nothing")))
    value = one.load()
    assert value.generation == 0
    assert value.status.sync == "Unknown"
    one.close()


def test_queue_with_jobs_is_not_taken_away(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"queues.yaml": queue("other")})
    for value in (one.load(), restarted(make, one).load()):
        assert set(value.structure.queues) == {"default", "research", "other"}
        assert rules(value) == ["queue-in-use"]
    repository.commit({"jobs/a.yaml": job("a", queue="other")})
    value = one.load()
    assert value.status.sync == "Synced"
    assert set(value.structure.queues) == {"default", "other"}


def test_structure_change_normalises_jobs_again(repository: Repository, make: Make) -> None:
    klass = (
        "apiVersion: muster/v1\nkind: PriorityClass\nmetadata: {name: high}\n"
        "spec: {value: VALUE, preemptible: false}\n"
    )
    cluster = "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\nspec: {lease: 20m}\n"
    repository.commit(
        {
            "c.yaml": klass.replace("VALUE", "70"),
            "a.yaml": job("a", priorityClass="high", retries="{limit: 1}"),
        }
    )
    one = make()
    before = one.load().jobs["a"]
    assert (before.priority, before.preemptible, before.lease_s) == (70, False, 900)
    repository.commit({"c.yaml": documents(klass.replace("VALUE", "80"), cluster)})
    after = one.load().jobs["a"]
    assert (after.priority, after.lease_s, after.hash) == (80, 1200, before.hash)


def test_dependency_cycle(repository: Repository, make: Make) -> None:
    waits = "[{job: %s}]"
    repository.commit({"a.yaml": job("a"), "b.yaml": job("b", dependsOn=waits % "a")})
    one = make()
    first = one.load()
    repository.commit(
        {
            "a.yaml": job("a", dependsOn=waits % "b"),
            "c.yaml": job("c", dependsOn=waits % "d"),
            "d.yaml": job("d", dependsOn=waits % "c"),
            "e.yaml": job("e", dependsOn=waits % "nobody"),
        }
    )
    for value in (one.load(), restarted(make, one).load()):
        assert value.jobs["a"] == first.jobs["a"]
        assert value.jobs["b"] == first.jobs["b"]
        assert set(value.refused) == {"c", "d"}
        assert rules(value) == ["dependency-cycle"] * 4 + ["unknown-dependency"]
    repository.commit({"a.yaml": job("a"), "d.yaml": job("d"), "n.yaml": job("nobody")})
    value = one.load()
    assert value.status.problems == ()
    assert set(value.jobs) == {"a", "b", "c", "d", "e", "nobody"}


def test_per_element(repository: Repository, make: Make) -> None:
    repository.commit(
        {
            "a.yaml": job("a", array="{count: 3}"),
            "b.yaml": job("b", array="{count: 4}", dependsOn="[{job: a, perElement: true}]"),
        }
    )
    one = make()
    value = one.load()
    assert set(value.refused) == {"b"}
    repository.commit({"a.yaml": job("a", array="{count: 4}")})
    assert set(one.load().jobs) == {"a", "b"}


def test_what_is_not_read(repository: Repository, make: Make) -> None:
    repository.commit(
        {
            ".hidden/x.yaml": "a: [",
            ".x.yaml": "a: [",
            "dir/.y.yml": "a: [",
            "notes.txt": "a: [",
            "B.YAML": job("b"),
            "link.yaml": "a.yaml",
            "a.yaml": job("a"),
        },
        modes={"link.yaml": "120000"},
    )
    one = make()
    value = one.load()
    assert value.status.sync == "Synced"
    assert sorted(rules(value)) == ["ignored-suffix", "ignored-symlink"]
    assert set(value.jobs) == {"a"}
    repository.commit({"link.yaml": None, "B.YAML": None})
    assert one.load().status.problems == ()


def test_sub_path_and_mirror(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"x.yaml": "a: [", "state/a.yaml": job("a"), "state2/b.yaml": "a: ["})
    place = source.GitSource(
        f"file://{repository.path}", sub_path="/state/", state=tmp_path / "mirrors"
    )
    one = loader.Loader(place)
    value = one.load()
    assert value.status.sync == "Synced"
    assert value.jobs["a"].path == "state/a.yaml"
    repository.commit({"state/b.yaml": job("b")})
    assert set(one.load().jobs) == {"a", "b"}
    git(repository.path, "update-ref", "-d", "refs/heads/main")
    assert one.load().status.sync == "Unknown"
    repository.path.rename(tmp_path / "away.git")
    value = one.load()
    assert value.status.sync == "Unknown"
    assert set(value.jobs) == {"a", "b"}
    one.close()


@pytest.mark.parametrize("below", ["nosuch", "state/nosuch", "state/a.yaml"])
def test_a_folder_that_is_not_there_is_told_until_it_is(repository: Repository, below: str) -> None:
    repository.commit({"state/a.yaml": job("a")})
    one = loader.Loader(source.GitSource(str(repository.path), sub_path=below))
    value = one.load()
    assert value.status.sync == "Unknown"
    assert value.status.message.startswith(f"there is no folder {below} in ")
    repository.commit({"state/a.yaml": None, f"{below}/b.yaml": job("b")})
    value = one.load()
    assert value.status.sync == "Synced"
    assert set(value.jobs) == {"b"}
    one.close()


def test_a_start_with_a_folder_that_is_not_there_costs_nothing(repository: Repository) -> None:
    repository.commit({"state/a.yaml": job("a"), "state/b.yaml": job("b")})
    first = loader.Loader(source.GitSource(str(repository.path), sub_path="state"))
    assert set(first.load().jobs) == {"a", "b"}
    known = last_good.decode(last_good.encode(first.incumbents()))
    first.close()
    for _ in range(2):
        slipped = loader.Loader(source.GitSource(str(repository.path), sub_path="sate"), known)
        value = slipped.load()
        assert value.status.sync == "Unknown"
        assert "there is no folder sate" in value.status.message
        repository.commit({"state/c.yaml": job("c")})
        assert slipped.load().status.sync == "Unknown"
        slipped.close()


def test_huge_file_is_refused_without_harm(repository: Repository, make: Make) -> None:
    repository.commit({"big.yaml": b"a: b\n" * 4_000_000, "a.yaml": job("a")})
    value = make().load()
    assert set(value.jobs) == {"a"}
    assert rules(value) == ["yaml-too-large"]


def test_repacked_below_the_reader(repository: Repository, make: Make) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    for number in range(3):
        repository.commit({f"{number}.yaml": job(f"n{number}")})
        git(repository.path, "gc", "--quiet", "--prune=now")
        assert f"n{number}" in one.load().jobs


class _Gate:
    """Lets everything pass, while it can be asked."""

    broken = False

    def judge(self, *_: Any, **__: Any) -> review_findings.Judgement:
        if self.broken:
            raise OSError("the records can't be read")
        return review_findings.Judgement()


def test_what_a_revision_left_that_failed_half_way_is_not_in_force(
    repository: Repository, make: Make
) -> None:
    """The next revision takes away what the one that failed has brought."""
    repository.commit(BASE | {"jobs/x.yaml": job("x"), "jobs/y.yaml": job("y")})
    gate = _Gate()
    one = make(gate=gate)
    assert set(one.load().jobs) == {"a", "x", "y"}
    gate.broken = True
    repository.commit({"jobs/b.yaml": job("b"), "jobs/x.yaml": None})
    assert one.load().status.sync == "Unknown"
    gate.broken = False
    repository.commit({"jobs/b.yaml": None, "jobs/x.yaml": job("x"), "jobs/y.yaml": None})
    value = one.load()
    assert value.status.sync == "Synced"
    assert set(value.jobs) == {"a", "x"}


@pytest.mark.parametrize(
    ("broken", "files", "problem"),
    [
        (
            (job_defaults, "_check_dependencies"),
            {"jobs/b.yaml": job("b", dependsOn="[{job: a}]"), "jobs/c.yaml": job("c")},
            ("jobs/b.yaml", "Job/b"),
        ),
        (
            (structure, "_is_duplicate"),
            {"more.yaml": queue("more"), "jobs/c.yaml": job("c")},
            None,
        ),
    ],
    ids=["job", "structure"],
)
def test_a_defect_of_ours_costs_what_shows_it_and_nothing_else(
    repository: Repository,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    *,
    broken: tuple[ModuleType, str],
    files: dict[str, str],
    problem: tuple[str, str] | None,
) -> None:
    """The job alone, or the structure of the revision; other jobs and the next revision go on."""

    def fails(*_: Any) -> None:
        raise ZeroDivisionError("nobody foresaw that")

    repository.commit(BASE)
    one = make()
    one.load()
    with monkeypatch.context() as patched:
        patched.setattr(*broken, fails)
        repository.commit(files)
        value = one.load()
    assert set(value.jobs) == {"a", "c"}
    assert set(value.structure.queues) == {"default", "research"}
    assert set(rules(value)) == {"defect"}
    if problem is not None:
        (found,) = value.status.problems
        assert (found.path, found.object) == problem
        assert "nobody foresaw that" in found.message

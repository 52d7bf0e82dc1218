"""Of two documents of one name that come in one look at git the first commit's counts."""

from collections.abc import Iterator

import pytest

from reconciler.desired.documents import yaml_reader
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, documents, job, queue

BASE = {"queues.yaml": queue("research"), "jobs/a.yaml": job("a", queue="research")}


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    made = Loaders(repository, lambda: 5.0)
    yield made.make
    made.close()


def test_of_two_of_one_name_that_come_within_one_look_the_first_commit_counts(
    repository: Repository, make: Make
) -> None:
    """As it would where somebody had looked after every commit."""
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"jobs/z.yaml": job("twice", queue="research")})
    repository.commit({"jobs/b.yaml": job("twice", queue="research")})
    for value in (one.load(), restarted(make, one).load()):
        assert value.jobs["twice"].path == "jobs/z.yaml"
        assert [problem.path for problem in value.status.problems] == ["jobs/b.yaml"]


def test_in_a_repository_that_is_read_for_the_first_time_too(
    repository: Repository, make: Make
) -> None:
    repository.commit({"jobs/z.yaml": job("twice")})
    repository.commit({"jobs/c.yaml": job("twice"), "jobs/b.yaml": job("other")})
    repository.commit({"jobs/b.yaml": job("twice")})
    repository.commit({"jobs/z.yaml": job("twice", priority=2)})
    value = make().load()
    assert (value.jobs["twice"].path, value.jobs["twice"].priority) == ("jobs/z.yaml", 2)


def test_of_two_that_come_in_one_commit_the_path_decides(
    repository: Repository, make: Make
) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"jobs/z.yaml": job("twice"), "jobs/b.yaml": job("twice")})
    assert one.load().jobs["twice"].path == "jobs/b.yaml"


def test_what_was_first_and_left_on_the_way_does_not_count(
    repository: Repository, make: Make
) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"jobs/z.yaml": job("twice")})
    repository.commit({"jobs/y.yaml": job("twice")})
    repository.commit({"jobs/z.yaml": None})
    repository.commit({"jobs/b.yaml": "["})  # of which nobody can tell what it holds
    repository.commit({"jobs/b.yaml": job("twice"), "jobs/z.yaml": job("twice")})
    assert one.load().jobs["twice"].path == "jobs/y.yaml"


def test_the_first_of_two_that_are_both_refused_stays_the_first(
    repository: Repository, make: Make
) -> None:
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"jobs/z.yaml": job("twice", queue="nowhere")})
    repository.commit({"jobs/b.yaml": job("twice", queue="nowhere")})
    one.load()
    after = restarted(make, one)
    repository.commit({"jobs/more.yaml": job("more")})
    for each in (one, after):
        value = each.load()
        found = {problem.path: problem.rule for problem in value.status.problems}
        assert found == {"jobs/z.yaml": "unknown-queue", "jobs/b.yaml": "duplicate-name"}


def test_of_two_merged_branches_that_counts_which_was_merged_first(
    repository: Repository, make: Make
) -> None:
    base = repository.commit(BASE)
    one = make()
    one.load()
    early = repository.commit({"jobs/b.yaml": job("twice")}, branch="early", parent=base)
    late = repository.commit({"jobs/z.yaml": job("twice")}, branch="late", parent=base)
    repository.commit({"jobs/z.yaml": job("twice")}, merge=late)
    repository.commit({"jobs/b.yaml": job("twice")}, merge=early)
    assert one.load().jobs["twice"].path == "jobs/z.yaml"


def test_of_two_queues_of_one_name_the_one_that_came_later_is_wrong(
    repository: Repository, make: Make
) -> None:
    """The structure is refused either way; whoever came later has to correct it."""
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"z.yaml": queue("twice")})
    repository.commit({"b.yaml": queue("twice")})
    one.load()
    after = restarted(make, one)
    repository.commit({"jobs/more.yaml": job("more")})
    for each in (one, after):
        value = each.load()
        found = [(problem.path, problem.rule) for problem in value.status.problems]
        assert found == [("b.yaml", "duplicate-name")]
    repository.commit({"b.yaml": None})
    assert one.load().status.sync == "Synced"


def test_files_of_many_names_are_parsed_once(
    repository: Repository, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each name: parsing a large file takes a second."""
    names = [f"j{number}" for number in range(20)]
    text = documents(*map(job, names))
    repository.commit(BASE)
    one = make()
    one.load()
    repository.commit({"z.yaml": text})
    repository.commit({"b.yaml": text + "# the same\n"})
    parsed: list[bytes] = []
    nodes = yaml_reader._nodes

    def counted(data: bytes) -> list[object]:
        parsed.append(data)
        return nodes(data)

    monkeypatch.setattr(yaml_reader, "_nodes", counted)
    value = one.load()
    assert {value.jobs[name].path for name in names} == {"z.yaml"}
    assert len(parsed) <= 3, "each file, and one for the places of what is wrong in it"
    repository.commit({"b.yaml": None})
    assert one.load().status.sync == "Synced"
    assert len(parsed) <= 3

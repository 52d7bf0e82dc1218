"""A revision that is too large is held before anything of it is parsed, and a revert helps."""

import contextlib
from collections.abc import Iterator

import pytest

from reconciler.desired.apply import last_good, loader, sync_report
from reconciler.desired.authorize import provenance
from reconciler.desired.documents import document_reader, revision_limits
from reconciler.desired.git import source
from reconciler.model import desired
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, documents, job, queue


@pytest.fixture
def make(repository: Repository) -> Iterator[Make]:
    with contextlib.closing(Loaders(repository, lambda: 5.0)) as made:
        yield made.make


def limited(**limits: object) -> str:
    written = ", ".join(f"{name}: {value}" for name, value in limits.items())
    return (
        "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\n"
        f"spec: {{sync: {{revision: {{{written}}}}}}}\n"
    )


def base(**limits: object) -> dict[str, str]:
    return {"c.yaml": limited(**limits), "q.yaml": queue("q"), "a.yaml": job("a", queue="q")}


MANY = documents(*(job(f"n{number}", queue="q") for number in range(4)))


@pytest.mark.parametrize("limits", [{"documents": 6}, {"bytes": 500}])
def test_a_revision_over_a_limit_is_held_unparsed_until_it_is_reverted(
    repository: Repository, make: Make, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    good = repository.commit(base(**limits))
    one = make()
    assert set(one.load().jobs) == {"a"}
    read = document_reader.read
    monkeypatch.setattr(document_reader, "read", None)
    head = repository.commit({"b.yaml": MANY})
    value = one.load()
    assert value.status.sync == "OutOfSync"
    assert [p.rule for p in value.status.problems] == ["revision-too-large"]
    assert f"--accept-revision {head}" in value.status.message
    assert (value.status.jobs_revision, set(value.jobs)) == (good, {"a"})
    monkeypatch.setattr(document_reader, "read", read)
    repository.commit({"b.yaml": None})
    assert one.load().status.sync == "Synced"


def test_the_limits_in_force_count_and_not_those_of_the_revision(
    repository: Repository, make: Make
) -> None:
    repository.commit(base(documents=6))
    one = make()
    one.load()
    repository.commit({"b.yaml": MANY, "c.yaml": limited(documents=100)})
    assert one.load().status.sync == "OutOfSync"
    repository.commit({"b.yaml": None})
    assert one.load().status.sync == "Synced"
    repository.commit({"b.yaml": MANY})
    assert one.load().status.sync == "Synced"


def test_an_accepted_one_is_taken_and_read_again_after_a_restart(
    repository: Repository, make: Make
) -> None:
    repository.commit(base(documents=6))
    one = make()
    one.load()
    head = repository.commit({"b.yaml": MANY})
    one.load()
    one = restarted(make, one, accept_revision=head)
    assert len(one.load().jobs) == 5
    assert restarted(make, one).load().status.sync == "Synced"


def test_an_accepted_one_that_follows_is_taken_without_a_walk(
    repository: Repository, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit(base())
    one = make()
    one.load()
    head = repository.commit({"b.yaml": MANY})
    monkeypatch.setattr(provenance.Provenance, "walk", None)
    one = restarted(make, one, accept_revision=head)
    assert len(one.load().jobs) == 5


def test_a_blob_is_parsed_once(
    repository: Repository, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if commits are walked, each of which has it before or after."""
    mode = "spec: {verification: {mode: warn}}\n"
    repository.commit(base() | {"c.yaml": limited().partition("spec")[0] + mode})
    one = make()
    one.load()
    parsed: list[bytes] = []
    read = document_reader.read

    def counting(data: bytes) -> document_reader.File:
        parsed.append(data)
        return read(data)

    monkeypatch.setattr(document_reader, "read", counting)
    for priority in range(5):
        repository.commit({"b.yaml": job("b", queue="q", priority=priority)})
    repository.commit({"b.yaml": job("b", queue="q", priority=2)})
    assert set(one.load().jobs) == {"a", "b"}
    assert len(parsed) == len(set(parsed)) == 5


def test_parsed_blobs_are_forgotten_in_the_order_of_their_use() -> None:
    file = document_reader.read(MANY.encode())
    kept = revision_limits.ParsedBlobs(documents_max=10)
    kept["a"] = kept["b"] = file
    assert kept["a"] is file
    kept["c"] = file
    assert list(kept) == ["a", "c"]
    kept["large"] = document_reader.read(documents(*[MANY] * 9).encode())
    assert list(kept) == []


def test_a_commit_on_the_way_that_is_too_large_is_not_parsed(
    repository: Repository, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = "spec: {verification: {mode: warn}, sync: {revision: {documents: 6}}}\n"
    repository.commit(base() | {"c.yaml": limited().partition("spec")[0] + mode})
    one = make()
    one.load()
    monkeypatch.setattr(document_reader, "read", None)
    repository.commit({"b.yaml": MANY, "d.yaml": MANY.replace("name: n", "name: m")})
    value = one.load()
    assert [p.rule for p in value.status.problems] == ["revision-too-large"]
    assert set(value.jobs) == {"a"}


def test_fifty_errors_of_a_file_are_shown_and_all_are_counted(
    repository: Repository, make: Make
) -> None:
    wrong = documents(*(job(f"n{number}", queue="nowhere") for number in range(80)))
    repository.commit(base() | {"b.yaml": wrong})
    status = make().load().status
    assert status.message.startswith("80 errors")
    assert len(status.problems) == document_reader.LISTED_MAX + 2
    assert status.problems[-1].message.startswith("and 29 more errors in this file")
    assert sync_report._listed(status.problems[:9]) == status.problems[:9]


def test_a_new_head_is_told_before_it_is_read(repository: Repository) -> None:
    told: list[str] = []
    first = repository.commit(base())
    one = loader.Loader(source.GitSource(str(repository.path)), last_good.LastGood())
    one.on_head = told.append
    one.load()
    one.load()
    second = repository.commit({"b.yaml": MANY})
    value = one.load()
    one.close()
    assert told == [first, second]
    assert isinstance(value, desired.Desired)

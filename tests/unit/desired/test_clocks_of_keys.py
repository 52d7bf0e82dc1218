"""A controller whose clock is wrong, and keys that are valid until a time: real keys, real git."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.model.values import times
from tests.unit.desired import signing
from tests.unit.desired.loaders import Loaders, Make, restarted
from tests.unit.desired.repositories import Repository, documents, job, queue

NOON = times.parse_time("2026-11-22T12:00:00Z")
DAY = 86400.0
UNTIL = "2026-12-01T00:00:00Z"


class Clock:
    """What the controller takes for the time."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(repository: Repository, clock: Clock) -> Iterator[Make]:
    made = Loaders(repository, clock)
    yield made.make
    made.close()


@pytest.fixture
def key(repository: Repository, tmp_path: Path) -> signing.Key:
    """Bob's, valid until ``UNTIL``; the repository requires signatures."""
    made = signing.Key(tmp_path / "keys", "bob")
    access = (
        "apiVersion: muster/v1\nkind: Access\nmetadata: {name: people}\nspec:\n"
        f"  identities: [{{email: bob@x.org, keys: [{made.listed(UNTIL)}]}}]\n"
    )
    cluster = "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\n"
    cluster += "spec: {verification: {mode: required}}\n"
    repository.commit({"a.yaml": documents(access, cluster, queue("q"), job("first", queue="q"))})
    return made


def test_a_clock_that_is_ahead_refuses_and_says_what_time_it_takes_it_for(
    repository: Repository, make: Make, clock: Clock, key: signing.Key
) -> None:
    one = make()
    one.load()
    clock.now = NOON + 30 * DAY
    repository.commit({"b.yaml": job("b", queue="q")})
    signing.sign(repository, key, at="2026-11-22T12:00:00Z")
    value = one.load()
    (problem,) = value.status.problems
    assert problem.rule == "expired-key"
    assert problem.message.endswith(
        "valid until 2026-12-01T00:00:00.000Z; the commit says 2026-11-22T12:00:00.000Z, the "
        "controller's clock 2026-12-22T12:00:00.000Z"
    )
    assert set(value.jobs) == {"first"}

    # It stays so as long as the clock does, and is judged anew once that is set right.
    clock.now = NOON + 20 * DAY
    assert [one.rule for one in one.load().status.problems] == ["expired-key"]
    clock.now = NOON + 60
    for again in (restarted(make, one), one):
        value = again.load()
        assert (value.status.sync, set(value.jobs)) == ("Synced", {"first", "b"})
    # What counts now stays although the clock goes on.
    clock.now = NOON + 30 * DAY
    assert set(one.load().jobs) == {"first", "b"}
    clock.now = NOON + 60
    repository.commit({"b.yaml": job("b", queue="q", priority=60)})
    signing.sign(repository, key, at="2026-11-22T12:01:00Z")
    value = one.load()
    assert value.status.sync == "Synced"
    assert value.jobs["b"].priority == 60


def test_what_was_changed_again_while_the_clock_was_ahead_is_not_judged_anew(
    repository: Repository, make: Make, clock: Clock, key: signing.Key
) -> None:
    one = make()
    one.load()
    clock.now = NOON + 30 * DAY
    repository.commit({"b.yaml": job("b", queue="q")})
    signing.sign(repository, key, at="2026-11-22T12:00:00Z")
    one.load()
    repository.commit({"b.yaml": job("b", queue="q", priority=60)})  # unsigned
    one.load()
    clock.now = NOON + 60
    value = one.load()
    assert (value.status.sync, set(value.jobs)) == ("OutOfSync", {"first"})


def test_what_was_taken_from_somebody_meanwhile_is_not_given_back_by_a_clock(
    repository: Repository, make: Make, clock: Clock, key: signing.Key, tmp_path: Path
) -> None:
    ada = signing.Key(tmp_path / "keys", "ada")
    people = (
        "apiVersion: muster/v1\nkind: Access\nmetadata: {name: more}\nspec:\n  identities:\n"
        f"  - {{email: ada@x.org, keys: [{ada.listed()}]}}\n"
    )
    carl = signing.Key(tmp_path / "keys", "carl")
    his = f"  - {{email: carl@x.org, keys: [{carl.listed(UNTIL)}]}}\n"
    repository.commit({"people.yaml": people + his})
    signing.sign(repository, key, at="2026-11-22T12:00:00Z")
    one = make()
    one.load()
    clock.now = NOON + 30 * DAY
    repository.commit({"b.yaml": job("b", queue="q")})
    signing.sign(repository, carl, at="2026-11-22T12:00:00Z")
    assert [one.rule for one in one.load().status.problems] == ["expired-key"]
    repository.commit({"people.yaml": people})
    signing.sign(repository, ada, at="2026-12-22T12:00:00Z")
    one.load()
    clock.now = NOON + 60
    for value in (one.load(), one.load(), restarted(make, one).load()):
        assert (value.status.sync, set(value.jobs)) == ("OutOfSync", {"first"})


def test_what_others_are_measured_by_is_not_judged_anew(
    repository: Repository, make: Make, clock: Clock, key: signing.Key
) -> None:
    one = make()
    one.load()
    clock.now = NOON + 30 * DAY
    off = "apiVersion: muster/v1\nkind: Access\nmetadata: {name: more}\nspec: {}\n"
    repository.commit({"more.yaml": off, "b.yaml": job("b", queue="q")})
    signing.sign(repository, key, at="2026-11-22T12:00:00Z")
    found = one.load().status.problems
    assert {one.object for one in found} == {"Access/more", "Job/b"}
    clock.now = NOON + 60
    value = one.load()
    assert [one.object for one in value.status.problems] == ["Access/more"]
    assert set(value.jobs) == {"first", "b"}


def test_structure_is_judged_anew_as_jobs_are(
    repository: Repository, make: Make, clock: Clock, key: signing.Key
) -> None:
    one = make()
    one.load()
    clock.now = NOON + 30 * DAY
    repository.commit({"q.yaml": queue("r")})
    signing.sign(repository, key, at="2026-11-22T12:00:00Z")
    assert "r" not in one.load().structure.queues
    clock.now = NOON + 60
    value = one.load()
    assert value.status.sync == "Synced"
    assert "r" in value.structure.queues


def test_a_commit_that_says_itself_it_is_too_late_is_not_judged_anew(
    repository: Repository, make: Make, clock: Clock, key: signing.Key
) -> None:
    one = make()
    one.load()
    clock.now = NOON + 30 * DAY
    repository.commit({"b.yaml": job("b", queue="q")})
    signing.sign(repository, key, at="2026-12-02T00:00:00Z")
    one.load()
    clock.now = NOON + 60
    assert [one.rule for one in one.load().status.problems] == ["expired-key"]


def test_a_clock_that_is_behind_lets_no_commit_pass_that_says_itself_it_is_too_late(
    repository: Repository, make: Make, clock: Clock, key: signing.Key
) -> None:
    one = make()
    one.load()
    repository.commit({"b.yaml": job("b", queue="q")})
    signing.sign(repository, key, at="2026-12-02T00:00:00Z")
    value = one.load()
    (problem,) = value.status.problems
    assert problem.message.endswith("was valid until 2026-12-01T00:00:00.000Z")
    assert set(value.jobs) == {"first"}


def test_what_counted_stays_when_the_key_or_the_clock_goes_on(
    repository: Repository, make: Make, clock: Clock, key: signing.Key
) -> None:
    one = make()
    one.load()
    repository.commit({"b.yaml": job("b", queue="q")})
    signing.sign(repository, key, at="2026-11-22T12:00:00Z")
    assert set(one.load().jobs) == {"first", "b"}
    clock.now = NOON + 300 * DAY
    for again in (one, restarted(make, one)):
        value = again.load()
        assert set(value.jobs) == {"first", "b"}
        assert value.status.sync == "Synced"


def test_a_gpg_signature_that_has_expired_counts_no_more(
    repository: Repository, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who signed it said how long it holds, though the key holds on."""
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    faked = "--faked-system-time '20200101T000000!' --default-sig-expire 1d"
    (earlier / "gpg").write_text(f'#!/bin/sh\nexec {shutil.which("gpg")} {faked} "$@"\n')
    (earlier / "gpg").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{earlier}{os.pathsep}{os.environ['PATH']}")
        key = signing.GpgKey(tmp_path / "keyring", "ada@x.org")
        repository.commit(
            {
                "a.yaml": documents(
                    "apiVersion: muster/v1\nkind: Access\nmetadata: {name: people}\nspec:\n"
                    f"  identities:\n    - email: ada@x.org\n      keys:\n      - {key.listed()}\n"
                    "  roles:\n    - name: all\n      members: [ada@x.org]\n      allow:\n"
                    '        - {verbs: [change], objects: ["*"]}\n',
                    "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\n"
                    "spec: {verification: {mode: required}}\n",
                    queue("q"),
                )
            }
        )
        one = make()
        one.load()
        repository.commit({"b.yaml": job("b", queue="q")})
        signing.sign(repository, key)
    value = one.load()
    assert [problem.rule for problem in value.status.problems] == ["expired-signature"]
    assert value.jobs == {}


def test_a_clock_that_is_behind_the_making_of_a_gpg_key_takes_its_signature(
    repository: Repository, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("gpg")
    later = tmp_path / "later"
    later.mkdir()
    # Frozen (`!`): else each process begins anew at that second, and a key whose making took longer
    # is too young for the one that signs.
    faked = "--faked-system-time '20500101T000000!'"
    (later / "gpg").write_text(f'#!/bin/sh\nexec {real} {faked} "$@"\n')
    (later / "gpg").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{later}{os.pathsep}{os.environ['PATH']}")
        key = signing.GpgKey(tmp_path / "keyring", "ada@x.org")
        repository.commit(
            {
                "a.yaml": documents(
                    "apiVersion: muster/v1\nkind: Access\nmetadata: {name: people}\nspec:\n"
                    f"  identities:\n    - email: ada@x.org\n      keys:\n      - {key.listed()}\n",
                    "apiVersion: muster/v1\nkind: Cluster\nmetadata: {name: c}\n"
                    "spec: {verification: {mode: required}}\n",
                    queue("q"),
                )
            }
        )
        one = make()
        one.load()
        repository.commit({"b.yaml": job("b", queue="q")})
        signing.sign(repository, key)
    value = one.load()  # by the real gpg, whose clock is that of today
    assert value.status.problems == ()
    assert set(value.jobs) == {"b"}

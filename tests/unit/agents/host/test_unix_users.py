"""Who users are: asked once for all who wait, beside whatever goes on, and not for ever."""

import grp
import os
import pwd
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents.host import unix_users

LONG_S = 60.0


class Directory:
    """A directory service in the place of the system's, that answers when it is told to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []
        patch.setattr(pwd, "getpwnam", self.getpwnam)

    def getpwnam(self, name: str) -> Any:
        self.asked.append(name)
        assert self.answers.wait(LONG_S)
        if name != "ada":
            raise KeyError(name)
        return pwd.getpwuid(os.geteuid())


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Directory]:
    made = Directory(monkeypatch)
    yield made
    made.answers.set()


class Bench:
    """Attempts that wait, and what they were told."""

    def __init__(self, limit_s: float = LONG_S) -> None:
        self.lock = threading.RLock()
        self.now = 1000.0
        self.source = unix_users.UnixUsers(lambda: self.now)
        self.inquiries = unix_users.UserLookups(self.lock, limit_s, self.source)
        self.told: dict[str, str] = {}
        self.news = threading.Condition(self.lock)

    def wait(self, attempt: str, user: str = "ada") -> bool:
        def tell(problem: str) -> None:
            self.told[attempt] = problem
            self.news.notify_all()

        with self.lock:
            return self.inquiries.wait(attempt, user, tell)

    def until(self, condition: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(condition, LONG_S)


def test_all_who_wait_for_a_name_are_told_by_one_answer(directory: Directory) -> None:
    bench, before = Bench(), threading.active_count()
    assert all(bench.wait(f"a.{number}") for number in range(2000))
    assert threading.active_count() < before + 20
    with bench.lock:  # whoever holds it is not kept waiting
        assert len(bench.inquiries.waiting()) == 2000
        assert bench.inquiries.waiting()["a.7"] == "looking up user ada"
        assert bench.inquiries.give_up("a.7")
        assert not bench.inquiries.give_up("a.7")
    directory.answers.set()
    bench.until(lambda: len(bench.told) == 1999)
    assert set(bench.told.values()) == {""}
    assert "a.7" not in bench.told
    assert directory.asked == ["ada"]
    assert not bench.wait("a.7"), "it is known by now"
    assert bench.source.find("ada") is not None
    assert directory.asked == ["ada"]


def test_nobody_waits_for_ever_and_no_other_asks_beside_one_that_hangs(
    directory: Directory,
) -> None:
    bench = Bench(limit_s=0.1)
    for number in range(3):
        assert bench.wait(f"a.{number}")
        bench.until(lambda: len(bench.told) == number + 1)  # noqa: B023 - it is asked at once
    assert directory.asked == ["ada"]
    said = (
        "user ada could not be looked up in 0.1 s. To fix: check if `id ada` returns on this node"
    )
    assert all(one.startswith(said) for one in bench.told.values())
    assert bench.inquiries.waiting() == {}


def test_what_is_known_is_asked_for_anew_after_a_while(directory: Directory) -> None:
    directory.answers.set()
    bench = Bench()
    for user, lasts_s in (("ada", unix_users.FRESH_S), ("none", unix_users.NONE_S)):
        assert bench.wait(f"{user}.1", user)
        bench.until(lambda: f"{user}.1" in bench.told)  # noqa: B023 - it is asked at once
        bench.now += lasts_s - 1
        assert not bench.wait(f"{user}.2", user)
        bench.now += 2
        assert bench.wait(f"{user}.3", user)
        bench.until(lambda: f"{user}.3" in bench.told)  # noqa: B023 - it is asked at once
    assert bench.source.find("none") is None


def test_what_goes_wrong_is_told(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.answers.set()
    monkeypatch.setattr(unix_users, "GROUPS_MAX", 0)
    bench = Bench()
    assert bench.wait("a.1")
    bench.until(lambda: "a.1" in bench.told)
    assert "is in more than" in bench.told["a.1"]


def test_no_more_names_are_kept_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_users, "KEPT_MAX", 2)
    source = unix_users.UnixUsers()
    for name in ("x-1", "x-2", "x-3"):
        assert source.find(name) is None
    assert [source.is_known(name) for name in ("x-1", "x-2", "x-3")] == [False, True, True]


def test_the_groups_of_the_users_of_this_machine() -> None:
    entries = pwd.getpwall()
    assert entries
    for entry in entries:
        expected = os.getgrouplist(entry.pw_name, entry.pw_gid)
        assert sorted(unix_users.groups_of(entry.pw_name, entry.pw_gid)) == sorted(expected)
        found = unix_users.UnixUsers().find(entry.pw_name)
        assert found is not None
        assert (found.uid, found.gid, found.home) == (entry.pw_uid, entry.pw_gid, entry.pw_dir)
    assert grp.getgrgid(os.getegid()).gr_gid in unix_users.groups_of(
        entries[0].pw_name, os.getegid()
    )

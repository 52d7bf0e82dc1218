"""Tokens are looked up by their hash in the file as it is now."""

import logging
import os
import pathlib

import pytest

from reconciler.operations.tokens import token_file
from reconciler.server.auth import authentication, tokens


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text("a ada user\n")
    return path


def write(path: pathlib.Path, text: str) -> None:
    """Replace the file as `muster token` does."""
    token_file.write_private(path, text)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer x", "Basic a", "a", "Bearer sha256:{digest}"]
)
def test_nobody_is_known_without_a_token(path: pathlib.Path, header: str | None) -> None:
    header = header and header.format(digest=token_file.digest_of(b"a"))
    gate = authentication.Authenticator(tokens.WatchedTokens(path))
    with pytest.raises(authentication.UnauthenticatedError) as caught:
        gate.identify(header)
    assert caught.value.status == 401
    assert gate.identify("Bearer a") == tokens.Caller("ada", "user")


def test_a_token_that_has_expired_is_refused(path: pathlib.Path) -> None:
    wall = Clock()
    write(path, "a ada user 1970-01-01T00:16:41Z\n")  # 1001
    gate = authentication.Authenticator(tokens.WatchedTokens(path, wall=wall))
    assert gate.identify("Bearer a").name == "ada"
    wall.now = 1001.0
    with pytest.raises(authentication.UnauthenticatedError, match="expired at 1970") as caught:
        gate.identify("Bearer a")
    assert (caught.value.status, caught.value.reason) == (401, "expired")


def test_a_change_of_the_file_counts_within_a_second(path: pathlib.Path) -> None:
    clock = Clock()
    known = tokens.WatchedTokens(path, clock=clock)
    write(path, "b bob user\n")
    clock.now += 0.5
    assert known.find(b"a").name == "ada"
    clock.now += 0.5
    with pytest.raises(tokens.UnknownTokenError):
        known.find(b"a")
    assert known.find(b"b").name == "bob"


def test_what_changes_in_the_file_is_told_by_holders_and_never_by_tokens(
    path: pathlib.Path,
) -> None:
    clock, told = Clock(), list[str]()
    known = tokens.WatchedTokens(path, clock=clock)
    known.on_change(told.append)
    for text in (
        "a ada user\nb bob admin 2033-05-18T03:33:20Z\n",
        "# a comment\na ada user\nb bob admin 2033-05-18T03:33:20Z\n",
        "a ada admin\nc n[1-2] node\n",
    ):
        write(path, text)
        clock.now += 1.0
        known.find(b"a")
    assert told == [
        "added bob (admin, until 2033-05-18T03:33:20.000Z)",
        (
            "added n[1-2] (node), removed bob (admin, until 2033-05-18T03:33:20.000Z), "
            "changed ada (user) to ada (admin)"
        ),
    ]


def test_the_file_is_looked_at_once_a_second(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    known = tokens.WatchedTokens(path, clock=clock)
    looks = 0
    real = pathlib.Path.stat

    def look(of: pathlib.Path) -> os.stat_result:
        nonlocal looks
        looks += 1
        return real(of)

    monkeypatch.setattr(pathlib.Path, "stat", look)
    for _ in range(100):
        known.find(b"a")
        clock.now += 0.02
    assert 1 <= looks <= 2


@pytest.mark.parametrize("text", ["half", "b bob user\nhalf\n", "", "# nobody\n", None])
def test_a_file_that_went_wrong_keeps_the_last_good_one(
    path: pathlib.Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    clock = Clock()
    known = tokens.WatchedTokens(path, clock=clock)
    if text is None:
        path.unlink()
    else:
        write(path, text)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.now += 1.0
            assert known.find(b"a").name == "ada"
    (told,) = caplog.messages
    assert "the tokens that were read before count until it is mended" in told
    write(path, "b bob user\n")
    clock.now += 1.0
    assert known.find(b"b").name == "bob"


def test_a_file_that_others_may_read_is_wrong_until_it_is_closed(path: pathlib.Path) -> None:
    clock = Clock()
    known = tokens.WatchedTokens(path, clock=clock)
    path.write_text("b bob user\n")
    path.chmod(0o644)
    clock.now += 1.0
    assert known.find(b"a").name == "ada"
    path.chmod(0o600)
    clock.now += 1.0
    assert known.find(b"b").name == "bob"


def test_a_look_up_compares_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [token_file.line_of(f"t{number}", "ada", "user") for number in range(5000)]
    table = tokens.TokenTable(lines)
    hashed = []

    def digest_of(token: bytes) -> str:
        hashed.append(token)
        return real(token)

    real = token_file.digest_of
    monkeypatch.setattr(token_file, "digest_of", digest_of)
    assert table.find(b"t4999").name == "ada"
    assert hashed == [b"t4999"]


def test_a_node_token_is_for_the_nodes_of_its_host_list(path: pathlib.Path) -> None:
    write(path, "a gpu[1-2] node\n")
    caller = tokens.WatchedTokens(path).find(b"a")
    assert [caller.may_be(node) for node in ("gpu1", "gpu2", "gpu3", "gpu[1-2]", None)] == [
        *(True, True, False, False, False)
    ]


def test_a_person_is_found_by_the_strongest_token_that_is_valid_now(path: pathlib.Path) -> None:
    wall = Clock()
    clock = Clock()
    write(path, "a ada user\nb ada admin 1970-01-01T00:16:41Z\nc n1 node\n")
    gate = authentication.Authenticator(tokens.WatchedTokens(path, clock=clock, wall=wall))
    assert gate.holder("ada") == tokens.Caller("ada", "admin", expires_at=1001.0)
    wall.now += 1
    assert gate.holder("ada") == tokens.Caller("ada", "user")
    assert gate.holder("n1") is None, "a node submits nothing"
    write(path, "c n1 node\n")
    clock.now += tokens.LOOK_S
    assert gate.holder("ada") is None

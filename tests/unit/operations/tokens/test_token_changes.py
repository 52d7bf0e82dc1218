"""Tokens are added to a file and taken out of it; the rest of the file stays as it is."""

import concurrent.futures
import os
import pathlib
import stat
import subprocess
import sys

import pytest

from reconciler import lock_file
from reconciler.controller import lead_claim
from reconciler.operations.tokens import token_changes, token_file

BY_HAND = "# people\nplain ada admin\n\n# nodes\n8ee7 * node\n"


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(BY_HAND)
    return path


def test_a_token_is_appended_as_its_hash(path: pathlib.Path) -> None:
    token, line = token_changes.create(path, "bob@x.org", "user", 100.0)
    assert path.read_text() == f"{BY_HAND}{line.text()}\n"
    assert line.digest == token_file.digest_of(token.encode())
    assert token not in path.read_text()
    assert [one.identity for one in token_changes.listed(path)] == ["ada", "*", "bob@x.org"]


def test_a_file_is_made_that_only_its_owner_may_read(tmp_path: pathlib.Path) -> None:
    umask = os.umask(0)
    try:
        token_changes.create(tmp_path / "new", "gpu[1-2]", "node")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new", "new.lock"]
    assert stat.S_IMODE((tmp_path / "new.lock").stat().st_mode) == 0o600


def test_a_link_to_the_file_stays_one(path: pathlib.Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    token_changes.create(link, "bob", "user")
    assert link.is_symlink()
    assert len(token_changes.listed(path)) == 3


@pytest.mark.parametrize(
    ("identity", "role", "said"),
    [("*", "node", "To fix: name the nodes"), ("a b", "user", "one word")],
)
def test_what_can_not_be_a_token_changes_nothing(
    path: pathlib.Path, identity: str, role: str, said: str
) -> None:
    with pytest.raises(token_file.TokenError, match=said):
        token_changes.create(path, identity, role)
    assert path.read_text() == BY_HAND


def test_a_file_that_is_wrong_is_left_alone(path: pathlib.Path) -> None:
    path.write_text("half\n")
    for change in (
        lambda: token_changes.create(path, "bob", "user"),
        lambda: token_changes.revoke(path, "8ee70000"),
    ):
        with pytest.raises(token_file.TokenError, match=r"tokens:1: found 1 words"):
            change()
    path.chmod(0o644)
    with pytest.raises(token_file.TokenError, match="others may read it"):
        token_changes.create(path, "bob", "user")
    assert path.read_text() == "half\n"


@pytest.mark.parametrize("token", [b"plain", None])
def test_a_revoked_token_leaves_the_rest(path: pathlib.Path, token: bytes | None) -> None:
    made, line = token_changes.create(path, "bob", "user")
    digest = token_file.digest_of(made.encode() if token is None else token)
    gone = token_changes.revoke(path, digest[:8].upper())
    assert gone.digest == digest
    assert digest not in {one.digest for one in token_changes.listed(path)}
    rest = BY_HAND if token is None else BY_HAND.replace("plain ada admin\n", "") + line.text()
    assert path.read_text().rstrip("\n") == rest.rstrip("\n")


@pytest.mark.parametrize("token_id", ["", "0", "0000000", "00000000", "zzzzzzzz"])
def test_an_unknown_id_is_refused(path: pathlib.Path, token_id: str) -> None:
    with pytest.raises(token_file.TokenError, match="To fix: muster token list"):
        token_changes.revoke(path, token_id)
    assert path.read_text() == BY_HAND


def test_the_only_token_is_not_revoked(path: pathlib.Path) -> None:
    path.write_text("plain ada admin\n")
    with pytest.raises(token_file.TokenError, match="the only token"):
        token_changes.revoke(path, token_file.digest_of(b"plain"))
    assert len(token_changes.listed(path)) == 1


def test_an_id_that_several_have_takes_more_digits(path: pathlib.Path) -> None:
    digests = [f"abcdef01{digit * 56}" for digit in "01"]
    path.write_text("".join(f"sha256:{one} ada user\n" for one in digests))
    with pytest.raises(token_file.TokenError, match="2 tokens begin with abcdef01"):
        token_changes.revoke(path, "abcdef01")
    assert token_changes.revoke(path, "abcdef010").digest == digests[0]


def test_changes_at_the_same_time_lose_nothing(path: pathlib.Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(
            pool.map(lambda number: token_changes.create(path, f"u{number}", "user"), range(40))
        )
    assert {line.digest for _, line in made} < {one.digest for one in token_changes.listed(path)}


#: Locks what is named first, and says so, then lives as long as its input.
_HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
_CHANGE = """
import pathlib, sys
from reconciler.operations.tokens import token_changes
path = pathlib.Path(sys.argv[1])
line = token_changes.create(path, "bob", "user")[1]
print(token_changes.revoke(path, line.id).identity)
"""


def _changed(path: pathlib.Path) -> str:
    """Return what a process says that creates and revokes a token; it is ended if it hangs."""
    done = subprocess.run(
        [sys.executable, "-c", _CHANGE, path],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_who_locks_the_folder_keeps_no_change_waiting(path: pathlib.Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, path.parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert _changed(path) == "bob"
    assert path.read_text() == BY_HAND


def test_a_controller_that_leads_in_the_folder_keeps_no_change_waiting(path: pathlib.Path) -> None:
    assert lead_claim.lock_place(path.parent)
    assert _changed(path) == "bob"


def test_the_message_says_who_changes_the_file(path: pathlib.Path) -> None:
    held = lock_file.open_file(path.with_name("tokens.lock"))
    lock_file.lock(held)
    told = f"process {os.getpid()} has been changing it for 0 s and holds .*tokens.lock. To fix: "
    try:
        with pytest.raises(token_file.TokenError, match=told):
            token_changes.create(path, "bob", "user", wait_s=0)
        with pytest.raises(token_file.TokenError, match=told):
            token_changes.revoke(path, token_file.digest_of(b"plain"), wait_s=0)
    finally:
        os.close(held)
    assert path.read_text() == BY_HAND
    token_changes.create(path, "bob", "user", wait_s=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for others")
def test_root_leaves_the_lock_to_the_owner_of_the_file(path: pathlib.Path) -> None:
    os.chown(path, 65534, 65533)
    token_changes.create(path, "bob", "user")
    for one in (path, path.with_name("tokens.lock")):
        assert (one.stat().st_uid, one.stat().st_gid) == (65534, 65533)

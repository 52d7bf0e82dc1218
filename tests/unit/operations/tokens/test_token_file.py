"""Token files: read whole or not at all, and made by a controller that has none."""

import os
import pathlib
import stat

import pytest

from reconciler.operations.tokens import token_file

DIGEST = token_file.digest_of(b"secret")


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "tokens"


def test_a_missing_file_is_created_once(path: pathlib.Path) -> None:
    umask = os.umask(0)
    try:
        assert token_file.ensure(path, "admin")
    finally:
        os.umask(umask)
    alone = path.with_name("token")
    assert {stat.S_IMODE(one.stat().st_mode) for one in (path, alone)} == {0o600}
    assert sorted(one.name for one in path.parent.iterdir()) == ["token", "tokens"]
    token = alone.read_text().strip()
    assert len(token) == 48
    assert token not in path.read_text(), "the file holds the hash alone"
    digest = token_file.digest_of(token.encode())
    assert token_file.load(path) == [token_file.TokenLine(digest, "admin", "admin")]
    before = path.read_text()
    assert not token_file.ensure(path, "admin")
    assert path.read_text() == before


def test_a_rest_of_an_earlier_try_does_not_matter(path: pathlib.Path) -> None:
    path.with_name(".tokens.part").write_text("half")
    assert token_file.ensure(path, "admin")
    assert len(token_file.load(path)) == 1


def test_where_it_can_not_be_created_is_said(path: pathlib.Path) -> None:
    with pytest.raises(token_file.TokenError, match="nowhere/tokens can't be created"):
        token_file.ensure(path.parent / "nowhere" / "tokens", "admin")


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("secret ada user", None),
        (f"sha256:{DIGEST} ada user", None),
        (f"  sha256:{DIGEST.upper()}   ada\tuser  ", None),
        ("secret ada user 1970-01-01T00:01:40Z", 100.0),
        (f"sha256:{DIGEST} ada user 1970-01-01T01:01:40+01:00", 100.0),
    ],
)
def test_lines_of_both_kinds_are_read(line: str, end: float | None) -> None:
    assert token_file.parse_line(line) == token_file.TokenLine(DIGEST, "ada", "user", end)


@pytest.mark.parametrize("line", ["", "   ", "# secret ada user", "  # sha256:"])
def test_comments_are_skipped(line: str) -> None:
    assert token_file.parse_line(line) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("secret ada", "found 2 words"),
        ("secret ada user 2027-01-01T00:00:00Z more", "found 5 words"),
        ("secret ada owner", 'found role "owner"; expected one of user, admin, node, metrics'),
        ("sha256:abc ada user", "expected 64 hex digits"),
        (f"sha256:{'g' * 64} ada user", "expected 64 hex digits"),
        ("secret ada user tomorrow", 'expiry: found "tomorrow"'),
        ("secret ada user 2027-01-01T00:00:00", "expiry: .* no offset"),
        ("secret * node", "lets one node take the work of all others. To fix: name the nodes"),
        ("secret gpu[1 node", "a node token is for a host list, such as"),
        ("secret gpu[1-* node", "a node token is for a host list"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_without_the_token(
    path: pathlib.Path, line: str, said: str
) -> None:
    path.touch(0o600)
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(token_file.TokenError, match=said) as caught:
        token_file.load(path)
    assert str(caught.value).startswith(f"token file {path}:2: ")
    assert "secret" not in str(caught.value)


def test_a_node_token_names_its_nodes_by_a_host_list() -> None:
    line = token_file.parse_line("secret gpu[001-003],cpu7 node")
    assert line is not None
    assert line.hosts == {"gpu001", "gpu002", "gpu003", "cpu7"}


def test_a_token_for_all_nodes_is_for_muster_up_alone() -> None:
    line = token_file.parse_line("secret * node", any_node=True)
    assert line is not None
    assert (line.identity, line.hosts) == ("*", frozenset())


def test_a_line_says_what_it_is_read_from() -> None:
    line = token_file.line_of("secret", "gpu[1-2]", "node", 100.0)
    assert line.text() == f"sha256:{DIGEST} gpu[1-2] node 1970-01-01T00:01:40.000Z"
    assert token_file.parse_line(line.text()) == line
    assert line.id == DIGEST[:8]


@pytest.mark.parametrize("identity", ["", "two words", "a\nb", "a\u2028b", " a"])
def test_an_identity_is_one_word(identity: str) -> None:
    with pytest.raises(token_file.TokenError, match="expected one word"):
        token_file.line_of("secret", identity, "user")


TOKEN = "n2x_Qm4vY8sT1kRb6uWc3zHd9pLf5jXa7gEoUiNyBtSq"


@pytest.mark.parametrize(
    "line", [f"admin ada {TOKEN}", f"secret ada user {TOKEN}", f"secret {TOKEN} node"]
)
def test_a_token_in_the_wrong_place_is_not_repeated(line: str) -> None:
    with pytest.raises(token_file.TokenError, match=f"a word of {len(TOKEN)} char") as caught:
        token_file.parse_line(line)
    assert TOKEN[:8] not in str(caught.value)

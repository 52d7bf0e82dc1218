"""Token files: read whole or not at all, and made by a controller that has none."""

import os
import pathlib
import stat

import pytest

from reconciler.server import errors
from reconciler.server.auth import authentication, tokens


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "tokens"


def test_a_missing_file_is_created_once(path: pathlib.Path) -> None:
    umask = os.umask(0)
    try:
        assert tokens.ensure(path, "admin")
    finally:
        os.umask(umask)
    alone = path.with_name("token")
    assert {stat.S_IMODE(one.stat().st_mode) for one in (path, alone)} == {0o600}
    assert sorted(one.name for one in path.parent.iterdir()) == ["token", "tokens"]
    token = alone.read_text().strip()
    assert len(token) == 48
    assert tokens.load(path) == {token.encode(): tokens.Caller("admin", "admin")}
    before = path.read_text()
    assert not tokens.ensure(path, "admin")
    assert path.read_text() == before


def test_a_rest_of_an_earlier_try_does_not_matter(path: pathlib.Path) -> None:
    path.with_name(".tokens.part").write_text("half")
    assert tokens.ensure(path, "admin")
    assert len(tokens.load(path)) == 1


def test_where_it_can_not_be_created_is_said(path: pathlib.Path) -> None:
    with pytest.raises(tokens.TokenError, match="nowhere/tokens can't be created"):
        tokens.ensure(path.parent / "nowhere" / "tokens", "admin")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer x", "Basic a", "a"])
@pytest.mark.parametrize("known", [{}, {b"a": tokens.Caller("ada", "admin")}])
def test_nobody_is_known_without_a_token(
    known: dict[bytes, tokens.Caller], header: str | None
) -> None:
    with pytest.raises(errors.Failure) as caught:
        authentication.Authenticator(known).identify(header)
    assert caught.value.status == 401

"""Reads the file that holds the agent's or the metrics port's bearer token."""

import contextlib
import stat
from pathlib import Path


class TokenFileError(Exception):
    """A token file that must not be used: readable by others, or without exactly one token."""


def read_token(path: Path) -> str:
    """Return the token in ``path``.

    Raises:
        TokenFileError: other users can access the file, or it does not hold exactly one token.
        OSError: the file cannot be read.
    """
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TokenFileError(
            f"token file {path} has mode {stat.S_IMODE(mode):04o}, so other users can access it. "
            f"To fix: chmod 600 {path}"
        )
    token = path.read_text(encoding="utf-8").strip()
    if not token or not token.isascii() or any(c.isspace() for c in token):
        raise TokenFileError(f"token file {path} must hold one token: ASCII without spaces")
    return token


class WatchedToken:
    """The token of a file that may change meanwhile.

    Args:
        path: the file, which must hold a token at first.

    Raises:
        TokenFileError: the file must not be used.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = read_token(path)

    def current(self) -> str:
        """Return the token that the file holds, or the last one while the file cannot be used."""
        with contextlib.suppress(TokenFileError, OSError):
            self._token = read_token(self._path)
        return self._token

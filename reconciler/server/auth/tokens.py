"""Tokens of users and nodes, as a file holds them: a line each, a token, whose it is and its role.

It is read before anything else is begun: a controller whose file can't be read has no one to serve.
"""

import os
import pathlib
import secrets
import stat

import msgspec

#: ``metrics``: reads the pages for Prometheus and nothing else.
ROLES = frozenset({"admin", "user", "node", "metrics"})
ADMIN = "admin"
TOKENS_MAX = 10_000


class Caller(msgspec.Struct, frozen=True):
    """An authenticated caller."""

    name: str
    role: str


class TokenError(ValueError):
    """Error: the token file can't be used."""


def load(path: pathlib.Path) -> dict[bytes, Caller]:
    """Tokens to identities.

    Raises:
        TokenError: it can't be read, others may read it, or a line is wrong.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise TokenError(
                    f"token file {path} has mode {mode:04o}: others may read it; chmod 600 it"
                )
            lines = file.read().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"token file {path} can't be read: {error}") from None
    tokens: dict[bytes, Caller] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 3 or parts[2] not in ROLES:
            raise TokenError(
                f"token file {path}:{number}: found {len(parts)} words; expected "
                "`TOKEN IDENTITY ROLE` with role admin, user, node or metrics"
            )
        tokens[parts[0].encode()] = Caller(parts[1], parts[2])
    if not tokens:
        raise TokenError(f"token file {path} holds no token: nobody could call")
    if len(tokens) > TOKENS_MAX:
        raise TokenError(f"token file {path} holds {len(tokens)} tokens; at most {TOKENS_MAX}")
    return tokens


def ensure(path: pathlib.Path, identity: str) -> bool:
    """Create a token file with one admin token if there is none.

    The token alone is also written beside it, into ``token``, as commands take it. Both files have
    mode 0600.

    Args:
        path: the token file.
        identity: whose token it is.

    Returns:
        True if the files were created.

    Raises:
        TokenError: they can't be created.
    """
    token = secrets.token_hex(24)
    try:
        if path.exists():
            return False
        _write_private(path.with_name("token"), f"{token}\n")
        _write_private(path, f"{token} {identity} {ADMIN}\n")
    except OSError as error:
        raise TokenError(f"token file {path} can't be created: {error}") from None
    return True


def _write_private(path: pathlib.Path, text: str) -> None:
    """Write a whole file that nobody else may read."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)

"""Tokens of users and nodes, as a file holds them: a line each, a token, whose it is and its role.

It is read before anything else is begun: a controller whose file can't be read has no one to serve.
"""

import os
import pathlib
import stat

import msgspec

ROLES = frozenset({"admin", "user", "node"})
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
                "`TOKEN IDENTITY ROLE` with role admin, user or node"
            )
        tokens[parts[0].encode()] = Caller(parts[1], parts[2])
    if not tokens:
        raise TokenError(f"token file {path} holds no token: nobody could call")
    if len(tokens) > TOKENS_MAX:
        raise TokenError(f"token file {path} holds {len(tokens)} tokens; at most {TOKENS_MAX}")
    return tokens

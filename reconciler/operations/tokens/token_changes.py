"""Changes of a token file: tokens are created, listed and revoked.

A change is made under a lock and written as a whole, so that the controller never reads half of it.
Lines that a change is not about stay as they are, comments included.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator

from reconciler import lock_file
from reconciler.model.values import found_values
from reconciler.model.values.text_lines import split_lines
from reconciler.operations.tokens import token_file
from reconciler.operations.tokens.token_file import TokenError, TokenLine

#: How long another change of the same file is waited for.
WAIT_S = 10.0


def create(
    path: pathlib.Path,
    identity: str,
    role: str,
    expires_at: float | None = None,
    *,
    wait_s: float = WAIT_S,
) -> tuple[str, TokenLine]:
    """Add a token to a file, which is created if there is none.

    Args:
        path: the token file.
        identity: an address; of a node's token a host list.
        role: one of ``token_file.ROLES``.
        expires_at: seconds since the epoch; None: never.
        wait_s: how long to wait for another change of the file.

    Returns:
        The token, which is kept nowhere, and its line.

    Raises:
        TokenError: the file is wrong or can't be changed, or the identity can't be used.
    """
    token = token_file.new_token()
    line = token_file.line_of(token, identity, role, expires_at)
    with _locked(path, wait_s) as real:
        text = token_file.read(real) if real.exists() else ""
        known = token_file.parse(text, path, any_node=True)
        if len(known) >= token_file.TOKENS_MAX:
            raise TokenError(
                f"token file {path} holds {len(known)} tokens, the most that are read. "
                "To fix: muster token revoke those that nobody uses"
            )
        _write(real, [*split_lines(text), line.text()])
    return token, line


def listed(path: pathlib.Path) -> list[TokenLine]:
    """Return the tokens of a file.

    Raises:
        TokenError: the file is wrong or can't be read.
    """
    return token_file.parse(token_file.read(path), path, any_node=True)


def revoke(path: pathlib.Path, token_id: str, *, wait_s: float = WAIT_S) -> TokenLine:
    """Take a token out of a file.

    Args:
        path: the token file.
        token_id: the first digits of its hash, at least ``token_file.ID_DIGITS``.
        wait_s: how long to wait for another change of the file.

    Returns:
        The line that is gone.

    Raises:
        TokenError: no token has this ID, several have, it is the only one, or the file can't be
            changed.
    """
    wanted = token_id.lower()
    with _locked(path, wait_s) as real:
        text = token_file.read(real)
        known = token_file.parse(text, path, any_node=True)
        found = {one.digest: one for one in known if one.digest.startswith(wanted)}
        if len(wanted) < token_file.ID_DIGITS or not found:
            raise TokenError(
                f"no token {found_values.quote(token_id)} in {path}; expected the "
                f"{token_file.ID_DIGITS} hex digits "
                "of an ID. To fix: muster token list"
            )
        if len(found) > 1:
            raise TokenError(f"{len(found)} tokens begin with {token_id}. To fix: add digits")
        (line,) = found.values()
        if all(one.digest == line.digest for one in known):
            raise TokenError(
                f"{line.id} is the only token in {path}, and a controller without any keeps the "
                "last ones that it knew. To fix: muster token create another one first"
            )
        _write(real, [one for one in split_lines(text) if _digest(one) != line.digest])
    return line


def _digest(text: str) -> str:
    """Return the digest of a line, or an empty string for a comment."""
    line = token_file.parse_line(text, any_node=True)
    return "" if line is None else line.digest


def _write(path: pathlib.Path, lines: list[str]) -> None:
    """Replace the file. It stays that of its owner, who is the controller's user."""
    try:
        token_file.write_private(path, token_file.joined(lines), _owner(path))
    except OSError as error:
        raise TokenError(f"token file {path} can't be written: {error}") from None


def _owner(path: pathlib.Path) -> tuple[int, int] | None:
    """Return whose what root writes here has to be; None: this process's."""
    if os.geteuid() != 0:
        return None
    known = (path if path.exists() else path.parent).stat()
    return (known.st_uid, known.st_gid)


@contextlib.contextmanager
def _locked(path: pathlib.Path, wait_s: float) -> Iterator[pathlib.Path]:
    """Let nobody else change the file meanwhile; gives the file itself where a link leads to it."""
    try:
        real = path.resolve()
        lock = real.with_name(f"{real.name}.lock")
        descriptor = lock_file.open_file(lock, _owner(real))
    except OSError as error:
        raise TokenError(f"token file {path} can't be changed: {error}") from None
    try:
        lock_file.lock(descriptor, wait_s)
        yield real
    except lock_file.LockHeldError as error:
        raise TokenError(
            f"token file {path} can't be changed: {error} has been changing it for {wait_s:g} s "
            f"and holds {lock}. To fix: wait until it has ended, or end it, and try again"
        ) from None
    finally:
        os.close(descriptor)

"""The secret of a git forge's webhooks, in a file that only its owner may read.

It is read at each use, so that a new secret counts at once. It is never an argument or a variable.
"""

import os
import pathlib
import stat

#: Fewer characters can be guessed; more are no secret but another file.
SECRET_CHARACTERS_MIN, SECRET_BYTES_MAX = 16, 4096


class HookSecretError(ValueError):
    """Error: the file of the webhooks' secret can't be used."""


def read(path: pathlib.Path) -> bytes:
    """Return the secret that a file holds in its one line.

    Raises:
        HookSecretError: it can't be read, others may read it, or it holds no secret.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = b"" if mode & 0o077 else file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise HookSecretError(f"hook secret {path} can't be read: {why}") from None
    if mode & 0o077:
        raise HookSecretError(
            f"hook secret {path} has mode {mode:04o}: others may read it; chmod 600 it"
        )
    secret = text.strip()
    if not SECRET_CHARACTERS_MIN <= len(secret) <= SECRET_BYTES_MAX or len(secret.split()) != 1:
        raise HookSecretError(
            f"hook secret {path}: expected one line of {SECRET_CHARACTERS_MIN} to "
            f"{SECRET_BYTES_MAX} characters without spaces, as `openssl rand -hex 32` writes it"
        )
    return secret

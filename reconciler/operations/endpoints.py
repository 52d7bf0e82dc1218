"""Which controller a command talks to, and with which token.

In order: what the command line says, ``MUSTER_SERVER`` and ``MUSTER_TOKEN_FILE`` (an empty one is
as good as none), then the file ``.muster/endpoint.json`` of this folder or the nearest one above
it, which ``muster up`` writes.
"""

import os
import stat
from pathlib import Path

import msgspec

ENDPOINT_FILE = Path(".muster") / "endpoint.json"


class EndpointError(Exception):
    """There is no controller to talk to, or its token can't be used; says what to do."""


class Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    """A controller's address and the file that holds the user's token."""

    url: str
    token_file: str | None = None

    def token(self) -> str | None:
        """The token.

        Raises:
            EndpointError: the file can't be read, is empty, or others may read it.
        """
        return None if self.token_file is None else read_token(Path(self.token_file))


_DECODE = msgspec.json.Decoder(Endpoint).decode


def read_token(path: Path) -> str:
    """The only line of a token file that nobody but its owner may read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise EndpointError(f"token file {path}: it is a folder; expected a file with a token")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise EndpointError(
                f"token file {path}: others may read it (mode {stat.S_IMODE(mode):04o}); "
                f"run: chmod 600 {path}"
            )
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise EndpointError(f"token file {path}: {error.strerror}") from error
    if not token:
        raise EndpointError(f"token file {path}: it is empty; expected one line with a token")
    return token


def write(folder: Path, endpoint: Endpoint) -> None:
    """Leave the endpoint where commands started in ``folder`` or below find it."""
    path = folder / ENDPOINT_FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(endpoint)) + b"\n")


def find(server: str | None, token_file: str | None, start: Path) -> Endpoint:
    """The endpoint to use.

    Raises:
        EndpointError: none is named anywhere.
    """
    server = server or os.environ.get("MUSTER_SERVER")
    token_file = token_file or os.environ.get("MUSTER_TOKEN_FILE") or None
    if server:
        return Endpoint(url=server.rstrip("/"), token_file=token_file)
    start = start.resolve()
    for folder in (start, *start.parents):
        path = folder / ENDPOINT_FILE
        if path.is_file():
            try:
                found = _DECODE(path.read_bytes())
            except (msgspec.MsgspecError, OSError) as error:
                raise EndpointError(f"{path}: {error}; remove it or run `muster up`") from error
            return Endpoint(url=found.url, token_file=token_file or found.token_file)
    raise EndpointError(
        "no controller is known here: run `muster up` in this folder, name one with --server, "
        "or set MUSTER_SERVER"
    )

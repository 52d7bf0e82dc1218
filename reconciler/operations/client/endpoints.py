"""Address and token of the controller that a command uses.

In order: the command line, ``MUSTER_SERVER``, ``MUSTER_TOKEN_FILE`` and ``MUSTER_CA`` (empty ones
count as unset), then the nearest ``.muster/endpoint.json`` at or above this folder, which
``muster up`` writes, then what ``muster login`` has kept for this user. Such a file receives a
token, so it is used only if this user or root wrote it, in a folder that others can't write to,
outside of any repository; one that is found by the folder only for a controller on this machine.
"""

import os
import re
import stat
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from reconciler.desired.git import git_commands
from reconciler.model.values import addresses, found_values

ENDPOINT_FILE = Path(".muster") / "endpoint.json"
#: The file beside it, of a login, that holds the token.
TOKEN_NAME = "token"  # noqa: S105 - a name, no token
#: Variables that stand for ``--ca`` and ``--insecure``.
CA_VARIABLE = "MUSTER_CA"
INSECURE_VARIABLE = "MUSTER_INSECURE"
#: What the parser of the command line takes for yes in a variable.
_YES = frozenset({"1", "true", "t", "yes", "y", "on"})
#: Addresses of loopback, written so that no two readers take them for different hosts.
_LOCAL = re.compile(r"https?://(?:127(?:\.[0-9]{1,3}){3}|localhost|\[::1\])(?::[0-9]{1,5})?/?")


class EndpointError(Exception):
    """There is no controller to talk to, or its token can't be used; says what to do."""


def wrong_with_url(url: str) -> str:
    """Return why no controller can be at a URL; empty if one can."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # which is read only now
    except ValueError as error:
        return f"the controller's URL {found_values.quote(url)}: {error}"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return f"the controller's URL: found {found_values.quote(url)}, expected one such as http://127.0.0.1:7420"
    return ""


class Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    """A controller's address and the file that holds the user's token.

    ``ca_file``: PEM with the CAs of the controller's certificate; None: those of this machine.
    """

    url: str
    token_file: str | None = None
    ca_file: str | None = None

    def token(self) -> str | None:
        """Return the token.

        Raises:
            EndpointError: the file can't be read, is empty, or others may read it.
        """
        return None if self.token_file is None else read_token(Path(self.token_file))


_DECODE = msgspec.json.Decoder(Endpoint).decode


def read_token(path: Path) -> str:
    """Return the only line of a token file that nobody but its owner may read."""
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
    path.chmod(0o644)


def find(server: str | None, token_file: str | None, start: Path) -> Endpoint:
    """Return the endpoint to use.

    Raises:
        EndpointError: none is configured.
    """
    server = server or os.environ.get("MUSTER_SERVER")
    token_file = token_file or os.environ.get("MUSTER_TOKEN_FILE") or None
    ca_file = os.environ.get(CA_VARIABLE) or None
    if server:
        found = Endpoint(server.rstrip("/"), token_file, ca_file)
        require_privacy(found)
        return found
    path = file_for(start)
    if path is None:
        raise EndpointError(
            "no controller is known here: run `muster login URL` for that of your cluster, or "
            "`muster up` for one on this machine; --server and MUSTER_SERVER name another"
        )
    found = _read(path)
    found = Endpoint(found.url, token_file or found.token_file, ca_file or found.ca_file)
    require_privacy(found)
    return found


def file_for(start: Path) -> Path | None:
    """Return the file that says the endpoint for commands in a folder; None if there is none."""
    start = start.resolve()
    places = [folder / ENDPOINT_FILE for folder in (start, *start.parents)]
    return next((path for path in (*places, login_file()) if path.is_file()), None)


def login_file() -> Path:
    """Return where the endpoint of this user is kept, by ``XDG_CONFIG_HOME``."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.config").expanduser()
    return base / "muster" / "endpoint.json"


def log_in(url: str, token: str, ca_file: str | None) -> Endpoint:
    """Keep an endpoint and its token for this user; return it.

    Raises:
        OSError: they can't be written.
    """
    path = login_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    kept = path.parent / TOKEN_NAME
    _replace(kept, f"{token}\n".encode())
    ca = None if ca_file is None else str(Path(ca_file).resolve())
    endpoint = Endpoint(url.rstrip("/"), str(kept), ca)
    _replace(path, msgspec.json.format(msgspec.json.encode(endpoint)) + b"\n")
    return endpoint


def log_out() -> str | None:
    """Forget the endpoint of this user; return its URL, None if there was none.

    Raises:
        OSError: the files can't be removed.
    """
    path = login_file()
    try:
        url = _DECODE(path.read_bytes()).url
    except FileNotFoundError:
        url = None
    except msgspec.MsgspecError:
        url = "a controller"
    for one in (path.parent / TOKEN_NAME, path):
        one.unlink(missing_ok=True)
    return url


def _replace(path: Path, content: bytes) -> None:
    """Write a file that nobody else may read, whatever was there."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as made:  # of mode 0600
        made.write(content)
    Path(made.name).replace(path)


def require_privacy(endpoint: Endpoint) -> None:
    """Check that a token is readable by nobody on its way to the controller.

    Raises:
        EndpointError: it would go to another machine in plain text.
    """
    parts = urlsplit(endpoint.url)
    if (
        endpoint.token_file is None
        or parts.scheme != "http"
        or addresses.is_loopback(parts.hostname or "")
        or os.environ.get(INSECURE_VARIABLE, "").lower() in _YES
    ):
        return
    raise EndpointError(
        f"{endpoint.url} is another machine and not encrypted: whoever is on the way could read "
        "your token. Use its https:// address (muster controller --tls-cert), or accept it with "
        f"--insecure or {INSECURE_VARIABLE}=1"
    )


def _read(path: Path) -> Endpoint:
    """Return the content of an endpoint file, if the file can be trusted."""
    try:
        why = _strange(path)
        found = _DECODE(path.read_bytes())
    except (msgspec.MsgspecError, OSError) as error:
        raise EndpointError(f"{path}: {error}; remove it, or run `muster up` or login") from error
    if not why and path != login_file() and not _LOCAL.fullmatch(found.url):
        why = f"it names {found.url}, and `muster up` listens on this machine only"
    if not why and found.token_file and Path(found.token_file).parent != path.parent:
        why = f"it names the token file {found.token_file}, which is not beside it"
    if why:
        raise EndpointError(
            f"{path} is not followed: {why}. Whoever wrote it would get your token; remove it, or "
            "name the controller with --server or MUSTER_SERVER"
        )
    return found


def _strange(path: Path) -> str:
    """Return why somebody else may have written an endpoint file; empty if nobody has.

    Raises:
        OSError: the file can't be checked.
    """
    own = {os.geteuid(), 0}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        own.add(int(os.environ["SUDO_UID"]))
    for one in (path.parent, path):
        found = one.lstat()
        if stat.S_ISLNK(found.st_mode):
            return f"{one} is a link"
        if found.st_uid not in own:
            return f"{one} belongs to another user (uid {found.st_uid})"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write {one} (mode {stat.S_IMODE(found.st_mode):04o})"
    return "a git repository brings it" if _is_tracked(path) else ""


def _is_tracked(path: Path) -> bool:
    """Return True if a file is tracked by a git repository."""
    if not any((folder / ".git").exists() for folder in path.parents):
        return False
    done = subprocess.run(
        ["git", "ls-files", "--error-unmatch", "--", path.name],
        cwd=path.parent,
        env=git_commands.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0

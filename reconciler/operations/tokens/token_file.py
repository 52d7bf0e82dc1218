"""Token files: a line for each token with its hash, whose it is, its role, and perhaps its end.

A file is read whole or not at all. It holds the hash of a token, so that whoever reads a copy of it
can't call. Lines that hold a token itself are read as well, as people write them by hand.
"""

import hashlib
import logging
import os
import pathlib
import secrets
import stat
from collections.abc import Iterable

import msgspec

from reconciler.model.values import found_values, hostlists, times
from reconciler.model.values.text_lines import split_lines

_LOG = logging.getLogger(__name__)

#: ``metrics``: reads the pages for Prometheus and nothing else.
ROLES = ("user", "admin", "node", "metrics")
ADMIN = "admin"
NODE = "node"
#: Identity of a token that any node may use. Only the controller of ``muster up`` takes one.
ANY_NODE = "*"
TOKENS_MAX = 10_000
#: Stands before a hash, where another line has a token.
HASHED = "sha256:"
#: How many digits of a hash name a token.
ID_DIGITS = 8
_HASH_DIGITS = 64
#: Longer words are not repeated in messages; a time with its zone fits.
_SHOWN_MAX = 32
_HEX = frozenset("0123456789abcdef")


class TokenError(ValueError):
    """Error: the token file can't be used."""


class TokenLine(msgspec.Struct, frozen=True):
    """One line of a token file.

    Attributes:
        digest: SHA-256 of the token, in hex.
        identity: an address, or of a node's token a host list.
        role: one of ``ROLES``.
        expires_at: seconds since the epoch; None: never.
        hosts: the nodes that a node's token is for.
    """

    digest: str
    identity: str
    role: str
    expires_at: float | None = None
    hosts: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """The name of the token, which tells nothing of it."""
        return self.digest[:ID_DIGITS]

    def text(self) -> str:
        """Return the line as it is written."""
        end = "" if self.expires_at is None else f" {times.format_time(self.expires_at)}"
        return f"{HASHED}{self.digest} {self.identity} {self.role}{end}"


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_hex(24)


def digest_of(token: bytes) -> str:
    """Return the hash by which a token is known."""
    return hashlib.sha256(token).hexdigest()


def line_of(token: str, identity: str, role: str, expires_at: float | None = None) -> TokenLine:
    """Return the line of a token.

    Raises:
        TokenError: the identity can't stand in a line, or a node's token names no hosts.
    """
    if identity.split() != [identity] or not identity.isprintable():
        raise TokenError(
            f"identity {found_values.quote(identity)}: expected one word, such as ada@example.org"
        )
    hosts = _hosts(identity, any_node=False) if role == NODE else frozenset()
    return TokenLine(digest_of(token.encode()), identity, role, expires_at, hosts)


def parse_line(text: str, *, any_node: bool = False) -> TokenLine | None:
    """Return what a line says; None if it is empty or a comment.

    Args:
        text: the line.
        any_node: whether ``*`` may stand for all nodes.

    Raises:
        TokenError: it is wrong; the message says how, without the token.
    """
    if not text.strip() or text.lstrip().startswith("#"):
        return None
    parts = text.split()
    if len(parts) not in {3, 4}:
        raise TokenError(
            f"found {len(parts)} words; expected `sha256:HEX IDENTITY ROLE [EXPIRY]` or "
            "`TOKEN IDENTITY ROLE [EXPIRY]`"
        )
    token, identity, role, *end = parts
    if role not in ROLES:
        raise TokenError(f"found role {_shown(role)}; expected one of {', '.join(ROLES)}")
    digest = digest_of(token.encode())
    if token.startswith(HASHED):
        digest = token.removeprefix(HASHED).lower()
        if len(digest) != _HASH_DIGITS or not _HEX.issuperset(digest):
            raise TokenError(f"expected {_HASH_DIGITS} hex digits after `{HASHED}`")
    try:
        expires_at = times.parse_time(end[0]) if end else None
    except ValueError as error:
        told = str(error) if _is_short(end[0]) else f"found {_shown(end[0])}, expected a time"
        raise TokenError(f"expiry: {told}") from None
    hosts = _hosts(identity, any_node=any_node) if role == NODE else frozenset()
    return TokenLine(digest, identity, role, expires_at, hosts)


def _is_short(word: str) -> bool:
    """Return True if a word is too short to be a token that stands in the wrong place."""
    return len(word) <= _SHOWN_MAX


def _shown(word: str) -> str:
    """Return a word for a message, or only its length if it may be a token."""
    return found_values.quote(word) if _is_short(word) else f"a word of {len(word)} characters"


def _hosts(identity: str, *, any_node: bool) -> frozenset[str]:
    """Return the nodes that a node's token is for.

    Raises:
        TokenError: it names none, or all of them where that is refused.
    """
    if identity == ANY_NODE:
        if any_node:
            return frozenset()
        raise TokenError(
            "a node token for `*` lets one node take the work of all others. To fix: name the "
            "nodes by a host list, such as gpu[001-064], or give each node a token of its own"
        )
    try:
        return frozenset(hostlists.expand(identity))
    except hostlists.HostListError as error:
        told = f": {error}" if _is_short(identity) else f", and not {_shown(identity)}"
        raise TokenError(f"a node token is for a host list, such as gpu[001-064]{told}") from None


def read(path: pathlib.Path) -> str:
    """Return the text of a token file that only its owner may read.

    Raises:
        TokenError: it can't be read, or others may read it.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise TokenError(
                    f"token file {path} has mode {mode:04o}: others may read it; chmod 600 it"
                )
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"token file {path} can't be read: {error}") from None


def parse(text: str, path: pathlib.Path, *, any_node: bool = False) -> list[TokenLine]:
    """Return the lines of a token file that hold a token.

    Args:
        text: of the file.
        path: its name, for messages.
        any_node: whether ``*`` may stand for all nodes.

    Raises:
        TokenError: a line is wrong, or there are too many.
    """
    lines: list[TokenLine] = []
    for number, line in enumerate(split_lines(text), 1):
        try:
            found = parse_line(line, any_node=any_node)
        except TokenError as error:
            raise TokenError(f"token file {path}:{number}: {error}") from None
        if found is not None:
            lines.append(found)
    if len(lines) > TOKENS_MAX:
        raise TokenError(f"token file {path} holds {len(lines)} tokens; at most {TOKENS_MAX}")
    return lines


def load(path: pathlib.Path, *, any_node: bool = False) -> list[TokenLine]:
    """Return the tokens of a file that a controller can work with.

    Raises:
        TokenError: it can't be read, others may read it, a line is wrong, or it holds no token.
    """
    lines = parse(read(path), path, any_node=any_node)
    if not lines:
        raise TokenError(f"token file {path} holds no token: nobody could call")
    return lines


def ensure(path: pathlib.Path, identity: str) -> bool:
    """Create a token file with one admin token if there is none.

    The token itself is written beside it, into ``token``, as commands take it. Both files have mode
    0600.

    Args:
        path: the token file.
        identity: whose token it is.

    Returns:
        True if the files were created.

    Raises:
        TokenError: they can't be created.
    """
    token = new_token()
    try:
        if path.exists():
            return False
        write_private(path.with_name("token"), f"{token}\n")
        write_private(path, f"{line_of(token, identity, ADMIN).text()}\n")
    except OSError as error:
        raise TokenError(f"token file {path} can't be created: {error}") from None
    return True


def prepare(named: pathlib.Path | None, state: pathlib.Path, *, any_node: bool) -> pathlib.Path:
    """Return the token file of a controller, once it can be worked with.

    Args:
        named: the file; None: ``tokens`` in the state folder, created if it is missing.
        state: the state folder.
        any_node: whether a node's token may be for all nodes.

    Raises:
        TokenError: the file can't be read or created, or is wrong.
    """
    path = named
    if path is None:
        path = state.resolve() / "tokens"
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            return path  # the controller says what is wrong with the folder
        if ensure(path, ADMIN):
            _LOG.info(
                "created %s with one admin token; commands take it by --token-file %s",
                path,
                path.with_name("token"),
            )
    load(path, any_node=any_node)
    return path


def write_private(path: pathlib.Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Write a whole file that only its owner may read.

    Args:
        path: the file, replaced if it is there.
        text: the content.
        owner: user and group whose file it is to be; None: this process's.

    Raises:
        OSError: it can't be written; what was there is still there.
    """
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.fchown(file.fileno(), *owner)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def joined(lines: Iterable[str]) -> str:
    """Return the text of a file with these lines."""
    return "".join(f"{line}\n" for line in lines)

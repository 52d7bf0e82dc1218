"""Keeps passwords in the URLs of repositories from being shown.

Text comes in and goes out with ``…`` in place of what stands before the ``@`` of a URL. A URL that
holds a password, or a token as its user, is refused as the address of a repository: it would be
among the arguments of processes, which every user of the machine can read.
"""

import re

#: In the place of a user and password.
HIDDEN = "…"
#: A scheme, and what stands before the last ``@`` of the host. A password may hold a slash, but
#: ``host:8080/path@name`` holds none.
_USER_INFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://"
    r"(?P<user>[^\s/:@]*:(?![0-9]*/)[^\s@]*(?:@[^\s/@]*)*@|[^\s/]*@)"
)
#: Schemes whose user is a name only: an SSH server does not take a token for one.
_NAMED_BY_USER = frozenset({"ssh", "git+ssh", "ssh+git"})
#: How tokens of code hosts begin.
_TOKEN_PREFIXES = ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-", "ATBB")
#: A user of as many characters is a token, not a name.
_NAME_CHARACTERS_MAX = 32


class PasswordInUrlError(ValueError):
    """The address of a repository holds a password; the message does not."""


def redacted(text: str) -> str:
    """Return a text with the user and password of each URL hidden, but for users of SSH."""
    return _USER_INFO.sub(_hide, text) if "://" in text else text


def redacted_bytes(printed: bytes) -> bytes:
    """Return what a program has printed, redacted; the same bytes if nothing is to be hidden."""
    if b"://" not in printed:
        return printed
    text = printed.decode("utf-8", "surrogateescape")
    return redacted(text).encode("utf-8", "surrogateescape")


def require_no_password(address: str) -> None:
    """Check that an address holds no password.

    Raises:
        PasswordInUrlError: it does.
    """
    found = _USER_INFO.match(address)
    if found is None or not _is_secret(found["scheme"], found["user"][:-1]):
        return
    raise PasswordInUrlError(
        f"the URL {redacted(address)} holds a password or token, which every user of this machine "
        "could read. To fix: leave it out of the URL, store it in a file that only you can read, "
        "and run `git config --global credential.helper 'store --file=/PATH/TO/FILE'` as the user "
        "of the controller. The file has one line: https://USER:PASSWORD@HOST"
    )


def _hide(found: re.Match[str]) -> str:
    if found["scheme"].lower() in _NAMED_BY_USER and ":" not in found["user"]:
        return found[0]
    return f"{found['scheme']}://{HIDDEN}@"


def _is_secret(scheme: str, user: str) -> bool:
    """Return True if what stands before the ``@`` of a URL holds more than a name."""
    if user.partition(":")[2]:
        return True
    if scheme.lower() in _NAMED_BY_USER:
        return False
    return user.startswith(_TOKEN_PREFIXES) or len(user) > _NAME_CHARACTERS_MAX

"""Checks the text of public SSH keys: a truncated or retyped key would lock its owner out.

A line as in a ``.pub`` file comes in; what is wrong with it goes out.

Source: the wire format of RFC 4253 section 6.6, RFC 5656 section 3.1, RFC 8709 section 4, and
OpenSSH's ``PROTOCOL.u2f``: strings with their length before them, the first of which is the type.
"""

import base64
import binascii
import re

_LINE = re.compile(
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-[a-z0-9.@-]+) ([A-Za-z0-9+/]+={0,3})"
)
#: By type, the bytes of each part behind it; None: any number.
_PARTS: dict[str, tuple[int | None, ...]] = {
    "ssh-ed25519": (32,),
    "sk-ssh-ed25519@openssh.com": (32, None),
    "ssh-rsa": (None, None),
    "ecdsa-sha2-nistp256": (8, 65),
    "ecdsa-sha2-nistp384": (8, 97),
    "ecdsa-sha2-nistp521": (8, 133),
    "sk-ecdsa-sha2-nistp256@openssh.com": (8, 65, None),
}
#: Fewer bytes of an RSA modulus OpenSSH takes for no key.
_MODULUS_BYTES_MIN = 128


def parse(text: str) -> str:
    """Return the key itself, type and base64, without its comment.

    Raises:
        ValueError: it is no key, with the reason.
    """
    found = _LINE.match(text.strip())
    if found is None:
        raise ValueError("no public key of SSH")
    kind, encoded = found[1], found[2]
    try:
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise ValueError(f"this {kind} key is cut off, or retyped: it is no base64") from None
    parts = _parts(data)
    expected = _PARTS.get(kind)
    if parts is None or not parts:
        raise ValueError(
            f"this {kind} key is cut off, or retyped: its parts don't end where it does"
        )
    if parts[0] != kind.encode() or expected is None:
        raise ValueError(f"it says {kind}, and what follows is no such key")
    lengths = [len(part) for part in parts[1:]]
    alike = len(lengths) == len(expected) and all(
        wanted in (None, length) for wanted, length in zip(expected, lengths, strict=False)
    )
    if not alike or (kind == "ssh-rsa" and lengths[-1] < _MODULUS_BYTES_MIN):
        raise ValueError(
            f"this {kind} key is cut off, or retyped: its parts are too long or too short"
        )
    return found[0]


def _parts(data: bytes) -> list[bytes] | None:
    """Return the strings in a key; None if they do not end with it."""
    found = []
    while data:
        length = int.from_bytes(data[:4], "big")
        if len(data) < 4 + length:
            return None
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found

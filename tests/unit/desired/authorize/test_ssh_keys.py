"""Public SSH keys as ``ssh-keygen`` writes them are taken, and what was cut or retyped is not."""

import subprocess
from pathlib import Path

import pytest

from reconciler.desired.authorize import ssh_keys

KINDS = [("ed25519", ()), ("rsa", ("-b", "2048")), ("ecdsa", ("-b", "384")), ("ecdsa", ())]


@pytest.fixture(params=KINDS, ids=["ed25519", "rsa", "ecdsa-384", "ecdsa-256"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A line of a .pub file."""
    kind, more = request.param
    path = tmp_path / "key"
    command = [
        "ssh-keygen",
        "-q",
        "-t",
        kind,
        *more,
        "-N",
        "",
        "-C",
        "ada at home",
        "-f",
        str(path),
    ]
    subprocess.run(command, check=True, timeout=60)
    return path.with_suffix(".pub").read_text(encoding="utf-8")


@pytest.mark.needs("ssh-keygen")
def test_a_key_is_taken_without_its_comment(line: str) -> None:
    kind, encoded, *_ = line.split()
    assert ssh_keys.parse(f"  {line}") == f"{kind} {encoded}"


@pytest.mark.needs("ssh-keygen")
def test_no_beginning_of_a_key_is_a_key(line: str) -> None:
    kind, encoded, *_ = line.split()
    for length in range(4, len(encoded.rstrip("=")), 7):
        with pytest.raises(ValueError, match=r"not base64|truncated"):
            ssh_keys.parse(f"{kind} {encoded[:length]}")


@pytest.mark.needs("ssh-keygen")
def test_a_key_is_of_the_kind_that_it_says(line: str) -> None:
    kind, encoded, *_ = line.split()
    other = "ssh-rsa" if kind != "ssh-rsa" else "ssh-ed25519"
    with pytest.raises(ValueError, match=f"it says {other}, and what follows is no such key"):
        ssh_keys.parse(f"{other} {encoded}")


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-dss AAAA", "sk-odd@x.org AAAA", "A B"])
def test_what_is_no_key_at_all(text: str) -> None:
    with pytest.raises(ValueError, match="key"):
        ssh_keys.parse(text)

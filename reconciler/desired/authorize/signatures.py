"""Verifies the signatures of commits, by the keys of an Access and by nothing else.

Git verifies with keys written out for it alone: no keyring, configuration or trust of this machine
counts. The identity of the key's owner goes out, or the reason why there is none. Expiry of keys is
judged here, against the time that the commit claims and against the clock.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from reconciler.desired.git import commit_log, git_commands, source
from reconciler.model.policy import access
from reconciler.model.values import times
from reconciler.model.values.text_lines import split_lines

_SSH_GOOD = re.compile(r'^Good "git" signature for identity-(\d+) with (.*)$', re.MULTILINE)
_SSH_OTHER = re.compile(r'^Good "git" signature with (.*)$', re.MULTILINE)
_STATUS = re.compile(r"^\[GNUPG:\] ([A-Z_]+)(.*)$", re.MULTILINE)
_FINGERPRINT_MAX = 120
#: How signatures begin that git verifies with keys of an Access; it looks at nothing else of them.
_SSH = b"-----BEGIN SSH SIGNATURE-----"
_GPG = (b"-----BEGIN PGP SIGNATURE-----", b"-----BEGIN PGP MESSAGE-----")
#: The header that bears it, by how long the names of commits are.
_HEADERS = {40: b"gpgsig", 64: b"gpgsig-sha256"}
#: How folders of keys are called, and the file in each that its process holds while it lives.
PREFIX = "muster-keys-"
LOCK = "held"
#: A folder without that file is left for so long: its process may be about to make it.
UNHELD_S = 3600.0
#: The most folders that are looked at, whether their process lives.
LEFT_MAX = 10_000


class SignatureRefusal(msgspec.Struct, frozen=True):
    """The reason why a commit has no identity: a stable rule id, and a sentence.

    ``until``: time before which, by the controller's clock, it would have had one; None: the clock
    decided nothing.
    """

    rule: str
    message: str
    until: float | None = None


class Verifier:
    """A verifier of commits of one repository. Close it when done."""

    def __init__(self, repository: source.GitSource) -> None:
        self._source = repository
        self._folder, self._lock = _make_folder(repository.state)
        self._prepared: tuple[access.Access, _Keys] | None = None

    def close(self) -> None:
        """Forget the keys."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def verify(
        self, commit: commit_log.Commit, known: access.Access, now: float
    ) -> access.Identity | SignatureRefusal:
        """Return the identity that signed a commit, or the refusal.

        Args:
            commit: its id.
            known: Access with the keys that count.
            now: seconds since the epoch.

        Raises:
            GitError: it cannot be read, or git cannot be run.
        """
        found = self._source.objects.read(commit.id)
        if found is None:
            raise git_commands.GitError(f"{commit.id} is not in {self._source.address}")
        signature = _signature(found[2], _HEADERS[len(found[0])])
        if signature is None:
            return SignatureRefusal("unsigned-commit", "it has no signature")
        if not signature.startswith((_SSH, *_GPG)):
            return SignatureRefusal("bad-signature", "its signature is neither SSH nor GPG")
        keys = self._keys(known)
        done = git_commands.run(
            self._source.folder,
            *("-c", f"gpg.ssh.allowedSignersFile={keys.signers}"),
            *("-c", "gpg.ssh.program=ssh-keygen", "-c", "gpg.ssh.revocationFile="),
            *("-c", "gpg.program=gpg", "-c", "gpg.openpgp.program=gpg"),
            *("-c", "gpg.minTrustLevel=undefined"),
            *("verify-commit", "--raw", commit.id),
            extra={"GNUPGHOME": str(keys.home)},
            good=tuple(range(256)),
        )
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        if signature.startswith(_SSH):
            signer = _by_ssh(output, keys, good=done.returncode == 0)
        else:
            signer = _by_gpg(output, keys)
        if isinstance(signer, SignatureRefusal):
            return signer
        identity, key = signer
        return _in_time(identity, key, commit, now) or identity

    def _keys(self, known: access.Access) -> "_Keys":
        if self._prepared is None or self._prepared[0] != known:
            self._prepared = known, _write(known, self._folder)
        return self._prepared[1]


def _signature(commit: bytes, header: bytes) -> bytes | None:
    """Return the first line of the signature that git looks at in a commit; None if it has none."""
    head = commit.split(b"\n\n", 1)[0]
    _, found, rest = head.partition(b"\n%s " % header)
    return rest.partition(b"\n")[0] if found else None


def _make_folder(state: Path | None) -> tuple[Path, int]:
    """Create a folder of its own, in the state folder if there is one; return it with its lock.

    Folders that killed processes have left are deleted first, in the temporary folder too.
    """
    if state is not None:
        state.mkdir(parents=True, exist_ok=True)
    for parent in {Path(tempfile.gettempdir()), state or Path(tempfile.gettempdir())}:
        for number, left in enumerate(parent.glob(f"{PREFIX}*")):
            if number == LEFT_MAX:
                break
            with contextlib.suppress(OSError):
                _clean(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=state))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, lock


def _clean(left: Path) -> None:
    """Delete a folder of this user whose process has ended.

    Raises:
        OSError: its process lives, or the folder is gone.
    """
    status = left.lstat()
    if left.is_symlink() or not left.is_dir() or status.st_uid != os.geteuid():
        return
    try:
        lock = os.open(left / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if time.time() - status.st_mtime > UNHELD_S:
            shutil.rmtree(left, ignore_errors=True)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(left, ignore_errors=True)
    finally:
        os.close(lock)


_Signer = tuple[access.Identity, access.Key]


class _Keys(msgspec.Struct, frozen=True):
    """Key files in git's formats, and the owners of the keys."""

    signers: Path
    home: Path
    ssh: tuple[_Signer, ...]
    gpg: dict[str, _Signer]


def _write(known: access.Access, folder: Path) -> _Keys:
    """Write the keys of an Access to files."""
    digest = hashlib.sha256(msgspec.json.encode(known)).hexdigest()[:16]
    home = folder / digest
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    # To a clock that is behind, a key that was made just now is no other key.
    (home / "gpg.conf").write_text("ignore-time-conflict\nignore-valid-from\n", encoding="utf-8")
    ssh: list[_Signer] = []
    gpg: dict[str, _Signer] = {}
    lines = []
    for identity in known.identities.values():
        for key in identity.keys:
            if key.kind == "ssh":
                lines.append(f'identity-{len(ssh)} namespaces="git" {key.text}\n')
                ssh.append((identity, key))
            else:
                for fingerprint in _import(key.text, home):
                    gpg.setdefault(fingerprint, (identity, key))
    signers = home / "allowed_signers"
    signers.write_text("".join(lines), encoding="utf-8")
    return _Keys(signers, home, tuple(ssh), gpg)


def _import(text: str, home: Path) -> list[str]:
    """Import a GPG key into a keyring; return the fingerprints of its primary keys."""
    arguments = ("gpg", "--batch", "--no-autostart", "--no-tty", "--homedir", str(home))
    listing = _gpg((*arguments, "--with-colons", "--show-keys"), text)
    _gpg((*arguments, "--import"), text)
    found, primary = [], False
    for line in split_lines(listing):
        fields = line.split(":")
        if fields[0] in {"pub", "sub"}:
            primary = fields[0] == "pub"
        elif fields[0] == "fpr" and primary:
            found.append(fields[9])
            primary = False
    return found


def _gpg(command: tuple[str, ...], text: str) -> str:
    return git_commands.run_program(command, data=text.encode())


def _by_ssh(output: str, keys: _Keys, *, good: bool) -> _Signer | SignatureRefusal:
    found = _SSH_GOOD.search(output)
    if good and found is not None and int(found[1]) < len(keys.ssh):
        return keys.ssh[int(found[1])]
    other = _SSH_OTHER.search(output)
    if other is not None:
        return _unknown(other[1])
    if "ssh-keygen" in output and "not found" in output:
        raise git_commands.GitError(f"SSH signatures can't be verified: {output.strip()[:200]}")
    return SignatureRefusal("bad-signature", "its signature does not match its contents")


def _by_gpg(output: str, keys: _Keys) -> _Signer | SignatureRefusal:
    status = {name: rest.split() for name, rest in _STATUS.findall(output)}
    if "BADSIG" in status:
        return SignatureRefusal("bad-signature", "its signature does not match its contents")
    if "REVKEYSIG" in status:
        return SignatureRefusal("revoked-key", "the key that signed it is revoked")
    if "EXPSIG" in status:  # beside VALIDSIG; `git verify-commit` refuses it as well
        return SignatureRefusal(
            "expired-signature", "its signature was made to hold until then, and expired"
        )
    valid = status.get("VALIDSIG")
    if "EXPKEYSIG" in status:
        return SignatureRefusal("expired-key", "the key that signed it has expired")
    if valid:
        # The last word is the primary key, whichever of its subkeys has signed.
        signer = keys.gpg.get(valid[-1])
        return signer or _unknown(f"GPG key {valid[-1]}")
    if "NO_PUBKEY" in status:
        return _unknown(f"GPG key {' '.join(status['NO_PUBKEY'])}")
    if not status:
        raise git_commands.GitError(f"GPG signatures can't be verified: {output.strip()[:200]}")
    return SignatureRefusal("bad-signature", "its signature can't be verified")


def _unknown(key: str) -> SignatureRefusal:
    return SignatureRefusal(
        "unknown-key",
        f"it is signed with the {key[:_FINGERPRINT_MAX]}, which no identity has in the Access "
        "before it; a commit cannot add its own key",
    )


def _in_time(
    identity: access.Identity, key: access.Key, commit: commit_log.Commit, now: float
) -> SignatureRefusal | None:
    """Return why a key is too old, by the commit's own claim or by the clock."""
    until = key.valid_before
    if until is None or (commit.at < until and now < until):
        return None
    message = (
        f"the key of {identity.email} that signed it was valid until {times.format_time(until)}"
    )
    if commit.at < until:  # either it was predated, or a clock is wrong: people can tell which
        message += (
            f"; the commit says {times.format_time(commit.at)}, the controller's clock "
            f"{times.format_time(now)}"
        )
        return SignatureRefusal("expired-key", message, until)
    return SignatureRefusal("expired-key", message)

"""Real keys, and commits that are signed with them."""

import os
import subprocess
from pathlib import Path

from tests.unit.desired.repositories import ENVIRONMENT, Repository, git


class Key:
    """An SSH key pair of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / name
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.path)],
            check=True,
            capture_output=True,
            timeout=60,
        )
        self.public = self.path.with_suffix(".pub").read_text(encoding="utf-8").strip()
        self.options = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={self.path}")
        self.environment: dict[str, str] = {}

    def listed(self, until: str = "") -> str:
        """As an identity's key in YAML."""
        more = f", validBefore: '{until}'" if until else ""
        return f"{{ssh: '{self.public}'{more}}}"


class GpgKey:
    """A GPG key in a keyring of its own; it signs with a subkey."""

    def __init__(self, folder: Path, email: str, expires: str = "never") -> None:
        folder.mkdir(parents=True, mode=0o700)
        self.environment = {"GNUPGHOME": str(folder)}
        run = self._gpg
        run("--passphrase", "", "--quick-gen-key", f"Test <{email}>", "ed25519", "cert", expires)
        listed = run("--list-keys", "--with-colons").splitlines()
        self.fingerprint = next(x.split(":")[9] for x in listed if x.startswith("fpr"))
        run("--passphrase", "", "--quick-add-key", self.fingerprint, "ed25519", "sign", expires)
        self.public = run("--armor", "--export", self.fingerprint)
        self.options = ("-c", "gpg.format=openpgp", "-c", f"user.signingkey={self.fingerprint}")

    def _gpg(self, *arguments: str) -> str:
        done = subprocess.run(
            ["gpg", "--batch", "--pinentry-mode", "loopback", *arguments],
            env={**os.environ, **self.environment},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout

    def listed(self) -> str:
        """As an identity's key in YAML."""
        lines = "".join(f"            {line}\n" for line in self.public.splitlines())
        return f"\n        gpg: |\n{lines}"


def sign(
    repository: Repository,
    key: Key | GpgKey,
    *,
    author: str = "test@example.org",
    at: str = "",
    branch: str = "main",
) -> str:
    """Make the last commit of a branch anew, signed."""
    folder = repository.path
    tree = git(folder, "rev-parse", f"refs/heads/{branch}^{{tree}}")
    parents = git(folder, "log", "-1", "--format=%P", f"refs/heads/{branch}").split()
    message = git(folder, "log", "-1", "--format=%B", f"refs/heads/{branch}")
    environment = {**os.environ, **ENVIRONMENT, **key.environment, "GIT_AUTHOR_EMAIL": author}
    if at:
        environment |= {"GIT_COMMITTER_DATE": at, "GIT_AUTHOR_DATE": at}
    arguments = [part for parent in parents for part in ("-p", parent)]
    made = subprocess.run(
        ["git", "-C", str(folder), *key.options, "commit-tree", "-S", *arguments, tree],
        input=message,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    commit = made.stdout.strip()
    git(folder, "update-ref", f"refs/heads/{branch}", commit)
    return commit

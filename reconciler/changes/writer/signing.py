"""Signs the controller's own commits with its SSH key, as ``git commit -S`` would.

Commits made by ``git fast-import`` come in; signed copies come out, on top of one another. The key
stays in its file: ``ssh-keygen`` reads it.
"""

from pathlib import Path

from reconciler.desired.git import git_commands, source

#: The most commits of one write.
CHAIN_MAX = 1_000


def public_key(key: Path) -> str:
    """Return the public key of a file with an SSH key, as kind and key, or an empty string if it is
    unknown.

    A key with a passphrase, or of a hardware token, has it in the file beside it.
    """
    try:
        said = git_commands.run_program(("ssh-keygen", "-y", "-P", "", "-f", str(key)), check=True)
    except git_commands.GitError:
        try:
            said = key.with_name(f"{key.name}.pub").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    return " ".join(said.split()[:2])


def sign(repository: source.GitSource, base: str, head: str, key: Path) -> str:
    """Sign the commits from ``base`` to ``head``; return the new id of the last one.

    Raises:
        GitError: the key cannot be used, or git fails.
    """
    listed = git_commands.run(
        repository.folder, "rev-list", "--reverse", f"--max-count={CHAIN_MAX}", f"{base}..{head}"
    )
    renamed: dict[bytes, bytes] = {}
    for commit in listed.stdout.decode().split():
        found = repository.objects.read(commit)
        if found is None:
            raise git_commands.GitError(f"{commit} is not in {repository.address}")
        payload = found[2]
        for old, new in renamed.items():
            payload = payload.replace(b"\nparent " + old + b"\n", b"\nparent " + new + b"\n", 1)
        signature = git_commands.run_program(
            ("ssh-keygen", "-Y", "sign", "-q", "-n", "git", "-f", str(key)),
            data=payload,
            check=True,
        ).strip()
        head_part, _, message = payload.partition(b"\n\n")
        signed = b"gpgsig " + signature.replace("\n", "\n ").encode()
        made = git_commands.run(
            repository.folder,
            *("hash-object", "-t", "commit", "-w", "--stdin"),
            data=head_part + b"\n" + signed + b"\n\n" + message,
        )
        renamed[commit.encode()] = made.stdout.strip()
    return renamed[head.encode()].decode() if head.encode() in renamed else head

"""Real git repositories in a temporary folder, without any configuration of the machine."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.org",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(folder: Path, *arguments: str, data: bytes = b"") -> str:
    """Run git and return what it prints."""
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        input=data,
        capture_output=True,
        check=True,
        env={**os.environ, **ENVIRONMENT},
    )
    return done.stdout.decode().strip()


class Repository:
    """A bare repository that commits are made in one call each."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.path = folder
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main")

    def commit(
        self,
        files: Mapping[str, str | bytes | None],
        *,
        branch: str = "main",
        parent: str | None = None,
        modes: Mapping[str, str] | None = None,
        root: bool = False,
        message: str = "test",
        merge: str | None = None,
        at: int = 0,
        author: str = "test@example.org",
    ) -> str:
        """Commit ``files`` (None removes) on top of the branch, or of ``parent``.

        ``at``: when, as the commit claims, in seconds since the epoch.

        ``merge``: another parent, of which only what ``files`` has is taken.
        """
        parts = [f"commit refs/heads/{branch}\n".encode()]
        said = message.encode()
        parts.append(b"author Test <%s> %d +0000\n" % (author.encode(), at))
        parts.append(b"committer Test <test@example.org> %d +0000\n" % at)
        parts.append(b"data %d\n%s\n" % (len(said), said))
        exists = git(self.path, "for-each-ref", f"refs/heads/{branch}")
        if parent is not None:
            parts.append(f"from {parent}\n".encode())
        elif exists and not root:
            parts.append(f"from refs/heads/{branch}^0\n".encode())
        if merge is not None:
            parts.append(f"merge {merge}\n".encode())
        if root:
            parts.append(b"deleteall\n")
        for path, content in files.items():
            if content is None:
                parts.append(f"D {path}\n".encode())
                continue
            data = content.encode() if isinstance(content, str) else content
            mode = (modes or {}).get(path, "100644")
            parts.append(f"M {mode} inline {path}\ndata {len(data)}\n".encode() + data + b"\n")
        git(self.path, "fast-import", "--quiet", "--force", data=b"".join(parts))
        return git(self.path, "rev-parse", f"refs/heads/{branch}")


def job(name: str, *, command: str = "echo", **spec: object) -> str:
    """The text of a small job."""
    lines = [
        "apiVersion: muster/v1",
        "kind: Job",
        f"metadata: {{name: {name}}}",
        "spec:",
        f"  command: [{command}]",
    ]
    lines += [f"  {key}: {value}" for key, value in spec.items()]
    return "\n".join(lines) + "\n"


def queue(name: str, **spec: object) -> str:
    """The text of a queue."""
    lines = ["apiVersion: muster/v1", "kind: Queue", f"metadata: {{name: {name}}}"]
    if spec:
        lines.append("spec:")
        lines += [f"  {key}: {value}" for key, value in spec.items()]
    return "\n".join(lines) + "\n"


def documents(*texts: str) -> str:
    """Several documents in one file."""
    return "---\n".join(texts)

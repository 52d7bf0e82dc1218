"""Makes commits of the steps of a batch with ``git fast-import``, without a work tree.

Consecutive steps of one author become one commit. Its subject says what it does, its body lists the
requests, its trailers name the submitter. No branch moves here.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reconciler.changes import requests
from reconciler.changes.requests import Person
from reconciler.changes.writer import batch, stale_refs
from reconciler.desired.git import git_commands

_SUBJECTS_MAX = 50
#: What is done to a job: the verb, its name, and perhaps why.
_OF_JOB = re.compile(r"(?P<verb>[A-Z][a-z]+) Job/[^\s:\[]+(?:\[[^\s\]]*\])?(?:: (?P<reason>.+))?")
#: What verbs do to many.
_TO_MANY = {"Prune": "Remove the files of"}


class ImportedCommit(NamedTuple):
    """Steps that become one commit."""

    author: Person
    subjects: list[str]
    files: dict[str, bytes | None]
    trailers: list[tuple[str, str]]


def by_author(steps: Sequence[batch.BatchStep]) -> list[ImportedCommit]:
    """Group consecutive steps of one author."""
    groups: list[ImportedCommit] = []
    for step in steps:
        if not groups or groups[-1].author != step.author:
            groups.append(ImportedCommit(step.author, [], {}, []))
        groups[-1].subjects.append(step.subject)
        groups[-1].files.update(step.files)
        groups[-1].trailers.extend(step.trailers)
    return groups


def commits(
    repository: Path, head: str, groups: Sequence[ImportedCommit], committer: Person, now: int
) -> str:
    """Make the commits on top of ``head``, one a group; return the id of the last.

    Raises:
        GitError: git fails, or a file would overwrite a folder.
    """
    _require_room(repository, head, {path for group in groups for path in group.files})
    # fast-import wants a name for what it makes; it is given up in the same breath, so that
    # nothing is left of it whenever this process ends
    reference = f"{stale_refs.WRITING}{os.getpid()}-{id(groups)}"
    parts = [f"reset {reference}\nfrom {head}\n\n".encode()]
    for mark, group in enumerate(groups, 1):
        parts.append(_command(reference, group, committer, mark, now))
        for path, data in group.files.items():
            if data is None:
                parts.append(f"D {_quoted(path)}\n".encode())
                continue
            parts.append(f"M 100644 inline {_quoted(path)}\ndata {len(data)}\n".encode())
            parts += [data, b"\n"]
    parts.append(f"get-mark :{len(groups)}\n".encode())
    parts.append(f"reset {reference}\nfrom {'0' * len(head)}\n\ndone\n".encode())
    done = git_commands.run(
        repository, "fast-import", "--quiet", "--force", "--done", data=b"".join(parts)
    )
    return done.stdout.decode().split()[-1]


def _require_room(repository: Path, head: str, paths: set[str]) -> None:
    """Check that no file replaces a folder, or a file that is one of its folders.

    ``git fast-import`` silently drops whatever is in the way.
    """
    above = {path[:end] for path in paths for end, one in enumerate(path) if one == "/"}
    asked = [path for path in sorted(paths | above) if "\n" not in path]
    data = "".join(f"{head}:{path}\n" for path in asked).encode("utf-8", "surrogateescape")
    said = git_commands.run(repository, "cat-file", "--batch-check=%(objecttype)", data=data).stdout
    for path, kind in zip(asked, said.split(b"\n"), strict=False):
        if kind == b"blob" and path in above:
            raise git_commands.GitError(f"{path} is a file in {head[:12]}, and to be a folder")
        if kind == b"tree" and path in paths:
            raise git_commands.GitError(f"{path} is a folder in {head[:12]}, and to be a file")


def _command(
    reference: str, group: ImportedCommit, committer: Person, mark: int, now: int
) -> bytes:
    data = (message(group) + "\n").encode("utf-8", "replace")
    head = (
        f"commit {reference}\n"
        f"mark :{mark}\n"
        f"author {group.author.text()} {now} +0000\n"
        f"committer {committer.text()} {now} +0000\n"
        f"data {len(data)}\n"
    )
    return head.encode("utf-8", "replace") + data


def _line(subject: str) -> str:
    """Return a subject on one line, without what a terminal would obey."""
    words = " ".join(subject.split())
    return "".join(one for one in words if one == " " or one.isprintable())


def message(group: ImportedCommit) -> str:
    """Return a commit message: what it does, each request, and the submitters."""
    # One line each: what people write as a reason is no place for trailers.
    subjects = [_line(subject) for subject in group.subjects]
    text = subjects[0] if len(subjects) == 1 else _heading(subjects)
    if len(subjects) > 1:
        listed = [f"- {line}" for line in subjects[:_SUBJECTS_MAX]]
        if len(subjects) > _SUBJECTS_MAX:
            listed.append(f"- and {len(subjects) - _SUBJECTS_MAX} more")
        text += "\n\n" + "\n".join(listed)
    trailers = [*group.trailers, (requests.SUBMITTER_TRAILER, group.author.address)]
    return text + "\n\n" + "\n".join(f"{key}: {value}" for key, value in trailers)


def _heading(subjects: Sequence[str]) -> str:
    """Summarise requests as ``Cancel 2 jobs, submit 1 job``, with the reason if there is
    just one.
    """
    found = [_OF_JOB.fullmatch(subject) for subject in subjects]
    matches = [one for one in found if one is not None]
    if len(matches) < len(subjects):
        return f"Apply {len(subjects)} requests"
    told = [
        f"{_TO_MANY.get(verb, verb)} {count} job{'' if count == 1 else 's'}"
        for verb, count in Counter(one["verb"] for one in matches).items()
    ]
    text = ", ".join([told[0], *(one[0].lower() + one[1:] for one in told[1:])])
    reasons = {one["reason"] for one in matches}
    reason = next(iter(reasons)) if len(reasons) == 1 else None
    return f"{text}: {reason}" if reason else text


def _quoted(path: str) -> str:
    """Quote a path for fast-import."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

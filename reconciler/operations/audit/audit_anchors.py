"""Compares a copy of the audit log with the hashes that git notes hold, which nobody can take back.

Whoever can write the log can write a whole new chain, and it is intact. The note on each revision
names the newest line of the log then and its hash; notes are in every clone that fetched them.
"""

import contextlib
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from reconciler.changes import notes
from reconciler.desired.git import git_commands, source
from reconciler.model.values import found_values
from reconciler.model.values.text_lines import split_lines
from reconciler.operations.audit import audit_log

_ANCHOR = re.compile(r"; audit (?P<number>[0-9]{1,12}) (?P<hash>[0-9a-f]{64})\b")


class Anchor(NamedTuple):
    """A line of the log as the note on a revision names it."""

    number: int
    hash: str
    revision: str


def read(repository: source.GitSource, before: float | None = None) -> list[Anchor]:
    """Return the anchors in the notes of a repository on this machine, by number.

    Args:
        repository: that has the notes.
        before: seconds since the epoch: as the notes were then; None: as they are.

    Raises:
        GitError: the repository cannot be read.
    """
    found = [
        Anchor(int(match["number"]), match["hash"], revision)
        for revision, text in notes.texts(repository, before).items()
        if (match := _ANCHOR.search(text)) is not None
    ]
    return sorted(found)


class AnchorError(ValueError):
    """A log or a repository can't be read, or there is nothing to compare with."""


class AnchorComparison(NamedTuple):
    """The result of a comparison.

    Attributes:
        compared: anchors whose line is in the log, with the same hash.
        gone: anchors whose line was dropped since, as retention does.
        wrong: what is wrong, a sentence for each anchor that does not hold.
        earlier: anchors of a log before this one, which are not compared.
        newer: anchors of lines that came after a backup was made, which are not in it.
        last: number of the last line of the log.
    """

    compared: int
    gone: int
    wrong: list[str]
    earlier: int = 0
    newer: int = 0
    last: int = 0


def earlier_than(
    repository: source.GitSource, anchors: Iterable[Anchor], begins: str
) -> frozenset[Anchor]:
    """Return the anchors on revisions before the one with which a log begins.

    Raises:
        AnchorError: there is no such revision.
        GitError: the repository cannot be read.
    """
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{begins}^{{commit}}")
    first = git_commands.run(repository.folder, *words, good=(0, 1)).stdout.decode().strip()
    if not first:
        raise AnchorError(
            f"--begins: found {found_values.quote(begins)}, expected a revision of the repository"
        )
    listed = git_commands.run(repository.folder, "rev-list", first, "--").stdout.decode()
    before = set(split_lines(listed)) - {first}
    return frozenset(anchor for anchor in anchors if anchor.revision in before)


def compare(
    log: audit_log.Log, anchors: Iterable[Anchor], later: Collection[Anchor] = ()
) -> AnchorComparison:
    """Compare a log with anchors.

    Args:
        log: to read.
        anchors: that are to agree with it.
        later: those of them whose lines may have come after the log was copied.

    Raises:
        OSError: a file can't be read.
        ValueError: a line can't be read.
    """
    wanted = list(anchors)
    numbers = {anchor.number for anchor in wanted}
    hashes: dict[int, str] = {}
    first = last = 0
    for line in log.newest_first():
        last, first = max(last, line.number), line.number
        if line.number in numbers:
            hashes[line.number] = line.hash
    compared, gone, newer, wrong = 0, 0, 0, []
    for anchor in wanted:
        where = f"line {anchor.number}, which the note on {anchor.revision[:12]} names,"
        if anchor.number > last and anchor in later:
            newer += 1
        elif anchor.number > last:
            wrong.append(f"{where} is missing: the log ends with line {last}")
        elif anchor.number < first:
            gone += 1
        elif hashes.get(anchor.number) != anchor.hash:
            wrong.append(f"{where} has another hash: it, or a line before it, was made anew")
        else:
            compared += 1
    return AnchorComparison(compared, gone, wrong, newer=newer, last=last)


def first_revision(log: Path) -> str:
    """Return the revision with which a log begins; empty if its first line is gone.

    Raises:
        AnchorError: it can't be read.
    """
    revision = ""
    try:
        for line in audit_log.Log(log).newest_first():
            revision = line.entry.revision if line.number == 1 else ""
    except (OSError, ValueError) as error:
        raise AnchorError(str(error)) from error
    return revision


def compare_files(
    log: Path, repository: Path, begins: str | None = None, copied_at: float | None = None
) -> AnchorComparison:
    """Compare a copy of the log with the notes of a repository, both on this machine.

    Args:
        log: the copy.
        repository: a clone with its notes.
        begins: revision with which the log begins, if the log before it was lost; None: it has
            all lines since the first note, but for those that were dropped.
        copied_at: when a backup began that the log is of, in seconds since the epoch; None: it is
            no backup, and has all lines that the notes name.

    Raises:
        AnchorError: one of them can't be read, or the repository has no anchors.
    """
    try:
        with contextlib.closing(source.GitSource(str(repository.resolve()))) as opened:
            now = read(opened)
            # times of notes are whole seconds: what came within that second may be newer
            then = now if copied_at is None else read(opened, int(copied_at) - 1)
            anchors = sorted({*now, *then})
            earlier = frozenset() if begins is None else earlier_than(opened, anchors, begins)
        wanted = [one for one in anchors if one not in earlier]
        found = compare(audit_log.Log(log), wanted, frozenset(now).difference(then))
    except git_commands.GitError as error:
        raise AnchorError(f"--repo {repository}: {error}") from error
    except AnchorError:
        raise
    except (OSError, ValueError) as error:
        raise AnchorError(str(error)) from error
    if not anchors:
        raise AnchorError(
            f"{repository} has no notes of Muster with a hash of the log: fetch them first"
        )
    if not found.compared and not found.wrong:
        raise AnchorError(
            f"nothing was compared: the notes of {repository} name no line that is in this log"
        )
    return found._replace(earlier=len(earlier))

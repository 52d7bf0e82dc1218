"""Searches the audit log by person, object, action and time, the newest line first.

An answer looks at so many lines and says where to go on: no question of one person reads the whole
log while others wait.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from reconciler.operations.audit import audit_entries, audit_log

#: The most lines that are looked at for one answer.
LINES_MAX = 20_000
#: What happened to an object of a revision, by the mark in front of its label.
MARKS = {"+": "Added", "~": "Changed", "-": "Removed"}
#: What can be asked for as an action: of revisions, and of calls.
REVISION_ACTIONS = (*MARKS.values(), "Refused", "Dropped")
ACCESS_ACTIONS: tuple[str, ...] = audit_entries.ACTIONS


class AuditQuery(msgspec.Struct, frozen=True):
    """A search: what is left out matches all.

    Attributes:
        person: a part of an identity or address of a person, whatever its case.
        object: a label such as ``Job/train``, or a kind.
        action: one of ``REVISION_ACTIONS`` or ``ACCESS_ACTIONS``.
        since, until: seconds since the epoch.
    """

    person: str = ""
    object: str = ""
    action: str = ""
    since: float | None = None
    until: float | None = None


class SearchResult(NamedTuple):
    """Lines that match, newest first.

    ``next`` is what to give as ``before`` to go on; None: all was looked at.
    """

    lines: list[audit_log.ChainEntry]
    next: int | None


def search(
    log: audit_log.Log, query: AuditQuery, *, before: int | None, limit: int
) -> SearchResult:
    """Return the newest lines that match.

    Args:
        log: the chain.
        query: what is looked for.
        before: only lines with a smaller number.
        limit: the most lines to return.

    Raises:
        ValueError: a line can't be read.
    """
    found: list[audit_log.ChainEntry] = []
    for seen, line in enumerate(log.newest_first(before=before), 1):
        if query.since is not None and line.entry.at < query.since:
            break
        if matches(line.entry, query):
            found.append(line)
        if len(found) == limit or seen == LINES_MAX:
            return SearchResult(found, line.number if line.number > 1 else None)
    return SearchResult(found, None)


def matches(entry: audit_entries.AuditEntry, query: AuditQuery) -> bool:
    """Return True if an entry is what is looked for, apart from ``since``."""
    if query.until is not None and entry.at > query.until:
        return False
    people, did = _of_access if entry.access else _of_revision
    return (not query.person or _has_part(people(entry), query.person)) and did(entry, query)


def _has_part(texts: list[str], part: str) -> bool:
    return any(part.casefold() in text.casefold() for text in texts)


def _people_of_commits(entry: audit_entries.AuditEntry) -> list[str]:
    return [
        text
        for one in entry.commits
        for text in (one.author, one.submitter, one.signer)
        if isinstance(text, str)
    ]


def _did_in_revision(entry: audit_entries.AuditEntry, query: AuditQuery) -> bool:
    done = [(MARKS[label[0]], label[2:]) for label in entry.objects]
    done += [("Refused", one.object) for one in entry.problems]
    done += [("Dropped", "")] if entry.dropped else []
    if not (query.object or query.action):
        return True
    return any(
        (not query.action or action == query.action) and _is_of(label, query.object)
        for action, label in done
    )


def _is_of(label: str, wanted: str) -> bool:
    return not wanted or wanted in (label, label.partition("/")[0])


def _people_of_access(entry: audit_entries.AuditEntry) -> list[str]:
    return [entry.access.identity, entry.access.address] if entry.access else []


def _did_in_access(entry: audit_entries.AuditEntry, query: AuditQuery) -> bool:
    if not entry.access or (query.action and entry.access.action != query.action):
        return False
    name = query.object.rpartition("/")[2]
    text = f"{entry.access.request} {entry.message}"
    # what callers write is split only if it has the name
    return name in text and (not name or name in {one.strip(".") for one in _WORD.findall(text)})


#: What names of objects and people consist of.
_WORD = re.compile(r"[\w.@-]+")
_People = Callable[[audit_entries.AuditEntry], list[str]]
_Did = Callable[[audit_entries.AuditEntry, AuditQuery], bool]
_of_revision: tuple[_People, _Did] = (_people_of_commits, _did_in_revision)
_of_access: tuple[_People, _Did] = (_people_of_access, _did_in_access)

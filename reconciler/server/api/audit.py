"""``GET /v1/audit``: what became of revisions, and whether the log of it is whole."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.di import NamedDependency
from litestar.params import Parameter, QueryParameter

from reconciler.model.values import found_values, suggestions, times
from reconciler.operations.audit import (
    access_audit,
    audit_entries,
    audit_log,
    audit_search,
    verify_worker,
)
from reconciler.operations.views import json_format
from reconciler.server import errors
from reconciler.server.api import envelopes, field_choice, queries
from reconciler.server.auth import authentication
from reconciler.server.loop_link import LinkClient
from reconciler.server.process import worker_processes

#: The most entries of one answer.
ENTRIES_MAX = 1000
#: The longest that going along the chain may take; 64 MiB of it take about a second.
VERIFY_S_MAX = 300.0
_DECODE_VERDICT = msgspec.json.Decoder(audit_log.ChainVerdict).decode


class CommitView(json_format.View, frozen=True):
    """A commit: its claimed author, its submitter, and its verified signer.

    ``signer`` is the identity, empty if there is none, null if signatures were not checked.
    """

    id: str
    author: str
    subject: str
    submitter: str
    signer: str | None


class RefusalView(json_format.View, frozen=True):
    """A refusal or a hold."""

    rule: str
    object: str
    message: str


class DroppedView(json_format.View, frozen=True):
    """Lines that were dropped, being older than ``retention.audit`` lets them become.

    ``begins``: the first line that is there or is accounted for as dropped; ``first`` and ``last``:
    those that this tells of; ``hash``: of the last of them.
    """

    begins: int
    first: int
    last: int
    hash: str
    newest_at: str
    keep_s: int


class EntryView(json_format.View, frozen=True):
    """Result of one revision, or, with ``dropped``, the old lines that left this log."""

    number: int
    hash: str
    at: str
    revision: str
    result: str
    structure_revision: str | None
    jobs_revision: str | None
    duration_s: float
    commits: list[CommitView]
    added: int
    changed: int
    removed: int
    objects: list[str]
    message: str
    problems: list[RefusalView]
    dropped: DroppedView | None = None


class Entries(envelopes.Envelope, frozen=True, kw_only=True):
    """Entries, newest first; ``next`` is what to give as ``before`` for older ones, null at the
    end.
    """

    items: list[EntryView]
    next: int | None = None


class AccessView(json_format.View, frozen=True):
    """A call that was refused, or that read or overrode what is not the caller's own."""

    number: int
    hash: str
    at: str
    action: str
    identity: str
    address: str
    request: str
    count: int
    message: str


class AccessEntries(envelopes.Envelope, frozen=True, kw_only=True):
    """Entries about calls, newest first; ``next`` is what to give as ``before`` for older ones,
    null at the end.
    """

    items: list[AccessView]
    next: int | None = None


class Verified(json_format.View, frozen=True):
    """Result of a verification: number and hash of the last intact line, and what is wrong after
    it.

    ``anchor`` is the line that records that all lines before the first one were dropped. ``torn``
    means that the last line is incomplete, as after a crash, and is not counted.
    """

    lines: int
    last: str
    wrong: str
    anchor: EntryView | None = None
    torn: bool = False


#: The first number, and the files as they were before they were gone along.
_Question = tuple[int, tuple[tuple[str, int, int, int], ...]]


class Verifications(worker_processes.WorkerSlots):
    """Goes along the log in a process of its own: once for all who ask while its files stay."""

    def __init__(self, log: audit_log.Log) -> None:
        super().__init__("", "verifications", VERIFY_S_MAX, authentication.CALLER.get)
        self._log = log
        self._answered: tuple[_Question, audit_log.ChainVerdict] | None = None
        self._asked: dict[_Question, asyncio.Task[audit_log.ChainVerdict]] = {}

    async def verdict(self, first: int) -> audit_log.ChainVerdict:
        """Return the result of verifying the chain from a number on.

        Raises:
            Failure: too many wait already, it took too long, or the log can't be read.
        """
        try:
            question = (first, await sync_to_thread(self._log.state))
        except OSError as error:
            raise errors.Failure(503, f"the log can't be read: {error}") from None
        if self._answered is not None and self._answered[0] == question:
            return self._answered[1]
        task = self._asked.get(question)
        if task is None:
            task = self._asked[question] = asyncio.create_task(self._verify(question))
            task.add_done_callback(lambda done: self._done(question, done))
        return await asyncio.shield(task)  # others wait for it when one of them leaves

    def _done(self, question: _Question, task: asyncio.Task[audit_log.ChainVerdict]) -> None:
        del self._asked[question]
        if not task.cancelled() and task.exception() is None:
            self._answered = (question, task.result())

    async def _verify(self, question: _Question) -> audit_log.ChainVerdict:
        status, output = await self.run(
            verify_worker.__name__, "--log", str(self._log.path), "--first", str(question[0])
        )
        if status == verify_worker.UNREADABLE:
            raise errors.Failure(503, output.decode(errors="replace"))
        if status:
            raise errors.Failure(500, "checking the audit log failed; see the server's log")
        return _DECODE_VERDICT(output)


def _commit_view(of: audit_entries.CommitEntry) -> CommitView:
    signer = None if of.signer is msgspec.UNSET else of.signer
    return CommitView(of.id, of.author, of.subject, of.submitter, signer)


def _view(line: audit_log.ChainEntry) -> EntryView:
    entry = line.entry
    return EntryView(
        number=line.number,
        hash=line.hash,
        at=times.format_time(entry.at),
        revision=entry.revision,
        result=entry.result,
        structure_revision=entry.structure_revision,
        jobs_revision=entry.jobs_revision,
        duration_s=entry.duration_s,
        commits=[_commit_view(one) for one in entry.commits],
        added=entry.added,
        changed=entry.changed,
        removed=entry.removed,
        objects=list(entry.objects),
        message=entry.message,
        problems=[RefusalView(p.rule, p.object, p.message) for p in entry.problems],
        dropped=None if entry.dropped is msgspec.UNSET else _dropped_view(entry.dropped),
    )


def _access_view(line: audit_log.ChainEntry, of: audit_entries.AccessEntry) -> AccessView:
    return AccessView(
        *(line.number, line.hash, times.format_time(line.entry.at), of.action, of.identity),
        *(of.address, of.request, of.count, line.entry.message),
    )


def _dropped_view(of: audit_entries.Dropped) -> DroppedView:
    return DroppedView(
        begins=of.begins,
        first=of.first,
        last=of.last,
        hash=of.hash,
        newest_at=times.format_time(of.newest_at),
        keep_s=of.keep_s,
    )


_Limit = Annotated[int, Parameter(ge=1, le=ENTRIES_MAX)]
_Before = Annotated[
    int | None, Parameter(ge=1, description="Only lines with a smaller number: `next` of a page.")
]
_Person = Annotated[
    str | None,
    Parameter(max_length=253, description="A part of the identity or address of who did it."),
]
_Label = Annotated[
    str | None,
    QueryParameter(
        name="object", max_length=253, description="A label such as `Job/train`, or a kind."
    ),
]
_Since = Annotated[str | None, Parameter(description="RFC 3339; only what happened from then on.")]
_Until = Annotated[str | None, Parameter(description="RFC 3339; only what happened up to then.")]


def query_of(
    *,
    person: str | None,
    label: str | None,
    action: str | None,
    since: str | None,
    until: str | None,
    actions: Sequence[str],
) -> audit_search.AuditQuery:
    """Return what is looked for.

    Raises:
        Failure: 400, a time can't be read, or there is no such action.
    """
    if action and action not in actions:
        raise errors.Failure(
            400,
            f"action: found {found_values.quote(action)}, expected one of {', '.join(actions)}"
            + suggestions.hint(action, actions),
        )
    try:
        begins = None if since is None else times.parse_time(since)
        ends = None if until is None else times.parse_time(until)
    except ValueError as error:
        raise errors.Failure(400, str(error)) from None
    return audit_search.AuditQuery(person or "", label or "", action or "", begins, ends)


async def _search(
    log: audit_log.Log, query: audit_search.AuditQuery, before: int | None, limit: int
) -> audit_search.SearchResult:
    try:
        return await sync_to_thread(audit_search.search, log, query, before=before, limit=limit)
    except ValueError as error:
        raise errors.Failure(500, str(error)) from None


@get(
    "/v1/audit",
    status_code=200,
    responses=errors.responses(400, 401, 403, 500),
    summary="What became of each revision, the newest first",
)
async def entries(
    *,
    revision_log: NamedDependency[audit_log.Log],
    link: NamedDependency[LinkClient],
    limit: _Limit = 100,
    before: _Before = None,
    person: _Person = None,
    label: _Label = None,
    action: queries.Filter = None,
    since: _Since = None,
    until: _Until = None,
    fields: field_choice.Fields = None,
) -> Entries:
    """Return entries with their commits, changes and result.

    `action` is Added, Changed, Removed, Refused or Dropped. An answer looks at 20,000 lines at
    most, and `next` says where to go on. An entry lists the first 50 objects of its revision.
    """
    query = query_of(
        person=person,
        label=label,
        action=action,
        since=since,
        until=until,
        actions=audit_search.REVISION_ACTIONS,
    )
    found = await _search(revision_log, query, before, limit)
    items = [_view(line) for line in found.lines]
    page = Entries(items=items, next=found.next, **envelopes.head(link.published))
    return field_choice.only(page, fields)


@get(
    "/v1/audit/verify",
    status_code=200,
    responses=errors.responses(400, 401, 403, 429, 500, 503),
    summary="Whether the log of revisions is whole",
)
async def verify(
    verifications: NamedDependency[Verifications],
    first: Annotated[int, Parameter(ge=1)] = 1,
) -> Verified:
    """Goes along the whole chain; ``first``: its first number, where what was before is gone.

    One at a time, and not again while the files of the log are as they were.
    """
    found = await verifications.verdict(first)
    anchor = None if found.anchor is None else _view(found.anchor)
    return Verified(found.lines, found.last, found.wrong, anchor, found.torn)


@get(
    "/v1/audit/access",
    status_code=200,
    opt={authentication.OPTION: frozenset()},
    responses=errors.responses(400, 401, 403, 500),
    summary="Who was refused, read other people's output, or made overrides, the newest first",
)
async def access(
    *,
    access_log: NamedDependency[access_audit.AccessAudit],
    link: NamedDependency[LinkClient],
    limit: _Limit = 100,
    before: _Before = None,
    person: _Person = None,
    label: _Label = None,
    action: queries.Filter = None,
    since: _Since = None,
    until: _Until = None,
    fields: field_choice.Fields = None,
) -> AccessEntries:
    """Return entries for admins. What repeats within a minute is one of them, with its number."""
    query = query_of(
        person=person,
        label=label,
        action=action,
        since=since,
        until=until,
        actions=audit_search.ACCESS_ACTIONS,
    )
    found = await _search(access_log.log, query, before, limit)
    items = [_access_view(line, line.entry.access) for line in found.lines if line.entry.access]
    page = AccessEntries(items=items, next=found.next, **envelopes.head(link.published))
    return field_choice.only(page, fields)


HANDLERS = [entries, verify, access]

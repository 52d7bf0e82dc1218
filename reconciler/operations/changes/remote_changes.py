"""Changes of desired state that people ask the controller for: checked, gathered, pushed.

A document is checked before anything is promised. What passes within a few milliseconds of each
other becomes one commit, made in a thread, so that hundreds of people (or one script) submitting
at once cost one push. A submission is answered when it is pushed.
"""

import asyncio
import contextlib
import itertools
import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from reconciler.changes import requests
from reconciler.desired.checks import submission_checks
from reconciler.desired.documents import document_reader, object_changes
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.policy import access
from reconciler.operations.changes import job_document

_LOG = logging.getLogger(__name__)

ChangeVerb = Literal[
    "cancel",
    "hold",
    "release",
    "rerun",
    "prune",
    "drain",
    "undrain",
    "approve",
    "suspend",
    "resume",
]
Verb = Literal["submit"] | ChangeVerb

#: The documents of one object as they are written in git.
Documents = object_changes.Documents
#: Those of some names that are names of jobs.
Known = submission_checks.Known
#: Checks submissions against a structure.
SubmissionValidator = submission_checks.SubmissionValidator

#: How long the first change of a commit waits for others.
GATHER_S = 0.03
#: The most changes to gather into one commit; a larger group still becomes one.
COMMIT_MAX = 500
#: Status of a change that goes together with a refused one.
WITHDRAWN = 424
#: The most changes that wait; further ones are refused until a commit is made.
WAITING_MAX = 10_000
#: The most documents of one request.
DOCUMENTS_MAX = 5_000
#: Follows the number of problems in the message about a submission.
INVALID = "; nothing was submitted"
_SEPARATOR = re.compile(r"^---(?=\s|$)", re.MULTILINE)


class SubmittedDocument(msgspec.Struct, frozen=True):
    """A requested change: a document, or a verb with its subject.

    Attributes:
        identity: of the token; the commit's author.
        name: of the job, or of the node for ``drain`` and ``undrain``.
        text: the document, for ``submit``.
        reason: for the commit's message.
        dry_run: only report the result.
        below: only files in this folder may be changed; elsewhere the commit would have no effect.
        queue, owner, priority: of the job, for ``submit``, as written.
        above: the caller is above the rules of Access, as an administrator's token is.
        warnings: problems of the document that do not refuse it, a sentence each.
        fresh: for ``rerun``: the run does not go on from earlier checkpoints.
        elements: of the job's array that the verb is for; empty: the whole job.
        submission: identifies a submission that may wait for git; empty: it can't.
        waited_since: when it came, in seconds since the epoch, if it waits; 0: it does not.
    """

    verb: Verb
    identity: str
    name: str
    text: str = ""
    reason: str = ""
    dry_run: bool = False
    warnings: tuple[str, ...] = ()
    below: str = ""
    queue: str = ""
    owner: str = ""
    priority: access.JobPriority = access.JobPriority()
    above: bool = False
    fresh: bool = False
    submission: str = ""
    waited_since: float = 0.0
    elements: str = ""


class RemoteChangeResult(msgspec.Struct, frozen=True):
    """Result of a change.

    ``status`` is as in HTTP: 200 pushed (or nothing to do), 202 waits for git, 400 invalid, 403 not
    allowed, or not let in by the remote, 404 no such subject, 409 another document has the name,
    424 (``WITHDRAWN``) another change that goes together with it was refused, 503 git can't be
    reached (``is_away``), or something else can't be read. ``is_ephemeral``: no commit is needed.
    """

    name: str
    status: int
    message: str = ""
    commit: str | None = None
    problems: tuple[desired.Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    is_away: bool = False
    is_ephemeral: bool = False


def queues_and_owners(written: Documents) -> list[tuple[str, str]]:
    """Return queue and owner of each document of a job that can be read."""
    return object_changes.jobs_of(written)


def documents_of(text: str) -> Documents:
    """Return the documents of a text as they are written in git."""
    return document_reader.read(text.encode()).documents


def why_not_signable(path: str, jobs_folder: str) -> str:
    """Return why the controller's key does not count for a file; empty if it does."""
    return requests.confined(path, jobs_folder)


def submitted_before(name: str) -> RemoteChangeResult:
    """Return the result of a job that was submitted before, so that nothing is done."""
    return RemoteChangeResult(name, 200, requests.IS_THERE)


def withdrawn(name: str) -> RemoteChangeResult:
    """Return the result of a change that goes together with a refused one."""
    return RemoteChangeResult(
        name, WITHDRAWN, "not done, because another change of the same request is refused"
    )


class Submitter(Protocol):
    """Turns changes into pushed commits."""

    async def submit(
        self, documents: list[SubmittedDocument], *, together: bool = False
    ) -> list[RemoteChangeResult]:
        """Return one result for each change, in order.

        Args:
            documents: the changes.
            together: all of them are made, in one push, or none.
        """
        ...

    def drop(self, documents: list[SubmittedDocument]) -> bool:
        """Take changes back that were submitted together. Return False if their push has begun,
        so that they may be committed.
        """
        ...

    async def run(self) -> None:
        """Do the work, until cancelled."""
        ...


class Pusher(Protocol):
    """Makes one commit of some changes and pushes it; runs in a thread, one call at a time."""

    def push(self, groups: Sequence[Sequence[SubmittedDocument]]) -> list[list[RemoteChangeResult]]:
        """Return one result for each change, in order; of each group all are pushed or none."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class UnavailableError(Exception):
    """Error: something that a change depends on can't be read now; the change was not made."""


class InvalidError(ValueError):
    """Error: a text holds no jobs that could run; nothing of it was submitted."""

    def __init__(self, message: str, problems: tuple[desired.Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


#: Rules about names that no cluster knows.
_UNKNOWN_ANYWHERE = frozenset({"unknown-field", "unknown-group"})


def wrong_anywhere(text: str) -> tuple[str, ...]:
    """Return what is wrong with jobs in a YAML text in any cluster, as one text for each problem.

    References of the jobs count as valid.
    """
    data = text.encode()
    judge = submission_checks.SubmissionValidator(desired.Structure())
    found = judge.problems("submission", data, document_reader.read(data), 0.0, "")
    return tuple(
        one.text()
        for one in _errors(found)
        if one.rule in _UNKNOWN_ANYWHERE or not one.rule.startswith("unknown-")
    )


def _errors(problems: Iterable[desired.Problem]) -> list[desired.Problem]:
    """Return the problems that refuse a text, in the order of the text."""
    errors = (problem for problem in problems if problem.severity == "error")
    return sorted(errors, key=lambda problem: (problem.line, problem.column))


def read(
    text: str,
    identity: str,
    judge: submission_checks.SubmissionValidator | None = None,
    now: float = 0.0,
    owner: str = "",
    *,
    known: Known | None = None,
    basis: str = "",
) -> list[SubmittedDocument]:
    """Return the jobs in a YAML or JSON text, each checked by itself.

    Args:
        text: one or several documents.
        identity: of the caller.
        judge: of the structure in force, to check them against; None: unknown here.
        now: seconds since the epoch, for waivers of policies.
        owner: of jobs without one; empty: they stay without.
        known: returns which names are jobs, for dependencies; None: unknown.
        basis: a remark for unknown names, if the judge's structure is not the newest.

    Raises:
        InvalidError: anything is wrong with any job, or there is none.
    """
    data = text.encode()
    file = document_reader.read(data)
    if judge is None:
        problems = document_reader.problems("submission", data, file)
    else:
        problems = judge.problems("submission", data, file, now, owner, known=known)
    errors = tuple(_errors(problems))
    if errors:
        many = f"{len(errors)} problem{'s' if len(errors) > 1 else ''}"
        is_unknown = any(problem.rule.startswith("unknown-") for problem in errors)
        more = f"; {basis}" if basis and is_unknown else ""
        raise InvalidError(f"{many}{INVALID}{more}", errors)
    found: list[SubmittedDocument] = []
    for piece, one in _pieces(text, file):
        warnings = tuple(each.message for each in problems if each.object == one.label)
        found.append(_submitted(piece, one, identity, owner, warnings))
    if not found:
        raise InvalidError("no document found; expected one or several jobs as YAML or JSON")
    if len(found) > DOCUMENTS_MAX:
        raise InvalidError(f"{len(found)} documents at once; at most {DOCUMENTS_MAX}")
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1}) if _repeats(names) else []
    if twice:
        raise InvalidError(f"there are two documents of Job/{twice[0]}; names are unique")
    return found


def _submitted(
    piece: str,
    document: document_reader.Document,
    identity: str,
    owner: str,
    warnings: tuple[str, ...],
) -> SubmittedDocument:
    """Return the submission of one document, with an owner if one is given.

    Raises:
        InvalidError: it is not a job, or the owner can't be written into it.
    """
    if not isinstance(document.part, job_spec.JobDocument):
        raise InvalidError(
            f"{document.label or 'a document'} is not a Job; change other kinds by commits to the "
            "repository"
        )
    spec = document.part.spec
    whose, written = spec.owner or "", piece
    if owner and not whose:
        whose, written = owner, job_document.owned(piece, owner)
        if written == piece:  # without an owner it would count under no person's quota
            raise InvalidError(
                f"{document.label}: the owner can't be added, because the text can't be edited. "
                f"To fix: write `owner: {owner}` under spec:, and leave out directives (%) and "
                "lines of `...`"
            )
    return SubmittedDocument(
        "submit",
        identity,
        document.name,
        written,
        warnings=warnings,
        queue=spec.queue,
        owner=whose,
        priority=object_changes.priority_of(spec),
    )


def _pieces(
    text: str, file: document_reader.File
) -> Iterator[tuple[str, document_reader.Document]]:
    """Yield the text of each document by itself, with what it holds.

    Raises:
        InvalidError: two documents can't be separated, because YAML has other line ends as well.
    """
    starts = [match.start() for match in _SEPARATOR.finditer(text)]
    if not starts and len(file.documents) == 1:
        yield text.lstrip("\r\n"), file.documents[0]
        return
    bounds = [0, *(start for start in starts if start > 0), len(text)]
    for start, end in itertools.pairwise(bounds):
        piece = _SEPARATOR.sub("", text[start:end], count=1).lstrip("\r\n")
        inside = document_reader.read(piece.encode()).documents
        if len(inside) > 1:  # each would be committed with the others in its file
            raise InvalidError(
                f"{inside[1].label or 'a document'} is not told apart from the one before it: end "
                "lines with a line feed, and begin each document with a line of its own: ---"
            )
        for one in inside:
            yield piece, one


def _repeats(names: list[str]) -> bool:
    return len(set(names)) < len(names)


class SubmissionRequest(NamedTuple):
    """Changes that go together, and who waits for what becomes of them."""

    changes: list[SubmittedDocument]
    future: asyncio.Future[list[RemoteChangeResult]]


class Batcher:
    """A ``Submitter`` that gathers changes into commits. ``run`` has to be running."""

    def __init__(self, pusher: Pusher) -> None:
        self._pusher = pusher
        self._waiting: deque[SubmissionRequest] = deque()
        self._count = 0
        self._some = asyncio.Event()

    async def submit(
        self, documents: list[SubmittedDocument], *, together: bool = False
    ) -> list[RemoteChangeResult]:
        """Return one result for each change, in order, when all are pushed or refused."""
        if self._count + len(documents) > WAITING_MAX:
            message = f"{self._count} changes already wait to be pushed; try again"
            return [RemoteChangeResult(one.name, 503, message) for one in documents]
        if not documents:
            return []
        loop = asyncio.get_running_loop()
        groups = [documents] if together else [[one] for one in documents]
        submissions = [SubmissionRequest(group, loop.create_future()) for group in groups]
        self._waiting += submissions
        self._count += len(documents)
        self._some.set()
        found = await asyncio.gather(*(one.future for one in submissions))
        return [result for results in found for result in results]

    def drop(self, documents: list[SubmittedDocument]) -> bool:
        """Take changes back that were submitted together, by the very list. Return False if their
        push has begun. Whoever waits for them is cancelled.
        """
        for position, one in enumerate(self._waiting):
            if one.changes is documents:
                del self._waiting[position]
                self._count -= len(documents)
                one.future.cancel()
                return True
        return False

    async def run(self) -> None:
        """Make commits until cancelled; what waits then is refused."""
        try:
            while True:
                await self._some.wait()
                if self._count < COMMIT_MAX:
                    await asyncio.sleep(GATHER_S)
                if batch := self._batch():  # all may have been taken back
                    await self._push(batch)
        finally:
            for one in self._waiting:
                one.future.cancel()
            self._waiting.clear()
            self._count = 0
            self._pusher.close()

    def _batch(self) -> list[SubmissionRequest]:
        """Return the changes to push next: as many as fit, and at least one group."""
        batch: list[SubmissionRequest] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0].changes) <= COMMIT_MAX):
            batch.append(self._waiting.popleft())
            size += len(batch[-1].changes)
        self._count -= size
        if not self._waiting:
            self._some.clear()
        return batch

    async def _push(self, batch: list[SubmissionRequest]) -> None:
        groups = [one.changes for one in batch]
        try:
            results = await asyncio.to_thread(self._pusher.push, groups)
        except UnavailableError as error:
            results = _all(groups, 503, str(error))
        except Exception:
            _LOG.exception("%d changes could not be pushed", sum(map(len, groups)))
            message = "an internal error while pushing; see the controller's log"
            results = _all(groups, 500, message)
        for one, found in zip(batch, results, strict=True):
            with contextlib.suppress(asyncio.InvalidStateError):
                one.future.set_result(found)


def _all(
    groups: Sequence[Sequence[SubmittedDocument]], status: int, told: str
) -> list[list[RemoteChangeResult]]:
    """Return the same result for each change."""
    return [[RemoteChangeResult(change.name, status, told) for change in group] for group in groups]

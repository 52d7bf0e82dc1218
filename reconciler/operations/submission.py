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
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from reconciler.desired import documents, submitted
from reconciler.model import desired

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

#: How long the first change of a commit waits for others.
GATHER_S = 0.03
#: The most changes of one commit.
COMMIT_MAX = 500
#: The most changes that wait; further ones are refused until a commit is made.
WAITING_MAX = 10_000
#: The most documents of one request.
DOCUMENTS_MAX = 5_000
_SEPARATOR = re.compile(r"^---(?=\s|$)", re.MULTILINE)


class SubmittedDocument(msgspec.Struct, frozen=True):
    """A change that somebody asks for: a document, or a verb with its subject.

    Attributes:
        identity: who asked, as the token says; the commit's author.
        name: of the job, or of the node for ``drain`` and ``undrain``.
        text: the document, for ``submit``.
        reason: why, for the commit's message.
        dry_run: only tell what would become of it.
        warnings: what is wrong with the document and doesn't keep it out, a sentence each.
    """

    verb: Verb
    identity: str
    name: str
    text: str = ""
    reason: str = ""
    dry_run: bool = False
    warnings: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """What became of a change.

    ``status`` is as in HTTP: 200 pushed (or there already), 400 invalid, 403 not allowed, 404 no
    such subject, 409 another document of that name is there, 503 git can't be reached.
    """

    name: str
    status: int
    message: str = ""
    commit: str | None = None
    problems: tuple[desired.Problem, ...] = ()
    warnings: tuple[str, ...] = ()


class Submitter(Protocol):
    """Turns changes into pushed commits."""

    async def submit(self, documents: list[SubmittedDocument]) -> list[Result]:
        """One result for each change, in order."""
        ...

    async def run(self) -> None:
        """Do the work, until cancelled."""
        ...


class Pusher(Protocol):
    """Makes one commit of some changes and pushes it; runs in a thread, one call at a time."""

    def push(self, changes: Sequence[SubmittedDocument]) -> list[Result]:
        """One result for each change, in order."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class UnavailableError(Exception):
    """What a change depends on can't be read now; it was not made."""


class InvalidError(ValueError):
    """What was sent holds no jobs that could run; nothing of it was submitted."""

    def __init__(self, message: str, problems: tuple[desired.Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


def read(
    text: str, identity: str, structure: desired.Structure | None = None, now: float = 0.0
) -> list[SubmittedDocument]:
    """The jobs in a YAML or JSON text, checked each by itself.

    Args:
        text: one or several documents.
        identity: who asks.
        structure: what is in force, to check them against; None: not known here.
        now: seconds since the epoch, for waivers of policies.

    Raises:
        InvalidError: anything is wrong with any of them, or there is none.
    """
    data = text.encode()
    if structure is None:
        problems = documents.validate("submission", data)
    else:
        problems = submitted.problems("submission", data, structure, now)
    errors = tuple(problem for problem in problems if problem.severity == "error")
    if errors:
        many = f"{len(errors)} problem{'s' if len(errors) > 1 else ''}"
        raise InvalidError(f"{many}; nothing was submitted", errors)
    starts = [match.start() for match in _SEPARATOR.finditer(text)]
    bounds = [0, *(start for start in starts if start > 0), len(text)]
    found: list[SubmittedDocument] = []
    for start, end in itertools.pairwise(bounds):
        piece = _SEPARATOR.sub("", text[start:end], count=1).lstrip("\n")
        for one in documents.read(piece.encode()).documents:
            if one.kind != "Job":
                raise InvalidError(
                    f"{one.label or 'a document'} is no Job; other kinds are changed by commits "
                    "to the repository"
                )
            told = tuple(problem.message for problem in problems if problem.object == one.label)
            found.append(SubmittedDocument("submit", identity, one.name, piece, warnings=told))
    if not found:
        raise InvalidError("there is no document in it; send one or several jobs as YAML or JSON")
    if len(found) > DOCUMENTS_MAX:
        raise InvalidError(f"{len(found)} documents at once; at most {DOCUMENTS_MAX}")
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1}) if _repeats(names) else []
    if twice:
        raise InvalidError(f"job {twice[0]} is there twice; names are unique")
    return found


def _repeats(names: list[str]) -> bool:
    return len(set(names)) < len(names)


class Batcher:
    """A ``Submitter`` that gathers changes into commits. ``run`` has to be running."""

    def __init__(self, pusher: Pusher) -> None:
        self._pusher = pusher
        self._waiting: list[tuple[SubmittedDocument, asyncio.Future[Result]]] = []
        self._some = asyncio.Event()

    async def submit(self, documents: list[SubmittedDocument]) -> list[Result]:
        """One result for each change, in order, when all are pushed or refused."""
        if len(self._waiting) + len(documents) > WAITING_MAX:
            told = f"{len(self._waiting)} changes wait to be pushed already; come again"
            return [Result(one.name, 503, told) for one in documents]
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in documents]
        self._waiting += zip(documents, futures, strict=True)
        self._some.set()
        return list(await asyncio.gather(*futures))

    async def run(self) -> None:
        """Make commits until cancelled; what waits then is refused."""
        try:
            while True:
                await self._some.wait()
                if len(self._waiting) < COMMIT_MAX:
                    await asyncio.sleep(GATHER_S)
                batch, self._waiting = self._waiting[:COMMIT_MAX], self._waiting[COMMIT_MAX:]
                if not self._waiting:
                    self._some.clear()
                await self._push(batch)
        finally:
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._pusher.close()

    async def _push(self, batch: list[tuple[SubmittedDocument, asyncio.Future[Result]]]) -> None:
        changes = [change for change, _ in batch]
        try:
            results = await asyncio.to_thread(self._pusher.push, changes)
        except UnavailableError as error:
            results = [Result(change.name, 503, str(error)) for change in changes]
        except Exception:
            _LOG.exception("%d changes could not be pushed", len(changes))
            told = "an unexpected error while pushing; the controller's log has it"
            results = [Result(change.name, 500, told) for change in changes]
        for (_, future), result in zip(batch, results, strict=True):
            with contextlib.suppress(asyncio.InvalidStateError):
                future.set_result(result)

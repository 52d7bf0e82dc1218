"""Turns what people ask for into requests to the repository's writer, and its answers back.

Submitting adds a document, cancelling takes it out, holding sets ``spec.suspend``, rerunning
raises ``spec.run``, draining adds to the overrides of the node's pool. What depends on what stands
in the repository now (run numbers, lists) is read from the same revision just before.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reconciler.changes import edit, index, requests, writer
from reconciler.desired import gitobjects, source
from reconciler.model import hostlists
from reconciler.operations.submission import Result, SubmittedDocument

#: Gives pool name to the names of its nodes, as they are in force.
PoolNames = Callable[[], Mapping[str, Sequence[str]]]


class NoSubjectError(LookupError):
    """What is to be changed is not in the repository."""


class _Reading:
    """The documents of one revision, as the changes of one batch leave them so far."""

    def __init__(self, known: index.Index) -> None:
        self._known = known
        self._overrides: dict[str, list[Any]] = {}
        self._pool_of: dict[str, str] | None = None

    def document(self, kind: str, name: str) -> dict[str, Any]:
        """An object as it is written."""
        path = self._known.path_of(kind, name)
        if path is None:
            raise NoSubjectError(f"there is no {kind}/{name} in the repository")
        for document in edit.documents(self._known.read(path).decode("utf-8-sig")):
            if (
                isinstance(document, dict)
                and document.get("kind") == kind
                and (document.get("metadata") or {}).get("name") == name
            ):
                return document
        raise NoSubjectError(f"{kind}/{name} can't be read in {path}")

    def pool_of(self, node: str, pools: Mapping[str, Sequence[str]]) -> str:
        """The pool that declares a node."""
        if self._pool_of is None:
            self._pool_of = {name: pool for pool, names in pools.items() for name in names}
        pool = self._pool_of.get(node)
        if pool is None:
            raise NoSubjectError(f"no pool declares a node {node}")
        return pool

    def overrides(self, pool: str) -> list[Any]:
        """The overrides of a pool; the caller keeps the list up to date."""
        if pool not in self._overrides:
            spec = self.document("NodePool", pool).get("spec") or {}
            self._overrides[pool] = [dict(one) for one in spec.get("overrides") or []]
        return self._overrides[pool]


class GitPusher:
    """Pushes to one branch. One thread at a time; ``submission.Batcher`` sees to that.

    Args:
        repository: where to push.
        pools: called when a node's pool has to be known.
    """

    def __init__(self, repository: source.Source, pools: PoolNames) -> None:
        self._source = repository
        self._writer = writer.Writer(repository)
        self._index = index.Index(repository)
        self._pools = pools

    def close(self) -> None:
        """End git's processes."""
        self._writer.close()

    def push(self, changes: Sequence[SubmittedDocument]) -> list[Result]:
        """One result for each change, in order."""
        asked: list[tuple[int, list[requests.Request]]] = []
        results: list[Result | None] = [None] * len(changes)
        try:
            reading = self._read(changes)
        except (gitobjects.GitError, OSError) as error:
            return [Result(one.name, 503, f"git can't be reached: {error}") for one in changes]
        for position, change in enumerate(changes):
            try:
                asked.append((position, self._requests(change, reading)))
            except NoSubjectError as error:
                results[position] = Result(change.name, 404, str(error))
            except (edit.EditError, hostlists.HostListError, ValueError) as error:
                results[position] = Result(change.name, 400, str(error))
        flat = [request for _, group in asked for request in group]
        answers = iter(self._writer.write(flat, now=int(time.time()))) if flat else iter(())
        for position, group in asked:
            given = [next(answers) for _ in group]
            results[position] = _result(changes[position], given)
        return [one for one in results if one is not None]

    def _read(self, changes: Sequence[SubmittedDocument]) -> _Reading:
        """What stands in the repository, where any of ``changes`` depends on it."""
        if any(change.verb in {"rerun", "drain", "undrain"} for change in changes):
            self._source.fetch()
            self._index.advance(self._source.head())
        return _Reading(self._index)

    def _requests(self, change: SubmittedDocument, reading: _Reading) -> list[requests.Request]:
        author = person(change.identity)
        name, reason = change.name, change.reason
        if change.verb == "submit":
            return [requests.AddJob(change.text, name, author)]
        if change.verb == "cancel":
            return [requests.RemoveObject("Job", name, author, reason, f"Cancel Job/{name}")]
        if change.verb in {"drain", "undrain"}:
            return self._override(change, reading)
        field: tuple[tuple[str, ...], Any]
        if change.verb == "rerun":
            run = (reading.document("Job", name).get("spec") or {}).get("run", 1)
            field = (("spec", "run"), int(run) + 1)
        else:
            field = (("spec", "suspend"), True if change.verb == "hold" else edit.REMOVED)
        subject = f"{change.verb.capitalize()} Job/{name}"
        return [requests.EditObject("Job", name, (field,), author, reason, subject)]

    def _override(self, change: SubmittedDocument, reading: _Reading) -> list[requests.Request]:
        node, author = change.name, person(change.identity)
        pool = reading.pool_of(node, self._pools())
        overrides = reading.overrides(pool)

        def request(value: Any, *path: str | int) -> requests.Request:
            field = (("spec", "overrides", *path), value)
            subject = f"{change.verb.capitalize()} {node} of NodePool/{pool}"
            return requests.EditObject("NodePool", pool, (field,), author, change.reason, subject)

        if change.verb == "drain":
            if not change.reason:
                raise ValueError(f"draining {node} needs a reason, for who comes after")
            added = {"hosts": node, "reason": change.reason, "owner": change.identity}
            overrides.append(added)
            return [request(added, len(overrides) - 1)]
        made: list[requests.Request] = []
        for position in reversed(range(len(overrides))):
            entry: Any = overrides[position]
            hosts = hostlists.expand(str(entry.get("hosts", "")))
            if node not in hosts or entry.get("drain") is False:
                continue
            left = [host for host in hosts if host != node]
            if left:
                entry["hosts"] = hostlists.fold(left)
                made.append(request(entry["hosts"], position, "hosts"))
            else:
                del overrides[position]
                made.append(request(edit.REMOVED, position))
        if not made:
            raise NoSubjectError(f"no override of pool {pool} drains node {node}")
        return made


def person(identity: str) -> requests.Person:
    """Whom a commit names as author."""
    name, at, _ = identity.partition("@")
    return requests.Person(name, identity if at else f"{identity}@localhost")


def _result(change: SubmittedDocument, answers: Sequence[requests.Result]) -> Result:
    """The worst of the writer's answers for one change."""
    for answer in answers:
        if answer.status == "failed":
            return Result(change.name, 503, f"git can't be reached: {answer.message}")
        if answer.status == "refused":
            return Result(change.name, _refusal(change, answer.message), answer.message)
    commit = next((answer.commit for answer in answers if answer.commit), None)
    unchanged = all(answer.status == "unchanged" for answer in answers)
    return Result(change.name, 200, answers[0].message if unchanged else "", commit)


def _refusal(change: SubmittedDocument, message: str) -> int:
    if change.verb == "submit":
        return 409  # the document itself was checked before
    return 404 if message.startswith("there is no") else 400

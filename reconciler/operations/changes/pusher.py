"""Turns what people ask for into requests to the repository's writer, and its answers back.

Submitting adds a document, cancelling takes it out, holding sets ``spec.suspend``, rerun_edit
raises ``spec.run``, draining adds to the overrides of the node's pool. What depends on what stands
in the repository (run numbers, lists) is worked out by the writer from the very revision that the
commit is made upon, again each time that somebody else was faster.
"""

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from reconciler.changes import array_edits, requests, yaml_edit
from reconciler.changes.writer import commit_writer, refused_copies
from reconciler.core.safety import digests
from reconciler.desired.documents import object_changes
from reconciler.desired.git import source
from reconciler.model.documents import job_spec
from reconciler.model.values import found_values, hostlists, suggestions
from reconciler.operations.changes import remote_changes, rerun_edit, suspension
from reconciler.operations.changes.remote_changes import RemoteChangeResult, SubmittedDocument

_LOG = logging.getLogger(__name__)

#: Gives pool name to the names of its nodes, as they are in force.
PoolNames = Callable[[], Mapping[str, Sequence[str]]]


class LastRun(msgspec.Struct, frozen=True):
    """The newest run of a job that the controller knows: its number, and its end if it has one."""

    run: int
    finished_as: str = ""


#: Returns the newest run of a job by its name; None if unknown.
LastRuns = Callable[[str], LastRun | None]
#: Returns why the contents of a run, by its key, would start nothing; empty: they would.
SpentRuns = Callable[[str], str]
#: Returns the revision with which a change is still held, by its digest; empty if unknown.
HeldAt = Callable[[str], str]
#: Tells why a change may not be made, by the documents that it acts upon; empty: it may. It is
#: asked for at each push, so that what it goes by is what holds then.
Judge = Callable[[SubmittedDocument, object_changes.Documents], str]
_Document = Mapping[str, Any]


class StoreLookups(NamedTuple):
    """Questions to the store about an approved change, and about a job that is new in git."""

    held_at: HeldAt = lambda _: ""
    spent: SpentRuns = lambda _: ""


#: Of a pusher without a store.
NO_LOOKUPS = StoreLookups()


class _GroupedRequest(NamedTuple):
    """A request to the writer, and the changes of its group that it makes."""

    request: requests.Request
    positions: tuple[int, ...]


def _allow(_change: SubmittedDocument, _documents: object_changes.Documents) -> str:
    return ""


class GitPusher:
    """Pushes to one branch. One thread at a time; ``remote_changes.Batcher`` sees to that.

    Args:
        repository: where to push.
        pools: called when a node's pool has to be known.
        last_runs: called when it has to be known whether a job can still be held.
        lookups: see there.
        judge: called at each push, for what judges its changes; without it all may do all.
        signing_key: file with the SSH key that signs the commits; None: they are not signed.
        refused: called when a job is changed, for documents of it that are refused.
    """

    def __init__(
        self,
        repository: source.GitSource,
        pools: PoolNames,
        last_runs: LastRuns = lambda _: None,
        lookups: StoreLookups = NO_LOOKUPS,
        judge: Callable[[], Judge] = lambda: _allow,
        *,
        signing_key: Path | None = None,
        refused: refused_copies.RefusedJobs = refused_copies.none_refused,
    ) -> None:
        self._writer = commit_writer.CommitWriter(
            repository, signing_key=signing_key, refused=refused
        )
        self._pools = pools
        self._last_runs = last_runs
        self._lookups = lookups
        self._judge = judge

    def close(self) -> None:
        """End git's processes."""
        self._writer.close()

    def push(self, groups: Sequence[Sequence[SubmittedDocument]]) -> list[list[RemoteChangeResult]]:
        """Return one result for each change, in order; of each group all are pushed or none."""
        results: list[list[RemoteChangeResult]] = [[] for _ in groups]
        judge = self._judge()
        for dry_run in (False, True):
            asked: list[tuple[int, list[_GroupedRequest]]] = []
            for position, group in enumerate(groups):
                if any(change.dry_run is not dry_run for change in group):
                    continue
                pending, results[position] = self._requests(group, judge)
                if pending:
                    asked.append((position, pending))
            wanted = [
                pending[0].request
                if len(pending) == 1
                else requests.RequestGroup(tuple(one.request for one in pending))
                for _, pending in asked
            ]
            answers = iter(self._writer.write(wanted, now=int(time.time()), dry_run=dry_run))
            for position, pending in asked:
                group = groups[position]
                told = {
                    place: _result(group[place], answer, one.request)
                    for one, answer in zip(
                        pending, itertools.islice(answers, len(pending)), strict=True
                    )
                    for place in one.positions
                }
                results[position] = [told[place] for place in range(len(group))]
        return results

    def _requests(
        self, group: Sequence[SubmittedDocument], judge: Judge
    ) -> tuple[list[_GroupedRequest], list[RemoteChangeResult]]:
        """Return the requests for the writer; none, with the results, if one can't be made."""
        made: list[_GroupedRequest] = []
        bad: dict[int, RemoteChangeResult] = {}
        for positions in self._together(group):
            found = self._understood([group[position] for position in positions], judge)
            if isinstance(found, RemoteChangeResult):
                bad |= dict.fromkeys(positions, found)
            else:
                made.append(_GroupedRequest(found, positions))
        if not bad:
            return made, []
        return [], [
            msgspec.structs.replace(bad[position], name=change.name)
            if position in bad
            else remote_changes.withdrawn(change.name)
            for position, change in enumerate(group)
        ]

    def _together(self, group: Sequence[SubmittedDocument]) -> Iterable[tuple[int, ...]]:
        """Return the positions of changes that make one request: nodes of one pool do.

        Many nodes become one override in one edit of their pool, as a person would write it.
        """
        found: dict[tuple[object, ...], list[int]] = {}
        pool_of: dict[str, str] | None = None
        for position, change in enumerate(group):
            key: tuple[object, ...] = (position,)
            if change.verb in {"drain", "undrain"}:
                pool_of = self._pool_of_nodes() if pool_of is None else pool_of
                if change.name in pool_of:
                    key = (change.verb, pool_of[change.name], change.identity, change.reason)
            found.setdefault(key, []).append(position)
        return map(tuple, found.values())

    def _understood(
        self, changes: Sequence[SubmittedDocument], judge: Judge
    ) -> requests.Request | RemoteChangeResult:
        """Return the request for the writer, or why there is none: no change costs the others
        theirs.

        Args:
            changes: those of one request: several only if they are nodes of one pool.
            judge: checks each of them by itself, under the requested name.
        """
        change = changes[0]

        def permit(found: object_changes.Documents) -> str:
            if change.verb == "prune":
                self._require_over(change.name, found)
            try:
                return next((why for one in changes if (why := judge(one, found))), "")
            except remote_changes.UnavailableError as error:
                raise requests.UndecidedError(str(error)) from error

        try:
            if change.verb in {"drain", "undrain"}:
                request = self._draining_request(change, [one.name for one in changes])
            else:
                request = self._request(change)
            return msgspec.structs.replace(request, permit=permit)
        except requests.MissingTargetError as error:
            return RemoteChangeResult(change.name, 404, str(error))
        except requests.ConflictError as error:
            return RemoteChangeResult(change.name, 400, str(error))
        except remote_changes.UnavailableError as error:
            return RemoteChangeResult(change.name, 503, str(error))
        except Exception:
            _LOG.exception("a change of %s can't be understood", change.name)
            message = "an internal error before the change was made; see the controller's log"
            return RemoteChangeResult(change.name, 500, message)

    def _request(self, change: SubmittedDocument) -> requests.Request:
        author = person(change.identity)
        name, reason, below = change.name, change.reason, change.below
        of = f"[{change.elements}]" if change.elements else ""
        subject = f"{change.verb.capitalize()} Job/{name}{of}"
        if change.verb == "submit":
            waited = (change.submission, change.waited_since)
            spent = functools.partial(self._why_spent, change.text)
            return requests.AddJob(change.text, name, author, None, *waited, spent)
        if change.verb == "approve":
            require_digest(name)
            return requests.Approve(name, author, reason, self._lookups.held_at(name))
        if change.elements and change.verb in array_edits.EDITS:
            edit = array_edits.edit(change.verb, change.elements)
            if change.verb != "release":
                edit = self._of_live_run(name, change.verb, edit)
            return requests.ReviseObject("Job", name, edit, author, reason, subject, below)
        if change.verb == "cancel":
            return requests.RemoveObject("Job", name, author, reason, subject, below, "all")
        if change.verb == "prune":
            self._ended_run(name)
            # what is written twice and differs is somebody's who has not seen yet that it is not in
            # force: it stays, and so does the other, whose end keeps it from starting
            return requests.RemoveObject("Job", name, author, reason, subject, below, "alike")
        if change.verb in {"suspend", "resume"}:
            kind, found = suspension.parse(name)
            fields = suspension.fields(change.verb)
            subject = f"{change.verb.capitalize()} {kind}/{found}".rstrip("/")
            return requests.EditObject(kind, found, fields, author, reason, subject)
        revise: Callable[[_Document], requests.Fields] = suspension.release_fields
        if change.verb == "hold":
            revise = self._of_live_run(
                name, "hold", lambda one: suspension.hold_fields(one, reason)
            )
        elif change.verb == "rerun":
            revise = rerun_edit.Rerun(fresh=change.fresh, elements=change.elements)
            if change.elements:
                require_elements_over(name, self._last_runs(name))
        return requests.ReviseObject("Job", name, revise, author, reason, subject, below)

    def _draining_request(
        self, change: SubmittedDocument, nodes: Sequence[str]
    ) -> requests.Request:
        """Drain or undrain nodes of one pool; a name is that of one node, and no list of them.

        Raises:
            MissingTargetError: no pool declares the first.
        """
        pool = self._pool_of(nodes[0])
        hosts = hostlists.fold(nodes)
        drains = change.verb == "drain"
        revise = _draining(change, hosts) if drains else _undraining(nodes)
        subject = f"{change.verb.capitalize()} {hosts} of NodePool/{pool}"
        author, reason = person(change.identity), change.reason
        return requests.ReviseObject("NodePool", pool, revise, author, reason, subject)

    def _ended_run(self, name: str) -> LastRun:
        """Return the newest known run of a job, which has ended.

        Raises:
            ConflictError: it has not ended, or there is none.
        """
        last = self._last_runs(name)
        if last is None or not last.finished_as:
            raise requests.ConflictError(f"job {name} has not ended: its file stays")
        return last

    def _require_over(self, name: str, found: object_changes.Documents) -> None:
        """Refuse to delete documents of another run than the one that has ended.

        Raises:
            ConflictError: it does: somebody wants it to run, and nobody has read that yet.
        """
        last = self._ended_run(name)
        for document in found:
            part = document.part
            if not isinstance(part, job_spec.JobDocument):
                raise requests.ConflictError(f"{document.label} has a mistake")
            if part.spec.run != last.run:
                message = f"it asks for run {part.spec.run}, and run {last.run} is what has ended"
                raise requests.ConflictError(message)

    def _why_spent(self, text: str) -> str:
        """Return why a submitted document would start nothing; empty if it would.

        Raises:
            UndecidedError: the store can't be read.
        """
        try:
            return self._lookups.spent(rerun_edit.run_key(yaml_edit.documents(text)[0]))
        except remote_changes.UnavailableError as error:
            raise requests.UndecidedError(str(error)) from error

    def _pool_of_nodes(self) -> dict[str, str]:
        """Return the pool of each node; empty if unknown, and each node is requested alone."""
        try:
            pools = self._pools()
        except Exception:  # each of them meets it again, and reports it
            return {}
        return {node: pool for pool, names in pools.items() for node in names}

    def _pool_of(self, node: str) -> str:
        pools = self._pools()
        for pool, names in pools.items():
            if node in names:
                return pool
        hint = suggestions.hint(node, (name for names in pools.values() for name in names))
        raise requests.MissingTargetError(f"there is no Node/{node} in any pool{hint}")

    def _of_live_run(
        self, name: str, verb: str, edit: Callable[[_Document], requests.Fields]
    ) -> Callable[[_Document], requests.Fields]:
        """Return an edit that is refused once the run of the document has ended."""

        def revise(document: _Document) -> requests.Fields:
            last = self._last_runs(name)
            if last is not None and last.finished_as and last.run == rerun_edit.run_of(document):
                raise requests.ConflictError(finished(name, last, verb))
            return edit(document)

        return revise


def finished(name: str, last: LastRun, verb: str = "hold") -> str:
    """Return why a run of a job, or elements of it, can't be held or cancelled."""
    what = "and can't be held" if verb == "hold" else "and nothing of it can be cancelled"
    return (
        f"run {last.run} of Job/{name} is {last.finished_as} already, {what}; "
        "`muster rerun` starts another"
    )


def require_elements_over(name: str, last: LastRun | None) -> None:
    """Refuse to run elements again while others of the run are alive, which that would end.

    Raises:
        ConflictError: the last known run has not ended.
    """
    if last is not None and not last.finished_as:
        raise requests.ConflictError(
            f"run {last.run} of Job/{name} has not ended, and elements run again in a run of their "
            f"own. To fix: `muster wait {name}` before, or cancel it"
        )


def overrides_of(document: _Document) -> list[Mapping[str, Any]]:
    """Return the overrides of a pool as written.

    Raises:
        ConflictError: they are not a list of mappings.
    """
    found = rerun_edit.written_spec(document).get("overrides") or []
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        expected = "a list of mappings"
        raise requests.ConflictError(
            rerun_edit.wrong_field(document, "spec.overrides", found, expected)
        )
    return found


def drains_alike(entry: Mapping[str, Any], added: Mapping[str, Any]) -> bool:
    """Return True if two overrides drain the same nodes for the same reason."""
    wanted = ("hosts", "reason")
    return entry.get("drain") is not False and all(entry.get(of) == added[of] for of in wanted)


def _draining(change: SubmittedDocument, hosts: str) -> Callable[[_Document], requests.Fields]:
    """Add an override behind those that are there."""
    if not change.reason:
        raise requests.ConflictError(f"draining {hosts} needs a reason")
    added = {"hosts": hosts, "reason": change.reason, "owner": change.identity}

    def revise(document: _Document) -> requests.Fields:
        overrides = overrides_of(document)
        if any(drains_alike(entry, added) for entry in overrides):
            return ()
        return ((("spec", "overrides", len(overrides)), added),)

    return revise


def _undraining(nodes: Sequence[str]) -> Callable[[_Document], requests.Fields]:
    """Take nodes out of every override that drains one of them."""
    wanted = set(nodes)

    def revise(document: _Document) -> requests.Fields:
        made: list[tuple[tuple[str | int, ...], Any]] = []
        drained: set[str] = set()
        overrides = overrides_of(document)
        for position in reversed(range(len(overrides))):
            entry = overrides[position]
            path = ("spec", "overrides", position)
            try:
                hosts = hostlists.expand(str(entry.get("hosts", "")))
            except hostlists.HostListError as error:
                raise requests.ConflictError(str(error)) from None
            if wanted.isdisjoint(hosts) or entry.get("drain") is False:
                continue
            drained |= wanted.intersection(hosts)
            left = [host for host in hosts if host not in wanted]
            if left:
                made.append(((*path, "hosts"), hostlists.fold(left)))
            else:
                made.append((path, yaml_edit.REMOVED))
        if idle := [node for node in nodes if node not in drained]:
            name = document["metadata"]["name"]
            what = f"node{'s' if len(idle) > 1 else ''} {hostlists.fold(idle)}"
            raise requests.MissingTargetError(
                f"no override of pool {name} drains {what} in git (`muster overrides` lists "
                "drains that are not in git)"
            )
        return tuple(made)

    return revise


def is_digest(text: str) -> bool:
    """Return True if a text is a digest that a held change can have."""
    return digests.parse_digest(text) is not None


def require_digest(text: str) -> None:
    """Raise ConflictError where a text is no digest of a change."""
    if not is_digest(text):
        raise requests.ConflictError(
            f"{found_values.quote(text)} is not the digest of a change; `muster status` shows "
            "held changes, with the "
            "command that approves each"
        )


def person(identity: str) -> requests.Person:
    """Return the author of a commit."""
    name, at, _ = identity.partition("@")
    return requests.Person(name, identity if at else f"{identity}@localhost")


_STATUS = {
    "failed": 503,
    "missing": 404,
    "conflict": 409,
    "elsewhere": 403,
    "forbidden": 403,
    "rejected": 403,
    "undecided": 503,
    "refused": 400,
    "defect": 500,
    "withdrawn": remote_changes.WITHDRAWN,
}


def _said(change: SubmittedDocument, request: requests.Request) -> str:
    """Return what is to be told of an accepted change beside that it was made."""
    revise = getattr(request, "revise", None)
    if not isinstance(revise, rerun_edit.Rerun) or not revise.says:
        return ""
    return f"{'would run' if change.dry_run else 'runs'} again, {revise.says}"


def _result(
    change: SubmittedDocument, answer: requests.RequestResult, request: requests.Request
) -> RemoteChangeResult:
    """Return the writer's answer to a request as the result of a change."""
    status = _STATUS.get(answer.status)
    if answer.status == "missing" and change.verb == "prune":
        return RemoteChangeResult(change.name, 200, "its file has left already")
    if answer.status in {"conflict", "elsewhere"} and change.verb == "prune":
        return RemoteChangeResult(change.name, 200, f"its file stays: {answer.message}")
    if answer.status in {"forbidden", "rejected"} and change.verb == "prune":
        return RemoteChangeResult(change.name, 403, f"its file stays: {answer.message}")
    if answer.status == "failed":
        why = f"git can't be reached: {answer.message}"
        return RemoteChangeResult(change.name, 503, why, is_away=True)
    if answer.status == "refused" and change.verb == "submit":
        status = 409  # the document itself was checked before
    if status is not None:
        return RemoteChangeResult(change.name, status, answer.message)
    if answer.status != "unchanged":
        return RemoteChangeResult(change.name, 200, _said(change, request), answer.commit)
    message = requests.IS_HELD if change.verb == "hold" else answer.message
    return RemoteChangeResult(change.name, 200, message, answer.commit)

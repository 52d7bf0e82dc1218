"""Copies data for tasks: in before they start, and out before their end is reported.

``copy_queue`` decides when a copy runs, ``copy_runner`` runs it as a process. What is copied out is
noted on disk, so that another agent continues after this one. Credentials are fetched for each copy
and passed to its standard input.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from agents.data import copy_queue, copy_runner, data_cache, secret_store
from agents.host import disk_space
from agents.isolation import user_commands
from reconciler.model.observed import storage
from reconciler.model.protocol import decoders
from reconciler.model.state.records import AttemptReport, NodeUsage
from reconciler.model.state.states import AttemptState, EndReason

#: End reasons of attempts that may already run elsewhere: nothing of them is copied out.
GIVEN_AWAY = frozenset({EndReason.LEASE_EXPIRED, EndReason.LOST, EndReason.NODE_LOST})
#: End reasons of tasks that nobody stopped.
OF_ITSELF = frozenset({EndReason.EXITED, EndReason.OUT_OF_MEMORY, EndReason.DISK_LIMIT})
_KEY = re.compile(r"[0-9a-f]{40}")
#: Called with a problem, or with an empty text and the paths by name.
Told = Callable[[str | Exception, dict[str, str]], object]


class StagingRequest(msgspec.Struct, frozen=True):
    """The data copies of one attempt.

    Attributes:
        user: credentials as in start commands; None for the agent's own user.
        name: name of the user, who may be the agent's own; ``uid`` and ``gid`` likewise.
        words: values of placeholders in targets.
        lease_s: how long the attempt belongs to this node after a renewal; None for ever.
        grace_s: time to stop, if a stop does not give one.
    """

    plan: storage.StagingPlan
    user: Mapping[str, Any] | None
    name: str
    uid: int
    gid: int
    words: dict[str, str]
    lease_s: float | None = None
    grace_s: float = 0.0


_convert_wanted = decoders.converter(StagingRequest)


class Stager:
    """The data copies of one node.

    Args:
        root: the node's folder.
        cache: where data is copied to.
        secrets: where credentials come from.
        users: starts copies as their users; None for one without control groups.
    """

    def __init__(
        self,
        root: str,
        cache: data_cache.DataCache,
        secrets: secret_store.SecretStore,
        users: user_commands.UserCommands | None = None,
    ) -> None:
        self.cache = cache
        self._root = root
        self._secrets = secrets
        self._queue = copy_queue.CopyQueue()
        self._runner = copy_runner.CopyRunner(self._queue, users)
        self._lock = self._queue.lock
        #: Time to stop of attempts that were asked to stop.
        self._graces: dict[str, float] = {}
        self._ins: dict[str, copy_queue.Copy] = {}
        self._outs: dict[str, copy_queue.Copy] = {}

    # In --------------------------------------------------------------------------------------

    def prepare(self, attempt: str, wanted: StagingRequest) -> None:
        """Note what is to be copied out of an attempt, before it starts.

        Raises:
            OSError: the note cannot be written.
        """
        outs = None
        if wanted.plan.outs:
            outs = msgspec.to_builtins(wanted)
        self.cache.put(attempt, data_cache.CacheNote(outs=outs))
        if wanted.plan.ins:
            self.cache.home(wanted.uid, wanted.gid)

    def want(self, attempt: str, wanted: StagingRequest, told: Told) -> None:
        """Copy data in, then call ``told`` from another thread with a problem or the paths
        by name.
        """
        with self._lock:
            copy = copy_queue.Copy(
                "waiting for its turn to copy data",
                wanted.uid,
                home=wanted.uid,
                timeout_s=wanted.plan.timeout_s,
            )
            self._ins[attempt] = copy

        def work() -> None:
            found: dict[str, str] = {}
            try:
                problem = self._fetch(attempt, wanted, copy, found)
            except (OSError, secret_store.SecretUnavailableError) as failure:
                problem = f"data: {failure}"
                copy.lacks_room = isinstance(failure, OSError) and disk_space.is_lack(failure)
            except Exception as failure:  # whatever it is, it must be reported
                problem = f"data: {failure!r}"
            with self._lock:
                if self._ins.get(attempt) is copy:
                    del self._ins[attempt]
            if copy.why != copy_runner.STOPPED:
                told(disk_space.FullDiskError(problem) if copy.lacks_room else problem, found)

        threading.Thread(target=work, daemon=True).start()

    def give_up(self, attempt: str) -> bool:
        """Stop copying for an attempt. Return False if nothing was being copied in."""
        with self._lock:
            copy = self._ins.pop(attempt, None)
            if copy is None:
                return False
            copy.end(copy_runner.STOPPED)
            self._queue.wake()
        return True

    def waiting(self) -> dict[str, str]:
        """Return notes of attempts that wait for data, with their progress."""
        with self._lock:
            return {name: copy.note for name, copy in self._ins.items()}

    def _fetch(
        self, attempt: str, wanted: StagingRequest, copy: copy_queue.Copy, found: dict[str, str]
    ) -> str:
        items = [
            {
                "name": item.name, "store": msgspec.to_builtins(item.store), "path": item.path,
                "sha256": item.sha256, "checksums": item.checksums,
                "keys": self._keys(item.store, wanted),
            }
            for item in wanted.plan.ins
        ]  # fmt: skip
        home = self.cache.home(wanted.uid, wanted.gid)
        order = {"do": "in", "cache": home, "items": items}
        keys: dict[str, data_cache.Key] = {}
        total = 0

        def listed(news: dict[str, Any]) -> str:
            nonlocal total
            if not _KEY.fullmatch(news["key"]):
                return "the copy does not say what it copies"
            key = keys[news["name"]] = (wanted.uid, news["key"])
            total += 0 if news["there"] else int(news["bytes"])
            copy.note = f"copying {news['name']}"
            try:
                return self.cache.claim(
                    attempt, key, int(news["bytes"]), there=bool(news["there"]),
                    must_end=lambda: self._queue.must_end(copy),
                )  # fmt: skip
            except data_cache.RoomUnderWayError as late:
                copy.lacks_room = True  # another node may have room at once
                if copy.why != copy_runner.STOPPED:
                    copy.why = str(late)
                return copy.why

        def moved(count: int) -> None:
            copy.note = f"copying data, {_gib(count)} of {_gib(total)}"

        with self._queue.turn(copy):
            try:
                problem, done = self._runner.run(
                    order, copy, wanted.user, listed=listed, moved=moved
                )
            finally:
                self.cache.settle(attempt, tuple(keys.values()))
        for name, (key, below) in done.items():
            found[name] = f"{home}/{key}/{below}"
        return problem

    # Out -------------------------------------------------------------------------------------

    def hold(
        self, reports: Iterable[AttemptReport], told: Callable[[AttemptReport], None]
    ) -> list[AttemptReport]:
        """Return reports, with ends held back until results have been copied out.

        ``told`` is then called with those ends, from another thread.
        """
        return [self._hold(report, told) for report in reports]

    def _hold(self, report: AttemptReport, told: Callable[[AttemptReport], None]) -> AttemptReport:
        if report.state is not AttemptState.ENDED:
            return report
        with self._lock:
            grace_s = self._graces.pop(report.id, None)
        note = self.cache.note(report.id)
        if note is None or note.outs is None or report.started_at is None:
            return report
        if note.done:
            return _ended(report, note.problem, note.reason)
        if report.end_reason in GIVEN_AWAY:
            return report
        wanted = _convert_wanted(note.outs)
        well = report.end_reason is EndReason.EXITED and report.exit_code == 0
        outs = [item for item in wanted.plan.outs if well or item.when == "always"]
        if not outs:
            return report
        with self._lock:
            if report.id not in self._outs:
                copy = copy_queue.Copy(
                    "copying out its results",
                    wanted.uid,
                    lease_s=wanted.lease_s,
                    timeout_s=wanted.plan.timeout_s,
                )
                self._outs[report.id] = copy
                if report.end_reason not in OF_ITSELF:
                    given_s = wanted.grace_s if grace_s is None else grace_s
                    copy.leave_at = time.monotonic() + given_s
                arguments = (report, wanted, outs, copy, told)
                threading.Thread(target=self._deliver, args=arguments, daemon=True).start()
            said = self._outs[report.id].note
        return msgspec.structs.replace(
            report, state=AttemptState.STOPPING, ended_at=None, exit_code=None, signal=None,
            end_reason=None, message=said,
        )  # fmt: skip

    def stop(self, attempt: str, reason: EndReason, grace_s: float | None) -> None:
        """Limit copying out to ``grace_s``, because the attempt must stop.

        None means that the attempt belongs to another node now: nothing is copied out.
        """
        note = self.cache.note(attempt)
        with self._lock:
            copy = self._outs.get(attempt)
            if copy is None:
                if note is not None and note.outs is not None and not note.done:
                    self._graces[attempt] = grace_s or 0.0
                return
            copy.reason = reason
            copy.leave_at = min(copy.leave_at, time.monotonic() + (grace_s or 0.0))
            if grace_s is None:
                copy.end(copy_runner.STOPPED)
            self._queue.wake()

    def renewed(self, at: float) -> None:
        """Note that leases of this node were renewed at a moment of the boot clock."""
        self._queue.renewed(at)

    def _deliver(
        self,
        report: AttemptReport,
        wanted: StagingRequest,
        outs: list[storage.Out],
        copy: copy_queue.Copy,
        told: Callable[[AttemptReport], None],
    ) -> None:
        try:
            items = [
                {
                    "store": msgspec.to_builtins(item.store), "path": item.path,
                    "to": filled(item.to, wanted.words), "keys": self._keys(item.store, wanted),
                }
                for item in outs
            ]  # fmt: skip
            work = f"{self._root}/attempts/{report.id}/work"
            order = {"do": "out", "work": work, "items": items}

            def moved(count: int) -> None:
                copy.note = f"copying out, {_gib(count)} so far"

            problem = self._copy_out(order, wanted, copy, moved)
        except (OSError, secret_store.SecretUnavailableError) as failure:
            problem = str(failure)
        except Exception as failure:  # whatever it is, the end must be reported
            problem = f"{failure!r}"
        self.cache.finish(report.id, problem, copy.reason)
        with self._lock:
            self._outs.pop(report.id, None)
        told(_ended(report, problem, copy.reason))

    def _copy_out(
        self,
        order: dict[str, Any],
        wanted: StagingRequest,
        copy: copy_queue.Copy,
        moved: Callable[[int], None],
    ) -> str:
        """Copy out while the attempt belongs to this node. Return a problem, or an empty text.

        After a lost lease it starts again; what was copied before is replaced by the same.
        """
        while True:
            with self._queue.turn(copy):
                problem, _ = self._runner.run(
                    order, copy, wanted.user, listed=lambda _: "", moved=moved
                )
            if copy.why or not copy.lost:
                return problem
            copy.lost = False
            copy.note = "waiting for the controller before its results are copied out"

    def with_usage(self, usage: NodeUsage) -> NodeUsage:
        """Return a node's usage with the size of the cache and the bytes copied."""
        return msgspec.structs.replace(
            usage, cache_bytes=self.cache.size_bytes, staged_bytes=self._runner.moved_bytes
        )

    # Both ------------------------------------------------------------------------------------

    def _keys(self, store: storage.VolumeStore, wanted: StagingRequest) -> list[str]:
        """Return access key and secret key of a store."""
        objects = store.objects
        if objects is None or not objects.access_key:
            return ["", ""]
        names = (objects.access_key, objects.secret_key)
        values = self._secrets.fetch(wanted.name, wanted.uid, names)
        return [values[name] for name in names]


def filled(text: str, words: dict[str, str]) -> str:
    """Return a target with its placeholders replaced."""
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


def _ended(report: AttemptReport, problem: str, reason: EndReason | None) -> AttemptReport:
    """Return an end after copying out. A successful task whose results could not be copied has
    failed.

    Args:
        reason: end reason of the stop that prevented the copy, if any.
    """
    if not problem:
        return report
    message = f"its results could not be copied out: {problem}"
    end = report.end_reason
    if end is EndReason.EXITED and report.exit_code == 0:
        end = reason or EndReason.STAGE_FAILED
    text = f"{report.message}; {message}" if report.message else message
    return msgspec.structs.replace(report, end_reason=end, message=text)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"

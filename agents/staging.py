"""Copies of data for tasks: in before one starts, and out before its end is told.

Each copy is a process of its own (``stagehand``), run as the task's user, with a time limit and so
many at a time; here is who waits for which, what is to be done then, and what is remembered so that
another agent goes on where this one was killed. Credentials are asked of the vault for each copy
and go to its standard input.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from agents import datacache, stagehand, vault
from reconciler.model import decoding
from reconciler.model import staging as plans
from reconciler.model.records import AttemptReport, NodeUsage
from reconciler.model.states import AttemptState, EndReason

#: Copies that go on at the same time, of all users.
TOGETHER_MAX = 2
#: What a copy may learn of the agent's own environment: where certificates and proxies are.
PASSED_ON = (
    *("LANG", "LC_ALL", "PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
#: News of a copy that are longer are none; keys of entries look like this.
LINE_BYTES_MAX = 2**20
STOPPED = "it was stopped"
_KEY = re.compile(r"[0-9a-f]{40}")
#: Called with why the data can't be had, or with nothing and the paths by name.
Told = Callable[[str, dict[str, str]], None]


class Wanted(msgspec.Struct, frozen=True):
    """What is copied for one attempt. ``user`` is as in orders, None: the agent's own; ``name``,
    ``uid`` and ``gid`` are those of the user either way. ``words`` fill the placeholders."""

    plan: plans.Plan
    user: dict[str, Any] | None
    name: str
    uid: int
    gid: int
    words: dict[str, str]


_convert_wanted = decoding.converter(Wanted)


class _Copy:
    """One copy under way. ``note`` is what is told of it."""

    def __init__(self, note: str) -> None:
        self.note = note
        self.process: subprocess.Popen[bytes] | None = None
        self.given_up = False

    def is_given_up(self) -> bool:
        """Whether nobody wants it any more by now."""
        return self.given_up


class Stager:
    """One node's copies.

    Args:
        root: the node's folder.
        cache: where data goes.
        secrets: where credentials come from.
    """

    def __init__(self, root: str, cache: datacache.Cache, secrets: vault.Vault) -> None:
        self.cache = cache
        self.moved_bytes = 0
        self._root = root
        self._vault = secrets
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(TOGETHER_MAX)
        #: One copy in at a time of a user: no two make the same entry.
        self._homes: dict[int, threading.Lock] = {}
        self._ins: dict[str, _Copy] = {}
        self._outs: dict[str, _Copy] = {}

    # In --------------------------------------------------------------------------------------

    def prepare(self, attempt: str, wanted: Wanted) -> None:
        """Note what is to be copied out of an attempt, before it starts.

        Raises:
            OSError: it can't be noted.
        """
        outs = None
        if wanted.plan.outs:
            outs = msgspec.to_builtins(wanted)
        self.cache.put(attempt, datacache.Note(outs=outs))
        if wanted.plan.ins:
            self.cache.home(wanted.uid, wanted.gid)

    def want(self, attempt: str, wanted: Wanted, told: Told) -> None:
        """Have ``told`` called, from another thread, when the data is there or can't be had."""
        with self._lock:
            copy = self._ins[attempt] = _Copy("waiting for its turn to copy data")

        def work() -> None:
            found: dict[str, str] = {}
            try:
                problem = self._fetch(attempt, wanted, copy, found)
            except (OSError, vault.SecretError) as failure:
                problem = f"data: {failure}"
            except Exception as failure:  # whatever it is, who waits has to hear of it
                problem = f"data: {failure!r}"
            with self._lock:
                if self._ins.get(attempt) is copy:
                    del self._ins[attempt]
            if not copy.given_up:
                told(problem, found)

        threading.Thread(target=work, daemon=True).start()

    def give_up(self, attempt: str) -> bool:
        """Nobody waits any more for an attempt's data; False when nobody did."""
        with self._lock:
            copy = self._ins.pop(attempt, None)
            if copy is None:
                return False
            _end(copy)
        return True

    def waiting(self) -> dict[str, str]:
        """Attempts that wait for data, and how far it is."""
        with self._lock:
            return {name: copy.note for name, copy in self._ins.items()}

    def _fetch(self, attempt: str, wanted: Wanted, copy: _Copy, found: dict[str, str]) -> str:
        items = [
            {
                "name": one.name, "store": msgspec.to_builtins(one.store), "path": one.path,
                "sha256": one.sha256, "checksums": one.checksums,
                "keys": self._keys(one.store, wanted),
            }
            for one in wanted.plan.ins
        ]  # fmt: skip
        home = self.cache.home(wanted.uid, wanted.gid)
        order = {"do": "in", "cache": home, "items": items}
        keys: dict[str, datacache.Key] = {}
        total = 0

        def listed(news: dict[str, Any]) -> str:
            nonlocal total
            if not _KEY.fullmatch(news["key"]):
                return "the copy does not say what it copies"
            key = keys[news["name"]] = (wanted.uid, news["key"])
            total += 0 if news["there"] else int(news["bytes"])
            copy.note = f"copying {news['name']}"
            return self.cache.claim(attempt, key, int(news["bytes"]), there=bool(news["there"]))

        def moved(count: int) -> None:
            copy.note = f"copying data, {_gib(count)} of {_gib(total)}"

        with self._lock:
            own = self._homes.setdefault(wanted.uid, threading.Lock())
        with own, self._turns:
            try:
                problem, done = self._run(order, wanted, copy, listed, moved)
            finally:
                self.cache.settle(attempt, tuple(keys.values()))
        for name, (key, below) in done.items():
            found[name] = f"{home}/{key}/{below}"
        return problem

    # Out -------------------------------------------------------------------------------------

    def hold(
        self, reports: Iterable[AttemptReport], told: Callable[[AttemptReport], None]
    ) -> list[AttemptReport]:
        """Reports, with ends held back of attempts of which something is still to be copied out:
        ``told`` is called with those, from another thread, when that is done."""
        return [self._hold(report, told) for report in reports]

    def _hold(self, report: AttemptReport, told: Callable[[AttemptReport], None]) -> AttemptReport:
        if report.state is not AttemptState.ENDED:
            return report
        note = self.cache.note(report.id)
        if note is None or note.outs is None or report.started_at is None:
            return report
        if note.done:
            return _ended(report, note.problem)
        wanted = _convert_wanted(note.outs)
        well = report.end_reason is EndReason.EXITED and report.exit_code == 0
        outs = [one for one in wanted.plan.outs if well or one.when == "always"]
        if not outs:
            return report
        with self._lock:
            if report.id not in self._outs:
                copy = self._outs[report.id] = _Copy("copying out what it has left")
                arguments = (report, wanted, outs, copy, told)
                threading.Thread(target=self._deliver, args=arguments, daemon=True).start()
            said = self._outs[report.id].note
        return msgspec.structs.replace(
            report, state=AttemptState.STOPPING, ended_at=None, exit_code=None, signal=None,
            end_reason=None, message=said,
        )  # fmt: skip

    def stop(self, attempt: str) -> None:
        """What an attempt has left is not to be copied out any more."""
        with self._lock:
            copy = self._outs.get(attempt)
            if copy is not None:
                _end(copy)

    def _deliver(
        self,
        report: AttemptReport,
        wanted: Wanted,
        outs: list[plans.Out],
        copy: _Copy,
        told: Callable[[AttemptReport], None],
    ) -> None:
        try:
            items = [
                {
                    "store": msgspec.to_builtins(one.store), "path": one.path,
                    "to": filled(one.to, wanted.words), "keys": self._keys(one.store, wanted),
                }
                for one in outs
            ]  # fmt: skip
            work = f"{self._root}/attempts/{report.id}/work"
            order = {"do": "out", "work": work, "items": items}

            def moved(count: int) -> None:
                copy.note = f"copying out, {_gib(count)} so far"

            with self._turns:
                problem, _ = self._run(order, wanted, copy, lambda _: "", moved)
        except (OSError, vault.SecretError) as failure:
            problem = str(failure)
        except Exception as failure:  # the end has to be told, whatever it is
            problem = f"{failure!r}"
        note = self.cache.note(report.id) or datacache.Note()
        with contextlib.suppress(OSError):
            self.cache.put(report.id, msgspec.structs.replace(note, done=True, problem=problem))
        with self._lock:
            self._outs.pop(report.id, None)
        told(_ended(report, problem))

    def with_usage(self, usage: NodeUsage) -> NodeUsage:
        """What a node uses, with what copies have to do with it."""
        return msgspec.structs.replace(
            usage, cache_bytes=self.cache.size_bytes, staged_bytes=self.moved_bytes
        )

    # Both ------------------------------------------------------------------------------------

    def _keys(self, store: plans.Store, wanted: Wanted) -> list[str]:
        """Access key and secret key of a store."""
        objects = store.objects
        if objects is None or not objects.access_key:
            return ["", ""]
        names = (objects.access_key, objects.secret_key)
        values = self._vault.fetch(wanted.name, wanted.uid, names)
        return [values[name] for name in names]

    def _run(
        self,
        order: dict[str, Any],
        wanted: Wanted,
        copy: _Copy,
        listed: Callable[[dict[str, Any]], str],
        moved: Callable[[int], None],
    ) -> tuple[str, dict[str, list[str]]]:
        """Have a stagehand carry out an order: what went wrong, and where things are."""
        as_user: dict[str, Any] = {}
        user = wanted.user
        if user is not None:
            as_user = {"user": user["uid"], "group": user["gid"], "extra_groups": user["groups"]}
        with self._lock:
            if copy.given_up:
                return STOPPED, {}
            copy.process = process = subprocess.Popen(
                [sys.executable, "-I", stagehand.__file__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
                cwd="/", start_new_session=True, **as_user,
            )  # fmt: skip
        late = threading.Event()

        def expire() -> None:
            late.set()
            process.kill()

        limit = threading.Timer(wanted.plan.timeout_s, expire)
        limit.daemon = True
        limit.start()
        try:
            problem, done = self._converse(process, order, listed, moved)
        finally:
            limit.cancel()
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        if copy.is_given_up():
            return STOPPED, {}
        if late.is_set():
            return f"it was not done in {wanted.plan.timeout_s:g} s (stage.timeout)", {}
        return problem[: plans.MESSAGE_CHARACTERS_MAX], done

    def _converse(
        self,
        process: "subprocess.Popen[bytes]",
        order: dict[str, Any],
        listed: Callable[[dict[str, Any]], str],
        moved: Callable[[int], None],
    ) -> tuple[str, dict[str, list[str]]]:
        assert process.stdin is not None  # noqa: S101 - asked for
        assert process.stdout is not None  # noqa: S101 - asked for
        before, news_of = 0, process.stdout
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            for line in iter(lambda: news_of.readline(LINE_BYTES_MAX), b""):
                news = json.loads(line)
                if "listed" in news:
                    problem = listed(news["listed"])
                    if problem:
                        return problem, {}
                    process.stdin.write(b"go\n")
                    process.stdin.flush()
                    continue
                end = news.get("done") or news
                count = int(end.get("moved", before))
                with self._lock:
                    self.moved_bytes += count - before
                before = count
                if "done" in news:
                    return "", news["done"]["entries"]
                if "problem" in news:
                    return str(news["problem"]), {}
                moved(count)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            return f"the copy ended: {problem}", {}
        status = process.wait()
        return f"the copy ended with status {status}", {}


def filled(text: str, words: dict[str, str]) -> str:
    """A target with its placeholders filled."""
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


def _end(copy: _Copy) -> None:
    copy.given_up = True
    if copy.process is not None:
        copy.process.kill()


def _ended(report: AttemptReport, problem: str) -> AttemptReport:
    """An end whose copy out has ended; a task that did well and left nothing has not."""
    if not problem:
        return report
    message = f"what it left could not be copied out: {problem}"
    reason = report.end_reason
    if reason is EndReason.EXITED and report.exit_code == 0:
        reason = EndReason.STAGE_FAILED
    told = f"{report.message}; {message}" if report.message else message
    return msgspec.structs.replace(report, end_reason=reason, message=told)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"

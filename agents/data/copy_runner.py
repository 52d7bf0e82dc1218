"""Runs one copy as a process of its own, under the user of the task (see ``copy_worker``)."""

import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from agents.data import copy_queue, copy_worker, worker_process
from agents.isolation import command_cgroups, user_commands
from reconciler.model.observed import storage

#: Copies that cannot be killed beside which another one is still started.
HUNG_MAX = 16
#: Longest message of a copy.
LINE_BYTES_MAX = 2**20
#: Why a copy ends that nobody needs any more.
STOPPED = "it was stopped"
#: Variables of the agent that a copy gets: locale, certificates and proxies.
PASSED_ON = (
    *("LANG", "LC_ALL", "PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)


class CopyRunner:
    """Runs the copies of one node.

    Attributes:
        moved_bytes: bytes that all copies have moved.
    """

    def __init__(
        self, queue: copy_queue.CopyQueue, users: user_commands.UserCommands | None = None
    ) -> None:
        self.moved_bytes = 0
        self._users = users or user_commands.UserCommands()
        self._queue = queue
        self._lock = queue.lock
        #: Copies that could not be killed; their turns are over.
        self._hung: list[worker_process.WorkerProcess] = []

    def run(
        self,
        order: dict[str, Any],
        copy: copy_queue.Copy,
        user: Mapping[str, Any] | None,
        *,
        listed: Callable[[dict[str, Any]], str],
        moved: Callable[[int], None],
    ) -> tuple[str, dict[str, list[str]]]:
        """Run a copy, and return its problem and the cache entries of what was copied, by name.

        Args:
            user: credentials as in start commands; None for the agent's own user.
            listed: called with each item before it is copied; returns a problem that ends the copy.
            moved: called with the bytes copied so far.
        """
        argv = [sys.executable, "-I", copy_worker.__file__]
        if user is None:
            return self._run(argv, order, copy, listed, moved)
        # it becomes the user by itself: between a start as the user and its own first step a task
        # could trace it
        argv += [str(user["uid"]), str(user["gid"]), ",".join(map(str, user["groups"]))]
        try:
            with self._users.held(user["uid"]) as start:
                return self._run([*start, *argv], order, copy, listed, moved)
        except command_cgroups.CommandRefusedError as problem:
            return f"the copy can't be started: {problem}", {}

    def _run(
        self,
        argv: list[str],
        order: dict[str, Any],
        copy: copy_queue.Copy,
        listed: Callable[[dict[str, Any]], str],
        moved: Callable[[int], None],
    ) -> tuple[str, dict[str, list[str]]]:
        """Run a copy by a command line."""
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        with self._lock:
            if copy.why:
                return copy.why, {}
            self._hung = [child for child in self._hung if not child.is_gone()]
            if len(self._hung) >= HUNG_MAX:
                return f"{HUNG_MAX} earlier copies hang and can't be killed", {}
            copy.late_at = time.monotonic() + copy.timeout_s
            is_over = functools.partial(self._queue.must_end, copy)
            child = worker_process.WorkerProcess(
                argv, is_over, LINE_BYTES_MAX, cwd="/", env=environment
            )
            copy.child = child
        try:
            problem, done = self._converse(child, order, copy, listed, moved)
        except worker_process.OverError:
            problem, done = STOPPED, {}
        finally:
            copy.late_at = math.inf
            with self._lock:
                copy.child = None
            if not child.end():
                with self._lock:
                    self._hung.append(child)
        if copy.why or copy.lost:
            return copy.why, {}
        return problem[: storage.MESSAGE_CHARACTERS_MAX], done

    def _converse(
        self,
        child: worker_process.WorkerProcess,
        order: dict[str, Any],
        copy: copy_queue.Copy,
        listed: Callable[[dict[str, Any]], str],
        moved: Callable[[int], None],
    ) -> tuple[str, dict[str, list[str]]]:
        """Send the order to a copy and handle its messages until it ends."""
        before = 0
        try:
            child.say(json.dumps(order).encode())
            for line in iter(child.hear, b""):
                message = json.loads(line)
                if "listed" in message:
                    problem = listed(message["listed"])
                    if problem:
                        return problem, {}
                    child.say(b"go")
                    continue
                end = message.get("done") or message
                count = int(end.get("moved", before))
                with self._lock:
                    self.moved_bytes += count - before
                before = count
                if "done" in message:
                    return "", message["done"]["entries"]
                if "problem" in message:
                    copy.lacks_room = bool(message.get("lacksRoom"))
                    return str(message["problem"]), {}
                moved(count)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            return f"the copy ended: {problem}", {}
        return f"the copy ended with status {child.leave()}", {}

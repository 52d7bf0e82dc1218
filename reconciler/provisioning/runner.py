"""Runs open orders: a bounded number of scripts at once, each order once, one a request.

The loop passes the open orders whenever they change. New ones are started, started ones go on, and
each result is reported once. A script that outlived a killed controller is stopped before its order
is started again, so that two never work at one request.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from reconciler import child_process
from reconciler.model.state import instance_records
from reconciler.provisioning import scripts

log = logging.getLogger("muster.provisioning")

#: Scripts that run at the same time.
WORKERS = 8
#: How long to wait at the end until those that run were ended.
STOP_S = 15.0


class Runner:
    """A runner of scripts, in threads of its own.

    Args:
        folder: of the scripts; None: there are none, and every order fails with that reason.
        state: folder with notes of running scripts.
        tell: called with every result, from any thread.
    """

    def __init__(
        self, folder: Path | None, state: Path, tell: Callable[[instance_records.OrderResult], None]
    ) -> None:
        self._folder = folder
        self._state = state
        self._tell = tell
        self._lock = threading.Lock()
        self._stuck = child_process.StuckChildren()
        #: Orders that were begun, by key; those of them that run, by request; those that wait.
        self._known: set[str] = set()
        self._running: dict[tuple[str, str], threading.Thread] = {}
        self._waiting: dict[str, instance_records.Order] = {}
        self._stopping = threading.Event()
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._end_leftovers()

    def want(self, orders: Iterable[instance_records.Order]) -> None:
        """Set the open orders."""
        wanted = {order.key: order for order in orders}
        with self._lock:
            self._known &= wanted.keys()
            self._waiting = {k: o for k, o in wanted.items() if k not in self._known}
            self._begin()

    def stop(self) -> None:
        """Stop running scripts and wait until they have ended."""
        self._stopping.set()
        with self._lock:
            self._waiting = {}
            threads = list(self._running.values())
        for thread in threads:
            thread.join(STOP_S)

    def _begin(self) -> None:
        """Start waiting orders as far as there is room; the lock is held."""
        for key, order in list(self._waiting.items()):
            if len(self._running) >= WORKERS or self._stopping.is_set():
                return
            request = (order.pool, order.request)
            if request in self._running:
                continue
            del self._waiting[key]
            self._known.add(key)
            thread = threading.Thread(target=self._carry_out, args=(order,), name=key, daemon=True)
            self._running[request] = thread
            thread.start()

    def _carry_out(self, order: instance_records.Order) -> None:
        note = self._state / f"{order.pool}.{threading.get_ident()}.run"
        try:
            result = self._run(order, note)
        except Exception as error:  # the order fails, not the controller
            log.exception("an internal error kept %s from being carried out", order.key)
            result = _failed(order, f"an internal error: {error!r}")
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
        with self._lock:
            self._running.pop((order.pool, order.request), None)
            self._begin()
        if not self._stopping.is_set():  # what was ended for leaving is begun anew by who comes
            self._tell(result)

    def _run(self, order: instance_records.Order, note: Path) -> instance_records.OrderResult:
        try:
            path = scripts.find(self._folder, order.script)
            return scripts.run(
                path,
                order,
                stopped=self._stopping.is_set,
                began=lambda pid: _remember(note, pid),
                stuck=self._stuck,
            )
        except scripts.ScriptError as error:
            return _failed(order, str(error))

    def _end_leftovers(self) -> None:
        """Stop scripts of an earlier controller, each by its id and start time.

        They get a signal first, so that they can write down what they made. An incomplete note
        means that its script never started.
        """
        found: dict[Path, tuple[int, int]] = {}
        for note in sorted(self._state.glob("*.run")):
            try:
                pid, began = (int(word) for word in note.read_text().split())
            except ValueError:
                note.unlink(missing_ok=True)
                continue
            except OSError as error:
                why = error.strerror
                log.warning("%s can't be read, and its script may run still: %s", note, why)
                continue
            found[note] = (pid, began)
            if pid > 1 and _began_at(pid) == began:
                log.warning("script %d of an earlier controller runs still, and is ended", pid)
        left = child_process.end_groups(
            lambda: {pid for pid, began in found.values() if pid > 1 and _began_at(pid) == began},
            grace_s=scripts.GRACE_S,
            reap_s=scripts.GRACE_S,
            pause=self._stopping.wait,
        )
        for note, (pid, _) in found.items():
            if pid in left:
                log.error("script %d, of %s, can't be ended: end it by hand", pid, note)
            else:
                note.unlink(missing_ok=True)


def _failed(order: instance_records.Order, why: str) -> instance_records.OrderResult:
    result = instance_records.OrderResult(order.verb, order.pool, order.request, order.number)
    return msgspec.structs.replace(result, failure=why[: instance_records.TEXT_MAX])


def _remember(note: Path, pid: int) -> None:
    """Write a note of a script that is about to start.

    Raises:
        ScriptError: it cannot be written, so that nobody could stop the script after a crash.
    """
    began = _began_at(pid)
    try:
        note.write_text(f"{pid} {began or 0}\n")
    except OSError as error:
        raise scripts.ScriptError(
            f"was not begun, because {note} can't be written: {error.strerror}"
        ) from None


def _began_at(pid: int) -> int | None:
    """Return the start time of a process in ticks since boot; None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])

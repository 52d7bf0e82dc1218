"""The controller as a process: opens the store, leads, reads the repository, runs loop and server.

``python -m reconciler.daemon`` is what ``muster controller`` and ``muster up`` start. The loop has
the main thread; one thread watches the repository; the server is a process of its own that is
started again when it dies.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import functools
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from reconciler import collecting, controller, inboxes, logs, metrics
from reconciler.changes import notes
from reconciler.core import safety
from reconciler.desired import gitobjects, incumbents, loader, source, watch
from reconciler.model import desired, loglines, records
from reconciler.notices import delivery, happenings, messages
from reconciler.operations import auditing, logfiles
from reconciler.provisioning import runner
from reconciler.store import errors as store_errors
from reconciler.store import store as stores

log = logging.getLogger("muster.controller")

#: The most problems of a revision that are logged.
PROBLEMS_LOGGED_MAX = 100

#: Waits between starts of a server that dies at once: doubled each time up to the last.
RESTART_WAIT_S_MIN = 0.2
RESTART_WAIT_S_MAX = 10.0
#: The longest time without a look at the clock.
SLEEP_S_MAX = 600.0
#: How often the size of the server's log is looked at.
LOG_LOOK_S = 30.0
_PR_SET_PDEATHSIG = 1


class RepositoryThread(threading.Thread):
    """Loads revisions and hands them to the loop; looks again when told to, or after a while."""

    def __init__(
        self,
        repository: source.Source,
        reading: loader.Loader,
        inbox: inboxes.Inbox,
        polling: watch.Polling,
        *,
        allow_root: bool,
        audit: auditing.Log | None = None,
        notifier: delivery.Notifier | None = None,
    ) -> None:
        super().__init__(name="repository", daemon=True)
        self._audit = audit
        self._notifier = notifier
        self._chained: auditing.Line | None = None
        self._repository = repository
        self._loader = reading
        self._told: tuple[object, ...] = ()
        self._counted: str | None = None
        self._inbox = inbox
        self._polling = polling
        self._allow_root = allow_root
        self._look = threading.Event()
        self._due = False
        self._stopping = False
        self._last: desired.Desired | None = None

    def hint(self) -> None:
        """Somebody says that the repository may have changed: look soon."""
        self._polling.hint()
        self._look.set()

    def changed(self) -> None:
        """The repository has changed: look at once."""
        self._due = True
        self._look.set()

    def stop(self) -> None:
        """Leave after the load under way."""
        self._stopping = True
        self._look.set()

    def run(self) -> None:
        """Load, hand over, wait; until ``stop``."""
        while not self._stopping:
            self._look.clear()
            if self._due or self._polling.next_poll_s() <= 0:
                self._due = False
                try:
                    self._load()
                except Exception as defect:  # one look is lost, not the thread
                    log.exception("a defect kept the repository from being read")
                    self._fail(defect)
            else:
                self._look.wait(min(self._polling.next_poll_s(), self._judge_again_s()))
        self._loader.close()

    def _judge_again_s(self) -> float:
        """How many seconds from now something that is held is to be judged again."""
        again_at = self._loader.judge_again_at
        if again_at is None:
            return SLEEP_S_MAX
        left_s = again_at - time.time()
        self._due = self._due or left_s <= 0
        return max(0.0, min(left_s, SLEEP_S_MAX))

    def _load(self) -> None:
        began = time.monotonic()
        value = self._loader.load()
        self._polling.polled(reached=value.status.sync != "Unknown")
        took_s = time.monotonic() - began
        self._count(value.status, took_s)
        if _differs(value, self._last):
            self._record(value, took_s)
            _log_outcome(value.status)
            self._last = value
            packed = incumbents.encode(self._loader.incumbents())
            self._inbox.put_desired(self._with_root(value), packed)
            self._note(value)
            self._notify(value)

    def _notify(self, value: desired.Desired) -> None:
        """Have those told outside who want to know what became of the revision."""
        notice = messages.of_status(value.status, time.time())
        if self._notifier is not None and notice is not None:
            self._notifier.tell([notice], value.structure.settings.notifications)

    def _record(self, value: desired.Desired, took_s: float) -> None:
        """Add what became of a revision to the audit log, once for each outcome."""
        if self._audit is None or value.status.sync == "Unknown":
            return
        entry = auditing.entry_of(
            value.status,
            self._loader.line,
            before=self._last,
            after=value,
            at=time.time(),
            duration_s=took_s,
        )
        try:
            last = next(iter(self._audit.tail(1)), None)
            if auditing.is_news(entry, last.entry if last else None):
                self._chained = self._audit.append(entry)
        except (OSError, ValueError) as error:
            log.warning("what became of %s is not in the audit log: %s", entry.revision, error)

    def _count(self, status: desired.SyncStatus, took_s: float) -> None:
        """Have the look counted; of a revision that is new, with the time of its commit."""
        revision, committed_at = status.attempted_revision, None
        if revision is not None and revision != self._counted and status.sync != "Unknown":
            self._counted = revision
            try:
                committed_at = self._repository.committed_at(revision)
            except (gitobjects.GitError, OSError) as error:
                log.warning("the time of commit %s can't be read: %s", revision, error)
        self._inbox.put_look(
            metrics.Look(metrics.LOOK_OF[status.sync], time.time(), took_s, committed_at)
        )

    def _fail(self, defect: Exception) -> None:
        """Go on by what is in force, look again later, and let everybody see it."""
        self._polling.polled(reached=False)
        last = self._last or desired.Desired()
        message = f"a defect kept the repository from being read: {defect!r}"
        status = msgspec.structs.replace(last.status, sync="Unknown", message=message)
        self._last = msgspec.structs.replace(last, status=status)
        self._inbox.put_desired(self._with_root(self._last), None)

    def _note(self, value: desired.Desired) -> None:
        """Tell in the repository what became of the revision, once for each outcome."""
        status = value.status
        told = (status.attempted_revision, status.sync, len(status.problems))
        if status.attempted_revision is None or status.sync == "Unknown" or told == self._told:
            return
        errors = sum(problem.severity == "error" for problem in status.problems)
        text = (
            f"muster: {status.sync} with {errors} errors; structure of "
            f"{(status.structure_revision or 'none')[:12]}, jobs of "
            f"{(status.jobs_revision or 'none')[:12]} in force"
        )
        if self._chained is not None:
            text += f"; audit {self._chained.number} {self._chained.hash}"
        try:
            notes.write(self._repository, status.attempted_revision, text)
        except (gitobjects.GitError, OSError) as error:
            log.warning("the outcome could not be noted in the repository: %s", error)
        self._told = told

    def _with_root(self, value: desired.Desired) -> desired.Desired:
        """Allow root in every pool where the controller was started so."""
        if not self._allow_root:
            return value
        pools = {
            name: msgspec.structs.replace(pool, allow_root=True)
            for name, pool in value.structure.pools.items()
        }
        structure = msgspec.structs.replace(value.structure, pools=pools)
        return msgspec.structs.replace(value, structure=structure)


def _log_outcome(status: desired.SyncStatus) -> None:
    """Say once what became of a revision, and each problem on a line of its own."""
    fields = {"revision": status.attempted_revision or ""}
    level = logging.INFO if status.sync == "Synced" else logging.WARNING
    log.log(level, "git is %s: %s", status.sync, status.message or "in force", extra=fields)
    for problem in status.problems[:PROBLEMS_LOGGED_MAX]:
        log.warning("%s", problem.text(), extra={**fields, "path": problem.path})
    if (left := len(status.problems) - PROBLEMS_LOGGED_MAX) > 0:
        log.warning("and %d more problems: `muster status` tells them", left, extra=fields)


def _differs(value: desired.Desired, last: desired.Desired | None) -> bool:
    """Whether a load brought anything but another time of looking."""
    if last is None or value.generation != last.generation:
        return True
    status = msgspec.structs.replace(value.status, checked_at=last.status.checked_at)
    return status != last.status


class ServerProcess:
    """Keeps the server process alive until told to stop."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self._command = command
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="server", daemon=True)

    def start(self) -> None:
        """Start it, and start it again whenever it dies."""
        self._thread.start()

    def stop(self) -> None:
        """End it and wait until it has gone."""
        self._stopping.set()
        process = self._process
        if process is not None:
            process.terminate()
        self._thread.join(timeout=10)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(timeout=10)

    def _keep(self) -> None:
        wait_s = RESTART_WAIT_S_MIN
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                ended = f"status {self._run_once()}"
            except OSError as error:  # no memory, no room for its log: it may pass
                ended = str(error)
            if self._stopping.is_set():
                return
            if time.monotonic() - started > RESTART_WAIT_S_MAX:
                wait_s = RESTART_WAIT_S_MIN
            log.warning("the server ended with %s; starting it again in %.1f s", ended, wait_s)
            self._stopping.wait(wait_s)
            wait_s = min(wait_s * 2, RESTART_WAIT_S_MAX)

    def _run_once(self) -> int:
        """Start it, and wait for its end."""
        with self._log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if self._stopping.is_set():
            self._process.terminate()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(timeout=LOG_LOOK_S)
            logfiles.bound(self._log_path)


class _Parser(argparse.ArgumentParser):
    """Leaves with 64 on wrong usage; 2 has a meaning of its own here."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and leave."""
        self.exit(64, f"{self.prog}: {message}; see --help\n")


def parser() -> argparse.ArgumentParser:
    """The options of the controller process."""
    options = _Parser(prog="muster controller", description=__doc__)
    options.add_argument("--repo", required=True, help="URL or path of the git repository")
    options.add_argument("--branch", default="main", help="branch that is in force")
    options.add_argument("--path", default="", help="folder of the repository that is read")
    options.add_argument("--state", required=True, type=Path, help="folder for store and sockets")
    options.add_argument("--store", help="URL of the store; default: SQLite in the state folder")
    options.add_argument("--listen", default="127.0.0.1:7420", help="address and port of the API")
    options.add_argument("--token-file", type=Path, help="file with tokens of users and nodes")
    options.add_argument("--poll", type=float, default=60.0, help="seconds between looks at git")
    options.add_argument(
        "--allow-root", action="store_true", help="tasks may run as root in every pool"
    )
    options.add_argument(
        "--signing-key",
        type=Path,
        metavar="FILE",
        help="SSH key that signs what the controller commits for people",
    )
    options.add_argument(
        "--provisioners",
        type=Path,
        metavar="FOLDER",
        help="scripts that pools with `provisioner: exec` may name; nobody else may write there",
    )
    options.add_argument(
        "--notify-secrets",
        type=Path,
        metavar="FOLDER",
        help="keys and tokens of notifications; default: `notify` in the state folder",
    )
    options.add_argument(
        "--accept-revision",
        metavar="COMMIT",
        help="take this revision although it does not follow the last one (a rewritten history)",
    )
    options.add_argument(
        "--log-format",
        choices=loglines.FORMS,
        default="readable",
        help="form of its own log, one event a line; json is for programs that collect logs",
    )
    options.add_argument(
        "--log-level", choices=logs.LEVELS, default="info", help="nothing below it is logged"
    )
    options.add_argument(
        "--die-with-parent", type=int, metavar="PID", help="leave when this process ends"
    )
    return options


def die_with(parent: int) -> None:
    """Have the kernel end this process when ``parent``, which started it, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def server_command(options: argparse.Namespace, store_url: str) -> list[str]:
    """The command line of the server process."""
    command = [
        sys.executable,
        "-m",
        "reconciler.server",
        "--store",
        store_url,
        "--link",
        str(options.state / "loop.sock"),
        "--listen",
        options.listen,
        "--state",
        str(options.state),
        "--repository",
        options.repo,
        "--branch",
        options.branch,
        "--path",
        options.path,
        "--parent",
        str(os.getpid()),
        "--log-format",
        options.log_format,
        "--log-level",
        options.log_level,
    ]
    if options.signing_key is not None:
        command += ["--signing-key", str(options.signing_key.resolve())]
    if options.token_file is not None:
        command += ["--token-file", str(options.token_file)]
    return command


def _is_adoption(store: stores.Store, repository: source.Source, *, known: bool) -> bool:
    """Whether the store knows nothing of a repository that was run before."""
    if known:
        return store.view(controller.ADOPTION) == b"pending"
    try:
        return notes.exist(repository)
    except (gitobjects.GitError, OSError) as error:
        log.warning("can't tell whether the repository was run before: %s", error)
        return False


def _records(store: stores.Store) -> records.Observed | None:
    """The records as of the last commit, None where they can't be read."""
    try:
        return store.observed(0.0)
    except store_errors.StoreError:
        log.exception("the records can't be read to judge a change")
        return None


def _watch(address: str, reading: RepositoryThread) -> watch.LocalWatch | None:
    """See changes of a repository on this machine at once; others are polled."""
    if not source.is_local(address):
        return None
    try:
        return watch.LocalWatch(Path(address), reading.changed)
    except (gitobjects.GitError, OSError) as error:
        log.warning("%s can't be watched and is polled instead: %s", address, error)
        return None


def _notifier(options: argparse.Namespace) -> delivery.Notifier:
    return delivery.Notifier(
        options.notify_secrets or options.state / "notify",
        options.state / "notified.json",
        clock=time.time,
        monotonic=time.monotonic,
        random=random.random,
    )


def _reading(
    options: argparse.Namespace,
    store: stores.Store,
    repository: source.Source,
    before: incumbents.Incumbents,
    *,
    inbox: inboxes.Inbox,
    notifier: delivery.Notifier,
) -> RepositoryThread:
    """What brings revisions from the repository to the loop, on from those accepted ``before``."""
    return RepositoryThread(
        repository,
        loader.Loader(
            repository,
            before,
            accept_revision=options.accept_revision,
            gate=safety.Safety(lambda: _records(store), time.time),
        ),
        inbox,
        watch.Polling(random=random.random, clock=time.monotonic, interval_s=options.poll),
        allow_root=options.allow_root,
        audit=auditing.Log(options.state / auditing.FILE),
        notifier=notifier,
    )


def run(options: argparse.Namespace, lines: logs.EventLines | None = None) -> int:
    """Run the controller until SIGTERM or SIGINT; ``lines`` writes what happens."""
    if options.die_with_parent is not None:
        die_with(options.die_with_parent)
    options.state = options.state.resolve()
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    store_url = options.store or f"sqlite:///{options.state / 'store.db'}"
    store = stores.Store.open(store_url)
    with contextlib.closing(store):
        epoch = store.lead(f"{socket.gethostname()}:{os.getpid()}", time.time())
        repository = source.Source(
            options.repo,
            branch=options.branch,
            sub_path=options.path,
            state=options.state,
        )
        packed = store.incumbents()
        before = incumbents.decode(packed) if packed else incumbents.Incumbents()
        inbox = inboxes.Inbox()
        notifier = _notifier(options)
        reading = _reading(options, store, repository, before, inbox=inbox, notifier=notifier)
        watching = _watch(options.repo, reading)
        scripts = options.provisioners.resolve() if options.provisioners else None
        running = runner.Runner(scripts, options.state / "provisioning", inbox.put_provisioned)
        loop = controller.Loop(
            store=store,
            epoch=epoch,
            socket_path=options.state / "loop.sock",
            inbox=inbox,
            hint=reading.hint,
            adopting=_is_adoption(store, repository, known=packed is not None),
            structure=before.basis.structure if before.basis else desired.Structure(),
            provision=running.want,
            event_lines=lines,
            told=notifier.counts,
            happened=functools.partial(happenings.tell, notifier),
        )
        server = ServerProcess(server_command(options, store_url), options.state / "server.log")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: loop.stop())
        notifier.start()
        reading.start()
        server.start()
        collecting.settle()
        try:
            loop.run()
        finally:
            server.stop()
            reading.stop()
            notifier.stop()
            running.stop()
            if watching is not None:
                watching.close()
    return 0


def main() -> None:
    """Entry point of ``python -m reconciler.daemon``."""
    options = parser().parse_args()
    faulthandler.enable()  # a crash in compiled code says where it was
    lines = logs.configure(options.log_format, options.log_level, "loop")
    try:
        sys.exit(run(options, lines))
    except store_errors.StoreError as error:
        print(f"muster controller: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()

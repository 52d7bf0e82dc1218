"""The controller process: opens the store, leads, follows the repository, runs loop and server.

``muster controller`` and ``muster up`` start it as ``python -m reconciler.controller.process``. The
loop has the main thread, the git watcher has a thread, and the server is a process of its own that
is restarted when it dies.
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
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from agents.logs import rotation
from reconciler import __version__, interpreter, log_format
from reconciler.changes import lead_records
from reconciler.controller import (
    control_loop,
    controller_options,
    cycle_decider,
    ephemeral_runs,
    git_watcher,
    lead_claim,
    loop_inbox,
)
from reconciler.controller.host import (
    full_disk,
    gc_tuning,
    kept_lease,
    personal_notices,
    proof_key,
)
from reconciler.controller.quarantine import cycle_rescue
from reconciler.core import reconcile
from reconciler.core.safety import sync_limits
from reconciler.desired.apply import last_good, loader
from reconciler.desired.git import git_commands, remote_urls, source, watch
from reconciler.engines import assignment_proofs
from reconciler.model.state import adoption_state, outcome, records, states
from reconciler.model.values import addresses
from reconciler.notifications import delivery, triggers
from reconciler.operations.audit import audit_log
from reconciler.operations.local import log_files
from reconciler.operations.tokens import hook_secret, token_file
from reconciler.provisioning import runner
from reconciler.store import errors, sql_store

log = logging.getLogger("muster.controller")

#: Waits before a server that dies at once is restarted: doubled each time up to the maximum.
RESTART_WAIT_S_MIN = 0.2
RESTART_WAIT_S_MAX = 10.0
#: How long the end waits for the current load or note.
STOP_S_MAX = 5.0
#: How often the size of the server's log is read.
LOG_LOOK_S = 30.0
_PR_SET_PDEATHSIG = 1
#: What the controller writes is its own, whoever starts it.
UMASK = 0o077
#: The server pushes to repositories on this machine, whose files others must be able to read. What
#: it writes in the state folder names its mode.
SERVER_UMASK = 0o022


class ServerProcess:
    """A process beside the loop that is restarted until it is stopped: the server, or the relay."""

    def __init__(self, command: list[str], log_path: Path, name: str = "server") -> None:
        self._name = name
        self._command = command
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    def start(self) -> None:
        """Start the server, and restart it whenever it dies."""
        self._thread.start()

    def stop(self) -> None:
        """End the server and wait for it."""
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
            log.warning(
                "the %s ended with %s (see %s); restarting it in %.1f s",
                self._name,
                ended,
                self._log_path.name,
                wait_s,
            )
            self._stopping.wait(wait_s)
            wait_s = min(wait_s * 2, RESTART_WAIT_S_MAX)

    def _run_once(self) -> int:
        """Start the server and wait until it ends."""
        with os.fdopen(rotation.append_private(self._log_path), "ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                umask=SERVER_UMASK,
            )
        if self._stopping.is_set():
            self._process.terminate()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(timeout=LOG_LOOK_S)
            log_files.bound(self._log_path)


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def server_command(options: argparse.Namespace, store_url: str) -> list[str]:
    """Return the command line of the server process."""
    command = [
        *interpreter.module_command("reconciler.server"),
        "--store",
        store_url,
        "--link",
        str(options.state / "loop.sock"),
        "--listen",
        options.listen,
        "--token-file",
        str(options.token_file),
        "--state",
        str(options.state),
        *("--repository", options.repo, "--branch", options.branch, "--path", options.path),
        "--parent",
        str(os.getpid()),
        "--log-format",
        options.log_format,
        "--log-level",
        options.log_level,
        *personal_notices.server_options(options),
    ]
    if options.signing_key is not None:
        command += ["--signing-key", str(options.signing_key.resolve())]
    if options.tls_cert is not None:
        command += ["--tls-cert", str(options.tls_cert), "--tls-key", str(options.tls_key)]
    if options.hook_secret is not None:
        command += ["--hook-secret", str(options.hook_secret)]
    if options.any_node_token:
        command.append("--any-node-token")
    return command


def relay_command(options: argparse.Namespace) -> list[str]:
    """Return the command line of the relay of sessions."""
    command = [
        *interpreter.module_command("reconciler.server.relay"),
        *("--listen", options.relay_listen or _next_port(options.listen)),
        *("--state", str(options.state), "--parent", str(os.getpid())),
        *("--log-format", options.log_format, "--log-level", options.log_level),
    ]
    if options.tls_cert is not None:
        command += ["--tls-cert", str(options.tls_cert), "--tls-key", str(options.tls_key)]
    return command


def _next_port(listen: str) -> str:
    """Return the address with the port after that of the API, or any if that is the last."""
    host, port = addresses.parse(listen)
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port + 1 if 0 < port < 65_535 else 0}"


def _identity(store: sql_store.Store) -> tuple[str, bool]:
    """Return the identity of a store, and True if it is a copy of another one."""
    own = (store.reader.view(adoption_state.IDENTITY) or b"").decode()
    copied = bool(store.reader.view(adoption_state.COPIED))
    return (uuid.uuid4().hex if copied or not own else own), copied


def _repository(options: argparse.Namespace) -> source.GitSource:
    return source.GitSource(
        options.repo, branch=options.branch, sub_path=options.path, state=options.state
    )


def _adoption(store: sql_store.Store, *, empty: bool, copied: bool) -> adoption_state.AdoptionState:
    """Return what is to be adopted, before git was asked."""
    kept = adoption_state.decode(store.reader.view(adoption_state.VIEW))
    return adoption_state.at_start(kept, empty=empty, copied=copied)


def _records(store: sql_store.Store) -> records.Observed | None:
    """Return the records of the last commit, or None if they can't be read."""
    try:
        return store.reader.observed(0.0)
    except errors.StoreError:
        log.exception("can't read the records to judge a change")
        return None


def _begun(store: sql_store.Store, names: Collection[str]) -> dict[str, str]:
    """Return the keys of the newest runs that have begun, by job; empty if they can't be read."""
    try:
        found = store.reader.newest_states(names)
    except errors.StoreError:
        log.exception("can't read the records to judge %d jobs", len(names))
        return {}
    waiting = states.WAITING_JOB_STATES
    return {name: key for name, (key, state) in found.items() if state not in waiting}


def _watch(address: str, watcher: git_watcher.GitWatcher) -> watch.LocalWatch | None:
    """Watch a repository on this machine. Return None if it has to be polled."""
    if not source.is_local(address):
        return None
    try:
        return watch.LocalWatch(Path(address), watcher.changed)
    except (git_commands.GitError, OSError) as error:
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


def _git_watcher(
    options: argparse.Namespace,
    store: sql_store.Store,
    repository: source.GitSource,
    before: last_good.LastGood,
    *,
    inbox: loop_inbox.Inbox,
    notifier: delivery.Notifier,
) -> git_watcher.GitWatcher:
    """Return the git watcher, which continues after the revisions accepted in ``before``."""
    return git_watcher.GitWatcher(
        repository,
        loader.Loader(
            repository,
            before,
            accept_revision=options.accept_revision,
            gate=sync_limits.SafetyGate(lambda: _records(store), time.time),
            begun=lambda names: _begun(store, names),
        ),
        inbox,
        watch.Polling(random=random.random, clock=time.monotonic, interval_s=options.poll),
        allow_root=options.allow_root,
        audit=audit_log.Log(options.state / audit_log.FILE),
        notifier=notifier,
    )


def _provisioner(options: argparse.Namespace, inbox: loop_inbox.Inbox) -> runner.Runner:
    scripts = options.provisioners.resolve() if options.provisioners else None
    return runner.Runner(scripts, options.state / "provisioning", inbox.put_provisioned)


def _tell_start(epoch: int, options: argparse.Namespace) -> None:
    """Log what runs where, without addresses, because they may hold passwords.

    Whether it leads, git says later.
    """
    place = f"its state in {options.state}, its API at {options.listen}"
    log.info("controller %s has begun epoch %d of its store, %s", __version__, epoch, place)


def run(
    options: argparse.Namespace,
    lines: log_format.EventLines | None = None,
    decide: Callable[..., outcome.Outcome] = reconcile.reconcile,
) -> int:
    """Run the controller until SIGTERM or SIGINT.

    Args:
        options: as ``controller_options.parser`` returns them.
        lines: writes events.
        decide: the core.
    """
    if options.die_with_parent is not None:
        die_with(options.die_with_parent)
    options.state = options.state.resolve()
    try:
        options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = error.strerror or str(error)
        raise errors.StoreError(f"--state {options.state} can't be created: {why}") from error
    store_url = options.store or f"sqlite:///{options.state / 'store.db'}"
    store = sql_store.Store.open(store_url)
    with contextlib.closing(store):
        _lead(options, store, store_url, lines, decide)
    return 0


def _lead(
    options: argparse.Namespace,
    store: sql_store.Store,
    store_url: str,
    lines: log_format.EventLines | None,
    decide: Callable[..., outcome.Outcome],
) -> None:
    """Lead a store until told to stop."""
    repository = _repository(options)
    packed = store.reader.incumbents()
    identity, copied = _identity(store)
    host = socket.gethostname()
    epoch = store.lead(f"{host}:{os.getpid()}", time.time())
    before = last_good.decode(packed) if packed else last_good.LastGood()
    inbox = loop_inbox.Inbox()
    notifier, people = _notifier(options), personal_notices.people(options)
    watcher = _git_watcher(options, store, repository, before, inbox=inbox, notifier=notifier)
    watcher.watching = _watch(options.repo, watcher)
    place = lead_claim.lock_place(options.state)
    led = lead_claim.LedBy(identity, epoch, store.cycle, packed is None, host, place)
    keys = proof_key.load(options.state, store.reader.view(adoption_state.PROOF_KEY))
    noted = ephemeral_runs.EphemeralRuns(repository, keys, options.state, inbox.on_adopted)
    watcher.claim = _claim(repository, led, options.state, store, inbox, noted=noted)
    provisioner = _provisioner(options, inbox)
    loop = control_loop.Loop(
        led=sql_store.LedStore(store, epoch),
        socket_path=options.state / "loop.sock",
        inbox=inbox,
        start=control_loop.LoopStart(
            before=git_watcher.allow_root_everywhere(
                cycle_rescue.accepted_in(before), allowed=options.allow_root
            ),
            accepted=packed or b"",
            adoption=_adoption(store, empty=packed is None, copied=copied),
            proofs=assignment_proofs.AssignmentProofs(keys[0], keys[1:]),
        ),
        outputs=control_loop.LoopOutputs(
            provision=provisioner.want,
            event_lines=lines,
            notice_counts=notifier,
            on_outcome=noted.first(functools.partial(triggers.tell_all, notifier, people)),
            refuse=watcher.refuse,
            on_hint=watcher.hint,
        ),
        core=cycle_decider.CoreOptions(decide, contained=True),
    )
    server = ServerProcess(server_command(options, store_url), options.state / "server.log")
    relay = ServerProcess(relay_command(options), options.state / "relay.log", "relay")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    for one in (notifier.start, people.start, watcher.start, server.start, relay.start):
        one()
    gc_tuning.settle()
    _tell_start(epoch, options)
    try:
        loop.run()
    finally:
        _end((server, relay), watcher, notifier, provisioner)
        people.stop()


def _claim(
    repository: source.GitSource,
    led: lead_claim.LedBy,
    state: Path,
    store: sql_store.Store,
    inbox: loop_inbox.Inbox,
    *,
    noted: ephemeral_runs.EphemeralRuns,
) -> lead_claim.LeadClaim:
    """Return what tells git that a store leads."""
    return lead_claim.LeadClaim(
        *(lead_records.RecordPlace(repository), led, kept_lease.KeptLease(state, led.place)),
        cycle=lambda: store.cycle,
        tell=inbox.put_verdict,
        noted=noted,
    )


def _end(
    processes: Sequence[ServerProcess],
    watcher: git_watcher.GitWatcher,
    notifier: delivery.Notifier,
    provisioner: runner.Runner,
) -> None:
    """Stop everything that runs beside the loop."""
    log.info("controller stops; tasks on nodes continue")
    for one in processes:
        one.stop()
    watcher.stop()
    watcher.join(timeout=STOP_S_MAX)
    notifier.stop()
    provisioner.stop()
    if watcher.watching is not None:
        watcher.watching.close()


def main(decide: Callable[..., outcome.Outcome] = reconcile.reconcile) -> None:
    """Run ``python -m reconciler.controller.process``; ``decide`` is the core."""
    os.umask(UMASK)
    options = controller_options.parser().parse_args()
    faulthandler.enable()  # a crash in compiled code says where it was
    lines = log_format.configure(options.log_format, options.log_level, "loop")
    try:
        addresses.parse(options.listen)
        if options.relay_listen:
            addresses.parse(options.relay_listen)
        remote_urls.require_no_password(options.repo)
        controller_options.resolve_tls_pair(options)
        personal_notices.check(options)
        options.token_file = token_file.prepare(
            options.token_file, options.state, any_node=options.any_node_token
        )
        if options.hook_secret is not None:
            options.hook_secret = options.hook_secret.absolute()  # a link may lead elsewhere later
            hook_secret.read(options.hook_secret)
    except ValueError as error:  # so are TokenError and HookSecretError
        controller_options.parser().error(str(error))
    try:
        sys.exit(run(options, lines, decide))
    except errors.StoreError as error:
        _say_last(options, str(error))
        if type(error) in {errors.StoreError, errors.FullError}:
            _wait_for_room(options)
        sys.exit(1)
    except OSError as error:
        if error.errno not in full_disk.ERRNOS:
            raise
        _say_last(options, f"{error}; make room on the disk of {options.state}")
        _wait_for_room(options)
        sys.exit(1)


def _wait_for_room(options: argparse.Namespace) -> None:
    """Wait while the disk of the state folder is full. A signal ends the process."""
    if not full_disk.is_full(options.state, full_disk.free):
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _say_last(options, full_disk.wait(options.state, full_disk.free, time.sleep))


def _say_last(options: argparse.Namespace, text: str) -> None:
    """Log why the controller ends. A full disk may not take the line."""
    if options.log_format == "readable":
        with contextlib.suppress(OSError):
            print(f"muster controller: {text}", file=sys.stderr, flush=True)  # noqa: T201
    else:
        log.critical("%s", text)


if __name__ == "__main__":
    main()

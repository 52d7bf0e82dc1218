"""Commands that wait: ``run`` a command on the cluster as if it ran here, ``wait`` for jobs."""

from __future__ import annotations

import contextlib
import enum
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import changing, completing, context, lazily, patience, submitwords, terminal

if TYPE_CHECKING:
    from reconciler.operations import authoring
    from reconciler.operations import changing as operations
    from reconciler.operations import client as clients
else:
    authoring = lazily.module("reconciler.operations.authoring")
    operations = lazily.module("reconciler.operations.changing")
    clients = lazily.module("reconciler.operations.client")

#: Exit codes of ``run`` (INTERFACES): time limit, and Muster itself.
TIMED_OUT, MUSTER_FAILED = 124, 125
#: How long one look for the end of a job waits for events.
LOOK_S = 20.0
#: Within what time the same signal is one request.
ONCE_S = 0.2
#: How long after its cancellation a job may take to end before nobody waits for it any more.
END_S_MAX = 120.0
#: How long a job that the controller does not know may take to appear: it reads commits at once.
UNKNOWN_S_MAX = 15.0
#: After how long of that it is told.
UNKNOWN_TOLD_S = 5.0
#: How long `wait` looks for a name after it has asked the controller to look at git once more.
APPEAR_S_MAX, APPEAR_EVERY_S = 5.0, 0.25
#: How long a job that could never start stays: nodes may be about to report for the first time.
IMPOSSIBLE_S_MAX = 30.0
#: Reasons that no waiting ends: only another commit does.
IMPOSSIBLE = frozenset({"Invalid", "NotAllowed", "NoUnixUser", "DependencyNeverMet", "NeverFits"})
#: Ends of a task that are its own doing, and its status that of `muster run`.
OWN_WILL = ("Exited", "StartFailed", "OutOfMemory")
FINISHED = frozenset({"Succeeded", "Failed", "Cancelled", "TimedOut"})

Json = Any


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(context_settings={"allow_interspersed_args": False})(run)
    app.command()(wait)


def run(
    command: Annotated[list[str], typer.Argument(help="The command, behind --.")],
    *,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Name of the job.")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue.", autocompletion=completing.queues)
    ] = None,
    gpus: Annotated[
        float | None, typer.Option("--gpus", "-g", help="GPUs of a task; 0.5 is half of one.")
    ] = None,
    cpus: Annotated[str | None, typer.Option("--cpus", "-c", help="CPUs of a task.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory of a task.")] = None,
    tasks: Annotated[
        int | None, typer.Option("--nodes", "--tasks", "-N", help="Tasks that start together.")
    ] = None,
    time_limit: submitwords.TimeLimit = None,
    priority: Annotated[
        str | None, typer.Option("--priority-class", help="Priority class.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="torchrun, mpi, jax, …; see the kind Job.")
    ] = None,
    clone: changing.Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Run a command on the cluster as if it ran here.

    Of several tasks the first one's output comes as it is written, that of the others at the
    end, each line behind the task's name.

    128 + N: ended by signal N. 124: time limit. 125: Muster itself failed. Ctrl-C cancels, and so
    does SIGTERM: what it still prints is shown until it has ended; a second Ctrl-C leaves at once.
    Where nobody reads the output any more, as behind `| head`, it is cancelled as well: 141.
    What could never start is cancelled after half a minute, with its reason.

    Example: muster run --gpus 1 -- nvidia-smi
    """
    options = authoring.JobOptions(
        name=name or authoring.name_from(Path(command[0]).stem, secrets.token_hex(3)),
        command=tuple(command),
        queue=queue,
        owner=context.identity(),
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        count=tasks,
        time_limit=submitwords.time_limit(time_limit),
        priority_class=priority,
        framework=framework,
    )
    raise typer.Exit(_carry_through(options, clone, server, token_file))


def _carry_through(
    options: authoring.JobOptions, clone: Path | None, server: str | None, token_file: str | None
) -> int:
    """Submit, wait and show; the status to leave with."""
    leaving = _Leaving(lambda: _cancel(options.name, to, "interrupted", 0))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leaving.asked)
    try:
        to = operations.find_target(
            clone=clone, server=server, token_file=token_file, here=Path.cwd()
        )
        if submitwords.has_input():
            terminal.note("standard input does not reach a job: it is not read")
        leaving.about_to_submit()
        operations.carry_out([operations.Submit(text=authoring.job_text(options))], to)
        leaving.submitted()
        terminal.note(f"submitted {options.name}")
        with context.controller(server, token_file) as api:
            patient = patience.Patient(api, answered=True)
            return leaving.status(_attend(patient, options.name))
    except _Interrupted:  # first: the others' modules may be half loaded
        return leaving.at_once(options.name)
    except operations.ChangeError as error:
        if leaving.is_before:  # Ctrl-C ends git as well
            return leaving.at_once(options.name)
        terminal.fail(str(error), MUSTER_FAILED, error.problems)
    except _ImpossibleError as impossible:
        terminal.note(f"{options.name} can't start: {impossible}")
        return _cancel(options.name, to, "it could never start", MUSTER_FAILED)
    except BrokenPipeError:  # before it ends a command here would be ended so as well
        terminal.drop_stdout()
        terminal.note("nobody reads the output any more")
        return _cancel(options.name, to, "nobody read its output", 128 + signal.SIGPIPE)
    except OSError as error:
        if not terminal.is_unwritable(error):
            raise
        terminal.drop_stdout()
        told = f"its output can't be written here: {error.strerror}"
        terminal.note(f"muster: {told}; {_goes_on([options.name])}")
        return MUSTER_FAILED
    except patience.GoneError as error:
        terminal.note(f"muster: {error}; {_goes_on([options.name])}")
        return MUSTER_FAILED
    except typer.Exit:
        terminal.note(f"{options.name} may still run: muster job {options.name}")
        return MUSTER_FAILED


def _goes_on(names: list[str]) -> str:
    """What is true of jobs that nobody watches any more."""
    go, them = ("goes", names[0]) if len(names) == 1 else ("go", " ".join(names))
    return f"{', '.join(names)} {go} on without this command: muster wait {them}"


class _Interrupted(KeyboardInterrupt):
    """This process is to end now."""


class _ImpossibleError(Exception):
    """A job waits for what will not come."""


class _Stage(enum.Enum):
    """How far it is: whether there is a job."""

    BEFORE = enum.auto()
    SUBMITTING = enum.auto()
    SUBMITTED = enum.auto()


class _Leaving:
    """What becomes of signals: the first cancels the job, whose end is awaited, the next leaves.

    Args:
        cancel: takes the job back; 0 when that is done. It runs beside what shows the output.
    """

    def __init__(self, cancel: Callable[[], int]) -> None:
        self._cancel = cancel
        self._stage = _Stage.BEFORE
        self._signal = 0
        self._asked_at = 0.0
        self._is_over = False
        self._failed = False
        self._cancelled = threading.Event()

    @property
    def is_before(self) -> bool:
        """Whether a signal came before there could be a job."""
        return bool(self._signal) and self._stage is _Stage.BEFORE

    def about_to_submit(self) -> None:
        """From here on there may be a job.

        Raises:
            _Interrupted: a signal came before, so that there need be none.
        """
        if self._signal:
            raise _Interrupted
        self._stage = _Stage.SUBMITTING

    def submitted(self) -> None:
        """From here on there is a job to cancel."""
        self._stage = _Stage.SUBMITTED
        if self._signal:
            self._begin()

    def asked(self, number: int, _frame: FrameType | None) -> None:
        """A signal came."""
        now = time.monotonic()
        if self._is_over:
            raise _Interrupted
        if self._signal:
            # who signals a process and its group, as timeout(1) does, asks once and is heard twice
            if number == self._signal and now - self._asked_at < ONCE_S:
                return
            raise _Interrupted
        self._signal, self._asked_at = number, now
        if self._stage is _Stage.SUBMITTED:
            self._begin()

    def status(self, code: int) -> int:
        """What to leave with: the job's status, unless it was taken back."""
        if not self._signal:
            return code
        self._cancelled.wait(END_S_MAX)
        return MUSTER_FAILED if self._failed else 128 + self._signal

    def at_once(self, name: str) -> int:
        """What to leave with where nobody waits for the end of the job."""
        if self._stage is _Stage.BEFORE:
            return 128 + self._signal
        if not self._cancelled.is_set():
            terminal.note(f"{name} may still run: muster cancel {name}")
        elif not self._failed:
            terminal.note(f"{name} is cancelled and has not ended yet")
        return MUSTER_FAILED if self._failed else 128 + self._signal

    def _begin(self) -> None:
        threading.Thread(target=self._carry_out, daemon=True).start()

    def _carry_out(self) -> None:
        self._failed = self._cancel() != 0
        self._cancelled.set()
        if not self._failed:
            time.sleep(END_S_MAX)  # a job that ends before ends this process
        self._is_over = True
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGINT)


def _cancel(name: str, to: operations.Target, reason: str, code: int) -> int:
    """Take a job back that nobody waits for any more; the status to leave with."""
    terminal.note(f"cancelling {name}")
    try:
        operations.carry_out([operations.Act("cancel", name, reason)], to)
    except operations.ChangeError as error:
        terminal.note(f"{name} could not be cancelled and may run on: {error}")
        return MUSTER_FAILED
    return code


def _attend(api: patience.Patient, name: str) -> int:
    """Print the job's output as it comes; its status at the end."""
    waiting = ("Pending", "Held")
    job = _until(api, name, lambda item: item["state"] not in waiting, give_up=True)
    first = job["attempts"][0]["task"] if job["attempts"] else ""
    if job["state"] in FINISHED and not first:
        terminal.note(f"{name} {job['state']}: {job['message'] or 'nothing of it has run'}")
        return status_of(job)
    for stream, sink in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        query = {"stream": stream, "follow": "true" if stream == "stdout" else "false"}
        if first:
            query["task"] = first
        follows = stream == "stdout"
        try:
            for piece in (
                api.follow(name, query) if follows else api.stream(f"/v1/jobs/{name}/logs", query)
            ):
                sink.buffer.write(piece)
                sink.buffer.flush()
        except clients.ApiError as error:
            terminal.note(f"its {stream} can't be read: {error}")
        if stream == "stdout":
            job = _until(api, name, lambda item: item["state"] in FINISHED)
    for task in sorted({attempt["task"] for attempt in job["attempts"]} - {first}):
        _print_rest(api, name, task)
    if job["state"] != "Succeeded":
        terminal.note(f"{name} {job['state']}: {job['message'] or 'see muster job ' + name}")
    return status_of(job)


def _print_rest(api: patience.Patient, name: str, task: str) -> None:
    """What another task wrote, each line behind its name."""
    for stream, sink in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        query = {"stream": stream, "task": task}
        try:
            text = b"".join(api.stream(f"/v1/jobs/{name}/logs", query))
        except clients.ApiError as error:
            terminal.note(f"{stream} of {task} can't be read: {error}")
            continue
        for line in text.decode(errors="replace").splitlines():
            sink.write(f"{task}: {line}\n")


def status_of(job: Json) -> int:
    """The exit status that stands for what became of a job."""
    if job["state"] == "Succeeded":
        return 0
    if job["state"] == "TimedOut":
        return TIMED_OUT
    if job["state"] == "Cancelled":
        return 128 + signal.SIGTERM
    ended = [a for a in job["attempts"] if a["state"] == "Ended"]
    own_will = [a for a in ended if a["endReason"] in OWN_WILL]
    for attempt in sorted(own_will, key=lambda a: a["ended"] or ""):
        if attempt["signal"]:
            return 128 + int(attempt["signal"])
        if attempt["exitCode"]:
            return int(attempt["exitCode"])
    return MUSTER_FAILED


def _until(
    api: patience.Patient,
    name: str,
    condition: Any,
    ends_at: float | None = None,
    *,
    give_up: bool = False,
) -> Json:
    """The job as soon as ``condition`` holds of it; None when the time is up before.

    Raises:
        _ImpossibleError: with ``give_up``, when it has not been possible for a while.
    """
    after: int | None = None
    told = ""
    unknown_until = time.monotonic() + UNKNOWN_S_MAX
    impossible_until: float | None = None
    while ends_at is None or time.monotonic() < ends_at:
        try:
            job = api.get(f"/v1/jobs/{name}")["job"]
        except clients.ApiError as error:
            if error.status != 404 or time.monotonic() > unknown_until:
                raise
            job = None
        if job is not None and condition(job):
            return job
        if job is not None and job["reasons"]:
            reason = f"{job['reasons'][0]['code']}: {job['reasons'][0]['message']}"
            if reason != told:
                told = reason
                terminal.note(f"{name} waits: {terminal.clocks(reason)}")
        late = time.monotonic() > unknown_until - UNKNOWN_S_MAX + UNKNOWN_TOLD_S
        if job is None and late and told != "unknown":
            told = "unknown"
            left = f"waiting up to {UNKNOWN_S_MAX:.0f}s for it, as for what was just committed"
            terminal.note(f"{name} is not known to the controller yet; {left}")
        hopeless = _hopeless(job) if give_up and job is not None else ""
        if not hopeless:
            impossible_until = None
        elif impossible_until is None:
            impossible_until = time.monotonic() + IMPOSSIBLE_S_MAX
        elif time.monotonic() > impossible_until:
            raise _ImpossibleError(hopeless)
        left_s = LOOK_S if ends_at is None else min(LOOK_S, max(0.0, ends_at - time.monotonic()))
        if job is None or hopeless:
            left_s = min(left_s, 1.0)
        page = api.get(
            "/v1/events", job=name, after=after, wait_s=left_s if after is not None else None
        )
        after = page["next"]
    return None


def _hopeless(job: Json) -> str:
    """The reason that no waiting ends, where there is one."""
    for reason in job["reasons"]:
        if reason["code"] in IMPOSSIBLE:
            return f"{reason['code']}: {reason['message']}"
    return ""


def wait(
    names: Annotated[
        list[str], typer.Argument(help="Names of jobs.", autocompletion=completing.jobs)
    ],
    *,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Give up after this time, such as 10m.")
    ] = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Wait until jobs have ended.

    0: all succeeded. 1: not all, or there is none of a name. 124: the time was up. 125: the
    controller can't be reached, or did not come back within a minute.

    Example: muster wait train evaluate --timeout 2h
    """
    ends_at = time.monotonic() + context.seconds(timeout) if timeout else None
    with context.controller(server, token_file) as api:
        try:
            failed = _ended_badly(patience.Patient(api, ends_at=ends_at), names, ends_at, timeout)
        except (patience.GoneError, clients.ApiError) as error:
            if isinstance(error, clients.ApiError) and not error.unreachable:
                raise
            if ends_at is not None and time.monotonic() > ends_at:
                terminal.fail(f"not all have ended after {timeout}, and {error}", TIMED_OUT)
            terminal.fail(f"{error}; {_goes_on(names)}", MUSTER_FAILED)
    raise typer.Exit(terminal.ERROR if failed else terminal.DONE)


def _ended_badly(
    api: patience.Patient, names: list[str], ends_at: float | None, timeout: str | None
) -> list[str]:
    """Wait for jobs and tell each one's end; those that did not succeed."""
    _require_known(api, names)
    failed = []
    for name in names:
        job = _until(api, name, lambda item: item["state"] in FINISHED, ends_at)
        if job is None:
            terminal.fail(f"{name} has not ended after {timeout}", TIMED_OUT)
        terminal.out.print(f"{name}: {job['state']}", markup=False)
        if job["state"] != "Succeeded":
            failed.append(name)
    return failed


def _require_known(api: patience.Patient, names: list[str]) -> None:
    """Leave the command where the controller knows no job of a name.

    What was committed just now it may not have read: it is asked to look, and given a few seconds.
    """
    missing = _missing(api, names)
    if not missing:
        return
    known = "is" if len(missing) == 1 else "are"
    terminal.note(
        f"{', '.join(missing)} {known} not known to the controller yet; it looks at git again, for "
        f"what was just committed: {APPEAR_S_MAX:.0f}s"
    )
    with contextlib.suppress(clients.ApiError):  # a hint: it may be looking already
        api.post("/v1/hooks/git")
    ends_at = time.monotonic() + APPEAR_S_MAX
    while missing and time.monotonic() < ends_at:
        time.sleep(APPEAR_EVERY_S)
        missing = _missing(api, list(missing))
    if missing:
        first, *others = missing.values()
        terminal.fail(first, details=others)


def _missing(api: patience.Patient, names: list[str]) -> dict[str, str]:
    """Those of some names that no job has, with what the controller says of each."""
    found = {}
    for name in names:
        try:
            api.get(f"/v1/jobs/{name}")
        except clients.ApiError as error:
            if error.status != 404:
                raise
            found[name] = str(error)
    return found

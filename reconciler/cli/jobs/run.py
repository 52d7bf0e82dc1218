"""The command `muster run`: run a command on the cluster, with its output and its exit code."""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import context, interrupts, lazy_import, retries, terminal
from reconciler.cli.changes import (
    job_fields,
    submit,
    submit_code,
    submit_options,
    submit_surroundings,
)
from reconciler.cli.jobs import run_output, run_status, run_terminal, wait

if TYPE_CHECKING:
    from reconciler.operations.changes import (
        change_requests,
        job_document,
        local_changes,
        submit_folder,
        targets,
    )
    from reconciler.operations.client import api_client
else:
    job_document = lazy_import.module("reconciler.operations.changes.job_document")
    submit_folder = lazy_import.module("reconciler.operations.changes.submit_folder")
    local_changes = lazy_import.module("reconciler.operations.changes.local_changes")
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    change_requests = lazy_import.module("reconciler.operations.changes.change_requests")

#: Within this time the same signal twice is one request.
ONCE_S = 0.2
#: How long a cancelled job may take to end before this command exits.
END_S_MAX = 120.0
#: How many different messages of attempts are shown at the end.
NOTES_MAX = 3
#: States of a job without running tasks.
NOT_STARTED = ("Pending", "Held")

Json = Any


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(cls=submit_options.DashDashCommand)(run)


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")],
    *,
    name: job_fields.Name = None,
    queue: job_fields.Queue = None,
    gpus: job_fields.Gpus = None,
    cpus: job_fields.Cpus = None,
    memory: job_fields.Memory = None,
    nodes: submit_options.Nodes = None,
    tasks: submit_options.Tasks = None,
    time_limit: submit_options.TimeLimit = None,
    signal_name: submit_options.Signal = None,
    priority: job_fields.PriorityClass = None,
    framework: job_fields.Framework = None,
    env: submit_surroundings.Env = None,
    export: submit_surroundings.Export = None,
    modules: submit_surroundings.Modules = None,
    depends: job_fields.Depends = None,
    chdir: job_fields.Chdir = None,
    code: submit_code.Code = None,
    image: job_fields.Image = None,
    attempts: job_fields.Retries = None,
    priority_number: job_fields.Priority = None,
    hold: job_fields.Hold = False,
    exclusive: job_fields.Exclusive = False,
    pools: job_fields.Pools = None,
    output: job_fields.OutputFile = None,
    error: job_fields.ErrorFile = None,
    hosts: job_fields.Hosts = None,
    excluded: job_fields.Excluded = None,
    begin: job_fields.Begin = None,
    deadline: job_fields.Deadline = None,
    fields: job_fields.Fields = None,
    pty: Annotated[
        bool, typer.Option("--pty", help="Give the command this terminal, as for a shell.")
    ] = False,
    commit: submit_options.Commit = None,
    clone: submit.Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Run a command on the cluster as if it ran here.

    It starts in this folder, and uses the active Python environment, on nodes that really have
    them: the same machine, or a shared home. `muster job` says where it could not. With --code the
    files go along to any node.

    Output of the first task is shown as it is written; that of other tasks at the end, each line
    after the task's name. Ctrl-C or SIGTERM cancels the job and waits for its end; a second Ctrl-C
    exits at once. If a job of the same name and fields runs already, its output is followed, and it
    is never cancelled. A job that can never start is cancelled after half a minute. Where the
    Cluster allows it, the job gets no file in git, unless there is --commit or --clone.

    With --pty the command has this terminal: every key goes to it, and it ends when the connection
    does. It is one task, which takes the right exec.

    Exit codes: the command's own; 128 + N: ended by signal N; 124: time limit; 125: Muster failed,
    or the command succeeded and not all of its output could be read; 141: nobody reads the output,
    as after `| head`, and the job was cancelled.

    Example: muster run --gpus 1 -- nvidia-smi

    Example: muster run --pty --gpus 1 -- bash

    Example: muster run --code . --tasks 2 --gpus 1 --time 10m -- python3 check.py
    """
    run_terminal.require_terminal(command, pty=pty)
    together, placement = submit_options.spread(nodes, tasks)
    given = job_fields.GivenFields(
        *(depends, chdir, image, attempts, priority_number, pools, hold, exclusive, output, error),
        *(hosts, excluded, begin, deadline),
    )
    options = job_document.JobOptions(
        name=name or job_document.name_from(Path(command[0]).stem, secrets.token_hex(3)),
        command=run_terminal.job_command(command) if pty else tuple(command),
        queue=queue,
        gpus=gpus,
        cpus=cpus,
        memory=submit_options.memory_amount(memory),
        count=together,
        placement=placement,
        time_limit=submit_options.time_limit(time_limit),
        priority_class=priority,
        framework=framework,
        checkpoint=submit_options.checkpoint(signal_name),
        environment=submit_surroundings.variables(env, export, os.environ),
        modules=tuple(modules or ()),
        fields=job_fields.fields_of(given),
        written=job_fields.written_fields(fields),
    )
    submit_options.require_values(job_document.job_text(options))
    packed = submit_code.GivenCode(code, run_status.MUSTER_FAILED)
    options = submit_surroundings.with_place(packed.added_to(options), mark=True)
    packed.send(server, token_file, context.identity(clone))
    place, ephemeral = (server, token_file), submit_options.ephemeral(clone, commit=commit)
    status = _carry_through(options, clone, place, command if pty else (), ephemeral)
    if name is None and status != run_status.MUSTER_FAILED:  # else it may run on, or be repeated
        submit_folder.forget(options.submitted)
    raise typer.Exit(status)


def _carry_through(
    options: job_document.JobOptions,
    clone: Path | None,
    place: tuple[str | None, str | None],
    with_terminal: Sequence[str],
    ephemeral: submit_options.Ephemeral = "no",
) -> int:
    """Submit, wait and show, or run a command ``with_terminal``. Return the exit code."""
    leaving = _Leaving(lambda reason: _cancel(options.name, to, reason))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leaving.asked)
    if interrupts.came():  # and code swallowed the exception: there is no job yet
        return interrupts.STATUS
    try:
        with leaving.quietly():
            to = _find_target(clone, ephemeral, *place)
        leaving.about_to_submit()
        _submit(options, to, leaving, place)
        with submit_options.report_unread_input(), context.controller(*place) as api:
            patient = retries.Patient(api, answered=True)
            code = None
            if with_terminal:
                endpoint = context.endpoint(*place)
                code = run_terminal.attend(patient, api, endpoint, options.name, with_terminal)
            return leaving.status(attend(patient, options.name) if code is None else code)
    except _Interrupted:  # first: the others' modules may be half loaded
        return leaving.at_once(options.name)
    except change_requests.ChangeError as error:
        return leaving.without_a_job(options.name, error)
    except wait.VanishedError as refusal:
        terminal.note(str(refusal))
        return leaving.status(run_status.MUSTER_FAILED)
    except wait.NotAppliedError:
        rest = f"muster wait {options.name}, or muster cancel {options.name}"
        terminal.note(f"{options.name} starts once the commit is applied: {rest}")
        return run_status.MUSTER_FAILED
    except wait.ImpossibleError as impossible:
        terminal.note(f"{options.name} can't start: {impossible}")
        return leaving.give_up(options.name, "it could never start", run_status.MUSTER_FAILED)
    except BrokenPipeError:  # a local command would be ended as well
        terminal.drop_stdout()
        terminal.note("nobody reads the output any more")
        return leaving.give_up(options.name, "nobody read its output", 128 + signal.SIGPIPE)
    except OSError as error:
        if not terminal.is_unwritable(error):
            raise
        terminal.drop_stdout()
        problem = f"the output can't be written here: {error.strerror}"
        terminal.note(f"muster: {problem}; {wait.continues_text([options.name])}")
        return run_status.MUSTER_FAILED
    except retries.GoneError as error:
        terminal.note(f"muster: {error}; {wait.continues_text([options.name])}")
        return run_status.MUSTER_FAILED
    except typer.Exit:
        if leaving.asks_nobody:
            return run_status.MUSTER_FAILED
        terminal.note(f"{options.name} may still run: muster job {options.name}")
        return run_status.MUSTER_FAILED


def _find_target(
    clone: Path | None,
    ephemeral: submit_options.Ephemeral,
    server: str | None,
    token_file: str | None,
) -> targets.ChangeTarget:
    """Return where the job is submitted. Exit if nobody could be asked about it later.

    Raises:
        ChangeError: there is no such place.
    """
    target = local_changes.find_target(
        clone=clone, server=server, token_file=token_file, here=Path.cwd(), ephemeral=ephemeral
    )
    context.endpoint(server, token_file)
    if target.clone is not None and target.standing is None:
        with context.controller(server, token_file) as api:
            api.get("/v1/sync")  # exits before a commit that nobody would follow
    return target


def _submit(
    options: job_document.JobOptions,
    to: targets.ChangeTarget,
    leaving: _Leaving,
    place: tuple[str | None, str | None],
) -> None:
    """Submit the job, or attach to the same one if it runs already, and print which.

    Raises:
        ChangeError: it was not submitted.
        _Interrupted: it existed before, and a signal came.
    """
    owner = context.identity(None if to.clone is None else to.clone.root)
    request = change_requests.Submit(job_document.job_text(options), owner)
    results = local_changes.carry_out([request], to)
    is_mine = not any(map(change_requests.is_there, results))
    made = next(
        (f" ({submit.submitted_as(one, to)})" for one in results if one.commit or one.ephemeral), ""
    )
    terminal.note(
        f"submitted {options.name}{made}" if is_mine else _found_there(options.name, *place)
    )
    for but in (one.but for one in results if one.but):
        terminal.note(f"but {but}")
    leaving.submitted(is_mine=is_mine)
    for warning in (warning for result in results for warning in result.warnings):
        terminal.note(f"warning: {warning}")
    submit.report_withheld(results)


def _found_there(name: str, server: str | None, token_file: str | None) -> str:
    """Return the message about a job that existed before and is followed now.

    Raises:
        ChangeError: the job has ended, so there is nothing to follow.
    """
    with context.controller(server, token_file) as api:
        try:
            state = str(api.get(f"/v1/jobs/{name}")["job"]["state"])
        except api_client.ApiError as error:
            if error.status != 404:  # 404: in git, but not read by the controller yet
                raise
            state = ""
    if state in wait.FINISHED:
        raise change_requests.ChangeError(
            f"job {name} already exists and its run has ended ({state}); nothing was submitted. "
            "To fix: use another --name, or run it again: "
            f"muster rerun {name} && muster wait {name}"
        )
    return f"job {name} already exists; showing its output"


class _Interrupted(KeyboardInterrupt):
    """Error: this process is to end now."""


class _Stage(enum.Enum):
    """Progress of the command: before, during or after submission."""

    BEFORE = enum.auto()
    SUBMITTING = enum.auto()
    SUBMITTED = enum.auto()
    ATTACHED = enum.auto()  # to a job that existed before: this command never cancels it


class _Leaving:
    """Handler of signals: the first cancels the job and waits for its end, the next exits.

    Args:
        cancel: cancels the job with a reason and returns True if that succeeded. It runs beside the
            thread that shows the output.
    """

    def __init__(self, cancel: Callable[[str], bool]) -> None:
        self._cancel = cancel
        self._stage = _Stage.BEFORE
        self._signal = 0
        self._asked_at = 0.0
        self._is_over = False
        self._failed = False
        self._cancelled = threading.Event()

    @property
    def is_before(self) -> bool:
        """True if a signal came before there could be a job."""
        return bool(self._signal) and self._stage is _Stage.BEFORE

    @property
    def asks_nobody(self) -> bool:
        """True if there can be no job yet."""
        return self._stage is _Stage.BEFORE

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """Replace errors that a signal caused. Ctrl-C ends git too, and leaves lazy modules half
        loaded.

        Raises:
            _Interrupted: instead of an error after a signal.
        """
        try:
            yield
        except Exception:
            if self.is_before:
                raise _Interrupted from None
            raise

    def about_to_submit(self) -> None:
        """Record that there may be a job from here on.

        Raises:
            _Interrupted: a signal came before, so that no job is needed.
        """
        if self._signal:
            raise _Interrupted
        self._stage = _Stage.SUBMITTING

    def submitted(self, *, is_mine: bool = True) -> None:
        """Record that there is a job to cancel, unless it existed before.

        Raises:
            _Interrupted: it existed before, and a signal came.
        """
        self._stage = _Stage.SUBMITTED if is_mine else _Stage.ATTACHED
        if self._signal:
            if not is_mine:
                raise _Interrupted
            self._begin()

    def asked(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self._is_over:
            raise _Interrupted
        if self._signal:
            # timeout(1) signals a process and its group, so that one request arrives twice
            if number == self._signal and now - self._asked_at < ONCE_S:
                return
            raise _Interrupted
        self._signal, self._asked_at = number, now
        if self._stage is _Stage.ATTACHED:
            raise _Interrupted
        if self._stage is _Stage.SUBMITTED:
            self._begin()

    def status(self, code: int) -> int:
        """Return the exit code: the job's, unless the job was cancelled by a signal."""
        if not self._signal:
            return code
        self._cancelled.wait(END_S_MAX)
        return run_status.MUSTER_FAILED if self._failed else 128 + self._signal

    def without_a_job(self, name: str, error: change_requests.ChangeError) -> int:
        """Return the exit code after a submission that failed or seems to have failed.

        Raises:
            Exit: the submission failed, and no signal came.
        """
        if not self._signal:
            problems = tuple(map(submit_options.name_option, error.problems))
            terminal.fail(str(error), run_status.MUSTER_FAILED, problems)
        if not self.is_before:  # the signal ended git too, and a push may have succeeded
            terminal.note(f"muster: {error}")
        return self.at_once(name)

    def at_once(self, name: str) -> int:
        """Return the exit code if nobody waits for the end of the job."""
        if self._stage is _Stage.BEFORE:
            return 128 + self._signal
        if self._stage is _Stage.ATTACHED:
            terminal.note(f"{wait.continues_text([name])}; it existed before this command")
            return 128 + self._signal
        if not self._cancelled.is_set():
            terminal.note(f"{name} may still run: muster cancel {name}")
        elif not self._failed:
            terminal.note(f"{name} is cancelled and has not ended yet")
        return run_status.MUSTER_FAILED if self._failed else 128 + self._signal

    def give_up(self, name: str, reason: str, code: int) -> int:
        """Cancel the job if this command submitted it. Return the exit code."""
        if self._stage is _Stage.ATTACHED:
            terminal.note(f"{wait.continues_text([name])}; it existed before this command")
            return code
        return code if self._cancel(reason) else run_status.MUSTER_FAILED

    def _begin(self) -> None:
        threading.Thread(target=self._carry_out, daemon=True).start()

    def _carry_out(self) -> None:
        self._failed = not self._cancel("interrupted")
        self._cancelled.set()
        if not self._failed:
            time.sleep(END_S_MAX)  # if the job ends earlier, this process exits
        self._is_over = True
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGINT)


def _cancel(name: str, to: targets.ChangeTarget, reason: str) -> bool:
    """Cancel a job that nobody waits for any more. Return True if that succeeded."""
    terminal.note(f"cancelling {name}")
    try:
        local_changes.carry_out([change_requests.Act("cancel", name, reason)], to)
    except change_requests.ChangeError as error:
        terminal.note(f"{name} could not be cancelled and may run on: {error}")
        return False
    return True


def attend(api: retries.Patient, name: str) -> int:
    """Print the job's output as it comes. Return its exit code at the end."""
    job = wait.wait_until(api, name, lambda item: item["state"] not in NOT_STARTED, give_up=True)
    first = min((one["task"] for one in job["attempts"]), key=run_status.place_of, default="")
    if job["state"] in wait.FINISHED and not first:
        terminal.note(f"{name} {job['state']}: {job['message'] or 'no task has run'}")
        return run_status.status_of(job)
    output = run_output.RunOutput(api, name)
    output.follow(first)
    job = wait.wait_until(api, name, lambda item: item["state"] in wait.FINISHED)
    output.finish(first)
    for task in sorted(
        {attempt["task"] for attempt in job["attempts"]} - {first}, key=run_status.place_of
    ):
        output.print_rest(task)
    if job["state"] != "Succeeded":
        terminal.note(f"{name} {job['state']}: {job['message'] or 'see muster job ' + name}")
    notes = dict.fromkeys(one["message"] for one in job["attempts"] if one["message"])
    for text in [one for one in notes if one not in job["message"]][:NOTES_MAX]:
        terminal.note(f"{name}: {text}")
    return output.code(run_status.status_of(job))

"""A job that a command submits and follows to its end, and what a signal makes of both.

The first signal cancels the job and waits for its end, the next exits. A job that existed before is
never cancelled, and by some signals a job is left to itself.
"""

from __future__ import annotations

import contextlib
import enum
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from reconciler.cli import context, interrupts, lazy_import, retries, terminal
from reconciler.cli.changes import submit, submit_options
from reconciler.cli.waiting import job_wait
from reconciler.model.rules import past_runs

if TYPE_CHECKING:
    from reconciler.operations.changes import (
        change_requests,
        job_document,
        local_changes,
        targets,
    )
    from reconciler.operations.client import api_client, endpoints
else:
    job_document = lazy_import.module("reconciler.operations.changes.job_document")
    local_changes = lazy_import.module("reconciler.operations.changes.local_changes")
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    change_requests = lazy_import.module("reconciler.operations.changes.change_requests")

#: Within this time the same signal twice is one request.
ONCE_S = 0.2
#: How long a cancelled job may take to end before this command exits.
END_S_MAX = 120.0
#: What a person sends by Ctrl-C, by `kill`, and by closing the terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def carry_through(
    options: job_document.JobOptions,
    clone: Path | None,
    place: tuple[str | None, str | None],
    follow: Callable[[retries.Patient, api_client.ApiClient, endpoints.Endpoint], int],
    *,
    left_by: Collection[int] = (),
    ephemeral: submit_options.Ephemeral = "no",
) -> int:
    """Submit a job, and call ``follow`` until its end for the exit code.

    ``place`` is the controller's URL and the token's file. By the signals ``left_by`` the job is
    left to itself instead of cancelled.
    """
    leaving = JobLeaving(lambda reason: _cancel(options.name, to, reason), left_by)
    for number in SIGNALS:
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
            return leaving.status(follow(patient, api, context.endpoint(*place)))
    except LeaveInterrupt:  # first: the others' modules may be half loaded
        return leaving.at_once(options.name)
    except change_requests.ChangeError as error:
        return leaving.without_a_job(options.name, error)
    except job_wait.VanishedError as refusal:
        terminal.note(str(refusal))
        return leaving.status(terminal.MUSTER_FAILED)
    except job_wait.NotAppliedError:
        rest = f"muster wait {options.name}, or muster cancel {options.name}"
        terminal.note(f"{options.name} starts once the commit is applied: {rest}")
        return terminal.MUSTER_FAILED
    except job_wait.ImpossibleError as impossible:
        terminal.note(f"{options.name} can't start: {impossible}")
        return leaving.give_up(options.name, "it could never start", terminal.MUSTER_FAILED)
    except BrokenPipeError:  # a local command would be ended as well
        terminal.drop_stdout()
        terminal.note("nobody reads the output any more")
        return leaving.give_up(options.name, "nobody read its output", 128 + signal.SIGPIPE)
    except OSError as error:
        if not terminal.is_unwritable(error):
            raise
        terminal.drop_stdout()
        problem = f"the output can't be written here: {error.strerror}"
        terminal.note(f"muster: {problem}; {job_wait.continues_text([options.name])}")
        return terminal.MUSTER_FAILED
    except retries.GoneError as error:
        terminal.note(f"muster: {error}; {job_wait.continues_text([options.name])}")
        return terminal.MUSTER_FAILED
    except typer.Exit:
        if leaving.asks_nobody:
            return terminal.MUSTER_FAILED
        terminal.note(f"{options.name} may still run: muster job {options.name}")
        return terminal.MUSTER_FAILED


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
    leaving: JobLeaving,
    place: tuple[str | None, str | None],
) -> None:
    """Submit the job, or attach to the same one if it runs already, and print which.

    Raises:
        ChangeError: it was not submitted.
        LeaveInterrupt: it existed before, and a signal came.
    """
    owner = context.identity(None if to.clone is None else to.clone.root)
    request = change_requests.Submit(job_document.job_text(options), owner)
    results = local_changes.carry_out([request], to)
    for but in (one.but for one in results if one.but):
        raise change_requests.ChangeError(f"{options.name} is committed, but {but}")
    is_mine = not any(map(change_requests.is_there, results))
    made = next(
        (f" ({submit.submitted_as(one, to)})" for one in results if one.commit or one.ephemeral), ""
    )
    terminal.note(
        f"submitted {options.name}{made}" if is_mine else _found_there(options.name, *place)
    )
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
            job = api.get(f"/v1/jobs/{name}")["job"]
        except api_client.ApiError as error:
            if error.status != 404:  # 404: in git, but not read by the controller yet
                raise
            job = {"state": ""}
    if job["state"] in job_wait.FINISHED:
        again = ""
        if not job["removed"]:
            again = past_runs.again_text(name, is_removed=False, then=f"muster wait {name}")
        raise change_requests.ChangeError(
            f"job {name} already exists and its run has ended ({job['state']}); nothing was "
            f"submitted. To fix: use another --name{again and ', or '}{again}"
        )
    return f"job {name} already exists; showing its output"


class LeaveInterrupt(KeyboardInterrupt):
    """Error: this process is to end now."""


class _Stage(enum.Enum):
    """Progress of the command: before, during or after submission."""

    BEFORE = enum.auto()
    SUBMITTING = enum.auto()
    SUBMITTED = enum.auto()
    ATTACHED = enum.auto()  # to a job that existed before: this command never cancels it


class JobLeaving:
    """Handler of signals: the first cancels the job and waits for its end, the next exits.

    Args:
        cancel: cancels the job with a reason and returns True if that succeeded. It runs beside the
            thread that shows the output.
        left_by: signals by which the job is left to itself.
    """

    def __init__(self, cancel: Callable[[str], bool], left_by: Collection[int] = ()) -> None:
        self._cancel = cancel
        self._left_by = left_by
        self._stage = _Stage.BEFORE
        self._signal = 0
        self._asked_at = 0.0
        self._is_over = False
        self._failed = False
        self._cancelled = threading.Event()
        #: Set when the exit code is known, so that nothing is left to interrupt.
        self._is_left = threading.Event()

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
            LeaveInterrupt: instead of an error after a signal.
        """
        try:
            yield
        except Exception:
            if self.is_before:
                raise LeaveInterrupt from None
            raise

    def about_to_submit(self) -> None:
        """Record that there may be a job from here on.

        Raises:
            LeaveInterrupt: a signal came before, so that no job is needed.
        """
        if self._signal:
            raise LeaveInterrupt
        self._stage = _Stage.SUBMITTING

    @property
    def _leaves_job(self) -> bool:
        """True if the job goes on after the signal that came."""
        return self._stage is _Stage.ATTACHED or self._signal in self._left_by

    def submitted(self, *, is_mine: bool = True) -> None:
        """Record that there is a job to cancel, unless it existed before.

        Raises:
            LeaveInterrupt: a signal came by which it is left to itself.
        """
        self._stage = _Stage.SUBMITTED if is_mine else _Stage.ATTACHED
        if self._signal:
            if self._leaves_job:
                raise LeaveInterrupt
            self._begin()

    def asked(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self._is_over:
            raise LeaveInterrupt
        if self._signal:
            # timeout(1) signals a process and its group, so that one request arrives twice
            if number == self._signal and now - self._asked_at < ONCE_S:
                return
            raise LeaveInterrupt
        self._signal, self._asked_at = number, now
        if self._stage in {_Stage.ATTACHED, _Stage.SUBMITTED}:
            if self._leaves_job:
                raise LeaveInterrupt
            self._begin()

    def status(self, code: int) -> int:
        """Return the exit code: the job's, unless the job was cancelled by a signal."""
        self._is_left.set()
        if not self._signal:
            return code
        self._cancelled.wait(END_S_MAX)
        return terminal.MUSTER_FAILED if self._failed else 128 + self._signal

    def without_a_job(self, name: str, error: change_requests.ChangeError) -> int:
        """Return the exit code after a submission that failed or seems to have failed.

        Raises:
            Exit: the submission failed, and no signal came.
        """
        if not self._signal:
            problems = tuple(map(submit_options.name_option, error.problems))
            terminal.fail(str(error), terminal.MUSTER_FAILED, problems)
        if not self.is_before:  # the signal ended git too, and a push may have succeeded
            terminal.note(f"muster: {error}")
        return self.at_once(name)

    def at_once(self, name: str) -> int:
        """Return the exit code if nobody waits for the end of the job."""
        if self._stage is _Stage.BEFORE:
            return 128 + self._signal
        if self._leaves_job:
            before = self._stage is _Stage.ATTACHED
            why = "; it existed before this command" if before else ""
            terminal.note(f"{job_wait.continues_text([name])}{why}")
            return 128 + self._signal
        if not self._cancelled.is_set():
            terminal.note(f"{name} may still run: muster cancel {name}")
        elif not self._failed:
            terminal.note(f"{name} is cancelled and has not ended yet")
        return terminal.MUSTER_FAILED if self._failed else 128 + self._signal

    def give_up(self, name: str, reason: str, code: int) -> int:
        """Cancel the job if this command submitted it. Return the exit code."""
        if self._stage is _Stage.ATTACHED:
            terminal.note(f"{job_wait.continues_text([name])}; it existed before this command")
            return code
        return code if self._cancel(reason) else terminal.MUSTER_FAILED

    def _begin(self) -> None:
        threading.Thread(target=self._carry_out, daemon=True).start()

    def _carry_out(self) -> None:
        self._failed = not self._cancel("interrupted")
        self._cancelled.set()
        if not self._failed and self._is_left.wait(END_S_MAX):
            return  # the job has ended earlier
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

"""The waiting of `muster submit --wait`: as of `sbatch --wait`, until jobs have ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import context, lazy_import, retries, terminal
from reconciler.cli.waiting import job_wait, run_status

if TYPE_CHECKING:
    from reconciler.operations.changes import change_requests, previous_runs, targets
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    previous_runs = lazy_import.module("reconciler.operations.changes.previous_runs")

Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        "-W",
        help="Wait for the end, and exit with the job's code, as muster run does. Default: exit "
        "once it is submitted.",
    ),
]
#: Exit code after Ctrl-C.
_INTERRUPTED = 130


class JobsToAwait:
    """Jobs that are about to be submitted, and whose end is waited for.

    Exit, before anything is submitted, if no controller can be asked about them.

    Args:
        submissions: what is submitted.
        to: where.
        place: URL of the controller and the token's file, as the options name them.
    """

    def __init__(
        self,
        submissions: Sequence[change_requests.Submit],
        to: targets.ChangeTarget,
        place: tuple[str | None, str | None],
    ) -> None:
        self._place = place
        with context.controller(*place, failed=retries.FAILED) as api:
            api.get("/v1/sync")
        names = previous_runs.names_of(submissions)
        self._before: Mapping[str, previous_runs.PreviousRun] = previous_runs.ended(
            names, to.endpoint or context.endpoint(*place), or_ephemeral=True
        )

    def end(self, names: Sequence[str], there: Collection[str]) -> int:
        """Wait for the end of all jobs. Return the highest of their exit codes.

        Args:
            names: of the jobs.
            there: those that were submitted before: a run that has ended is theirs.
        """
        try:
            with context.controller(*self._place, failed=retries.FAILED) as api:
                patient = retries.Patient(api, answered=True)
                return max(
                    _ended(patient, name, "" if name in there else self._submitted(name))
                    for name in names
                )
        except KeyboardInterrupt:
            terminal.note(job_wait.continues_text([*names]))
            return _INTERRUPTED
        except retries.GoneError as error:
            terminal.note(f"muster: {error}; {job_wait.continues_text([*names])}")
            return retries.FAILED

    def _submitted(self, name: str) -> str:
        """Return when the last run before was submitted; empty if there was none."""
        return self._before[name].submitted if name in self._before else ""


def _ended(api: retries.Patient, name: str, newer_than: str) -> int:
    """Wait until a job has ended and say how. Return its exit code."""
    try:
        job = job_wait.wait_until(
            api,
            name,
            lambda item: item["state"] in job_wait.FINISHED,
            give_up=True,
            newer_than=newer_than,
        )
    except job_wait.VanishedError as refusal:
        terminal.note(str(refusal))
        return retries.FAILED
    except job_wait.NotAppliedError as held:
        terminal.note(
            f"{name} is committed and not applied: {held}; {job_wait.continues_text([name])}"
        )
        return retries.FAILED
    except job_wait.ImpossibleError as never:
        terminal.note(f"{name} can't start: {never}; {job_wait.continues_text([name])}")
        return retries.FAILED
    except api_client.ApiError as error:
        if error.status != 404:
            raise
        terminal.note(f"{name}: {error}")
        return retries.FAILED
    why = f": {job['message']}" if job["message"] else ""
    terminal.note(f"{name} {job['state']}{terminal.escape_control(why)}")
    return run_status.status_of(job)

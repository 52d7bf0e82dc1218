"""The command `muster attach`: follow a job as `muster run` does, until it ends."""

import typer

from reconciler.cli import array_elements, common_options, context, retries, terminal
from reconciler.cli.jobs import run
from reconciler.cli.waiting import job_wait


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(attach)


def attach(
    name: common_options.JobOrElement,
    *,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show a job's output as it is written, until it ends, as muster run does.

    The job goes on when this command leaves: Ctrl-C does not reach it. Nothing can be typed into
    it, because a task reads nothing: muster exec starts a command beside it. Exit codes are those
    of muster run.

    Example: muster attach train
    """
    array_elements.require_whole_jobs("attach", [name])
    with context.controller(server, token_file, failed=terminal.MUSTER_FAILED) as api:
        try:
            code = run.attend(retries.Patient(api, answered=True), name)
        except KeyboardInterrupt:
            terminal.note(job_wait.continues_text([name]))
            raise typer.Exit(130) from None
        except (retries.GoneError, job_wait.VanishedError, job_wait.ImpossibleError) as error:
            terminal.fail(f"{name}: {error}", terminal.MUSTER_FAILED)
    raise typer.Exit(code)

"""The command `muster notebook`: Jupyter in a job, in the browser here."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from reconciler.cli import completion, context, lazy_import, retries, terminal
from reconciler.cli.changes import (
    job_fields,
    slurm_options,
    submit,
    submit_options,
    submit_surroundings,
)
from reconciler.cli.interactive import port_forward
from reconciler.cli.jobs import followed_job, run
from reconciler.cli.notebook import notebook_server, notebook_visit
from reconciler.cli.waiting import job_wait, run_status
from reconciler.model.rules import past_runs
from reconciler.model.values import addresses

if TYPE_CHECKING:
    from reconciler.operations.changes import job_document, submit_folder
    from reconciler.operations.client import api_client, endpoints
else:
    job_document = lazy_import.module("reconciler.operations.changes.job_document")
    submit_folder = lazy_import.module("reconciler.operations.changes.submit_folder")

#: Key of `Context.meta`: the words behind `--`, which are Jupyter's.
BEHIND = "muster.jupyter"
#: Parameters that say how a notebook is opened, and nothing of its job.
_OF_THE_VISIT = frozenset({"name", "port", "opens", "keep", "clone", "server", "token_file"})


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(cls=_NotebookCommand)(notebook)


class _NotebookCommand(typer.core.TyperCommand):
    """A command whose words behind `--` are options of another program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`, and keep those behind it."""
        args = slurm_options.translated(args, self.get_params(ctx))
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[BEHIND] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


def notebook(
    at: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A notebook that runs, to open it again. Default: start one.",
            autocompletion=completion.jobs,
            callback=context.require_name,
        ),
    ] = None,
    *,
    job_name: Annotated[
        str | None,
        typer.Option(
            "--name",
            "-J",
            help="Name of its job. Default: notebook, with a random ending.",
            callback=context.require_name,
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "-q",
            help="Queue in which the job waits. Default: default.",
            autocompletion=completion.queues,
            callback=context.require_name,
        ),
    ] = None,
    gpus: job_fields.Gpus = None,
    cpus: Annotated[
        str | None, typer.Option("--cpus", "-c", help="CPUs: 2, 0.5 or 500m. Default: 1.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Memory: 4Gi, 512M. Default: 0.")
    ] = None,
    time_limit: submit_options.TimeLimit = None,
    priority: job_fields.PriorityClass = None,
    env: submit_surroundings.Env = None,
    export: submit_surroundings.Export = None,
    modules: submit_surroundings.Modules = None,
    chdir: job_fields.Chdir = None,
    image: job_fields.Image = None,
    pools: job_fields.Pools = None,
    fields: job_fields.Fields = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help="Port here. Default: any.", min=1, max=addresses.PORT_MAX),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser here.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Ctrl-C ends this command alone, and the job runs on.")
    ] = False,
    clone: submit.Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Run Jupyter in a job, and open it in the browser here.

    It starts in this folder, with the active Python environment, as muster run does: JupyterLab or
    Jupyter Notebook must be in it (pip install jupyterlab). Words after -- are Jupyter's options.
    The address that is printed opens it. It holds a token, which is made on the node and is in no
    log and not in git; where output is no terminal, it is in a page that you alone can read.

    Ctrl-C cancels the job. With --keep, or if this terminal goes, it runs on. With the name of a
    notebook that runs, it is opened again, and never cancelled.

    Exit codes: those of muster run. 0: Jupyter was shut down.

    Example: muster notebook --gpus 1 --time 8h --open

    Example: muster notebook --name lab --keep -- --ServerApp.root_dir=/data

    Example: muster notebook lab
    """
    place = (server, token_file)
    _require_port(port)
    wanted = notebook_visit.WantedPage(port or 0, opens)
    behind = at.meta[BEHIND]
    if name is not None:
        _require_alone(at, behind)
        raise typer.Exit(_open_again(name, wanted, place))
    if wrong := notebook_server.secret_option(behind):
        terminal.fail(
            f"{wrong}: what a job says is in git for good. To fix: leave it out, because Jupyter "
            "gets a token of its own; or set it in the configuration of Jupyter",
            terminal.USAGE,
        )
    problems: list[str] = []
    given = job_fields.GivenFields(
        *(None, chdir, image, None, None, pools, False, False, None, None),
        *(None, None, None, None),
    )
    options = job_document.JobOptions(
        name=job_name or job_document.name_from("notebook", secrets.token_hex(3)),
        command=notebook_server.job_command(behind),
        queue=queue,
        gpus=gpus,
        cpus=cpus,
        memory=submit_options.memory_amount(memory, problems),
        time_limit=submit_options.time_limit(time_limit, problems),
        priority_class=priority,
        environment=submit_surroundings.variables(env, export, os.environ, problems),
        modules=tuple(modules or ()),
        fields=job_fields.fields_of(given, problems),
        written=job_fields.written_fields(fields, problems),
    )
    submit_options.require_values(job_document.job_text(options), problems)
    options = submit_surroundings.with_place(options, mark=True)
    raise typer.Exit(_start(options, wanted, clone, place, keep=keep))


def _start(
    options: job_document.JobOptions,
    wanted: notebook_visit.WantedPage,
    clone: Path | None,
    place: tuple[str | None, str | None],
    *,
    keep: bool,
) -> int:
    """Submit the job, and show its Jupyter until it ends. Return the exit code."""
    left_by = followed_job.SIGNALS if keep else (signal.SIGHUP,)

    def leave(number: int) -> None:
        if number in left_by:
            terminal.note(f"to open it again: muster notebook {options.name}")
        signal.raise_signal(number)

    def follow(
        patient: retries.Patient, api: api_client.ApiClient, where: endpoints.Endpoint
    ) -> int:
        visit = notebook_visit.NotebookVisit((patient, api, where), options.name, wanted, leave)
        job = visit.run()
        submit_folder.forget(options.submitted)
        if not visit.shown:  # what it says is why
            return run.attend(patient, options.name)
        return _told(job)

    return followed_job.carry_through(
        options,
        clone,
        place,
        follow,
        left_by=left_by,
        ephemeral=submit_options.ephemeral(clone, commit=None),
    )


def _open_again(
    name: str, wanted: notebook_visit.WantedPage, place: tuple[str | None, str | None]
) -> int:
    """Show Jupyter of a job that runs, until this command is left. Return the exit code."""
    with context.controller(*place) as api:
        job = api.get(f"/v1/jobs/{name}")["job"]
        if job["state"] in job_wait.FINISHED:
            again = past_runs.again_text(
                name, is_removed=job["removed"], then=f"muster notebook {name}"
            )
            terminal.fail(
                f"{name} has ended ({job['state']}). To fix: start another notebook (muster "
                f"notebook), or {again}"
            )
        patient = retries.Patient(api, answered=True)

        def leave(number: int) -> None:
            terminal.note(f"{name} continues: muster notebook {name}, or muster cancel {name}")
            raise typer.Exit(128 + number)

        visit = notebook_visit.NotebookVisit(
            (patient, api, context.endpoint(*place)), name, wanted, leave
        )
        try:
            return _told(visit.run())
        except (job_wait.ImpossibleError, job_wait.VanishedError, retries.GoneError) as error:
            terminal.fail(f"{name}: {error}", terminal.MUSTER_FAILED)


def _told(job: Any) -> int:
    """Say how a job ended, unless it succeeded. Return the exit code."""
    if job["state"] != "Succeeded":
        name = job["name"]
        terminal.note(f"{name} {job['state']}: {job['message'] or 'see muster logs ' + name}")
    return run_status.status_of(job)


def _require_port(port: int | None) -> None:
    """Exit if a port can't be listened on: no job is submitted for it."""
    if port is None:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((notebook_visit.HOST, port))
        except OSError as error:
            why = port_forward.why_deaf(f"{notebook_visit.HOST}:{port}", error)
            terminal.fail(f"{why}. To fix: another --port, or none")


def _require_alone(at: typer.Context, behind: tuple[str, ...]) -> None:
    """Exit if options of a job come with the name of one that runs: they would change nothing."""
    given = [
        one.opts[0]
        for one in at.command.params
        if one.name not in _OF_THE_VISIT and at.params.get(one.name or "") not in (None, [], ())
    ]
    if given or behind:
        terminal.fail(
            f"{', '.join([*given, *behind[:1]])}: a notebook that runs can't be changed. To fix: "
            "leave it out; or for a new one, --name instead of the name alone",
            terminal.USAGE,
        )

"""The command `muster run`: run a command on the cluster, with its output and its exit code."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import context, lazy_import, retries, terminal
from reconciler.cli.changes import (
    command_files,
    job_fields,
    submit,
    submit_code,
    submit_options,
    submit_surroundings,
)
from reconciler.cli.jobs import followed_job, run_output, run_terminal
from reconciler.cli.waiting import job_wait, run_status

if TYPE_CHECKING:
    from reconciler.operations.changes import job_document, submit_folder
    from reconciler.operations.client import api_client, endpoints
else:
    job_document = lazy_import.module("reconciler.operations.changes.job_document")
    submit_folder = lazy_import.module("reconciler.operations.changes.submit_folder")

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
    nodes: job_fields.Nodes = None,
    tasks: job_fields.Tasks = None,
    per_node: job_fields.TasksPerNode = None,
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
    if command_files.is_here(chdir, code, image):
        command_files.check("run", command)
    sizes = job_fields.sizes(job_fields.GivenCounts(nodes, tasks, per_node))
    problems: list[str] = []
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
        memory=submit_options.memory_amount(memory, problems),
        count=sizes.tasks,
        tasks_per_node=sizes.per_node,
        time_limit=submit_options.time_limit(time_limit, problems),
        priority_class=priority,
        framework=framework,
        checkpoint=submit_options.checkpoint(signal_name),
        environment=submit_surroundings.variables(env, export, os.environ, problems),
        modules=tuple(modules or ()),
        fields=job_fields.fields_of(given, problems),
        written=job_fields.written_fields(fields, problems),
    )
    submit_options.require_values(job_document.job_text(options), problems)
    packed = submit_code.GivenCode(code, terminal.MUSTER_FAILED)
    options = submit_surroundings.with_place(packed.added_to(options), mark=True)
    packed.send(server, token_file, context.identity(clone))

    def follow(
        patient: retries.Patient, api: api_client.ApiClient, where: endpoints.Endpoint
    ) -> int:
        ended = run_terminal.attend(patient, api, where, options.name, command) if pty else None
        return attend(patient, options.name) if ended is None else ended

    place, ephemeral = (server, token_file), submit_options.ephemeral(clone, commit=commit)
    status = followed_job.carry_through(options, clone, place, follow, ephemeral=ephemeral)
    if name is None and status != terminal.MUSTER_FAILED:  # else it may run on, or be repeated
        submit_folder.forget(options.submitted)
    raise typer.Exit(status)


def attend(api: retries.Patient, name: str) -> int:
    """Print the job's output as it comes. Return its exit code at the end."""
    job = job_wait.wait_until(
        api, name, lambda item: item["state"] not in NOT_STARTED, give_up=True, newer_than=""
    )
    first = min((one["task"] for one in job["attempts"]), key=run_status.place_of, default="")
    if job["state"] in job_wait.FINISHED and not first:
        terminal.note(f"{name} {job['state']}: {job['message'] or 'no task has run'}")
        return run_status.status_of(job)
    output = run_output.RunOutput(api, name)
    if job["state"] not in job_wait.FINISHED or first in _begun(job):
        output.follow(first)
    job = job_wait.wait_until(api, name, lambda item: item["state"] in job_wait.FINISHED)
    begun = _begun(job)
    if first in begun:
        output.finish(first)
    for task in sorted(begun - {first}, key=run_status.place_of):
        output.print_rest(task)
    if job["state"] != "Succeeded":
        terminal.note(f"{name} {job['state']}: {job['message'] or 'see muster job ' + name}")
    notes = dict.fromkeys(one["message"] for one in job["attempts"] if one["message"])
    for text in [one for one in notes if one not in job["message"]][:NOTES_MAX]:
        terminal.note(f"{name}: {text}")
    return output.code(run_status.status_of(job))


def _begun(job: Json) -> set[str]:
    """Return the tasks of a job that have ever started: no other has written anything."""
    return {attempt["task"] for attempt in job["attempts"] if attempt.get("started")}

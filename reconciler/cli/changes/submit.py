"""Commands that change desired state: each makes a commit, in a clone or at the controller."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.cli.changes import (
    command_files,
    job_fields,
    overrides,
    sbatch_lines,
    submit_code,
    submit_options,
    submit_surroundings,
)
from reconciler.cli.waiting import submit_wait

if TYPE_CHECKING:
    from reconciler.operations.changes import (
        change_requests,
        job_document,
        local_changes,
        remote_changes,
        targets,
    )
else:
    job_document = lazy_import.module("reconciler.operations.changes.job_document")
    local_changes = lazy_import.module("reconciler.operations.changes.local_changes")
    change_requests = lazy_import.module("reconciler.operations.changes.change_requests")

Reason = Annotated[
    str, typer.Option("--reason", "-m", help="Reason, for the commit message. Default: none.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Clone = Annotated[
    Path | None,
    typer.Option(
        "--clone",
        help="Your clone of the repository, or a cluster's folder in it. Default: the clone around "
        "the current folder if the controller reads its repository; else the controller commits.",
        envvar="MUSTER_CLONE",
    ),
]


WithLocal = Annotated[
    bool,
    typer.Option(
        "--with-local",
        help="Push the clone's other unpushed commits too. Default: they stay, and this change "
        "alone is pushed.",
    ),
]

#: The most subjects that a controller takes in one request.
REQUEST_MAX = 5000


class Place(NamedTuple):
    """The options that say where a change is made."""

    clone: Path | None
    server: str | None
    token_file: str | None
    with_local: bool = False


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(cls=submit_options.DashDashCommand)(submit)


def target(place: Place) -> targets.ChangeTarget:
    """Return where the change is to be made. Exit if there is no such place."""
    try:
        return local_changes.find_target(
            clone=place.clone,
            server=place.server,
            token_file=place.token_file,
            here=Path.cwd(),
            with_local=place.with_local,
        )
    except change_requests.ChangeError as error:
        terminal.fail(str(error))


def make_changes(
    changes: list[change_requests.Change],
    to: targets.ChangeTarget,
    *,
    dry_run: bool = False,
    problem: Callable[[str], str] = str,
) -> list[change_requests.ChangeResult]:
    """Make the changes. Exit with the right code if one is refused.

    `problem` rewords a problem of what was written.
    """
    try:
        done = local_changes.carry_out(changes, to, dry_run=dry_run)
    except change_requests.ChangeError as error:
        code = terminal.REFUSED if error.refused else terminal.ERROR
        hints = [
            overrides.hint(change.verb, _subjects(change), change.reason)
            for change in changes
            if error.unreachable
            and isinstance(change, change_requests.Act | change_requests.DrainRequest)
            and change.verb in overrides.DONE
        ]
        terminal.fail(str(error), code, (*map(problem, error.problems), *hints))
    return done


def _subjects(change: change_requests.Act | change_requests.DrainRequest) -> list[str]:
    return list(change.nodes) if isinstance(change, change_requests.DrainRequest) else [change.name]


def submit(
    at: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="YAML files, a script with its arguments (- for either on standard input), or a "
            "command after --."
        ),
    ] = None,
    *,
    name: job_fields.Name = None,
    queue: job_fields.Queue = None,
    gpus: job_fields.Gpus = None,
    cpus: job_fields.Cpus = None,
    memory: job_fields.Memory = None,
    nodes: job_fields.Nodes = None,
    tasks: job_fields.Tasks = None,
    per_node: job_fields.TasksPerNode = None,
    least: job_fields.Least = None,
    most: job_fields.Most = None,
    array: job_fields.Array = None,
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
    ignore_sbatch: Annotated[
        bool,
        typer.Option(
            "--ignore-sbatch", help="Submit though #SBATCH lines ask for what nothing here does."
        ),
    ] = False,
    wait: submit_wait.Wait = False,
    dry_run: DryRun = False,
    clone: Clone = None,
    with_local: WithLocal = False,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Submit jobs: YAML files, one script, or one command.

    The text of a script goes along, and what follows it are its arguments. A command after `--` is
    run as it stands. Both start in this folder and with the active Python environment where the
    node really has them; with --code the folder's files go along to any node. Options of the job
    (--name to --set) come first; YAML files describe themselves. A submission is a commit: in your
    clone, or by the controller.

    With --wait the exit code is that of the job, of several the highest: the codes of muster run.
    Ctrl-C leaves the job running.

    Example: muster submit jobs/train.yaml jobs/evaluate.yaml

    Example: muster submit --code . --gpus 1 --time 2h -- python3 train.py

    Example: muster submit --gpus 1 ./train.sh --epochs 3

    Example: muster submit --tasks 4 --framework torchrun -- python3 train.py

    Example: muster submit --min 2 --max 8 --gpus 1 -- python3 elastic.py

    Example: muster submit --array 0-99%10 --dry-run -- ./sweep.sh

    Example: muster submit --wait --gpus 1 ./train.sh && muster submit ./evaluate.sh
    """
    if not arguments:
        terminal.fail(
            "nothing to submit: expected YAML files, a script, or a command after --",
            terminal.USAGE,
        )
    read_input = functools.cache(submit_options.input_bytes)
    is_command = submit_options.is_command(arguments, read_input)
    if not is_command:
        submit_options.require_files_alone(at, arguments)
        submissions = _from_files(arguments, context.identity(clone), read_input)
    else:
        behind = at.meta[submit_options.BEHIND]
        script = submit_options.embedded_script(at, arguments, read_input, behind=behind)
        if script is None and command_files.is_here(chdir, code, image):
            command_files.check("submit", arguments)
        counts = job_fields.GivenCounts(nodes, tasks, per_node, most)
        counts = sbatch_lines.with_lines(script or "", counts, others=ignore_sbatch)
        sizes = job_fields.sizes(counts)
        problems: list[str] = []
        elements = submit_options.parse_array(array, problems)
        given = job_fields.GivenFields(
            *(
                depends,
                chdir,
                image,
                attempts,
                priority_number,
                pools,
                hold,
                exclusive,
                output,
                error,
            ),
            *(hosts, excluded, begin, deadline),
        )
        options = job_document.JobOptions(
            name=name or job_document.name_from(Path(arguments[0]).stem, secrets.token_hex(3)),
            command=tuple(arguments),
            script=script,
            queue=queue,
            gpus=gpus,
            cpus=cpus,
            memory=submit_options.memory_amount(memory, problems),
            count=sizes.tasks,
            tasks_per_node=sizes.per_node,
            least=least,
            most=most,
            array=elements.number,
            indexes=elements.indexes,
            parallelism=elements.at_once,
            time_limit=submit_options.time_limit(time_limit, problems),
            priority_class=priority,
            framework=framework,
            checkpoint=submit_options.checkpoint(signal_name),
            environment=submit_surroundings.variables(env, export, os.environ, problems),
            modules=tuple(modules or ()),
            fields=job_fields.fields_of(given, problems),
            written=job_fields.written_fields(fields, problems),
        )
        options = sbatch_lines.fill(options, named=name is not None, others=ignore_sbatch)
        packed = submit_code.GivenCode(code)
        options = packed.added_to(options)
        submit_options.require_values(job_document.job_text(options), problems)
        text = job_document.job_text(submit_surroundings.with_place(options, mark=not dry_run))
        submissions = [change_requests.Submit(text, context.identity(clone))]
        if not dry_run:
            packed.send(server, token_file, context.identity(clone))
    with submit_options.report_unread_input() if is_command else contextlib.nullcontext():
        to = target(Place(clone, server, token_file, with_local))
        ends = None
        if wait and not dry_run:
            ends = submit_wait.JobsToAwait(submissions, to, (server, token_file))
        results = _submit(
            submissions,
            to,
            dry_run=dry_run,
            problem=submit_options.name_option if is_command else str,
        )
    if ends is not None:
        there = {one.name for one in results if change_requests.is_submitted(one)}
        raise typer.Exit(ends.end([one.name for one in results], there))


def _from_files(
    names: list[str], owner: str | None, read_input: Callable[[], bytes]
) -> list[change_requests.Submit]:
    """Return the text of each file, or of standard input. Exit if any can't be read."""
    submissions: list[change_requests.Submit] = []
    problems: list[str] = []
    for name in dict.fromkeys(names):
        place = submit_options.STANDARD_INPUT if name == "-" else name
        try:
            data = read_input() if name == "-" else Path(name).read_bytes()
            submissions.append(change_requests.Submit(data.decode(), owner, place))
            sbatch_lines.note_lines(submissions[-1].text, place)
        except OSError as error:
            problems.append(f"{place} can't be read: {error.strerror or error}")
        except UnicodeDecodeError as error:
            problems.append(f"{place} is not UTF-8 text: {error}")
    if problems:
        terminal.fail(problems[0], details=problems[1:])
    return submissions


def _submit(
    submissions: list[change_requests.Submit],
    to: targets.ChangeTarget,
    *,
    dry_run: bool,
    problem: Callable[[str], str],
) -> list[change_requests.ChangeResult]:
    results = make_changes(list(submissions), to, dry_run=dry_run, problem=problem)
    if dry_run:
        texts = [
            job_document.owned(one.text, one.owner) if one.owner else one.text
            for one in submissions
        ]
        terminal.write_text("---\n".join(texts))
        sys.stdout.flush()
    for result in results:
        report_change(result, to, dry_run=dry_run, among=len(results))
        for warning in result.warnings:
            is_named = warning.startswith(f"{result.name} ")
            terminal.note(f"warning: {'' if is_named else f'{result.name}: '}{warning}")
    exit_if_withheld(results)
    if any(one.but for one in results):
        raise typer.Exit(terminal.ERROR)
    return results


def report_change(
    done: change_requests.ChangeResult, to: targets.ChangeTarget, *, dry_run: bool, among: int = 1
) -> None:
    """Print the name of what changed for programs, and for people what was done and where.

    If several changed, the name is part of the message, because names and messages may go to
    different places.
    """
    if dry_run:
        terminal.note(f"{done.name}: {done.message}")
        return
    terminal.out.print(done.name, markup=False)
    if change_requests.is_submitted(done):
        terminal.note(f"{done.name}{':' if among > 1 else ' is'} {done.message}")
        return
    where = submitted_as(done, to) if done.commit else to.describe()
    of = f"{done.name}: " if among > 1 else ""
    but = f", but {done.but}" if done.but else ""
    terminal.note(f"{of}{done.message} ({where}){but}")


def submitted_as(done: change_requests.ChangeResult, to: targets.ChangeTarget) -> str:
    """Return the commit of a change, and where it is unless the controller reads this clone."""
    if done.ephemeral:
        return "not in git"
    commit = (done.commit or "")[:12]
    is_read_here = to.clone is not None and not done.pushed
    is_read_here = is_read_here and not done.message.endswith(change_requests.LOCAL)
    return commit if is_read_here else f"{commit}, {to.way}"


def report_withheld(results: list[change_requests.ChangeResult]) -> None:
    """Print once why a commit does not apply yet, if it does not."""
    for why in dict.fromkeys(one.withheld for one in results if one.withheld):
        terminal.note(f"not applied yet: {terminal.format_clocks(why)}")


def exit_if_withheld(results: list[change_requests.ChangeResult]) -> None:
    """Print why a commit does not apply yet. Exit if safety limits hold it."""
    report_withheld(results)
    exit_if_refused(results)


def exit_if_refused(results: list[change_requests.ChangeResult]) -> None:
    """Exit if safety limits hold what was done."""
    if any(one.refused for one in results):
        raise typer.Exit(terminal.REFUSED)


def change_all(
    verb: remote_changes.ChangeVerb,
    names: list[str],
    reason: str,
    place: Place,
    *,
    dry_run: bool,
    fresh: bool = False,
    elements: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Do one thing to several subjects, and print what was done; to ``elements`` of some alone.

    All are changed or none; beyond what one request takes, those of each request.
    """
    to = target(place)
    changes: list[change_requests.Change] = [
        change_requests.Act(verb, name, reason, fresh, elements.get(name, ""))
        for name in dict.fromkeys(names)
    ]
    at_once = len(changes) if to.clone is not None else REQUEST_MAX
    for begin in range(0, len(changes), at_once):
        done = make_changes(changes[begin : begin + at_once], to, dry_run=dry_run)
        report_changes(done, to, verb, reason, dry_run=dry_run)


def report_changes(
    results: list[change_requests.ChangeResult],
    to: targets.ChangeTarget,
    verb: str,
    reason: str,
    *,
    dry_run: bool,
) -> None:
    """Print what was done. Exit if safety limits hold it."""
    for result in results:
        report_change(result, to, dry_run=dry_run, among=len(results))
    for warning in dict.fromkeys(warning for one in results for warning in one.warnings):
        terminal.note(f"warning: {warning}")
    report_withheld(results)
    waits = [one.name for one in results if one.withheld]
    if waits and verb in overrides.DONE:
        terminal.note(overrides.hint(verb, waits, reason, "that applies"))
    exit_if_refused(results)

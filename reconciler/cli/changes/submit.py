"""Commands that change desired state: each makes a commit, in a clone or at the controller."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import array_elements, completion, context, lazy_import, terminal
from reconciler.cli.changes import overrides, submit_options
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.changes import held_changes, job_document, local_changes
    from reconciler.operations.client import api_client
else:
    api_client = lazy_import.module("reconciler.operations.client.api_client")
    job_document = lazy_import.module("reconciler.operations.changes.job_document")
    local_changes = lazy_import.module("reconciler.operations.changes.local_changes")
    held_changes = lazy_import.module("reconciler.operations.changes.held_changes")

Reason = Annotated[str, typer.Option("--reason", "-m", help="Reason, for the commit message.")]
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

#: Beginning of the digest of a plan.
PLAN = "sha256:"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        cls=submit_options.DashDashCommand, context_settings={"allow_interspersed_args": False}
    )(submit)
    for verb, help_text in JOB_VERBS.items():
        app.command(verb)(_on_jobs(verb, help_text))
    for command in (cancel, approve):
        app.command()(command)


def target(clone: Path | None, server: str | None, token_file: str | None) -> local_changes.Target:
    """Return where the change is to be made. Exit if there is no such place."""
    try:
        return local_changes.find_target(
            clone=clone, server=server, token_file=token_file, here=Path.cwd()
        )
    except local_changes.ChangeError as error:
        terminal.fail(str(error))


def make_changes(
    changes: list[local_changes.Change],
    to: local_changes.Target,
    *,
    dry_run: bool = False,
    problem: Callable[[str], str] = str,
) -> list[local_changes.Done]:
    """Make the changes. Exit with the right code if one is refused.

    `problem` rewords a problem of what was written.
    """
    try:
        done = local_changes.carry_out(changes, to, dry_run=dry_run)
    except local_changes.ChangeError as error:
        code = terminal.REFUSED if error.refused else terminal.ERROR
        hints = [
            overrides.hint(change.verb, _subjects(change), change.reason)
            for change in changes
            if error.unreachable
            and isinstance(change, local_changes.Act | local_changes.Drain)
            and change.verb in overrides.DONE
        ]
        terminal.fail(str(error), code, (*map(problem, error.problems), *hints))
    return done


def _subjects(change: local_changes.Act | local_changes.Drain) -> list[str]:
    return list(change.nodes) if isinstance(change, local_changes.Drain) else [change.name]


_Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        help="Queue.",
        autocompletion=completion.queues,
        callback=context.require_name,
    ),
]
_Array = Annotated[
    str | None,
    typer.Option("--array", help="Array: number of elements, or 0-9, or 0-9%4 (4 at once)."),
]
_Gpus = Annotated[
    float | None, typer.Option("--gpus", "-g", help="GPUs per task; 0.5 is half a GPU.")
]
_Least = Annotated[int | None, typer.Option("--min", help="Minimum tasks needed to start.")]
_PriorityClass = Annotated[str | None, typer.Option("--priority-class", help="Priority class.")]
_Framework = Annotated[
    str | None, typer.Option(help="torchrun, mpi, jax, …; see `muster schema job`.")
]


def submit(
    at: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="YAML files (- for standard input), or a command after --."),
    ] = None,
    *,
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", help="Name of the job.", callback=context.require_name),
    ] = None,
    queue: _Queue = None,
    gpus: _Gpus = None,
    cpus: Annotated[str | None, typer.Option("--cpus", "-c", help="CPUs per task.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory per task.")] = None,
    nodes: submit_options.Nodes = None,
    tasks: submit_options.Tasks = None,
    least: _Least = None,
    most: Annotated[int | None, typer.Option("--max", help="Maximum tasks.")] = None,
    array: _Array = None,
    time_limit: submit_options.TimeLimit = None,
    priority: _PriorityClass = None,
    framework: _Framework = None,
    dry_run: DryRun = False,
    clone: Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Submit jobs: YAML files, or one command.

    Put the command after `--`. It runs on the node, so a script must exist there. Job options can't
    be combined with YAML files.

    Example: muster submit jobs/train.yaml

    Example: muster submit --gpus 1 --time 2h -- python3 train.py
    """
    if not arguments:
        terminal.fail(
            "nothing to submit: expected YAML files, or a command after --", terminal.USAGE
        )
    is_command = not all(map(submit_options.is_document, arguments))
    if not is_command:
        submit_options.require_files_alone(at, arguments)
        asked = _from_files(arguments)
    else:
        submit_options.require_command(at, arguments, behind=at.meta[submit_options.BEHIND])
        together, placement = submit_options.spread(nodes, tasks, most)
        problems: list[str] = []
        count, at_once = submit_options.parse_array(array, problems)
        options = job_document.JobOptions(
            name=name or job_document.name_from(Path(arguments[0]).stem, secrets.token_hex(3)),
            command=tuple(arguments),
            queue=queue,
            gpus=gpus,
            cpus=cpus,
            memory=memory,
            count=together,
            least=least,
            most=most,
            placement=placement,
            array=count,
            parallelism=at_once,
            time_limit=submit_options.time_limit(time_limit),
            priority_class=priority,
            framework=framework,
        )
        text = job_document.job_text(options)
        submit_options.require_values(text, problems)
        asked = [local_changes.Submit(text, context.identity())]
    with submit_options.report_unread_input() if is_command else contextlib.nullcontext():
        _submit(
            asked,
            target(clone, server, token_file),
            dry_run=dry_run,
            problem=submit_options.name_option if is_command else str,
        )


def _from_files(names: list[str]) -> list[local_changes.Submit]:
    """Return the text of each file, or of standard input. Exit if any can't be read."""
    owner = context.identity()
    submissions: list[local_changes.Submit] = []
    problems: list[str] = []
    for name in dict.fromkeys(names):
        place = submit_options.STANDARD_INPUT if name == "-" else name
        try:
            submissions.append(local_changes.Submit(_read(name), owner, place))
        except OSError as error:
            problems.append(f"{place} can't be read: {error.strerror or error}")
        except UnicodeDecodeError as error:
            problems.append(f"{place} is not UTF-8 text: {error}")
    if problems:
        terminal.fail(problems[0], details=problems[1:])
    return submissions


def _submit(
    asked: list[local_changes.Submit],
    to: local_changes.Target,
    *,
    dry_run: bool,
    problem: Callable[[str], str],
) -> None:
    made = make_changes(list(asked), to, dry_run=dry_run, problem=problem)
    if dry_run:
        texts = [
            job_document.owned(one.text, one.owner) if one.owner else one.text for one in asked
        ]
        sys.stdout.write("---\n".join(texts))
        sys.stdout.flush()
    for done in made:
        _say(done, to, dry_run=dry_run, among=len(made))
        for warning in done.warnings:
            terminal.note(f"warning: {done.name}: {warning}")
    exit_if_withheld(made)


def _say(
    done: local_changes.Done, to: local_changes.Target, *, dry_run: bool, among: int = 1
) -> None:
    """Print the name of what changed for programs, and for people what was done and where.

    If several changed, the name is part of the message, because names and messages may go to
    different places.
    """
    if dry_run:
        terminal.note(f"{done.name}: {done.message}")
        return
    terminal.out.print(done.name, markup=False)
    where = f"{done.commit[:12]}, {to.way}" if done.commit else to.describe()
    of = f"{done.name}: " if among > 1 else ""
    terminal.note(f"{of}{done.message} ({where})")


def report_withheld(made: list[local_changes.Done]) -> None:
    """Print once why a commit does not apply yet, if it does not."""
    for why in dict.fromkeys(one.withheld for one in made if one.withheld):
        terminal.note(f"not applied yet: {terminal.format_clocks(why)}")


def exit_if_withheld(made: list[local_changes.Done]) -> None:
    """Print why a commit does not apply yet. Exit if safety limits hold it."""
    report_withheld(made)
    exit_if_refused(made)


def exit_if_refused(made: list[local_changes.Done]) -> None:
    """Exit if safety limits hold what was done."""
    if any(one.refused for one in made):
        raise typer.Exit(terminal.REFUSED)


def _read(argument: str) -> str:
    """Return the text of a file, or of standard input for `-`.

    Raises:
        OSError, UnicodeDecodeError: there is no such text.
    """
    data = submit_options.input_bytes() if argument == "-" else Path(argument).read_bytes()
    return data.decode()


def change_all(
    verb: local_changes.Verb,
    names: list[str],
    reason: str,
    place: tuple[Path | None, str | None, str | None],
    *,
    dry_run: bool,
) -> None:
    """Do one thing to several subjects, and print what was done."""
    to = target(*place)
    changes: list[local_changes.Change] = [
        local_changes.Act(verb=verb, name=name, reason=reason) for name in dict.fromkeys(names)
    ]
    report_changes(make_changes(changes, to, dry_run=dry_run), to, verb, reason, dry_run=dry_run)


def report_changes(
    made: list[local_changes.Done],
    to: local_changes.Target,
    verb: str,
    reason: str,
    *,
    dry_run: bool,
) -> None:
    """Print what was done. Exit if safety limits hold it."""
    for done in made:
        _say(done, to, dry_run=dry_run, among=len(made))
    for warning in dict.fromkeys(warning for one in made for warning in one.warnings):
        terminal.note(f"warning: {warning}")
    report_withheld(made)
    waits = [one.name for one in made if one.withheld]
    if waits and verb in overrides.DONE:
        terminal.note(overrides.hint(verb, waits, reason, "that applies"))
    exit_if_refused(made)


Names = Annotated[
    list[str],
    typer.Argument(
        help="Names of jobs.", autocompletion=completion.jobs, callback=context.require_name
    ),
]


def _on_jobs(verb: local_changes.Verb, help_text: str) -> Callable[..., None]:
    """Return the command of a verb that takes names of jobs."""

    def act(
        names: Names,
        reason: Reason = "",
        *,
        dry_run: DryRun = False,
        clone: Clone = None,
        server: context.Server = None,
        token_file: context.TokenFile = None,
    ) -> None:
        array_elements.require_whole_jobs(verb, names)
        change_all(verb, names, reason, (clone, server, token_file), dry_run=dry_run)

    act.__name__ = verb
    act.__doc__ = help_text
    return act


def cancel(
    names: Names,
    reason: Reason = "",
    *,
    override: overrides.Override = False,
    lasts: overrides.For = None,
    dry_run: DryRun = False,
    clone: Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Cancel jobs.

    Stops the jobs and deletes their YAML in a commit. With --override it works while git can't be
    reached.

    Example: muster cancel train

    Example: muster cancel train --override --for 2h --reason "fills the disk; git is down"
    """
    overrides.check_options(override=override, lasts=lasts, dry_run=dry_run)
    array_elements.require_whole_jobs("cancel", names)
    if override:
        overrides.make_overrides("cancel", names, reason, lasts, (server, token_file))
        return
    change_all("cancel", names, reason, (clone, server, token_file), dry_run=dry_run)


JOB_VERBS: dict[local_changes.Verb, str] = {
    "hold": """Hold jobs: running ones stop, waiting ones do not start.

    Sets spec.suspend in their YAML, in a commit. `muster release` lets them continue.

    Example: muster hold train --reason "data is being repaired"
    """,
    "release": """Release held jobs.

    Removes spec.suspend from their YAML, in a commit.

    Example: muster release train
    """,
    "rerun": """Run jobs again.

    Raises spec.run in their YAML, in a commit.

    Example: muster rerun train
    """,
}


def approve(
    digest: Annotated[str, typer.Argument(help="Digest of the held change.")],
    reason: Reason = "",
    *,
    dry_run: DryRun = False,
    clone: Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Approve a change that safety limits hold.

    `muster status` shows the digest. The approval is a commit, and applies to this change only.

    Example: muster approve sdramovcrs6en5cgkcqgp3by4s6j2h15 --reason "two racks less"
    """
    to = target(clone, server, token_file)
    act = local_changes.Act(verb="approve", name=digest, reason=reason)
    figure = _figure_of(act, to, server, token_file)
    made = make_changes([act], to, dry_run=dry_run)
    for done in made:
        _say(done, to, dry_run=dry_run)
        for warning in done.warnings:
            terminal.note(f"warning: {warning}")
    if figure:
        terminal.note(figure)
    exit_if_withheld(made)


def _figure_of(
    act: local_changes.Act, to: local_changes.Target, server: str | None, token_file: str | None
) -> str:
    """Return what a held change does, by its digest; empty if no controller can be asked.

    Exit if no held change has the digest: its approval would be a commit that lets nothing apply.
    """
    digest = act.name
    of_plan = digest.startswith(PLAN)
    if not of_plan and not local_changes.is_digest(digest):
        return ""  # making the change reports what is wrong with it
    try:
        with api_client.ApiClient(
            endpoints.find(server, token_file, Path.cwd()), timeout_s=5.0
        ) as api:
            held = api.get("/v1/sync")["sync"]["held"]
    except (api_client.ApiError, endpoints.EndpointError):
        held = None
    if of_plan:
        terminal.fail(
            f"{digest} is the digest of a whole plan; approve a held change by its own digest, "
            "which the plan and `muster status` show",
            details=[f"held now: {one['message'].removeprefix('held: ')}" for one in held or ()],
        )
    if held is None:
        return ""  # in a clone one can approve before the change is anywhere else
    figures = [
        str(one["message"]).removeprefix("held: ").partition("; `muster approve ")[0]
        for one in held
        if held_changes.is_of(digest, one["digest"])
    ]
    if not figures:
        for done in make_changes([act], to, dry_run=True):
            if local_changes.is_there(done):
                terminal.out.print(done.name, markup=False)
                terminal.note(done.message)
                raise typer.Exit
        nothing = (
            "nothing is held now; the controller may not have read the last push yet: "
            "`muster status`"
        )
        terminal.fail(
            f"no held change has the digest {digest}; nothing was committed",
            details=[f"held now: {one['message'].removeprefix('held: ')}" for one in held]
            or [nothing],
        )
    return "; ".join(figures)

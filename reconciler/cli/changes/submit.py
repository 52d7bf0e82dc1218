"""Commands that change desired state: each makes a commit, here in a clone or at the controller."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconciler.cli import array_elements as elementwords
from reconciler.cli import completion as completing
from reconciler.cli import context, terminal
from reconciler.cli import lazy_import as lazily
from reconciler.cli.changes import overrides as overriding
from reconciler.cli.changes import submit_options as submitwords
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from reconciler.operations.changes import held_changes as withheld
    from reconciler.operations.changes import job_document as authoring
    from reconciler.operations.changes import local_changes as operations
    from reconciler.operations.client import api_client as clients
else:
    clients = lazily.module("reconciler.operations.client.api_client")
    authoring = lazily.module("reconciler.operations.changes.job_document")
    operations = lazily.module("reconciler.operations.changes.local_changes")
    withheld = lazily.module("reconciler.operations.changes.held_changes")

Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; goes into the commit.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check and say what would be done, and change nothing.")
]
Clone = Annotated[
    Path | None,
    typer.Option(
        "--clone",
        help="Your clone of the repository, or a cluster's folder in it; else the one you stand "
        "in, if the controller reads its repository; else the controller commits for you.",
        envvar="MUSTER_CLONE",
    ),
]

#: How the digest of a plan begins.
PLAN = "sha256:"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(cls=submitwords.Command, context_settings={"allow_interspersed_args": False})(
        submit
    )
    for verb, help_text in JOB_VERBS.items():
        app.command(verb)(_on_jobs(verb, help_text))
    for command in (cancel, approve):
        app.command()(command)


def target(clone: Path | None, server: str | None, token_file: str | None) -> operations.Target:
    """Where the change is to be made; leaves the command when there is no such place."""
    try:
        return operations.find_target(
            clone=clone, server=server, token_file=token_file, here=Path.cwd()
        )
    except operations.ChangeError as error:
        terminal.fail(str(error))


def carry_out(
    changes: list[operations.Change],
    to: operations.Target,
    *,
    dry_run: bool = False,
    problem: Callable[[str], str] = str,
) -> list[operations.Done]:
    """Make the changes; leaves the command with the right exit code when one is refused.

    ``problem``: how one is told of what was written.
    """
    try:
        done = operations.carry_out(changes, to, dry_run=dry_run)
    except operations.ChangeError as error:
        code = terminal.REFUSED if error.refused else terminal.ERROR
        hints = [
            overriding.hint(change.verb, _subjects(change), change.reason)
            for change in changes
            if error.unreachable
            and isinstance(change, operations.Act | operations.Drain)
            and change.verb in overriding.DONE
        ]
        terminal.fail(str(error), code, (*map(problem, error.problems), *hints))
    return done


def _subjects(change: operations.Act | operations.Drain) -> list[str]:
    return list(change.nodes) if isinstance(change, operations.Drain) else [change.name]


_Queue = Annotated[
    str | None,
    typer.Option(
        "--queue", "-q", help="Queue.", autocompletion=completing.queues, callback=context.named
    ),
]
_Array = Annotated[
    str | None, typer.Option("--array", help="Elements of an array: how many, or 0-9, or 0-9%4.")
]
_Gpus = Annotated[
    float | None, typer.Option("--gpus", "-g", help="GPUs of a task; 0.5 is half of one.")
]
_Least = Annotated[
    int | None, typer.Option("--min", help="Start with so few tasks; grow up to --max.")
]
_PriorityClass = Annotated[str | None, typer.Option("--priority-class", help="Priority class.")]
_Framework = Annotated[str | None, typer.Option(help="torchrun, mpi, jax, …; see the kind Job.")]


def submit(
    at: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="YAML files (- for standard input), or a command behind --."),
    ] = None,
    *,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Name of the job.", callback=context.named)
    ] = None,
    queue: _Queue = None,
    gpus: _Gpus = None,
    cpus: Annotated[str | None, typer.Option("--cpus", "-c", help="CPUs of a task.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory of a task.")] = None,
    nodes: submitwords.Nodes = None,
    tasks: submitwords.Tasks = None,
    least: _Least = None,
    most: Annotated[int | None, typer.Option("--max", help="Grow up to so many tasks.")] = None,
    array: _Array = None,
    time_limit: submitwords.TimeLimit = None,
    priority: _PriorityClass = None,
    framework: _Framework = None,
    dry_run: DryRun = False,
    clone: Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Submit jobs: YAML files, or one command.

    A command stands behind --, always, and so does a script, which is a command of the node:
    muster submit -- ./train.sh

    Options that say what a job is go with a command; beside files, which say it, they are refused.

    Example: muster submit jobs/train.yaml

    Example: muster submit --gpus 1 --time 2h -- python3 train.py
    """
    if not arguments:
        terminal.fail("nothing to submit: name YAML files, or a command behind --", terminal.USAGE)
    is_command = not all(map(submitwords.is_document, arguments))
    if not is_command:
        submitwords.require_files_alone(at, arguments)
        asked = _from_files(arguments)
    else:
        submitwords.require_command(at, arguments, behind=at.meta[submitwords.BEHIND])
        together, placement = submitwords.spread(nodes, tasks, most)
        count, at_once = (None, None) if array is None else submitwords.elements(array)
        options = authoring.JobOptions(
            name=name or authoring.name_from(Path(arguments[0]).stem, secrets.token_hex(3)),
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
            time_limit=submitwords.time_limit(time_limit),
            priority_class=priority,
            framework=framework,
        )
        text = authoring.job_text(options)
        submitwords.require_values(text)
        asked = [operations.Submit(text, context.identity())]
    with submitwords.telling_of_input() if is_command else contextlib.nullcontext():
        _submit(
            asked,
            target(clone, server, token_file),
            dry_run=dry_run,
            problem=submitwords.by_option if is_command else str,
        )


def _from_files(names: list[str]) -> list[operations.Submit]:
    """The text of each file, or of standard input."""
    owner = context.identity()
    return [
        operations.Submit(_read(name), owner, submitwords.STANDARD_INPUT if name == "-" else name)
        for name in dict.fromkeys(names)
    ]


def _submit(
    asked: list[operations.Submit],
    to: operations.Target,
    *,
    dry_run: bool,
    problem: Callable[[str], str],
) -> None:
    made = carry_out(list(asked), to, dry_run=dry_run, problem=problem)
    if dry_run:
        texts = [authoring.owned(one.text, one.owner) if one.owner else one.text for one in asked]
        sys.stdout.write("---\n".join(texts))
        sys.stdout.flush()
    for done in made:
        _say(done, to, dry_run=dry_run, among=len(made))
        for warning in done.warnings:
            terminal.note(f"warning: {done.name}: {warning}")
    leave_withheld(made)


def _say(done: operations.Done, to: operations.Target, *, dry_run: bool, among: int = 1) -> None:
    """The name of what was changed for programs, and for people what was done, and where.

    ``among`` several these are told by name, too: names may go elsewhere than what is said.
    """
    if dry_run:
        terminal.note(f"{done.name}: {done.message}")
        return
    terminal.out.print(done.name, markup=False)
    where = f"{done.commit[:12]}, {to.way}" if done.commit else to.describe()
    of = f"{done.name}: " if among > 1 else ""
    terminal.note(f"{of}{done.message} ({where})")


def tell_withheld(made: list[operations.Done]) -> None:
    """Say once why what was committed does not apply by itself, where that is so."""
    for why in dict.fromkeys(one.withheld for one in made if one.withheld):
        terminal.note(f"not applied yet: {terminal.clocks(why)}")


def leave_withheld(made: list[operations.Done]) -> None:
    """Say it, and leave the command where it is safety that keeps it from being in force."""
    tell_withheld(made)
    leave_refused(made)


def leave_refused(made: list[operations.Done]) -> None:
    """Leave the command where it is safety that keeps what was done from being in force."""
    if any(one.refused for one in made):
        raise typer.Exit(terminal.REFUSED)


def _read(argument: str) -> str:
    name = submitwords.STANDARD_INPUT if argument == "-" else argument
    try:
        data = submitwords.input_bytes() if argument == "-" else Path(argument).read_bytes()
        return data.decode()
    except OSError as error:
        terminal.fail(f"{name} can't be read: {error.strerror or error}")
    except UnicodeDecodeError as error:
        terminal.fail(f"{name} is no text in UTF-8: {error}")


def change_all(
    verb: operations.Verb,
    names: list[str],
    reason: str,
    place: tuple[Path | None, str | None, str | None],
    *,
    dry_run: bool,
) -> None:
    """Do one thing to several subjects, and say what was done."""
    to = target(*place)
    changes: list[operations.Change] = [
        operations.Act(verb=verb, name=name, reason=reason) for name in dict.fromkeys(names)
    ]
    tell(carry_out(changes, to, dry_run=dry_run), to, verb, reason, dry_run=dry_run)


def tell(
    made: list[operations.Done], to: operations.Target, verb: str, reason: str, *, dry_run: bool
) -> None:
    """Say what was done; leaves the command where safety keeps it from being in force."""
    for done in made:
        _say(done, to, dry_run=dry_run, among=len(made))
    for warning in dict.fromkeys(warning for one in made for warning in one.warnings):
        terminal.note(f"warning: {warning}")
    tell_withheld(made)
    waits = [one.name for one in made if one.withheld]
    if waits and verb in overriding.DONE:
        terminal.note(overriding.hint(verb, waits, reason, "that applies"))
    leave_refused(made)


Names = Annotated[
    list[str],
    typer.Argument(help="Names of jobs.", autocompletion=completing.jobs, callback=context.named),
]


def _on_jobs(verb: operations.Verb, help_text: str) -> Callable[..., None]:
    """The command of a verb that takes names of jobs."""

    def act(
        names: Names,
        reason: Reason = "",
        *,
        dry_run: DryRun = False,
        clone: Clone = None,
        server: context.Server = None,
        token_file: context.TokenFile = None,
    ) -> None:
        elementwords.whole(verb, names)
        change_all(verb, names, reason, (clone, server, token_file), dry_run=dry_run)

    act.__name__ = verb
    act.__doc__ = help_text
    return act


def cancel(
    names: Names,
    reason: Reason = "",
    *,
    override: overriding.Override = False,
    lasts: overriding.For = None,
    dry_run: DryRun = False,
    clone: Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Cancel jobs: their documents leave the repository.

    Example: muster cancel train

    Example: muster cancel train --override --for 2h --reason "fills the disk; git is down"
    """
    overriding.check_options(override=override, lasts=lasts, dry_run=dry_run)
    elementwords.whole("cancel", names)
    if override:
        overriding.put("cancel", names, reason, lasts, (server, token_file))
        return
    change_all("cancel", names, reason, (clone, server, token_file), dry_run=dry_run)


JOB_VERBS: dict[operations.Verb, str] = {
    "hold": """Hold jobs: what runs is stopped, what waits stays.

    Example: muster hold train --reason "data is being repaired"
    """,
    "release": """Let held jobs go on (spec.suspend leaves the document).

    Example: muster release train
    """,
    "rerun": """Run jobs once more (spec.run is raised).

    Example: muster rerun train
    """,
}


def approve(
    digest: Annotated[str, typer.Argument(help="Digest that the held change was shown with.")],
    reason: Reason = "",
    *,
    dry_run: DryRun = False,
    clone: Clone = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Approve a change that safety limits hold.

    `muster status` tells its digest.

    It is a commit that says so, and covers this change and no other.

    Example: muster approve sdramovcrs6en5cgkcqgp3by4s6j2h15 --reason "two racks less"
    """
    to = target(clone, server, token_file)
    act = operations.Act(verb="approve", name=digest, reason=reason)
    figure = _figure_of(act, to, server, token_file)
    made = carry_out([act], to, dry_run=dry_run)
    for done in made:
        _say(done, to, dry_run=dry_run)
        for warning in done.warnings:
            terminal.note(f"warning: {warning}")
    if figure:
        terminal.note(figure)
    leave_withheld(made)


def _figure_of(
    act: operations.Act, to: operations.Target, server: str | None, token_file: str | None
) -> str:
    """What a held change does, by its digest; empty where no controller can be asked.

    Leaves the command where nothing that is held now has the digest: an approval of it would be a
    commit that lets nothing apply.
    """
    digest = act.name
    of_plan = digest.startswith(PLAN)
    if not of_plan and not operations.is_digest(digest):
        return ""  # who makes the change says what is wrong with it
    try:
        with clients.Client(endpoints.find(server, token_file, Path.cwd()), timeout_s=5.0) as api:
            held = api.get("/v1/sync")["sync"]["held"]
    except (clients.ApiError, endpoints.EndpointError):
        held = None
    if of_plan:
        terminal.fail(
            f"{digest} is the digest of a plan as a whole; what is approved is a held change, by "
            "the one that the plan names with it, as `muster status` does",
            details=[f"held now: {one['message'].removeprefix('held: ')}" for one in held or ()],
        )
    if held is None:
        return ""  # in a clone one can approve before the change is anywhere else
    figures = [
        str(one["message"]).removeprefix("held: ").partition("; `muster approve ")[0]
        for one in held
        if withheld.is_of(digest, one["digest"])
    ]
    if not figures:
        for done in carry_out([act], to, dry_run=True):
            if operations.is_there(done):
                terminal.out.print(done.name, markup=False)
                terminal.note(done.message)
                raise typer.Exit
        nothing = (
            "nothing is held now; what was pushed a moment ago is held once the controller has "
            "looked at it: `muster status`"
        )
        terminal.fail(
            f"no change that is held now has the digest {digest}; nothing was committed",
            details=[f"held now: {one['message'].removeprefix('held: ')}" for one in held]
            or [nothing],
        )
    return "; ".join(figures)

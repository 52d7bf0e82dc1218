"""Commands that review before anything changes: `validate` a folder, `plan` a revision."""

from __future__ import annotations

import gc
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from reconciler.cli import context, lazy_import, terminal
from reconciler.operations.client import endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reconciler.model import desired
    from reconciler.operations import scratch_repository
    from reconciler.operations.plan import (
        cluster_snapshot,
        plan_text,
        plan_types,
        planner,
        pull_request_comment,
        revisions,
    )
    from reconciler.operations.validate import folder_check, formats
else:
    folder_check = lazy_import.module("reconciler.operations.validate.folder_check")
    pull_request_comment = lazy_import.module("reconciler.operations.plan.pull_request_comment")
    formats = lazy_import.module("reconciler.operations.validate.formats")
    planner = lazy_import.module("reconciler.operations.plan.planner")
    plan_text = lazy_import.module("reconciler.operations.plan.plan_text")
    folder_check = lazy_import.module("reconciler.operations.validate.folder_check")
    revisions = lazy_import.module("reconciler.operations.plan.revisions")
    scratch_repository = lazy_import.module("reconciler.operations.scratch_repository")
    cluster_snapshot = lazy_import.module("reconciler.operations.plan.cluster_snapshot")


class PlanForm(StrEnum):
    """Formats of a plan."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"


class FindingForm(StrEnum):
    """Formats of problems."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    SARIF = "sarif"
    GITHUB = "github"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(validate)
    app.command()(plan)
    app.command()(snapshot)


def validate(
    folder: Annotated[Path, typer.Argument(help="Folder with the YAML.")] = Path(),
    *,
    staged: Annotated[
        bool, typer.Option("--staged", help="Check what is staged for the next commit.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="REVISION",
            help="Report errors in documents unchanged since this revision as warnings. Default: "
            "report all errors.",
        ),
    ] = None,
    output: Annotated[
        FindingForm, typer.Option("--output", "-o", help="Output format.", show_default=True)
    ] = FindingForm.TABLE,
) -> None:
    """Check the YAML of a folder and print every problem.

    With --staged or --since, problems in documents that do not change are warnings. `-o sarif` is
    for code scanning, `-o github` marks the lines of a pull request. Exits with 1 if there are
    errors.

    Example: muster validate cluster-state
    """
    try:
        found, counts = folder_check.check_folder(folder, staged=staged, since=since)
    except folder_check.NotAFolderError as error:
        terminal.fail(str(error), terminal.USAGE)
    except scratch_repository.RevisionError as error:
        terminal.fail(str(error))
    problems = found.status.problems
    prefix = "" if staged else folder_check.place_of(folder)
    with terminal.keep_exit_code():
        _show_problems(problems, output, prefix)
    errors = sum(problem.severity == "error" for problem in problems)
    warnings = len(problems) - errors
    if found.status.sync == "Unknown":
        terminal.fail(found.status.message)
    terminal.note(
        ", ".join(
            terminal.counted(counts.get(kind, 0), what)
            for kind, what in (("NodePool", "pool"), ("Queue", "queue"), ("Job", "job"))
        )
        + f": {terminal.counted(errors, 'error')}, {terminal.counted(warnings, 'warning')}"
    )
    raise typer.Exit(terminal.ERROR if errors else terminal.DONE)


def _show_problems(problems: Sequence[desired.Problem], output: FindingForm, prefix: str) -> None:
    """Print problems; `prefix` is prepended to paths within the repository."""
    if output in (FindingForm.JSON, FindingForm.YAML):
        value = {"problems": msgspec.to_builtins(problems)}
        terminal.print_document(value, terminal.Output(output.value))
    elif output is FindingForm.SARIF:
        terminal.print_document(formats.sarif(problems, prefix), terminal.Output.JSON)
    elif output is FindingForm.GITHUB:
        for line in formats.annotations(problems, prefix):
            terminal.out.print(line, markup=False, soft_wrap=True)
    else:
        for problem in problems:
            terminal.print_line(problem.text())


_Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        help="Revision to compare with. Default: the one in force, or the target branch.",
    ),
]
_Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="URL|FILE",
        help="Controller, or a file of `muster snapshot`, with the state to compare with. Default: "
        "--server.",
    ),
]


Forecast = Annotated[
    bool, typer.Option("--forecast/--no-forecast", help="Simulate which jobs start when.")
]


def plan(
    revision: Annotated[
        str | None, typer.Argument(help="Branch, tag or commit to plan.", show_default="HEAD")
    ] = None,
    *,
    head: Annotated[
        str | None, typer.Option("--head", help="The same as the argument. Default: HEAD.")
    ] = None,
    base: _Base = None,
    against: _Against = None,
    forecast: Forecast = True,
    horizon: Annotated[
        str, typer.Option("--horizon", help="Time to simulate, such as 24h.")
    ] = "24h",
    repo: Annotated[Path, typer.Option("--repo", help="Your clone of the repository.")] = Path(),
    path: Annotated[
        str,
        typer.Option(
            "--path", help="Folder of the clone with the cluster's YAML. Default: all of it."
        ),
    ] = "",
    output: Annotated[
        PlanForm, typer.Option("--output", "-o", help="Output format.", show_default=True)
    ] = PlanForm.TEXT,
    name: Annotated[
        str, typer.Option("--name", help="Name of the cluster, for a markdown comment.")
    ] = "main",
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Show what a revision would do; nothing is changed.

    Shows the objects that change, the effect on GPUs, guarantees and running work, which jobs start
    sooner or later, and findings. The digest at the end is a checksum of both revisions, the
    cluster's state and the changes: plans with one digest are the same plan. Exits with 0 if
    nothing changes, 2 if something does, 3 if something in the revision is refused or held for
    approval. Changes that were held before are shown but do not count.

    Example: muster plan my-branch --base main
    """
    horizon_s = context.parse_seconds("--horizon", horizon)
    wanted = head or revision or "HEAD"
    if wanted == "HEAD":
        _note_uncommitted(repo, path)
    # what is read lives until the command ends, so the collector need not walk it
    gc.disable()
    ahead: folder_check.ReadFiles = {}

    def prepare() -> None:
        _import_planning()
        ahead.update(folder_check.read(repo, path, wanted))

    snapshot, live, why = read_controller(against, server, token_file, prepare)
    try:
        first = _base(repo, base, wanted, live)
        found = revisions.compare(repo, path, first, wanted, live=live, read=ahead)
    except scratch_repository.RevisionError as error:
        terminal.fail(str(error))
    gc.freeze()
    gc.enable()
    result = planner.plan(
        found,
        snapshot,
        time.time(),
        no_snapshot=why,
        horizon_s=horizon_s,
        forecast=forecast,
        not_allowed=why if snapshot is None and live is not None else "",
    )
    with terminal.keep_exit_code():
        show(result, output, name)
    raise typer.Exit(_CODES[result.verdict])


def _note_uncommitted(repo: Path, path: str) -> None:
    """Print which files the plan leaves out because they are not committed."""
    if left := revisions.uncommitted(repo, path):
        which = f"{left[0]} and {len(left) - 1} more" if len(left) > 1 else left[0]
        terminal.note(f"not in this plan, because not committed: {which}")


def show(result: plan_types.Plan, output: PlanForm, name: str) -> None:
    """Print a plan; `name` is the cluster's, for a comment."""
    if output is PlanForm.MARKDOWN:
        # logs of pipelines show it, and forges
        terminal.write_text(terminal.escape_lines(pull_request_comment.render(result, name)))
    elif output is PlanForm.TEXT:
        for line in plan_text.lines(result, terminal.format_clocks):
            terminal.out.print(line.text, style=line.style or None, markup=False, soft_wrap=True)
    else:
        terminal.print_document(result, terminal.Output(output.value))


_CODES = {
    "none": terminal.DONE,
    "changes": terminal.CHANGES,
    "held": terminal.REFUSED,
    "refused": terminal.REFUSED,
}


def _base(
    repo: Path, base: str | None, head: str, live: revisions.ControllerRevision | None
) -> str:
    """Return the revision to compare with: the given one, that in force, or the target branch.

    Exit if the revision in force is not in the clone and none is given.
    """
    if live is None:
        return base or revisions.default_base(repo, head)
    for revision in filter(None, (live.structure, live.revision)):
        if not revisions.has_commit(repo, revision):
            lacking = (
                f"{revision[:12]} is in force, but not in {repo.resolve()}. To fix: `git fetch`, "
                "if the controller reads the same repository"
            )
            if base is None:
                terminal.fail(
                    f"{lacking}; after a force push (which is held), compare with --base REVISION, "
                    "such as the last commit that you know was in force"
                )
            terminal.note(f"{lacking}; changes that are held there are not counted")
            break
    return base or live.revision


def _import_planning() -> None:
    """Import the modules of a plan, which takes as long as a snapshot takes to arrive."""
    for module in (planner, revisions, plan_text):
        module.__doc__  # noqa: B018 - the first attribute access imports a lazy module


def read_controller(
    against: str | None,
    server: str | None,
    token_file: str | None,
    meanwhile: Callable[[], object] = _import_planning,
) -> tuple[cluster_snapshot.DigestedSnapshot | None, revisions.ControllerRevision | None, str]:
    """Return the controller's snapshot, its revision in force, and why a part is missing.

    If no controller was named and none answers, the first two are None. A controller that does not
    give its records to this user still tells its revision. `meanwhile` is called during the
    request.
    """

    def endpoint(url: str | None) -> endpoints.Endpoint:
        return endpoints.find(url or server, token_file, Path.cwd())

    try:
        snapshot = cluster_snapshot.find(against, endpoint, meanwhile)
    except cluster_snapshot.NotAllowedError as error:
        why = str(error)
    except cluster_snapshot.SnapshotError as error:
        if against is not None or server is not None:
            terminal.fail(str(error))
        return None, None, str(error)
    else:
        return snapshot, planner.in_force(snapshot), ""
    try:
        jobs, structure = cluster_snapshot.standing(against, endpoint)
    except cluster_snapshot.SnapshotError as error:
        terminal.fail(str(error))
    terminal.note(f"the plan leaves out running work: {why}")
    return None, None if jobs is None else revisions.ControllerRevision(jobs, structure), why


def snapshot(
    file: Annotated[Path, typer.Argument(help="File to write; an existing one is replaced.")],
    *,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Save the state of the controller for plans elsewhere.

    `muster plan --against FILE` reads the file, for example in CI without access to the controller.

    Example: muster snapshot cluster.snapshot
    """
    with context.controller(server, token_file) as api:
        data = cluster_snapshot.fetch(api)
    live = cluster_snapshot.unpack(data, api.url).live
    try:
        partial = file.with_name(f".{file.name}.partial")
        partial.write_bytes(data)
        partial.replace(file)
    except OSError as error:
        terminal.fail(f"{file}: {error.strerror or error}")
    jobs = terminal.counted(len(live.observed.jobs), "job")
    nodes = terminal.counted(len(live.observed.nodes), "node")
    terminal.note(f"{file}: {jobs}, {nodes}")

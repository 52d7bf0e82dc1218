"""Commands for emergencies in which git can't take a change: make, list and end overrides.

`cancel`, `drain`, `suspend` and `resume` call this module for `--override`.
"""

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reconciler.cli import completion, context, lazy_import, terminal
from reconciler.model.state import records
from reconciler.model.values import found_values

if TYPE_CHECKING:
    from reconciler.operations.changes import suspension
else:
    suspension = lazy_import.module("reconciler.operations.changes.suspension")

Override = Annotated[
    bool,
    typer.Option(
        "--override",
        help="Do it even if git can't be reached, or its structure is held or refused. Expires "
        "after --for; needs --reason.",
    ),
]
For = Annotated[
    str | None,
    typer.Option("--for", help="How long an override lasts, at most 7d. Default: 4h."),
]
DONE = {"cancel": "cancelled", "drain": "drained", "suspend": "suspended"}
#: Commands that end what a commit did instead of an override.
_UNDO = {"drain": "muster undrain", "suspend": "muster resume"}


class Verb(StrEnum):
    """Effects that an override can have."""

    CANCEL = "cancel"
    DRAIN = "drain"
    SUSPEND = "suspend"
    SUBMIT = "submit"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(overrides)
    group.command()(clear)
    app.add_typer(group, name="overrides")


def make_overrides(
    verb: str,
    names: list[str],
    reason: str,
    lasts: str | None,
    place: tuple[str | None, str | None],
) -> None:
    """Make overrides at the controller."""
    if not reason.strip():
        terminal.fail("an override needs a --reason", terminal.USAGE)
    body: dict[str, Any] = {"verb": verb, "names": names, "reason": reason}
    if lasts is not None:
        body["for_s"] = _span_s(lasts)
    with context.controller(*place) as api:
        results = api.post("/v1/overrides", body)["items"]
    for result in results:
        override = result["override"]
        terminal.out.print(result["name"], markup=False)
        if override is None:
            undo = _UNDO.get(verb)
            ending = f": it does not expire; {undo} {result['name']} ends it" if undo else ""
            terminal.note(f"{DONE[verb]} by a commit, because git could be reached{ending}")
            continue
        until = terminal.format_clock(override["expires"])
        terminal.note(f"{DONE[verb]} by an override until {until}")
        if result["commit"] is None:
            terminal.note(f"Shown as drift until committed. To commit it: {override['commit']}")
        else:
            terminal.note(
                "Also committed, but the structure in git does not apply at the moment "
                "(`muster status` shows why). The override applies until it does."
            )


def _span_s(lasts: str) -> int:
    """Return how many seconds an override lasts. Exit if that is longer than allowed."""
    span_s = context.parse_seconds("--for", lasts)
    if not 1 <= span_s <= records.OVERRIDE_S_MAX:
        most = f"{records.OVERRIDE_S_MAX // 86400}d"
        terminal.fail(
            f"--for: found {found_values.quote(lasts)}, expected 1s to {most}; commit changes "
            "that last longer",
            terminal.USAGE,
        )
    return span_s


def check_options(*, override: bool, lasts: str | None, dry_run: bool) -> None:
    """Exit if options contradict each other."""
    if override and dry_run:
        terminal.fail("--override and --dry-run can't be combined", terminal.USAGE)
    if lasts is not None and not override:
        terminal.fail("--for needs --override: it sets how long an override lasts", terminal.USAGE)


def hint(verb: str, names: list[str], reason: str, until: str = "git can be reached") -> str:
    """Return the command that makes an override of what git does not take or apply."""
    words = ["muster", verb, *names, "--override", "--reason", reason or "WHY"]
    return f"To do it before {until}: {shlex.join(words)}"


def overrides(
    at: typer.Context,
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """List overrides: emergency changes outside git.

    Emergency changes made while git was unavailable, until committed or expired, and submissions
    that wait for git. `muster overrides clear` ends one.

    Example: muster overrides -o json
    """
    if at.invoked_subcommand is not None:
        return
    with context.controller(server, token_file) as api:
        page = api.get("/v1/overrides")
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(page, output)
        return
    rows = [
        [i["verb"], i["subject"], i["owner"], terminal.format_clock(i["expires"]), i["reason"]]
        for i in page["items"]
    ]
    if not rows:
        terminal.note("no overrides")
        return
    terminal.print_table(["KIND", "NAME", "BY", "UNTIL", "REASON"], rows)
    for item in page["items"]:
        if item["verb"] == Verb.SUBMIT:
            terminal.note(f"{item['subject']}: {_submission_text(item)}")
        elif item["committed"]:
            terminal.note(
                f"{item['subject']}: committed in {item['committed'][:12]}, which is not in force "
                "yet (`muster status` shows why)"
            )
        else:
            terminal.note(f"To commit it: {item['commit']}")


def _submission_text(item: dict[str, Any]) -> str:
    """Return what becomes of a submission that waits for git."""
    if item.get("refused"):
        return f"not committed: {item['refused']}"
    return "waits for git, and is committed when that can be reached"


def clear(
    kind: Annotated[Verb, typer.Argument(help="Kind of override, as `muster overrides` lists it.")],
    name: Annotated[
        str,
        typer.Argument(
            help="JOB, NODE, queue/NAME or cluster.",
            autocompletion=completion.overridable,
            callback=context.require_text,
        ),
    ],
    *,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """End an override early.

    A drained node takes work again. A cancelled run stays cancelled. A submission that waits for
    git is withdrawn.

    Example: muster overrides clear drain gpu003
    """
    if kind is Verb.SUSPEND:
        try:
            name = suspension.canonical(name)
        except suspension.SubjectError as error:
            terminal.fail(str(error), terminal.USAGE)
    else:
        context.require_name(name)
    end_override(kind, name, (server, token_file))


def end_override(kind: Verb, name: str, place: tuple[str | None, str | None]) -> None:
    """End an override, and print what applies from now on."""
    with context.controller(*place) as api:
        api.delete(f"/v1/overrides/{kind.value}/{name}")
    if kind is Verb.CANCEL:
        message = "override ended; the run stays cancelled (`muster rerun` starts another)"
    elif kind is Verb.SUBMIT:
        message = "submission withdrawn; only a push that is under way may still commit it"
    else:
        message = "override ended; git applies again"
    terminal.out.print(name, markup=False)
    terminal.note(message)

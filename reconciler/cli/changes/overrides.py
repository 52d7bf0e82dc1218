"""Commands for the time in which git can't take something: overrides, made, listed and ended.

``cancel``, ``drain``, ``suspend`` and ``resume`` come here when called with ``--override``.
"""

import shlex
from enum import StrEnum
from typing import Annotated, Any

import typer

from reconciler.cli import completion, context, terminal
from reconciler.model.state import records

Override = Annotated[
    bool,
    typer.Option(
        "--override",
        help="Do it also while git can't be reached or the structure there is held or refused, "
        "for as long as --for says; needs --reason.",
    ),
]
For = Annotated[
    str | None,
    typer.Option("--for", help="How long an override lasts, 7d at the most; 4h if left out."),
]
DONE = {"cancel": "cancelled", "drain": "drained", "suspend": "suspended"}


class Verb(StrEnum):
    """What an override does."""

    CANCEL = "cancel"
    DRAIN = "drain"
    SUSPEND = "suspend"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(overrides)
    group.command()(clear)
    app.add_typer(group, name="overrides")


def put(
    verb: str,
    names: list[str],
    reason: str,
    lasts: str | None,
    place: tuple[str | None, str | None],
) -> None:
    """Make overrides at the controller, where git does not take them."""
    if not reason.strip():
        terminal.fail("an override needs a --reason, for who comes after", terminal.USAGE)
    body: dict[str, Any] = {"verb": verb, "names": names, "reason": reason}
    if lasts is not None:
        body["for_s"] = _span_s(lasts)
    with context.controller(*place) as api:
        results = api.post("/v1/overrides", body)["items"]
    for result in results:
        made = result["override"]
        terminal.out.print(result["name"], markup=False)
        if made is None:
            told = f"{DONE[verb]}; git could be reached, so it is committed"
            terminal.note(told)
            continue
        until = terminal.clock(made["expires"])
        terminal.note(f"{DONE[verb]} by an override until {until}")
        if result["commit"] is None:
            terminal.note(f"It is drift until git says the same; to commit it: {made['commit']}")
        else:
            terminal.note(
                "It is committed as well, but the structure in git does not apply at the moment "
                "(`muster status` says why): the override holds until it does"
            )


def _span_s(lasts: str) -> int:
    """How long an override is to last; leaves the command where that is longer than any may."""
    span_s = context.seconds("--for", lasts)
    if not 1 <= span_s <= records.OVERRIDE_S_MAX:
        most = f"{records.OVERRIDE_S_MAX // 86400}d"
        terminal.fail(
            f"--for: found {lasts}, expected 1s to {most}: what is to last longer belongs in git",
            terminal.USAGE,
        )
    return span_s


def check_options(*, override: bool, lasts: str | None, dry_run: bool) -> None:
    """Refuse options that make no sense together."""
    if override and dry_run:
        terminal.fail("--override can't be tried out: leave --dry-run or it away", terminal.USAGE)
    if lasts is not None and not override:
        terminal.fail("--for says how long an --override lasts; name both", terminal.USAGE)


def hint(verb: str, names: list[str], reason: str, until: str = "git can be reached") -> str:
    """The command that makes an override of what git did not take, or does not let apply."""
    words = ["muster", verb, *names, "--override", "--reason", reason or "WHY"]
    return f"if it can't wait until {until}: {shlex.join(words)}"


def overrides(
    at: typer.Context,
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """List what was done behind git, and end it.

    Jobs are cancelled, nodes drained and queues suspended so while git can not take it; it is
    shown until it is committed or over.

    Example: muster overrides -o json
    """
    if at.invoked_subcommand is not None:
        return
    with context.controller(server, token_file) as api:
        page = api.get("/v1/overrides")
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.document(page, output)
        return
    rows = [
        [i["verb"], i["subject"], i["owner"], terminal.clock(i["expires"]), i["reason"]]
        for i in page["items"]
    ]
    if not rows:
        terminal.note("no overrides: nobody has done anything behind git")
        return
    terminal.table(["KIND", "NAME", "BY", "UNTIL", "WHY"], rows)
    for item in page["items"]:
        if item["committed"]:
            terminal.note(
                f"{item['subject']}: committed in {item['committed'][:12]}, which is not in force "
                "yet (`muster status` says why)"
            )
        else:
            terminal.note(f"to commit it: {item['commit']}")


def clear(
    kind: Annotated[Verb, typer.Argument(help="What it does.")],
    name: Annotated[
        str,
        typer.Argument(
            help="The job, node, queue/NAME or cluster.",
            autocompletion=completion.overridable,
            callback=context.named,
        ),
    ],
    *,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """End an override before its time: a node works again; a cancelled run stays cancelled.

    Example: muster overrides clear drain gpu003
    """
    end(kind, name, (server, token_file))


def end(kind: Verb, name: str, place: tuple[str | None, str | None]) -> None:
    """End an override, and say what decides from now on."""
    with context.controller(*place) as api:
        api.delete(f"/v1/overrides/{kind.value}/{name}")
    if kind is Verb.CANCEL:
        told = "the override is ended; the run stays cancelled (`muster rerun` starts another)"
    else:
        told = "the override is ended; git decides again"
    terminal.out.print(name, markup=False)
    terminal.note(told)

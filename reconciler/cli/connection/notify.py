"""The commands `muster notify`: a person is told what becomes of their own jobs."""

from __future__ import annotations

import getpass
import sys
import time
from typing import Annotated, Any

import typer

from reconciler.cli import context, terminal
from reconciler.model.values import found_values

WHENS = ("ended", "failed", "evicted")
#: How long a test may take, and how often its result is looked for.
TEST_S_MAX = 75.0
LOOK_S = 0.5
_STDIN = "-"
_HTTPS = "https://"


def _require_https(value: str | None) -> str | None:
    """Return a URL as given. Raise BadParameter if it is not of https, without repeating it."""
    if value is not None and value != _STDIN and not value.startswith(_HTTPS):
        raise typer.BadParameter(f"expected a URL that begins with {_HTTPS}, or -")
    return value


def _require_reasons(value: str | None) -> str | None:
    """Return reasons as given. Raise BadParameter if one is unknown."""
    named = [] if value is None else _split(value)
    odd = [one for one in named if one not in WHENS]
    if odd or (value is not None and not named):
        raise typer.BadParameter(
            f"found {found_values.quote(odd[0] if odd else '')}, expected some of "
            f"{', '.join(WHENS)}, with commas"
        )
    return value


def _split(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


_Name = Annotated[
    str,
    typer.Argument(help="Name of the notification, such as me.", callback=context.require_name),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Be told of your own jobs by Slack, e-mail or webhook.",
    )
    group.command()(add)
    group.command(name="list")(show)
    group.command()(remove)
    group.command(name="test")(probe)
    app.add_typer(group, name="notify")


def add(
    name: _Name,
    *,
    slack: Annotated[
        str | None,
        typer.Option(
            "--slack",
            metavar="URL",
            help="Incoming webhook of Slack; - asks for it. Default: none.",
            callback=_require_https,
        ),
    ] = None,
    email: Annotated[
        bool, typer.Option("--email", help="Send mail to the address of your token.")
    ] = False,
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook",
            metavar="URL",
            help="A receiver of your own; - asks for it. Default: none.",
            callback=_require_https,
        ),
    ] = None,
    when: Annotated[
        str | None,
        typer.Option(
            "--when",
            help="Some of ended, failed, evicted, with commas. Default: all.",
            callback=_require_reasons,
        ),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="PATTERN",
            help="Only jobs whose names match, such as 'train-*'. Default: all.",
        ),
    ] = None,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Be told of your own jobs.

    URLs are secrets, and arguments are not: with `-`, the URL is asked for, or read from stdin. The
    key of a webhook is printed this once.

    Example: muster notify add me --email --when failed,evicted

    Example: muster notify add chat --slack - --job 'train-*'
    """
    chosen = [
        kind
        for kind, given in (("slack", slack), ("email", email or None), ("webhook", webhook))
        if given is not None
    ]
    if len(chosen) != 1:
        found = " and ".join(f"--{one}" for one in chosen) or "none"
        terminal.fail(
            f"expected one of --slack URL, --email and --webhook URL, found {found}",
            terminal.USAGE,
        )
    body: dict[str, Any] = {
        "name": name,
        "kind": chosen[0],
        "when": list(WHENS) if when is None else _split(when),
    }
    url = slack if slack is not None else webhook
    if url is not None:
        body["url"] = _url(url)
    if job is not None:
        body["job"] = job
    with context.controller(server, token_file) as api:
        answer = api.post("/v1/notifications", body)
    made = answer["notification"]
    if answer["key"]:
        terminal.out.print(answer["key"], markup=False, soft_wrap=True)
        terminal.note("This key signs what your receiver gets. It is not shown again.")
    terminal.note(f"{made['place']} is told of your jobs. To try it: muster notify test {name}")


def show(
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """List your notifications, without what is secret.

    Example: muster notify list

    Example: muster notify list -o json
    """
    with context.controller(server, token_file) as api:
        page = api.get("/v1/notifications")
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.print_document(page, output)
        return
    if not page["items"]:
        terminal.note("no notifications; muster notify add --help shows how to make one")
        return
    rows = [
        [
            one["name"],
            one["place"],
            ",".join(one["when"]),
            one["job"],
            terminal.format_clock(one["tried"]) if one["tried"] else "-",
            one["why"] or ("told" if one["tried"] else "-"),
        ]
        for one in page["items"]
    ]
    terminal.print_table(["NAME", "TO", "WHEN", "JOBS", "LAST", "RESULT"], rows)


def remove(
    name: _Name,
    *,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Remove one of your notifications.

    Example: muster notify remove me
    """
    with context.controller(server, token_file) as api:
        api.delete(f"/v1/notifications/{name}")
    terminal.note(f"notification {name} is removed")


def probe(
    name: _Name,
    *,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Send a test, and say what became of it.

    Example: muster notify test me
    """
    with context.controller(server, token_file) as api:
        number = api.post(f"/v1/notifications/{name}/test", {})["test"]
        ends_at = time.monotonic() + TEST_S_MAX
        while True:
            items = api.get("/v1/notifications")["items"]
            found = next((one for one in items if one["name"] == name), None)
            if found is None or found["tested"] == number:
                break
            if time.monotonic() > ends_at:
                terminal.fail(
                    f"the test has no result after {round(TEST_S_MAX)} s: you were told a lot this "
                    "minute, or the receiver is slow; muster notify list shows it later"
                )
            time.sleep(LOOK_S)
    if found is None:
        terminal.fail(f"notification {name} was removed meanwhile")
    if found["why"]:
        terminal.fail(f"{found['place']} was not told: {found['why']}")
    terminal.note(f"{found['place']} took the test")


def _url(given: str) -> str:
    """Return a URL that was given, or that is asked for. Exit if it can't be one."""
    if given != _STDIN:
        return given
    is_person = sys.stdin.isatty()
    found = (getpass.getpass("URL: ") if is_person else sys.stdin.readline()).strip()
    if not found.startswith(_HTTPS):
        terminal.fail(f"expected a URL that begins with {_HTTPS}", terminal.USAGE)
    return found

"""The command that says why a job is as it is, or was at a moment in the past."""

import time
from typing import Annotated, Any

import typer

from reconciler.cli import context, looking, terminal
from reconciler.model import times

Json = Any


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(explain)


def explain(
    name: Annotated[str, typer.Argument(help="Name of the job.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="As it was then: a time such as 2026-11-20T23:30:00Z, or a duration ago such as "
            "10m.",
        ),
    ] = None,
    *,
    output: context.Form = terminal.Output.TABLE,
    server: context.Server = None,
    token_file: context.TokenFile = None,
) -> None:
    """Say why a job waits and what would end that, now or at a moment in the past.

    With --at the cycle of that moment is decided again, from what the controller journalled. It
    exits with 1 when that comes to anything else than was decided then.

    Example: muster explain train --at 8h
    """
    moment = None if at is None else _moment(at)
    with context.controller(server, token_file) as api:
        item = api.get(f"/v1/jobs/{name}/explain", at=moment)
    replayed = item.get("replayed")
    if output in (terminal.Output.JSON, terminal.Output.YAML):
        terminal.document(item, output)
    else:
        if replayed:
            _explain_cycle(replayed)
        verb = "was" if replayed else "is"
        _explain_job(item, f"{name} {verb} {item['job']['state']}.")
    if replayed and replayed["disagreements"]:
        terminal.fail(
            f"the replay of cycle {replayed['cycle']} came to other {_and(replayed)} than were "
            f"recorded then, by Muster {replayed['muster']}: what is shown is not what was decided"
        )


def _moment(written: str) -> str:
    """RFC 3339 as written, or from a duration ago; leaves the command when it is neither."""
    if written[:1].isdigit() and "-" in written:
        try:
            return times.format_time(times.parse_time(written))
        except ValueError as error:
            terminal.fail(f"--at: {error}", terminal.USAGE)
    return times.format_time(time.time() - context.seconds(written))


def _and(replayed: Json) -> str:
    return " and ".join(replayed["disagreements"])


def _explain_cycle(replayed: Json) -> None:
    revision = (replayed["revision"] or "none")[:12]
    structure = (replayed["structureRevision"] or "none")[:12]
    which = revision if structure == revision else f"{revision}, with the structure of {structure}"
    terminal.out.print(
        f"As of cycle {replayed['cycle']}, of {replayed['decided']}, by revision {which}:\n",
        markup=False,
        soft_wrap=True,
    )


def _explain_job(item: Json, headline: str) -> None:
    terminal.out.print(headline, markup=False)
    for reason in item.get("reasons") or []:
        terminal.out.print(f"\n{reason['code']}: {reason['message']}", markup=False, soft_wrap=True)
        for step in reason.get("funnel") or []:
            told = f"  {step['count']:>5} nodes: {step['why']}"
            terminal.out.print(told, markup=False, soft_wrap=True)
        if reason.get("unblocks"):
            told = f"  It would end with: {reason['unblocks']}."
            terminal.out.print(told, markup=False, soft_wrap=True)
    _explain_queue(item["queue"])
    if item["job"]["place"]:
        terminal.out.print(f"Place in its queue: {item['job']['place']}.", markup=False)
    if item["job"]["estimatedStart"]:
        terminal.out.print(f"Estimated start: {item['job']['estimatedStart']}.", markup=False)


def _explain_queue(queue: Json) -> None:
    if queue is None:
        return
    terminal.out.print(f"\nQueue {queue['name']}:", markup=False)
    for resource in ("gpu", "cpu", "memory"):
        parts = [
            f"{kind} {looking.amount(queue, kind, resource)}"
            for kind in ("allocated", "guaranteed", "limit")
        ]
        terminal.out.print(f"  {resource:<7}{', '.join(parts)}", markup=False)

"""Arguments that several commands take, each with its help, completion and check."""

from typing import Annotated

import typer

from reconciler.cli import completion, context

#: A job, or one element of an array.
JobOrElement = Annotated[
    str,
    typer.Argument(
        help="Name of the job, or JOB[ELEMENT] for an array element.",
        autocompletion=completion.jobs,
        callback=context.require_one,
    ),
]
#: The element, for commands that take it beside the name as well.
OfElement = Annotated[
    int | None, typer.Option("--element", "-e", help="Array index. Default: all.", min=0)
]
#: Shows one node only; None: all.
OfNode = Annotated[
    str | None,
    typer.Option(
        "--node",
        help="Only this node. Default: all.",
        autocompletion=completion.nodes,
        callback=context.require_name,
    ),
]

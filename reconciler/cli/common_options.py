"""Names that several commands take, each with its help, its completion and what is refused."""

from typing import Annotated

import typer

from reconciler.cli import completion, context

#: A job, or one element of an array.
JobOrElement = Annotated[
    str,
    typer.Argument(
        help="Name of the job, or JOB[ELEMENT] of an array.",
        autocompletion=completion.jobs,
        callback=context.named,
    ),
]
#: What is shown is only of this node; None: of all.
OfNode = Annotated[
    str | None,
    typer.Option(
        "--node",
        help="Only of this node.",
        autocompletion=completion.nodes,
        callback=context.named,
    ),
]

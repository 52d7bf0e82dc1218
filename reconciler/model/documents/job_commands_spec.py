"""Commands of the site around each job on the nodes of a ``NodePool``."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Duration, Name, doc

Argument = Annotated[str, msgspec.Meta(max_length=4096)]


class JobCommandSpec(DocumentPart, frozen=True):
    """A command before or after a job: status 0 is success, anything else is a failure."""

    name: Annotated[
        Name,
        doc(
            "Name of the command and, unless it runs as the user, of the node's check that fails"
            " with it.",
            example="scrub-gpus",
        ),
    ]
    command: Annotated[
        list[Argument],
        doc(
            "Program, by its whole path, and arguments; run without a shell in the folder `/`.",
            example=["/opt/site/scrub-gpus"],
            min_length=1,
            max_length=64,
        ),
    ]
    timeout: Annotated[
        Duration,
        doc(
            "Time limit, 1h at the most; after it the command is killed and has failed.",
            example="2m",
            unit="duration",
        ),
    ] = "1m"
    run_as: Annotated[
        Literal["agent", "user"],
        doc(
            "User. `agent`: the agent's own, root on most nodes, with Muster's own variables and"
            " nothing of the job's environment. `user`: the job's, with the environment and the"
            " limits of its first task on the node.",
            example="user",
        ),
    ] = "agent"

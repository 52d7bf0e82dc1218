"""``muster-agent``: parses the command line and runs the agent of one node."""

import faulthandler
import os
import sys

from agents import node_agent, settings
from agents.host import disk_space, malloc_tuning
from agents.host.token_file import TokenFileError
from agents.link.http_client import LinkError
from agents.node import agent_identity
from reconciler.model.values import log_lines

#: Modes of what the agent and its helpers create are those that the code names, whoever starts it.
UMASK = 0o022


def main(arguments: list[str] | None = None) -> int:
    """Run the agent until it is stopped. Return the exit code."""
    os.umask(UMASK)
    words = sys.argv[1:] if arguments is None else arguments
    if "--check" in words:
        from agents.preflight import preflight_check  # noqa: PLC0415 - a running node needs none of it

        return preflight_check.main(settings.parser(required=False).parse_args(words))
    given = settings.parse(words)
    malloc_tuning.restrain()
    faulthandler.enable()  # a crash in compiled code then shows where it was
    try:
        return node_agent.Agent(given).run()
    except (agent_identity.OccupiedError, TokenFileError, LinkError, OSError) as problem:
        why = str(problem)
        if isinstance(problem, OSError):
            why = disk_space.explained(problem, given.root)
        sys.stderr.write(log_lines.escape(f"muster-agent {given.name}: {why}") + "\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""``muster-agent``: reads the command line and runs the agent of one node."""

import sys

from agents import settings, shell
from agents.link import LinkError
from agents.tasks import UnfitError


def main(arguments: list[str] | None = None) -> int:
    """Run until told to leave; the exit code."""
    given = settings.parse(arguments)
    try:
        return shell.Agent(given).run()
    except (shell.OccupiedError, UnfitError, LinkError, OSError) as problem:
        sys.stderr.write(f"muster-agent {given.name}: {problem}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())

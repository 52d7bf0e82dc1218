"""Where the ``muster`` command begins, before anything that takes time or may be missing.

Importing the parser takes longer than many commands run, and a node has none: what is said of
Ctrl-C and of a missing package has to be said from here, with the standard library alone.
"""

import os
import sys

from reconciler.cli import interrupts

#: As in `terminal`, which needs packages.
ERROR = 1
#: Packages of the project itself: that one of their modules is missing is a defect, not a choice.
OWN = ("reconciler", "agents")


def main() -> None:
    """Entry point of ``muster``."""
    interrupts.leave_at_once()
    try:
        from reconciler.cli import main  # noqa: PLC0415 - after the line above
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in OWN:
            raise
        sys.exit(_without_commands(missing, sys.argv[1:]))
    main.main()


def _without_commands(missing: str, words: list[str]) -> int:
    """What an installation without the command line does: a node's agent, and else says why not."""
    if words[:1] == ["agent"]:
        command = [sys.executable, "-m", "agents", *words[1:]]
        os.execv(sys.executable, command)  # noqa: S606 - no shell
    sys.stderr.write(
        f"muster: no package {missing!r} here, which all commands but `muster agent` need\n"
        "  to get them: pip install 'muster-cluster[controller]'\n"
        "  a node's agent is a command of its own: muster-agent --help\n"
    )
    return ERROR


if __name__ == "__main__":
    main()

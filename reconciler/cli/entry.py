"""Entry point of the `muster` command, before anything slow or missing is imported.

Importing the parser takes longer than many commands run, and a node does not have it. Ctrl-C and a
missing package are handled here, with the standard library alone.
"""

import os
import sys

from reconciler.cli import interrupts

#: As in `terminal`, which needs packages.
ERROR = 1
USAGE = 64
#: Packages of the project itself: that one of their modules is missing is a defect, not a choice.
OWN = ("reconciler", "agents")


def main() -> None:
    """Run `muster`."""
    interrupts.leave_at_once()
    if odd := _not_text(sys.argv[1:]):
        sys.stderr.write(odd)
        sys.exit(USAGE)
    try:
        from reconciler.cli import main  # noqa: PLC0415 - after the line above
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in OWN:
            raise
        sys.exit(_without_commands(missing, sys.argv[1:]))
    main.main()


def _not_text(words: list[str]) -> str:
    """Return the message about the first argument that is not UTF-8; empty if all are.

    Documents, requests and output are UTF-8: such an argument could be passed on nowhere.
    """
    for position, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(word).decode("ascii", "backslashreplace")
            return (
                f"muster: argument {position} is not UTF-8: found {shown}\n"
                "  To fix: write it in UTF-8 (see `locale`), or put what it names into a script\n"
            )
    return ""


def _without_commands(missing: str, words: list[str]) -> int:
    """Run the node's agent if that was the command; otherwise print which package is missing."""
    if words[:1] == ["agent"]:
        from reconciler import interpreter  # noqa: PLC0415 - nothing is loaded before interrupts

        command = interpreter.module_command("agents", *words[1:])
        os.execv(sys.executable, command)  # noqa: S606 - no shell
    sys.stderr.write(
        f"muster: package {missing!r} is not installed; every command but `muster agent` needs it\n"
        "  To fix: pip install 'muster-cluster[controller]'\n"
        "  On a node, use the agent's own command: muster-agent --help\n"
    )
    return ERROR


if __name__ == "__main__":
    main()

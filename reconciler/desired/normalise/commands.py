"""Checks that the command, script and environment of a task can be passed to a program.

Those of one group come in; faults go out. Anything too long would be placed and then fail at its
node, attempt by attempt.
"""

from collections.abc import Mapping, Sequence

from reconciler.desired.documents.faults import FaultCollector
from reconciler.desired.documents.yaml_reader import Path
from reconciler.model.values import exec_limits, found_values

#: The most bytes of a character.
_CHARACTER_BYTES_MAX = 4
_SHOWN_MAX = 40
#: How many lines of a script are searched for one that was to be the first.
SCRIPT_LINES_MAX = 20
_STRING = exec_limits.STRING_BYTES_MAX


def check(
    command: Sequence[str] | None,
    script: str | None,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    faults: FaultCollector,
    place: Path,
) -> None:
    """Note a script that can't start, and parts that are too long, alone or together.

    ``place`` is of the group, or the job.
    """
    if script is not None and (why := why_not_run(script)):
        faults.add("script-line", why, *place, "script", found=_first_line(script))
    if arguments and script is None:
        faults.add(
            "arguments-without-script",
            "arguments are of a script: write those of a command into the command",
            *place,
            "arguments",
        )
    field, words = ("command", command or ()) if script is None else ("arguments", arguments)
    characters = sum(map(len, words)) + sum(map(len, environment.values()))
    characters += sum(map(len, environment)) + len(script or "")
    if characters * _CHARACTER_BYTES_MAX < exec_limits.STRING_BYTES_MAX:
        return
    if script is not None and (size := len(script.encode())) > exec_limits.SCRIPT_BYTES_MAX:
        advice = "put it into a file, or the image, and start that"
        where = (*place, "script")
        _note(faults, where, "the script", advice, size=size, most=exec_limits.SCRIPT_BYTES_MAX)
    total = 0
    for position, one in enumerate(words):
        total += (size := len(one.encode())) + 1
        if size > _STRING:
            advice = "use a script, or put it into a file"
            _note(faults, (*place, field, position), "an argument", advice, size=size)
    for name, value in environment.items():
        total += (size := len(f"{name}={value}".encode())) + 1
        if size > _STRING:
            shown = name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}…"
            where = (*place, "environment", name)
            _note(faults, where, f"the variable {shown}", "put it into a file", size=size)
    if total > exec_limits.STRINGS_BYTES_MAX and not faults.found:
        where = (*place, "environment") if environment else (*place, field)
        what = "the command and all variables together"
        advice = "put most of it into a file"
        _note(faults, where, what, advice, size=total, most=exec_limits.STRINGS_BYTES_MAX)


def why_not_run(script: str) -> str:
    """Return why the kernel can't start a script, or starts another program; empty: it can."""
    lines = script.split("\n")
    if script.startswith("#!"):
        if lines[0].endswith("\r"):
            return "its first line ends as in Windows (CR LF): save it with LF alone"
        if not any(line.strip() for line in lines[1:]):
            return "there is nothing behind its first line: begin it with `script: |`, not with `>`"
        return ""
    for number, line in enumerate(lines[:SCRIPT_LINES_MAX], 1):
        bare = line.strip("\ufeff \t\r")
        if bare.startswith("#!"):
            where = f"line {number}, where it counts for nothing" if number > 1 else "indented"
            return f"its #! line is {where}: put it first, without anything before it"
        if bare and not bare.startswith("#"):
            break
    return ""


def _first_line(script: str) -> str:
    return found_values.quote(script.partition("\n")[0][:_SHOWN_MAX])


def _note(
    faults: FaultCollector, where: Path, what: str, advice: str, *, size: int, most: int = _STRING
) -> None:
    faults.add(
        "too-large",
        f"{what}: too long to start a program with: {advice}",
        *where,
        found=f"{size} bytes",
        expected=f"at most {most} bytes",
    )

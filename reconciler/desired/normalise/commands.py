"""Checks that the command, script and environment of a task can be passed to a program.

Those of one group come in; faults go out. Anything too long would be placed and then fail at its
node, attempt by attempt.
"""

from collections.abc import Mapping, Sequence

from reconciler.desired.documents.faults import FaultCollector
from reconciler.desired.documents.yaml_reader import Path
from reconciler.model.values import exec_limits

#: The most bytes of a character.
_CHARACTER_BYTES_MAX = 4
_SHOWN_MAX = 40
_STRING = exec_limits.STRING_BYTES_MAX


def check(
    command: Sequence[str] | None,
    script: str | None,
    environment: Mapping[str, str],
    faults: FaultCollector,
    place: Path,
) -> None:
    """Note parts that are too long, alone or together; ``place`` is of the group, or the job."""
    characters = sum(map(len, command or ())) + sum(map(len, environment.values()))
    characters += sum(map(len, environment)) + len(script or "")
    if characters * _CHARACTER_BYTES_MAX < exec_limits.STRING_BYTES_MAX:
        return
    if script is not None and (size := len(script.encode())) > exec_limits.SCRIPT_BYTES_MAX:
        advice = "put it into a file, or the image, and start that"
        where = (*place, "script")
        _note(faults, where, "the script", advice, size=size, most=exec_limits.SCRIPT_BYTES_MAX)
    total = 0
    for position, one in enumerate(command or ()):
        total += (size := len(one.encode())) + 1
        if size > _STRING:
            advice = "use a script, or put it into a file"
            _note(faults, (*place, "command", position), "an argument", advice, size=size)
    for name, value in environment.items():
        total += (size := len(f"{name}={value}".encode())) + 1
        if size > _STRING:
            shown = name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}…"
            where = (*place, "environment", name)
            _note(faults, where, f"the variable {shown}", "put it into a file", size=size)
    if total > exec_limits.STRINGS_BYTES_MAX and not faults.found:
        where = (*place, "environment") if environment else (*place, "command")
        what = "the command and all variables together"
        advice = "put most of it into a file"
        _note(faults, where, what, advice, size=total, most=exec_limits.STRINGS_BYTES_MAX)


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

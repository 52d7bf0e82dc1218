"""What the words behind ``muster submit`` mean: files, or a command, and how many elements.

A command stands behind ``--``, always; words before it, or without it, are files of documents. Else
a file that is not there would be taken for a program of the nodes, and become a job that fails.
"""

import array
import contextlib
import errno
import fcntl
import os
import re
import select
import shlex
import stat
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from reconciler.cli import lazy_import, terminal
from reconciler.model.values import quantities

if TYPE_CHECKING:
    from reconciler.operations.changes import remote_changes
else:
    remote_changes = lazy_import.module("reconciler.operations.changes.remote_changes")

NOT_READ = "standard input does not reach a job: it is not read"
#: What ``-`` is called in messages.
STANDARD_INPUT = "standard input"
#: Key of ``Context.meta``: whether the words stood behind ``--``.
BEHIND = "muster.behind"
_ELEMENTS = re.compile(r"(?P<count>\d+)|0-(?P<last>\d+)(%(?P<at_once>\d+))?")


class DashDashCommand(typer.core.TyperCommand):
    """Remembers whether the words stood behind ``--``, which the parser takes away."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and note it."""
        given = list(args)
        left = super().parse_args(ctx, args)
        count = len(ctx.params.get("arguments") or ())
        ctx.meta[BEHIND] = len(given) > count > 0 and given[-count - 1] == "--"
        return left


def is_document(word: str) -> bool:
    """Whether a word names a file of documents, or standard input."""
    return word == "-" or word.endswith((".yaml", ".yml"))


#: Parameters of ``submit`` that say nothing of what a job is.
_OF_THE_SUBMISSION = frozenset({"arguments", "dry_run", "clone", "server", "token_file"})


def require_files_alone(at: typer.Context, files: list[str]) -> None:
    """Leave the command where options say what a job is that files say already.

    They would change nothing: what a file says is committed as it stands there.
    """
    given = [
        one.opts[0]
        for one in at.command.params
        if one.name not in _OF_THE_SUBMISSION and at.params.get(one.name or "") is not None
    ]
    if given:
        terminal.fail(*_not_with_files(given, files))


def _not_with_files(given: list[str], files: list[str]) -> tuple[str, int, list[str]]:
    told = ", ".join(given)
    return (
        f"{told}: options that say what a job is go with a command behind --, not with files",
        terminal.USAGE,
        [f"nothing was submitted: write it into {', '.join(files)}, or leave {told} out"],
    )


def require_command(at: typer.Context, words: list[str], *, behind: bool) -> None:
    """Leave the command where words that are no files do not stand behind ``--``."""
    if behind:
        return
    other = next(word for word in words if not is_document(word))
    files = words[: words.index(other)]
    if files and (option := _option(at, other)) is not None:
        if option.name not in _OF_THE_SUBMISSION:
            terminal.fail(*_not_with_files([other.partition("=")[0]], files))
        terminal.fail(
            f"{other} stands behind {files[-1]}: options go before the files", terminal.USAGE
        )
    found = Path(other).is_file()
    what = "is no YAML file" if found else "is no file"
    terminal.fail(
        f"{other} {what}: expected YAML files (*.yaml, *.yml, or - for standard input), or a "
        "command behind --",
        terminal.USAGE,
        [f"to run it on a node: {_as_command(at, words)}"]
        if not any(map(is_document, words))
        else (),
    )


def _as_command(at: typer.Context, words: list[str]) -> str:
    """The command line that was meant: options of ``submit`` behind a program go before it."""
    program, *rest = words
    if Path(program).is_file() and "/" not in program:
        program = f"./{program}"
    options: list[str] = []
    while rest and (option := _option(at, rest[0])) is not None:
        taken = 1 if option.is_flag or "=" in rest[0] else 2
        options += rest[:taken]
        rest = rest[taken:]
    return shlex.join(["muster", "submit", *options, "--", program, *rest])


def _option(at: typer.Context, word: str) -> typer.core.TyperOption | None:
    """The option of the command that a word names, also as ``--gpus=1``."""
    name = word.partition("=")[0]
    for one in at.command.params:
        if isinstance(one, typer.core.TyperOption) and name in (*one.opts, *one.secondary_opts):
            return one
    return None


#: The option that a field of a command's document was written with.
_OPTION_OF = {
    "metadata.name": "--name",
    "spec.queue": "--queue",
    "spec.priorityClass": "--priority-class",
    "spec.timeLimit": "--time",
    "spec.count": "--tasks",
    "spec.min": "--min",
    "spec.max": "--max",
    "spec.framework": "--framework",
    "spec.resources.cpu": "--cpus",
    "spec.resources.memory": "--memory",
    "spec.resources.gpu": "--gpus",
    "spec.array.count": "--array",
    "spec.array.parallelism": "--array",
}
_PROBLEM = re.compile(
    r"submission:\d+(:\d+)?: (error: |(?P<grade>\w+: ))Job/[^:]*: "
    r"(?P<field>(spec|metadata)\.[\w.]+): "
)


def by_option(problem: str) -> str:
    """What is wrong with a command's document, by the option instead of a line nobody wrote."""
    found = _PROBLEM.match(problem)
    if found is None:
        return problem
    named = _OPTION_OF.get(found["field"], found["field"])
    return f"{found['grade'] or ''}{named}: {problem[found.end() :]}"


def require_values(text: str) -> None:
    """Leave the command where what an option says can't be, whatever there is in the cluster."""
    if wrong := remote_changes.wrong_anywhere(text):
        many = f"{len(wrong)} problem{'s' if len(wrong) > 1 else ''}; nothing was submitted"
        terminal.fail(many, terminal.USAGE, tuple(map(by_option, wrong)))


TimeLimit = Annotated[
    str | None,
    typer.Option("--time", "-t", help="Time limit: 30m, 2h, 1-12:00:00; a bare number: seconds."),
]


Nodes = Annotated[
    int | None,
    typer.Option("--nodes", "-N", min=1, help="Spread over so many nodes, a task on each."),
]
Tasks = Annotated[int | None, typer.Option("--tasks", help="Tasks that start together.")]


def spread(
    nodes: int | None, tasks: int | None, most: int | None = None
) -> tuple[int | None, str | None]:
    """How many tasks, and the placement that is asked for: empty nodes first where so many nodes
    were named. Fewer of them are taken where that is what there is room on.

    Leaves the command where there are fewer tasks than nodes, or ``most`` says it once more.
    """
    said = next((f"--{name}" for name, one in (("tasks", tasks), ("nodes", nodes)) if one), None)
    if said and most is not None:
        terminal.fail(
            f"{said} and --max both say how many tasks there are: leave one of them out",
            terminal.USAGE,
        )
    if nodes is None:
        return tasks, None
    if tasks is not None and tasks < nodes:
        terminal.fail(
            f"--tasks {tasks} can't be on --nodes {nodes}: expected at least a task for each node",
            terminal.USAGE,
        )
    return tasks or nodes, "spread"


def time_limit(written: str | None) -> str | None:
    """The time limit as it is written into the document; what is easily meant otherwise is told.

    Leaves the command where it would end the job before it began.
    """
    if written is None:
        return None
    try:
        span_s = quantities.parse_duration(written)
    except quantities.QuantityError as error:
        terminal.fail(f"--time: {error}", terminal.USAGE)
    if span_s == 0:
        terminal.fail(
            f"--time: found {written!r}, which would end the job at once; for no limit leave "
            "--time out",
            terminal.USAGE,
        )
    if written.strip().isdigit():
        minutes = f"--time {written.strip()}m"
        terminal.note(
            f"time limit: {quantities.format_duration(span_s)}; a bare number is seconds, "
            f"for minutes write {minutes}"
        )
    return written


@contextlib.contextmanager
def telling_of_input() -> Iterator[None]:
    """Say that what comes on standard input is not for a command that runs elsewhere.

    At once where it waits there already, and at the end of the block where it comes late.
    """
    if told := has_input():
        terminal.note(NOT_READ)
    try:
        yield
    finally:
        if not told and has_input():
            terminal.note(NOT_READ)


def input_bytes() -> bytes:
    """All of standard input, however late it comes.

    Raises:
        OSError: it is closed.
    """
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed")
    if sys.stdin.isatty():
        terminal.note("reading documents from the terminal; Ctrl-D ends them")
    return sys.stdin.buffer.read()


def has_input() -> bool:
    """Whether something waits on standard input, through a pipe or from a file."""
    try:
        number = sys.stdin.fileno()
        kind = os.fstat(number)
        if stat.S_ISFIFO(kind.st_mode):
            return bool(select.select([number], [], [], 0)[0]) and _waiting(number) > 0
        return stat.S_ISREG(kind.st_mode) and kind.st_size > os.lseek(number, 0, os.SEEK_CUR)
    except (OSError, ValueError, AttributeError):
        return False  # it is closed


def _waiting(pipe: int) -> int:
    """How many bytes can be read from a pipe now."""
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def elements(text: str) -> tuple[int, int | None]:
    """How many elements ``--array`` asks for, and how many at once: ``10``, or ``0-9%4``."""
    found = _ELEMENTS.fullmatch(text)
    if found is None:
        terminal.fail(
            f"--array: found {text!r}, expected how many elements: 10, or 0-9 for the same, or "
            "0-9%4 for four of them at once; the indices are 0, 1, 2 and so on",
            terminal.USAGE,
        )
    if found["count"] is not None:
        return int(found["count"]), None
    return int(found["last"]) + 1, int(found["at_once"]) if found["at_once"] else None

"""Arguments of `muster submit`: files or a command, options of the job, and array elements.

A command always comes after `--`; other words are YAML files. Otherwise a missing file would be
taken for a program and become a job that fails.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn

import typer
import typer.core

from reconciler.cli import lazy_import, terminal
from reconciler.cli.changes import slurm_options
from reconciler.model.values import found_values, index_ranges, quantities

if TYPE_CHECKING:
    from reconciler.operations.changes import remote_changes
else:
    remote_changes = lazy_import.module("reconciler.operations.changes.remote_changes")

#: Of `muster run`: a file in git, or none, whatever the Cluster prefers.
Commit = Annotated[
    bool | None,
    typer.Option(
        "--commit/--no-commit",
        help="Make a file in git, or insist on none. Default: none where the Cluster allows that.",
    ),
]
#: Whether a job needs no file in git: if the controller allows that, or no job otherwise.
Ephemeral = Literal["no", "preferred", "required"]
NOT_READ = "standard input is ignored: a job can't read it"
#: Name of `-` in messages.
STANDARD_INPUT = "standard input"
#: Key of `Context.meta`: True if the words came after `--`.
BEHIND = "muster.behind"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


class DashDashCommand(typer.core.TyperCommand):
    """A command that takes names of options that Slurm has, and records if its words came after
    `--`, which the parser removes.
    """

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and record if they came after `--`."""
        args = slurm_options.translated(args, self.get_params(ctx))
        given = list(args)
        left = super().parse_args(ctx, args)
        count = len(ctx.params.get("arguments") or ())
        ctx.meta[BEHIND] = len(given) > count > 0 and given[-count - 1] == "--"
        return left


def ephemeral(clone: Path | None, *, commit: bool | None) -> Ephemeral:
    """Return whether a job needs no file in git. Who names a clone wants one there."""
    if commit is None:
        return "no" if clone is not None else "preferred"
    if not commit and clone is not None:
        message = "--no-commit and --clone exclude each other: leave out one of them"
        terminal.fail(message, terminal.USAGE)
    return "no" if commit else "required"


def is_document(word: str) -> bool:
    """Return True if a word names a YAML file or standard input."""
    return word == "-" or word.endswith((".yaml", ".yml"))


def is_command(words: list[str], read_input: Callable[[], bytes]) -> bool:
    """Return True if the words of `submit` are a command or a script, and not YAML.

    What comes on standard input is a script if it begins like one.
    """
    if not all(map(is_document, words[:1] if words[0] == "-" else words)):
        return True
    try:
        return words[0] == "-" and read_input().startswith(b"#!")
    except OSError:  # who reads it says so
        return False


#: Parameters of `submit` that are not options of the job.
_OF_THE_SUBMISSION = frozenset(
    {"arguments", "wait", "dry_run", "clone", "with_local", "server", "token_file"}
)


def require_files_alone(at: typer.Context, files: list[str]) -> None:
    """Exit if job options are combined with files: they would change nothing."""
    given = [
        one.opts[0]
        for one in at.command.params
        if one.name not in _OF_THE_SUBMISSION
        and at.params.get(one.name or "") not in (None, [], ())
        and at.params[one.name or ""] is not False
    ]
    if given:
        terminal.fail(*_not_with_files(given, files))


def _not_with_files(given: list[str], files: list[str]) -> tuple[str, int, list[str]]:
    options = ", ".join(given)
    return (
        f"{options}: job options can't be combined with YAML files",
        terminal.USAGE,
        [f"nothing was submitted. To fix: edit {', '.join(files)}, or leave out {options}"],
    )


def embedded_script(
    at: typer.Context, words: list[str], read_input: Callable[[], bytes], *, behind: bool
) -> str | None:
    """Return the text of a script that is submitted, or None for a command after `--`.

    Exit if the words are neither.
    """
    if behind:
        return None
    if words[0] != "-" and (is_document(words[0]) or not Path(words[0]).is_file()):
        _refuse(at, words)
    return _script_text(at, words, read_input)


def _refuse(at: typer.Context, words: list[str]) -> NoReturn:
    """Exit, because words are neither files, nor a script, nor a command after `--`."""
    other = next(word for word in words if not is_document(word))
    files = words[: words.index(other)]
    if files and (option := _option(at, other)) is not None:
        if option.name not in _OF_THE_SUBMISSION:
            terminal.fail(*_not_with_files([other.partition("=")[0]], files))
        terminal.fail(
            f"{other} comes after {files[-1]}; options go before the files", terminal.USAGE
        )
    found = Path(other).is_file()
    what = "is not a YAML file" if found else "does not exist"
    terminal.fail(
        f"{other} {what}; expected YAML files (*.yaml, *.yml, or - for standard input), a script, "
        "or a command after --",
        terminal.USAGE,
        [f"To run it on a node: {_as_command(at, words)}"]
        if not any(map(is_document, words))
        else (),
    )


def _as_command(at: typer.Context, words: list[str]) -> str:
    """Return the command line that was meant: options of `submit` go before the program."""
    program, *rest = words
    options: list[str] = []
    while rest and (option := _option(at, rest[0])) is not None:
        taken = 1 if option.is_flag or "=" in rest[0] else 2
        options += rest[:taken]
        rest = rest[taken:]
    return shlex.join(["muster", "submit", *options, "--", program, *rest])


#: Programs that run files of other languages than the shell's.
INTERPRETERS = {
    ".py": "python3",
    ".pl": "perl",
    ".r": "Rscript",
    ".jl": "julia",
    ".rb": "ruby",
    ".js": "node",
}


def _script_text(at: typer.Context, words: list[str], read_input: Callable[[], bytes]) -> str:
    """Return the text of the script that the first word names. Exit if it is no text."""
    path = Path(words[0])
    try:
        text = (read_input() if words[0] == "-" else path.read_bytes()).decode()
    except OSError as error:
        terminal.fail(f"{path} can't be read: {error.strerror or error}")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or not text.strip():
        what = "is empty" if not text.strip() else "is no text, so it can't be a script"
        program = shlex.join(["muster", "submit", "--", f"./{path}", *words[1:]])
        terminal.fail(
            f"{path} {what}", terminal.USAGE, [f"To run a program that nodes have: {program}"]
        )
    language = INTERPRETERS.get(path.suffix.lower())
    if language is not None and not text.startswith("#!"):
        meant = shlex.join(["muster", "submit", "--", language, *words])
        terminal.fail(
            f"{path} has no first line like `#!/usr/bin/env {language}`, so a shell would run it",
            terminal.USAGE,
            [f"To run it by {language}: {meant}"],
        )
    if taken := [word for word in words[1:] if _option(at, word) is not None]:
        before = shlex.join(["muster", "submit", "OPTIONS", *words[:1]])
        terminal.note(
            f"{taken[0]} is an argument of the script; options of the job come before it: {before}"
        )
    return text


def _option(at: typer.Context, word: str) -> typer.core.TyperOption | None:
    """Return the option of the command that a word names, also in the form `--gpus=1`."""
    name = word.partition("=")[0]
    for one in at.command.params:
        if isinstance(one, typer.core.TyperOption) and name in (*one.opts, *one.secondary_opts):
            return one
    return None


#: The option that sets a field of a command's document.
_OPTION_OF = {
    "metadata.name": "--name",
    "spec.queue": "--queue",
    "spec.priorityClass": "--priority-class",
    "spec.timeLimit": "--time",
    "spec.checkpoint.signal": "--signal",
    "spec.checkpoint.signalBeforeLimit": "--signal",
    "spec.count": "--tasks",
    "spec.tasksPerNode": "--tasks-per-node",
    "spec.min": "--min",
    "spec.max": "--max",
    "spec.framework": "--framework",
    "spec.resources.cpu": "--cpus",
    "spec.resources.memory": "--memory",
    "spec.resources.gpu": "--gpus",
    "spec.array.count": "--array",
    "spec.array.indexes": "--array",
    "spec.array.parallelism": "--array",
    "spec.modules": "--module",
    "spec.dependsOn": "--depends",
    "spec.workingDirectory": "--chdir",
    "spec.code": "--code",
    "spec.code.path": "--chdir (code.path)",
    "spec.image": "--image",
    "spec.retries.limit": "--retries",
    "spec.priority": "--priority",
    "spec.pools": "--pool",
    "spec.hosts": "--node",
    "spec.excludeHosts": "--exclude",
    "spec.notBefore": "--begin",
    "spec.deadline": "--deadline",
    "spec.output": "--output-file",
    "spec.error": "--error-file",
    "spec.script": "script",
    "spec.arguments": "argument of the script",
}
#: Fields that the command's other words make.
_NOT_BY_SET = frozenset({"command", "submitted", "resources", "checkpoint", "owner", "groups"})
_PROBLEM = re.compile(
    r"submission:\d+(:\d+)?: (error: |(?P<grade>\w+: ))Job/[^:]*: "
    r"(?P<field>(spec|metadata)\.[\w.\[\]]+): "
)


def name_option(problem: str) -> str:
    """Return a problem of a command's document with the option's name instead of a line number."""
    found = _PROBLEM.match(problem)
    if found is None:
        return problem
    field = re.sub(r"\[\d+\]", "", found["field"])
    named = "--env" if field.startswith("spec.environment.") else _OPTION_OF.get(field, field)
    if field.startswith("spec.dependsOn."):
        named = "--depends"
    elif named == field and field.split(".")[1] not in _NOT_BY_SET and field.startswith("spec."):
        named = f"--set {field.removeprefix('spec.')}"
    return f"{found['grade'] or ''}{named}: {problem[found.end() :]}"


def require_values(text: str, problems: Sequence[str] = ()) -> None:
    """Exit if the value of an option is wrong in any cluster.

    Args:
        text: of the job.
        problems: of options that are not in the text.
    """
    wrong = [*problems, *map(name_option, remote_changes.wrong_anywhere(text))]
    if wrong:
        many = terminal.counted(len(wrong), "problem")
        terminal.fail(f"{many}{remote_changes.INVALID}", terminal.USAGE, wrong)


TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time",
        "-t",
        help="Time limit: 30m, 2h, 1-12:00:00, or seconds. Default: the queue's, or none.",
    ),
]


Signal = Annotated[
    str | None,
    typer.Option(
        "--signal",
        help="Signal that asks the command to save: USR1, or USR1@5m to send it so long before "
        "the time limit (a bare number is seconds). Default: none.",
    ),
]


def time_limit(written: str | None, problems: list[str]) -> str | None:
    """Return the time limit for the document. A bare number, which is easily misread, is reported.

    Text that is not a time limit is returned too: `require_values` reports it with all other
    problems.

    Args:
        written: value of the option.
        problems: receives that the limit would end the job before it began.
    """
    if written is None:
        return None
    try:
        span_s = quantities.parse_duration(written)
    except quantities.QuantityError:
        return written
    if span_s == 0:
        problems.append(
            f"--time: found {found_values.quote(written)}, which would end the job at once. For "
            "no limit, leave out --time"
        )
        return None
    if written.strip().isdigit():
        minutes = f"--time {written.strip()}m"
        terminal.note(
            f"time limit: {quantities.format_duration(span_s)} (a bare number is seconds; "
            f"for minutes: {minutes})"
        )
    return written


def checkpoint(written: str | None) -> dict[str, str]:
    """Return the checkpoint for the document, as Slurm's ``--signal=[B:]NAME[@TIME]`` says it.

    Text that is not a signal or time is returned too: `require_values` reports it.
    """
    if written is None:
        return {}
    name, _, before = written.strip().removeprefix("B:").partition("@")
    name = name.upper()
    found = {"signal": name if name.startswith("SIG") else f"SIG{name}"}
    if before or written.endswith("@"):
        found["signalBeforeLimit"] = f"{before}s" if before.isdigit() else before
    return found


def memory_amount(written: str | None, problems: list[str]) -> str | None:
    """Return the memory for the document.

    Text that is no amount is returned: `require_values` reports it with all other problems.

    Args:
        written: value of the option.
        problems: receives that its unit was left out.
    """
    number = (written or "").strip()
    if number.isascii() and number.isdigit() and int(number):
        choice = f"--memory {number}Mi as Slurm's --mem counts, or {number}Gi"
        found = found_values.quote(written)
        problems.append(f"--memory: found {found}, without a unit. To fix: {choice}")
        return None
    return written


@contextlib.contextmanager
def report_unread_input() -> Iterator[None]:
    """Report standard input that a job does not read: at once, or at the end of the block if it is
    late.
    """
    is_reported = has_input()
    if is_reported:
        terminal.note(NOT_READ)
    try:
        yield
    finally:
        if not is_reported and has_input():
            terminal.note(NOT_READ)


def input_bytes() -> bytes:
    """Return all of standard input, however late it comes.

    Raises:
        OSError: standard input is closed.
    """
    if sys.stdin is None:
        raise OSError(errno.EBADF, "closed")
    if sys.stdin.isatty():
        terminal.note("reading YAML or a script from the terminal; end with Ctrl-D")
    return sys.stdin.buffer.read()


def has_input() -> bool:
    """Return True if something waits on standard input, from a pipe or a file."""
    try:
        number = sys.stdin.fileno()
        kind = os.fstat(number)
        if stat.S_ISFIFO(kind.st_mode):
            return bool(select.select([number], [], [], 0)[0]) and _waiting(number) > 0
        return stat.S_ISREG(kind.st_mode) and kind.st_size > os.lseek(number, 0, os.SEEK_CUR)
    except (OSError, ValueError, AttributeError):
        return False  # standard input is closed


def _waiting(pipe: int) -> int:
    """Return how many bytes can be read from a pipe now."""
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


class ArrayOption(NamedTuple):
    """The value of `--array`: a number of elements, or their indexes, and how many run at once."""

    number: int | None = None
    at_once: int | None = None
    indexes: str | None = None


def parse_array(text: str | None, problems: list[str]) -> ArrayOption:
    """Return the elements of an array, of `10`, `0-9%4` or `1,3,5-9:2%4`.

    Args:
        text: value of the option; None: the job is no array.
        problems: receives what is wrong with it.
    """
    if text is None:
        return ArrayOption()
    elements, percent, limit = text.partition("%")
    at_once = int(limit) if _NUMBER.fullmatch(limit) else None
    if _NUMBER.fullmatch(text):
        return ArrayOption(int(text))
    is_limited = at_once is not None and not _NUMBER.fullmatch(elements)  # 10%2: 2 of 0-9, or of 10
    try:
        indexes = index_ranges.parse(elements if is_limited or not percent else "")
    except index_ranges.IndexRangeError:
        indexes = ()
    if not indexes:
        expected = "a number of elements such as 10, the same as 0-9, or indexes such as "
        expected += "1,3,5-9:2; %4 behind indexes runs four at once"
        if at_once is not None and _NUMBER.fullmatch(elements) and int(elements):
            expected = f"indexes before %: 0-{int(elements) - 1}%{limit} for {elements} elements, "
            expected += f"{elements}-{elements} for the index {elements}, as Slurm reads it"
        problems.append(f"--array: found {found_values.quote(text)}, expected {expected}")
        return ArrayOption()
    if len(indexes) == indexes[-1] + 1:
        return ArrayOption(len(indexes), at_once)
    return ArrayOption(None, at_once, index_ranges.fold(indexes))

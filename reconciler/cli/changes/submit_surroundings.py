"""Options about what a command takes along: variables, modules, its folder and its Python."""

import fnmatch
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from reconciler.cli import lazy_import, terminal
from reconciler.model.values import found_values

if TYPE_CHECKING:
    from reconciler.operations.changes import job_document, submit_folder
else:
    submit_folder = lazy_import.module("reconciler.operations.changes.submit_folder")

Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        help="Variable of the job, as NAME=VALUE; can be repeated. Default: none.",
    ),
]
Export = Annotated[
    list[str] | None,
    typer.Option(
        "--export",
        help="Variables of this shell that the job gets, as NAME,NAME. Default: none.",
    ),
]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        help="Environment module that nodes load before it starts; can be repeated. Default: none.",
    ),
]
#: Names of variables that hold secrets, by what they look like.
_SECRETS = (
    *("*_TOKEN", "TOKEN", "*_KEY", "KEY", "*APIKEY"),
    *("*SECRET*", "*PASSWORD*", "*PASSWD*", "*CREDENTIAL*"),
)


def is_secret(name: str) -> bool:
    """Return True if a variable of that name is likely to hold a secret."""
    return any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in _SECRETS)


def variables(
    env: list[str] | None,
    export: list[str] | None,
    here: Mapping[str, str],
    problems: list[str],
) -> dict[str, str]:
    """Return the variables of a job.

    Args:
        env: values of the option.
        export: values of the option.
        here: variables of this process, for `--export`.
        problems: receives what is wrong with any, and which would put a secret into git.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for words in export or () for name in words.split(",")):
        if not _is_name("--export", name, problems):
            continue
        if name not in here:
            problems.append(
                "--export: Slurm's ALL and NONE are not understood: name each variable"
                if name in ("ALL", "NONE")
                else f"--export: {name} is not set here. To fix: set it, or --env {name}=VALUE"
            )
        else:
            found[name] = here[name]
    for word in env or ():
        name, sign, value = word.partition("=")
        if not sign:
            problems.append(
                f"--env: found {found_values.quote(word)}, expected NAME=VALUE. For the value that "
                f"it has here: --export {name}; for a file of standard error: --error-file {name}"
            )
        elif _is_name("--env", name, problems):
            found[name] = value
    unwritable = [name for name, value in found.items() if not _is_text(value)]
    for name in unwritable:
        problems.append(f"{name}: its value is not UTF-8 text, which YAML can't hold")
        del found[name]
    return found


def _is_name(option: str, name: str, problems: list[str]) -> bool:
    """Return True if a variable may be written into a job, else note why not."""
    if not (name.isascii() and name.isidentifier()):
        shown = found_values.quote(name)
        problems.append(f"{option}: found {shown}, expected the name of a variable")
        return False
    if is_secret(name):
        problems.append(
            f"{option}: {name} looks like a secret, and what a job says is in git for good. To "
            "fix: keep it on the nodes and name it below `secrets` in the job's YAML (guide "
            "Secrets); if it is no secret, write it below `environment` there"
        )
        return False
    return True


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_place(options: "job_document.JobOptions", *, mark: bool) -> "job_document.JobOptions":
    """Return a job's options with the place of its submission.

    Args:
        mark: False to write no marker, as in a dry run.
    """
    try:
        at = submit_folder.around(os.environ, sys.prefix)
    except OSError as problem:
        terminal.note(f"this folder is gone ({problem.strerror}): the job starts in one of its own")
        return options
    if at.own:
        terminal.note(
            f"the active Python environment is Muster's own ({sys.prefix}), which jobs don't get. "
            "To use yours: activate it"
        )
    for name, path in at.unused:
        folder = f"{path.rstrip('/')}/bin"
        terminal.note(
            f"{name} is {path}, but no programs of it come first in PATH, so "
            f"jobs don't get it. To use it: activate it, or PATH={folder}:$PATH"
        )
    place = submit_folder.look(at, options.name, time.time(), mark=mark)
    return msgspec.structs.replace(options, submitted=place)

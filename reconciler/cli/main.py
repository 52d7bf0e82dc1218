"""The `muster` command: all commands together, and the exit codes of wrong usage.

Parser libraries exit with 2 on wrong usage. Here 2 means that there are changes, so wrong usage
exits with 64.
"""

import importlib
import os
import sys
from typing import Annotated, Any

import typer
import typer.core

from reconciler.cli import interrupts, terminal, transport_options, usage_errors, value_names
from reconciler.model.values import found_values
from reconciler.operations.client import answers

#: The commands of each module of this package. Only the module of the named command is imported.
COMMANDS = {
    "connection.login": ("login", "logout", "whoami"),
    "connection.doctor": ("doctor",),
    "connection.notify": ("notify",),
    "cluster.serve": ("up", "demo", "init", "controller", "agent", "version"),
    "changes.submit": ("submit",),
    "changes.job_verbs": ("hold", "release", "cancel", "rerun"),
    "changes.approve": ("approve",),
    "changes.drain": ("drain", "undrain"),
    "changes.overrides": ("overrides",),
    "jobs.run": ("run",),
    "jobs.wait": ("wait",),
    "interactive.exec_command": ("exec",),
    "interactive.forward_command": ("forward",),
    "interactive.copy_command": ("cp",),
    "notebook.notebook_command": ("notebook",),
    "jobs.attach": ("attach",),
    "jobs.jobs_command": ("jobs",),
    "jobs.show": ("job",),
    "cluster.inspect_commands": ("nodes", "node", "queues", "events", "status"),
    "cluster.quotas": ("quotas",),
    "logs.logs_command": ("logs",),
    "jobs.plot": ("plot",),
    "cluster.drift": ("drift", "export"),
    "cluster.top": ("top",),
    "jobs.explain": ("explain",),
    "cluster.report": ("report",),
    "cluster.attempt_table": ("accounting",),
    "repository.review": ("validate", "plan", "snapshot"),
    "cluster.simulate": ("scenario", "simulate"),
    "cluster.backups": ("backup", "restore", "adopt"),
    "cluster.tokens": ("token",),
    "cluster.authority": ("ca",),
    "repository.schema": ("schema",),
    "repository.access": ("access",),
    "repository.history": ("history",),
    "repository.audit": ("audit",),
    "changes.prune": ("prune",),
    "changes.rollback": ("rollback", "suspend", "resume"),
}


#: Sections of `muster --help`, each with its commands in the order of help.
SECTIONS = {
    "Run": ("submit", "run", "wait", "logs", "cancel", "hold", "release", "rerun"),
    "Interact": ("notebook", "exec", "attach", "forward", "cp"),
    "Inspect": (
        *("status", "jobs", "job", "explain", "nodes", "node", "queues", "quotas"),
        *("drift", "events", "notify", "top", "plot", "report", "accounting", "schema"),
    ),
    "Change": ("drain", "undrain", "suspend", "resume", "overrides", "prune", "export", "rollback"),
    "Review": (
        *("validate", "plan", "snapshot", "approve", "history", "audit", "access"),
        *("scenario", "simulate"),
    ),
    "Operate": (
        *("up", "demo", "init", "controller", "agent", "version"),
        *("login", "logout", "whoami", "doctor"),
        *("token", "ca", "backup", "restore", "adopt"),
    ),
}


class _ReaderLeftError(Exception):
    """Error: nobody reads stdout any more."""


class _WriteError(Exception):
    """Error: the output of a command can't be written, for example because the disk is full."""


class _Group(typer.core.TyperGroup):
    """The group of all commands. It raises a closed pipe as an error that the parser does not
    handle.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each section, in plain text and with aligned columns."""
        known = [name for names in SECTIONS.values() for name in names if name in self.commands]
        width = max(map(len, known))
        for section, names in SECTIONS.items():
            rows = [(name, self.get_command(ctx, name)) for name in names]
            lines = [
                (f"{name:<{width}}", command.get_short_help_str(limit=formatter.width))
                for name, command in rows
                if command is not None
            ]
            if lines:
                with formatter.section(section):
                    formatter.write_dl(lines)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderLeftError from error
        except OSError as error:
            if not terminal.is_unwritable(error):
                raise
            raise _WriteError(error.strerror or str(error)) from error


def _print_version(asked: bool) -> None:  # noqa: FBT001 - the parser calls it
    if asked:
        importlib.import_module("reconciler.cli.cluster.serve").version()
        raise typer.Exit(terminal.DONE)


def _muster(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Hold the options that come before any command."""


def application(word: str = "") -> Any:
    """Return the parser of all commands, or only of the module of `word` if that is a command."""
    app = typer.Typer(
        name="muster",
        cls=_Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Run GPU clusters from git: pools, queues and jobs are YAML in a repository.",
    )
    app.callback()(_muster)
    named = [name for name, commands in COMMANDS.items() if word in commands]
    for name in named or COMMANDS:
        importlib.import_module(f"reconciler.cli.{name}").register(app)
    command = typer.main.get_command(app)
    value_names.apply(command)
    transport_options.apply(command)
    return command


#: Shells whose completion can be set up.
SHELLS = ("bash", "zsh", "fish")


def main() -> None:
    """Run the command of this process's arguments and exit with its code."""
    sys.excepthook = terminal.print_traceback
    _install_completion(sys.argv[1:])
    command = application(_word())
    interrupts.interrupt()
    try:
        code = _status(command)
    except BaseException:
        if not interrupts.came():
            raise
        code = interrupts.STATUS  # a half loaded module can fail with any error
    interrupts.leave_at_once()  # an exception while the interpreter ends would be printed
    terminal.drop_unwritable()  # else the interpreter exits with a code of its own
    sys.exit(code)


def _install_completion(words: list[str]) -> None:
    """Install completion for the named shell; the parser handles only the shell it runs in."""
    if len(words) != 2 or words[0] not in ("--install-completion", "--show-completion"):
        return
    shells = importlib.import_module("typer.completion")
    shell = words[1]
    if shell not in SHELLS:
        terminal.err.print(
            f"muster: {words[0]}: found {found_values.quote(shell)}, expected one of "
            f"{', '.join(SHELLS)}",
            markup=False,
        )
        sys.exit(terminal.USAGE)
    if words[0] == "--show-completion":
        script = shells.get_completion_script(
            prog_name="muster", complete_var="_MUSTER_COMPLETE", shell=shell
        )
        terminal.write_text(f"{script}\n")
    else:
        _, path = shells.install(shell=shell, prog_name="muster", complete_var="_MUSTER_COMPLETE")
        terminal.note(f"completion for {shell} is installed in {path}; open a new shell to use it")
    sys.exit(terminal.DONE)


def _word() -> str:
    """Return the first word after `muster`, also of a line that a shell wants completed."""
    if not any(name.endswith("_COMPLETE") for name in os.environ):
        return "".join(sys.argv[1:2])
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = line.split()
    is_whole = len(words) > 2 or (len(words) == 2 and line[-1:].isspace())
    return words[1] if is_whole else ""


def _status(command: Any) -> int:
    """Run a command and return its exit code."""
    try:
        code = command.main(prog_name="muster", standalone_mode=False)
        sys.stdout.flush()
    except usage_errors.UsageError as error:
        return _wrong_usage(error)
    except usage_errors.ParserError as error:
        terminal.err.print(f"muster: {error}")
        return terminal.ERROR
    except answers.MissingFieldError as error:
        terminal.err.print(f"muster: {error}")
        return terminal.ERROR
    except (typer.Abort, KeyboardInterrupt):
        return interrupts.STATUS
    except (_ReaderLeftError, BrokenPipeError):
        # the reader has ended, as in `muster events | head`
        terminal.drop_stdout()
        return terminal.DONE
    except (_WriteError, OSError) as error:
        if isinstance(error, OSError) and (file := terminal.describe_unusable(error)):
            terminal.err.print(f"muster: {file}")
            return terminal.ERROR
        if isinstance(error, OSError) and not terminal.is_unwritable(error):
            raise
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        terminal.err.print(f"muster: the output can't be written: {why}")
        terminal.drop_stdout()
        return terminal.ERROR
    return code if isinstance(code, int) else terminal.DONE


def _wrong_usage(error: Exception) -> int:
    """Print what is wrong and where to find help. A group without arguments prints its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        terminal.write_text(f"{error.format_message()}\n")  # type: ignore[attr-defined]
        return terminal.DONE
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "muster"
    terminal.err.print(f"muster: {usage_errors.describe(error)}")
    terminal.err.print(f"  see: {path} --help")
    return terminal.USAGE


if __name__ == "__main__":
    main()

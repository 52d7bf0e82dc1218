"""The ``muster`` command: all groups together, and what wrong usage exits with.

Parser libraries exit with 2 on wrong usage; here 2 means that there are changes, so that wrong
usage is 64 (INTERFACES).
"""

import sys

import click
import typer

from reconciler.cli import changing, looking, reviewing, running, serving, terminal

app = typer.Typer(
    name="muster",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Runs GPU clusters from git: queues, jobs and nodes are YAML, a loop makes them so.",
)
for group in (serving, changing, running, looking, reviewing):
    group.register(app)


def main() -> None:
    """Entry point of ``muster``."""
    command = typer.main.get_command(app)
    try:
        code = command.main(prog_name="muster", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stdout.write(f"{error.format_message()}\n")
        sys.exit(terminal.DONE)
    except click.UsageError as error:
        sys.stderr.write(f"muster: {error.format_message()}\n")
        if error.ctx is not None:
            sys.stderr.write(f"  see: {error.ctx.command_path} --help\n")
        sys.exit(terminal.USAGE)
    except click.ClickException as error:
        sys.stderr.write(f"muster: {error.format_message()}\n")
        sys.exit(terminal.ERROR)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(terminal.ERROR)
    sys.exit(code if isinstance(code, int) else terminal.DONE)


if __name__ == "__main__":
    main()

"""The options of the controller's process."""

import argparse
from pathlib import Path
from typing import NoReturn

from reconciler.model.values import log_lines, revision_names


class _Parser(argparse.ArgumentParser):
    """A parser that exits with 64 on wrong usage, because 2 has another meaning here."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit."""
        self.exit(64, f"{self.prog}: {message}; see --help\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the controller's options."""
    options = _Parser(
        prog="muster controller",
        description="Run a controller: apply a git repository to nodes, and serve the API. "
        "`muster up` runs one with virtual nodes on this machine.",
    )
    options.add_argument("--repo", required=True, help="URL or path of the git repository")
    options.add_argument(
        "--branch", default="main", metavar="NAME", help="branch to apply. Default: main"
    )
    options.add_argument(
        "--path",
        default="",
        metavar="FOLDER",
        help="folder of the repository to read. Default: all of it",
    )
    options.add_argument("--state", required=True, type=Path, help="folder for store and sockets")
    options.add_argument("--store", help="URL of the store. Default: SQLite in the state folder")
    options.add_argument(
        "--listen",
        default="127.0.0.1:7420",
        metavar="HOST:PORT",
        help="address and port of the API. Default: 127.0.0.1:7420",
    )
    options.add_argument(
        "--relay-listen",
        metavar="HOST:PORT",
        help="address and port for muster exec, forward, cp and run --pty; people and nodes reach "
        "it at the host of the API. Default: the port after that of --listen",
    )
    options.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with tokens of users and nodes. Default: `tokens` in the state folder, created "
        "with one admin token if it is missing",
    )
    options.add_argument(
        "--poll",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="seconds between polls of git. Default: 60",
    )
    options.add_argument(
        "--allow-root",
        action="store_true",
        help="run tasks of owners without a Unix user as the agents' own user, root included",
    )
    _add_file_options(options)
    _add_people_options(options)
    _add_late_options(options)
    options.add_argument(
        "--die-with-parent", type=int, metavar="PID", help="end when this process ends"
    )
    # of `muster up`, whose nodes are all on this machine: a node token may be for `*`
    options.add_argument("--any-node-token", action="store_true", help=argparse.SUPPRESS)
    return options


def resolve_tls_pair(options: argparse.Namespace) -> None:
    """Make the paths of certificate and key absolute: the server runs in another folder.

    Raises:
        ValueError: only one of them is given.
    """
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ValueError("--tls-cert and --tls-key belong together: give both or none")
    if options.tls_cert is not None:
        # not resolved: whoever renews certificates may do so by another link
        options.tls_cert, options.tls_key = options.tls_cert.absolute(), options.tls_key.absolute()


def _add_file_options(options: argparse.ArgumentParser) -> None:
    """Add the options that name files and folders besides the state folder."""
    options.add_argument(
        "--signing-key",
        type=Path,
        metavar="FILE",
        help="SSH key that signs the controller's commits for people",
    )
    options.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="certificate of the API, PEM, with its chain. It is read again when it changes. "
        "Default: plain HTTP",
    )
    options.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="key of the certificate, PEM; mode 0600"
    )
    options.add_argument(
        "--hook-secret",
        type=Path,
        metavar="FILE",
        help="file with the secret of the git forge's webhooks, mode 0600. Default: webhooks need "
        "a token",
    )
    options.add_argument(
        "--provisioners",
        type=Path,
        metavar="FOLDER",
        help="folder of scripts for pools with `provisioner: exec`; only root may write there. "
        "Default: none",
    )
    options.add_argument(
        "--notify-secrets",
        type=Path,
        metavar="FOLDER",
        help="keys and tokens of notifications. Default: `notify` in the state folder",
    )


def _add_people_options(options: argparse.ArgumentParser) -> None:
    """Add the options for notifications of people's own."""
    options.add_argument(
        "--smtp",
        metavar="HOST:PORT",
        help="mail server for notifications of people's own jobs. Default: no e-mail",
    )
    options.add_argument(
        "--smtp-from", metavar="ADDRESS", help="sender of this mail; needed with --smtp"
    )
    options.add_argument(
        "--smtp-login",
        type=Path,
        metavar="FILE",
        help="file with USER:PASSWORD for the mail server, mode 0600. Default: no login",
    )
    options.add_argument(
        "--smtp-plain",
        action="store_true",
        help="send mail without STARTTLS. Default: STARTTLS is demanded",
    )
    options.add_argument(
        "--notify-hosts",
        default="",
        metavar="HOSTS",
        help="hosts, with commas between them, that people may have told of their jobs though they "
        "are not public, or are no Slack. Default: none",
    )


def _add_late_options(options: argparse.ArgumentParser) -> None:
    """Add the options for recovery and logs."""
    options.add_argument(
        "--accept-revision",
        type=_revision,
        metavar="COMMIT",
        help="apply this revision once as it is, with no look at what leads to it: for rewritten "
        "history, or a commit that is too large",
    )
    options.add_argument(
        "--log-format",
        choices=log_lines.FORMS,
        default="readable",
        help="format of the log, one event per line; json is for log collectors. Default: readable",
    )
    options.add_argument(
        "--log-level",
        choices=log_lines.LEVELS,
        default="info",
        help="the lowest level that is logged. Default: info",
    )


def _revision(text: str) -> str:
    """Parse a commit of ``--accept-revision`` for argparse."""
    try:
        return revision_names.accepted(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None

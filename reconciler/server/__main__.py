"""``python -m reconciler.server``: the server's process, started by the controller."""

import argparse
import faulthandler
import gc
import logging
import pathlib
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

import uvicorn

from reconciler import log_format
from reconciler.model.values import addresses, log_lines
from reconciler.operations import subscription_file
from reconciler.operations.changes import submission_repository
from reconciler.operations.tokens import hook_secret, token_file
from reconciler.server import app, composition, repository_facts, server_store
from reconciler.server.auth import authentication, tokens
from reconciler.server.changes import pushed_repository
from reconciler.server.personal import notification_routes
from reconciler.server.process import connection_limits, parent_death, server_certificate

log = logging.getLogger("muster.server")

USAGE_ERROR = 64
#: Files that can't be used.
REFUSED = (
    token_file.TokenError,
    server_certificate.CertificateError,
    hook_secret.HookSecretError,
)
#: How long open requests may take to end when the process stops.
SHUTDOWN_S = 3
#: Connections that wait to be accepted: a fleet comes back at once.
BACKLOG = 2048
#: How many are accepted before any of them is looked at. A handshake needs some five looks, and has
#: to be over before as many others have come as make it the oldest of too many: 512 in all.
TOGETHER_MAX = 8


#: How long a thread may keep the interpreter from others that wait for it. A reader of the store
#: gives it up at each row, and would wait so long for it at each where another one computes.
SWITCH_EVERY_S = 0.0005


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the command line's options; ``host`` and ``port`` come from ``--listen``."""
    parser = _Parser(prog="python -m reconciler.server", description=__doc__)
    parser.add_argument("--store", required=True, metavar="URL", help="sqlite:///PATH")
    parser.add_argument("--link", required=True, type=pathlib.Path, metavar="PATH")
    parser.add_argument("--listen", default="127.0.0.1:7070", metavar="HOST:PORT")
    parser.add_argument("--token-file", type=pathlib.Path, metavar="FILE", required=True)
    parser.add_argument(
        "--any-node-token", action="store_true", help="a token may be for all nodes (`*`)"
    )
    parser.add_argument("--state", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process ends")
    parser.add_argument("--repository", metavar="URL", help="where submissions are pushed")
    parser.add_argument("--branch", default="main")
    parser.add_argument("--path", default="", help="folder in the repository")
    parser.add_argument(
        "--signing-key", type=pathlib.Path, metavar="FILE", help="SSH key that signs commits"
    )
    parser.add_argument("--tls-cert", type=pathlib.Path, metavar="FILE", help="PEM, with its chain")
    parser.add_argument("--tls-key", type=pathlib.Path, metavar="FILE", help="PEM; mode 0600")
    parser.add_argument(
        "--hook-secret", type=pathlib.Path, metavar="FILE", help="secret of a forge's webhooks"
    )
    parser.add_argument("--notify-hosts", default="", help="that people may have told")
    parser.add_argument("--notify-email", action="store_true", help="the controller sends mail")
    parser.add_argument("--log-format", choices=log_lines.FORMS, default="readable")
    parser.add_argument("--log-level", choices=log_lines.LEVELS, default="info")
    options = parser.parse_args(arguments)
    try:
        options.host, options.port = addresses.parse(options.listen)
        submission_repository.require_no_password(options.repository or "")
    except ValueError as error:
        parser.error(str(error))
    return options


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the protocol named asyncio turns off Nagle's delay (40 ms an answer) on connections
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    # so that a reader of the address below can connect at once
    listener.listen(BACKLOG)
    return listener


def main(arguments: list[str]) -> int:
    """Serve until told to stop."""
    options = parse(arguments)
    sys.setswitchinterval(SWITCH_EVERY_S)
    faulthandler.enable()  # shows where compiled code crashed
    if options.parent is not None:
        parent_death.die_with_parent(options.parent)
    log_format.configure(options.log_format, options.log_level, "server")
    try:
        known = tokens.WatchedTokens(options.token_file, any_node=options.any_node_token)
        certificate = (
            None
            if options.tls_cert is None
            else server_certificate.ServerCertificate(options.tls_cert, options.tls_key)
        )
        if options.hook_secret is not None:
            hook_secret.read(options.hook_secret)
        listener = _listen(options.host, options.port)
    except REFUSED as error:
        log.critical("%s", error)
        return 1
    except OSError as error:
        log.critical("can't listen on %s: %s", options.listen, error.strerror or error)
        return 1
    shown = f"[{options.host}]" if ":" in options.host else options.host
    address = f"{shown}:{listener.getsockname()[1]}"
    expires_at = None if certificate is None else lambda: certificate.expires_at
    parts = _compose(options, known, expires_at)
    known.on_change(lambda what: parts.access_log.note("TokensChanged", "", "", "token file", what))
    config = uvicorn.Config(
        app.create_app(parts, address=address),
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="on",
        http=connection_limits.protocol(
            connection_limits.by_files(),
            authentication.ON_IDENTIFIED,
            None if certificate is None else certificate.context,
        ),
        ws="none",
        backlog=TOGETHER_MAX,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
    )
    server = Server(config, parts.stop, certificate)
    scheme = "http" if certificate is None else "https"
    if options.log_format == "json":  # its file holds nothing but log lines
        log.info("listening on %s://%s", scheme, address)
    else:
        sys.stdout.write(f"listening on {scheme}://{address}\n")
        sys.stdout.flush()
    # nobody is answered during a full collection: it goes through all but what is frozen here
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _compose(
    options: argparse.Namespace,
    known: tokens.WatchedTokens,
    certificate_expires_at: Callable[[], float] | None,
) -> composition.Composition:
    """Return the parts of the server that the options ask for."""
    store = server_store.ServerStore(options.store)
    facts, submitter = repository_facts.RepositoryFacts(), None
    if options.repository is not None:
        wanted = pushed_repository.RepositoryOptions(
            url=options.repository,
            branch=options.branch,
            path=options.path,
            state=options.state / "submissions",
            signing_key=options.signing_key,
        )
        facts, submitter = pushed_repository.open_repository(wanted, store)
    return composition.Composition(
        link_path=options.link,
        tokens=known,
        store=store,
        facts=facts,
        submitter=submitter,
        chosen=composition.OperatorChoices(
            notification_routes.PersonalSettings(
                subscription_file.SubscriptionFile(options.state),
                frozenset(options.notify_hosts.replace(" ", "").lower().split(",")) - {""},
                options.notify_email,
            ),
            options.hook_secret,
        ),
        certificate_expires_at=certificate_expires_at,
    )


class Server(uvicorn.Server):
    """A uvicorn server that releases waiting requests as soon as it has to stop.

    Args:
        config: of uvicorn.
        release: lets requests go that wait.
        certificate: of TLS, renewed while it serves; None: plain HTTP.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        release: Callable[[], None],
        certificate: server_certificate.ServerCertificate | None = None,
    ) -> None:
        super().__init__(config)
        self._release = release
        self._certificate = certificate

    async def on_tick(self, counter: int) -> bool:
        """Look once a second if the certificate was renewed; uvicorn calls ten times a second."""
        if self._certificate is not None and counter % 10 == 0:
            self._certificate.renew()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve; more connections may wait than are accepted at once."""
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: first the waiting requests, then the rest."""
        self._release()
        await super().shutdown(sockets)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``python -m reconciler.server.relay``: the relay's process, started by the controller."""

import argparse
import faulthandler
import logging
import os
import pathlib
import signal
import sys

from reconciler import log_format
from reconciler.model.values import addresses, log_lines
from reconciler.server.process import connection_limits, parent_death, server_certificate
from reconciler.server.relay import relay_messages, relay_service

_LOG = logging.getLogger("muster.relay")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m reconciler.server.relay", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--state", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process ends")
    parser.add_argument("--tls-cert", type=pathlib.Path, metavar="FILE", help="PEM, with its chain")
    parser.add_argument("--tls-key", type=pathlib.Path, metavar="FILE", help="PEM; mode 0600")
    parser.add_argument("--log-format", choices=log_lines.FORMS, default="readable")
    parser.add_argument("--log-level", choices=log_lines.LEVELS, default="info")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Serve until told to stop."""
    options = parse(arguments)
    faulthandler.enable()
    if options.parent is not None:
        parent_death.die_with_parent(options.parent)
    os.umask(0o077)
    log_format.configure(options.log_format, options.log_level, "relay")
    # every refused connection and every end would be a line
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    connection_limits.by_files()  # each connection is an open file
    certificate = None
    try:
        if options.tls_cert is not None:
            certificate = server_certificate.ServerCertificate(options.tls_cert, options.tls_key)
        # a signal ends it at once: whoever has a session sees that it is gone
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(options.state)  # a socket's path has at most 107 bytes
        relay_service.serve_until_stopped(
            relay_service.RelayService(),
            addresses.parse(options.listen),
            pathlib.Path(relay_messages.SOCKET),
            None if certificate is None else certificate.context,
            lambda: None if certificate is None else certificate.renew(),
        )
    except server_certificate.CertificateError as error:
        _LOG.critical("%s", error)
        return 1
    except OSError as error:
        _LOG.critical("can't listen on %s: %s", options.listen, error.strerror or error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The optional metrics port of a node: opens it and returns the work of its threads."""

import threading
from collections.abc import Callable

from agents import reports
from agents.exporter import metrics_page, metrics_server
from agents.host import operator_log
from agents.settings import Listen


def open_port(
    listen: Listen,
    snapshot: Callable[[], reports.NodeSnapshot | None],
    leaving: threading.Event,
    console: operator_log.Console,
    notice: Callable[[str], None],
) -> tuple[Callable[[], None], ...]:
    """Open the port and return what its threads must call again and again.

    A port that is in use is retried. Those threads then call ``notice`` with the problem that the
    node must report, and with an empty text when it is over.

    Raises:
        OSError: the port cannot be opened with these options.
        TokenFileError: its token file must not be used.
    """
    page = metrics_page.NodePage(snapshot, leaving)
    return page.turn, metrics_server.MetricsPort(listen, page, leaving, console, notice).turn

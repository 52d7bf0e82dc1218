"""Requests of the agent's session process: a JSON line comes in, a value goes out.

A connection makes one request, whose session lives as long as the connection. Standard library
only.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

#: The longest request: a command line has at most so many bytes.
LINE_BYTES_MAX = 2**20
#: The largest terminal, in rows and in columns.
CELLS_MAX = 10_000


class ExecOrder(NamedTuple):
    """A request to run a command in a task.

    Attributes:
        attempt: the task's attempt. session: name of the session.
        environment: variables besides those of the task.
        cwd: empty: the task's own.
        size: rows and columns of its terminal; None: it gets pipes.
    """

    attempt: str
    session: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str
    size: tuple[int, int] | None


class ConnectOrder(NamedTuple):
    """A request for a connection to a port on which a task listens."""

    attempt: str
    session: str
    port: int


class SignalOrder(NamedTuple):
    """A request to signal the processes of the session, by the signal's number."""

    number: int


SessionOrder = ExecOrder | ConnectOrder | SignalOrder


def decode(line: bytes) -> SessionOrder:
    """Return the request that a line holds; raise ValueError if it is none."""
    try:
        raw = json.loads(line)
        match raw["op"]:
            case "exec":
                return _exec(raw)
            case "connect":
                return ConnectOrder(str(raw["attempt"]), _name(raw), int(raw["port"]))
            case "signal":
                return SignalOrder(int(raw["number"]))
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"no request: {problem!r}") from None
    raise ValueError("no request")


def _exec(raw: dict[str, Any]) -> ExecOrder:
    argv = tuple(str(word) for word in raw["argv"])
    if not argv or any("\0" in word for word in argv):
        raise ValueError("no command")
    environment = {str(name): str(text) for name, text in (raw.get("env") or {}).items()}
    size = raw.get("size")
    if size is not None:
        rows, columns = (min(CELLS_MAX, max(1, int(cells))) for cells in size)
        size = rows, columns
    return ExecOrder(
        str(raw["attempt"]), _name(raw), argv, environment, str(raw.get("cwd") or ""), size
    )


def _name(raw: dict[str, Any]) -> str:
    """Return the name of the session, which becomes that of a control group."""
    name = str(raw["session"])
    if not name.isalnum() or not name.isascii() or len(name) > 64:
        raise ValueError("no name of a session")
    return name

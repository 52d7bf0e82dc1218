"""Orders as the supervisor reads them: a line comes in, an immutable value goes out.

``commands`` has the agent's side. Orders may come from agents of other versions, so what is unknown
is ignored, and what is needed is checked here, once. Standard library only.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

_NO_TEXTS: Mapping[str, str] = {}
_NOTHING: dict[str, Any] = {}


class UserIds(NamedTuple):
    """The user that a task runs as, by name and numbers."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


class StartOrder(NamedTuple):
    """An order to start an attempt.

    Attributes:
        user: to become; None: the supervisor's own.
        script: text of the file that is run.
        files: more texts, by name, for the attempt's folder.
        secrets: texts, by name, that only the user may read.
        limits: as of ``task_limits.limits_of``.
        private: as of ``task_limits.view_of``; empty: no folders of its own.
        cleanup: command that removes the container, as it is recorded.
        contained: True if it is a container.
        enter: command lines that join it, as of ``commands.EnterCommand``; empty: none do.
        spare: folder in the trash that can be reused.
        start_s: how long the start may take; None: as usual.
        scratch_bytes: what the attempt's folders may take of the disk; 0: no limit.
        checkpoint_to: as ``to`` of a stop, when its lease is over.
        privileges: ``restricted`` to take from the task what no job needs; empty for nothing.
        note: a remark for people about its start, shown while it runs and if it ends by itself.
        hint: a remark for people, shown only if its program fails soon after it has started.
        code: whether the agent has a folder ready that becomes its working folder.
    """

    id: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = _NO_TEXTS
    cwd: str = "/"
    user: UserIds | None = None
    lease_s: float | None = None
    checkpoint_signal: str = "SIGTERM"
    grace_s: float = 0.0
    script: str | None = None
    files: Mapping[str, str] = _NO_TEXTS
    secrets: Mapping[str, str] = _NO_TEXTS
    limits: dict[str, Any] = _NOTHING
    private: dict[str, Any] = _NOTHING
    cleanup: dict[str, Any] = _NOTHING
    contained: bool = False
    enter: dict[str, Any] = _NOTHING
    spare: str | None = None
    start_s: float | None = None
    privileges: str = ""
    scratch_bytes: int = 0
    checkpoint_to: str = ""
    note: str = ""
    hint: str = ""
    code: bool = False


class RefuseOrder(NamedTuple):
    """An order to record the end of an attempt that never started."""

    id: str
    reason: str
    message: str = ""
    exit_code: int | None = None


class StopAttemptOrder(NamedTuple):
    """An order to signal an attempt, and to kill it after its grace.

    Attributes:
        grace_s: that grace; None: as its start said.
        message: why, besides the reason.
        to: who gets a signal that asks to save, as of ``stop_signals``; empty: it asks for no more
            than to end.
    """

    id: str
    reason: str
    signal: str
    grace_s: float | None
    message: str = ""
    to: str = ""


class RenewOrder(NamedTuple):
    """An order to renew leases as of a moment of the boot clock."""

    at: float


class ForgetOrder(NamedTuple):
    """An order to forget ends that the controller knows."""

    ids: list[str]


class ShutdownOrder(NamedTuple):
    """An order to stop every task, and then to end."""

    reason: str
    grace_s: float


class HelloOrder(NamedTuple):
    """A request of a new agent for all records."""


Order = (
    StartOrder
    | RefuseOrder
    | StopAttemptOrder
    | RenewOrder
    | ForgetOrder
    | ShutdownOrder
    | HelloOrder
)


class BadStartError(Exception):
    """An order to start an attempt that lacks something.

    Attributes:
        id: of the attempt.
        has_secrets: True if the order has secrets.
        problem: the error of reading it.
    """

    def __init__(self, name: str, problem: Exception, *, has_secrets: bool) -> None:
        self.id = name
        self.problem = problem
        self.has_secrets = has_secrets
        super().__init__(str(problem))


def decode(line: bytes) -> Order:
    """Return the order that a line holds.

    Raises:
        BadStartError: it would start an attempt, and cannot.
        ValueError, KeyError, TypeError: it is no order.
    """
    raw = json.loads(line)
    match raw["op"]:
        case "start":
            name = _text(raw["id"])
            try:
                return _start(name, raw)
            except (ValueError, KeyError, TypeError, AttributeError) as problem:
                has_secrets = bool(raw.get("secrets"))
                raise BadStartError(name, problem, has_secrets=has_secrets) from problem
        case "refuse":
            message = raw.get("message", "")
            return RefuseOrder(_text(raw["id"]), raw["reason"], message, raw.get("exit_code"))
        case "stop":
            grace_s = _number(raw.get("grace_s"))
            return StopAttemptOrder(
                _text(raw["id"]), raw["reason"], raw["signal"], grace_s, raw.get("message", ""),
                _text(raw.get("to", "")),
            )  # fmt: skip
        case "renew":
            return RenewOrder(float(raw["at"]))
        case "forget":
            return ForgetOrder(_list(raw["ids"]))
        case "shutdown":
            return ShutdownOrder(raw["reason"], float(raw["grace_s"]))
        case "hello":
            return HelloOrder()
    raise KeyError(raw["op"])


def _start(name: str, raw: dict[str, Any]) -> StartOrder:
    user = raw.get("user")
    return StartOrder(
        id=name,
        argv=tuple(_list(raw["argv"])),
        env=dict(raw["env"]),
        cwd=_text(raw["cwd"]),
        user=None if user is None else _user(user),
        lease_s=_number(raw.get("lease_s")),
        checkpoint_signal=raw["checkpoint_signal"],
        grace_s=float(raw["grace_s"]),
        script=raw.get("script"),
        files=raw.get("files") or {},
        secrets=raw.get("secrets") or {},
        limits=raw.get("limits") or {},
        private=raw.get("private") or {},
        cleanup=raw.get("cleanup") or {},
        contained=bool(raw.get("contained")),
        enter=raw.get("enter") or {},
        spare=raw.get("spare"),
        start_s=_number(raw.get("start_s")),
        privileges=_text(raw.get("privileges", "")),
        scratch_bytes=int(raw.get("scratch_bytes", 0)),
        checkpoint_to=_text(raw.get("checkpoint_to", "")),
        note=_text(raw.get("note", "")),
        hint=_text(raw.get("hint", "")),
        code=bool(raw.get("code")),
    )


def _user(raw: dict[str, Any]) -> UserIds:
    return UserIds(raw["name"], raw["uid"], raw["gid"], tuple(raw["groups"]))


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"no list: {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"no text: {value!r}")
    return value


def _number(value: Any) -> float | None:
    return None if value is None else float(value)

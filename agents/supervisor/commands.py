"""Commands of the agent to its supervisor, each a JSON object.

The agent builds them by these types. The supervisor doesn't: it outlives upgrades, so it may get
commands of other versions, and checks what it needs. Fields are only ever added.
"""

from typing import Any, Literal, NotRequired, TypedDict


class Credentials(TypedDict):
    """A user with its groups, so that the supervisor need not look up names."""

    name: str
    uid: int
    gid: int
    groups: list[int]


class CleanupCommand(TypedDict):
    """A command line that removes the container of a task after its end."""

    argv: list[str]
    env: dict[str, str]
    user: Credentials | None


class EnterCommand(TypedDict):
    """Command lines that run another command in the container of a task.

    Attributes:
        pipes: what comes before the command. terminal: the same if it gets a terminal.
        env: of the runtime itself.
    """

    pipes: list[str]
    terminal: list[str]
    env: dict[str, str]


class TaskProgram(TypedDict):
    """The program of a task, with its surroundings.

    Attributes:
        files: text by name, written below the attempt's folder.
        limits: as of ``task_limits.limits_of``. private: as of ``task_limits.view_of``.
        privileges: ``restricted`` to take from the task what no job needs.
        contained: True if it is a container.
        enter: how commands join that; None: they can't.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    limits: dict[str, Any]
    files: NotRequired[dict[str, str]]
    private: NotRequired[dict[str, Any]]
    privileges: NotRequired[str]
    cleanup: NotRequired[CleanupCommand | None]
    enter: NotRequired[EnterCommand | None]
    contained: NotRequired[bool]


class StartCommand(TaskProgram):
    """A command to start an attempt.

    Attributes:
        user: to become; None: the supervisor's own.
        hold: the agent keeps the command until the whole gang is prepared.
        spare: folder in the trash that can be reused.
        scratch_bytes: what the attempt's folders may take of the disk; left out without a limit.
        checkpoint_to: who gets the checkpoint signal; left out without one.
        note: what people are told of its start.
        hint: a remark for people, shown only if its program fails soon.
        code: the agent has filled its working folder; left out if it begins empty.
    """

    op: Literal["start"]
    id: str
    user: Credentials | None
    lease_s: float | None
    checkpoint_signal: str
    grace_s: int
    script: str | None
    secrets: NotRequired[dict[str, str]]
    hold: NotRequired[bool]
    spare: NotRequired[str | None]
    scratch_bytes: NotRequired[int]
    checkpoint_to: NotRequired[str]
    note: NotRequired[str]
    hint: NotRequired[str]
    code: NotRequired[bool]


class RefuseCommand(TypedDict):
    """A command to record the end of an attempt that never started."""

    op: Literal["refuse"]
    id: str
    reason: str
    message: str


class StopCommand(TypedDict):
    """A command to signal an attempt, and to kill it after its grace.

    Attributes:
        to: who gets a signal that asks to save; left out if it does not.
    """

    op: Literal["stop"]
    id: str
    reason: str
    signal: str
    grace_s: int | None
    message: NotRequired[str]
    to: NotRequired[str]


class ForgetCommand(TypedDict):
    """A command to forget ends that the controller knows."""

    op: Literal["forget"]
    ids: list[str]


class RenewCommand(TypedDict):
    """A command to renew leases as of a moment of the boot clock."""

    op: Literal["renew"]
    at: float


#: A command about one attempt.
AttemptCommand = StartCommand | RefuseCommand | StopCommand
Command = AttemptCommand | ForgetCommand | RenewCommand

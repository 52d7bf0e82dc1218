"""The Unix user that a task runs as."""

import functools
import os
import pwd
import sys

import msgspec

from agents.host import acting_user, unix_users
from agents.supervisor.commands import Credentials
from agents.tasks.node_context import NodeContext, UnstartableError
from reconciler.model.protocol.agent_messages import TaskTemplate

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class TaskUser(msgspec.Struct, frozen=True):
    """A user that a task runs as.

    Attributes:
        switch: True if the supervisor must switch to this user because the agent runs as another
            one. ``groups`` is filled in only then.
    """

    name: str
    uid: int
    gid: int
    home: str
    switch: bool
    groups: tuple[int, ...] = ()

    @property
    def credentials(self) -> Credentials | None:
        """User and groups for commands to the supervisor; None if it need not switch.

        The supervisor looks up no names: a directory service that hangs may delay one start, but
        must never block the supervisor.
        """
        if not self.switch:
            return None
        return {"name": self.name, "uid": self.uid, "gid": self.gid, "groups": list(self.groups)}

    @property
    def acting(self) -> acting_user.ActingUser | None:
        """User to access files as; None if it is the agent's own."""
        if not self.switch:
            return None
        return acting_user.ActingUser(self.name, self.uid, self.gid, self.groups)

    @property
    def path(self) -> str:
        """Default ``PATH``: the agent's own unless the task runs as another user, and never with
        Muster's own Python environment, whose ``python3`` has none of a job's packages.
        """
        if self.switch:
            return DEFAULT_PATH
        return path_without(sys.prefix, os.environ.get("PATH", DEFAULT_PATH))


@functools.lru_cache(maxsize=8)
def path_without(environment: str, path: str) -> str:
    """Return a ``PATH`` without the programs of a Python environment.

    Args:
        environment: its folder; that of an interpreter of the system changes nothing.
    """
    if not os.path.lexists(f"{environment}/pyvenv.cfg"):
        return path
    own = os.path.realpath(f"{environment}/bin")
    kept = [one for one in path.split(":") if not one or os.path.realpath(one) != own]
    return ":".join(kept) or DEFAULT_PATH


def user_to_look_up(template: TaskTemplate, node: NodeContext) -> str | None:
    """Return the user name to look up on this node, or None if tasks run as the agent's user."""
    return template.user if node.as_root else None


def find_user(template: TaskTemplate, node: NodeContext) -> TaskUser:
    """Return the template's user if the agent runs as root, else the agent's own user.

    Raises:
        UnstartableError: the user does not exist, is root and the pool does not allow root, or is
            forbidden by the agent's command line.
    """
    name = user_to_look_up(template, node)
    user = _own_user() if name is None else _look_up(name, node)
    if node.as_root and user.uid == 0 and not template.allow_root:
        fix = (
            "give the job an owner with a unixUser in Access"
            if name is None
            else "give the job's owner another unixUser in Access, or allow root in the pool"
        )
        raise UnstartableError(
            f"job {template.job} would run as root on node {node.name}, which is not allowed. "
            f"To fix: {fix}"
        )
    forbidden = node.user_limits.refusal(user.name, user.uid) if node.as_root else ""
    if forbidden:
        raise UnstartableError(
            f"job {template.job} would run as {user.name} (uid {user.uid}) on node {node.name}, "
            f"whose agent was started with {forbidden}. To fix: give the job's owner another "
            "unixUser in Access, or send the job to other nodes"
        )
    return user


def _own_user() -> TaskUser:
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return TaskUser(str(uid), uid, os.getegid(), "/", switch=False)
    return TaskUser(entry.pw_name, uid, entry.pw_gid, entry.pw_dir, switch=False)


def _look_up(name: str, node: NodeContext) -> TaskUser:
    account = unix_users.SYSTEM.find(name)
    if account is None:
        raise UnstartableError(
            f"user {name!r} does not exist on node {node.name}. To fix: create the user there, or "
            "change the job's user"
        )
    switch = account.uid != os.geteuid()
    return TaskUser(
        account.name, account.uid, account.gid, account.home, switch=switch, groups=account.groups
    )

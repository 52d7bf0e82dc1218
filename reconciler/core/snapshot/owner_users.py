"""As whom the tasks of a job's owner run, and in which pools they may.

It matters on nodes whose agent is root. There tasks run as the Unix user that ``Access`` names for
the owner, and as root only if the pool allows it. An owner without a user is never root.
"""

from collections.abc import Callable
from enum import Enum

from reconciler.model import desired
from reconciler.model.state.pending_reasons import Reason, ReasonCode

ROOT = "root"


class UserClass(Enum):
    """Users of tasks, as far as it matters for pools."""

    OTHER = "other"
    ROOT = "root"
    UNMAPPED = "unmapped"


#: Pools whose nodes run tasks of such a user.
OPEN_TO: dict[UserClass, Callable[[desired.Pool], bool]] = {
    UserClass.ROOT: lambda pool: pool.allow_root,
    UserClass.UNMAPPED: lambda pool: pool.runs_unmapped,
}
#: Why other nodes do not.
CLOSED = {
    UserClass.ROOT: "run nothing as root",
    UserClass.UNMAPPED: "owner has no Unix user there",
}


def class_of(structure: desired.Structure, owner: str) -> UserClass:
    """Return the class of the user that tasks of an owner run as."""
    user = structure.unix_users.get(owner)
    if user is None:
        return UserClass.UNMAPPED
    return UserClass.ROOT if user == ROOT else UserClass.OTHER


def refusal(user: UserClass, owner: str) -> Reason:
    """Return the reason of a job that no node runs because of its user."""
    if user is UserClass.ROOT:
        return Reason(
            code=ReasonCode.NO_UNIX_USER,
            message=f"its owner {owner} runs as root, which the pools do not allow",
            unblocks="give the identity another unixUser in Access, or set allowRoot in the "
            "NodePool",
        )
    return Reason(
        code=ReasonCode.NO_UNIX_USER,
        message=f"no Unix user is known for its owner {owner or '(none)'}",
        unblocks="give the job an owner who has a unixUser in Access",
    )

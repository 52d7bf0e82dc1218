"""Facts about this node that decide how its tasks start, and the error if a task cannot start."""

import msgspec

from agents.isolation import task_limits
from agents.settings import UserLimits
from reconciler.model.state.records import Gpu
from reconciler.model.state.states import EndReason


class NodeContext(msgspec.Struct, frozen=True):
    """Facts about one node. ``root`` and ``shared`` are absolute paths without symbolic links.

    Attributes:
        as_root: True if the agent runs as root and can switch to other users.
        isolation: how the supervisor isolates tasks.
        podman: command line that runs podman.
        fabric: environment variables that tell NCCL and Gloo which network to use.
        user_limits: the users that tasks may run as.
        mps: short name of the folder of the MPS daemons; empty for its own.
    """

    name: str
    root: str
    shared: str
    gpus: tuple[Gpu, ...] = ()
    as_root: bool = False
    isolation: task_limits.IsolationCapabilities = task_limits.IsolationCapabilities()
    podman: tuple[str, ...] = ("podman",)
    fabric: dict[str, str] = {}
    user_limits: UserLimits = UserLimits()
    mps: str = ""

    @property
    def mps_folder(self) -> str:
        """Folder of the MPS daemons."""
        return self.mps or f"{self.root}/mps"

    def attempt_folder(self, attempt: str) -> str:
        """Return the folder of an attempt on this node."""
        return f"{self.root}/attempts/{attempt}"


class UnstartableError(Exception):
    """An attempt that cannot start on this node.

    Attributes:
        reason: how the attempt ends.
    """

    def __init__(self, message: str, reason: EndReason = EndReason.START_FAILED) -> None:
        super().__init__(message)
        self.reason = reason

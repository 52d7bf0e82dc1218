"""The last fault of this node that kept a task from starting, and how long it counts.

What a node has to provide for each task is its control group, its view of the file system, its
folder and its process. A node that could not is out of service for a while: its check
``task-start`` fails. Only another start shows if it can again, so time alone ends that.
"""

import msgspec

from reconciler.model.observed.health_checks import TASK_START, CheckPlan, CheckResult
from reconciler.model.values.quantities import format_duration

#: How long a node takes no task after it could not start one.
OUT_S = 300
_FIX = "run `muster agent --check` there, and see the kernel's log (dmesg)"


class StartFault(msgspec.Struct, frozen=True):
    """A start that failed because of its node. ``until``: it counts, seconds since the epoch."""

    problem: str = ""
    until: float = 0.0

    def result(self, plan: CheckPlan | None, now: float) -> tuple[CheckResult, ...]:
        """Return the result of the check that it is, if it counts in a plan now."""
        if plan is None or TASK_START in plan.off or now >= self.until:
            return ()
        message = f"the last start of a task failed: {self.problem}. To fix: {_FIX}"
        return (CheckResult(TASK_START, "failed", message),)


def later(known: StartFault, problem: str, at: float, now: float) -> StartFault:
    """Return the fault that counts longer: the known one, or one at that time.

    Args:
        at: when the start failed by the node's clock, which may have been set back since.
    """
    found = StartFault(problem, min(at, now) + OUT_S)
    return found if found.until > known.until else known


def told(problem: str, node: str, *, is_out: bool) -> str:
    """Return the message of an attempt that could not start because of its node.

    ``is_out``: the node takes no task for a while; not if its pool has turned the check off.
    """
    out = f", and the node takes no task for {format_duration(OUT_S)}" if is_out else ""
    return (
        f"node {node} could not start it: {problem}. It costs the job no retry{out}. To fix: {_FIX}"
    )

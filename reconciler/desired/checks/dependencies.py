"""Checks dependencies of jobs together, before any of them applies.

Proposed jobs come in beside those in force. A job with an invalid dependency falls back to its
version in force, which may create a cycle for others: the check repeats until nothing changes.
"""

from collections.abc import Callable, MutableMapping, Sequence

from reconciler.desired.checks import cross_references
from reconciler.desired.documents.faults import Fault
from reconciler.model import desired

Jobs = MutableMapping[str, desired.Job]


def judge(
    waiting: Sequence[str],
    proposed: Jobs,
    before: Jobs,
    *,
    is_written: Callable[[str], bool],
    note: Callable[[str, Fault], None],
) -> set[str]:
    """Withdraw invalid jobs from ``proposed``; return their names.

    Args:
        waiting: names of proposed jobs that depend on others.
        proposed: proposed jobs by name; changed in place.
        before: jobs in force.
        is_written: returns True if a name is written somewhere, even if it is refused.
        note: called with each job and its fault; warnings as well.
    """
    bad: set[str] = set()

    def withdraw(name: str, fault: Fault) -> bool:
        """Note an error; return True if the job fell back to its version in force."""
        bad.add(name)
        note(name, fault)
        earlier = before.get(name)
        if proposed.get(name) is earlier:
            return False
        if earlier is None:
            del proposed[name]
        else:
            proposed[name] = earlier
        return True

    for name in waiting:
        for fault in cross_references.dependencies(proposed[name], proposed.get, is_written):
            if fault.severity == "error":
                withdraw(name, fault)
                break
            note(name, fault)

    def edges(name: str) -> list[str]:
        job = proposed.get(name)
        return [one.job for one in job.depends_on if one.job in proposed] if job else []

    starts = [name for name in waiting if name in proposed]
    for _ in range(len(starts) + 1):
        changed = False
        for members in cross_references.dependency_cycles(starts, edges):
            fault = cross_references.cycle(members)
            for member in members:
                changed |= withdraw(member, fault)
        if not changed:
            break
    return bad

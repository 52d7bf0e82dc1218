"""Whether what jobs depend on is there and leads to an end: judged together, before any applies.

Jobs as they are proposed come in beside those in force. One that depends on what can't be goes back
to what it was, which may leave others with a cycle that was none before: it is looked again until
nothing changes.
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
    """Take back from ``proposed`` what can't be; the names of it.

    Args:
        waiting: names of proposed jobs that depend on others.
        proposed: jobs as they are to be, by name; changed in place.
        before: jobs in force.
        is_written: whether a name stands somewhere, though it be refused.
        note: is told what is wrong with which job; warnings as well.
    """
    bad: set[str] = set()

    def withdraw(name: str, fault: Fault) -> bool:
        """Note an error; whether the job fell back to what it was before."""
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

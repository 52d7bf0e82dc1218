"""Who depends on whom: jobs that wait for others, and queues that jobs in force are in.

A job that changes has those judged again that name it; a queue is not taken away from its jobs.
"""

from collections.abc import Mapping, Sequence

from reconciler.model import desired


class Dependents:
    """Names of jobs by the jobs that they depend on."""

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = {}

    def of(self, name: str) -> set[str]:
        """Who depends on a job, whether or not there is one of that name."""
        return self._users.get(name, set())

    def renew(self, name: str, before: desired.Job | None, after: desired.Job | None) -> None:
        """A job is another than before; None: it is not there."""
        for dependency in before.depends_on if before is not None else ():
            users = self._users.get(dependency.job)
            if users is not None:
                users.discard(name)
                if not users:
                    del self._users[dependency.job]
        for dependency in after.depends_on if after is not None else ():
            self._users.setdefault(dependency.job, set()).add(name)


def users_of_missing_queues(
    jobs: Mapping[str, desired.Job], structure: desired.Structure
) -> dict[str, list[str]]:
    """Queues that the structure does not have, with the jobs that are in them."""
    users: dict[str, list[str]] = {}
    for name, job in jobs.items():
        if job.queue not in structure.queues:
            users.setdefault(job.queue, []).append(name)
    return users


def queue_in_use(queue: str, jobs: Sequence[str], path: str) -> desired.Problem:
    """A queue that a revision takes away, by the file that it was in, while jobs are in it."""
    count = "1 job is" if len(jobs) == 1 else f"{len(jobs)} jobs are"
    return desired.Problem(
        rule="queue-in-use",
        severity="error",
        path=path,
        message=f"the queue is taken away while {count} in it "
        f"({', '.join(sorted(jobs)[:3])}{' …' if len(jobs) > 3 else ''}): "
        "move or remove them first, or in the same commit",
        object=f"Queue/{queue}",
    )

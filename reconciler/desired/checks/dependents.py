"""Dependents of jobs, and users of queues.

If a job changes, the jobs that name it are judged again; a queue with jobs in force cannot be
removed.
"""

from collections.abc import Mapping, Sequence

from reconciler.model import desired


class Dependents:
    """Names of jobs by the jobs that they depend on."""

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = {}

    def of(self, name: str) -> set[str]:
        """Return the dependents of a job, existing or not."""
        return self._users.get(name, set())

    def renew(self, name: str, before: desired.Job | None, after: desired.Job | None) -> None:
        """Replace a job; None: it is gone."""
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
    """Return queues that the structure lacks, with the jobs in them."""
    users: dict[str, list[str]] = {}
    for name, job in jobs.items():
        if job.queue not in structure.queues:
            users.setdefault(job.queue, []).append(name)
    return users


def queue_in_use(queue: str, jobs: Sequence[str], path: str) -> desired.Problem:
    """Return the fault that a revision removes a queue, with its former file, while jobs
    are in it.
    """
    count = "1 job is" if len(jobs) == 1 else f"{len(jobs)} jobs are"
    return desired.Problem(
        rule="queue-in-use",
        severity="error",
        path=path,
        message=f"the queue is removed while {count} in it "
        f"({', '.join(sorted(jobs)[:3])}{' …' if len(jobs) > 3 else ''}): "
        "move or remove them first, or in the same commit",
        object=f"Queue/{queue}",
    )


def queues_in_use(
    users: Mapping[str, Sequence[str]], origins: Mapping[str, str]
) -> list[desired.Problem]:
    """Return the faults that queues are removed, with their users and former files."""
    return [
        queue_in_use(queue, names, origins.get(f"Queue/{queue}", ""))
        for queue, names in sorted(users.items())
    ]

"""Which jobs wait for which, so that a job that changes has those judged again that name it."""

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

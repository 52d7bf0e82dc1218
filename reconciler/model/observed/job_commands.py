"""The site's commands around a job on a node, as a pool declares them and an agent runs them."""

from typing import Literal

import msgspec

#: The most commands before a job, and as many after it: with all checks they fit into a report.
COMMANDS_MAX = 8
#: The longest time limit of one command.
TIMEOUT_S_MAX = 3600


class JobCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command of the site before or after a job.

    ``run_as``: ``agent`` for the agent's own user, with Muster's variables alone; ``user`` for the
    user of the job, with the whole environment of its first task on the node.
    """

    name: str
    command: tuple[str, ...]
    timeout_s: float = 60.0
    run_as: Literal["agent", "user"] = "agent"

    @property
    def is_check(self) -> bool:
        """True if it is also a check of the node, of the same name.

        One that runs as the job's user is none: any user could let it fail on every node.
        """
        return self.run_as == "agent"


class JobCommands(msgspec.Struct, frozen=True, omit_defaults=True):
    """The commands of a pool around each job, in their order."""

    before: tuple[JobCommand, ...] = ()
    after: tuple[JobCommand, ...] = ()

    @property
    def checks(self) -> dict[str, JobCommand]:
        """The commands that are also checks of the node, by name."""
        return {one.name: one for one in (*self.before, *self.after) if one.is_check}

    def untried(self, after: "JobCommands") -> tuple[str, ...]:
        """Return the names of checks that are new in ``after``, or ask for more, sorted."""
        known = self.checks
        return tuple(
            sorted(
                one.name
                for one in after.checks.values()
                if (same := known.get(one.name)) is None
                or same.command != one.command
                or same.timeout_s > one.timeout_s
            )
        )

"""The plan of a fault story: the cluster, and what happens at which moment.

Plans are data, drawn by ``stories`` and executed by ``telling``, so that a failing one can be
shortened and executed again.
"""

from typing import Any, Literal

import msgspec

from reconciler.core import schedule_reuse
from reconciler.model import desired
from reconciler.simulation.engine import faults

GI = 2**30
BEGIN = 1_000_000.0
#: Seconds for which people and faults are at work.
STORM_S = 900.0
SILENCE_S = 30
LEASE_S = 60
GRACE_S = 8
#: The longest that a task runs which ends by itself.
RUNS_S_MAX = 90.0
#: The longest that a message takes.
DELAY_S_MAX = 20.0
#: How long the controller's machine stands still.
PAUSE_S = 60.0
#: The longest from one cycle to the next where there is input: leases have to be renewed meanwhile.
PACE_S_MAX = 5.0
FETCHES_S = (0.0, 2.0, 10.0, 45.0)
OWNERS = ("alice@example.org", "bob@example.org")
What = Literal[
    "submit",
    "cancel",
    "change",
    "structure",
    "fault",
    "repair",
    "pause",
    "crash-before-commit",
    "crash-after-commit",
    "keep-store",
    "restore-store",
    "lose-store",
    "second-store",
]


class Step(msgspec.Struct, frozen=True):
    """One event of a story.

    Attributes:
        at: seconds after the beginning.
        what: ``change`` replaces ``fields`` of a job's document; ``structure`` sets one of the
            ``Changes``; ``crash-*`` kills the controller in its next cycle; ``pause`` stops it for
            ``PAUSE_S``; ``repair`` brings back a machine that was reported as gone. ``keep-store``
            copies the store, under the name ``subject``; ``restore-store`` goes on with that copy,
            ``lose-store`` with an empty store; ``second-store`` starts another controller with the
            copy, or an empty store. Their ``fields`` are read by ``store_telling``.
        subject: a job, the field of ``Changes``, or a copy of the store.
    """

    at: float
    what: What
    subject: str = ""
    job: desired.Job | None = None
    fields: tuple[tuple[str, Any], ...] = ()
    fault: faults.InjectedFault | None = None

    def text(self) -> str:
        """Return the step as one line."""
        told = ""
        if self.job is not None:
            short = ("queue", "priority", "array_count", "lease_s", "preemptible", "depends_on")
            told = ", ".join(f"{name}={getattr(self.job, name)}" for name in short)
            groups = [(g.least, g.count, g.resources.as_vector()) for g in self.job.groups]
            told = f"{told}, tasks={groups}"
        if self.fault is not None:
            told = f"{self.fault.kind} {self.fault.node} {self.fault.amount_s or ''}"
        told += ", ".join(f"{name}={value}" for name, value in self.fields)
        return f"{self.at:7.1f} {self.what} {self.subject} {told}".rstrip()


class Changes(msgspec.Struct, frozen=True):
    """Changes of the first structure by commits. The default changes nothing.

    ``swollen``: more CPUs are declared than exist. ``thinned``: only half of the GPUs are declared.
    """

    drained: str = ""
    gone: str = ""
    undeclared: str = ""
    suspended: bool = False
    swollen: bool = False
    thinned: bool = False
    limit: int | None = None
    closed: str = ""


class Plan(msgspec.Struct, frozen=True):
    """A whole story.

    Attributes:
        lose: share of messages that are lost.
        duplicate: share of messages that arrive twice.
        delay: share of messages that are delayed.
        pace_s: shortest time between two cycles, as of a slow controller.
        size: name of the size that it was drawn with.
        full_s: how far apart full schedules are, with quick ones between them; 0: each is full.
    """

    seed: int
    structure: desired.Structure
    steps: tuple[Step, ...]
    lose: float
    duplicate: float
    delay: float
    pace_s: float = 0.0
    size: str = ""
    full_s: float = 0.0

    @property
    def pace(self) -> schedule_reuse.Pace:
        """How often full schedules are made."""
        lines_min = 1 if self.full_s else schedule_reuse.PACE.quick_lines_min
        return schedule_reuse.Pace(lines_min, self.full_s, self.full_s)

    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(name for pool in self.structure.pools.values() for name in pool.nodes)


def structure_with(first: desired.Structure, changes: Changes) -> desired.Structure:
    """Return the structure after commits."""
    replace = msgspec.structs.replace
    pools = {}
    for pool in first.pools.values():
        drains = {}
        if changes.drained in pool.nodes:
            drains[changes.drained] = desired.NodeDrain("fan", owner=OWNERS[0])
        if changes.gone in pool.nodes:
            drains[changes.gone] = desired.NodeDrain("burnt", gone=True)
        nodes = tuple(name for name in pool.nodes if name != changes.undeclared)
        has = pool.node_resources
        if changes.swollen:
            has = replace(has, cpu_milli=2 * has.cpu_milli)
        if changes.thinned:
            has = replace(has, gpu_milli=has.gpu_milli // 2000 * 1000)
        pools[pool.name] = replace(pool, drains=drains, nodes=nodes, node_resources=has)
    queues = dict(first.queues)
    if changes.limit is not None:
        limit = desired.QuotaAmounts(cpu_milli=changes.limit)
        queues["research"] = replace(queues["research"], limit=limit)
    if changes.closed in queues:
        queues[changes.closed] = replace(queues[changes.closed], suspend=True)
    settings = replace(first.settings, suspend=changes.suspended)
    return replace(first, pools=pools, queues=queues, settings=settings)

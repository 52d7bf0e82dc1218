"""Last phase: what is observed and not what git says, as a list that lives as long as it lasts."""

from collections.abc import Mapping

from reconciler.core import health, overrides
from reconciler.core import recall as recalls
from reconciler.core import work as desk
from reconciler.model import desired, devices, records, times
from reconciler.model.drift import Drift
from reconciler.model.states import NodeState

#: The most processes that are listed of one node.
FOREIGN_MAX = 64
_MESSAGE_CHARACTERS_MAX = 500
#: A node may say any number; this one is in the year 2100.
_TIME_MAX = 4.1e9
#: What such a node last said may be long over.
_NOT_HEARD = (NodeState.UNKNOWN, NodeState.GONE)


class _Alike(recalls.Part):
    """Nodes that may be other than git has them; of all the rest it was found that they are not."""

    def __init__(self, recall: recalls.Recall) -> None:
        super().__init__(recall)
        self.others: set[str] = set()
        self.missing: tuple[str, ...] = ()
        self._made_for: desired.Structure | None = None

    def look(self, work: desk.Work) -> list[str]:
        """Names of nodes to look at, sorted."""
        structure, count = work.desired.structure, len(self.missing)
        changed = self.take_nodes({*work.nodes, *work.left_nodes})
        if self._made_for is not structure:
            self._made_for = structure
            self.others = set(work.node_names())
            count = -1
        self.others |= changed
        if changed or count < 0:
            declared = health.pool_of_node(work)
            if count < 0 or changed.intersection(self.missing) or work.left_nodes:
                self.missing = tuple(n for n in sorted(declared) if work.node(n) is None)
        return sorted(self.others)


def find(work: desk.Work, known: dict[str, float]) -> tuple[Drift, ...]:
    """Every difference now; ``known`` maps keys of lasting ones to when they were first seen."""
    found: list[Drift] = []
    alike, declared = work.recall.part(_Alike), health.pool_of_node(work)
    for name in alike.look(work):
        node = None if name in work.left_nodes else work.node(name)
        drift = [] if node is None else _of_node(work, node, declared)
        if not drift and name not in work.nodes:
            alike.others.discard(name)
        found += drift
    found += [
        _drift(work, "node-missing", name, "declared, and no agent reports")
        for name in alike.missing
    ]
    for one in work.overrides:
        kind = "job-cancelled-by-override" if one.verb == "cancel" else "node-drained-by-override"
        message = f"{overrides.describe(one)}; to commit it: {overrides.commit_command(one)}"
        found.append(_drift(work, kind, one.subject, message))
    status = work.desired.status
    if status.sync == "OutOfSync":
        subject = status.attempted_revision or "head"
        found.append(_drift(work, "head-not-applied", subject, status.message))
    elif status.sync == "Unknown":
        found.append(_drift(work, "repository-unreadable", "repository", status.message))
    return tuple(
        Drift(
            kind=d.kind,
            subject=d.subject,
            message=d.message,
            severity=d.severity,
            action=d.action,
            first_seen=known.get(d.key, work.now),
        )
        for d in found
    )


def _of_node(work: desk.Work, node: records.NodeRecord, declared: Mapping[str, str]) -> list[Drift]:
    """What is other on one node than git says."""
    found: list[Drift] = []
    name = node.name
    if name not in declared and node.state is not NodeState.GONE:
        found.append(_drift(work, "node-undeclared", name, "no pool declares it"))
    pool = work.desired.structure.pools.get(declared.get(name, ""))
    if pool is not None and node.state is NodeState.UNKNOWN:
        found.append(_drift(work, "node-silent", name, node.message or "not heard of"))
    elif pool is not None and node.state is not NodeState.GONE:
        missing = health.lacks(node.inventory, pool)
        if missing:
            found.append(_drift(work, "node-inventory", name, missing))
    if node.state not in _NOT_HEARD:
        found.extend(
            _drift(work, "gpu-process-foreign", f"{name}/gpu{one.gpu}/{one.pid}", _who(one))
            for one in node.inventory.foreign_gpu_processes[:FOREIGN_MAX]
        )
    return found


def _who(process: devices.GpuProcess) -> str:
    """What is known of a process on a GPU that is no task's."""
    parts = [f"{process.name or 'a process'} ({process.pid})"]
    if process.user:
        parts.append(f"of user {process.user}")
    parts.append(f"holds GPU {process.gpu} ({process.uuid})")
    if process.memory_bytes:
        parts.append(f"with {process.memory_bytes / 2**20:.0f} MiB")
    if process.started_at and 0 < process.started_at < _TIME_MAX:
        parts.append(f"since {times.format_time(process.started_at)}")
    detail = f": {process.detail}" if process.detail else ""
    return (" ".join(parts) + " and belongs to no task" + detail)[:_MESSAGE_CHARACTERS_MAX]


def _drift(work: desk.Work, kind: str, subject: str, message: str) -> Drift:
    return Drift(
        kind=kind,
        subject=subject,
        message=message,
        severity="warning",
        action="report",
        first_seen=work.now,
    )

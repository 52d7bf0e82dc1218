"""One moment of a cluster as a cycle left it: who has what, and what would fit where.

Git's documents and records come in; amounts by queue and whether an element fits go out, found out
by adding up and trying out. Nothing of the scheduler is imported (``truth`` says why).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from bench import tryout
from bench.tryout import WHOLE, Host
from reconciler.model import desired
from reconciler.model.state import pending_reasons, records
from reconciler.model.state.states import AttemptState, NodeState
from reconciler.model.values.resources import Resources


class Seen(msgspec.Struct, frozen=True):
    """What a cycle left: git's documents, records by name or id, and reasons by key.

    ``promised``: job to the elements that room is kept for.
    """

    now: float
    structure: desired.Structure
    job_records: Mapping[str, records.JobRecord]
    attempts: Mapping[str, records.AttemptRecord]
    nodes: Mapping[str, records.NodeRecord]
    why: Mapping[str, tuple[pending_reasons.Reason, ...]]
    promised: Mapping[str, int] = {}


class Moment:
    """What can be told of it.

    Attributes:
        live: attempts that hold something. stopping: (job, element) of those told to leave.
    """

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.structure = seen.structure
        self._pool_of = self.structure.pool_of_node()
        self.live = [a for a in seen.attempts.values() if a.state is not AttemptState.ENDED]
        self.stopping = {(a.job, a.element) for a in self.live if a.stop is not None}
        self._hosts: dict[str, list[Host]] = {}
        self._fits: dict[object, bool | None] = {}

    def all_hosts(self, when: str) -> list[Host]:
        """Every node of a pool: ``now``; ``begin``: before this cycle's starts; ``later``: once
        all that stops has stopped; ``empty``."""
        if when not in self._hosts:
            found = {}
            for name, node in self.seen.nodes.items():
                pool = self.structure.pools.get(self._pool_of.get(name, ""))
                if pool is None or not node.pool:
                    continue
                has = pool.promised()
                taken = {layout.device for layout in pool.mig}
                devices = [0 if n in taken else WHOLE for n in range(has.gpu_milli // WHOLE)]
                found[name] = Host(name, pool, has.cpu_milli, has.memory_bytes, devices)
            for attempt in () if when == "empty" else self.live:
                gone = when == "begin" and attempt.assigned_at >= self.seen.now
                gone |= when == "later" and (attempt.job, attempt.element) in self.stopping
                if attempt.node in found and not gone:
                    self._charge(found[attempt.node], attempt)
            self._hosts[when] = [found[name] for name in sorted(found)]
        return self._hosts[when]

    def _charge(self, host: Host, attempt: records.AttemptRecord) -> None:
        host.cpu -= attempt.resources.cpu_milli
        host.memory -= attempt.resources.memory_bytes
        host.tenants.add((attempt.job, attempt.element))
        spec = self.spec_of(attempt)
        host.closed |= spec is not None and spec.exclusive
        for device in attempt.devices:
            if device < len(host.devices):
                host.devices[device] -= attempt.share_milli

    def spec_of(self, attempt: records.AttemptRecord) -> desired.Job | None:
        record = self.seen.job_records.get(attempt.job)
        return None if record is None else record.spec

    def is_ready(self, node: str) -> bool:
        return self.seen.nodes[node].state is NodeState.READY

    def usable(self, spec: desired.Job, when: str, *, sure: bool) -> list[Host]:
        """Nodes that a job could use beyond doubt, or all that it might."""
        kept = {name for one in self.structure.reservations.values() for name in one.nodes}
        found = []
        for host in self.all_hosts(when):
            node, pool = self.seen.nodes[host.name], host.pool
            if when != "empty" and not self.is_ready(host.name):
                continue
            if (spec.pools and pool.name not in spec.pools) or pool.observe_only:
                continue
            if any(taint.hard and not spec.tolerates(taint) for taint in pool.taints):
                continue
            if (spec.hosts and host.name not in spec.hosts) or host.name in spec.exclude_hosts:
                continue
            doubtful = host.name in kept or bool(spec.node_selector) or bool(spec.storage)
            root = node.inventory.runs_as_root and not pool.allow_root
            doubtful |= root and spec.owner not in self.structure.unix_users
            if not (sure and doubtful):
                found.append(host)
        return found

    def holds(self, spec: desired.Job, when: str, *, sure: bool) -> bool | None:
        """Whether the minimum of one element fits; None: this can't tell."""
        key = (when, sure, spec.queue if spec.reservation else "", _asked_key(spec))
        if key not in self._fits:
            self._fits[key] = self._try(spec, self.usable(spec, when, sure=sure))
        return self._fits[key]

    def _try(self, spec: desired.Job, hosts: list[Host]) -> bool | None:
        if any(group.mig_profile for group in spec.groups):
            return None
        if any(one.weight is None for one in spec.affinities):
            return None
        if any(group.topology.slice_size for group in spec.groups):
            return None
        levels = {group.topology.required for group in spec.groups}
        if levels != {""} and len(spec.groups) > 1:
            return None
        level = spec.topology.required or next(iter(levels))
        if spec.topology.required and levels - {"", spec.topology.required}:
            return None
        told = [tryout.place(spec, domain) for domain in tryout.domains(hosts, level)]
        return True if True in told else None if None in told else False

    def path(self, name: str | None) -> Iterator[desired.Queue]:
        while name is not None and name in self.structure.queues:
            yield self.structure.queues[name]
            name = self.structure.queues[name].parent

    def used(self, *, firm: bool = False, pool: str = "") -> dict[str, list[int]]:
        """Amounts by queue with those below it, and what room is kept for; ``firm``: of work that
        is not preemptible; ``pool``: there, with all that room is kept for anywhere."""
        pool_of = self.structure.pool_of_node()
        used: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        counts: Counter[tuple[str, int, str]] = Counter()
        for attempt in self.live:
            spec = self.spec_of(attempt)
            if spec is None:
                continue
            key = (attempt.job, attempt.element, attempt.group)
            counts[key] += 1
            least = next((g.least for g in spec.groups if g.name == attempt.group), 0)
            if firm and (spec.preemptible or counts[key] > least):
                continue
            if pool and pool_of.get(attempt.node) != pool:
                continue
            self._add(used, spec.queue, attempt.resources.as_vector())
        for job, count in self.seen.promised.items():
            record = self.seen.job_records.get(job)
            if record is not None and not (firm and record.spec.preemptible):
                amounts = asked(record.spec)
                self._add(used, record.spec.queue, [count * amount for amount in amounts])
        return used

    def _add(self, used: defaultdict[str, list[int]], queue: str, amounts: Iterable[int]) -> None:
        more = list(amounts)
        for member in self.path(queue):
            for resource in range(3):
                used[member.name][resource] += more[resource]

    def guaranteed(self, queue: desired.Queue, pool: str = "") -> list[int]:
        """What a queue is guaranteed, in a pool if one is named; of what it does not name, what its
        children are."""
        below = [q for q in self.structure.queues.values() if q.parent == queue.name]
        sums = [self.guaranteed(child, pool) for child in below]
        own = _amounts_of(queue, pool).guaranteed.as_vector()
        return [
            sum(one[resource] for one in sums) if amount is None else amount
            for resource, amount in enumerate(own)
        ]

    def bounds_of_firm(self, queue: desired.Queue, pool: str = "") -> list[int | None]:
        """What work that is not preemptible may have of a queue; None: nothing bounds it.

        What nobody is guaranteed is not rationed, nor CPUs and memory by a queue that names
        others only.
        """
        owed: list[int | None] = list(self.guaranteed(queue, pool))
        own = _amounts_of(queue, pool)
        named = [own.guaranteed.as_vector(), own.lending_limit.as_vector()]
        names = [any(row[resource] is not None for row in named) for resource in range(3)]
        for resource in range(3):
            queues = self.structure.queues.values()
            nobody = not any(self.guaranteed(other, pool)[resource] for other in queues)
            silent = resource < 2 and any(names) and not names[resource]
            if nobody or silent:
                owed[resource] = None
        return owed

    def is_beyond_firm(self, spec: desired.Job, pool: str, *, now: bool) -> bool:
        """Whether work that is not preemptible asks for more than is guaranteed to its queue and
        all above it, in a pool if one is named; ``now``: beside what such work has there."""
        used = self.used(firm=True, pool=pool) if now else {}
        return not spec.preemptible and any(
            more and most is not None and has + more > most
            for queue in self.path(spec.queue)
            for has, more, most in zip(
                used.get(queue.name, [0, 0, 0]),
                asked(spec),
                self.bounds_of_firm(queue, pool),
                strict=True,
            )
        )


def _amounts_of(queue: desired.Queue, pool: str) -> desired.Queue | desired.QueueFlavor:
    flavors = (flavor for flavor in queue.flavors if flavor.pool == pool)
    return next(flavors, desired.QueueFlavor(pool)) if pool else queue


def asked(spec: desired.Job) -> tuple[int, int, int]:
    """What the minimum of one element is charged."""
    return total(group.resources.times(group.least) for group in spec.groups)


def whole(spec: desired.Job) -> tuple[int, int, int]:
    """What all tasks of one element are charged."""
    return total(group.resources.times(group.count) for group in spec.groups)


def total(amounts: Iterable[Resources]) -> tuple[int, int, int]:
    return sum(amounts, Resources()).as_vector()


def _asked_key(spec: desired.Job) -> object:
    """Jobs alike in this fit alike."""
    groups = [
        (g.resources, g.least, g.devices, g.gpu_memory_bytes, g.mig_profile, g.topology)
        for g in spec.groups
    ]
    return (
        tuple(groups),
        (spec.pools, spec.tolerations, tuple(sorted(spec.node_selector.items())), spec.storage),
        (spec.topology, spec.exclusive, spec.affinities, spec.owner),
        (spec.hosts, spec.exclude_hosts),
    )

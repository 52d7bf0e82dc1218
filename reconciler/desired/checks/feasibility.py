"""Checks that a job could ever start: on some node, on all nodes together, within all limits.

All results are warnings, because pools and limits change. A job comes in with the objects around
it; a fault with the arithmetic goes out if it would wait in vain.
"""

import functools
from collections.abc import Callable, Iterator

from reconciler.desired.checks import gang_feasibility, job_names
from reconciler.desired.documents.faults import Fault
from reconciler.desired.normalise import entitlements, resource_requests
from reconciler.model import desired
from reconciler.model.observed.devices import INNER_LEVELS, INNER_WORDS
from reconciler.model.policy import queue_paths
from reconciler.model.values import hostlists, quantities, resources

_FORMATS: tuple[Callable[[int], str], ...] = (
    quantities.format_cpu,
    quantities.format_memory,
    quantities.format_gpu,
)

#: Devices or instances of a task, memory of each, MIG profile, level at which they are near.
_Devices = tuple[int, int, str, str]
#: Labels with their values, or pools with why a job can't use them.
_Pairs = tuple[tuple[str, str], ...]

#: The rules of what is said of work that could not start as things stand.
RULES = entitlements.RULES | {
    *(
        "never-fits",
        "never-in-reservation",
        "unknown-pool",
        "unknown-host",
        "grace-cut",
        "mpi-tasks",
    ),
}
#: The most users and queues that are named of whom a reservation is for.
WHOM_SHOWN = 3


class Fitting:
    """A feasibility check of jobs against pools and limits, with a cache by shape."""

    def __init__(self, structure: desired.Structure) -> None:
        self._parents = {name: queue.parent for name, queue in structure.queues.items()}
        self._reservations = structure.reservations
        self._entitled = entitlements.Entitlements(structure)
        self._pools = structure.pools
        self._lists = [
            (frozenset(pool.nodes), hostlists.fold(pool.nodes))
            for pool in structure.pools.values()
            if pool.nodes
        ]
        self._volumes = structure.volumes
        self._tainted = any(pool.taints for pool in structure.pools.values())
        self._why = functools.lru_cache(maxsize=4096)(self._judge)
        self._may = functools.lru_cache(maxsize=4096)(self._usable)
        self._grace_max_s = structure.settings.scheduling.grace_max_s
        self._together = gang_feasibility.GangFeasibility(structure.pools)

    def warnings(self, job: desired.Job) -> list[Fault]:
        """Return why a job cannot start at present, or runs otherwise than written; none else.

        Of several bounds on one start the smallest is reported.
        """
        alone = self.warning(job)
        beyond = self._entitled.beyond(job)
        near = None if alone is not None else self._of_all(job)
        if near is not None and near.resource is None:
            alone = _never_fits(near.message)
        elif near is not None and near.resource is not None:
            beyond.append(
                entitlements.Beyond(_never_fits(near.message), near.resource, near.amount)
            )
        quota = self._entitled.beyond_quota(job)
        strangers = job_names.missing_hosts(job, self._lists)
        never = alone is not None and alone.rule == "never-fits"
        if never and job.hosts and all(named.isdisjoint(job.hosts) for named, _ in self._lists):
            alone = None  # said with their names
        found = [
            *strangers,
            alone,
            *(entitlements.smallest(beyond) if beyond else ()),
            quota,
            self._kept(job),
            _crowded(job),
        ]
        return [one for one in found if one is not None] + self._cut(job)

    def _cut(self, job: desired.Job) -> list[Fault]:
        """Return warnings of the graces of a job that are longer than jobs may have."""
        most = self._grace_max_s
        asked = {
            ("spec", "checkpoint", "grace"): job.checkpoint.grace_s if job.checkpoint else None,
            ("spec", "terminationGrace"): job.grace_s,
        }
        return [
            Fault(
                "grace-cut",
                f"{quantities.format_duration(grace_s)} is cut to "
                f"{quantities.format_duration(most)}, the graceMax of the Cluster: save within it",
                place,
                severity="warning",
            )
            for place, grace_s in asked.items()
            if grace_s is not None and grace_s > most
        ]

    def _kept(self, job: desired.Job) -> Fault | None:
        """Return a warning if a job may not use the reservation that it names.

        It is then placed as if it named none. `muster submit` has written an owner into the job
        before.
        """
        one = self._reservations.get(job.reservation)
        if one is None:
            return None
        above = [job.queue, *queue_paths.ancestors(job.queue, self._parents.get)]
        if one.lets_in(job.owner, job.reservation, above):
            return None
        whom = [*one.users, *(f"queue {name}" for name in one.queues)]
        more = f" and {len(whom) - WHOM_SHOWN} more" if len(whom) > WHOM_SHOWN else ""
        for_whom = (
            "maintenance, for nobody" if one.maintenance else ", ".join(whom[:WHOM_SHOWN]) + more
        )
        who = f"{job.owner} in queue {job.queue}" if job.owner else f"queue {job.queue}"
        if one.users and not job.owner:
            who = f"a job without owner in {who}"
        message = (
            f"reservation {one.name} is kept for {for_whom}: {who} may not use it, and the job "
            "is placed as if it named none"
        )
        place = ("spec", "reservation")
        return Fault("never-in-reservation", message, place, severity="warning")

    def warning(self, job: desired.Job) -> Fault | None:
        """Return a warning if no pool could hold a task of some group of the job."""
        missing = job_names.missing_pools(job.pools, self._pools)
        if missing is not None or not self._pools:
            return missing
        selector, elsewhere = self._where(job)
        for group in job.groups:
            key = (group.resources, _devices(group), job.pools, selector, elsewhere)
            if why := self._why(*key):
                return _never_fits(f"no pool could ever hold a task of group {group.name}: {why}")
        return None

    def _where(self, job: desired.Job) -> tuple[_Pairs, _Pairs]:
        """Return the labels that nodes must have for a job, and the pools that it cannot use."""
        selector = tuple(job.node_selector.items()) if job.node_selector else ()
        limited = job.storage or job.hosts or job.exclude_hosts or self._tainted
        return selector, self._barred(job) if limited else ()

    def _of_all(self, job: desired.Job) -> gang_feasibility.Bound | None:
        """Return why no set of nodes could hold one start although each task alone fits."""
        one = job.groups[0].least == 1 and len(job.groups) == 1
        topologies = (job.topology, *(group.topology for group in job.groups))
        if not self._pools or (one and all(each is desired.ANYWHERE for each in topologies)):
            return None
        selector, elsewhere = self._where(job)
        groups = tuple(
            gang_feasibility.GroupDemand(
                group.name,
                group.least,
                group.resources,
                self._may(group.resources, _devices(group), job.pools, selector, elsewhere),
                group.topology,
                plain=not group.devices,
                per_node=group.tasks_per_node or 0,
            )
            for group in job.groups
        )
        only = tuple(value for key, value in selector if key == "node")
        return self._together.beyond(groups, job.topology.required, only)

    def _barred(self, job: desired.Job) -> _Pairs:
        """Return pools that lack a volume or have a taint that the job does not tolerate, with the
        reason.
        """
        found = []
        for pool in self._pools.values():
            lacking = [
                name
                for name in job.storage
                if self._volumes[name].pools and pool.name not in self._volumes[name].pools
            ]
            named = set(job.hosts or pool.nodes) - set(job.exclude_hosts)
            minded = [taint for taint in pool.taints if taint.hard and not job.tolerates(taint)]
            if lacking:
                found.append((pool.name, f"it has no volume {lacking[0]}"))
            elif pool.nodes and named.isdisjoint(pool.nodes):
                found.append((pool.name, "hosts and excludeHosts leave none of its nodes"))
            elif minded:
                found.append((pool.name, f"it has the taint {minded[0].text()}"))
        return tuple(found)

    def _judge(
        self,
        needs: resources.Resources,
        devices: _Devices,
        pools: tuple[str, ...],
        selector: _Pairs,
        elsewhere: _Pairs,
    ) -> str:
        """Return why no pool could hold such a task; empty if one may."""
        reasons = []
        for name, reason in self._reasons(needs, devices, pools, selector, elsewhere):
            if not reason:
                return ""
            reasons.append(f"{name}: {reason}")
        return "; ".join(reasons[:5])

    def _usable(
        self,
        needs: resources.Resources,
        devices: _Devices,
        pools: tuple[str, ...],
        selector: _Pairs,
        elsewhere: _Pairs,
    ) -> tuple[str, ...]:
        """Return the pools that could hold such a task."""
        found = self._reasons(needs, devices, pools, selector, elsewhere)
        return tuple(name for name, reason in found if not reason)

    def _reasons(
        self,
        needs: resources.Resources,
        devices: _Devices,
        pools: tuple[str, ...],
        selector: _Pairs,
        elsewhere: _Pairs,
    ) -> Iterator[tuple[str, str]]:
        """Return for each pool why it could hold no such task, empty if it may."""
        barred = dict(elsewhere)
        for pool in self._pools.values():
            reason = ""
            if pools and pool.name not in pools:
                reason = "the job does not name it"
            elif not all(resource_requests.may_bear(pool, key, value) for key, value in selector):
                reason = "its labels are not those of nodeSelector"
            elif pool.name in barred:
                reason = barred[pool.name]
            elif not needs.fits_in(pool.promised()):
                reason = _too_large(needs, pool.promised())
            elif (lacks := _lacks_devices(pool, needs, devices)) != "":
                reason = lacks
            elif not pool.nodes:
                reason = "it has no nodes"
            yield pool.name, reason


def _crowded(job: desired.Job) -> Fault | None:
    """Return a warning if tasks of an MPI job may share a node, where one of them does it all."""
    if job.framework != "mpi":
        return None
    if all(group.count == 1 or group.tasks_per_node == 1 for group in job.groups):
        return None
    message = (
        "tasks of this MPI job may share a node, and the first of them there runs all processes "
        "with what it alone asked for: write tasksPerNode: 1, and resources for a whole node's work"
    )
    return Fault("mpi-tasks", message, ("spec", "framework"), severity="warning")


def _never_fits(message: str) -> Fault:
    return Fault("never-fits", message, ("spec",), severity="warning")


def _devices(group: desired.TaskGroup) -> _Devices:
    return (group.devices, group.gpu_memory_bytes, group.mig_profile, group.inner_required)


def _lacks_devices(pool: desired.Pool, needs: resources.Resources, devices: _Devices) -> str:
    """Return why the devices of a pool's nodes are of the wrong kind; empty if they are not."""
    count, memory_bytes, profile, inner = devices
    if profile:
        have = sum(number for one in pool.mig for name, number in one.instances if name == profile)
        return "" if have >= count else f"{count} {profile} asked, {have} there"
    if memory_bytes and (pool.gpu_memory_bytes or 0) < memory_bytes:
        amount = quantities.format_memory(memory_bytes)
        there = quantities.format_memory(pool.gpu_memory_bytes or 0)
        return f"{amount} of GPU memory asked, {there} there"
    if not pool.shareable and (memory_bytes or 0 < needs.gpu_milli < 1000):
        return "its GPUs are not shared"
    whole = pool.node_resources.gpu_milli - 1000 * len(pool.mig)
    if needs.gpu_milli > whole:
        asked = quantities.format_resource(2, needs.gpu_milli)
        return f"{asked} asked, {whole // 1000} not cut by MIG"
    domains = {"numa": pool.numa, "nvlink": pool.nvlink}.get(inner, ())
    if domains and needs.gpu_milli > 1000:
        most, word = max(map(len, domains)), INNER_WORDS[INNER_LEVELS.index(inner)]
        if needs.gpu_milli > 1000 * most:
            amount = quantities.format_resource(2, needs.gpu_milli)
            return f"{amount} of one {word} asked, {most} there"
    return ""


def _too_large(needs: resources.Resources, room: resources.Resources) -> str:
    pairs = enumerate(zip(needs.as_vector(), room.as_vector(), strict=True))
    return ", ".join(
        f"{quantities.format_resource(index, need)} asked, {_FORMATS[index](have)} there"
        for index, (need, have) in pairs
        if need > have
    )

"""Normalises the requests of a job: devices, shares, sizes, topology, affinity.

Parts of a job's document come in with the structure in force; normalised values go out, with faults
for contradictions and unknown names.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from reconciler.desired.documents.faults import FaultCollector, cpu_milli, memory_bytes
from reconciler.desired.documents.yaml_reader import Path
from reconciler.model import desired
from reconciler.model.documents import job_affinity, job_spec
from reconciler.model.values import found_values, quantities
from reconciler.model.values.resources import RESOURCE_NAMES, Resources

#: Slices of compute of one device (NVIDIA Multi-Instance GPU user guide).
MIG_SLICES = 7
#: Less memory than this is a unit that was left out.
MEMORY_BYTES_MIN = 2**20
_WHOLE = 1000
_NO_GPUS = "this is of whole GPUs, and no task takes any: ask for `gpu`, or remove it"


class ResourceRequest(NamedTuple):
    """Resources of one task, as ``desired.TaskGroup`` has them."""

    amounts: Resources
    devices: int = 0
    gpu_memory_bytes: int = 0
    mig_profile: str = ""


def mig_slices(profile: str) -> int:
    """Return the slices, of seven, of one instance: the number before the ``g``."""
    return int(profile.partition("g.")[0])


def resources(
    needs: job_spec.TaskResourcesSpec,
    spec: job_spec.JobSpec,
    structure: desired.Structure,
    faults: FaultCollector,
    place: Path,
) -> ResourceRequest | None:
    """Return the resources of a task of a job; None and faults if they are invalid."""
    if needs.gpu_memory is None and needs.mig is None:
        try:
            plain = _plain(needs.cpu, needs.memory, needs.gpu)
            if not 0 < plain.amounts.memory_bytes < MEMORY_BYTES_MIN:
                return plain
        except quantities.QuantityError:
            pass  # said below, with its place
    before = len(faults.found)
    cpu = faults.amount("cpu", needs.cpu, *place, "resources", "cpu")
    memory = faults.amount("memory", needs.memory, *place, "resources", "memory")
    if 0 < memory < MEMORY_BYTES_MIN:
        faults.add(
            "too-little-memory",
            "no program starts in that little: a number without a unit is bytes",
            *place,
            "resources",
            "memory",
            found=found_values.quote(needs.memory),
            expected=f"at least {quantities.format_memory(MEMORY_BYTES_MIN)}, such as 4Gi, or none",
        )
    gpu = faults.amount("gpu", needs.gpu, *place, "resources", "gpu")
    if gpu > _WHOLE and gpu % _WHOLE:
        faults.add(
            "gpu-share",
            "a task takes whole GPUs, or a share of one: shares of several are asked for by "
            "gpuMemory beside gpu",
            *place,
            "resources",
            "gpu",
            found=quantities.format_gpu(gpu),
            expected="a whole number, or a number below 1",
        )
    if needs.mig is not None:
        found = _mig(needs, Resources(cpu, memory, gpu), faults, place)
    else:
        pools = tuple(structure.pools.values())
        found = _by_memory(
            needs,
            Resources(cpu, memory, gpu),
            (usable(pools, spec.pools, spec.node_selector), pools),
            faults,
            place,
        )
    return found if len(faults.found) == before else None


@functools.lru_cache(maxsize=4096)
def _plain(cpu: str | float, memory: str | float, gpu: float) -> ResourceRequest:
    milli = quantities.parse_gpu(gpu)
    if milli > _WHOLE and milli % _WHOLE:
        raise quantities.QuantityError("a share of several GPUs")
    return ResourceRequest(Resources(cpu_milli(cpu), memory_bytes(memory), milli))


def _mig(
    needs: job_spec.TaskResourcesSpec,
    amounts: Resources,
    faults: FaultCollector,
    place: Path,
) -> ResourceRequest | None:
    if needs.mig is None:
        return None
    if amounts.gpu_milli or needs.gpu_memory is not None:
        faults.add(
            "exclusive-fields",
            "a task takes MIG instances or devices, not both: remove mig or the other",
            *place,
            "resources",
            "mig",
        )
    slices = needs.mig.count * mig_slices(needs.mig.profile)
    charged = Resources(amounts.cpu_milli, amounts.memory_bytes, slices * _WHOLE // MIG_SLICES)
    return ResourceRequest(charged, needs.mig.count, 0, needs.mig.profile)


def _by_memory(
    needs: job_spec.TaskResourcesSpec,
    amounts: Resources,
    pools: tuple[Sequence[desired.Pool], Sequence[desired.Pool]],
    faults: FaultCollector,
    place: Path,
) -> ResourceRequest | None:
    """Return the request by device memory; ``pools``: those that the job may use, and all."""
    if needs.gpu_memory is None:
        return None
    size = faults.amount("memory", needs.gpu_memory, *place, "resources", "gpuMemory")
    if amounts.gpu_milli % _WHOLE:
        faults.add(
            "exclusive-fields",
            "a share is said by gpu or by gpuMemory, not by both: remove one of them",
            *place,
            "resources",
            "gpuMemory",
        )
    if not size:
        faults.add(
            "out-of-range",
            "a share of no memory is none: remove it",
            *place,
            "resources",
            "gpuMemory",
        )
        return None
    devices = max(1, amounts.gpu_milli // _WHOLE)
    # Where none that it may use has so much it waits, whatever it asks for: it is told as before.
    dearest = dearest_share(size, pools[0]) or dearest_share(size, pools[1]) or _WHOLE
    charged = Resources(amounts.cpu_milli, amounts.memory_bytes, devices * dearest)
    return ResourceRequest(charged, devices, size)


def dearest_share(size: int, pools: Iterable[desired.Pool]) -> int:
    """Return the milli-GPUs of this much memory on the smallest device that has it; 0 if
    none has.
    """
    known = [
        pool.gpu_memory_bytes
        for pool in pools
        if pool.gpu_memory_bytes and pool.gpu_memory_bytes >= size
    ]
    return -(-_WHOLE * size // min(known)) if known else 0


def usable(
    pools: Iterable[desired.Pool], named: Collection[str], selector: Mapping[str, str]
) -> list[desired.Pool]:
    """Return the pools that a job may use, by their names and by the labels that it asks for."""
    return [
        pool
        for pool in pools
        if (not named or pool.name in named)
        and all(may_bear(pool, label, value) for label, value in selector.items())
    ]


def may_bear(pool: desired.Pool, label: str, value: str) -> bool:
    """Return True if a node of the pool may have a label: labels of its agent are unknown here."""
    if label == "pool":
        return value == pool.name
    if label == "node":
        return value in pool.nodes
    return pool.labels.get(label, value) == value


def size(
    group: job_spec.TaskGroupSpec | None,
    spec: job_spec.JobSpec,
    faults: FaultCollector,
    place: Path,
) -> tuple[int, int | None]:
    """Return the most tasks, and the number that is enough (None: all)."""
    count, most, least = spec.count, spec.max, spec.min
    if group is not None:
        if group.count is not None or group.max is not None:
            count, most = group.count, group.max
        least = least if group.min is None else group.min
    if count is not None and most is not None:
        faults.add(
            "exclusive-fields",
            "count and max say the same: remove one of them",
            *place,
            "max",
        )
    found = count if most is None else most
    if least is None:
        return found or 1, None
    if found is None:
        faults.add(
            "missing-field",
            "min needs max or count: how many tasks there are at the most",
            *place,
            "max",
        )
        return least, None
    if least > found:
        faults.add(
            "min-above-max",
            "min is more than the tasks there are at the most",
            *place,
            "min",
            found=str(least),
            expected=f"at most {found}",
        )
    return found, None if least >= found else least


def tasks_per_node(
    group: job_spec.TaskGroupSpec | None,
    spec: job_spec.JobSpec,
    sizes: tuple[int, int | None, int],
    faults: FaultCollector,
    place: Path,
) -> int | None:
    """Return how many tasks of a group each of its nodes gets; None: any number.

    Args:
        group: the group; None: the only one of the job.
        spec: the job.
        sizes: the most tasks, the fewest, those of a slice. It has to be a divisor of each.
        faults: where faults are noted.
        place: of the group.
    """
    own = group.tasks_per_node if group is not None else None
    found = spec.tasks_per_node if own is None else own
    if found is None:
        return None
    where = place if own is not None else ("spec",)
    of = f" of group {group.name}" if group is not None else ""
    for name, number in zip(("count or max", "min", "topology.slices.size"), sizes, strict=True):
        if number and number % found:
            faults.add(
                "not-multiple",
                f"{name}{of} is {number}, which nodes with {found} tasks each can't make up: "
                f"write a multiple of {found} there, or another number here",
                *where,
                "tasksPerNode",
                found=str(found),
                expected=f"a divisor of {number}",
            )
            return None
    return found if sizes[0] > 1 else None


def check_total(job: desired.Job, spec: job_spec.JobSpec, faults: FaultCollector) -> None:
    """Refuse a request whose sum over all tasks of all elements overflows."""
    for resource, name in enumerate(RESOURCE_NAMES):
        each = [group.resources.as_vector()[resource] * group.count for group in job.groups]
        total = sum(each) * len(job.run_elements)
        if total <= quantities.LARGEST_TOTAL:
            continue
        most = each.index(max(each))
        of_group = bool(spec.groups) and spec.groups[most].resources is not None
        unit = ("milli-CPUs", "bytes", "milli-GPUs")[resource]
        faults.add(
            "out-of-range",
            f"all tasks together ask for more {name} than any cluster has: ask for less in each, "
            "or for fewer tasks",
            *(("spec", "groups", most) if of_group else ("spec",)),
            *("resources", name),
            found=f"{total} {unit} in all",
            expected=f"at most 2^61 {unit}",
        )


def of_job(spec: job_spec.JobSpec, faults: FaultCollector) -> desired.TopologyConstraint:
    """Return the topology constraint of all tasks; slices belong to a group."""
    if spec.topology is None:
        return desired.ANYWHERE
    if spec.topology.slices is not None and spec.groups:
        faults.add(
            "slices-of-groups",
            "slices are tasks of one group: say them in the group",
            "spec",
            "topology",
            "slices",
        )
    return _topology(spec.topology, slices=False)


def of_group(
    group: job_spec.TaskGroupSpec | None,
    spec: job_spec.JobSpec,
    faults: FaultCollector,
    place: Path,
) -> desired.TopologyConstraint:
    """Return the topology constraint of the tasks of one group."""
    written = group.topology if group is not None else spec.topology
    if written is None:
        return desired.ANYWHERE
    found = _topology(written, slices=True)
    if group is None:  # levels of a single group are those of the job
        found = desired.TopologyConstraint("", "", found.slice_size, found.slice_level)
        return found if found.slice_size else desired.ANYWHERE
    if found == desired.ANYWHERE and written.gpus is None:
        faults.add(
            "missing-field",
            "this says nothing: name required, preferred, slices or gpus, or remove it",
            *place,
            "topology",
        )
    return found


def _topology(written: job_spec.TopologySpec, *, slices: bool) -> desired.TopologyConstraint:
    bundles = written.slices if slices else None
    return desired.TopologyConstraint(
        written.required or "",
        written.preferred or "",
        0 if bundles is None else bundles.size,
        "" if bundles is None else bundles.level,
    )


def near_gpus(
    group: job_spec.TaskGroupSpec | None,
    spec: job_spec.JobSpec,
    request: ResourceRequest,
    faults: FaultCollector,
    place: Path,
) -> tuple[str, str]:
    """Return the required and the preferred level inside a node for the GPUs of a task."""
    own = group.topology.gpus if group is not None and group.topology is not None else None
    written = own or (spec.topology.gpus if spec.topology is not None else None)
    if written is None:
        return "", ""
    if own is None:
        place = ("spec",)
    place = (*place, "topology", "gpus")
    if (written.required is None) == (written.preferred is None):
        expected = "nothing" if written.required is None else "both"
        faults.add(
            "near-gpus",
            "say either required or preferred",
            *place,
            found=expected,
            expected="exactly one of required and preferred",
        )
    is_whole = request.amounts.gpu_milli >= _WHOLE and not (
        request.mig_profile or request.gpu_memory_bytes
    )
    if not is_whole:
        if group is None or own is not None:  # else other groups are meant
            faults.add("near-gpus", _NO_GPUS, *place)
        return "", ""
    return written.required or "", written.preferred or ""


def check_near_gpus(
    spec: job_spec.JobSpec, groups: Iterable[desired.TaskGroup], faults: FaultCollector
) -> None:
    """Add a fault if no group uses the job's setting for all groups."""
    is_said = spec.topology is not None and spec.topology.gpus is not None
    if is_said and not any(group.inner for group in groups):
        faults.add("near-gpus", _NO_GPUS, "spec", "topology", "gpus")


def with_affinity(
    job: desired.Job, spec: job_affinity.AffinitySpec, faults: FaultCollector
) -> desired.Job:
    """Return the job with its affinity and anti-affinity."""
    places: list[tuple[str, int, dict[str, str]]] = [
        *(("nodes", i, one.labels) for i, one in enumerate(spec.nodes)),
        *(("near", i, one.jobs) for i, one in enumerate(spec.near)),
        *(("apart", i, one.jobs) for i, one in enumerate(spec.apart)),
    ]
    for field, index, labels in places:
        if not labels:
            faults.add(
                "missing-field",
                "an empty selector matches everything: name a label",
                "spec",
                "affinity",
                field,
                index,
                "labels" if field == "nodes" else "jobs",
            )
    jobs = [(one, False) for one in spec.near] + [(one, True) for one in spec.apart]
    return msgspec.structs.replace(
        job,
        node_preferences=tuple(
            desired.NodePreference(tuple(sorted(one.labels.items())), float(one.weight))
            for one in spec.nodes
            if one.weight
        ),
        affinities=tuple(
            desired.JobAffinity(
                tuple(sorted(one.jobs.items())),
                one.level or "",
                apart,
                None if one.weight is None else float(one.weight),
            )
            for one, apart in jobs
            if one.weight != 0
        ),
    )

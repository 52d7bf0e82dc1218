"""Normalises a job as written.

Defaults, the short form of a single group, priority classes and the cluster's lease are applied
here and nowhere else; amounts become integers. The result depends on the document and on the
structure in force, so a change of the structure means normalising again. Invalid parts come out as
faults.
"""

import logging

import msgspec

from reconciler.desired.documents import prune_policy
from reconciler.desired.documents.faults import Fault, FaultCollector, defect, duration_s
from reconciler.desired.documents.yaml_reader import Path
from reconciler.desired.normalise import (
    arrays,
    commands,
    entitlements,
    resource_requests,
    run_folders,
    start_terms,
    surroundings,
)
from reconciler.model import desired
from reconciler.model.documents import job_spec
from reconciler.model.policy import access, queue_paths
from reconciler.model.values import found_values

log = logging.getLogger("muster.desired")

#: The most tasks that start together, and the most tasks of all elements of an array.
GANG_TASKS_MAX = 10_000
JOB_TASKS_MAX = 1_000_000
_NO_RESOURCES = job_spec.TaskResourcesSpec()
#: Environment variables that are Muster's to say: what a job writes in them would not be heard.
RESERVED_PREFIX = "MUSTER_"
RESERVED_NAMES = frozenset({"CUDA_VISIBLE_DEVICES"})
RESERVED = {
    "torchrun": frozenset(
        {
            *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"),
            *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
            *("ROLE_RANK", "ROLE_WORLD_SIZE"),
        }
    ),
    "tensorflow": frozenset({"TF_CONFIG"}),
    "jax": frozenset(
        {
            *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES"),
            *("JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS"),
        }
    ),
    "ray": frozenset({"RAY_ADDRESS"}),
    "slurm": frozenset({"MASTER_ADDR", "MASTER_PORT"}),
}


class PriorityDefaults(msgspec.Struct, frozen=True):
    """Defaults of a priority class for jobs that name it."""

    value: int
    preemptible: bool = True
    preempts: bool = True


class JobDefaults(msgspec.Struct, frozen=True):
    """The structure in force, and defaults of jobs that ``Structure`` itself does not have."""

    structure: desired.Structure
    priority_classes: dict[str, PriorityDefaults] = {}

    def queues_otherwise(self, other: "JobDefaults") -> set[str] | None:
        """Return queues whose jobs may come out differently; None: those of all may."""
        same = (
            self.priority_classes == other.priority_classes
            and self.structure.settings.lease_s == other.structure.settings.lease_s
            and self.structure.pools == other.structure.pools
            and self.structure.volumes == other.structure.volumes
            and self.structure.policies == other.structure.policies
            and _kept_for(self.structure) == _kept_for(other.structure)
            and _capping(self.structure) == _capping(other.structure)
        )
        if not same:
            return None
        mine, others = _bounds_of_jobs(self), _bounds_of_jobs(other)
        found = {name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name)}
        return found and found.union(*(_below(found, one) for one in (self, other)))


def _kept_for(structure: desired.Structure) -> dict[str, tuple[object, ...]]:
    """Return the users of reservations, by name."""
    return {
        name: (one.users, one.queues, one.maintenance)
        for name, one in structure.reservations.items()
    }


def _capping(structure: desired.Structure) -> tuple[object, ...]:
    """Return quotas, with the members of the groups of some of them."""
    quotas = structure.quotas
    by_group = any(quota.group for quota in quotas.values())
    return (quotas, structure.access.identities if by_group else None)


def _bounds_of_jobs(basis: JobDefaults) -> dict[str, tuple[object, ...]]:
    """Return the queues' defaults and maxima, and the check for jobs that could never start."""
    bounds = entitlements.Entitlements(basis.structure).bounds()
    return {
        queue.name: (
            *(queue.default_time_limit_s, queue.time_limit_max_s, queue.gpu_milli_max),
            *(queue.limit, queue.parent, bounds[queue.name]),
        )
        for queue in basis.structure.queues.values()
    }


def _below(queues: set[str], basis: JobDefaults) -> set[str]:
    """Return the descendants of some queues."""
    parents = {name: queue.parent for name, queue in basis.structure.queues.items()}
    return {
        name for name in parents if not queues.isdisjoint(queue_paths.ancestors(name, parents.get))
    }


EMPTY = JobDefaults(desired.Structure(queues={"default": desired.Queue("default")}))


def job(
    document: job_spec.JobDocument, digest: str, basis: JobDefaults, path: str
) -> tuple[desired.Job | None, list[Fault]]:
    """Return the job, or its faults; faults are never raised."""
    try:
        return _job(document, digest, basis, path)
    except Exception as error:  # one job is refused, not the whole revision
        log.exception(
            "an internal error kept %s in %s from being judged", document.metadata.name, path
        )
        return None, [defect(error)]


def _job(
    document: job_spec.JobDocument, digest: str, basis: JobDefaults, path: str
) -> tuple[desired.Job | None, list[Fault]]:
    name, spec, faults = document.metadata.name, document.spec, FaultCollector()
    priority, preemptible, preempts = _priority(spec, basis, faults)
    groups = _groups(spec, basis, faults)
    if spec.environment or spec.groups or spec.secrets:
        _check_environment(spec, faults)
    if spec.depends_on:
        _check_dependencies(name, spec, faults)
    job = desired.Job(
        name=name,
        run=spec.run,
        hash=digest,
        queue=spec.queue,
        groups=groups,
        owner=spec.owner or "",
        labels=document.metadata.labels,
        suspend=spec.suspend,
        suspend_reason=" ".join((spec.suspend_reason or "").split()),
        priority=priority,
        preemptible=preemptible,
        preempts=preempts,
        working_directory=spec.working_directory,
        framework=spec.framework,
        runtime=spec.runtime,
        image=spec.image or "",
        image_timeout_s=_span(spec.image_timeout, "imageTimeout", faults),
        secrets=tuple([(s.name, s.environment or "") for s in spec.secrets]),
        **arrays.elements(spec.array, faults)._asdict(),
        depends_on=tuple(
            [desired.Dependency(d.job, d.condition, d.per_element) for d in spec.depends_on]
        ),
        pools=tuple(spec.pools),
        node_selector=spec.node_selector,
        time_limit_s=_time_limit(spec, basis, faults),
        retries=_retries(spec.retries, faults),
        checkpoint=run_folders.checkpoint(spec, name, digest, faults),
        grace_s=_span(spec.termination_grace, "terminationGrace", faults),
        lease_s=_lease(spec, basis, faults),
        path=path,
        prune=prune_policy.policy(document, faults),
        tolerations=tuple([desired.Toleration(t.key, t.value) for t in spec.tolerations]),
        topology=resource_requests.of_job(spec, faults),
        placement=spec.placement,
        exclusive=spec.exclusive,
        volumes=tuple(spec.volumes),
        stage=run_folders.stage(spec, digest, faults),
        reservation=spec.reservation or "",
    )
    _check_image(spec, faults)
    job = surroundings.with_surroundings(job, spec, faults)
    job = start_terms.with_start(job, spec, faults)
    if spec.affinity is not None:
        job = resource_requests.with_affinity(job, spec.affinity, faults)
    _check_size(job, faults)
    if not faults.found:
        resource_requests.check_total(job, spec, faults)
    return (None, faults.found) if faults.found else (job, faults.found)


_WRITTEN_RETRIES = job_spec.RetriesSpec()
_DEFAULT_RETRIES = desired.Retries(
    _WRITTEN_RETRIES.limit,
    duration_s(_WRITTEN_RETRIES.backoff),
    duration_s(_WRITTEN_RETRIES.max_backoff),
)


def _priority(
    spec: job_spec.JobSpec, basis: JobDefaults, faults: FaultCollector
) -> tuple[int, bool, bool]:
    priority = access.DEFAULT_PRIORITY if spec.priority is None else spec.priority
    preemptible = preempts = True
    if spec.priority_class is not None:
        known = basis.priority_classes.get(spec.priority_class)
        if spec.priority is not None:
            faults.add(
                "exclusive-fields",
                "priority and priorityClass exclude each other: remove one of them",
                "spec",
                "priority",
            )
        if known is not None:  # `job_names` refuses the job otherwise
            priority, preemptible, preempts = known.value, known.preemptible, known.preempts
    if spec.preemptible is not None:
        preemptible = spec.preemptible
    return priority, preemptible, preempts


def _time_limit(spec: job_spec.JobSpec, basis: JobDefaults, faults: FaultCollector) -> int | None:
    if spec.time_limit is not None:
        return faults.time_limit(spec.time_limit, "spec", "timeLimit")
    queue = basis.structure.queues.get(spec.queue)
    return queue.default_time_limit_s if queue else None


def _groups(
    spec: job_spec.JobSpec, basis: JobDefaults, faults: FaultCollector
) -> tuple[desired.TaskGroup, ...]:
    if not spec.groups:
        made = _group("main", None, spec, basis, faults=faults, place=("spec",))
        return () if made is None else (made,)
    groups: dict[str, desired.TaskGroup] = {}
    for index, group in enumerate(spec.groups):
        if group.name in groups:
            faults.add(
                "duplicate-group",
                "two groups have this name: rename one",
                "spec",
                "groups",
                index,
                "name",
                found=found_values.quote(group.name),
            )
        made = _group(
            group.name, group, spec, basis, faults=faults, place=("spec", "groups", index)
        )
        if made is not None:
            groups[group.name] = made
    if not faults.found:
        resource_requests.check_near_gpus(spec, groups.values(), faults)
    return tuple(groups.values())


def _group(
    name: str,
    group: job_spec.TaskGroupSpec | None,
    spec: job_spec.JobSpec,
    basis: JobDefaults,
    *,
    faults: FaultCollector,
    place: Path,
) -> desired.TaskGroup | None:
    needs, command, script = spec.resources, spec.command, spec.script
    environment, arguments = spec.environment, spec.arguments
    if group is not None:
        needs = needs if group.resources is None else group.resources
        if group.command is not None or group.script is not None:
            command, script, arguments = group.command, group.script, group.arguments
        arguments = group.arguments or arguments
        if group.environment:
            environment = {**environment, **group.environment}
    if (command is None) == (script is None):
        faults.add(
            "command-or-script",
            "write either a command or a script"
            if command is None
            else "command and script exclude each other: remove one of them",
            *place,
            *(() if command is None else ("script",)),
            expected="exactly one of command and script",
        )
    elif command is not None and not command:
        faults.add("empty-command", "the command is empty", *place, "command")
    commands.check(command, script, arguments, environment, faults=faults, place=place)
    where = place if group is not None and group.resources is not None else ("spec",)
    requested = resource_requests.resources(
        needs or _NO_RESOURCES, spec, basis.structure, faults, where
    )
    count, minimum = resource_requests.size(group, spec, faults, place)
    topology = resource_requests.of_group(group, spec, faults, place)
    if requested is None:
        return None
    required, preferred = resource_requests.near_gpus(group, spec, requested, faults, place)
    return desired.TaskGroup(
        name=name,
        count=count,
        resources=requested.amounts,
        command=tuple(command or ()),
        script=script,
        arguments=tuple(arguments),
        environment=environment,
        minimum=minimum,
        tasks_per_node=resource_requests.tasks_per_node(
            group, spec, (count, minimum, topology.slice_size), faults, place
        ),
        devices=requested.devices,
        gpu_memory_bytes=requested.gpu_memory_bytes,
        mig_profile=requested.mig_profile,
        topology=topology,
        inner_required=required,
        inner_preferred=preferred,
    )


def _check_environment(spec: job_spec.JobSpec, faults: FaultCollector) -> None:
    places: list[tuple[Path, dict[str, str]]] = [(("spec", "environment"), spec.environment)]
    for index, group in enumerate(spec.groups):
        places.append((("spec", "groups", index, "environment"), group.environment))
    for index, secret in enumerate(spec.secrets):
        if secret.environment is not None:
            name = secret.environment
            places.append((("spec", "secrets", index), {name: ""}))
            if name in spec.environment or any(name in g.environment for g in spec.groups):
                faults.add(
                    "secret-and-variable",
                    f"{name} is a secret and a variable: keep one of the two",
                    "spec", "secrets", index, "environment",
                )  # fmt: skip
    for place, environment in places:
        for name in environment:
            if (
                name.startswith(RESERVED_PREFIX)
                or name in RESERVED_NAMES
                or name in RESERVED.get(spec.framework, ())
                or (spec.framework == "slurm" and name.startswith("SLURM_"))
            ):
                faults.add(
                    "reserved-environment",
                    f"{name} is set by Muster for every task: use another name",
                    *place,
                    name,
                )


def _check_image(spec: job_spec.JobSpec, faults: FaultCollector) -> None:
    """Check that an image and a container runtime are given together."""
    image = (spec.image or "").strip()
    if spec.runtime != "process" and (not image or image.startswith("-")):
        faults.add(
            "image-missing",
            f"runtime {spec.runtime} needs an image: name one",
            "spec",
            "image",
            found=found_values.quote(spec.image or ""),
        )
    elif spec.runtime != "process" and (" " in image or not image.isprintable()):
        faults.add(
            "bad-image",
            "an image name is one word, without spaces and options. To fix: write the image as "
            "its registry names it, such as python:3.12 or ghcr.io/team/train:v3",
            "spec",
            "image",
            found=found_values.quote(spec.image),
        )
    if spec.runtime != "process" and spec.framework == "mpi":
        faults.add(
            "mpi-in-containers",
            "MPI jobs cannot run in containers yet: use runtime process",
            "spec",
            "framework",
        )
    if spec.runtime == "process" and spec.image is not None:
        faults.add(
            "image-without-runtime",
            "plain processes have no image: say runtime podman or apptainer, or remove it",
            "spec",
            "image",
            found=found_values.quote(spec.image),
        )


def _check_dependencies(name: str, spec: job_spec.JobSpec, faults: FaultCollector) -> None:
    for index, dependency in enumerate(spec.depends_on):
        place: Path = ("spec", "dependsOn", index)
        if dependency.job == name:
            faults.add(
                "depends-on-itself",
                "the job depends on itself: remove the dependency",
                *place,
                "job",
                found=found_values.quote(name),
            )
        if dependency.per_element and spec.array is None:
            faults.add(
                "per-element",
                "perElement needs an array here and in the other job",
                *place,
                "perElement",
                found="no array here",
            )


def _span(written: str | int | None, field: str, faults: FaultCollector) -> int | None:
    return None if written is None else faults.duration(written, "spec", field)


def _retries(spec: job_spec.RetriesSpec, faults: FaultCollector) -> desired.Retries:
    if spec is _WRITTEN_RETRIES:
        return _DEFAULT_RETRIES
    return desired.Retries(
        spec.limit,
        faults.duration(spec.backoff, "spec", "retries", "backoff"),
        faults.duration(spec.max_backoff, "spec", "retries", "maxBackoff"),
    )


def _lease(spec: job_spec.JobSpec, basis: JobDefaults, faults: FaultCollector) -> int | None:
    if spec.lease == "none":
        return None
    if spec.lease is not None:
        return faults.duration(spec.lease, "spec", "lease")
    if spec.retries.limit > 0 or spec.checkpoint is not None:
        return basis.structure.settings.lease_s
    return None


def _check_size(job: desired.Job, faults: FaultCollector) -> None:
    tasks = sum([group.count for group in job.groups])
    if tasks > GANG_TASKS_MAX:
        faults.add(
            "too-many-tasks",
            "too many tasks start together: make it an array or several jobs",
            "spec",
            "groups" if len(job.groups) > 1 else "count",
            found=f"{tasks} tasks",
            expected=f"at most {GANG_TASKS_MAX}",
        )
    elif tasks * len(job.run_elements) > JOB_TASKS_MAX:
        faults.add(
            "too-many-tasks",
            "too many tasks in all elements: split the job",
            "spec",
            "array",
            found=f"{tasks} tasks in each of {len(job.run_elements)} elements",
            expected=f"at most {JOB_TASKS_MAX} tasks",
        )

"""Normalised objects in the words and units of documents, for people who read a difference.

The model says ``limit.gpu_milli = 4000``; the document's author wrote ``limit.gpu: 4``. An object
comes in; its fields go out as texts by their dotted path in the document. A field that has its
default looks the same whether it was written or not, so that two revisions can be compared.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from reconciler.model import desired
from reconciler.model.observed import health_checks, job_code, output_files, storage
from reconciler.model.policy import access
from reconciler.model.values import hostlists, quantities, times
from reconciler.model.values.resources import Resources

Texts = dict[str, str]


class FieldText(NamedTuple):
    """The text of a field, and its origin.

    ``written``: somebody wrote it. ``default``: its value if nobody writes one. ``there``: not a
    field with a value, but an object that fields may be in.
    """

    text: str
    how: Literal["written", "default", "there"]


_HOUR_S = 3600.0
#: So many numbers that follow each other are a range.
RANGE_MIN = 3
#: The most fields to show of an object that is added or removed.
SUMMARY_FIELDS_MAX = 24


def _hours(value: float) -> str:
    return f"{value / _HOUR_S:g}"


def _domains(of: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Hosts by the path of their domain, which is how a document says it."""
    members: dict[str, list[str]] = {}
    for host, path in of.items():
        members.setdefault("/".join(path), []).append(host)
    return {path: hostlists.fold(hosts) for path, hosts in members.items()}


def _drains(of: Mapping[str, desired.NodeDrain]) -> dict[str, dict[str, str]]:
    """Overrides by the hosts that they are for."""
    alike: dict[desired.NodeDrain, list[str]] = {}
    for host, drain in of.items():
        alike.setdefault(drain, []).append(host)
    return {
        hostlists.fold(hosts): {
            "drain": "true",
            "reason": drain.reason,
            **({"owner": drain.owner} if drain.owner else {}),
            **({"gone": "true"} if drain.gone else {}),
        }
        for drain, hosts in alike.items()
    }


def _schedule(fields: tuple[tuple[int, ...] | None, ...]) -> str:
    """Return the five fields of a cron line, with ranges for three or more consecutive values."""
    return " ".join("*" if one is None else ",".join(_ranges(one)) for one in fields)


def _ranges(numbers: tuple[int, ...]) -> Iterator[str]:
    at = 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] == numbers[end] + 1:
            end += 1
        if end - at < RANGE_MIN - 1:
            end = at
        yield str(numbers[at]) if end == at else f"{numbers[at]}-{numbers[end]}"
        at = end + 1


def _windows(windows: tuple[desired.SyncWindow, ...]) -> str:
    """Return windows, one a line, as items of a document's list."""
    return "\n".join(
        f"{{kind: {'allow' if one.allow else 'deny'}, "
        f'schedule: "{_schedule(one.schedule)}", '
        f"duration: {quantities.format_duration(one.duration_s)}}}"
        for one in windows
    )


def _keys(of: tuple[access.Key, ...]) -> dict[str, dict[str, str]]:
    """Each by its place, named by its kind as a document names it."""
    found: dict[str, dict[str, str]] = {}
    for index, key in enumerate(of):
        found[str(index)] = {key.kind: key.text}
        if key.valid_before is not None:
            found[str(index)]["validBefore"] = times.format_time(key.valid_before)
    return found


def _of_node(has: Resources) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "cpu": quantities.format_cpu(has.cpu_milli),
        "memory": quantities.format_memory(has.memory_bytes),
    }
    gpus = {"gpus": {"count": quantities.format_gpu(has.gpu_milli)}} if has.gpu_milli else {}
    return {**shown, **gpus}


def _duration(seconds: float) -> str:
    """Documents have whole seconds, the model here and there as a number with a fraction."""
    return quantities.format_duration(int(seconds))


def _unless_empty(value: Any) -> str | None:
    return value or None


def _unless_zero(show: Callable[[Any], str]) -> Callable[[Any], str | None]:
    """Return the text of a number, or none for 0, which means that nobody wrote it."""
    return lambda value: show(value) if value else None


def _labels(pairs: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pairs)


def _instances(pairs: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{count} x {profile}" for profile, count in pairs)


def _members(domains: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(f"[{', '.join(map(str, members))}]" for members in domains)


def _overcommit(pair: tuple[float, float]) -> dict[str, str]:
    return {"cpu": f"{pair[0]:g}", "memory": f"{pair[1]:g}"}


def _set_by(of: tuple[desired.FieldMutation, ...]) -> dict[str, str]:
    """Texts of what policies have set, by field; of several the last counts."""
    return {one.field: f"{one.value or 'removed'} by policy {one.policy}" for one in of}


def _ratio(value: float) -> str:
    return f"{value:.4g}"


def _choice(yes: str, no: str) -> Callable[[bool], str]:
    return lambda value: yes if value else no


Show = Callable[[Any], Any]

#: (type, field) to the path in the document and how the value is shown there; None: as it is. A
#: path that begins with a slash is one from the object's ``spec`` on, wherever the field stands.
RENAMED: dict[tuple[type, str], tuple[str, Show | None]] = {
    (access.Identity, "keys"): ("keys", _keys),
    (access.Role, "rules"): ("allow", None),
    (desired.Pool, "nodes"): ("hosts", hostlists.fold),
    (desired.Pool, "node_resources"): ("nodes", _of_node),
    (desired.Pool, "gpu_model"): ("nodes.gpus.model", None),
    (desired.Pool, "gpu_memory_bytes"): ("nodes.gpus.memory", quantities.format_memory),
    (desired.Pool, "observe_only"): ("mode", _choice("observe", "manage")),
    (desired.Pool, "scratch_limit_bytes"): ("scratchLimit", quantities.format_memory),
    (desired.Pool, "drains"): ("overrides", _drains),
    (desired.Pool, "grace_s"): ("terminationGrace", _duration),
    (desired.Pool, "levels"): ("topology.levels", None),
    (desired.Pool, "domains"): ("topology.domains", _domains),
    (desired.Pool, "mig"): ("nodes.gpus.mig", None),
    (desired.Pool, "mig_take_over"): ("nodes.gpus.migTakeOver", None),
    (desired.Pool, "numa"): ("nodes.gpus.numa", _members),
    (desired.Pool, "nvlink"): ("nodes.gpus.nvlink", _members),
    (desired.Pool, "overcommit"): ("overcommit", _overcommit),
    (desired.Pool, "leaving"): ("drain", None),
    (desired.Pool, "checks"): ("health", None),
    (desired.Pool, "remedies"): ("health.remedies", None),
    (desired.Pool, "gpu_driver"): ("nodes.driver", None),
    (desired.Healing, "verb"): ("action", None),
    (desired.Pool, "remedies_at_once"): ("health.remediesAtOnce", None),
    (desired.Pool, "black_hole"): ("health.blackHole", None),
    (desired.Pool, "flapping"): ("health.flapping", None),
    (desired.Pool, "brake"): ("health.brake", None),
    (health_checks.CheckPlan, "mounts"): ("/nodes.mounts", None),
    (health_checks.CheckPlan, "before"): ("beforeJob", None),
    (health_checks.CheckPlan, "after"): ("afterJob", None),
    (health_checks.CheckPlan, "gpu_temperature_celsius"): ("gpuTemperature", None),
    (health_checks.CheckPlan, "disk_free_ratio"): ("diskFree", _ratio),
    (health_checks.CheckPlan, "inodes_free_ratio"): ("inodesFree", _ratio),
    (desired.Pool, "provisioning"): ("provision", None),
    (desired.Provisioning, "minimum"): ("/min", None),
    (desired.Provisioning, "maximum"): ("/max", None),
    (desired.Provisioning, "idle_s"): ("idleTime", _duration),
    (desired.MigLayout, "device"): ("devices", None),
    (desired.MigLayout, "instances"): ("instances", _instances),
    (desired.Taint, "hard"): ("effect", _choice("NoSchedule", "PreferNoSchedule")),
    (desired.Queue, "strict"): ("ordering", _choice("strict", "best-effort")),
    (desired.ClusterSettings, "ephemeral"): ("ephemeral", _choice("allowed", "forbidden")),
    (desired.Queue, "cancels_never_met"): ("onNeverMet", _choice("cancel", "wait")),
    (desired.Queue, "min_runtime_s"): ("preemption.minRuntime", _duration),
    (desired.Queue, "default_time_limit_s"): ("defaults.timeLimit", _duration),
    (desired.Queue, "time_limit_max_s"): ("maxima.timeLimit", _duration),
    (desired.Queue, "gpu_milli_max"): ("maxima.gpu", quantities.format_gpu),
    (desired.Quota, "user"): ("subject.user", None),
    (desired.Quota, "group"): ("subject.group", None),
    (desired.Quota, "queue"): ("subject.queue", None),
    (desired.Quota, "pool"): ("subject.pool", None),
    (desired.Quota, "running"): ("jobs.running", None),
    (desired.Quota, "pending"): ("jobs.pending", None),
    (desired.Quota, "budget_gpu_s"): ("budget.gpuHours", _hours),
    (desired.Quota, "window_s"): ("budget.window", _unless_zero(_duration)),
    (desired.Quota, "ends"): ("budget.onExhausted", _choice("end", "wait")),
    (desired.Reservation, "nodes"): ("hosts", hostlists.fold),
    (desired.Reservation, "starts_at"): ("start", _unless_zero(times.format_time)),
    (desired.Reservation, "ends_at"): ("end", _unless_zero(times.format_time)),
    (desired.Reservation, "schedule"): ("schedule", _schedule),
    (desired.Reservation, "duration_s"): ("duration", _unless_zero(_duration)),
    (desired.Scheduling, "usage_half_life_s"): ("fairness.halfLife", _duration),
    (desired.Scheduling, "usage_window_s"): ("fairness.window", _duration),
    (desired.Scheduling, "usage_strength"): ("fairness.strength", None),
    (desired.Scheduling, "learned_quantile"): ("learnedRunTimes.quantile", None),
    (desired.Scheduling, "overdue_after"): ("overdueAfter", None),
    (desired.Scheduling, "min_runtime_s"): ("minRuntime", _duration),
    (desired.Scheduling, "stale_gang_s"): ("staleGangGrace", _duration),
    (desired.Scheduling, "grace_max_s"): ("graceMax", _duration),
    (desired.ClusterSettings, "safety"): ("sync", None),
    (desired.SafetyLimits, "windows"): ("windows", _windows),
    (desired.RevisionLimits, "size"): ("bytes", quantities.format_memory),
    (desired.SafetyLimits, "gpu_share"): ("limits.gpuShare", None),
    (desired.SafetyLimits, "gpus"): ("limits.gpus", None),
    (desired.SafetyLimits, "gpu_floor"): ("limits.gpuFloor", None),
    (desired.SafetyLimits, "queues"): ("limits.queues", None),
    (desired.SafetyLimits, "jobs"): ("limits.jobs", None),
    (desired.SafetyLimits, "job_share"): ("limits.jobShare", None),
    (desired.SafetyLimits, "job_floor"): ("limits.jobFloor", None),
    (desired.SafetyLimits, "gpu_hours"): ("limits.gpuHours", None),
    (desired.ClusterSettings, "retain_events_s"): ("retention.events", _duration),
    (desired.ClusterSettings, "retain_journal_s"): ("retention.journal", _duration),
    (desired.ClusterSettings, "retain_finished_jobs_s"): ("retention.finishedJobs", _duration),
    (desired.ClusterSettings, "retain_finished_jobs_max"): ("retention.finishedJobsMax", None),
    (desired.ClusterSettings, "retain_history_s"): ("retention.history", _duration),
    (desired.ClusterSettings, "retain_gone_nodes_s"): ("retention.goneNodes", _duration),
    (desired.ClusterSettings, "retain_audit_s"): ("retention.audit", _duration),
    (desired.ClusterSettings, "retain_files"): ("retention.files", None),
    (desired.FileRetention, "schedule"): ("schedule", _schedule),
    (desired.AdmissionPolicy, "mutations"): ("mutate", None),
    (desired.Job, "mutations"): ("setByPolicy", _set_by),
    (desired.Waiver, "expires_at"): ("expires", times.format_time),
    (desired.Volume, "objects"): ("s3", None),
    (storage.ObjectStore, "access_key"): ("accessKeySecret", None),
    (storage.ObjectStore, "secret_key"): ("secretKeySecret", None),
    (storage.ObjectStore, "ca_certificate"): ("caCertificate", None),
    (desired.StagingSpec, "ins"): ("inputs", None),
    (desired.StagingSpec, "outs"): ("outputs", None),
    (desired.Job, "preempts"): ("priorityClass", _choice("may evict others", "evicts nobody")),
    (desired.Job, "array_count"): ("array.count", None),
    (desired.Job, "array_indexes"): ("array.indexes", _unless_empty),
    (desired.Job, "array_only"): ("array.only", _unless_empty),
    (desired.Job, "array_cancelled"): ("array.cancelled", _unless_empty),
    (desired.Job, "array_held"): ("array.held", _unless_empty),
    (desired.Job, "parallelism"): ("array.parallelism", None),
    (desired.Job, "deadline"): ("deadline", times.format_time),
    (desired.Job, "not_before"): ("notBefore", times.format_time),
    (desired.Job, "hosts"): ("hosts", hostlists.fold),
    (desired.Job, "exclude_hosts"): ("excludeHosts", hostlists.fold),
    (desired.Job, "grace_s"): ("terminationGrace", _duration),
    (job_code.JobCode, "folder"): ("path", None),
    (output_files.OutputFiles, "output"): ("/output", _unless_empty),
    (output_files.OutputFiles, "error"): ("/error", _unless_empty),
    (output_files.OutputFiles, "appends"): ("/openMode", _choice("append", "truncate")),
    (desired.Checkpoint, "before_limit_s"): ("signalBeforeLimit", _unless_zero(_duration)),
    (desired.Checkpoint, "requeues"): ("requeueOnTimeLimit", None),
    (desired.Job, "node_preferences"): ("affinity.nodes", None),
    (desired.Job, "affinities"): ("affinity.jobs", None),
    (desired.NodePreference, "labels"): ("labels", _labels),
    (desired.JobAffinity, "labels"): ("jobs", _labels),
    (desired.TaskGroup, "minimum"): ("min", None),
    (desired.TaskGroup, "devices"): ("resources.devices", None),
    (desired.TaskGroup, "gpu_memory_bytes"): ("resources.gpuMemory", quantities.format_memory),
    (desired.TaskGroup, "mig_profile"): ("resources.mig.profile", None),
    (desired.TaskGroup, "inner_required"): ("topology.gpus.required", None),
    (desired.TaskGroup, "inner_preferred"): ("topology.gpus.preferred", None),
    (desired.TopologyConstraint, "slice_size"): ("slices.size", None),
    (desired.TopologyConstraint, "slice_level"): ("slices.level", None),
    (Resources, "gpu_milli"): ("gpu", quantities.format_gpu),
    (desired.QuotaAmounts, "gpu_milli"): ("gpu", quantities.format_gpu),
}
#: Format of a number by the end of its field's name; documents leave that end out.
_UNITS: dict[str, Show] = {
    "_milli": quantities.format_cpu,
    "_bytes": quantities.format_memory,
    "_s": _duration,
}
#: Fields that follow from another one, which is shown.
_DERIVED = frozenset({(health_checks.CheckPlan, "gpus"), (health_checks.CheckPlan, "trial")})
#: What is no field of a document.
_NOT_SHOWN = frozenset({"name", "path", "hash", "runs_unmapped", "mutated"})
#: Empty values: the same as a field that is not there.
_NOTHING: tuple[Any, ...] = (None, "", (), {})


def camel(name: str) -> str:
    """Return a field's name as in documents."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def fields(of: Any) -> Texts:
    """Return the fields of a normalised object by dotted path, each as a text, without
    empty ones.
    """
    return {path: one.text for path, one in told(of).items() if one.how != "there"}


def told(of: Any) -> dict[str, FieldText]:
    """Return the same with the origin of each, and with the objects that fields are in."""
    if not isinstance(of, msgspec.Struct):
        return {"value": FieldText(text(of), "written")}
    found = dict(_flat("", of, "written"))
    if isinstance(of, desired.Job) and len(of.groups) == 1:
        start = f"groups.{of.groups[0].name}"
        found = {
            path.removeprefix(f"{start}."): one for path, one in found.items() if path != start
        }
    if isinstance(of, desired.Pool) and of.provisioner != "static":
        del found["hosts"]  # names of virtual and made nodes follow from how many there are
        if of.provisioning is None:
            found["count"] = FieldText(str(len(of.nodes)), "written")
    return found


def _flat(
    path: str, value: Any, how: Literal["written", "default"], known_by: str = ""
) -> Iterator[tuple[str, FieldText]]:
    """Yield everything in a value; ``known_by`` is the field that its path contains already."""
    if value in _NOTHING:
        return
    if isinstance(value, msgspec.Struct):
        if path and how == "written":
            yield path, FieldText("{}", "there")
        for field in msgspec.structs.fields(value):
            if field.name in {*_NOT_SHOWN, known_by} or (type(value), field.name) in _DERIVED:
                continue
            one = getattr(value, field.name)
            inner, shown = _field(type(value), field.name, one)
            yield from _flat(_join(path, inner), shown, _how(field, one))
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _flat(_join(path, str(key)), one, how)
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        for name, known, one in _items(value):
            yield from _flat(_join(path, name), one, how, known)
    else:
        yield path, FieldText(text(value), how)


def _how(field: msgspec.structs.FieldInfo, value: Any) -> Literal["written", "default"]:
    """Return the origin of a value: written, or the default."""
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    return "default" if default is not msgspec.NODEFAULT and bool(value == default) else "written"


def _items(of: tuple[Any, ...]) -> Iterator[tuple[str, str, Any]]:
    """Items of a list, each with what it is known by, and the field that says so.

    Where several are known by the same, or one by nothing, it is their place in the list.
    """
    named = [_key(one) for one in of]
    often = Counter(named)
    for index, (one, (name, field)) in enumerate(zip(of, named, strict=True)):
        if not field:
            yield str(index), "", one
        elif often[name, field] > 1:
            yield f"{name}.{index}", field, one
        else:
            yield name, field, one


def _key(item: Any) -> tuple[str, str]:
    """Return what identifies an item of a list, and the field that has it, or empty strings if
    nothing does.
    """
    for field in ("name", "job", "key", "device", "object"):
        found = getattr(item, field, None)
        if found not in _NOTHING:
            return str(found), field
    return "", ""


def _field(kind: type, name: str, value: Any) -> tuple[str, Any]:
    """Return the path of a field in a document, and its value as shown there."""
    known = RENAMED.get((kind, name))
    if known is not None:
        path, show = known
        return path, value if show is None or value in _NOTHING else show(value)
    for ending, show in _UNITS.items():
        if name.endswith(ending):
            return camel(name.removesuffix(ending)), None if value is None else show(value)
    return camel(name), value


def _join(path: str, name: str) -> str:
    if name.startswith("/"):
        return name[1:]
    return f"{path}.{name}" if path else name


def text(value: Any) -> str:
    """Return a single value as a document would have it, on one line unless it has several."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_item(one) for one in value) + "]"
    return str(value)


def _item(value: Any) -> str:
    """Return an item of a list, quoted if a reader could not tell where it ends."""
    shown = text(value)
    return f'"{shown}"' if any(c in shown for c in ' ,[]"') or not shown else shown


def gpus(milli: int) -> str:
    """``1 GPU``, ``8 GPUs``, ``0.5 GPUs``."""
    return f"{quantities.format_gpu(milli)} GPU{'' if milli == 1000 else 's'}"


def amounts(of: Resources) -> str:
    """``1 GPU, 500m CPU, 32Mi``: what is there of each."""
    parts = [gpus(of.gpu_milli)] if of.gpu_milli else []
    if of.cpu_milli:
        parts.append(f"{quantities.format_cpu(of.cpu_milli)} CPU")
    if of.memory_bytes:
        parts.append(quantities.format_memory(of.memory_bytes))
    return ", ".join(parts)


def summary(of: Any) -> str:
    """Return one line on an object that is added or removed; empty if its name is enough."""
    if isinstance(of, desired.Job):
        return _job_summary(of)
    if isinstance(of, desired.Pool):
        total = of.node_resources.times(len(of.nodes))
        nodes = "1 node" if len(of.nodes) == 1 else f"{len(of.nodes)} nodes"
        return f"{nodes} ({hostlists.fold(of.nodes)}): {amounts(total)}"
    if isinstance(of, desired.Queue):
        parts = [f"below {of.parent}"] if of.parent else []
        for word, found in (("guaranteed", of.guaranteed), ("limit", of.limit)):
            if found.gpu_milli is not None:
                parts.append(f"{word} {gpus(found.gpu_milli)}")
        return ", ".join(parts)
    if isinstance(of, msgspec.Struct):
        written = {path: one.text for path, one in told(of).items() if one.how == "written"}
        return _fields_summary(written)
    return text(of)


def _fields_summary(said: Mapping[str, str]) -> str:
    """Return the fields of an object on one line, with a count of those left out.

    A reviewer must know about a waiver or an access rule that comes last.
    """
    lines = [f"{path}: {value}" for path, value in said.items() if "\n" not in value]
    shown = lines[:SUMMARY_FIELDS_MAX]
    more = len(said) - len(shown)
    if more:
        shown.append(f"and {more} more field{'s' if more > 1 else ''}")
    return ", ".join(shown)


def _tasks(group: desired.TaskGroup) -> str:
    """Return ``4``, or ``1 to 4`` for an elastic group."""
    return str(group.count) if group.least >= group.count else f"{group.least} to {group.count}"


def _job_summary(job: desired.Job) -> str:
    groups = [
        f"{_tasks(group)} x ({amounts(group.resources)})"
        if group.count > 1
        else amounts(group.resources)
        for group in job.groups
    ]
    what = " + ".join(groups)
    if job.array_count is not None:
        what = f"{len(job.run_elements)} x [{what}]"
    limit = "no time limit"
    if job.time_limit_s is not None:
        limit = f"up to {quantities.format_duration(job.time_limit_s)}"
    return f"{what} in {job.queue}, priority {job.priority}, {limit}"

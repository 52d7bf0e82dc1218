"""Normalises a node pool as written."""

from collections.abc import Container, Mapping
from typing import Any, Literal

from reconciler.desired.documents.faults import FaultCollector
from reconciler.desired.normalise import provisioned_pools, resource_requests
from reconciler.model import desired
from reconciler.model.documents import health_spec, nodepool_spec
from reconciler.model.documents.drift_spec import DriftKind
from reconciler.model.observed import health_checks, job_commands
from reconciler.model.policy import drift_kinds
from reconciler.model.values import found_values, hostlists, quantities, resources


def pool(name: str, spec: nodepool_spec.NodePoolSpec, faults: FaultCollector) -> desired.Pool:
    """Return a pool with its nodes by name."""
    nodes = _nodes(name, spec, faults)
    gpus = spec.nodes.gpus
    labels = dict(spec.labels)
    if gpus is not None and gpus.model:
        labels = {"gpu-model": gpus.model, **labels}
    memory = None
    if gpus is not None and gpus.memory is not None:
        memory = faults.amount("memory", gpus.memory, "spec", "nodes", "gpus", "memory")
    levels, domains = _topology(spec, frozenset(nodes), faults)
    return desired.Pool(
        name=name,
        nodes=nodes,
        node_resources=resources.Resources(
            faults.amount("cpu", spec.nodes.cpu, "spec", "nodes", "cpu"),
            faults.amount("memory", spec.nodes.memory, "spec", "nodes", "memory"),
            0 if gpus is None else gpus.count * 1000,
        ),
        provisioner=spec.provisioner,
        gpu_model="" if gpus is None else gpus.model,
        gpu_memory_bytes=memory,
        labels=labels,
        observe_only=spec.mode == "observe",
        allow_root=spec.allow_root,
        privileges=spec.privileges,
        scratch_limit_bytes=_scratch_limit_bytes(spec, faults),
        drains=_drains(spec, frozenset(nodes), faults),
        grace_s=faults.duration(spec.termination_grace, "spec", "terminationGrace"),
        taints=tuple(
            desired.Taint(one.key, one.value, one.effect == "NoSchedule") for one in spec.taints
        ),
        levels=levels,
        domains=domains,
        sharing=spec.sharing,
        mig=_mig(spec, faults),
        mig_take_over=gpus is not None and gpus.mig_take_over,
        overcommit=(float(spec.overcommit.cpu), float(spec.overcommit.memory)),
        gpu_driver=spec.nodes.driver,
        drift=drift_policy(spec.drift.policy, faults, of_pool=True),
        **_health(spec, faults),
        provisioning=provisioned_pools.provisioning(spec, faults),
        leaving=_leaving(spec.drain, faults),
        numa=_near(spec, "numa", faults),
        nvlink=_near(spec, "nvlink", faults),
        **_job_commands(spec, faults),
    )


def _job_commands(spec: nodepool_spec.NodePoolSpec, faults: FaultCollector) -> dict[str, Any]:
    """Return the commands around jobs; each has a name that no other check of the pool has."""
    taken = set(health_checks.BUILT_IN)
    taken.update(one.name for one in (spec.health.commands if spec.health is not None else ()))
    found: dict[str, list[job_commands.JobCommand]] = {"beforeJob": [], "afterJob": []}
    for field, given in (("beforeJob", spec.before_job), ("afterJob", spec.after_job)):
        for index, one in enumerate(given):
            place = ("spec", field, index)
            if one.name in taken:
                message = "another command or check of this pool has this name: choose another one"
                quoted = found_values.quote(one.name)
                faults.add("duplicate-check", message, *place, "name", found=quoted)
            taken.add(one.name)
            if not one.command[0].startswith("/"):
                faults.add(
                    "job-command-path",
                    "name the program by its whole path: no PATH is searched for it",
                    *(*place, "command", 0),
                    found=found_values.quote(one.command[0]),
                    expected='a path that begins with "/"',
                )
            timeout_s = faults.duration(one.timeout, *place, "timeout")
            if not 0 < timeout_s <= job_commands.TIMEOUT_S_MAX:
                message = "a command gets from one second to an hour: the node waits for it"
                quoted = found_values.quote(str(one.timeout))
                faults.add("job-command-timeout", message, *place, "timeout", found=quoted)
            command = tuple(one.command)
            run = job_commands.JobCommand(one.name, command, float(timeout_s), one.run_as)
            found[field].append(run)
    return {"before_job": tuple(found["beforeJob"]), "after_job": tuple(found["afterJob"])}


def _scratch_limit_bytes(spec: nodepool_spec.NodePoolSpec, faults: FaultCollector) -> int | None:
    """Return what a task's own folders may take; None if there is no limit."""
    if spec.scratch_limit is None:
        return None
    found = faults.amount("memory", spec.scratch_limit, "spec", "scratchLimit")
    if not found:
        message = "a task has a script and output: write an amount, or remove it for no limit"
        faults.add("scratch-limit", message, "spec", "scratchLimit")
    return found


def counted(
    added: desired.Pool, before: resources.Resources, faults: FaultCollector
) -> resources.Resources:
    """Return the sum of all nodes with those of one more pool; add a fault if it overflows.

    ``before``: the sum of the other pools.
    """
    total = before + added.promised().times(len(added.nodes))
    fields = (("nodes", "cpu"), ("nodes", "memory"), ("nodes", "gpus", "count"))
    each = zip(total.as_vector(), resources.RESOURCE_NAMES, fields, strict=True)
    for amount, name, field in each:
        if amount > quantities.LARGEST_TOTAL:
            faults.add(
                "out-of-range",
                f"with this pool all nodes together have more {name} than can be counted, "
                "overcommit included: say what one node has, or declare fewer",
                *("spec", *field),
                found=f"{amount} in all",
                expected="at most 2^61",
            )
    return total


def _leaving(spec: nodepool_spec.DrainSpec, faults: FaultCollector) -> desired.Leaving | None:
    """Return the rules for nodes that leave service; None if they are the defaults."""
    grace_s = None
    if spec.grace is not None:
        grace_s = faults.duration(spec.grace, "spec", "drain", "grace")
    found = desired.Leaving(spec.wait_for, grace_s)
    return None if found == desired.Leaving() else found


def _health(spec: nodepool_spec.NodePoolSpec, faults: FaultCollector) -> dict[str, Any]:
    """Return checks, and the actions when one fails."""
    health, place = spec.health, ("spec", "health")
    if health is None:
        if spec.nodes.mounts:
            faults.add(
                "mounts-without-health",
                "mounts are looked at by health checks only: add `health: {}` to spec",
                *("spec", "nodes", "mounts"),
            )
        return {}
    names = [one.name for one in health.commands]
    runs = {one.name for one in (*spec.before_job, *spec.after_job) if one.run_as == "agent"}
    for index, one in enumerate(health.commands):
        if one.name in health_checks.BUILT_IN or names.index(one.name) != index:
            message = "another check has this name: choose another one"
            faults.add(
                "duplicate-check",
                message,
                *place,
                "commands",
                index,
                "name",
                found=found_values.quote(one.name),
            )
    hole, flaps = health.black_hole, health.flapping
    return {
        "checks": _plan(spec, health, faults),
        "remedies": _remedies(
            spec, health, ({*health_checks.BUILT_IN, *names} - set(health.off)) | runs, faults
        ),
        "remedies_at_once": health.remedies_at_once,
        "black_hole": None
        if hole is None
        else desired.BlackHole(
            hole.owners,
            faults.duration(hole.quick, *place, "blackHole", "quick"),
            faults.duration(hole.window, *place, "blackHole", "window"),
            faults.duration(hole.out, *place, "blackHole", "out"),
        ),
        "flapping": desired.FlappingPolicy(
            flaps.failures,
            faults.duration(flaps.window, *place, "flapping", "window"),
            faults.duration(flaps.out, *place, "flapping", "out"),
            faults.duration(flaps.out_max, *place, "flapping", "outMax"),
        ),
        "brake": desired.HealthBrake(
            float(health.brake.share),
            faults.duration(health.brake.window, *place, "brake", "window"),
        ),
    }


def _remedies(
    spec: nodepool_spec.NodePoolSpec,
    health: health_spec.HealthSpec,
    known: set[str],
    faults: FaultCollector,
) -> dict[str, desired.Healing]:
    found: dict[str, desired.Healing] = {}
    for index, remedy in enumerate(health.remedies):
        where = ("spec", "health", "remedies", index)
        if remedy.check not in known or remedy.check in found:
            faults.add(
                "remedy-of-no-check",
                "each remedy needs a check of its own that is enabled",
                *(*where, "check"),
                found=found_values.quote(remedy.check),
                expected=f"one of {', '.join(sorted(known))}",
            )
        if bool(remedy.command) is not (remedy.action == "run-command"):
            message = "`command` is only for `action: run-command`"
            faults.add("remedy-command", message, *where, "command")
        if remedy.action == "replace" and not provisioned_pools.is_provisioned(spec):
            message = "only a node that a provisioner makes can be replaced: this pool has none"
            faults.add("remedy-without-provisioner", message, *where, "action", found='"replace"')
        if remedy.action == "reboot" and spec.provisioner == "virtual":
            message = "virtual nodes share a machine, which would end all of them by booting"
            faults.add("remedy-of-the-machine", message, *where, "action", found='"reboot"')
        timeout_s = faults.duration(remedy.timeout, *where, "timeout")
        found[remedy.check] = desired.Healing(remedy.action, tuple(remedy.command), timeout_s)
    return found


def _plan(
    spec: nodepool_spec.NodePoolSpec, health: health_spec.HealthSpec, faults: FaultCollector
) -> health_checks.CheckPlan:
    place = ("spec", "health")
    interval_s = faults.duration(health.interval, *place, "interval")
    if not interval_s:
        faults.add("health-interval", "nodes look once a second at the most", *place, "interval")
    return health_checks.CheckPlan(
        interval_s=float(interval_s),
        off=tuple(health.off),
        gpus=0 if spec.nodes.gpus is None else spec.nodes.gpus.count,
        mounts=tuple(spec.nodes.mounts),
        gpu_temperature_celsius=float(health.gpu_temperature),
        disk_free_ratio=float(health.disk_free),
        inodes_free_ratio=float(health.inodes_free),
        stuck_processes=health.stuck_processes,
        commands=tuple(
            health_checks.CheckCommand(
                one.name,
                tuple(one.command),
                float(faults.duration(one.timeout, *place, "commands", index, "timeout")),
            )
            for index, one in enumerate(health.commands)
        ),
        before=_gates("beforeJob", health.before_job, health, faults),
        after=_gates("afterJob", health.after_job, health, faults),
    )


def _gates(
    field: str, names: list[str], health: health_spec.HealthSpec, faults: FaultCollector
) -> tuple[str, ...]:
    """Return the names of checks that run before or after a job."""
    known = {*health_checks.BUILT_IN, *(one.name for one in health.commands)} - set(health.off)
    for index, name in enumerate(names):
        if name not in known:
            faults.add(
                "gate-of-no-check",
                "only enabled checks can run before or after a job",
                *("spec", "health", field, index),
                found=found_values.quote(name),
                expected=f"one of {', '.join(sorted(known))}",
            )
    return tuple(dict.fromkeys(names))


def drift_policy(
    policy: Mapping[DriftKind, drift_kinds.Action], faults: FaultCollector, *, of_pool: bool = False
) -> dict[str, drift_kinds.Action]:
    """Return the action for each kind of drift; add a fault if it is not possible, or not here."""
    for kind, action in policy.items():
        known = drift_kinds.KINDS[kind]
        place = ("spec", "drift", "policy", kind)
        if of_pool and not known.pooled:
            message = "this kind of drift has no pool: move it to spec.drift.policy of the Cluster"
            faults.add("drift-kind", message, *place)
        elif action not in known.actions:
            faults.add(
                "drift-action",
                f"nothing remedies {kind}"
                if action == "remediate"
                else f"{known.remedy}, whatever a policy says",
                *place,
                found=found_values.quote(action),
                expected=f"one of {', '.join(known.actions)}",
            )
    return {str(kind): action for kind, action in policy.items()}


def _topology(
    spec: nodepool_spec.NodePoolSpec, nodes: frozenset[str], faults: FaultCollector
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    if spec.topology is None:
        return (), {}
    levels = tuple(spec.topology.levels)
    if not levels or len(set(levels)) < len(levels):
        faults.add(
            "topology-levels",
            "levels are one or more different names, the widest first",
            "spec",
            "topology",
            "levels",
        )
    domains: dict[str, tuple[str, ...]] = {}
    for index, domain in enumerate(spec.topology.domains):
        place: tuple[str | int, ...] = ("spec", "topology", "domains", index)
        if len(domain.path) != len(levels):
            faults.add(
                "topology-path",
                "path has one name for each of levels",
                *place,
                "path",
                found=f"{len(domain.path)} names",
                expected=f"{len(levels)}: {', '.join(levels)}",
            )
        hosts = expand(domain.hosts, faults, *place, "hosts")
        refuse_strangers(hosts, nodes, faults, *place, "hosts")
        twice = [host for host in hosts if host in domains]
        if twice:
            faults.add(
                "host-in-two-domains",
                "these nodes are in another domain already: remove them from one; "
                "what is within a node can't be a level",
                *place,
                "hosts",
                found=found_values.quote(hostlists.fold(twice)),
            )
        domains.update(dict.fromkeys(hosts, tuple(domain.path)))
    return levels, domains


def _mig(spec: nodepool_spec.NodePoolSpec, faults: FaultCollector) -> tuple[desired.MigLayout, ...]:
    gpus = spec.nodes.gpus
    if gpus is None or not gpus.mig:
        return ()
    found: dict[int, desired.MigLayout] = {}
    for index, layout in enumerate(gpus.mig):
        place: tuple[str | int, ...] = ("spec", "nodes", "gpus", "mig", index)
        slices = sum(
            resource_requests.mig_slices(profile) * count
            for profile, count in layout.instances.items()
        )
        if not 0 < slices <= resource_requests.MIG_SLICES:
            faults.add(
                "mig-layout",
                "the instances of a device take from one to seven slices",
                *place,
                "instances",
                found=f"{slices} slices",
            )
        instances = tuple(sorted(layout.instances.items()))
        for device in layout.devices:
            if device >= gpus.count or device in found:
                faults.add(
                    "mig-device",
                    "each device is named once, by its index from 0",
                    *place,
                    "devices",
                    found=str(device),
                    expected=f"an index below {gpus.count} that no other layout has",
                )
            found[device] = desired.MigLayout(device, instances)
    return tuple(layout for _, layout in sorted(found.items()))


def _near(
    spec: nodepool_spec.NodePoolSpec, level: Literal["numa", "nvlink"], faults: FaultCollector
) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each domain inside a node."""
    gpus = spec.nodes.gpus
    domains = [] if gpus is None else gpus.numa if level == "numa" else gpus.nvlink
    seen: set[int] = set()
    for index, members in enumerate(domains):
        place: tuple[str | int, ...] = ("spec", "nodes", "gpus", level, index)
        if not members:
            faults.add("empty-domain", "name the GPUs of it, or remove it", *place)
        for device in members:
            if gpus is None or device >= gpus.count or device in seen:
                count = 0 if gpus is None else gpus.count
                faults.add(
                    "device-of-domain",
                    "each device is in one of them at the most, by its index from 0",
                    *place,
                    found=str(device),
                    expected=f"an index below {count} that no other has",
                )
            seen.add(device)
    return tuple(tuple(sorted(members)) for members in domains)


def _nodes(name: str, spec: nodepool_spec.NodePoolSpec, faults: FaultCollector) -> tuple[str, ...]:
    kind = spec.provisioner
    scales = spec.min is not None or spec.max is not None
    wanted, others = ("count", ["hosts"]) if kind != "static" else ("hosts", ["count"])
    if kind == "static" or spec.count is not None:
        others += ["min", "max"]
    for other in others:
        if getattr(spec, other) is not None:
            fix = f"remove `{other}`"
            if kind != "static" and other != "hosts":
                fix = "write `count`, or `min` and `max`"
            faults.add(
                "exclusive-fields",
                f"a pool with `provisioner: {kind}` has `{wanted}`: {fix}",
                "spec",
                other,
            )
    if getattr(spec, wanted) is None and (kind == "static" or not scales):
        faults.add(
            "missing-field",
            f"a pool with `provisioner: {kind}` needs `{wanted}`"
            + ("" if kind == "static" else ", or `min` and `max`"),
            "spec",
            wanted,
        )
        return ()
    if kind == "static":
        return tuple(expand(spec.hosts or "", faults, "spec", "hosts"))
    return tuple(f"{name}-{index}" for index in range(provisioned_pools.bounds(spec, faults)[1]))


def expand(text: str, faults: FaultCollector, *path: str | int) -> list[str]:
    """Return the names of a host list; none and a fault if it is invalid."""
    try:
        return hostlists.expand(text)
    except hostlists.HostListError as error:
        faults.add(
            "bad-host-list", str(error), *path, expected="a host list such as gpu[001-128,130]"
        )
        return []


def _drains(
    spec: nodepool_spec.NodePoolSpec, nodes: frozenset[str], faults: FaultCollector
) -> dict[str, desired.NodeDrain]:
    drains: dict[str, desired.NodeDrain] = {}
    for index, override in enumerate(spec.overrides):
        hosts = expand(override.hosts, faults, "spec", "overrides", index, "hosts")
        refuse_strangers(hosts, nodes, faults, "spec", "overrides", index, "hosts")
        if override.drain or override.gone:
            drain = desired.NodeDrain(override.reason, override.owner, gone=override.gone)
            drains.update(dict.fromkeys(hosts, drain))
    return drains


def refuse_strangers(
    hosts: list[str],
    nodes: Container[str],
    faults: FaultCollector,
    *place: str | int,
    of: str = "not of this pool",
) -> None:
    """Add a fault if hosts are named that are not in ``nodes``. ``of`` describes them."""
    strangers = [host for host in hosts if host not in nodes]
    if strangers:
        faults.add(
            "unknown-host",
            f"these nodes are {of}: correct the names or remove them",
            *place,
            found=found_values.quote(hostlists.fold(strangers)),
        )

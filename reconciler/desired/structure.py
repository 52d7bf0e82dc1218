"""Every document that is no job to the one structure that they make together.

The documents of a whole revision come in, because queues, pools and priority classes have to
agree with each other; out comes a ``normalise.Basis``, or the faults of each document. It is all
or nothing: a structure with one error in it is refused as a whole.
"""

from collections.abc import Iterable, Sequence

import msgspec

from reconciler.desired import checks, documents
from reconciler.desired.faults import Fault
from reconciler.desired.normalise import Basis, Faults, PriorityClass
from reconciler.model import desired, hostlists, resources
from reconciler.model.documents import access, cluster, fields, nodepool, queue

#: The most nodes of all pools together.
NODES_MAX = hostlists.HOSTS_MAX


class Placed(msgspec.Struct, frozen=True):
    """A document and the file it stands in."""

    path: str
    document: documents.Document


class Build:
    """What is put together, and what is wrong with it."""

    def __init__(self) -> None:
        self.faults: list[tuple[Placed, Fault]] = []
        self.settings = desired.Settings()
        self.pools: dict[str, desired.Pool] = {}
        self.queues: dict[str, desired.Queue] = {}
        self.classes: dict[str, PriorityClass] = {}
        self.users: dict[str, str] = {}
        self.places: dict[str, Placed] = {}

    def add(self, placed: Placed, faults: Iterable[Fault]) -> None:
        """Note the faults of one document."""
        self.faults.extend((placed, fault) for fault in faults)


def build(placed: Sequence[Placed]) -> tuple[Basis | None, list[tuple[Placed, Fault]]]:
    """The structure that the documents make, or None and what is wrong."""
    made = Build()
    cluster_place: Placed | None = None
    for item in placed:
        part = item.document.part
        if part is None:
            made.add(item, item.document.faults)
            continue
        if _is_duplicate(made, item):
            continue
        faults = Faults()
        if isinstance(part, cluster.Cluster):
            if cluster_place is not None:
                faults.add(
                    "two-clusters",
                    f"a repository has one Cluster, and one stands in {cluster_place.path}:"
                    f"{cluster_place.document.line} already: remove one",
                    "metadata",
                    "name",
                )
            cluster_place = item
            made.settings = _settings(part.spec, faults)
        else:
            _add_object(made, item, part, faults)
        made.add(item, faults.found)
    _check_together(made)
    if made.faults:
        return None, made.faults
    return _basis(made), []


def _basis(made: Build) -> Basis:
    made.queues.setdefault("default", desired.Queue("default"))
    structure = desired.Structure(
        settings=made.settings,
        pools=made.pools,
        queues=checks.parents_first(made.queues),
        priority_classes={name: item.value for name, item in made.classes.items()},
        unix_users=made.users,
    )
    return Basis(structure, made.classes)


def _is_duplicate(made: Build, item: Placed) -> bool:
    label = item.document.label
    first = made.places.setdefault(label, item)
    if first is item:
        return False
    made.add(item, [checks.duplicate(first.path, first.document.line)])
    return True


def _add_object(made: Build, item: Placed, part: fields.Part, faults: Faults) -> None:
    name = item.document.name
    if isinstance(part, nodepool.NodePool):
        made.pools[name] = _pool(name, part.spec, faults)
    elif isinstance(part, queue.Queue):
        made.queues[name] = _queue(name, part.spec, faults)
    elif isinstance(part, queue.PriorityClass):
        made.classes[name] = PriorityClass(part.spec.value, part.spec.preemptible)
    elif isinstance(part, access.Access):
        _add_users(made.users, part.spec, faults)


def _settings(spec: cluster.ClusterSpec, faults: Faults) -> desired.Settings:
    kept = spec.retention
    return desired.Settings(
        suspend=spec.suspend,
        lease_s=faults.duration(spec.lease, "spec", "lease"),
        node_silence_s=faults.duration(spec.node_silence, "spec", "nodeSilence"),
        retain_events_s=faults.duration(kept.events, "spec", "retention", "events"),
        retain_journal_s=faults.duration(kept.journal, "spec", "retention", "journal"),
        retain_finished_jobs_s=faults.duration(
            kept.finished_jobs, "spec", "retention", "finishedJobs"
        ),
        retain_finished_jobs_max=kept.finished_jobs_max,
        retain_history_s=faults.duration(kept.history, "spec", "retention", "history"),
        retain_gone_nodes_s=faults.duration(kept.gone_nodes, "spec", "retention", "goneNodes"),
    )


def _add_users(users: dict[str, str], spec: access.AccessSpec, faults: Faults) -> None:
    for index, identity in enumerate(spec.identities):
        if identity.unix_user is None:
            continue
        known = users.setdefault(identity.email, identity.unix_user)
        if known != identity.unix_user:
            faults.add(
                "two-unix-users",
                f"{identity.email} has the Unix user {known} already: keep one of the two",
                "spec",
                "identities",
                index,
                "unixUser",
                found=identity.unix_user,
            )


def _queue(name: str, spec: queue.QueueSpec, faults: Faults) -> desired.Queue:
    return desired.Queue(
        name=name,
        parent=spec.parent,
        guaranteed=_amounts(spec.guaranteed, faults, "guaranteed"),
        limit=_amounts(spec.limit, faults, "limit"),
        suspend=spec.suspend,
    )


def _amounts(spec: fields.AmountsSpec, faults: Faults, field: str) -> desired.Amounts:
    return desired.Amounts(
        None if spec.cpu is None else faults.amount("cpu", spec.cpu, "spec", field, "cpu"),
        None
        if spec.memory is None
        else faults.amount("memory", spec.memory, "spec", field, "memory"),
        None if spec.gpu is None else spec.gpu * 1000,
    )


def _pool(name: str, spec: nodepool.NodePoolSpec, faults: Faults) -> desired.Pool:
    nodes = _nodes(name, spec, faults)
    gpus = spec.nodes.gpus
    labels = dict(spec.labels)
    if gpus is not None and gpus.model:
        labels = {"gpu-model": gpus.model, **labels}
    memory = None
    if gpus is not None and gpus.memory is not None:
        memory = faults.amount("memory", gpus.memory, "spec", "nodes", "gpus", "memory")
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
        drains=_drains(spec, frozenset(nodes), faults),
        grace_s=faults.duration(spec.termination_grace, "spec", "terminationGrace"),
    )


def _nodes(name: str, spec: nodepool.NodePoolSpec, faults: Faults) -> tuple[str, ...]:
    wanted, other = ("hosts", "count") if spec.provisioner == "static" else ("count", "hosts")
    if getattr(spec, other) is not None:
        faults.add(
            "exclusive-fields",
            f"a pool with `provisioner: {spec.provisioner}` has `{wanted}`: remove `{other}`",
            "spec",
            other,
        )
    if getattr(spec, wanted) is None:
        faults.add(
            "missing-field",
            f"a pool with `provisioner: {spec.provisioner}` needs `{wanted}`",
            "spec",
            wanted,
        )
        return ()
    if spec.provisioner == "virtual":
        return tuple(f"{name}-{index}" for index in range(spec.count or 0))
    return tuple(_expand(spec.hosts or "", faults, "spec", "hosts"))


def _expand(text: str, faults: Faults, *path: str | int) -> list[str]:
    try:
        return hostlists.expand(text)
    except hostlists.HostListError as error:
        faults.add(
            "bad-host-list", str(error), *path, expected="a host list such as gpu[001-128,130]"
        )
        return []


def _drains(
    spec: nodepool.NodePoolSpec, nodes: frozenset[str], faults: Faults
) -> dict[str, desired.Drain]:
    drains: dict[str, desired.Drain] = {}
    for index, override in enumerate(spec.overrides):
        hosts = _expand(override.hosts, faults, "spec", "overrides", index, "hosts")
        strangers = [host for host in hosts if host not in nodes]
        if strangers:
            faults.add(
                "unknown-host",
                "these nodes are not of this pool: correct the names or remove them",
                "spec",
                "overrides",
                index,
                "hosts",
                found=hostlists.fold(strangers),
            )
        if override.drain or override.gone:
            drain = desired.Drain(override.reason, override.owner, gone=override.gone)
            drains.update(dict.fromkeys(hosts, drain))
    return drains


def _check_together(made: Build) -> None:
    """What can only be seen over several objects."""
    for name, fault in checks.queue_tree(made.queues):
        made.add(made.places[f"Queue/{name}"], [fault])
    for name, fault in checks.shared_hosts(made.pools, NODES_MAX):
        made.add(made.places[f"NodePool/{name}"], [fault])

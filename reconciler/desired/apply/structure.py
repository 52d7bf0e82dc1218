"""Builds the one structure from all documents that are not jobs.

The documents of a whole revision come in, because queues, pools and priority classes must fit
together; a ``JobDefaults`` goes out, or the faults of each document. One error refuses the
structure as a whole.
"""

import fnmatch
import logging
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from reconciler.desired.authorize import access_documents
from reconciler.desired.checks import cross_references, flavors, mutations, policies
from reconciler.desired.documents import cron, document_reader, prune_policy
from reconciler.desired.documents.faults import Fault, FaultCollector, defect
from reconciler.desired.normalise import pools, queues, volumes
from reconciler.desired.normalise.job_defaults import JobDefaults, PriorityDefaults
from reconciler.model import desired
from reconciler.model.documents import (
    access_spec,
    cluster_spec,
    fields,
    kinds,
    nodepool_spec,
    policy_spec,
    queue_spec,
    quota_spec,
    reservation_spec,
    volume_spec,
)
from reconciler.model.policy import access
from reconciler.model.values import found_values, hostlists, resources, suggestions

log = logging.getLogger("muster.desired")

#: The most nodes of all pools together.
NODES_MAX = hostlists.HOSTS_MAX


class Placed(msgspec.Struct, frozen=True):
    """A document and its file."""

    path: str
    document: document_reader.Document


_NONE: Mapping[str, str] = MappingProxyType({})
#: The kind of what is said not to be there.
_MISSING = {
    "unknown-parent": "Queue",
    "unknown-queue": "Queue",
    "unknown-pool": "NodePool",
    "unknown-volume": "Volume",
}
#: And where it is one of many things that a document of the kind may hold.
_MISSING_WITHIN = {"unknown-host": "NodePool", "unknown-group": "Access"}


class Build:
    """The structure being built, and its faults."""

    def __init__(self) -> None:
        self.faults: list[tuple[Placed, Fault]] = []
        self.settings = desired.ClusterSettings()
        self.pools: dict[str, desired.Pool] = {}
        self.queues: dict[str, desired.Queue] = {}
        self.classes: dict[str, PriorityDefaults] = {}
        self.users: dict[str, str] = {}
        self.quotas: dict[str, desired.Quota] = {}
        self.reservations: dict[str, desired.Reservation] = {}
        self.reservation_specs: dict[str, reservation_spec.ReservationSpec] = {}
        self.volumes: dict[str, desired.Volume] = {}
        self.policies: dict[str, desired.AdmissionPolicy] = {}
        self.places: dict[str, Placed] = {}
        self.promised = resources.NOTHING
        self.cluster: Placed | None = None
        self.prune: dict[str, desired.Prune] = {}
        self.access = access.Access()

    def add(self, placed: Placed, faults: Iterable[Fault]) -> None:
        """Add the faults of one document."""
        self.faults.extend((placed, fault) for fault in faults)


def build(
    placed: Sequence[Placed], origins: Mapping[str, str] = _NONE, *, opaque: bool = False
) -> tuple[JobDefaults | None, list[tuple[Placed, Fault]]]:
    """Return the structure of the documents, None if it is refused, and the faults.

    Args:
        placed: the documents.
        origins: file of each object in force, by label: of two of one name the other is wrong.
        opaque: some files cannot be read, so a missing object may be there.
    """
    if len({item.document.label for item in placed}) < len(placed):  # it is refused in any order
        placed = sorted(placed, key=lambda item: origins.get(item.document.label) != item.path)
    draft = _drafted(placed)
    if _is_wrong(draft):
        return None, list(_by_themselves(draft, placed, opaque=opaque))
    return _basis(draft), draft.faults


def attempt(
    placed: Sequence[Placed],
) -> tuple[JobDefaults | None, list[tuple[Placed, Fault]]]:
    """Return the structure of the documents as ``build`` does, with all faults."""
    draft = _drafted(placed)
    return None if _is_wrong(draft) else _basis(draft), draft.faults


def missing(kind: str, fault: Fault) -> tuple[str, str]:
    """Return the kind of what a fault says is not there, and its quoted name.

    Both are empty if it says no such thing, the name if it is one of many in an object.
    """
    if fault.rule in _MISSING:
        return _MISSING[fault.rule], fault.found
    within = _MISSING_WITHIN.get(fault.rule, "")
    return ("", "") if within == kind else (within, "")


def _drafted(placed: Sequence[Placed]) -> Build:
    draft = Build()
    for item in placed:
        try:
            _take(draft, item)
        except Exception as error:  # the object is refused, and all else goes on
            log.exception("an internal error kept %s from being judged", item.document.label)
            draft.add(item, [defect(error)])
    _check_together(draft)
    return draft


def _is_wrong(draft: Build) -> bool:
    return any(fault.severity == "error" for _, fault in draft.faults)


def _by_themselves(
    draft: Build, placed: Sequence[Placed], *, opaque: bool
) -> Iterator[tuple[Placed, Fault]]:
    """Return the faults without those that only follow from another wrong or unreadable
    document.
    """
    wrong = {item.document.label for item in placed if item.document.part is None}
    wrong_kinds = {label.partition("/")[0] for label in wrong}
    wrong_names = {
        (kind, found_values.quote(name)) for kind, _, name in (one.partition("/") for one in wrong)
    }
    for item, fault in draft.faults:
        kind, name = missing(item.document.kind, fault)
        follows = (kind, name) in wrong_names if name else kind in wrong_kinds
        if not (follows or (opaque and kind)):
            yield item, fault


def _take(draft: Build, item: Placed) -> None:
    """Add one document, and its own faults."""
    part = item.document.part
    if part is None:
        draft.add(item, item.document.faults)
        return
    if _is_duplicate(draft, item):
        return
    faults = FaultCollector()
    prune = prune_policy.policy(part, faults)
    if prune is not None:
        draft.prune[item.document.label] = prune
    if isinstance(part, cluster_spec.ClusterDocument):
        if draft.cluster is not None:
            faults.add(
                "two-clusters",
                f"a repository has one Cluster, and one stands in {draft.cluster.path}:"
                f"{draft.cluster.document.line} already: remove one",
                "metadata",
                "name",
            )
        draft.cluster = item
        draft.settings = _settings(item.document.name, part.spec, faults)
    else:
        _add_object(draft, item, part, faults)
    draft.add(item, faults.found)


def violations(
    placed: Sequence[Placed], rules: policies.PolicyRules, now: float
) -> list[tuple[Placed, Fault]]:
    """Return violations of policies by the objects of a valid structure."""
    return [
        (item, fault)
        for item in placed
        if item.document.part is not None
        for fault in rules.faults(item.document.kind, item.document.name, item.document.part, now)
    ]


def _basis(draft: Build) -> JobDefaults:
    draft.queues.setdefault("default", desired.Queue("default"))
    structure = desired.Structure(
        settings=draft.settings,
        pools=draft.pools,
        queues=cross_references.parents_first(draft.queues),
        priority_classes={name: item.value for name, item in draft.classes.items()},
        unix_users=draft.users,
        quotas=dict(sorted(draft.quotas.items())),
        reservations=dict(sorted(draft.reservations.items())),
        volumes=dict(sorted(draft.volumes.items())),
        policies=dict(sorted(draft.policies.items())),
        prune=dict(sorted(draft.prune.items())),
        access=draft.access,
    )
    return JobDefaults(structure, draft.classes)


def _is_duplicate(draft: Build, item: Placed) -> bool:
    label = item.document.label
    first = draft.places.setdefault(label, item)
    if first is item:
        return False
    draft.add(item, [cross_references.duplicate(first.path, first.document.line)])
    return True


def _add_object(
    draft: Build, item: Placed, part: fields.DocumentPart, faults: FaultCollector
) -> None:
    name = item.document.name
    if isinstance(part, nodepool_spec.NodePoolDocument):
        draft.pools[name] = pools.pool(name, part.spec, faults)
        draft.promised = pools.counted(draft.pools[name], draft.promised, faults)
    elif isinstance(part, queue_spec.QueueDocument):
        draft.queues[name] = queues.queue(name, part.spec, faults)
    elif isinstance(part, queue_spec.PriorityClassDocument):
        draft.classes[name] = PriorityDefaults(
            part.spec.value, part.spec.preemptible, part.spec.preemption_policy == "evict"
        )
    elif isinstance(part, access_spec.AccessDocument):
        _add_users(draft.users, part.spec, faults)
        draft.access = draft.access.merged(access_documents.access_of(part.spec, faults))
        for first, second in access_documents.shared_keys(draft.access):
            faults.add(
                "one-key-of-two",
                f"{first} and {second} have the same key: nobody could tell who signed",
                *("spec", "identities"),
            )
    elif isinstance(part, quota_spec.QuotaDocument):
        draft.quotas[name] = queues.quota(name, part.spec, faults)
    elif isinstance(part, reservation_spec.ReservationDocument):
        draft.reservation_specs[name] = part.spec
        draft.reservations[name] = queues.reservation(name, part.spec, faults)
    elif isinstance(part, policy_spec.PolicyDocument):
        made = policies.normalise(name, part.spec, item.path, faults)
        changes = mutations.normalise(part.spec, faults)
        draft.policies[name] = msgspec.structs.replace(made, mutations=changes)
    elif isinstance(part, volume_spec.VolumeDocument):
        draft.volumes[name] = volumes.volume(name, part.spec, faults)


def _settings(
    name: str, spec: cluster_spec.ClusterSpec, faults: FaultCollector
) -> desired.ClusterSettings:
    retention = spec.retention
    return desired.ClusterSettings(
        name=name,
        suspend=spec.suspend,
        ephemeral=spec.ephemeral == "allowed",
        lease_s=faults.duration(spec.lease, "spec", "lease"),
        node_silence_s=faults.duration(spec.node_silence, "spec", "nodeSilence"),
        scheduling=queues.scheduling(spec.scheduling, faults),
        retain_events_s=faults.duration(retention.events, "spec", "retention", "events"),
        retain_journal_s=faults.duration(retention.journal, "spec", "retention", "journal"),
        retain_finished_jobs_s=faults.duration(
            retention.finished_jobs, "spec", "retention", "finishedJobs"
        ),
        retain_finished_jobs_max=retention.finished_jobs_max,
        retain_history_s=faults.duration(retention.history, "spec", "retention", "history"),
        retain_gone_nodes_s=faults.duration(retention.gone_nodes, "spec", "retention", "goneNodes"),
        retain_files=_files(retention.files, faults),
        retain_audit_s=_audit(retention.audit, faults),
        safety=_safety(spec.sync, faults),
        revision=desired.RevisionLimits(
            spec.sync.revision.documents,
            faults.amount(
                "memory", spec.sync.revision.bytes, *("spec", "sync", "revision", "bytes")
            ),
        ),
        drift=pools.drift_policy(spec.drift.policy, faults),
        remediation=desired.Remediation(
            attempts=spec.drift.remediation.attempts,
            backoff_s=faults.duration(
                spec.drift.remediation.backoff, *("spec", "drift", "remediation", "backoff")
            ),
            per_hour=spec.drift.remediation.per_hour,
        ),
        verification=spec.verification.mode,
        notifications=_channels(spec.notifications, faults),
    )


#: What is written down for others to look into is not gone before they could: a typing error of a
#: unit would lose it for good.
AUDIT_S_MIN = 86_400
_REASONS = ("applied", "refused", "held", "unreadable")
_FORGES = {"github": "https://api.github.com", "gitlab": "https://gitlab.com/api/v4"}


def _channels(
    specs: Sequence[cluster_spec.NotificationSpec], faults: FaultCollector
) -> tuple[desired.NotificationChannel, ...]:
    """Return the notification channels."""
    found: dict[str, desired.NotificationChannel] = {}
    for position, one in enumerate(specs):
        path = ("spec", "notifications", position)
        if one.name in found:
            faults.add(
                "duplicate-name",
                "another has this name",
                *path,
                "name",
                found=found_values.quote(one.name),
            )
        if one.kind != "webhook" and not one.repository:
            faults.add("no-repository", f"{one.kind} needs `repository`", *path)
        beyond = [reason for reason in one.on if reason not in _REASONS]
        if one.kind != "webhook" and beyond:
            faults.add(
                "no-form",
                f"{one.kind} can only show the status of commits",
                *(*path, "on"),
                found=found_values.quote_all(beyond),
                expected="some of " + ", ".join(_REASONS) + ", or a webhook",
            )
        for field, patterns, prefix in (
            ("queues", one.queues, ("job-",)),
            ("owners", one.owners, ("job-",)),
            ("pools", one.pools, ("node-", "drift")),
        ):
            if patterns and not any(reason.startswith(prefix) for reason in one.on):
                faults.add(
                    "nothing-chosen",
                    f"`on` names nothing that `{field}` chooses from",
                    *(*path, field),
                    found=found_values.quote_all(patterns),
                    expected=f"one that begins with {' or '.join(prefix)} in `on`",
                )
        url = (one.url or _FORGES.get(one.kind, "")).rstrip("/")
        if not _is_safe(url):
            faults.add(
                "unsafe-url",
                "news and the secret that goes with it would be readable on the way",
                *(*path, "url"),
                found=found_values.quote(url) if url else "nothing",
                expected="https://…, or http:// to the controller's own machine",
            )
        found[one.name] = desired.NotificationChannel(
            one.name,
            one.kind,
            url,
            one.secret,
            one.repository or "",
            tuple(dict.fromkeys(one.on)) or _REASONS,
            tuple(one.queues),
            tuple(one.owners),
            tuple(one.pools),
        )
    return tuple(found.values())


def _files(
    spec: cluster_spec.FilesSpec | None, faults: FaultCollector
) -> desired.FileRetention | None:
    """Return the schedule on which files of jobs are removed, or None if they never are."""
    if spec is None:
        return None
    path = ("spec", "retention", "files")
    after_s = faults.duration(spec.after, *path, "after")
    try:
        schedule = cron.parse(spec.schedule)
    except cron.CronError as error:
        faults.add(
            "bad-schedule", str(error), *path, "schedule", found=found_values.quote(spec.schedule)
        )
        return None
    return desired.FileRetention(after_s, schedule, spec.identity)


def _audit(period: str | int | None, faults: FaultCollector) -> int | None:
    """Return the seconds for which the audit log is kept, or None if it is kept for ever."""
    if period is None:
        return None
    path = ("spec", "retention", "audit")
    kept_s = faults.duration(period, *path)
    if kept_s < AUDIT_S_MIN:
        message = f"the audit log is kept for 1d at least, and {period} is less; `1m` is a minute"
        faults.add("short-retention", message, *path, found=found_values.quote(period))
    return kept_s


def _is_safe(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if not url.isprintable() or not url.isascii() or " " in url or parts.username is not None:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and host in desired.LOOPBACK)
    )


def _safety(spec: cluster_spec.SyncSpec, faults: FaultCollector) -> desired.SafetyLimits:
    limits = spec.limits
    windows = []
    for position, one in enumerate(spec.windows):
        path = ("spec", "sync", "windows", position)
        duration_s = faults.duration(one.duration, *path, "duration")
        try:
            schedule = cron.parse(one.schedule)
        except cron.CronError as error:
            faults.add(
                "bad-schedule",
                str(error),
                *path,
                "schedule",
                found=found_values.quote(one.schedule),
            )
            continue
        windows.append(desired.SyncWindow(one.kind == "allow", schedule, duration_s))
    for position, pattern in enumerate(spec.approval):
        kind = pattern.partition("/")[0]
        if not fnmatch.filter(kinds.STRUCTURAL_KINDS, kind):
            hint = suggestions.hint(kind[:1].upper() + kind[1:], kinds.STRUCTURAL_KINDS)
            faults.add(
                "no-such-kind",
                f"it matches nothing{hint}",
                *("spec", "sync", "approval", position),
                found=found_values.quote(pattern),
                expected=f"{', '.join(sorted(kinds.STRUCTURAL_KINDS))}, or one with `*`",
            )
    return desired.SafetyLimits(
        gpu_share=limits.gpu_share,
        gpus=limits.gpus,
        gpu_floor=limits.gpu_floor,
        queues=limits.queues,
        jobs=limits.jobs,
        job_share=limits.job_share,
        job_floor=limits.job_floor,
        gpu_hours=limits.gpu_hours,
        approval=tuple(spec.approval),
        prune={str(kind): policy for kind, policy in spec.prune.items()},
        windows=tuple(windows),
    )


def _add_users(users: dict[str, str], spec: access_spec.AccessSpec, faults: FaultCollector) -> None:
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
                found=found_values.quote(identity.unix_user),
            )


def _check_together(draft: Build) -> None:
    """Check rules that span several objects."""
    for name, fault in cross_references.queue_tree(draft.queues):
        draft.add(draft.places[f"Queue/{name}"], [fault])
    for kind, name, fault in flavors.check(draft.queues, draft.quotas, draft.pools):
        draft.add(draft.places[f"{kind}/{name}"], [fault])
    for name, fault in cross_references.shared_hosts(draft.pools, NODES_MAX):
        draft.add(draft.places[f"NodePool/{name}"], [fault])
    for name, fault in cross_references.topologies(draft.pools):
        draft.add(draft.places[f"NodePool/{name}"], [fault])
    for kind, name, fault in cross_references.names(
        draft.pools, draft.queues, draft.volumes, draft.quotas, draft.access
    ):
        draft.add(draft.places[f"{kind}/{name}"], [fault])
    if draft.settings.verification == "required":
        ours = [label for label in draft.places if label.startswith(("Access/", "Cluster/"))]
        nobody = cross_references.nobody_signs(draft.access, ours)
        if nobody is not None:
            draft.add(draft.places[draft.settings.label], [nobody])
    for name, spec in draft.reservation_specs.items():
        faults = FaultCollector()
        draft.reservations[name] = queues.with_nodes(
            draft.reservations[name], spec, draft.pools, draft.queues, faults
        )
        draft.add(draft.places[f"Reservation/{name}"], faults.found)

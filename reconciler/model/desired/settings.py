"""Settings of the whole cluster, and rules that objects have to satisfy."""

from typing import Literal

import msgspec

from reconciler.model.policy.drift_kinds import Action

#: What becomes of an object whose document leaves the repository.
Prune = Literal["auto", "confirm", "never"]


#: How to choose among nodes that have room.
Placement = Literal["least-fragmentation", "pack", "spread"]


class Waiver(msgspec.Struct, frozen=True):
    """An object (``Kind/name``) that a policy lets off until a time, and why."""

    object: str
    reason: str
    expires_at: float


class AdmissionPolicy(msgspec.Struct, frozen=True):
    """A rule that objects must also satisfy.

    ``schema`` is a JSON Schema as JSON text; ``queues`` and ``labels`` empty: any. ``owners`` are
    asked for waivers. ``path`` is where the document stands.
    """

    name: str
    message: str
    schema: str
    kinds: tuple[str, ...]
    queues: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    action: Literal["deny", "warn"] = "deny"
    owners: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    path: str = ""


class Scheduling(msgspec.Struct, frozen=True):
    """``Cluster.spec.scheduling`` as normalised.

    ``depth`` None: as ``backfill`` has it. ``learned_quantile`` None: limits alone.
    ``usage_window_s`` None: use counts for as long as something is left of it.
    """

    backfill: Literal["none", "easy", "conservative"] = "easy"
    depth: int | None = None
    consolidation: bool = True
    usage_half_life_s: int = 7 * 86_400
    usage_strength: float = 0.0
    placement: Placement = "least-fragmentation"
    order: Literal["arrival", "fit"] = "fit"
    learned_quantile: float | None = None
    overdue_after: float = 2.0
    min_runtime_s: int = 0
    stale_gang_s: int = 60
    usage_window_s: int | None = None


class SyncWindow(msgspec.Struct, frozen=True):
    """When disruptive changes may apply, or may not: five cron fields in UTC, and how long.

    ``schedule`` is as in ``Reservation``.
    """

    allow: bool
    schedule: tuple[tuple[int, ...] | None, ...]
    duration_s: int


class SafetyLimits(msgspec.Struct, frozen=True):
    """How much a revision may disrupt before somebody has to approve it; None: any amount.

    Attributes:
        gpu_share: GPUs leaving service, of a pool and of all, as a part of those in service.
        gpus: the same as a number, over all pools.
        gpu_floor: ``gpu_share`` holds only where at least so many GPUs are in service.
        queues: queues removed.
        jobs: running jobs ended, by the structure or by removing their documents.
        job_share: running jobs ended by removing their documents, as a part of those that run.
        job_floor: ``job_share`` holds only where at least so many jobs run.
        gpu_hours: GPU-hours of their work that are lost.
        approval: patterns of labels of structural objects whose every change needs approval.
        prune: by kind, what becomes of objects whose document leaves; ``auto`` where not named.
        windows: when disruptive changes of the structure may apply; none: always.
    """

    gpu_share: float | None = 0.3
    gpus: int | None = None
    gpu_floor: int = 16
    queues: int | None = None
    jobs: int | None = None
    job_share: float | None = 0.5
    job_floor: int = 16
    gpu_hours: float | None = None
    approval: tuple[str, ...] = ()
    prune: dict[str, Prune] = {}
    windows: tuple[SyncWindow, ...] = ()


class Remediation(msgspec.Struct, frozen=True):
    """How often, and how fast, differences of one cause are made right.

    Attributes:
        attempts: tries at one difference within a day; then it is given up.
        backoff_s: the wait after the first try, doubled after each.
        per_hour: tries of all causes in one pool, and those that are of none, within an hour.
    """

    attempts: int = 3
    backoff_s: int = 60
    per_hour: int = 60


#: Hosts that are this machine.
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class NotificationChannel(msgspec.Struct, frozen=True):
    """Whom to tell what becomes of revisions, jobs and nodes.

    Attributes:
        url: of a webhook, or of a forge's API without a slash at the end.
        repository: of a forge, as it names it.
        secret: name of a file of the controller.
        on: reasons that are told.
        queues, owners: patterns of whose jobs are told of; none: of all.
        pools: patterns of whose nodes are told of, likewise.
    """

    name: str
    kind: Literal["webhook", "github", "gitlab"]
    url: str
    secret: str
    repository: str = ""
    on: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()


class FileRetention(msgspec.Struct, frozen=True):
    """Files of jobs that ended before ``after_s`` leave the repository at times of a schedule.

    ``schedule`` are five cron fields in UTC; ``identity`` is in whose name it is done.
    """

    after_s: int
    schedule: tuple[tuple[int, ...] | None, ...]
    identity: str


class ClusterSettings(msgspec.Struct, frozen=True):
    """``Cluster`` as normalised. ``drift`` maps kinds to what is done about them.

    ``name`` is that of the document; empty where there is none.
    """

    suspend: bool = False
    lease_s: int = 900
    node_silence_s: int = 90
    retain_events_s: int = 30 * 86_400
    retain_journal_s: int = 7 * 86_400
    retain_finished_jobs_s: int = 7 * 86_400
    retain_finished_jobs_max: int = 20_000
    retain_history_s: int = 90 * 86_400
    retain_gone_nodes_s: int = 7 * 86_400
    retain_files: FileRetention | None = None
    retain_audit_s: int | None = None
    scheduling: Scheduling = Scheduling()
    safety: SafetyLimits = SafetyLimits()
    drift: dict[str, Action] = {}
    remediation: Remediation = Remediation()
    verification: Literal["off", "warn", "required"] = "off"
    notifications: tuple[NotificationChannel, ...] = ()
    name: str = ""

    @property
    def label(self) -> str:
        """What the one ``Cluster`` of a repository is called, also where no document says it."""
        return f"Cluster/{self.name or 'settings'}"

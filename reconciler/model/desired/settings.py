"""Settings of the whole cluster, and policies that objects must satisfy."""

from typing import Literal

import msgspec

from reconciler.model.policy.drift_kinds import Action

#: What becomes of an object whose document leaves the repository.
Prune = Literal["auto", "confirm", "never"]


#: How to choose among nodes that have room.
Placement = Literal["least-fragmentation", "pack", "spread"]


class Waiver(msgspec.Struct, frozen=True):
    """An exemption of an object (``Kind/name``) from a policy until a time, with the reason."""

    object: str
    reason: str
    expires_at: float


class Mutation(msgspec.Struct, frozen=True):
    """A change that a policy makes to jobs: a JSON Merge Patch as JSON text.

    ``when`` is the JSON Schema that a job has to satisfy for it, as JSON text; empty for any job.
    """

    when: str
    patch: str


class AdmissionPolicy(msgspec.Struct, frozen=True):
    """A policy that objects must satisfy.

    ``schema`` is a JSON Schema as JSON text. ``queues`` and ``labels`` select objects, empty for
    any. ``owners`` grant waivers. ``path`` is the file of the document. ``mutations`` are made to
    jobs, in their order, before anything is checked.
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
    mutations: tuple[Mutation, ...] = ()


class Scheduling(msgspec.Struct, frozen=True):
    """``Cluster.spec.scheduling``, normalised.

    ``depth`` None: as ``backfill`` says. ``learned_quantile`` None: time limits only.
    ``usage_window_s`` None: usage counts as long as any of it is left after decay.
    ``grace_max_s`` bounds the graces of jobs.
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
    grace_max_s: int = 3600
    usage_window_s: int | None = None


class SyncWindow(msgspec.Struct, frozen=True):
    """Times at which disruptive changes may apply, or may not: five cron fields in UTC, and a
    duration.

    ``schedule`` is as in ``Reservation``.
    """

    allow: bool
    schedule: tuple[tuple[int, ...] | None, ...]
    duration_s: int


class SafetyLimits(msgspec.Struct, frozen=True):
    """Limits of the disruption that a revision may cause without approval. None means that there is
    no limit.

    Attributes:
        gpu_share: GPUs leaving service, of a pool and of all, as a fraction of those in service.
        gpus: the same as a number, over all pools.
        gpu_floor: ``gpu_share`` holds only for at least this many GPUs, drained ones too.
        queues: queues removed.
        jobs: running jobs ended, by the structure or by removing their documents.
        job_share: running jobs ended by removing their documents, as a fraction of running jobs.
        job_floor: ``job_share`` holds only if at least this many jobs run.
        gpu_hours: GPU-hours of work that are lost.
        approval: patterns of labels of structural objects; every change of these needs approval.
        prune: action on objects whose document is removed, by kind; ``auto`` if not named.
        windows: times at which disruptive changes of the structure may apply; none: always.
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


class RevisionLimits(msgspec.Struct, frozen=True):
    """Size of the largest revision that is read: its documents, and bytes of all its files."""

    documents: int = 200_000
    size: int = 128 * 2**20


class Remediation(msgspec.Struct, frozen=True):
    """Rate limits of remediation.

    Attributes:
        attempts: attempts at one difference within a day; after them it is given up.
        backoff_s: the wait after the first attempt, doubled after each.
        per_hour: attempts for all differences in one pool, or outside any pool, within an hour.
    """

    attempts: int = 3
    backoff_s: int = 60
    per_hour: int = 60


#: Hosts that are this machine.
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class NotificationChannel(msgspec.Struct, frozen=True):
    """Recipient of notifications about revisions, jobs and nodes.

    Attributes:
        url: of a webhook, or of a forge's API without a trailing slash.
        repository: of a forge, as it names it.
        secret: name of a file of the controller.
        on: triggers that are notified.
        queues, owners: patterns that select jobs; none: all.
        pools: patterns that select nodes; none: all.
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
    """Schedule on which files of jobs that ended more than ``after_s`` ago are removed from git.

    ``schedule`` is five cron fields in UTC; ``identity`` is the author of these commits.
    """

    after_s: int
    schedule: tuple[tuple[int, ...] | None, ...]
    identity: str


#: When files of jobs that are over leave, if no ``Cluster`` says otherwise.
FILES_KEPT = FileRetention(30 * 86_400, ((0,), (4,), None, None, None), "muster@localhost")


class ClusterSettings(msgspec.Struct, frozen=True):
    """``Cluster``, normalised. ``drift`` maps kinds of drift to actions.

    ``name`` is that of the document; empty if there is none. ``ephemeral``: jobs may begin
    without a file in git.
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
    retain_files: FileRetention | None = FILES_KEPT
    retain_audit_s: int | None = None
    scheduling: Scheduling = Scheduling()
    safety: SafetyLimits = SafetyLimits()
    revision: RevisionLimits = RevisionLimits()
    drift: dict[str, Action] = {}
    remediation: Remediation = Remediation()
    verification: Literal["off", "warn", "required"] = "off"
    notifications: tuple[NotificationChannel, ...] = ()
    name: str = ""
    ephemeral: bool = False

    @property
    def label(self) -> str:
        """Label of the one ``Cluster`` of a repository, also if no document defines it."""
        return f"Cluster/{self.name or 'settings'}"

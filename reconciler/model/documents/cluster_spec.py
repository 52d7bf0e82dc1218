"""``Cluster``: what holds for the whole repository. There is one at the most."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.drift_spec import DriftSpec
from reconciler.model.documents.fields import DocumentPart, Duration, Memory, Metadata, Weight, doc
from reconciler.model.documents.job_spec import Placement


class FairnessSpec(DocumentPart, frozen=True):
    """Influence of past usage on fair share."""

    half_life: Annotated[
        Duration,
        doc("Half-life: the time after which usage counts half.", example="7d", unit="duration"),
    ] = "7d"
    window: Annotated[
        Duration | None,
        doc(
            "Window in which usage counts, to about a fiftieth of it. Default: usage counts"
            " as long as decay leaves any of it.",
            example="30d",
            unit="duration",
        ),
    ] = None
    strength: Annotated[
        Weight,
        doc(
            "Weight of past usage against a queue's share of the surplus. 0: none.",
            example=1,
        ),
    ] = 0


class LearnedRunTimesSpec(DocumentPart, frozen=True):
    """Expected run times from what the same owner's jobs of that name took before."""

    quantile: Annotated[
        float,
        doc("Quantile of earlier run times that is expected.", example=0.9, gt=0, le=1),
    ] = 0.9


class SchedulingSpec(DocumentPart, frozen=True):
    """Policies of the scheduler."""

    backfill: Annotated[
        Literal["none", "easy", "conservative"],
        doc(
            "Jobs that get a reservation while they wait: none, the first of each queue, or"
            " all. Other jobs start before them only if they do not delay them.",
            example="conservative",
        ),
    ] = "easy"
    depth: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=200)] | None,
        doc(
            "Most jobs that get a reservation. Default: 8 with `easy`, 200 with "
            "`conservative`; 200 is also the maximum.",
            example=32,
        ),
    ] = None
    consolidation: Annotated[
        bool,
        doc("Move jobs that checkpoint so that another job can start.", example=False),
    ] = True
    fairness: Annotated[
        FairnessSpec,
        doc("Influence of past usage.", example={"halfLife": "7d", "strength": 1}),
    ] = FairnessSpec()
    placement: Annotated[
        Placement,
        doc("Choice among nodes that fit, if a job does not choose itself.", example="pack"),
    ] = "least-fragmentation"
    order: Annotated[
        Literal["arrival", "fit"],
        doc(
            "Order of a queue's jobs of equal priority that were submitted at the same "
            "moment: by name, or so that most of them fit.",
            example="arrival",
        ),
    ] = "fit"
    learned_run_times: Annotated[
        LearnedRunTimesSpec | None,
        doc(
            "Plan by earlier run times if they are shorter than the time limit. Default: by"
            " time limits only.",
            example={"quantile": 0.9},
        ),
    ] = None
    overdue_after: Annotated[
        float,
        doc(
            "A job is overdue after waiting this many times its longest run time (its time "
            "limit, or the learned one), or three days. It then goes before the other jobs "
            "of its queue and priority, and may evict work with a time limit for its "
            "queue's share of the surplus. 0: only age counts, and it may evict at once.",
            example=4,
            ge=0,
            le=1_000_000,
        ),
    ] = 2.0
    min_runtime: Annotated[
        Duration,
        doc(
            "Minimum run time before an array element may be evicted, if its queue does not say.",
            example="5m",
            unit="duration",
        ),
    ] = "0s"
    stale_gang_grace: Annotated[
        Duration,
        doc(
            "Time for which an elastic gang with fewer tasks than its `min` may wait for "
            "more before it ends.",
            example="2m",
            unit="duration",
        ),
    ] = "1m"
    grace_max: Annotated[
        Duration,
        doc(
            "Longest grace that a job may give itself by `checkpoint.grace` or "
            "`terminationGrace`: others wait for what it holds. Longer ones are cut to it.",
            example="15m",
            unit="duration",
        ),
    ] = "1h"


class FilesSpec(DocumentPart, frozen=True):
    """Schedule on which the controller removes files of jobs that ended long ago from the
    repository.
    """

    after: Annotated[
        Duration,
        doc("Age of a job, counted from its end.", example="14d", unit="duration"),
    ] = "30d"
    schedule: Annotated[
        str,
        doc(
            "Schedule: five cron fields in UTC (minute, hour, day of month, month, day of week).",
            example="0 4 * * 0",
        ),
    ] = "0 4 * * *"
    identity: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=256)],
        doc(
            "Author of these commits. If `Access` has roles, this identity must have the "
            "right to change these jobs; files that it may not change stay.",
            example="housekeeping@example.org",
        ),
    ] = "muster@localhost"


class RetentionSpec(DocumentPart, frozen=True):
    """Retention of history."""

    finished_jobs: Annotated[
        Duration,
        doc(
            "Time for which a finished job is listed after its document has left the "
            "repository. A job whose document exists is always listed.",
            example="7d",
            unit="duration",
        ),
    ] = "7d"
    finished_jobs_max: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)],
        doc(
            "Most such jobs that are listed; the first ended are dropped first.",
            example=20_000,
        ),
    ] = 20_000
    history: Annotated[
        Duration,
        doc(
            "Time for which the store keeps jobs that are no longer listed, earlier runs of"
            " listed jobs, and attempts, counted from their end.",
            example="90d",
            unit="duration",
        ),
    ] = "90d"
    gone_nodes: Annotated[
        Duration,
        doc(
            "Time for which a node that is gone and in no pool is listed after its last report.",
            example="7d",
            unit="duration",
        ),
    ] = "7d"

    events: Annotated[
        Duration, doc("Time for which events are kept.", example="30d", unit="duration")
    ] = "30d"
    journal: Annotated[
        Duration,
        doc(
            "Time for which the inputs of cycles are kept for replay.",
            example="7d",
            unit="duration",
        ),
    ] = "7d"
    audit: Annotated[
        Duration | None,
        doc(
            "Time for which the audit log is kept, at least a day. Whole files are deleted,"
            " so up to a tenth more is kept. Default: for ever.",
            example="365d",
            unit="duration",
        ),
    ] = None
    files: Annotated[
        FilesSpec | None,
        doc(
            "Remove files of jobs that ended long ago from the repository, as `muster "
            "prune` does, so that git stays readable; history keeps them. null: never.",
            example={"after": "14d", "schedule": "0 4 * * 0"},
        ),
    ] = FilesSpec()


#: How many of something a limit may allow: more than there will ever be.
LimitCount = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class SyncLimitsSpec(DocumentPart, frozen=True):
    """Limits of the disruption that a revision may cause without approval. null means that there is
    no limit.
    """

    gpu_share: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1)] | None,
        doc(
            "Fraction of the GPUs in service, of a pool or of all, that may leave service at once. "
            "One node may always leave, unless it is the last in service.",
            example=0.25,
        ),
    ] = 0.3
    gpu_floor: Annotated[
        LimitCount,
        doc(
            "`gpuShare` applies only to a pool or cluster of at least this many GPUs, those of "
            "drained nodes too, because in a small cluster one node is a large fraction.",
            example=32,
            unit="GPUs",
        ),
    ] = 16
    gpus: Annotated[
        LimitCount | None,
        doc("Number of GPUs that may leave service at once.", example=64, unit="GPUs"),
    ] = None
    queues: Annotated[
        LimitCount | None,
        doc("Number of queues that may be removed at once.", example=1),
    ] = None
    jobs: Annotated[
        LimitCount | None,
        doc(
            "Number of running jobs that may be ended at once, by the structure or by "
            "removing their documents.",
            example=20,
        ),
    ] = None
    job_share: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1)] | None,
        doc(
            "Fraction of the running jobs that may be ended at once by removing their "
            "documents. It catches a deleted folder.",
            example=0.25,
        ),
    ] = 0.5
    job_floor: Annotated[
        LimitCount,
        doc(
            "`jobShare` applies only if at least this many jobs run, because of a few jobs "
            "one is a large fraction.",
            example=50,
        ),
    ] = 16
    gpu_hours: Annotated[
        Annotated[float, msgspec.Meta(ge=0)] | None,
        doc("GPU-hours of running work that may be lost.", example=100, unit="GPU-hours"),
    ] = None


class RevisionLimitsSpec(DocumentPart, frozen=True):
    """Size of the largest revision that is read."""

    documents: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000_000)],
        doc(
            "Most documents in all files of a revision. They are counted before any is read. "
            "One file has 5,000 at most.",
            example=500_000,
        ),
    ] = 200_000
    bytes: Annotated[
        Memory,
        doc(
            "Most bytes in all YAML files of a revision. One file has 4 MiB at most.",
            example="256Mi",
            unit="bytes",
        ),
    ] = "128Mi"


class SyncWindowSpec(DocumentPart, frozen=True):
    """A time at which disruptive changes of the structure may, or may not, apply."""

    kind: Annotated[
        Literal["allow", "deny"],
        doc(
            "`allow`: changes apply only in such windows. `deny`: changes never apply in "
            "this window.",
            example="deny",
        ),
    ]
    schedule: Annotated[
        str,
        doc(
            "Start: five cron fields in UTC (minute, hour, day of month, month, day of week).",
            example="0 7 * * 1-5",
        ),
    ]
    duration: Annotated[Duration, doc("Duration.", example="12h", unit="duration")]


class SyncSpec(DocumentPart, frozen=True):
    """Rules for applying a revision."""

    limits: Annotated[
        SyncLimitsSpec,
        doc("Limits of disruption without approval.", example={"gpus": 64}),
    ] = SyncLimitsSpec()
    revision: Annotated[
        RevisionLimitsSpec,
        doc(
            "Limits of the size of a revision. A larger one is held, and what is in force "
            "stays. The limits in force judge it, not its own.",
            example={"documents": 500_000},
        ),
    ] = RevisionLimitsSpec()
    approval: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]],
        doc(
            "Structural objects whose every change needs approval: `Kind` or `Kind/name`; "
            "`*` matches any text.",
            example=["Cluster", "NodePool/h200-*"],
        ),
    ] = []
    prune: Annotated[
        dict[
            Literal[
                "Access",
                "Job",
                "NodePool",
                "PriorityClass",
                "Queue",
                "Quota",
                "Reservation",
                "Volume",
            ],
            Literal["auto", "confirm", "never"],
        ],
        doc(
            "Action on objects of a kind whose document leaves the repository. `auto`: "
            "remove them. `confirm`: remove them after approval. `never`: keep them. The "
            "annotation `muster/prune` sets it for one object.",
            example={"NodePool": "confirm"},
        ),
    ] = {}
    windows: Annotated[
        list[SyncWindowSpec],
        doc(
            "Windows for changes that take GPUs out of service, remove queues or end "
            "running jobs; all other changes apply at any time. Default: always.",
            example=[{"kind": "deny", "schedule": "0 7 * * 1-5", "duration": "12h"}],
        ),
    ] = []


class VerificationSpec(DocumentPart, frozen=True):
    """Verification of commit signatures."""

    mode: Annotated[
        Literal["required", "warn", "off"],
        doc(
            "`required`: a change counts only if somebody signed it who may make it, object"
            " by object. `warn`: it counts, with a warning. `off`: signatures are not "
            "checked.",
            example="required",
        ),
    ] = "off"


Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Reason = Literal[
    "applied", "refused", "held", "unreadable",
    "job-ended", "job-failed", "job-evicted",
    "node-lost", "node-back", "drift", "drift-ended",
]  # fmt: skip


class NotificationSpec(DocumentPart, frozen=True):
    """A recipient of notifications about revisions, jobs and nodes."""

    name: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")],
        doc("Name, shown in metrics and commit statuses.", example="chat"),
    ]
    kind: Annotated[
        Literal["webhook", "github", "gitlab"],
        doc(
            "`webhook`: a signed POST of JSON; `github`, `gitlab`: the status of the commit.",
            example="webhook",
        ),
    ]
    secret: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")],
        doc(
            "File in the controller's folder of secrets (`--notify-secrets`) with the key "
            "that signs webhooks, or the token of a forge. A token is sent only to the "
            "public forge, unless `NAME.hosts` beside it names other hosts.",
            example="chat-key",
        ),
    ]
    url: Annotated[
        Annotated[str, msgspec.Meta(max_length=2048)] | None,
        doc(
            "URL of the webhook, or of the API of a forge that is not the public one: "
            "`https`, or `http` on the controller's own machine.",
            example="https://chat.example.org/hooks/muster",
        ),
    ] = None
    repository: Annotated[
        Annotated[
            str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$", max_length=512)
        ]
        | None,
        doc("Repository or project, for forges.", example="example/cluster-state"),
    ] = None
    on: Annotated[
        list[Reason],
        doc(
            "Triggers. For revisions: it is in force, has errors, waits for approval or its"
            " time, or the repository cannot be read (not sent to forges). Default: these "
            "four. For webhooks also: a job ended, failed (or timed out), or was evicted; a"
            " node is silent or gone, or is back; drift appeared or was resolved.",
            example=["held", "refused", "job-failed"],
        ),
    ] = []
    queues: Annotated[
        list[Pattern],
        doc(
            "Only jobs in these queues; `*` matches any text. Default: all.",
            example=["research-*"],
        ),
    ] = []
    owners: Annotated[
        list[Pattern],
        doc(
            "Only jobs of these owners; `*` matches any text. Default: all.",
            example=["alice@example.org"],
        ),
    ] = []
    pools: Annotated[
        list[Pattern],
        doc(
            "Only nodes and drift in these pools; `*` matches any text. Drift outside any "
            "pool is always notified. Default: all.",
            example=["h200"],
        ),
    ] = []


class ClusterSpec(DocumentPart, frozen=True):
    """Settings of the control loop."""

    engine: Annotated[
        Literal["agents"],
        doc(
            "Engine that runs the work: Muster's own node agents.",
            example="agents",
            not_built={"slurm": "work runs on Muster's own agents alone"},
        ),
    ] = "agents"
    suspend: Annotated[
        bool,
        doc("Start nothing new in the whole cluster; running work goes on.", example=True),
    ] = False
    lease: Annotated[
        Duration,
        doc(
            "Lease: time for which retriable work goes on at a node that has lost the "
            "controller. Then the node stops it, and it may start elsewhere.",
            example="15m",
            unit="duration",
        ),
    ] = "15m"
    node_silence: Annotated[
        Duration,
        doc(
            "Time without a report after which a node is Unknown and gets no new work.",
            example="90s",
            unit="duration",
        ),
    ] = "90s"
    ephemeral: Annotated[
        Literal["forbidden", "allowed"],
        doc(
            "Whether `muster run` may begin jobs without a file in git. They live in the store, "
            "the audit log and a note in git; rights, policies and limits are those of a commit.",
            example="allowed",
        ),
    ] = "forbidden"
    scheduling: Annotated[
        SchedulingSpec, doc("Settings of the scheduler.", example={"backfill": "conservative"})
    ] = SchedulingSpec()
    verification: Annotated[
        VerificationSpec,
        doc("Verification of commit signatures.", example={"mode": "required"}),
    ] = VerificationSpec()
    sync: Annotated[
        SyncSpec, doc("Rules for applying a revision.", example={"limits": {"gpus": 64}})
    ] = SyncSpec()
    retention: Annotated[RetentionSpec, doc("Retention of history.", example={"events": "30d"})] = (
        RetentionSpec()
    )
    notifications: Annotated[
        Annotated[list[NotificationSpec], msgspec.Meta(max_length=32)],
        doc(
            "Notifications about revisions, jobs and nodes.",
            example=[
                {
                    "name": "chat",
                    "kind": "webhook",
                    "url": "https://chat.example.org/hooks/muster",
                    "secret": "chat-key",
                }
            ],
        ),
    ] = []
    drift: Annotated[
        DriftSpec,
        doc(
            "Actions on drift.",
            example={"policy": {"gpu-process-foreign": "remediate"}},
        ),
    ] = DriftSpec()


class ClusterDocument(DocumentPart, frozen=True, tag_field="kind", tag="Cluster"):
    """Settings of the cluster that the repository describes."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "main"})]
    spec: Annotated[ClusterSpec, doc("Desired state.", example={"lease": "15m"})] = ClusterSpec()

"""``Cluster``: what holds for the whole repository. There is one at the most."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.drift_spec import DriftSpec
from reconciler.model.documents.fields import DocumentPart, Duration, Metadata, Weight, doc
from reconciler.model.documents.job_spec import Placement


class FairnessSpec(DocumentPart, frozen=True):
    """How much who used less lately gets more."""

    half_life: Annotated[
        Duration,
        doc("After how long use counts half.", example="7d", unit="duration"),
    ] = "7d"
    window: Annotated[
        Duration | None,
        doc(
            "How long use counts at all, to about a fiftieth of it; left out: what `halfLife` "
            "leaves of it always counts.",
            example="30d",
            unit="duration",
        ),
    ] = None
    strength: Annotated[
        Weight,
        doc(
            "How strongly past use lowers a queue's part of what is left over; 0: not at all.",
            example=1,
        ),
    ] = 0


class LearnedRunTimesSpec(DocumentPart, frozen=True):
    """Expected run times from what the same owner's jobs of that name took before."""

    quantile: Annotated[
        float,
        doc("Which of the run times before is expected.", example=0.9, gt=0, le=1),
    ] = 0.9


class SchedulingSpec(DocumentPart, frozen=True):
    """Policies of the scheduler."""

    backfill: Annotated[
        Literal["none", "easy", "conservative"],
        doc(
            "Who gets a reservation while it waits: nobody, the first of each queue, or all. "
            "Others start before it only if they do not delay it.",
            example="conservative",
        ),
    ] = "easy"
    depth: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=200)] | None,
        doc(
            "How many that wait get a reservation at the most. Without it 8 with `easy`, and 200 "
            "with `conservative`, which is as many as there are at all.",
            example=32,
        ),
    ] = None
    consolidation: Annotated[
        bool,
        doc("Whether work that checkpoints may be moved to let another start.", example=False),
    ] = True
    fairness: Annotated[
        FairnessSpec,
        doc("How past use counts.", example={"halfLife": "7d", "strength": 1}),
    ] = FairnessSpec()
    placement: Annotated[
        Placement,
        doc("How to choose among nodes with room where a job does not say.", example="pack"),
    ] = "least-fragmentation"
    order: Annotated[
        Literal["arrival", "fit"],
        doc(
            "Which of a queue's jobs of one priority goes first where they were submitted at the "
            "same moment: by their names, or in the order in which most of them fit.",
            example="arrival",
        ),
    ] = "fit"
    learned_run_times: Annotated[
        LearnedRunTimesSpec | None,
        doc(
            "Plan by run times of before, where they are shorter than the time limit; left out: "
            "by time limits alone.",
            example={"quantile": 0.9},
        ),
    ] = None
    overdue_after: Annotated[
        float,
        doc(
            "A job that has waited so many times as long as it runs at the most (its time limit, "
            "or what was learned), or three days, goes before the others of its queue and "
            "priority, and may evict work with a time limit for its queue's share of what is left "
            "over; 0: age alone counts, and it may at once.",
            example=4,
            ge=0,
            le=1_000_000,
        ),
    ] = 2.0
    min_runtime: Annotated[
        Duration,
        doc(
            "How long an element runs before it may be evicted, where its queue does not say.",
            example="5m",
            unit="duration",
        ),
    ] = "0s"
    stale_gang_grace: Annotated[
        Duration,
        doc(
            "How long an elastic gang that has fewer tasks than its `min` may wait for others "
            "before it ends.",
            example="2m",
            unit="duration",
        ),
    ] = "1m"


class FilesSpec(DocumentPart, frozen=True):
    """When the controller takes files of jobs that ended long ago out of the repository."""

    after: Annotated[
        Duration,
        doc("Of jobs that ended so long ago.", example="14d", unit="duration"),
    ] = "30d"
    schedule: Annotated[
        str,
        doc(
            "When, as five cron fields in UTC: minute, hour, day of month, month, day of week.",
            example="0 4 * * 0",
        ),
    ] = "0 4 * * *"
    identity: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=256)],
        doc(
            "In whose name. Where `Access` has roles it has to be somebody who may change these "
            "jobs; what it may not change stays.",
            example="housekeeping@example.org",
        ),
    ] = "muster@localhost"


class RetentionSpec(DocumentPart, frozen=True):
    """How long what is over is remembered."""

    finished_jobs: Annotated[
        Duration,
        doc(
            "How long a finished job is listed after its document has left the repository. One "
            "whose document stands is always listed.",
            example="7d",
            unit="duration",
        ),
    ] = "7d"
    finished_jobs_max: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)],
        doc(
            "How many such jobs are listed at the most; those that ended first leave first.",
            example=20_000,
        ),
    ] = 20_000
    history: Annotated[
        Duration,
        doc(
            "How long the store keeps jobs that are no longer listed, earlier runs of those that "
            "are, and attempts, each from its end.",
            example="90d",
            unit="duration",
        ),
    ] = "90d"
    gone_nodes: Annotated[
        Duration,
        doc(
            "How long a node that is gone and in no pool is listed since it was last heard of.",
            example="7d",
            unit="duration",
        ),
    ] = "7d"

    events: Annotated[
        Duration, doc("How long events are kept.", example="30d", unit="duration")
    ] = "30d"
    journal: Annotated[
        Duration,
        doc("How long the inputs of cycles are kept for replay.", example="7d", unit="duration"),
    ] = "7d"
    audit: Annotated[
        Duration | None,
        doc(
            "How long lines of the audit log are kept, at least a day; they go by whole files, so "
            "that up to a tenth more is there. Left out: for ever.",
            example="365d",
            unit="duration",
        ),
    ] = None
    files: Annotated[
        FilesSpec | None,
        doc(
            "The controller takes files of jobs that ended long ago out of the repository, as "
            "`muster prune` does. Left out: it never does.",
            example={"after": "14d", "schedule": "0 4 * * 0"},
        ),
    ] = None


#: How many of something a limit may allow: more than there will ever be.
LimitCount = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class SyncLimitsSpec(DocumentPart, frozen=True):
    """How much a revision may disrupt before somebody has to approve it; null: any amount."""

    gpu_share: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1)] | None,
        doc(
            "Which part of the GPUs in service, of a pool or of all, may leave service at once.",
            example=0.25,
        ),
    ] = 0.3
    gpu_floor: Annotated[
        LimitCount,
        doc(
            "`gpuShare` holds only where at least so many GPUs are in service: in a small "
            "cluster one node is a large part.",
            example=32,
            unit="GPUs",
        ),
    ] = 16
    gpus: Annotated[
        LimitCount | None,
        doc("How many GPUs may leave service at once.", example=64, unit="GPUs"),
    ] = None
    queues: Annotated[
        LimitCount | None,
        doc("How many queues may be removed at once.", example=1),
    ] = None
    jobs: Annotated[
        LimitCount | None,
        doc(
            "How many running jobs may be ended at once, by the structure or by removing their "
            "documents.",
            example=20,
        ),
    ] = None
    job_share: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1)] | None,
        doc(
            "Which part of the running jobs may be ended at once by removing their documents: a "
            "folder that is deleted is more than anybody cancels.",
            example=0.25,
        ),
    ] = 0.5
    job_floor: Annotated[
        LimitCount,
        doc(
            "`jobShare` holds only where at least so many jobs run: of a few, one is a large part.",
            example=50,
        ),
    ] = 16
    gpu_hours: Annotated[
        Annotated[float, msgspec.Meta(ge=0)] | None,
        doc("How much work of running jobs may be lost.", example=100, unit="GPU-hours"),
    ] = None


class SyncWindowSpec(DocumentPart, frozen=True):
    """A time at which disruptive changes of the structure may apply, or may not."""

    kind: Annotated[
        Literal["allow", "deny"],
        doc(
            "`allow`: they apply only in windows that allow; `deny`: never in this one.",
            example="deny",
        ),
    ]
    schedule: Annotated[
        str,
        doc(
            "When it begins, as five cron fields in UTC: minute, hour, day of month, month, "
            "day of week.",
            example="0 7 * * 1-5",
        ),
    ]
    duration: Annotated[Duration, doc("How long it lasts.", example="12h", unit="duration")]


class SyncSpec(DocumentPart, frozen=True):
    """What a revision may do by itself."""

    limits: Annotated[
        SyncLimitsSpec,
        doc("How much it may disrupt without approval.", example={"gpus": 64}),
    ] = SyncLimitsSpec()
    approval: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]],
        doc(
            "Structural objects of which every change needs approval: `Kind` or `Kind/name`, "
            "`*` stands for any text.",
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
            "What becomes of objects of a kind whose document leaves the repository: `auto`, they "
            "go; `confirm`, somebody has to approve it; `never`, they stay. The annotation "
            "`muster/prune` says it for one object.",
            example={"NodePool": "confirm"},
        ),
    ] = {}
    windows: Annotated[
        list[SyncWindowSpec],
        doc(
            "When changes may apply that take GPUs out of service, remove queues or end running "
            "jobs; all others apply at any time. None: always.",
            example=[{"kind": "deny", "schedule": "0 7 * * 1-5", "duration": "12h"}],
        ),
    ] = []


class VerificationSpec(DocumentPart, frozen=True):
    """Whether commits have to be signed."""

    mode: Annotated[
        Literal["required", "warn", "off"],
        doc(
            "`required`: what nobody has signed who may change it does not count, object by "
            "object; `warn`: it counts and is told; `off`: nobody looks.",
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
    """Whom to tell what becomes of revisions, of jobs and of nodes."""

    name: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")],
        doc("Name, which metrics and commit statuses bear.", example="chat"),
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
            "File in the controller's folder of secrets (`--notify-secrets`): the key that signs "
            "for a webhook, the token for a forge. A token goes to the public forge alone, unless "
            "`NAME.hosts` beside it names other hosts.",
            example="chat-key",
        ),
    ]
    url: Annotated[
        Annotated[str, msgspec.Meta(max_length=2048)] | None,
        doc(
            "Of the webhook, or of the forge's API where it is not the public one: `https`, or "
            "`http` on the controller's own machine.",
            example="https://chat.example.org/hooks/muster",
        ),
    ] = None
    repository: Annotated[
        Annotated[
            str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$", max_length=512)
        ]
        | None,
        doc("For forges: the repository, or the project.", example="example/cluster-state"),
    ] = None
    on: Annotated[
        list[Reason],
        doc(
            "What is told. Of revisions: one is in force, has errors, waits for approval or its "
            "time, or the repository can't be read (for which forges have no form); none: these "
            "four. By webhooks also: a job ended, failed (or ran out of time), was evicted; a node "
            "is silent or gone, or is back; something is other than git says, or is so no longer.",
            example=["held", "refused", "job-failed"],
        ),
    ] = []
    queues: Annotated[
        list[Pattern],
        doc(
            "Of jobs: only in these queues; `*` stands for any text. None: in all.",
            example=["research-*"],
        ),
    ] = []
    owners: Annotated[
        list[Pattern],
        doc("Of jobs: only of these owners, likewise.", example=["alice@example.org"]),
    ] = []
    pools: Annotated[
        list[Pattern],
        doc(
            "Of nodes and drift: only in these pools, likewise; drift that is of no pool is told.",
            example=["h200"],
        ),
    ] = []


class ClusterSpec(DocumentPart, frozen=True):
    """Settings of the control loop."""

    engine: Annotated[
        Literal["agents"],
        doc(
            "Where work runs: Muster's own node agents.",
            example="agents",
            not_built={"slurm": "work runs on Muster's own agents alone"},
        ),
    ] = "agents"
    suspend: Annotated[
        bool,
        doc("Start nothing new in the whole cluster; what runs goes on.", example=True),
    ] = False
    lease: Annotated[
        Duration,
        doc(
            "How long work that may be retried goes on at a node that has lost the controller, "
            "before the node stops it and it may start elsewhere.",
            example="15m",
            unit="duration",
        ),
    ] = "15m"
    node_silence: Annotated[
        Duration,
        doc(
            "After how long without a report a node is Unknown and gets nothing new.",
            example="90s",
            unit="duration",
        ),
    ] = "90s"
    scheduling: Annotated[
        SchedulingSpec, doc("Policies of the scheduler.", example={"backfill": "conservative"})
    ] = SchedulingSpec()
    verification: Annotated[
        VerificationSpec,
        doc("Whether commits have to be signed.", example={"mode": "required"}),
    ] = VerificationSpec()
    sync: Annotated[
        SyncSpec, doc("What a revision may do by itself.", example={"limits": {"gpus": 64}})
    ] = SyncSpec()
    retention: Annotated[
        RetentionSpec, doc("How long what is over is remembered.", example={"events": "30d"})
    ] = RetentionSpec()
    notifications: Annotated[
        Annotated[list[NotificationSpec], msgspec.Meta(max_length=32)],
        doc(
            "Whom to tell what becomes of revisions, jobs and nodes.",
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
            "What is done about what is other than git says.",
            example={"policy": {"gpu-process-foreign": "remediate"}},
        ),
    ] = DriftSpec()


class ClusterDocument(DocumentPart, frozen=True, tag_field="kind", tag="Cluster"):
    """Settings of the cluster that the repository describes."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "main"})]
    spec: Annotated[ClusterSpec, doc("What is desired.", example={"lease": "15m"})] = ClusterSpec()

"""Kinds of drift between git and the cluster, and what may be done about each.

``core.drift.detection`` finds differences in every cycle. The store keeps the list, so that the
time of first sight survives a change of leader. ``KINDS`` is the table of all kinds.
"""

from typing import Literal

import msgspec

Severity = Literal["info", "warning", "critical"]
#: ``remediate``: Muster makes it right, within limits. ``ignore``: it is listed on demand only.
Action = Literal["remediate", "report", "ignore"]

_TOLD: tuple[Action, ...] = ("report", "ignore")
_ANY: tuple[Action, ...] = ("remediate", "report", "ignore")


class DriftKind(msgspec.Struct, frozen=True):
    """A kind of drift: severity, default action, and allowed actions.

    ``remedy`` describes what ``remediate`` does, empty if nothing can be done. ``pooled``: it
    concerns a node of a pool, so that the pool may have an action of its own.
    """

    severity: Severity
    action: Action
    actions: tuple[Action, ...]
    meaning: str
    remedy: str = ""
    pooled: bool = True


KINDS: dict[str, DriftKind] = {
    "node-missing": DriftKind(
        "warning", "report", _TOLD, "a node is declared and has never reported"
    ),
    "node-undeclared": DriftKind(
        "warning", "report", _TOLD, "a node reports and no pool declares it", pooled=False
    ),
    "node-silent": DriftKind(
        "critical", "report", _TOLD, "a node was not heard of for `nodeSilence`"
    ),
    "node-inventory": DriftKind(
        "warning", "report", _TOLD, "a node has less CPU, memory or GPUs than its pool, or others"
    ),
    "node-driver": DriftKind(
        "warning", "report", _TOLD, "the GPU driver does not work, or is not the one declared"
    ),
    "node-mig": DriftKind(
        "warning", "report", _TOLD, "a GPU is cut by MIG in another way than its pool declares"
    ),
    "node-labels": DriftKind(
        "info", "report", _TOLD, "an agent was started with another label than its pool declares"
    ),
    "node-drained-by-override": DriftKind(
        "warning", "report", _TOLD, "a node was drained by hand, behind git"
    ),
    "node-check-failed": DriftKind(
        "critical", "remediate", _ANY, "a health check of a node has failed: it takes no work",
        "what `health.remedies` of its pool says",
    ),
    "node-check-braked": DriftKind(
        "critical", "report", _TOLD,
        "a health check fails on so many nodes of a pool that this one stays in service",
    ),
    "node-check-trial": DriftKind(
        "warning", "report", _TOLD,
        "the node that tries its pool's changed checks fails one or is silent: others keep theirs",
    ),
    "node-check-degraded": DriftKind(
        "warning", "report", _TOLD, "a health check of a node found something that is not well"
    ),
    "node-black-hole": DriftKind(
        "critical", "report", _TOLD, "tasks of different owners fail quickly on a node: it is out"
    ),
    "node-flapping": DriftKind(
        "warning", "report", _TOLD, "checks of a node come and go: it is out until they stay well"
    ),
    "gpu-failed": DriftKind(
        "critical", "report", _TOLD, "a GPU is lost, missing, failed or silent"
    ),
    "gpu-process-foreign": DriftKind(
        "warning", "report", _ANY, "a process holds a GPU and belongs to no task",
        "the process is ended",
    ),
    "task-unwanted": DriftKind(
        "warning", "remediate", ("remediate",), "a task runs that was given up or is not known",
        "its node ends it; this is so always",
    ),
    "task-gpu-undeclared": DriftKind(
        "warning", "report", _TOLD, "a task holds GPUs of its node that its pool does not declare"
    ),
    "task-missing": DriftKind(
        "warning", "remediate", _ANY, "a task was given to its node and does not start there",
        "the node is told again",
    ),
    "task-killed": DriftKind(
        "warning", "report", _ANY, "somebody other than Muster ended a task by a signal",
        "it starts again without spending a retry",
    ),
    "queue-over-limit": DriftKind(
        "warning", "report", _ANY, "what runs in a queue is above its limit, as after lowering it",
        "preemptible work leaves, the newest first", pooled=False,
    ),
    "instance-orphaned": DriftKind(
        "warning", "report", _TOLD, "a provisioner lists an instance that nobody asked for"
    ),
    "instance-left-over": DriftKind(
        "warning", "report", _TOLD, "an instance could not be destroyed; it is tried on and on"
    ),
    "pool-not-growing": DriftKind(
        "warning",
        "report",
        _TOLD,
        "a pool's nodes don't come up, lack what it declares, or are too many an hour: it rests",
    ),
    "provisioner-failing": DriftKind(
        "warning", "report", _TOLD, "a pool's instances can't be listed, so that it makes none"
    ),
    "job-cancelled-by-override": DriftKind(
        "warning", "report", _TOLD, "a job was cancelled by hand, behind git", pooled=False
    ),
    "suspended-by-override": DriftKind(
        "warning", "report", _TOLD, "a queue or the cluster was suspended by hand, behind git",
        pooled=False,
    ),
    "submission-not-committed": DriftKind(
        "warning", "report", _TOLD,
        "a submitted job waits for git, or was refused when it was to be committed", pooled=False,
    ),
    "head-not-applied": DriftKind(
        "warning", "report", _TOLD, "the newest revision, or a part of it, was refused",
        pooled=False,
    ),
    "repository-unreadable": DriftKind(
        "critical", "report", _TOLD, "the repository can't be read", pooled=False
    ),
}  # fmt: skip


class Drift(msgspec.Struct, frozen=True, omit_defaults=True):
    """One difference. ``key`` stays the same as long as the difference lasts.

    Attributes:
        wanted, found: the evidence: what git says, and what is observed.
        pool, node, job, attempt: subject, as far as there is one.
        remedy: state of its remediation, for people; empty if there is none.
        tries: number of attempts at remediation.
        given_up: the attempts have ended without success.
    """

    kind: str
    subject: str
    message: str
    severity: Severity
    action: Action
    first_seen: float
    wanted: str = ""
    found: str = ""
    pool: str = ""
    node: str = ""
    job: str = ""
    attempt: str = ""
    remedy: str = ""
    tries: int = 0
    given_up: bool = False

    @property
    def key(self) -> str:
        """``kind:subject``."""
        return f"{self.kind}:{self.subject}"


#: What a remedy does: ``tell``, ``evict``, ``retry`` and ``replace`` are the controller's own, the
#: others are orders that a node carries out.
RemedyVerb = Literal[
    "tell",
    "evict",
    "retry",
    "replace",
    "end-process",
    "restart-agent",
    "reset-gpu",
    "run-command",
    "reboot",
]
RemedyState = Literal["ordered", "done", "failed", "lost"]
#: Verbs that make a node well.
HEALING_VERBS = ("restart-agent", "reset-gpu", "run-command", "reboot")
#: Of them those for which nothing may run on the node.
IDLE_VERBS = ("reset-gpu", "run-command", "reboot")


class DriftRemedy(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt at remediation, remembered for a day so that attempts can be counted.

    Attributes:
        id: unique for ever: the agent carries out no id twice.
        cause: ``Drift.key`` of the difference.
        node: node that carries it out; empty for the controller.
        state: ``lost``: the node did not report the result in time.
        pid, started_at: process to end; with its start time, because process ids are reused.
        uuid: device that it concerns; devices: devices, by number.
        command, timeout_s: command to run, and its time limit.
    """

    id: str
    verb: str  # one of RemedyVerb; an older agent has to be able to read a newer one
    cause: str
    pool: str
    at: float
    node: str = ""
    state: RemedyState = "ordered"
    ended_at: float | None = None
    message: str = ""
    pid: int = 0
    started_at: float = 0.0
    uuid: str = ""
    devices: tuple[int, ...] = ()
    command: tuple[str, ...] = ()
    timeout_s: float = 0.0

    @property
    def open(self) -> bool:
        """True if the result is not known yet."""
        return self.state == "ordered"

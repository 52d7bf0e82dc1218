"""What there is to tell of jobs, nodes and drift after a cycle.

The outcome of a cycle and what was known before it come in, notices come out, each with what
channels choose by: the queue and owner of a job, the pool of a node. The revision in force is part
of each, so that the same news of one object is told once for as long as the same commit is in
force; what is no longer so (a node that is back) is told as the opposite, after which it may be
told again. Nodes go first: they are few, and what becomes of jobs often follows from them. How much
of it a channel gets is for ``delivery``, which sees all of it to know what is no longer so.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from reconciler.model import desired
from reconciler.model.policy import drift_kinds
from reconciler.model.state import events, outcome, records
from reconciler.model.state.states import NodeState
from reconciler.model.values import times
from reconciler.notifications import delivery, messages

#: What becomes of jobs, by the kind of event.
OF_JOBS: dict[str, messages.Reason] = {
    "JobSucceeded": "job-ended",
    "JobCancelled": "job-ended",
    "JobFailed": "job-failed",
    "JobTimedOut": "job-failed",
    "JobEvicted": "job-evicted",
}
OF_NODES: frozenset[messages.Reason] = frozenset({"node-lost", "node-back"})
OF_DRIFT: frozenset[messages.Reason] = frozenset({"drift", "drift-ended"})
LOST = (NodeState.UNKNOWN, NodeState.GONE)


class StateBefore(Protocol):
    """What the loop remembered before the cycle, as far as news are made of it."""

    @property
    def jobs(self) -> Mapping[str, records.JobRecord]:
        """Newest runs by name."""

    @property
    def nodes(self) -> Mapping[str, records.NodeRecord]:
        """Nodes by name."""

    @property
    def drift(self) -> Sequence[drift_kinds.Drift]:
        """Differences between git and what is."""


def tell(
    notifier: delivery.Notifier,
    decided: outcome.Outcome,
    known: StateBefore,
    wanted: desired.Desired,
) -> None:
    """Have those told who chose to hear of jobs, nodes or drift; returns at once."""
    channels = wanted.structure.settings.notifications
    chosen = messages.OF_CYCLES.intersection(itertools.chain(*(one.on for one in channels)))
    found = of_cycle(decided, known, wanted.status.jobs_revision or "", chosen)
    if found:
        notifier.tell(found, channels)


def of_cycle(
    decided: outcome.Outcome,
    known: StateBefore,
    revision: str,
    chosen: Collection[str] = messages.OF_CYCLES,
) -> list[messages.Notice]:
    """The news of a cycle, those of nodes first; ``known`` is as before it.

    Args:
        decided: what the cycle came to.
        known: as before it.
        revision: the commit in force.
        chosen: reasons that anybody wants to hear; their opposites come with them, and kinds of
            objects of which nobody wants to hear are not looked at.
    """
    found: list[messages.Notice] = []
    if not OF_NODES.isdisjoint(chosen):
        found += _of_nodes(decided, known, revision)
    if not OF_DRIFT.isdisjoint(chosen) and decided.drift is not known.drift:
        found += _of_drift(decided, known, revision)
    if not set(OF_JOBS.values()).isdisjoint(chosen):
        found += _of_jobs(decided, known, revision)
    return found


def _of_nodes(
    decided: outcome.Outcome, known: StateBefore, revision: str
) -> Iterator[messages.Notice]:
    for node in decided.nodes:
        before = known.nodes.get(node.name)
        was_lost = before is not None and before.state in LOST
        is_lost = node.state in LOST
        if before is None or was_lost == is_lost:
            continue
        yield messages.Notice(
            f"Node/{node.name}",
            "node-lost" if is_lost else "node-back",
            revision,
            node.message or f"it is {node.state.value}",
            times.format_time(decided.now),
            about={"pool": node.pool, "state": node.state.value},
        )


def _of_jobs(
    decided: outcome.Outcome, known: StateBefore, revision: str
) -> Iterator[messages.Notice]:
    jobs: dict[str, records.JobRecord] | None = None
    for event in decided.events:
        reason = OF_JOBS.get(event.kind)
        if reason is not None and event.job:
            if jobs is None:
                jobs = {job.name: job for job in decided.jobs}
            yield _of_job(event, reason, jobs.get(event.job) or known.jobs.get(event.job), revision)


def _of_job(
    event: events.Event,
    reason: messages.Reason,
    job: records.JobRecord | None,
    revision: str,
) -> messages.Notice:
    about = {"event": event.kind}
    if job is not None:
        about |= {
            "queue": job.spec.queue,
            "owner": job.spec.owner,
            "run": str(job.spec.run),
            "state": job.state.value,
        }
    message = event.message or event.kind.removeprefix("Job").lower()
    at = times.format_time(event.at)
    return messages.Notice(f"Job/{event.job}", reason, revision, message, at, about=about)


def _of_drift(
    decided: outcome.Outcome, known: StateBefore, revision: str
) -> Iterator[messages.Notice]:
    before = {one.key: one for one in known.drift if one.action != "ignore"}
    now = {one.key: one for one in decided.drift if one.action != "ignore"}
    at = times.format_time(decided.now)
    for key in [*sorted(now.keys() - before.keys()), *sorted(before.keys() - now.keys())]:
        one = now.get(key) or before[key]
        reason: messages.Reason = "drift" if key in now else "drift-ended"
        about = {"kind": one.kind, "severity": one.severity, "pool": one.pool, "node": one.node}
        shown = {name: value for name, value in about.items() if value}
        yield messages.Notice(f"Drift/{key}", reason, revision, one.message, at, about=shown)

"""News of jobs, nodes and drift after a cycle.

The outcome of a cycle and the state before it come in, notices come out, with the facts that
channels filter by. Each notice has the revision in force, so that the same news is sent once as
long as that commit is in force. An opposite (a node that is back) allows it to be sent again. Nodes
come first: they are few, and news of jobs often follows from them.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from reconciler.model import desired
from reconciler.model.policy import drift_kinds
from reconciler.model.state import events, outcome, records
from reconciler.model.state.states import NodeState
from reconciler.model.values import quantities, times
from reconciler.notifications import delivery, messages
from reconciler.notifications.personal import people_notifier

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
    """The part of the state before a cycle that news are made of."""

    @property
    def jobs(self) -> Mapping[str, records.JobRecord]:
        """Newest runs by name."""

    @property
    def nodes(self) -> Mapping[str, records.NodeRecord]:
        """Nodes by name."""

    @property
    def drift(self) -> Sequence[drift_kinds.Drift]:
        """Differences between git and the cluster."""


def tell(
    notifier: delivery.Notifier,
    decided: outcome.Outcome,
    known: StateBefore,
    wanted: desired.Desired,
) -> None:
    """Queue news of jobs, nodes and drift for the channels that want them; return at once."""
    channels = wanted.structure.settings.notifications
    chosen = messages.OF_CYCLES.intersection(itertools.chain(*(one.on for one in channels)))
    found = of_cycle(decided, known, wanted, chosen)
    if found:
        notifier.tell(found, channels)


def of_cycle(
    decided: outcome.Outcome,
    known: StateBefore,
    wanted: desired.Desired,
    chosen: Collection[str] = messages.OF_CYCLES,
) -> list[messages.Notice]:
    """Return the news of a cycle, those of nodes first.

    Args:
        decided: outcome of the cycle.
        known: state before it.
        wanted: what is in force.
        chosen: reasons that some channel wants. Their opposites are included; kinds of objects that
            no channel wants are skipped.
    """
    found: list[messages.Notice] = []
    revision = wanted.status.jobs_revision or ""
    if not OF_NODES.isdisjoint(chosen):
        found += _of_nodes(decided, known, revision)
    if not OF_DRIFT.isdisjoint(chosen) and decided.drift is not known.drift:
        found += _of_drift(decided, known, revision)
    if not set(OF_JOBS.values()).isdisjoint(chosen):
        found += of_jobs(decided, known, wanted)
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


def tell_all(
    notifier: delivery.Notifier,
    people: people_notifier.PeopleNotifier,
    decided: outcome.Outcome,
    known: StateBefore,
    wanted: desired.Desired,
) -> None:
    """Tell channels, and owners of jobs of those; return at once."""
    tell(notifier, decided, known, wanted)
    people.tell(list(of_jobs(decided, known, wanted)))


def of_jobs(
    decided: outcome.Outcome, known: StateBefore, wanted: desired.Desired
) -> Iterator[messages.Notice]:
    """Yield the news of jobs of a cycle."""
    revision, cluster = wanted.status.jobs_revision or "", wanted.structure.settings.name
    jobs: dict[str, records.JobRecord] | None = None
    for event in decided.events:
        reason = OF_JOBS.get(event.kind)
        if reason is not None and event.job:
            if jobs is None:
                jobs = {job.name: job for job in decided.jobs}
            job = jobs.get(event.job) or known.jobs.get(event.job)
            yield _of_job(event, reason, job, revision, cluster)


def _of_job(
    event: events.Event,
    reason: messages.Reason,
    job: records.JobRecord | None,
    revision: str,
    cluster: str,
) -> messages.Notice:
    about = {"event": event.kind}
    if cluster:
        about["cluster"] = cluster
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
        message = one.message
        if reason == "drift-ended":
            lasted = quantities.format_duration(max(0, round(decided.now - one.first_seen)))
            message = f"no longer, after {lasted}: {message}"
        about = {"kind": one.kind, "severity": one.severity, "pool": one.pool, "node": one.node}
        shown = {name: value for name, value in about.items() if value}
        yield messages.Notice(f"Drift/{key}", reason, revision, message, at, about=shown)

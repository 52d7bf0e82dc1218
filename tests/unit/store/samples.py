"""Records to store, small and of any number."""

from typing import Any

from reconciler.model import desired
from reconciler.model.state import events, outcome, records
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.state.states import AttemptState, EndReason, JobState, NodeState
from reconciler.model.values.resources import Resources

GROUP = desired.TaskGroup(name="main", count=1, resources=Resources(1000), command=("true",))


def job(
    name: str = "train",
    *,
    run: int = 1,
    state: JobState = JobState.PENDING,
    order: int = 1,
    elements: int | None = None,
    notes: dict[int, records.ElementNote] | None = None,
    queue: str = "default",
    owner: str = "alice@example.org",
    labels: dict[str, str] | None = None,
    reason_key: str = "",
) -> records.JobRecord:
    """A job's record."""
    spec = desired.Job(
        name=name,
        run=run,
        hash="0123456789abcdef",
        queue=queue,
        owner=owner,
        groups=(GROUP,),
        array_count=elements,
        labels=labels or {},
    )
    return records.JobRecord(
        spec=spec,
        state=state,
        elements=bytes(elements or 1),
        submitted_at=100.0,
        order=order,
        notes=notes or {},
        reason_key=reason_key,
    )


def attempt(
    of: records.JobRecord,
    element: int = 0,
    *,
    try_number: int = 1,
    node: str = "n1",
    state: AttemptState = AttemptState.ASSIGNED,
    exit_code: int | None = None,
    concluded: bool = False,
) -> records.AttemptRecord:
    """An attempt at one of a job's elements."""
    ended = state is AttemptState.ENDED
    return records.AttemptRecord(
        id=f"{of.key}.{element}.main.0.{try_number}",
        job=of.name,
        run=of.spec.run,
        job_key=of.key,
        element=element,
        group="main",
        index=0,
        try_number=try_number,
        node=node,
        boot_id="boot-1",
        resources=Resources(1000),
        state=state,
        assigned_at=101.0,
        devices=(0,),
        started_at=None if state is AttemptState.ASSIGNED else 102.0,
        ended_at=103.0 if ended else None,
        exit_code=exit_code,
        end_reason=EndReason.EXITED if ended else None,
        concluded=concluded,
    )


def node(name: str = "n1", *, state: NodeState = NodeState.READY) -> records.NodeRecord:
    """A node's record."""
    return records.NodeRecord(
        name=name,
        state=state,
        pool="cpu",
        boot_id="boot-1",
        incarnation="one",
        inventory=records.Inventory(
            hostname=name,
            capacity=Resources(8000, 2**34, 2000),
            gpus=(records.Gpu(0, "GPU-0", "H200"), records.Gpu(1, "GPU-1", "H200")),
        ),
        usage=records.NodeUsage(at=99.0, cpu_percent=12.5, memory_used_bytes=2**30),
        first_seen_at=90.0,
        last_report_at=99.0,
    )


def event(message: str, *, at: float = 100.0, job: str = "", node: str = "") -> events.Event:
    """Something that happened."""
    return events.Event(at=at, kind="Noted", message=message, job=job, node=node)


def reason(message: str = "nothing is free") -> Reason:
    """Why work waits."""
    return Reason(code=ReasonCode.INSUFFICIENT_RESOURCES, message=message)


def cycle(now: float = 100.0, **parts: Any) -> outcome.Outcome:
    """An outcome with these parts."""
    return outcome.Outcome(now=now, desired_generation=1, **parts)

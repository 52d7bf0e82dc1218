"""States of jobs, attempts and nodes, and the tables of allowed transitions.

``core`` changes a state only through :func:`check`, so that an illegal transition is an error that
names the object and its history instead of a silent wrong state.
"""

from enum import StrEnum


class JobState(StrEnum):
    """State of a job, and of each element of an array."""

    HELD = "Held"
    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    TIMED_OUT = "TimedOut"


class AttemptState(StrEnum):
    """State of one attempt at one task.

    ``Fetching``: its image or data is being fetched. ``Ready``: it waits for the other tasks of its
    gang. Both are shown as ``Starting``, with a phase.
    """

    ASSIGNED = "Assigned"
    FETCHING = "Fetching"
    READY = "Ready"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    UNKNOWN = "Unknown"
    ENDED = "Ended"


class NodeState(StrEnum):
    """State of a node: it takes work, or the reason in one word why it does not."""

    READY = "Ready"
    DRAINING = "Draining"
    DRAINED = "Drained"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"
    GONE = "Gone"


class EndReason(StrEnum):
    """Reason of an attempt's end; only with ``Exited`` is the exit status the task's own."""

    EXITED = "Exited"
    PREEMPTED = "Preempted"
    CANCELLED = "Cancelled"
    TIMED_OUT = "TimedOut"
    SUSPENDED = "Suspended"
    SIBLING_ENDED = "SiblingEnded"
    DRAINED = "Drained"
    LEASE_EXPIRED = "LeaseExpired"
    LOST = "Lost"
    NODE_LOST = "NodeLost"
    NODE_STOPPED = "NodeStopped"
    START_FAILED = "StartFailed"
    REFUSED = "Refused"
    CHECK_FAILED = "CheckFailed"
    STAGE_FAILED = "StageFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    DISK_LIMIT = "DiskLimit"


#: Phases of a start that are states of their own between controller and agent alone.
START_PHASES = frozenset({AttemptState.FETCHING, AttemptState.READY})

#: Element codes as stored in ``JobRecord.elements``: one byte an element.
ELEMENT_CODES: tuple[JobState, ...] = (
    JobState.PENDING,
    JobState.STARTING,
    JobState.RUNNING,
    JobState.SUCCEEDED,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.TIMED_OUT,
)
ELEMENT_CODE = {state: code for code, state in enumerate(ELEMENT_CODES)}

FINISHED_JOB_STATES = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT}
)
#: States of elements of an array, those first that people look for first.
ELEMENT_RANK: tuple[JobState, ...] = (
    *(JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELLED),
    *(JobState.RUNNING, JobState.STARTING, JobState.PENDING, JobState.HELD, JobState.SUCCEEDED),
)
#: A job in one of these has no run that has begun or ended.
WAITING_JOB_STATES = frozenset({JobState.HELD, JobState.PENDING})

_J = JobState
#: What may follow what in the life of a job and of an element. A job that waits as a whole has no
#: task anywhere, so that what starts of it is seen starting first.
JOB_TRANSITIONS: frozenset[tuple[JobState, JobState]] = frozenset(
    {
        (_J.HELD, _J.PENDING),
        (_J.HELD, _J.FAILED),
        (_J.HELD, _J.CANCELLED),
        (_J.HELD, _J.TIMED_OUT),
        (_J.PENDING, _J.HELD),
        (_J.PENDING, _J.STARTING),
        (_J.PENDING, _J.FAILED),
        (_J.PENDING, _J.CANCELLED),
        (_J.PENDING, _J.TIMED_OUT),
        (_J.STARTING, _J.PENDING),
        (_J.STARTING, _J.HELD),
        (_J.STARTING, _J.RUNNING),
        (_J.STARTING, _J.SUCCEEDED),
        (_J.STARTING, _J.FAILED),
        (_J.STARTING, _J.CANCELLED),
        (_J.STARTING, _J.TIMED_OUT),
        (_J.RUNNING, _J.STARTING),
        (_J.RUNNING, _J.PENDING),
        (_J.RUNNING, _J.HELD),
        (_J.RUNNING, _J.SUCCEEDED),
        (_J.RUNNING, _J.FAILED),
        (_J.RUNNING, _J.CANCELLED),
        (_J.RUNNING, _J.TIMED_OUT),
    }
)

_A = AttemptState
#: What may follow what in the life of an attempt. ``Ended`` is final.
ATTEMPT_TRANSITIONS: frozenset[tuple[AttemptState, AttemptState]] = frozenset(
    {
        (_A.ASSIGNED, _A.FETCHING),
        (_A.ASSIGNED, _A.READY),
        (_A.FETCHING, _A.READY),
        (_A.FETCHING, _A.STARTING),
        (_A.FETCHING, _A.RUNNING),
        (_A.FETCHING, _A.STOPPING),
        (_A.FETCHING, _A.UNKNOWN),
        (_A.FETCHING, _A.ENDED),
        (_A.READY, _A.FETCHING),
        (_A.READY, _A.STARTING),
        (_A.READY, _A.RUNNING),
        (_A.READY, _A.STOPPING),
        (_A.READY, _A.UNKNOWN),
        (_A.READY, _A.ENDED),
        (_A.STARTING, _A.FETCHING),
        (_A.STARTING, _A.READY),
        (_A.UNKNOWN, _A.FETCHING),
        (_A.UNKNOWN, _A.READY),
        (_A.ASSIGNED, _A.STARTING),
        (_A.ASSIGNED, _A.RUNNING),
        (_A.ASSIGNED, _A.STOPPING),
        (_A.ASSIGNED, _A.UNKNOWN),
        (_A.ASSIGNED, _A.ENDED),
        (_A.STARTING, _A.RUNNING),
        (_A.STARTING, _A.STOPPING),
        (_A.STARTING, _A.UNKNOWN),
        (_A.STARTING, _A.ENDED),
        (_A.RUNNING, _A.STOPPING),
        (_A.RUNNING, _A.UNKNOWN),
        (_A.RUNNING, _A.ENDED),
        (_A.STOPPING, _A.UNKNOWN),
        (_A.STOPPING, _A.ENDED),
        (_A.UNKNOWN, _A.STARTING),
        (_A.UNKNOWN, _A.RUNNING),
        (_A.UNKNOWN, _A.STOPPING),
        (_A.UNKNOWN, _A.ENDED),
    }
)

_N = NodeState
#: What may follow what in the life of a node; a node that is ``Gone`` may come back. One that has
#: been emptied, or given up, gets nothing new before it is ``Ready``: it can be draining again only
#: where a store from the past learns what runs there.
NODE_TRANSITIONS: frozenset[tuple[NodeState, NodeState]] = frozenset(
    {
        (_N.READY, _N.DRAINING),
        (_N.READY, _N.DRAINED),
        (_N.READY, _N.UNHEALTHY),
        (_N.READY, _N.UNKNOWN),
        (_N.READY, _N.GONE),
        (_N.DRAINING, _N.READY),
        (_N.DRAINING, _N.DRAINED),
        (_N.DRAINING, _N.UNHEALTHY),
        (_N.DRAINING, _N.UNKNOWN),
        (_N.DRAINING, _N.GONE),
        (_N.DRAINED, _N.READY),
        (_N.DRAINED, _N.DRAINING),
        (_N.DRAINED, _N.UNHEALTHY),
        (_N.DRAINED, _N.UNKNOWN),
        (_N.DRAINED, _N.GONE),
        (_N.UNHEALTHY, _N.READY),
        (_N.UNHEALTHY, _N.DRAINING),
        (_N.UNHEALTHY, _N.DRAINED),
        (_N.UNHEALTHY, _N.UNKNOWN),
        (_N.UNHEALTHY, _N.GONE),
        (_N.UNKNOWN, _N.READY),
        (_N.UNKNOWN, _N.DRAINING),
        (_N.UNKNOWN, _N.DRAINED),
        (_N.UNKNOWN, _N.UNHEALTHY),
        (_N.UNKNOWN, _N.GONE),
        (_N.GONE, _N.READY),
        (_N.GONE, _N.DRAINING),
        (_N.GONE, _N.DRAINED),
        (_N.GONE, _N.UNHEALTHY),
        (_N.GONE, _N.UNKNOWN),
    }
)


class InvalidTransitionError(RuntimeError):
    """A state change that no table allows, with the object's history."""

    def __init__(self, subject: str, before: str, after: str, story: tuple[str, ...]) -> None:
        self.subject = subject
        self.before = before
        self.after = after
        self.story = story
        lines = "".join(f"\n  {line}" for line in story) or "\n  (no earlier event is known)"
        super().__init__(f"{subject}: {before} may not become {after}; its story:{lines}")


def check(subject: str, before: StrEnum, after: StrEnum, story: tuple[str, ...] = ()) -> None:
    """Raise :class:`InvalidTransitionError` unless ``before`` may become ``after``.

    Staying in a state is always allowed.
    """
    if before is after:
        return
    table: frozenset[tuple[StrEnum, StrEnum]]
    if isinstance(before, JobState):
        table = JOB_TRANSITIONS
    elif isinstance(before, AttemptState):
        table = ATTEMPT_TRANSITIONS
    else:
        table = NODE_TRANSITIONS
    if (before, after) not in table:
        raise InvalidTransitionError(subject, before.value, after.value, story)

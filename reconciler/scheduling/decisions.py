"""What the scheduler returns: placements, evictions, and a true reason for all that waits."""

from dataclasses import dataclass, field

from reconciler.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class TaskPlacement:
    """One task goes to this node and gets these devices."""

    group: str
    index: int
    node: int
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """One element starts now, whole."""

    job: str
    element: int
    tasks: tuple[TaskPlacement, ...]


@dataclass(frozen=True, slots=True)
class Eviction:
    """One element has to leave so that ``for_job`` can start."""

    job: str
    element: int
    for_job: str
    why: str


@dataclass(frozen=True, slots=True)
class Decisions:
    """The result of one call.

    Attributes:
        placements: in the order decided.
        evictions: whole elements, none of which could be spared.
        reasons: key to reasons in order of precedence; one entry serves all claims of one
            queue and shape that wait for the same cause.
        reason_of: job to key, for every claim that has elements left waiting.
        promised: job to the number of its elements for which room is kept until what is leaving
            has left; given back as ``Claim.promised`` in the next cycle, it keeps their turn.
    """

    placements: tuple[Placement, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    reasons: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    reason_of: dict[str, str] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)

"""Block reasons: why a cycle starts no job of a group. ``ReasonExplainer`` formats them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from reconciler.model.state import pending_reasons
from reconciler.scheduling.quota import quota_ledger


class BlockKind(StrEnum):
    """The kinds of block reasons. Values are part of the keys of stored reasons."""

    SUSPENDED = "suspended"
    #: The queue is strict, and another job is first.
    STRICT = "strict"
    LIMIT = "limit"
    QUOTA = "quota"
    LENDING = "lending"
    NO_CAPACITY = "room"
    #: Capacity is nominated, and other work is stopping for it.
    EVICTIONS = "evictions"
    #: No capacity now, but a reservation in time.
    HAS_RESERVATION = "reserved"
    #: A start now would delay the reservation of another job.
    WOULD_DELAY = "kept"
    ARRAY = "array"
    #: It was not tried: waiting does not help.
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class BlockReason:
    """What stands in a claim's way.

    Attributes:
        kind: the kind.
        excess: the queue and amounts, for ``limit``, ``quota`` and ``lending``.
        queue: the queue that is suspended, or strict, or that of what can ``never`` start.
        ahead: whether other claims had started or been promised room before (``NO_CAPACITY``).
        subject: the claim itself, where the reason is its own, or whom it waits behind.
        stopping: elements that are being stopped for the claim.
        at: start of its reservation, or of the one that it would delay (``WOULD_DELAY``).
        until: start of its own reservation if its start would delay another and it has one.
        held_back: the cap that is not the array's own (``ARRAY``).
        shape: index of the shape in the pool that it is about; -1: that of the line.
        elsewhere: (shape, what stands in the way) in each other pool that the claim may go to.
    """

    kind: BlockKind
    excess: quota_ledger.QuotaExcess | None = None
    queue: int = -1
    ahead: bool = False
    subject: str = ""
    stopping: tuple[str, ...] = ()
    at: float = 0.0
    until: float | None = None
    held_back: pending_reasons.Reason | None = None
    shape: int = -1
    elsewhere: "tuple[tuple[int, BlockReason], ...]" = ()

    @property
    def has_room(self) -> bool:
        """Whether it has room reserved in time."""
        return self.kind == BlockKind.HAS_RESERVATION or self.until is not None

    def key(self) -> tuple[str, ...]:
        """What tells it from other causes of one shape, in words that last."""
        found = [self.kind.value]
        if self.queue >= 0:
            found.append(str(self.queue))
        if self.excess is not None:
            found.append(str(self.excess.queue))
            if self.excess.resource >= len(quota_ledger.RESOURCES):
                found.append(f"of-{self.excess.resource}")
        for shape, cause in self.elsewhere:
            found.append(f"or-{shape}-{'-'.join(cause.key())}")
        return tuple(found)


def in_pools(found: Sequence[tuple[int, BlockReason]]) -> BlockReason:
    """One cause of those in all pools that a claim was tried in, by shape.

    Where it has room in time, or waits for room, that leads: it tells what else is tried for it.
    """
    ranked = sorted(
        found,
        key=lambda one: (
            not one[1].has_room,
            one[1].kind not in {BlockKind.NO_CAPACITY, BlockKind.WOULD_DELAY},
        ),
    )
    (shape, first), *others = ranked
    return replace(first, shape=shape, elsewhere=tuple(others))

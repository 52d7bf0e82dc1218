"""What stands in a claim's way, as a cycle notes it; ``explain`` puts it into words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reconciler.model.state import pending_reasons
from reconciler.scheduling.quota import quota_ledger


@dataclass(frozen=True, slots=True)
class BlockReason:
    """What stands in a claim's way.

    Attributes:
        kind: ``suspended``, ``strict``, ``limit``, ``quota``, ``lending``, ``room``, ``evictions``,
            ``reserved``, ``kept`` (its start would delay a reservation), ``array``, or ``never``
            (it was not tried: what no waiting ends).
        excess: the queue and amounts, for ``limit``, ``quota`` and ``lending``.
        queue: the queue that is suspended, or strict, or that of what can ``never`` start.
        ahead: whether other claims had started or been promised room before (``room``).
        subject: the claim itself, where the reason is its own, or whom it waits behind.
        stopping: elements that are being stopped for the claim.
        at: start of its reservation, or of the one that it would delay (``kept``).
        until: start of its own reservation where another keeps it out (``kept``), if it has one.
        held_back: the cap that is not the array's own (``array``).
        shape: index of the shape in the pool that it is about; -1: that of the line.
        elsewhere: (shape, what stands in the way) in each other pool that the claim may go to.
    """

    kind: str
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
        return self.kind == "reserved" or self.until is not None

    def key(self) -> tuple[str, ...]:
        """What tells it from other causes of one shape, in words that last."""
        found = [self.kind]
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
        found, key=lambda one: (not one[1].has_room, one[1].kind not in {"room", "kept"})
    )
    (shape, first), *others = ranked
    return replace(first, shape=shape, elsewhere=tuple(others))

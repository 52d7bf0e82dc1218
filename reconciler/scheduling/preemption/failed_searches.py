"""Searches for victims that find nobody: those made answer larger asks of the same kind at once.

Asks come in with what else a search depends on; whether one like it failed goes out. Nothing found
within a cycle makes a search succeed that failed, except as far as ``clear`` is called for it.
"""

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.nodes import oversized
from reconciler.scheduling.placement import request
from reconciler.scheduling.quota import quota_ledger

#: Failed asks of one key that are remembered.
FAILURES_MAX = 256


def measured(ledger: quota_ledger.QuotaLedger, ask: request.PlacementRequest) -> tuple[bool, ...]:
    """Of which resources an ask wants some that a queue on its path measures.

    Guarantees are measured by what is asked for of what they name (``QuotaLedger.owed``): who
    asks for nothing of that is owed nothing, and tells nothing about who asks for some.
    """
    rationed, path = ledger.rationed, ledger.paths[ask.queue]
    return tuple(
        ask.amounts[resource] > 0 and any(rationed[member][resource] for member in path)
        for resource in ledger.resources
    )


class FailedSearches:
    """The failed searches of one cycle."""

    def __init__(self, situation: snapshots.Snapshot) -> None:
        self.situation = situation
        self._oversized = oversized.OversizedShapes(situation)
        self._sizes: dict[object, list[tuple[int, ...]]] = {}
        #: Numbers of what shapes have in common, by shape.
        self._kinds: dict[int, int] = {}
        self._numbers: dict[object, int] = {}

    def clear(self) -> None:
        """Searches that failed may find somebody now."""
        self._sizes.clear()

    def fits_nowhere(self, ask: request.PlacementRequest) -> bool:
        """Return True if a new element is larger than any node, so that no search need be made."""
        return not ask.missing and self._oversized.has(ask.shape)

    def kind(self, ask: request.PlacementRequest) -> int:
        """What of their shapes asks have in common of which the larger fails with the smaller."""
        known = self._kinds.get(ask.shape)
        if known is None:
            shape = self.situation.shapes[ask.shape]
            group = shape.groups[0]
            nodes = shape.eligible
            if group.devices and group.share < snapshots.WHOLE:
                # a whole device may be of a node that shares none
                nodes = nodes & self.situation.nodes.shareable
            kind = (
                nodes.tobytes(),
                (shape.exclusive, shape.required_level, group.required_level),
                (group.slice_size, group.slice_level, group.per_node),
                (group.devices > 0, group.share_bytes, group.profile),
            )
            known = self._kinds[ask.shape] = self._numbers.setdefault(kind, len(self._numbers))
        return known

    def has(self, key: object, ask: request.PlacementRequest) -> bool:
        """Return True if a search of the same key failed for no more than is asked for."""
        if not self._is_comparable(ask):
            return False
        size = self._size(ask)
        known = self._sizes.get(key, ())
        return any(all(a >= b for a, b in zip(size, old, strict=True)) for old in known)

    def note(self, key: object, ask: request.PlacementRequest) -> None:
        """A search failed."""
        if not self._is_comparable(ask):
            return
        known = self._sizes.setdefault(key, [])
        if len(known) < FAILURES_MAX:
            known.append(self._size(ask))

    def _size(self, ask: request.PlacementRequest) -> tuple[int, ...]:
        group = self.situation.shapes[ask.shape].groups[0]
        return (*group.amounts, group.devices, group.share, group.least)

    def _is_comparable(self, ask: request.PlacementRequest) -> bool:
        shape = self.situation.shapes[ask.shape]
        return len(shape.groups) == 1 and not shape.affinities and not ask.missing

"""Elastic gangs below their minimum: what they lack, and who leaves because it is not to be had."""

from reconciler.scheduling import asking
from reconciler.scheduling import snapshot as snapshots
from reconciler.scheduling.decisions import Eviction, Placement


def lacking(
    shape: snapshots.Shape,
    present: asking.Present,
    missing: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, int], ...]:
    """Of the missing tasks those without which a gang is below its minimum."""
    have = [0] * len(shape.groups)
    for task in present:
        have[task.group] += 1
    found = []
    for group, index in missing:
        if have[group] < shape.groups[group].least:
            have[group] += 1
            found.append((group, index))
    return tuple(found)


def broken_up(
    situation: snapshots.Snapshot, placements: list[Placement], promised: dict[str, int]
) -> list[Eviction]:
    """Gangs that are below their minimum and got nothing leave."""
    started = {(p.job, p.element) for p in placements}
    found = []
    for holding in situation.holdings:
        if holding.leaving or holding.doubtful or not holding.least:
            continue
        if holding.protected_until > situation.now:
            continue
        have = [0] * len(holding.least)
        for task in holding.tasks:
            have[task.group] += 1
        short = any(h < least for h, least in zip(have, holding.least, strict=True))
        kept = (holding.job, holding.element) in started or holding.job in promised
        if short and not kept:
            found.append(
                Eviction(
                    holding.job,
                    holding.element,
                    "",
                    "fewer of its tasks run than it needs, and there is no room for the rest",
                    "stale-gang",
                )
            )
    return found

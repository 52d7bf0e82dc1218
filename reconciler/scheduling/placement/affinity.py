"""Where other work lets an element go: nearness and distance to what label selectors match."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconciler.scheduling.inputs import snapshots
from reconciler.scheduling.inputs.snapshots import NO_LEVEL
from reconciler.scheduling.nodes.topology import TopologyDomains


@dataclass(frozen=True, slots=True)
class AffinityRules:
    """What affinities come to, with what is present now.

    Levels are those of ``TopologyDomains``: a node itself is the level ``depth``.

    Attributes:
        allowed: (n,) nodes that the required ones leave; None: all.
        scores: (n,) sum of the weights of preferred ones; None: indifferent.
        apart: levels at whose domains two tasks of the element may not be together.
        rather_apart: levels at which they should not be.
        together: level in one domain of which the element's tasks have to be.
        rather_together: level in one domain of which they should be.
    """

    allowed: snapshots.Mask | None = None
    scores: NDArray[np.float64] | None = None
    apart: tuple[int, ...] = ()
    rather_apart: tuple[int, ...] = ()
    together: int = NO_LEVEL
    rather_together: int = NO_LEVEL


NO_RULES = AffinityRules()


def reach(present: snapshots.Mask, topology: TopologyDomains, level: int) -> snapshots.Mask:
    """(n,) nodes that share a domain with a node where something is present."""
    domains = topology.domains[:, level]
    touched = domains[present & (domains >= 0)]
    found: snapshots.Mask = np.isin(domains, touched)
    return found


def away_from(
    shape: snapshots.Shape, other: snapshots.Shape, nodes: Sequence[int], topology: TopologyDomains
) -> snapshots.Mask | None:
    """(n,) where one of two may not be while the other is on some nodes; None: anywhere.

    It does not matter which of the two has to be apart from what the other is.
    """
    levels = {
        affinity.level
        for one, beside in ((shape, other), (other, shape))
        for affinity in one.affinities
        if affinity.apart and not affinity.weight and affinity.selector in beside.matches
    }
    if not levels:
        return None
    present = np.zeros(len(shape.eligible), dtype=np.bool_)
    present[list(nodes)] = True
    found: snapshots.Mask = np.zeros(len(present), dtype=np.bool_)
    for level in levels:
        found |= reach(present, topology, topology.depth if level == NO_LEVEL else level)
    return found


def has_company(shape: snapshots.Shape, present: Callable[[], Collection[int]]) -> bool:
    """Whether something is there of all other work that a shape has to be near to.

    ``present``: the selectors that match something; asked for only where that matters.
    """
    wanted = [
        one.selector
        for one in shape.affinities
        if not (one.apart or one.weight or one.selector in shape.matches)
    ]
    return not wanted or set(wanted).issubset(present())


def rules(
    shape: snapshots.Shape,
    presence: snapshots.Amounts | None,
    topology: TopologyDomains,
    *,
    idle: bool = False,
) -> AffinityRules:
    """The rules of a shape's affinities.

    The first of work that has to be near its own kind may go anywhere, and the rest of its
    element with it. ``idle``: the question is about an idle cluster, where it is not known which
    work will be present, so that nearness to other work refuses nothing.
    """
    if not shape.affinities or presence is None:
        return NO_RULES
    count = len(shape.eligible)
    allowed = np.ones(count, dtype=np.bool_)
    scores = np.zeros(count)
    levels: dict[str, list[int]] = {"apart": [], "rather": [], "together": [], "should": []}
    for affinity in shape.affinities:
        level = topology.depth if affinity.level == NO_LEVEL else affinity.level
        present = presence[affinity.selector] > 0
        near = reach(present, topology, level)
        own = affinity.selector in shape.matches
        if affinity.weight:
            scores += near * (-affinity.weight if affinity.apart else affinity.weight)
            if own:
                levels["rather" if affinity.apart else "should"].append(level)
        elif affinity.apart:
            allowed &= ~near
            if own:
                levels["apart"].append(level)
        elif present.any():
            allowed &= near
        elif own:
            levels["together"].append(level)
        elif not idle:
            allowed[:] = False
    return AffinityRules(
        None if allowed.all() else allowed,
        scores if scores.any() else None,
        tuple(sorted(set(levels["apart"]), reverse=True)),
        tuple(sorted(set(levels["rather"]), reverse=True)),
        max(levels["together"], default=NO_LEVEL),
        max(levels["should"], default=NO_LEVEL),
    )

"""Shortens a failing story: it drops steps while the same invariant breaks.

Source: delta debugging (Zeller and Hildebrandt, IEEE TSE 28(2), 2002): drop large parts first, then
smaller ones.
"""

import msgspec

from tests.simulation import plans, telling

#: The most stories that are told to shorten one.
TELLINGS_MAX = 250


def broken(plan: plans.Plan) -> telling.BrokenError | None:
    """Return the invariant that a story breaks, if any."""
    try:
        telling.tell(plan)
    except telling.BrokenError as error:
        return error
    return None


def shrink(plan: plans.Plan, checker: str, tellings_max: int = TELLINGS_MAX) -> plans.Plan:
    """Return a story with fewer steps that breaks the same invariant."""
    left = tellings_max
    for quiet in ("lose", "duplicate", "delay", "pace_s"):
        plan, left = _try(msgspec.structs.replace(plan, **{quiet: 0.0}), plan, checker, left)
    size = max(1, len(plan.steps) // 2)
    while left > 0:
        shorter, at = plan, 0
        while at < len(shorter.steps) and left > 0:
            steps = shorter.steps[:at] + shorter.steps[at + size :]
            after, left = _try(
                msgspec.structs.replace(shorter, steps=steps), shorter, checker, left
            )
            at += 0 if after is not shorter else size
            shorter = after
        if size == 1 and len(shorter.steps) == len(plan.steps):
            break
        plan, size = shorter, max(1, size // 2)
    return plan


def _try(
    candidate: plans.Plan, plan: plans.Plan, checker: str, left: int
) -> tuple[plans.Plan, int]:
    if left <= 0:
        return plan, 0
    error = broken(candidate)
    return (candidate if error is not None and error.checker == checker else plan), left - 1


def text(plan: plans.Plan) -> str:
    """Return a story as readable text."""
    scheduling = plan.structure.settings.scheduling
    lines = [
        f"seed {plan.seed}: {len(plan.steps)} steps",
        f"messages: {plan.lose:g} lost, {plan.duplicate:g} doubled, {plan.delay:g} delayed",
        f"{plan.pace_s:g} s from cycle to cycle at the least",
        f"{scheduling}",
        *(
            f"{pool.name}: {pool.nodes} {pool.node_resources}"
            for pool in plan.structure.pools.values()
        ),
        *(f"{one}" for one in plan.structure.quotas.values()),
        *(f"{one}" for one in plan.structure.reservations.values()),
        *(step.text() for step in plan.steps),
    ]
    return "\n".join(f"  {line}" for line in lines)

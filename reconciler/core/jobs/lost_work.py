"""Estimates how much work is lost when a job's tasks have to stop.

It counts from the newest checkpoint known to be complete, as the scheduler does for evictions. A
job that says it checkpoints, but of which none is known, loses nothing if it is asked to save
before it stops. Work that ends for good has no time to save.
"""

from collections.abc import Iterable

from reconciler.model import desired
from reconciler.model.state import records


def gpu_seconds(
    spec: desired.Job | None,
    attempts: Iterable[records.AttemptRecord],
    now: float,
    *,
    is_told: bool = True,
) -> float:
    """Return the GPU-seconds of a job's attempts that would have to be done again.

    Args:
        spec: of the job; None: unknown.
        attempts: those that stop, of any of its elements.
        now: seconds since the epoch. Later checkpoints are not known, so this is the most.
        is_told: True if the tasks are asked to save and have time to.
    """
    elements: dict[int, list[records.AttemptRecord]] = {}
    for attempt in attempts:
        elements.setdefault(attempt.element, []).append(attempt)
    saves = spec is not None and spec.checkpoint is not None
    return sum(_of_element(each, now, saves=saves and is_told) for each in elements.values())


def _of_element(attempts: list[records.AttemptRecord], now: float, *, saves: bool) -> float:
    # the first task of a gang saves for all
    saved = [attempt.saved.at for attempt in attempts if attempt.saved is not None]
    if saves and not saved:
        return 0.0
    since = max(saved, default=0.0)
    return sum(
        attempt.resources.gpu_milli / 1000 * max(0.0, now - max(attempt.started_at, since))
        for attempt in attempts
        if attempt.started_at is not None
    )

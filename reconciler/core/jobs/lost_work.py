"""How much work is lost when a job's tasks are made to leave, by what is known to be saved.

Counted is from the newest checkpoint that is known to be whole, as the scheduler counts what an
eviction costs. Work that says that it checkpoints, and of which none is known, is taken at its
word where it is told to save before it leaves; what is ended for good has no time for that.
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
    """GPU-seconds of a job's attempts that would have to be done again.

    Args:
        spec: of the job; None: it is not known.
        attempts: those that leave, of any of its elements.
        now: seconds since the epoch; what may be saved until then is not known, so it is the most.
        is_told: whether they are told to save, and have time to.
    """
    elements: dict[int, list[records.AttemptRecord]] = {}
    for attempt in attempts:
        elements.setdefault(attempt.element, []).append(attempt)
    saves = spec is not None and spec.checkpoint is not None
    return sum(_of_element(each, now, saves=saves and is_told) for each in elements.values())


def _of_element(attempts: list[records.AttemptRecord], now: float, *, saves: bool) -> float:
    # the first task of a gang speaks for all
    saved = [attempt.saved.at for attempt in attempts if attempt.saved is not None]
    if saves and not saved:
        return 0.0
    since = max(saved, default=0.0)
    return sum(
        attempt.resources.gpu_milli / 1000 * max(0.0, now - max(attempt.started_at, since))
        for attempt in attempts
        if attempt.started_at is not None
    )

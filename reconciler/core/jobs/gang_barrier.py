"""Releases gangs whose tasks wait until all of them have fetched their image.

A node holds such a task and reports it as ``Ready`` once its image is there. When all tasks of the
gang are ready, each is released. This follows from the states of attempts alone, so it survives a
restart.
"""

from reconciler.core import cycle_attempts
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState


def release(
    spec: desired.Job,
    attempts: list[records.AttemptRecord],
    all_attempts: cycle_attempts.CycleAttempts,
) -> None:
    """Release a gang whose last task has become ready in this cycle."""
    if not spec.waits_for_images or any(one.lacks_image for one in attempts):
        return
    ready = [one for one in attempts if one.state is AttemptState.READY and one.stop is None]
    if any(one.id in all_attempts.renewed for one in ready):
        for one in ready:
            all_attempts.tell_again(one)

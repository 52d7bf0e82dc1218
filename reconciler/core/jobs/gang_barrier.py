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
    """Release the ready tasks of a gang if something became of one in this cycle, and none lacks
    anything.

    The last one need not be told of as ready: a node that reports all it has tells of a task
    before its first step as starting.
    """
    if not spec.waits_for_images or any(one.lacks_image for one in attempts):
        return
    if any(one.id in all_attempts.renewed for one in attempts):
        for one in attempts:
            if one.state is AttemptState.READY and one.stop is None:
                all_attempts.tell_again(one)

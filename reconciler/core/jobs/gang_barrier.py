"""Releases gangs whose tasks wait until all of them have fetched their image.

A node holds such a task and reports it as ``Ready`` once its image is there. When all tasks of the
gang are ready, each is released. This follows from the states of attempts alone, so it survives a
restart.
"""

from reconciler.core import cycle_context
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState


def release(
    context: cycle_context.CycleContext, spec: desired.Job, attempts: list[records.AttemptRecord]
) -> None:
    """Release a gang whose last task has become ready in this cycle."""
    if not spec.waits_for_images or any(one.lacks_image for one in attempts):
        return
    ready = [one for one in attempts if one.state is AttemptState.READY and one.stop is None]
    if any(one.id in context.attempts.renewed for one in ready):
        for one in ready:
            context.actions.append(outcome.StartAttempt(attempt=one.id, node=one.node))

"""Gangs whose images are fetched before any task starts: when all may go.

A task of such a gang is sent to its node with the word that it is to hold. It says that it is
``Ready`` when its image is there; when all of its gang are, each is told to go. It follows from the
states of attempts alone, so that a controller that begins knows it too.
"""

from reconciler.core import cycle_context
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState


def release(
    context: cycle_context.CycleContext, spec: desired.Job, attempts: list[records.AttemptRecord]
) -> None:
    """Have a gang go whose last task has become ready in this cycle."""
    if not spec.waits_for_images or any(one.lacks_image for one in attempts):
        return
    ready = [one for one in attempts if one.state is AttemptState.READY and one.stop is None]
    if any(one.id in context.attempts for one in ready):
        for one in ready:
            context.actions.append(outcome.StartAttempt(attempt=one.id, node=one.node))

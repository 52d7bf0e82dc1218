"""The node's metrics page, rendered ahead of time, so that nothing is made while a client waits.

It is rendered every few seconds if it was read in the last ten minutes. Only the first client after
a pause waits for it. A page that is outdated because of an error is never returned.
"""

import gzip
import threading
import time
from collections.abc import Callable

import msgspec

from agents import reports
from reconciler.model.metrics import node_series
from reconciler.model.observed import task_reports
from reconciler.model.state import records
from reconciler.model.state.states import NodeState
from reconciler.model.values import resources

#: Time between two pages.
EVERY_S = 5.0
#: Age of a page that may still be returned.
FRESH_S = 20.0
#: How long the page is kept up to date after it was read.
WANTED_S = 600.0
#: Fast compression: a page still shrinks to a tenth.
_LEVEL = 1
NOT_YET = "the controller has not told this node its pool and tasks yet"


def render(now: reports.NodeSnapshot) -> bytes:
    """Return the page for a snapshot. The controller, not the node, knows the node's state."""
    record = records.NodeRecord(
        name=now.node,
        state=NodeState.UNKNOWN,
        pool=now.pool,
        inventory=now.inventory,
        usage=now.usage,
        last_report_at=now.reported_at,
    )
    words = {name: task_reports.bounded(text) for name, text in now.words.items()}
    attempts = [attempt_of(now, attempt) for attempt in now.attempts]
    return node_series.render_node(record, attempts, now.gpu_usage, words, now.uses, judged=False)


def attempt_of(now: reports.NodeSnapshot, given: reports.AssignedAttempt) -> records.AttemptRecord:
    """Return an attempt as its controller has it, as far as the node knows."""
    assignment, template, report = given.assignment, given.template, given.report
    return records.AttemptRecord(
        id=assignment.attempt,
        job=template.job,
        run=template.run,
        job_key="",
        element=assignment.element,
        group=template.group,
        index=assignment.index,
        try_number=assignment.try_number,
        node=now.node,
        boot_id=now.boot_id,
        resources=resources.Resources(
            template.cpu_milli,
            template.memory_bytes,
            assignment.share_milli * len(assignment.devices),
        ),
        state=report.state,
        assigned_at=0.0,
        devices=assignment.devices,
        rank=assignment.rank,
        started_at=report.started_at,
        saved=report.checkpoint,
        saves_every_s=assignment.saves_every_s,
    )


class Ready(msgspec.Struct, frozen=True):
    """A page that may be returned, also compressed, or the reason that there is none."""

    page: bytes = b""
    packed: bytes = b""
    problem: str = ""


class NodePage:
    """The page of one node. One thread calls ``turn``, any thread the rest.

    Args:
        now: returns a snapshot; None if nothing is known yet.
        leaving: set when the agent stops.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        now: Callable[[], reports.NodeSnapshot | None],
        leaving: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._leaving = leaving
        self._clock = clock
        self._asked = threading.Event()
        self._wanted_at: float | None = None
        self._ready = Ready()
        self._ready_at: float | None = None
        #: Called when there is a page, or a reason why there is none.
        self.on_ready: Callable[[], None] = lambda: None

    def ask(self) -> Ready | None:
        """Return the page; None if it is being rendered."""
        now = self._clock()
        self._wanted_at = now
        self._asked.set()
        if self._ready_at is None or now - self._ready_at > FRESH_S:
            return None
        return self._ready

    def make_if_wanted(self) -> bool:
        """Render the page if it is read. Return True if it is."""
        self._asked.clear()  # first, so that later requests are not missed
        wanted_at = self._wanted_at
        if wanted_at is None or self._clock() - wanted_at > WANTED_S:
            return False
        began, now = self._clock(), self._now()
        if now is None:
            self._ready = Ready(problem=NOT_YET)
        else:
            page = render(now)
            self._ready = Ready(page, gzip.compress(page, _LEVEL, mtime=0))
        self._ready_at = began
        self.on_ready()
        return True

    def turn(self) -> None:
        """Render the page and wait until the next is due. Called again and again."""
        if self.make_if_wanted():
            self._leaving.wait(EVERY_S)
        else:
            # check now and then if the agent stops
            self._asked.wait(EVERY_S)

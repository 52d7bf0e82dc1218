"""Sends the server the loop's state and metrics after each cycle."""

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from reconciler import metrics
from reconciler.controller import loop_inbox, server_link
from reconciler.controller.quarantine import internal_errors
from reconciler.core import observed_state
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import adoption_state
from reconciler.store import sql_store


class NoticeCounts(Protocol):
    """A count of sent and of unsendable notices and git notes."""

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of notices by channel and result."""
        ...

    def untold(self) -> tuple[loop_messages.Untold, ...]:
        """Return the channels that can't be reached now."""
        ...


class NoNotices:
    """An empty count, for a controller without channels."""

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return no counts."""
        return {}

    def untold(self) -> tuple[loop_messages.Untold, ...]:
        """Return no channels."""
        return ()


class PublishedSources(NamedTuple):
    """The places that published figures come from.

    Attributes:
        counters: totals of the loop.
        led: the store.
        notice_counts: counts notices to people, and the channels that can't be reached.
        clock: seconds since the epoch.
    """

    counters: metrics.Counters
    led: sql_store.LedStore
    notice_counts: NoticeCounts
    clock: Callable[[], float]


class MetricsPage:
    """The metrics page of the loop.

    Args:
        sources: of its figures.
        internal_errors: suppresses errors while the page is rendered.
        state_folder: its disk is measured.
    """

    def __init__(
        self,
        sources: PublishedSources,
        internal_errors: internal_errors.InternalErrors,
        state_folder: Path,
    ) -> None:
        self._sources = sources
        self._internal_errors = internal_errors
        self._state_folder = state_folder
        self._rendered = b""

    def render(
        self,
        desired_state: desired.Desired,
        state: observed_state.ObservedState,
    ) -> bytes:
        """Return the page, or the previous one if rendering fails. An alert watches its age."""
        sources = self._sources
        store = sources.led.store.reader
        with self._internal_errors.suppress("metrics"):
            self._rendered = metrics.render_cluster(
                counters=sources.counters,
                memory=state,
                wanted=desired_state,
                epoch=sources.led.epoch,
                now=sources.clock(),
                disk=metrics.disk_of(self._state_folder, store.path, store.log_path),
                told=sources.notice_counts.counts(),
            )
        return self._rendered


class Publisher:
    """A sender of the loop's state and of the metrics page, which it renders when that is due.

    Args:
        sources: of its figures.
        server: the connection to the server process.
        inbox: has the looks at the repository that are to be counted.
        page: the metrics page.
    """

    def __init__(
        self,
        sources: PublishedSources,
        server: server_link.LinkServer,
        inbox: loop_inbox.Inbox,
        page: MetricsPage,
    ) -> None:
        self._sources = sources
        self._server = server
        self._inbox = inbox
        self._page = page
        self._timer = PageTimer()

    def wait_s(self) -> float:
        """Return how many seconds the last page stays valid; 0 or less if a new one is due."""
        return self._timer.wait_s()

    def publish(
        self,
        desired_state: desired.Desired | None,
        state: observed_state.ObservedState,
        *,
        cycle: int,
        adopting: adoption_state.AdoptionState,
        anew: bool = False,
    ) -> None:
        """Send the loop's state, with the page if it is due.

        Args:
            desired_state: in force.
            state: records as of the last outcome.
            cycle: number of the last commit.
            adopting: what waits for adoption, and if another controller leads.
            anew: True if this server has seen no page yet.
        """
        if desired_state is None or not self._server.connected or anew:
            self._timer.forget()
        if not self._server.connected:
            return
        page: bytes | None = b""
        if desired_state is not None:
            for look in self._inbox.take_looks():
                self._sources.counters.look(look)
            page = self._timer.render_if_due(
                functools.partial(self._page.render, desired_state, state)
            )
        elif not anew:
            return
        settings = desired_state.structure.settings if desired_state else desired.ClusterSettings()
        leases = [settings.lease_s, settings.node_silence_s]
        self._server.send(
            loop_messages.Published(
                epoch=self._sources.led.epoch,
                cycle=cycle,
                at=self._sources.clock(),
                ready=desired_state is not None,
                poll_s=max(0.5, min(30.0, min(leases) / 3)),
                metrics=page,
                revision=desired_state.status.jobs_revision if desired_state else None,
                events=self._sources.led.store.last_event_sequence,
                adopting=adopting.pending,
                blocked=adopting.blocked,
                untold=self._sources.notice_counts.untold(),
            )
        )


#: The page is rendered again after so long without a cycle, to show that the loop is alive.
RENDER_EVERY_S = 30.0
#: A page that takes more CPU time than this is rendered so rarely that rendering takes at most one
#: part in so many of the time.
CPU_S_MIN = 0.004
PARTS = 20


class PageTimer:
    """A timer for the page; ``clock`` and ``cpu_clock`` count seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._rendered_at: float | None = None
        self._cpu_s = 0.0
        self._outdated = False

    def wait_s(self) -> float:
        """Return how many seconds the last page stays valid; 0 or less if a new one is due."""
        if self._rendered_at is None:
            return RENDER_EVERY_S if not self._outdated else 0.0
        every_s = RENDER_EVERY_S
        if self._outdated:
            every_s = min(every_s, self._cpu_s * PARTS if self._cpu_s > CPU_S_MIN else 0.0)
        return self._rendered_at + every_s - self._clock()

    def render_if_due(self, render: Callable[[], bytes]) -> bytes | None:
        """Return a new page if it is due after a possible change, otherwise None."""
        self._outdated = True
        if self.wait_s() > 0:
            return None
        began_s = self._cpu_clock()
        page = render()
        self._cpu_s = self._cpu_clock() - began_s
        self._rendered_at = self._clock()
        self._outdated = False
        return page

    def forget(self) -> None:
        """Render a page at the next call, because nobody has one; none is due before."""
        self._rendered_at = None
        self._outdated = False

"""When the cluster's page of metrics is rendered: after each cycle, unless that costs too much.

Nothing is computed at a scrape, so the loop renders, and a large cluster's page takes it many
milliseconds. It then renders so seldom that this takes a small part of its time, and once more when
cycles have stopped, so that what was published last is how things stand.
"""

import time
from collections.abc import Callable

#: The page is rendered anew after so long without a cycle, so that it tells that the loop lives.
RENDER_EVERY_S = 30.0
#: A page that takes more of the processor than this is rendered so seldom that rendering takes at
#: most one part in so many of the time.
CPU_S_MIN = 0.004
PARTS = 20


class Page:
    """Knows when the page is due; ``clock`` and ``cpu_clock`` count seconds."""

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
        """How long what was rendered last may stand; 0 or less: a page is due."""
        if self._rendered_at is None:
            return RENDER_EVERY_S if not self._outdated else 0.0
        every_s = RENDER_EVERY_S
        if self._outdated:
            every_s = min(every_s, self._cpu_s * PARTS if self._cpu_s > CPU_S_MIN else 0.0)
        return self._rendered_at + every_s - self._clock()

    def render_if_due(self, render: Callable[[], bytes]) -> bytes | None:
        """The page, when it is due after something may have changed; None: the last one stands."""
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
        """Nobody has a page: the next call renders one, and until then none is due."""
        self._rendered_at = None
        self._outdated = False

"""Prometheus pages of nodes, rendered as reports come: a scrape returns a page that exists already.

A report or a message of the loop makes a page outdated; a background task renders it again in a
thread, compressed. Only pages that somebody reads are rendered, each at most every ``EVERY_S``, and
all together in at most ``PART`` of the task's time; then pages get older, as their timestamps show.
"""

import asyncio
import contextlib
import gzip
import logging
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from reconciler.store import StoreError

_LOG = logging.getLogger(__name__)

#: The least time between two pages of one node.
EVERY_S = 5.0
#: How often a silent node's page is rendered again, because its state may have changed.
SILENT_S = 30.0
#: How long a page is kept up to date after it was read, or listed as something to read.
WANTED_S = 600.0
#: The part of its time that the task spends on making pages, at the most.
PART = 0.25
#: How many are made before the next look at what is due.
BATCH = 8
#: The longest time between two looks.
LOOK_EVERY_S = 0.25
#: How long a reader waits for a missing page, and the most such pages at a time.
WAIT_S = 20.0
WAITED_MAX = 4096
#: Quick packing: a page shrinks to a tenth all the same.
_LEVEL = 1

#: Rendered pages by node, compressed; None: no such node; or the error.
Made = dict[str, bytes | StoreError | None]


class BusyError(Exception):
    """Error: a page was not rendered in time; the message says why."""


class PackedPage(msgspec.Struct, frozen=True):
    """A node's page, compressed by gzip, with its time by the clock of ``NodePages``."""

    packed: bytes
    made_at: float


class NodePages:
    """Pages of all nodes that somebody reads.

    Args:
        render: renders a page; None for an unknown node; called in a thread.
        clock: monotonic seconds.
    """

    def __init__(
        self, render: Callable[[str], bytes | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._render = render
        self._clock = clock
        #: The page that was rendered longest ago is first.
        self._pages: dict[str, PackedPage] = {}
        #: When a node's page was last read, or listed.
        self._wanted: dict[str, float] = {}
        #: Of which there is news that is on no page yet, the oldest news first.
        self._outdated: dict[str, None] = {}
        self._waited: dict[str, asyncio.Future[bytes | None]] = {}
        self._asked = asyncio.Event()

    def listed(self, nodes: Iterable[str]) -> None:
        """Note that a reader got the list of pages, and will fetch them."""
        now = self._clock()
        for node in nodes:
            self._wanted[node] = now
            if node not in self._pages:
                self._outdated.setdefault(node)

    def told(self, node: str) -> None:
        """Mark a node's page as outdated: the node reported, or the loop sent something
        about it.
        """
        if node in self._wanted:
            self._outdated.setdefault(node)

    async def page(self, node: str) -> bytes | None:
        """Return a node's page, compressed by gzip; None if there is no such node.

        Raises:
            BusyError: the page does not exist and was not rendered in time.
            StoreError: the page does not exist and can't be rendered now.
        """
        found = self._pages.get(node)
        if found is not None:
            self._wanted[node] = self._clock()
            return found.packed
        waited = self._waited.get(node)
        if waited is None:
            if len(self._waited) >= WAITED_MAX:
                raise BusyError(f"{WAITED_MAX} requests already wait for pages of nodes")
            waited = self._waited[node] = asyncio.get_running_loop().create_future()
            self._wanted[node] = self._clock()
            self._asked.set()
        try:
            return await asyncio.wait_for(asyncio.shield(waited), WAIT_S)
        except TimeoutError:
            raise BusyError(f"the page of node {node} was not rendered in {WAIT_S:.0f} s") from None

    async def run(self) -> None:
        """Keep pages up to date until cancelled."""
        while True:
            try:
                await self._round()
            except Exception:  # an internal error costs one round, not the pages of all nodes
                _LOG.exception("the pages of nodes could not be made")
                await asyncio.sleep(LOOK_EVERY_S)

    async def _round(self) -> None:
        """Make what is due, and rest in proportion; or wait until something may be."""
        due = self.due()
        if due:
            began = self._clock()
            self.take(await asyncio.to_thread(self.make, due))
            await asyncio.sleep((self._clock() - began) * (1 - PART) / PART)
            return
        self._asked.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), LOOK_EVERY_S)

    def due(self) -> list[str]:
        """Return the next nodes whose pages to render; those that a reader waits for come first."""
        now = self._clock()
        found = dict.fromkeys(list(self._waited)[:BATCH])
        for node in list(self._outdated):
            if len(found) >= BATCH:
                break
            page = self._pages.get(node)
            if now - self._wanted.get(node, now) > WANTED_S:
                self._forget(node)
            elif page is None or now - page.made_at >= EVERY_S:
                found.setdefault(node)
        for node, page in list(self._pages.items()):
            if len(found) >= BATCH or now - page.made_at < SILENT_S:
                break
            if now - self._wanted.get(node, now) > WANTED_S:
                self._forget(node)
            else:
                found.setdefault(node)
        for node in found:  # news that comes while it is being made is for the next page
            self._outdated.pop(node, None)
        return list(found)

    def make(self, nodes: Sequence[str]) -> Made:
        """Make pages; to be called in a thread."""
        made: Made = {}
        for node in nodes:
            try:
                text = self._render(node)
            except StoreError as error:
                made[node] = error
            except Exception as error:  # one page must not cost the others theirs
                _LOG.exception("the page of node %s can't be made", node)
                made[node] = StoreError(f"the page of node {node} can't be rendered: {error}")
            else:
                made[node] = None if text is None else gzip.compress(text, _LEVEL, mtime=0)
        return made

    def take(self, made: Made) -> None:
        """Keep what was made, and give it to those who wait for it."""
        now = self._clock()
        for node, page in made.items():
            waited = self._waited.pop(node, None)
            if isinstance(page, bytes):
                self._pages.pop(node, None)
                self._pages[node] = PackedPage(page, now)
            elif page is None:
                self._forget(node)
            else:
                self._failed(node, now)
            if waited is None or waited.done():
                continue
            if isinstance(page, StoreError):
                waited.set_exception(page)
                waited.exception()  # the reader may be gone
            else:
                waited.set_result(page)

    def _failed(self, node: str, now: float) -> None:
        """Keep a page that could not be rendered again, and try later."""
        before = self._pages.pop(node, None)
        if before is None:
            self._forget(node)
        else:
            self._pages[node] = PackedPage(before.packed, now)

    def _forget(self, node: str) -> None:
        self._pages.pop(node, None)
        self._wanted.pop(node, None)
        self._outdated.pop(node, None)

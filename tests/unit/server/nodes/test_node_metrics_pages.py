"""Pages of nodes are made when there is news, seldom enough, and only for those who read them."""

import asyncio
import gzip
from collections.abc import Callable

import pytest

from reconciler.server.nodes import node_metrics_pages
from reconciler.store import StoreError


class Scene:
    """Pages over a clock of the test's own; ``rendered`` is what was made, in order."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rendered: list[str] = []
        self.broken: set[str] = set()
        self.unknown = {"ghost"}
        self.pages = node_metrics_pages.NodePages(self.render, lambda: self.now)

    def render(self, node: str) -> bytes | None:
        if node in self.broken:
            raise StoreError("the disk is full")
        self.rendered.append(node)
        return None if node in self.unknown else f"{node} at {self.now:g}\n".encode()

    def step(self, after_s: float = 0.0) -> list[str]:
        """One round of the task, after some time; what it made."""
        self.now += after_s
        before = len(self.rendered)
        self.pages.take(self.pages.make(self.pages.due()))
        return self.rendered[before:]

    def text(self, node: str) -> str:
        """What a scrape gets."""
        page = asyncio.run(self.pages.page(node))
        assert page is not None
        return gzip.decompress(page).decode()


def test_what_nobody_reads_is_not_made() -> None:
    scene = Scene()
    scene.pages.told("n1")
    assert scene.step() == []


def test_a_listed_page_is_made_and_a_scrape_only_hands_it_out() -> None:
    scene = Scene()
    scene.pages.listed(["n1", "n2"])
    assert scene.step() == ["n1", "n2"]
    for _ in range(100):
        assert scene.text("n1") == "n1 at 1000\n"
    assert scene.rendered == ["n1", "n2"]


def test_a_report_outdates_a_page_but_not_more_often_than_every_few_seconds() -> None:
    scene = Scene()
    scene.pages.listed(["n1"])
    scene.step()
    scene.pages.told("n1")
    assert scene.step(node_metrics_pages.EVERY_S / 2) == []
    assert scene.step(node_metrics_pages.EVERY_S / 2) == ["n1"]
    assert scene.text("n1") == f"n1 at {1000 + node_metrics_pages.EVERY_S:g}\n"
    assert scene.step(node_metrics_pages.EVERY_S) == []  # there was no news


def test_a_silent_node_is_made_anew_now_and_then() -> None:
    scene = Scene()
    scene.pages.listed(["n1", "n2"])
    scene.step()
    assert scene.step(node_metrics_pages.SILENT_S - 1) == []
    assert scene.step(1) == ["n1", "n2"]


def test_what_is_read_no_longer_is_forgotten() -> None:
    scene = Scene()
    scene.pages.listed(["n1", "n2"])
    scene.step()
    scene.now += node_metrics_pages.WANTED_S
    scene.text("n2")
    scene.pages.told("n1")
    assert scene.step(1) == ["n2"]
    scene.pages.told("n1")
    assert scene.step(node_metrics_pages.EVERY_S) == []


def test_the_oldest_come_first_and_no_more_than_a_batch_at_once() -> None:
    scene = Scene()
    names = [f"n{number:02d}" for number in range(node_metrics_pages.BATCH + 3)]
    scene.pages.listed(names)
    assert scene.step() == names[: node_metrics_pages.BATCH]
    scene.pages.told(names[0])
    assert scene.step(node_metrics_pages.EVERY_S) == [*names[node_metrics_pages.BATCH :], names[0]]


def test_news_during_the_making_is_for_the_next_page() -> None:
    scene = Scene()
    scene.pages.listed(["n1"])
    due = scene.pages.due()
    made = scene.pages.make(due)
    scene.pages.told("n1")
    scene.pages.take(made)
    assert scene.step(node_metrics_pages.EVERY_S) == ["n1"]


def waiting(
    scene: Scene, nodes: list[str], meanwhile: Callable[[], object] = lambda: None
) -> list[bytes | BaseException | None]:
    """What those get who ask for pages that are not there, while the task runs."""

    async def run() -> list[bytes | BaseException | None]:
        task = asyncio.create_task(scene.pages.run())
        meanwhile()
        try:
            asked = [scene.pages.page(node) for node in nodes]
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            task.cancel()

    return asyncio.run(run())


def test_the_first_scrape_of_a_page_waits_for_it() -> None:
    scene = Scene()
    first, second, none = waiting(scene, ["n1", "n1", "ghost"])
    assert isinstance(first, bytes)
    assert gzip.decompress(first) == b"n1 at 1000\n"
    assert (second, none) == (first, None)
    assert scene.rendered == ["n1", "ghost"]
    assert scene.step(node_metrics_pages.SILENT_S) == ["n1"]  # nothing is left of the ghost


def test_whoever_waits_goes_before_what_is_outdated() -> None:
    scene = Scene()
    many = [f"n{number:02d}" for number in range(3 * node_metrics_pages.BATCH)]
    waiting(scene, ["urgent"], lambda: scene.pages.listed(many))
    assert scene.rendered.index("urgent") <= node_metrics_pages.BATCH


def test_a_page_that_cannot_be_made_says_why_and_the_old_one_stands() -> None:
    scene = Scene()
    scene.broken.add("n1")
    (told,) = waiting(scene, ["n1"])
    assert isinstance(told, StoreError)
    scene.broken.clear()
    waiting(scene, ["n1"])
    scene.broken.add("n1")
    scene.pages.told("n1")
    assert scene.step(node_metrics_pages.EVERY_S) == []
    assert scene.text("n1") == "n1 at 1000\n"
    scene.broken.clear()
    assert scene.step(node_metrics_pages.SILENT_S) == ["n1"]


def test_those_who_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    monkeypatch.setattr(node_metrics_pages, "WAITED_MAX", 2)
    told = waiting(scene, ["n1", "n2", "n3"])
    assert isinstance(told[2], node_metrics_pages.BusyError)
    assert "2 requests already wait for pages of nodes" in str(told[2])

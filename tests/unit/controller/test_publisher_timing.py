"""The page is rendered after each cycle while that is cheap, and rarely if it is not."""

import pytest

from reconciler.controller import publisher


class Clocks:
    """Time, and the CPU time that rendering takes."""

    def __init__(self, cost_s: float) -> None:
        self.now, self.cpu, self.cost_s, self.pages = 100.0, 0.0, cost_s, 0

    def page(self) -> publisher.PageTimer:
        return publisher.PageTimer(lambda: self.now, lambda: self.cpu)

    def render(self) -> bytes:
        self.cpu += self.cost_s
        self.pages += 1
        return b"page %d" % self.pages


def test_a_cheap_page_is_always_new() -> None:
    clocks = Clocks(0.001)
    page = clocks.page()
    assert [page.render_if_due(clocks.render) for _ in range(3)] == [
        b"page 1",
        b"page 2",
        b"page 3",
    ]


def test_a_dear_page_takes_a_small_part_of_the_time() -> None:
    clocks = Clocks(0.05)
    page = clocks.page()
    for _ in range(1000):
        page.render_if_due(clocks.render)
        clocks.now += 0.01
    assert clocks.cpu / 10 == pytest.approx(1 / publisher.PARTS, rel=0.15)


def test_when_cycles_stop_the_last_state_is_shown() -> None:
    clocks = Clocks(0.05)
    page = clocks.page()
    page.render_if_due(clocks.render)
    assert page.render_if_due(clocks.render) is None
    assert page.wait_s() == pytest.approx(1.0)
    clocks.now += 1.0
    assert page.wait_s() <= 0
    assert page.render_if_due(clocks.render) == b"page 2"
    assert page.wait_s() == publisher.RENDER_EVERY_S


def test_without_a_reader_nothing_is_due_and_a_new_one_gets_a_page() -> None:
    clocks = Clocks(0.05)
    page = clocks.page()
    page.render_if_due(clocks.render)
    page.forget()
    clocks.now += 3600
    assert page.wait_s() > 0
    assert page.render_if_due(clocks.render) == b"page 2"

"""Walks that begin at a room which all share come to the same as walks through every moment."""

import pytest

from reconciler.scheduling.backfill import reservation_calendar
from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.inputs.snapshots import Mask
from reconciler.scheduling.placement import request
from tests.unit.scheduling import drawn


def test_reservations_are_the_same_as_by_walking_through_each_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, passed = (
        reservation_calendar.ReservationCalendar._passed,
        {"one": 0, "more": 0, "renewed": 0},
    )

    def counted(
        self: reservation_calendar.ReservationCalendar,
        ask: request.PlacementRequest,
        within: Mask | None,
        since: float,
        until: float,
    ) -> int:
        found = short(self, ask, within, since, until)
        passed["one"] += found == 1
        passed["more"] += found > 1
        passed["renewed"] += found > 0 and since > self.situation.now
        return found

    for seed in (*range(24), 211):  # in 211 work that is told to leave would have ended, too
        s, rng = drawn.situation(seed)
        for _ in range(3):
            monkeypatch.setattr(reservation_calendar.ReservationCalendar, "_passed", counted)
            found = scheduling_cycle.schedule(s.snapshot())
            monkeypatch.setattr(reservation_calendar.ReservationCalendar, "_passed", lambda *_: 0)
            assert scheduling_cycle.schedule(s.snapshot()) == found, seed
            s = s.apply(found)
            s.now += rng.choice([1, 30, 100])
    assert all(passed.values()), f"it is about something: {passed}"

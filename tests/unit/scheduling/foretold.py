"""Whether who is told for certain when it starts has started by then, in drawn situations.

``python -m tests.unit.scheduling.foretold FIRST COUNT`` follows as many as one likes for some time:
nothing new is submitted, nodes stay, and what runs ends at its time limit, or before it. The
property follows a few. The situations are those of ``drawn``.
"""

import dataclasses
import itertools
import math
import random
import sys
from collections import Counter
from typing import NamedTuple

from reconciler.scheduling.decisions import Decisions
from tests.unit.scheduling import drawn
from tests.unit.scheduling.situations import Queue, Situation

#: Cycles at the most that are followed; what has not started by then has not been refuted.
CYCLES = 80
#: Of floating point sums.
_SLIGHT_S = 1e-3


class Late(NamedTuple):
    """A job that was told a moment for certain, in which cycle and when, and did not start."""

    job: str
    cycle: int
    told_at: float
    latest: float


class Story:
    """A situation that goes on by its own decisions."""

    def __init__(self, s: Situation, rng: random.Random, *, early: bool) -> None:
        """``early``: whether work may end before its limit."""
        self.s, self.rng, self.early = s, rng, early
        self.certain = 0
        self.estimates = 0
        self.late: list[Late] = []
        self._told: dict[str, Late] = {}
        self._ends: dict[tuple[str, int, float], float] = {}
        #: Who has an estimate of the next start.
        self._seen: set[str] = set()

    def run(self) -> "Story":
        """Follow it to its end, or for so many cycles."""
        for cycle in range(CYCLES):
            decisions = self.s.decide()
            self._note(cycle, decisions)
            self.s.apply(decisions).left()
            if decisions.placements or decisions.evictions:
                continue
            following = self._next(decisions)
            self.s.now = following
            if following == math.inf:
                self._overdue()
                break
            self._end()
            self._overdue()
        return self

    def _note(self, cycle: int, decisions: Decisions) -> None:
        for placement in decisions.placements:
            if placement.action != "grow":
                self._told.pop(placement.job, None)
                self._seen.discard(placement.job)
        for job, one in decisions.estimates.items():
            self.estimates += job not in self._seen
            self._seen.add(job)
            if one.certain:
                told = Late(job, cycle, self.s.now, one.latest)
                self.certain += job not in self._told
                self._told[job] = min(told, self._told.get(job, told), key=lambda t: t.latest)

    def _ends_at(self, job: str, element: int, since: float) -> float:
        key = (job, element, since)
        if key not in self._ends:
            limit_s = self.s.jobs[job].time_limit_s
            part = self.rng.random() if self.early and self.rng.random() < 0.5 else 1.0
            began = max(since, self.s.now)
            whole = max(since + limit_s, self.s.now + 1.0)
            self._ends[key] = whole if whole == math.inf else began + part * (whole - began)
        return self._ends[key]

    def _next(self, decisions: Decisions) -> float:
        moments = [self._ends_at(h.job, h.element, h.since) for h in self.s.held]
        moments += [decisions.wake_at]
        return min((at for at in moments if at > self.s.now), default=math.inf)

    def _end(self) -> None:
        self.s.held = [
            h for h in self.s.held if self._ends_at(h.job, h.element, h.since) > self.s.now
        ]

    def _overdue(self) -> None:
        """Told moments that have passed; what starts at this very moment is not late."""
        for told in list(self._told.values()):
            if told.latest + _SLIGHT_S < self.s.now:
                self.late.append(told)
                del self._told[told.job]


def drawn_as(seed: int, kind: str) -> tuple[Situation, random.Random]:
    """A drawn situation, made into one of a kind."""
    s, rng = drawn.situation(seed)
    if kind == "calm":
        s.policy = dataclasses.replace(s.policy, reclaim=False, preempt=False, consolidate=False)
    elif kind != "crowded":
        s.queue_list, s.caps = [Queue("only")], []
        for job in s.jobs.values():
            job.queue = "only"
            job.priority = 50 if kind == "level" else job.priority
    return s, rng


#: As they are drawn: several queues, all of which take from each other; the same where nobody has
#: to leave; all in one queue; all in one queue, of one priority.
KINDS = ("crowded", "calm", "single", "level")


def follow(seed: int, kind: str, *, early: bool = False) -> Story:
    """The story of a drawn situation of a kind."""
    s, rng = drawn_as(seed, kind)
    return Story(s, rng, early=early).run()


def main(arguments: list[str]) -> int:
    """Follow drawn situations and print who came later than it was told."""
    first, count = int(arguments[0]), int(arguments[1])
    late = 0
    for kind, early in itertools.product(KINDS, (False, True)):
        found: Counter[str] = Counter()
        for seed in range(first, first + count):
            story = follow(seed, kind, early=early)
            found["estimates"] += story.estimates
            found["certain"] += story.certain
            found["late"] += len(story.late)
            for one in story.late:
                print(f"{kind} {seed} {early=}: {one}", flush=True)
        late += found["late"]
        print(f"{count} {kind} {early=}: {dict(found)}", flush=True)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Stories of each size are as the size says, and find a controller's faults, the small ones too."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from reconciler.core import cycle_cache, reconcile, schedule_reuse
from reconciler.model import desired
from reconciler.model.state import outcome, records
from tests.simulation import sizes, stories, telling

#: Of how many stories of a size one at least has to find a planted fault.
STORIES = 12
#: Before and after the real decision: what a faulty controller takes in, and what it hands out.
Before = Callable[[desired.Structure], desired.Structure]
After = Callable[[outcome.Outcome], outcome.Outcome]


class Planted(NamedTuple):
    """A faulty controller, and who has to find it out, in stories from a ``first`` one on."""

    before: Before
    after: After
    checkers: frozenset[str]
    first: int = 0


def test_the_seed_draws_the_size_by_its_share() -> None:
    drawn = Counter(sizes.of(seed).name for seed in range(2000))
    for size in sizes.SIZES:
        expected = 2000 * size.share / sum(one.share for one in sizes.SIZES)
        assert expected / 2 < drawn[size.name] < expected * 2


@pytest.mark.parametrize("size", sizes.SIZES, ids=lambda size: size.name)
def test_stories_are_as_large_as_their_size_says(size: sizes.Size) -> None:
    for seed in range(40):
        plan = stories.draw(seed, size)
        assert plan == stories.draw(seed, size)
        assert plan.size == size.name
        assert len(plan.steps) >= sizes.STEPS_MIN
        kinds = Counter(step.fault.kind if step.fault else step.what for step in plan.steps)
        assert kinds["crash-before-commit"] + kinds["crash-after-commit"] > 0
        assert kinds["cut"] > 0
        assert len(plan.nodes()) <= max(size.gpu_nodes) + max(size.cpu_nodes)
        jobs = [s.job for s in plan.steps if s.job and s.job.name.startswith(("hog", "j"))]
        assert len(jobs) <= max(size.hogs) + max(size.jobs)
        assert max(job.array_count or 1 for job in jobs) <= size.wide_max
        assert [step.at for step in plan.steps] == sorted(step.at for step in plan.steps)


def test_moments_of_a_grid_are_those_of_several_steps() -> None:
    """Crowded stories have steps of people and faults at one moment, and keep their order."""
    at_once = 0
    for seed in range(40):
        plan = stories.draw(seed, sizes.SMALL)
        moments = Counter(step.at for step in plan.steps)
        at_once += sum(count > 1 for count in moments.values())
        back = {"connect": "cut", "boot": "power-off"}
        away: set[tuple[str, str]] = set()
        for fault in (step.fault for step in plan.steps if step.fault):
            if fault.kind in back.values():
                away.add((fault.kind, fault.node))
            elif fault.kind in back:
                assert (back[fault.kind], fault.node) in away
    assert at_once > 40


def _no_limits(structure: desired.Structure) -> desired.Structure:
    replace = msgspec.structs.replace
    plain = desired.QuotaAmounts()
    return replace(
        structure,
        queues={name: replace(one, limit=plain) for name, one in structure.queues.items()},
        quotas={},
    )


def _no_drains(structure: desired.Structure) -> desired.Structure:
    replace = msgspec.structs.replace
    pools = {name: replace(pool, drains={}) for name, pool in structure.pools.items()}
    return replace(structure, pools=pools)


def _no_reclaim(structure: desired.Structure) -> desired.Structure:
    """Nobody gives anything back: what runs has not run for long enough."""
    replace, settings = msgspec.structs.replace, structure.settings
    scheduling = replace(settings.scheduling, min_runtime_s=10**7)
    return replace(structure, settings=replace(settings, scheduling=scheduling))


def _no_reasons(result: outcome.Outcome) -> outcome.Outcome:
    return msgspec.structs.replace(result, reasons={})


def _no_stops(result: outcome.Outcome) -> outcome.Outcome:
    """Nothing is ever written of what has to leave."""
    attempts = tuple(
        msgspec.structs.replace(one, stop=None) if one.stop is not None else one
        for one in result.attempts
    )
    return msgspec.structs.replace(result, attempts=attempts)


def _as_it_is(structure: desired.Structure) -> desired.Structure:
    return structure


def _as_decided(result: outcome.Outcome) -> outcome.Outcome:
    return result


#: In story 3 somebody is owed what others have, in each size.
FAULTS = {
    "no limits": Planted(_no_limits, _as_decided, frozenset({"limits"})),
    "no drains": Planted(_no_drains, _as_decided, frozenset({"capacity"})),
    "no reclaim": Planted(_no_reclaim, _as_decided, frozenset({"guarantees"}), first=3),
    "no reasons": Planted(_as_it_is, _no_reasons, frozenset({"true_reasons"})),
    "no stops": Planted(
        _as_it_is,
        _no_stops,
        frozenset({"PartlyRunning.check", "tried_reasons", "rest", "ended"}),
    ),
}


@pytest.mark.parametrize("size", sizes.SIZES, ids=lambda size: size.name)
@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_controller_is_found_out(
    name: str, size: sizes.Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after, checkers, first = FAULTS[name]
    decide = reconcile.reconcile

    def faulty(
        wanted: desired.Desired,
        observed: records.Observed,
        now: float,
        *,
        cache: cycle_cache.CycleCache | None = None,
        pace: schedule_reuse.Pace = schedule_reuse.PACE,
    ) -> outcome.Outcome:
        seen = msgspec.structs.replace(wanted, structure=before(wanted.structure))
        return after(decide(seen, observed, now, cache=cache, pace=pace))

    monkeypatch.setattr(reconcile, "reconcile", faulty)
    broken = []
    for seed in range(first, first + STORIES):
        try:
            telling.tell(stories.draw(seed, size))
        except telling.BrokenError as error:
            broken.append(error.checker)
        if checkers & set(broken):
            return
    pytest.fail(f"{STORIES} stories found {broken}, none of {checkers}")

"""The engine decides as the present cycle does, or says that it does not cover the snapshot."""

import pytest

from reconciler.scheduling.cycle import scheduling_cycle
from reconciler.scheduling.engine.refusals import NotCovered
from tests.unit.scheduling import drawn
from tests.unit.scheduling.engine import differing

#: All of these are covered; ``python -m tests.unit.scheduling.engine.differing`` draws more.
SEEDS = range(300)
#: Stories, of which the even ones are covered throughout.
STORIES = range(0, 60, 2)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 50))
def test_covered_situations_are_decided_alike(first: int) -> None:
    for seed in SEEDS[first : first + 50]:
        given = differing.situation(seed).snapshot()
        found = differing.differing(differing.with_mix(given, seed))
        assert found == [], f"seed {seed}"


@pytest.mark.parametrize("first", range(0, len(STORIES), 10))
def test_stories_are_decided_alike_cycle_by_cycle(first: int) -> None:
    evictions = kept = promised = 0
    for seed in STORIES[first : first + 10]:
        for step, given in enumerate(differing.story(seed)):
            found = differing.differing(given)
            assert found == [], f"seed {seed} step {step}"
            kept += len(given.kept)
            evictions += int(given.running.leaving.sum())
            promised += sum(claim.promised for line in given.lines for claim in line.claims)

    assert min(evictions, kept, promised) > 0


def test_a_job_with_a_reservation_has_its_turn_though_others_of_its_group_have_no_room() -> None:
    given = list(differing.story(20_248))[3]

    assert scheduling_cycle.schedule(given) == drawn.one_by_one(given)
    assert differing.differing(given) == []


def test_any_situation_is_decided_alike_or_not_at_all() -> None:
    traits = set()
    for seed in range(200):
        try:
            found = differing.differing(drawn.situation(seed)[0].snapshot())
        except NotCovered as error:
            traits.add(error.trait)
            continue
        assert found == [], f"seed {seed}"

    assert len(traits) > 5

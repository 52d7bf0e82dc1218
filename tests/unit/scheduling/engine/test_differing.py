"""The engine decides as the present cycle does, or says that it does not cover the snapshot."""

import pytest

from reconciler.scheduling.engine.coverage import NotCovered
from tests.unit.scheduling import drawn
from tests.unit.scheduling.engine import differing

#: Seeds of which most are covered; ``python -m tests.unit.scheduling.engine.differing`` draws more.
SEEDS = range(300)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 50))
def test_covered_situations_are_decided_alike(first: int) -> None:
    decided = 0
    for seed in SEEDS[first : first + 50]:
        try:
            given = differing.situation(seed).snapshot()
            found = differing.differing(differing.with_mix(given, seed))
        except NotCovered:
            continue
        assert found == [], f"seed {seed}"
        decided += 1

    assert decided > 30


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

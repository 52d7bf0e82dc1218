"""Dividing an amount between siblings, by itself: what holds whatever they are."""

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.scheduling.quota import fair_share

SIBLING = st.builds(
    fair_share.Sibling,
    guaranteed=st.sampled_from([0, 1, 500, 1000, 3000]),
    demand=st.sampled_from([0, 1, 333, 500, 1000, 8000]),
    weight=st.sampled_from([0, 0.5, 1, 2]),
    priority=st.sampled_from([0, 10]),
)
SIBLINGS = st.lists(SIBLING, min_size=1, max_size=5)
TOTAL = st.sampled_from([0, 1, 7, 1000, 7333, 8000])


@settings(max_examples=300, deadline=None)
@given(TOTAL, SIBLINGS)
def test_no_more_is_given_than_there_is_and_than_is_wanted(
    total: int, siblings: list[fair_share.Sibling]
) -> None:
    shares = fair_share.divide(total, siblings)
    assert sum(shares) <= total
    assert all(share <= one.demand for share, one in zip(shares, siblings, strict=True))


@settings(max_examples=300, deadline=None)
@given(TOTAL, SIBLINGS, st.sampled_from([0, 1]), st.sampled_from([0, 10]))
def test_a_sibling_that_wants_nothing_changes_nothing(
    total: int, siblings: list[fair_share.Sibling], weight: float, priority: int
) -> None:
    idle = fair_share.Sibling(guaranteed=0, demand=0, weight=weight, priority=priority)
    assert fair_share.divide(total, [*siblings, idle]) == [*fair_share.divide(total, siblings), 0]


def test_who_alone_wants_more_at_a_priority_needs_no_weight() -> None:
    def one(weight: float, *, priority: int, demand: int = 8) -> fair_share.Sibling:
        return fair_share.Sibling(guaranteed=0, demand=demand, weight=weight, priority=priority)

    low = one(1, priority=0)
    assert fair_share.divide(8, [one(0, priority=1), low]) == [8, 0]
    assert fair_share.divide(8, [one(0, priority=1), one(1, priority=1, demand=0), low]) == [
        8,
        0,
        0,
    ]
    assert fair_share.divide(8, [one(0, priority=1), one(1, priority=1), low]) == [0, 8, 0]
    assert fair_share.divide(8, [one(0, priority=0), low]) == [0, 8]

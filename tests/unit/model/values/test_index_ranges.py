"""Sets of indexes, as text and as numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.values import index_ranges


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", (3,)),
        ("1,3,5-9:2", (1, 3, 5, 7, 9)),
        ("5-9", (5, 6, 7, 8, 9)),
        ("0-10:4", (0, 4, 8)),
        ("7,1,7", (1, 7)),
        ("", ()),
    ],
)
def test_what_texts_mean(text: str, expected: tuple[int, ...]) -> None:
    assert index_ranges.parse(text) == expected


_RANGES = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 6))


@given(st.lists(_RANGES, min_size=1, max_size=12))
def test_ranges_that_overlap_are_each_index_once(given: list[tuple[int, int, int]]) -> None:
    text = ",".join(f"{first}-{first + more}:{step}" for first, more, step in given)
    expected = {
        index for first, more, step in given for index in range(first, first + more + 1, step)
    }
    assert index_ranges.parse(text) == tuple(sorted(expected))


@pytest.mark.parametrize("step", [1, 2])
def test_no_text_says_so_much_that_it_takes_long(step: int) -> None:
    """A request of a MiB whose ranges name each index tens of thousands of times is soon read."""
    last = index_ranges.INDEX_MAX
    texts = [f"{first}-{last}:{step}" for first in range(70_000)]
    found = index_ranges.parse(",".join(texts))
    assert found == tuple(range(last + 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x", "found 'x', expected indexes such as"),
        ("1,", "found '', expected indexes"),
        ("1-", "found '1-', expected indexes"),
        ("3-1", "expected the lower index first"),
        ("1-3:0", "expected a step of at least 1"),
        ("100000", "expected indexes up to 99999"),
        ("1\n", "expected indexes"),
        ("٣", "expected indexes"),
        ("1," * 2**19 + "1", "characters, expected at most"),
    ],
)
def test_what_is_no_set_is_refused(text: str, told: str) -> None:
    with pytest.raises(index_ranges.IndexRangeError) as refused:
        index_ranges.parse(text)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [
        ([], ""),
        ([4], "4"),
        ([1, 2], "1,2"),
        ([1, 2, 3, 7], "1-3,7"),
        ([1, 3, 5, 6], "1-5:2,6"),
        ([9, 1, 5], "1-9:4"),
    ],
)
def test_how_sets_are_written(indexes: list[int], expected: str) -> None:
    assert index_ranges.fold(indexes) == expected


@given(st.sets(st.integers(0, index_ranges.INDEX_MAX), max_size=60))
def test_what_is_written_is_read_as_it_was(indexes: set[int]) -> None:
    assert index_ranges.parse(index_ranges.fold(indexes)) == tuple(sorted(indexes))

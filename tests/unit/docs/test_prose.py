"""Sentences of the pages that people read stay short."""

from tests.unit.docs import pages
from tests.unit.house import measures

MEAN_WORDS_MAX = 17
LONG_WORDS = 35
LONG_SHARE_MAX = 0.02


def test_sentences_are_short() -> None:
    lengths = measures.sentence_lengths(pages.ROOT)
    assert sum(lengths) / len(lengths) <= MEAN_WORDS_MAX
    assert sum(length > LONG_WORDS for length in lengths) / len(lengths) <= LONG_SHARE_MAX

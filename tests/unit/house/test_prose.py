"""Prose: docstrings begin with what they give, and phrases that readers stumble over stay rare."""

from collections.abc import Iterator

from reconciler import package_data
from tests.unit.house import measures

ROOT = package_data.checkout()
#: Docstrings that begin with an odd word. The number may only fall.
ODD = 0
#: Words for one odd phrase; an aim.
WORDS_A_PHRASE_MIN = 1_000
#: Sentences of pages.
MEAN_WORDS_MAX = 17.0
LONG_WORDS, LONG_MAX = 35, 0.02
#: The scheduler's own modules are written anew soon; its reasons are not left out.
NOT_YET = ("reconciler/scheduling/",)
BUT = ("reconciler/scheduling/reasons/", "reconciler/scheduling/decisions.py")
#: Good English that begins with such a word: ``file:name``.
ALLOWED: frozenset[str] = frozenset()


def _docstrings() -> Iterator[measures.Docstring]:
    for one in measures.docstrings(ROOT):
        if not one.file.startswith(NOT_YET) or one.file.startswith(BUT):
            yield one


def test_docstrings_say_what_the_caller_gets() -> None:
    texts = list(_docstrings())
    odd = [
        f"{one.file}:{one.line} {one.name}"
        for one in texts
        if measures.is_odd(one) and f"{one.file}:{one.name}" not in ALLOWED
    ]
    assert len(odd) == ODD, odd


def test_odd_phrases_are_rare() -> None:
    texts = [one.text for one in _docstrings()]
    phrases = measures.odd_phrases(texts)
    assert sum(phrases.values()) * WORDS_A_PHRASE_MIN <= measures.words(texts), phrases


def test_sentences_of_pages_are_short() -> None:
    lengths = measures.sentence_lengths(ROOT)
    long = sum(length > LONG_WORDS for length in lengths)
    assert len(lengths) > 1_000
    assert sum(lengths) / len(lengths) <= MEAN_WORDS_MAX
    assert long <= LONG_MAX * len(lengths)

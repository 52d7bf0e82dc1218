"""Every pattern of a schema has words, so that nobody is shown a regular expression."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest

from reconciler.desired.documents import pattern_words, schema, schema_errors
from reconciler.model.documents import kinds


def _patterns(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _patterns(one)


PATTERNS = sorted({one for kind in kinds.KINDS for one in _patterns(schema.of_kind(kind))})


def test_there_are_patterns() -> None:
    assert len(PATTERNS) > 30


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_has_words_and_an_example_that_fits(pattern: str) -> None:
    words = pattern_words.of(pattern)
    assert words is not None, "add its words to pattern_words"
    assert words.requirement
    assert re.search(pattern, words.example)
    assert "\\" not in words.requirement
    assert "[" not in words.requirement


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_refusal_has_words_in_place_of_its_pattern(pattern: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert("\0\n", Annotated[str, msgspec.Meta(pattern=pattern)])
    words = pattern_words.of(pattern)
    assert words is not None
    assert pattern_words.reworded(str(refused.value)) == f"Expected `str`: {words.requirement}"


def test_a_wrong_item_of_a_list_is_told_in_words_with_an_example() -> None:
    spec = {"command": ["true"], "modules": ["a b"]}
    whole = {"apiVersion": "muster/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    (fault,) = schema_errors.faults("Job", whole, "refused")
    assert fault.expected == (
        'text such as "cuda/12.4": one environment module, without spaces; each further one is '
        "another item"
    )

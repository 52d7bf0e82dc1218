"""Regular expressions of policies: as JSON Schema has them, and none that holds anybody up."""

import threading
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.desired.checks import safe_patterns

EVIL = "^(a|aa)+$"
LONG = "a" * 60 + "!"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"pattern": EVIL}}},
        {"patternProperties": {EVIL: True}},
        {"patternProperties": {EVIL: True}, "additionalProperties": False},
        {"propertyNames": {"pattern": EVIL}},
        {"not": {"properties": {"a": {"pattern": EVIL}}}},
    ],
)
def test_a_search_that_takes_too_long_is_ended_and_others_go_on(schema: dict[str, Any]) -> None:
    """Other threads count on meanwhile: with ``re`` none would."""
    validator = safe_patterns.validator(schema)
    begins, counted = threading.Event(), threading.Event()

    def count() -> None:
        begins.wait()
        counted.set()

    other = threading.Thread(target=count)
    other.start()
    begins.set()
    with pytest.raises(safe_patterns.SlowPatternError, match="repetition within a repetition"):
        validator.is_valid({"a": LONG, LONG: 1})
    assert counted.is_set()
    other.join()


def test_a_usual_shape_of_paths_is_searched_at_once() -> None:
    """With ``re`` this one is slow already."""
    schema = {"properties": {"a": {"pattern": "^(/[a-z0-9]+([-._]?[a-z0-9]+)*)+$"}}}
    assert not safe_patterns.validator(schema).is_valid({"a": "/" + "a" * 60 + "!"})
    assert safe_patterns.validator(schema).is_valid({"a": "/data/run-1/x.y"})


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"properties": {"a": {"pattern": "(a"}}}, '"(a" is no regular expression: '),
        ({"anyOf": [{"patternProperties": {"[": {}}}]}, '"[" is no regular expression: '),
        (
            {"patternProperties": {"a": {}}, "unevaluatedProperties": False},
            "don't go together here: use additionalProperties",
        ),
    ],
)
def test_what_is_wrong_with_patterns_is_told(schema: dict[str, Any], told: str) -> None:
    (found,) = safe_patterns.faults(schema)
    assert told in found
    assert not list(safe_patterns.faults({"pattern": "^(?!latest$)[a-z]+$"}))


NAMES = st.text("ab-", max_size=3)
NAMED_PATTERNS = st.sampled_from(["^a", "b$", "-", "^(a|b)+$", "^(?!a)"])
PATTERNS = st.one_of(NAMED_PATTERNS, st.just(""))
VALUES = st.recursive(
    st.one_of(NAMES, st.integers(0, 2), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)
SCHEMAS = st.recursive(
    st.one_of(st.builds(lambda p: {"pattern": p}, PATTERNS), st.booleans()),
    lambda inner: st.one_of(
        st.builds(lambda a: {"properties": a}, st.dictionaries(NAMES, inner, max_size=2)),
        st.builds(
            lambda named, more: {"patternProperties": named, "additionalProperties": more},
            st.dictionaries(NAMED_PATTERNS, inner, max_size=2),
            inner,
        ),
        st.builds(lambda a: {"items": a, "not": {"type": "null"}}, inner),
    ),
    max_leaves=4,
)


def _paths(validator: Any, value: Any) -> list[list[Any]]:
    """Return where the errors are; in which order a validator finds them is its own affair."""
    return sorted((list(one.absolute_path) for one in validator.iter_errors(value)), key=repr)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SCHEMAS, VALUES)
def test_it_judges_as_the_library_does(schema: Any, value: Any) -> None:
    usual = jsonschema.Draft202012Validator(schema)
    ours = safe_patterns.validator(schema)
    assert ours.is_valid(value) == usual.is_valid(value)
    assert _paths(ours, value) == _paths(usual, value)


def test_an_empty_pattern_names_every_property() -> None:
    """The standard says so; the library ignores an empty pattern in ``patternProperties``."""
    schema = {"patternProperties": {"": {"type": "string"}}, "additionalProperties": False}
    assert safe_patterns.validator(schema).is_valid({"a": "b", "": ""})
    assert not safe_patterns.validator(schema).is_valid({"a": 1})

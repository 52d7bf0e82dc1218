"""Text is quoted in messages; numbers and words of YAML are not."""

from typing import Any

import pytest

from reconciler.model.values import found_values


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("nope", '"nope"'),
        ("", '""'),
        ("4", '"4"'),
        (4, "4"),
        (0.5, "0.5"),
        (True, "true"),
        (None, "null"),
        ([], "[]"),
        ([1, 2], "a list of 2"),
        ({}, "{}"),
        ({"a": 1, "b": 2}, "a mapping with a, b"),
        ("n" * 63, f'"{"n" * 63}"'),
        ("n" * 64, f'"{"n" * 62}…"'),
    ],
)
def test_values_are_shown_by_one_rule(value: Any, told: str) -> None:
    assert found_values.quote(value) == told


def test_names_are_quoted_each() -> None:
    assert found_values.quote_all(["rack", "switch"]) == '"rack", "switch"'

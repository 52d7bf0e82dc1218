"""An answer of an older controller is said to be one, and is no defect of the command."""

import pytest

from reconciler.cli import terminal
from reconciler.operations.client import answers


def test_a_field_that_is_missing_is_named() -> None:
    found = answers.decode(b'{"items": [{"name": "a", "attempts": [{}]}]}')
    assert found["items"][0]["name"] == "a"
    assert found["items"][0].get("phase") is None
    with pytest.raises(answers.MissingFieldError) as missing:
        found["items"][0]["attempts"][0]["phase"]
    assert missing.value.told("http://c:1", "0.0.9").startswith(
        "the controller at http://c:1 (version 0.0.9) is older than this command (version "
    )
    assert "its answer has no field 'phase'. To fix: " in missing.value.told("http://c:1", "")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 200_000,
        b"<html>",
        b"NaN",
        b"1e999",
        b'"\\ud800"',
        '"é"'.encode("utf-16"),
    ],
)
def test_what_is_no_json_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        answers.decode(content)


def test_an_answer_is_printed_like_any_document() -> None:
    found = answers.decode(b'{"a": [{"b": 1}]}')
    assert terminal.document_text(found, is_yaml=True) == "a:\n- b: 1\n"

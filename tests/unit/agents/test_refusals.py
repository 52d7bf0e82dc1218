"""What a controller says to a node that it does not take reaches the operator as words."""

import pytest

from agents.link import http_client

SAID = b'{"error": {"code": "Conflict", "message": "node n1 has another session"}}'


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (409, SAID, "if there is no other, wait (node n1 has another session)"),
        (401, SAID, "token of node n1 (401 node n1 has another session); check --token-file"),
        (500, b"<html>oops", "answered 500 to the sync of node n1: <html>oops"),
        (500, b'["odd"]', 'answered 500 to the sync of node n1: ["odd"]'),
        (500, b'{"error": "odd"}', 'answered 500 to the sync of node n1: {"error": "odd"}'),
    ],
)
def test_a_refusal_is_told_in_its_words(status: int, answer: bytes, told: str) -> None:
    assert told in http_client.explain("http://c", "n1", status, answer)


def test_a_refusal_is_told_in_a_line_of_bounded_length() -> None:
    text = b'{"error": {"message": "' + b"x" * 5000 + b'"}}'
    assert len(http_client.explain("http://c", "n1", 500, text)) < 400

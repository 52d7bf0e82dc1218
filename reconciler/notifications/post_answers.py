"""Answers of receivers to requests of notifications, also where there was none."""

from typing import NamedTuple

#: How long a receiver may say nothing, and how long it may take for the body of its answer.
TIMEOUT_S = 10.0


class PostAnswer(NamedTuple):
    """A receiver's answer.

    Attributes:
        status: of HTTP; 0 if there was no answer.
        text: its beginning, or why there was none.
        retry_after_s: the receiver's wish for a delay.
    """

    status: int
    text: str
    retry_after_s: float | None = None

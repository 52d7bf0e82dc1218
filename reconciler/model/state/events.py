"""Events: one value for each transition or decision; the store keeps them, people follow them.

A transition without a reason of its own is stored as its kind only; the sentence that is shown for
the kind is here.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One transition or decision. The store assigns ``sequence``; before that it is 0."""

    at: float
    kind: str
    message: str
    job: str = ""
    node: str = ""
    attempt: str = ""
    sequence: int = 0


#: What the kinds mean that may come without a word: the states of jobs and of nodes.
SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "JobHeld": "it is held, and starts once it is released",
        "JobPending": "it waits for a place",
        "JobStarting": "it has places, and its tasks are begun",
        "JobRunning": "its tasks run",
        "JobSucceeded": "all of it has ended well",
        "JobFailed": "it has not ended well",
        "JobCancelled": "it was cancelled",
        "JobTimedOut": "its time limit is over",
        "NodeReady": "its agent reports, and it takes work",
        "NodeDraining": "it takes no new work, and what runs on it leaves",
        "NodeDrained": "nothing runs on it, and it takes no work",
        "NodeUnhealthy": "something is wrong with it, and it takes no work",
        "NodeUnknown": "its agent is silent, and it takes no work",
        "NodeGone": "its agent was silent for too long: what ran there is taken for lost",
    }
)


def words(event: Event) -> str:
    """Return the text of an event: its message, or the sentence of its kind."""
    return event.message or SENTENCES.get(event.kind, event.kind)

"""What happened, one value a happening; the store keeps them, people follow them."""

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One transition or decision. ``sequence`` is given by the store; 0 before that."""

    at: float
    kind: str
    message: str
    job: str = ""
    node: str = ""
    attempt: str = ""
    sequence: int = 0

"""One helper for programmer errors, because ``assert`` disappears under ``python -O``."""


class InvariantError(RuntimeError):
    """Something that must always hold does not: a defect of Muster, never of its input."""


def invariant(condition: bool, message: str) -> None:  # noqa: FBT001 - reads like `assert`
    """Raise :class:`InvariantError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise InvariantError(message)

"""Sentences of errors of the operating system, which may name no file and have no text."""


def told(error: OSError, place: object) -> str:
    """Return what an error is about, and what is wrong; ``place`` if it names no file."""
    return f"{place if error.filename is None else error.filename}: {error.strerror or error}"

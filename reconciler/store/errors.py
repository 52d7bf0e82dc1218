"""Errors of the store, each with what to do about it in its message."""


class StoreError(Exception):
    """The store cannot be used as asked; the message says where, what was found, what to do."""


class DeposedError(StoreError):
    """Another controller leads now; nothing was written."""


class StoreBusyError(StoreError):
    """A live controller already leads this store."""


class DamagedError(StoreError):
    """The file exists but is no readable store."""


class FullError(StoreError):
    """The disk of the store is full; nothing was written."""


class StoreRefusedError(StoreError):
    """The store works but refuses a value; nothing was written."""


def is_of_store(error: Exception) -> bool:
    """Return True if the store itself cannot be used, whatever is written to it."""
    return isinstance(error, StoreError) and not isinstance(error, StoreRefusedError)

"""What can go wrong with a store, each with what to do about it in its message."""


class StoreError(Exception):
    """The store can't be used as asked; the message says where, what was found, what to do."""


class DeposedError(StoreError):
    """Another controller leads now; nothing was written."""


class StoreBusyError(StoreError):
    """A live controller already leads this store."""


class DamagedError(StoreError):
    """The file is there but is no store that can be read."""


class FullError(StoreError):
    """The disk of the store is full; nothing was written."""


class StoreRefusedError(StoreError):
    """The store is well and refuses what it was given to hold; nothing of it was written."""


def is_of_store(error: Exception) -> bool:
    """Whether the store itself can't be used, whatever is written to it."""
    return isinstance(error, StoreError) and not isinstance(error, StoreRefusedError)

"""What can go wrong with a store, each with what to do about it in its message."""


class StoreError(Exception):
    """The store can't be used as asked; the message says where, what was found, what to do."""


class DeposedError(StoreError):
    """Another controller leads now; nothing was written."""


class StoreBusyError(StoreError):
    """A live controller already leads this store."""


class DamagedError(StoreError):
    """The file is there but is no store that can be read."""

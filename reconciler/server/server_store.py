"""The store as the server reads it: opened when it is first needed, closed with the application."""

from reconciler.store import StoreReader


class ServerStore:
    """The store that the loop writes; the server starts before there may be one.

    Args:
        url: the address of the store, ``sqlite:///PATH``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._reader: StoreReader | None = None

    @property
    def reader(self) -> StoreReader:
        """The reader that all threads share, opened on first use and again after ``close``.

        Raises:
            StoreError: it can't be opened now.
        """
        if self._reader is None:
            self._reader = StoreReader.open(self.url)
        return self._reader

    def close(self) -> None:
        """Close the connections, if any were opened."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

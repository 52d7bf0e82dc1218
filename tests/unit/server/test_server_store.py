"""The store is opened when it is first needed, and tried again until it is there."""

from pathlib import Path

import pytest

from reconciler.server.server_store import ServerStore
from reconciler.store import Store, StoreError


def test_a_store_that_comes_later_is_opened_once(tmp_path: Path) -> None:
    store = ServerStore(f"sqlite:///{tmp_path / 'store.db'}")
    store.close()  # nothing was opened
    with pytest.raises(StoreError):
        _ = store.reader
    Store.open(store.url).close()
    reader = store.reader
    assert reader is store.reader
    assert reader.nodes() == []
    store.close()
    store.close()
    assert store.reader is not reader
    store.close()

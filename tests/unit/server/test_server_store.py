"""The store is opened when it is first needed, and tried again until it is there."""

import asyncio
from pathlib import Path

import pytest

from reconciler.server import server_store
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


def test_it_is_never_opened_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_store, "RETRY_S", 0.0)
    store = ServerStore(f"sqlite:///{tmp_path / 'store.db'}")

    async def run() -> None:
        await store.open()  # which changes nothing: it is not there
        with pytest.raises(StoreError, match="it is not open yet; try again"):
            _ = store.reader
        Store.open(store.url).close()
        await store.keep_open()
        assert store.reader.nodes() == []

    asyncio.run(run())
    store.close()

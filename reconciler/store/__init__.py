"""Durable state on SQL: a decision is committed here before anybody hears of it.

``Store`` belongs to the loop, the only writer; ``StoreReader`` to every process that shows state.
One commit a cycle holds records, events, views and the inputs that led to them.
"""

from reconciler.store.errors import DamagedError, DeposedError, StoreBusyError, StoreError
from reconciler.store.sql_store import CycleExtras, Store
from reconciler.store.store_reader import StoreReader

__all__ = [
    "CycleExtras",
    "DamagedError",
    "DeposedError",
    "Store",
    "StoreBusyError",
    "StoreError",
    "StoreReader",
]

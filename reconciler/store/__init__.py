"""Durable state on SQL: what a cycle decided is committed here before anybody is told.

``Store`` belongs to the loop, which alone writes; ``StoreReader`` to every process that shows what
is known. One commit a cycle holds records, events, views and the input that led to them.
"""

from reconciler.store.errors import DamagedError, DeposedError, StoreBusyError, StoreError
from reconciler.store.sql_store import Store
from reconciler.store.store_reader import StoreReader

__all__ = ["DamagedError", "DeposedError", "Store", "StoreBusyError", "StoreError", "StoreReader"]

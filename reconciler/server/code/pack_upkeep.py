"""Removes packs of code that no job needs any more, now and then."""

import asyncio
import logging

from litestar.concurrency import sync_to_thread

from reconciler.server.code import pack_store
from reconciler.server.server_store import ServerStore
from reconciler.store import StoreError, StoreReader, statements

_LOG = logging.getLogger("muster.housekeeping")

#: How often it is looked.
EVERY_S = 3600.0
_PAGE = 1000


async def run(packs: pack_store.PackStore, store: ServerStore) -> None:
    """Look until cancelled."""
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            count = await sync_to_thread(lambda: packs.prune(named_packs(store.reader)))
        except (StoreError, OSError) as error:
            _LOG.warning("code that no job needs stays for now: %s", error)
        except Exception:
            _LOG.exception("an internal error kept code that no job needs")
        else:
            if count:
                _LOG.info("packs of code that no job names were removed: %d", count)


def named_packs(reader: StoreReader) -> pack_store.NamedPacks:
    """Return the packs that jobs name: those in the desired state, and those that run.

    Raises:
        StoreError: the store can't be read.
    """
    found: list[tuple[str, bool]] = []
    after: str | None = None
    while True:
        page = reader.jobs(limit=_PAGE, after=after)
        found += [(one.spec.code.digest, not one.finished) for one in page]
        if len(page) < _PAGE:
            break
        after = statements.cursor(page[-1])
    # earlier runs of a job, which is listed by its newest
    found += [(one.spec.code.digest, True) for one in reader.holders().jobs.values()]
    return pack_store.named_by(found)

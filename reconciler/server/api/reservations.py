"""The reservations that keep nodes, for commands and pages that show nodes."""

import time
from typing import Any

from litestar import get
from litestar.di import NamedDependency

from reconciler.operations.views import reservation_views, stored_views
from reconciler.server.api import entity_tags, envelopes, field_choice
from reconciler.server.api.queries import FAILS
from reconciler.server.loop_link import LinkClient
from reconciler.server.server_store import ServerStore


@get("/v1/reservations", sync_to_thread=True, responses=FAILS, summary="Reservations of nodes")
@entity_tags.tagged
def reservations(
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
    fields: field_choice.Fields = None,
) -> envelopes.ReservationsEnvelope:
    """Return the reservations that are open or come, with their next window."""
    structure = stored_views.stored_structure(store.reader.view(stored_views.STRUCTURE))
    shown = reservation_views.shown(structure, time.time())
    return field_choice.listed(envelopes.ReservationsEnvelope, shown, link.published, fields)


HANDLERS: list[Any] = [reservations]

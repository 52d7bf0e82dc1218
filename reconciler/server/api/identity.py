"""The caller of a call: what a token stands for, as this controller sees it."""

import time
from typing import Any

from litestar import Request, get
from litestar.di import NamedDependency

from reconciler import __version__
from reconciler.model import desired
from reconciler.model.values import times
from reconciler.operations.views import identity_views, stored_views
from reconciler.server.api import envelopes
from reconciler.server.api.queries import FAILS
from reconciler.server.auth import authentication
from reconciler.server.loop_link import LinkClient
from reconciler.server.server_store import ServerStore


@get("/v1/identity", sync_to_thread=True, responses=FAILS, summary="Who calls")
def identity(
    request: Request[Any, Any, Any],
    store: NamedDependency[ServerStore],
    link: NamedDependency[LinkClient],
) -> envelopes.IdentityEnvelope:
    """Return what the token of this call stands for, and the clock that judges it."""
    structure = stored_views.stored_structure(store.reader.view(stored_views.STRUCTURE))
    caller = authentication.identity_of(request)
    shown = identity_views.shown(structure or desired.Structure(), caller.name)
    return envelopes.IdentityEnvelope(
        identity=shown,
        role=caller.role,
        expires_at=None if caller.expires_at is None else times.format_time(caller.expires_at),
        version=__version__,
        ready=link.ready,
        time=times.format_time(time.time()),
        **envelopes.head(link.published),
    )


HANDLERS: list[Any] = [identity]

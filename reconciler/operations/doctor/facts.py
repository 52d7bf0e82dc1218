"""Looks at everything that ``examination`` judges: the controller, git, and this environment."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from reconciler import __version__
from reconciler.model.values import times
from reconciler.operations import local_git
from reconciler.operations.changes import submit_folder
from reconciler.operations.client import api_client, endpoints
from reconciler.operations.doctor import examination

Json = Any
#: How long the controller is waited for.
ANSWER_S = 10.0


def gather(
    server: str | None,
    token_file: str | None,
    here: Path,
    *,
    environment: Mapping[str, str] = os.environ,
    wall: Callable[[], float] = time.time,
) -> examination.DoctorFacts:
    """Return what is seen from a folder.

    Args:
        server, token_file: as given with the command; None: as configured.
        here: current folder.
        environment: variables of this process.
        wall: seconds since the epoch.
    """
    around = submit_folder.around(environment, sys.prefix)
    seen = examination.DoctorFacts(
        url="",
        source="",
        git_email=local_git.user_email(here),
        git_signs=local_git.signs(here),
        python=None if around.python is None else str(around.python),
        is_own_python=around.own,
        version=__version__,
    )
    try:
        endpoint = endpoints.find(server, token_file, here)
    except endpoints.EndpointError as error:
        is_known = server or environment.get("MUSTER_SERVER") or endpoints.file_for(here)
        return msgspec.structs.replace(seen, problem=str(error) if is_known else "")
    seen = msgspec.structs.replace(seen, url=endpoint.url, source=_source(server, here))
    return _asked(seen, endpoint, wall)


def _asked(
    seen: examination.DoctorFacts, endpoint: endpoints.Endpoint, wall: Callable[[], float]
) -> examination.DoctorFacts:
    """Return what is seen with what the controller answers."""
    try:
        with api_client.ApiClient(endpoint, timeout_s=ANSWER_S) as api:
            asked_at = wall()
            answer = api.get("/v1/identity")
            answered_at = wall()
            nodes = api.get("/v1/nodes")["items"]
            adoption = api.get("/v1/adopt")
    except endpoints.EndpointError as error:
        return msgspec.structs.replace(seen, token_problem=str(error))
    except api_client.ApiError as error:
        if error.status in {401, 403}:
            return msgspec.structs.replace(seen, token_problem=str(error))
        return msgspec.structs.replace(seen, problem=str(error))
    theirs, ends = times.parse_time(answer["time"]), answer["expiresAt"]
    return msgspec.structs.replace(
        seen,
        answer=answer,
        nodes=nodes,
        adoption=adoption,
        skew_s=_beyond(theirs, asked_at, answered_at),
        ends_in_s=None if ends is None else times.parse_time(ends) - theirs,
    )


def _beyond(theirs: float, asked_at: float, answered_at: float) -> float:
    """Return how far this clock is ahead of theirs, for sure."""
    if asked_at > theirs:
        return asked_at - theirs
    return min(answered_at - theirs, 0.0)


def _source(server: str | None, here: Path) -> str:
    """Return where an endpoint comes from, in words."""
    if server or os.environ.get("MUSTER_SERVER"):
        return "by --server or MUSTER_SERVER"
    path = endpoints.file_for(here)
    return "by muster login" if path == endpoints.login_file() else f"by {path}"

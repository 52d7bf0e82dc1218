"""What a revision would do, and the snapshot that such a plan is made against.

Both go through everything that the store holds, and a plan decides many cycles: each is made in a
process of its own, so that agents are answered as quickly meanwhile, one at a time, and not without
end.
"""

import asyncio
import sys
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.datastructures import State
from litestar.params import Parameter

from reconciler.operations import planning, snapshots
from reconciler.server import failures, services

#: The longest that one may take.
RUN_S_MAX = 120.0
#: How many may wait for the one under way.
WAITING_MAX = 8
SNAPSHOT = "application/vnd.muster.snapshot"
_STATUS = {planning.NOT_FOUND: 404, planning.NOTHING_IN_FORCE: 409, planning.UNREADABLE: 503}

Revision = Annotated[str, Parameter(pattern=r"^[0-9a-f]{40}$", description="A commit's id.")]


class Plans:
    """Makes one plan or snapshot at a time for the server of one store."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def make(self, module: str, *arguments: str) -> tuple[int, bytes]:
        """The exit status of a module over the store, and what it wrote.

        Raises:
            Failure: too many wait already, or it took too long.
        """
        if self._waiting >= WAITING_MAX:
            raise failures.Failure(429, f"{WAITING_MAX} plans wait already", retry_after_s=5.0)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._run(module, *arguments)
        finally:
            self._waiting -= 1

    async def _run(self, module: str, *arguments: str) -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, "--store", self._store_url, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            told, _ = await asyncio.wait_for(process.communicate(), RUN_S_MAX)
        except TimeoutError:
            raise failures.Failure(
                503, f"it took longer than {RUN_S_MAX:.0f} s and was ended"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, told


@get(
    "/v1/snapshot/records",
    media_type=SNAPSHOT,
    responses=failures.responses(400, 401, 403, 429, 500, 503),
    summary="All that the controller knows, whole and packed: what `muster plan --against` takes",
)
async def snapshot(state: State) -> Response[bytes]:
    """As of the last commit of the store."""
    plans: Plans = state.plans
    status, body = await plans.make(snapshots.__name__)
    if status:
        raise failures.Failure(503, body.decode(errors="replace") or "no snapshot could be made")
    return Response(body, media_type=SNAPSHOT)


@get(
    "/v1/plan",
    responses=failures.responses(400, 401, 403, 404, 409, 429, 500, 501, 503),
    summary="What a revision would change, what that does to the cluster, and what comes of it",
)
async def plan(
    state: State,
    revision: Revision,
    base: Annotated[
        str | None,
        Parameter(pattern=r"^[0-9a-f]{40}$", description="Else what is in force."),
    ] = None,
) -> planning.Plan:
    """Nothing is changed. The revision has to be in the repository that is in force."""
    service: services.Services = state.services
    if service.repository is None:
        raise failures.Failure(501, "this controller reads no repository on its own machine")
    folder, sub_path = service.repository
    plans: Plans = state.plans
    status, told = await plans.make(
        planning.__name__,
        *("--repository", str(folder), "--path", sub_path, "--head", revision),
        *(("--base", base) if base else ()),
    )
    if status in _STATUS:
        raise failures.Failure(_STATUS[status], told.decode(errors="replace"))
    if status:
        raise failures.Failure(500, "the plan failed; the server's log has it")
    return msgspec.json.decode(told, type=planning.Plan)


HANDLERS = [snapshot, plan]

"""Both futures of a plan at once, each in a process of its own where that is quicker.

The two have nothing in common but what they start from. A forked child has all of that without
copying it, decides one of them, and sends back what came of it; the parent decides the other
meanwhile. Where a fork is unsafe or of no use both are decided here, and the answer is the same.
"""

import msgspec

from reconciler.desired.git import forked_worker
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.simulation.forecast import cluster_forecast, forecast_diff

#: From how many jobs on a second process is worth its start.
JOBS_MIN = 500
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(cluster_forecast.Future).decode


def forecast(
    base: desired.Desired,
    head: desired.Desired,
    observed: records.Observed,
    now: float,
    horizon_s: float = cluster_forecast.HORIZON_S,
) -> forecast_diff.Forecast:
    """Return what a change does to starts, by two ``cluster_forecast.future``s on two processors.

    Raises:
        SimulationError: controller and nodes do not come to rest.
    """
    nodes = frozenset(base.structure.pool_of_node())

    def future(wanted: desired.Desired) -> cluster_forecast.Future:
        return cluster_forecast.future(wanted, observed, now, base_nodes=nodes, horizon_s=horizon_s)

    child = forked_worker.begin(lambda: _encode(future(base))) if _is_worth_it(observed) else None
    try:
        after = future(head)
    except BaseException:
        if child is not None:
            child.leave()
        raise
    encoded = child.result() if child is not None else None
    before = _decode(encoded) if encoded is not None else future(base)
    return forecast_diff.compare(
        base, head, observed, now, before=before, after=after, horizon_s=horizon_s
    )


def _is_worth_it(observed: records.Observed) -> bool:
    """Return True if there is work and a processor for two, and no thread that a fork
    would lose.
    """
    return len(observed.jobs) >= JOBS_MIN and forked_worker.processors() > 1

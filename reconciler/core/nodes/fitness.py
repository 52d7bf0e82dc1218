"""The fit of a node, as it reports, with what its pool declares.

Health asks of the pool in force, and safety of the pool that a change proposes, so that a plan says
of a node what will become of it. Nothing here depends on time or on other nodes, but for what the
brake has noted of them in the record.
"""

from reconciler.core.nodes import flapping, mismatches
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.state import records


def lacks(inventory: records.Inventory, pool: desired.Pool) -> str:
    """Return what a node has less of than its pool declares; empty if nothing."""
    return "; ".join(one.message for one in mismatches.find_mismatches(inventory, pool))


def failed_checks(
    inventory: records.Inventory, pool: desired.Pool
) -> list[health_checks.CheckResult]:
    """Return the failed checks that count in the pool, in the order in which they are reported."""
    return [one for one in pool.counted(inventory.checks) if one.verdict == "failed"]


def failure(result: health_checks.CheckResult) -> str:
    """Return the message of a node on which a check fails."""
    return f"check {result.name} failed: {result.message}"


def unfit(node: records.NodeRecord, pool: desired.Pool) -> str:
    """Return why a node takes no work in a pool; empty if it may, or if a brake holds it."""
    missing = lacks(node.inventory, pool)
    if missing:
        return missing
    if node.brake is not None and node.brake.held:
        return ""
    failed = failed_checks(node.inventory, pool)
    if failed:
        return failure(failed[0])
    return flapping.message(node, pool) if flapping.keeps_out(node, pool) else ""

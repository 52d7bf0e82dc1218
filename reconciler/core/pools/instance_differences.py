"""Differences between the instances that pools request and those that exist."""

from collections.abc import Iterator

from reconciler.core.detected_drift import DetectedDrift
from reconciler.core.pools import provisioning
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.values import times


def differences(states: provisioning.PoolStates) -> Iterator[DetectedDrift]:
    """Yield differences from what pools request that could not be corrected."""
    for pool_record in states.values():
        for orphan in pool_record.orphans.values():
            if orphan.seen < provisioning.LISTS_MIN:
                continue
            name = f" as {orphan.node}" if orphan.node else ""
            message = f"{orphan.id} exists{name}, but nobody requested it"
            if orphan.failure:
                message += f"; it could not be destroyed: {orphan.failure}"
            yield DetectedDrift(
                "instance-orphaned",
                f"{pool_record.name}/{orphan.id}",
                message,
                pool=pool_record.name,
                node=orphan.node,
            )
        for one in pool_record.instances.values():
            if one.state is InstanceState.DESTROYING and one.failure:
                message = f"{one.request} could not be destroyed: {one.failure}"
                yield DetectedDrift(
                    "instance-left-over", one.node, message, pool=pool_record.name, node=one.node
                )
        if pool_record.failures > pool_record.asked.retries:
            retry_at = times.format_time(pool_record.retry_at)
            yield _not_growing(
                pool_record.name,
                f"{pool_record.failure}; the next node is requested from {retry_at} on",
            )
        elif pool_record.spent_until is not None:
            text = pool_record.spent_text(pool_record.spent_until)
            yield _not_growing(pool_record.name, f"the pool {text}")
        if pool_record.list_failure:
            message = f"list failed: {pool_record.list_failure}"
            yield DetectedDrift(
                "provisioner-failing", pool_record.name, message, pool=pool_record.name
            )


def _not_growing(pool: str, message: str) -> DetectedDrift:
    return DetectedDrift("pool-not-growing", pool, message, pool=pool)

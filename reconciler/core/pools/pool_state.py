"""The record of one provisioned pool while a cycle works on it.

``provisioning`` and ``autoscaling`` change it: instances are requested, change state, fail and
leave. At the end of the cycle it returns a new record, or the old one if nothing changed.
"""

from typing import TypeVar

import msgspec

from reconciler.core.cycle import cycle_alarm, cycle_events
from reconciler.model import desired
from reconciler.model.state import instance_records, outcome
from reconciler.model.state.instance_records import InstanceState
from reconciler.model.values import quantities, times

#: Waits between tries of a script: doubled each time up to the maximum.
BACKOFF_S = 10.0
BACKOFF_S_MAX = 600.0
#: How long a pool is paused after more failures than ``retries``: doubled each time up to the
#: maximum.
PAUSE_S = 1800.0
PAUSE_S_MAX = 8 * 3600.0
HOUR_S = 3600.0
#: Longer numbers in listed requests were not made by Muster.
_NUMBER_DIGITS_MAX = 15


class PoolState:
    """The record of one provisioned pool while a cycle works on it.

    Args:
        base: the last record.
        pool: as git declares it; None if it no longer does.
        suspended: True if the cluster is suspended, so that no script runs.
        now: seconds since the epoch.
        events: of this cycle.
        alarm: set to the next moment at which something is due.
        actions: of this cycle, to which runs of scripts are added.
    """

    def __init__(
        self,
        base: instance_records.Provision,
        pool: desired.Pool | None,
        *,
        suspended: bool,
        now: float,
        events: cycle_events.CycleEvents,
        alarm: cycle_alarm.CycleAlarm,
        actions: list[outcome.Action],
    ) -> None:
        self.suspended = suspended
        self.now = now
        self.events = events
        self.alarm = alarm
        self.actions = actions
        self.pool = pool
        self.base = base
        # if the clock was set back, moments may lie in the future and waits be too long
        self.instances = {slot: _past(one, now) for slot, one in base.instances.items()}
        self.orphans = {key: _bounded(one, now) for key, one in base.orphans.items()}
        self.freed = {slot: min(at, now) for slot, at in base.freed.items()}
        self.asked = base.asked
        if pool is not None and pool.provisioning is not None:
            self.asked = pool.provisioning
        # a changed configuration clears the failures
        other = self.asked != base.asked or (
            pool is not None
            and (pool.node_resources, pool.gpu_model) != (base.resources, base.gpu_model)
        )
        self.next_number = base.next_number
        self.failures = 0 if other else base.failures
        self.retry_at = 0.0 if other else min(base.retry_at, now + self._rest_s())
        self.failure = "" if other else base.failure
        self.changed_at = min(base.changed_at, now)
        in_hour = base.hour_began <= now < base.hour_began + HOUR_S
        self.hour_began = base.hour_began if in_hour else 0.0
        self.hour_creates = base.hour_creates if in_hour else 0
        self.listed_at = min(base.listed_at, now)
        self.list_at = min(base.list_at, now + BACKOFF_S_MAX)
        self.list_tries, self.list_open = base.list_tries, base.list_open
        self.list_failure = base.list_failure

    @property
    def name(self) -> str:
        """Name of the pool."""
        return self.base.pool

    @property
    def scripted(self) -> bool:
        """True if a script makes the instances.

        Otherwise they are agents on the controller's host.
        """
        return bool(self.asked.script)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the nodes that the pool may have."""
        return self.pool.nodes if self.pool is not None else ()

    @property
    def present(self) -> int:
        """The number of instances that exist to stay, or are being made."""
        return sum(one.state in instance_records.STAYING for one in self.instances.values())

    @property
    def is_known(self) -> bool:
        """True if the existing instances are known, which a script has to list first."""
        return not self.scripted or self.listed_at > 0

    @property
    def spent_until(self) -> float | None:
        """End of the hour whose creations are used up; None if more may be made."""
        is_spent = self.hour_creates >= self.asked.creates_per_hour
        return self.hour_began + HOUR_S if is_spent else None

    def may_create(self) -> bool:
        """Return True if one more node may be requested now.

        After a failure only one node at a time is made, until one joins.
        """
        if self.suspended or not self.is_known:
            return False
        waits_until = max(self.retry_at, self.spent_until or 0.0)
        if waits_until > self.now:
            self.alarm.wake(waits_until)
            return False
        return not self.failures or all(
            one.state is not InstanceState.CREATING for one in self.instances.values()
        )

    def free(self) -> list[str]:
        """Return slots without an instance, in order."""
        return [name for name in self.slots if name not in self.instances]

    def record(self) -> instance_records.Provision | None:
        """Return the record, the same object if unchanged, or None if it may be forgotten."""
        if self.pool is None and not self.instances and not self.orphans:
            return None
        has = self.pool
        renewed = msgspec.structs.replace(
            self.base,
            asked=self.asked,
            resources=has.node_resources if has else self.base.resources,
            gpu_model=has.gpu_model if has else self.base.gpu_model,
            labels=has.labels if has else self.base.labels,
            instances=self.instances,
            next_number=self.next_number,
            failures=self.failures,
            retry_at=self.retry_at,
            failure=self.failure,
            changed_at=self.changed_at,
            listed_at=self.listed_at,
            list_tries=self.list_tries,
            list_open=self.list_open,
            list_at=self.list_at,
            list_failure=self.list_failure,
            orphans=self.orphans,
            freed=self.freed,
            hour_began=self.hour_began,
            hour_creates=self.hour_creates,
        )
        return self.base if renewed == self.base else renewed

    # -- changes of instances

    def put(
        self, one: instance_records.InstanceRecord, **changes: object
    ) -> instance_records.InstanceRecord:
        """Change an instance."""
        renewed = self.instances[one.node] = msgspec.structs.replace(one, **changes)
        return renewed

    def move(
        self, one: instance_records.InstanceRecord, state: InstanceState, why: str
    ) -> instance_records.InstanceRecord:
        """Change an instance's state, which is an event."""
        renewed = self.instances[one.node] = instance_records.moved(one, state, self.now, why)
        self.events.add(f"Instance{state.value}", f"{one.request}: {why}", node=one.node)
        return renewed

    def new_request(self, slot: str) -> str:
        """Return a request that was never used.

        It contains the time in milliseconds, because the pool's record can be lost, and scripts
        remember requests for longer.
        """
        number = max(self.next_number, int(self.now * 1000))
        self.next_number = number + 1
        return f"{slot}.{number}"

    def know_request(self, slot: str, request: str) -> None:
        """Number later requests after one that a script knows from an earlier record."""
        number = request.removeprefix(f"{slot}.")
        if number != request and number.isdecimal() and len(number) <= _NUMBER_DIGITS_MAX:
            self.next_number = max(self.next_number, int(number) + 1)

    def create(self, slot: str, why: str) -> None:
        """Request a machine for a free slot."""
        request = self.new_request(slot)
        self.changed_at = self.now
        self.hour_began = self.hour_began or self.now
        self.hour_creates += 1
        one = instance_records.InstanceRecord(slot, InstanceState.CREATING, request, self.now, why)
        self.instances[slot] = one
        self.events.add("InstanceCreating", f"{request}: {why}", node=slot)
        if self.spent_until is not None:
            self.events.add("PoolPaused", f"pool {self.name} {self.spent_text(self.spent_until)}")
        self.alarm.wake(self.now)
        self.begin(one)

    def spent_text(self, until: float) -> str:
        """Return that the creations of an hour are used up, for people."""
        return (
            f"has made {quantities.counted(self.hour_creates, 'node')} since "
            f"{times.format_time(self.hour_began)}, as many as an hour may have; the next is made "
            f"from {times.format_time(until)} on. To change it: provision.createsPerHour"
        )

    def begin(self, one: instance_records.InstanceRecord) -> None:
        """Run the script for an instance's state, if there is one and it is time."""
        if not self.scripted or one.open or self.suspended:
            return
        if one.retry_at > self.now:
            self.alarm.wake(one.retry_at)
            return
        one = self.put(one, open=True, tries=one.tries + 1)
        verb: instance_records.Verb = "create" if one.state is InstanceState.CREATING else "destroy"
        self.actions.append(outcome.RunProvisioner(verb, self.name, one.request, one.tries))

    def empty(self, one: instance_records.InstanceRecord) -> None:
        """Remove an instance whose machine is gone."""
        del self.instances[one.node]
        self.freed[one.node] = self.now
        self.events.add("InstanceGone", f"{one.request}: {one.why}", node=one.node)

    def failed(self, message: str, *, at_once: bool = False) -> None:
        """Note that a node could not be made.

        Args:
            message: what went wrong.
            at_once: pause the pool without further tries, because they would end alike.
        """
        self.failures = max(self.failures, self.asked.retries if at_once else 0) + 1
        self.failure = message
        self.retry_at = self.now + self._rest_s()
        if self.failures > self.asked.retries:
            if not at_once:
                failed = quantities.counted(self.failures, "node")
                self.failure = f"{failed} in a row could not be made, the last: {message}"
            self.events.add(
                "PoolPaused",
                f"pool {self.name} is paused until {times.format_time(self.retry_at)}: "
                f"{self.failure}",
            )

    def _rest_s(self) -> float:
        """Return how long no nodes are made after as many failures in a row."""
        pauses = self.failures - self.asked.retries
        if pauses <= 0:
            return backoff_s(self.failures)
        return min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(pauses - 1, 16))


_Retried = TypeVar("_Retried", instance_records.InstanceRecord, instance_records.Orphan)


def _bounded(one: _Retried, now: float) -> _Retried:
    """Return an instance or orphan whose wait is no longer than its rule says."""
    latest = now + backoff_s(one.tries)
    return one if one.retry_at <= latest else msgspec.structs.replace(one, retry_at=latest)


def _past(one: instance_records.InstanceRecord, now: float) -> instance_records.InstanceRecord:
    """Return an instance none of whose moments lies in the future."""
    one = _bounded(one, now)
    if one.since > now:
        one = msgspec.structs.replace(one, since=now)
    if one.idle_since is not None and one.idle_since > now:
        one = msgspec.structs.replace(one, idle_since=now)
    return one


def backoff_s(tries: int) -> float:
    """Return how many seconds to wait after so many tries."""
    return min(BACKOFF_S_MAX, BACKOFF_S * 2.0 ** min(max(0, tries - 1), 16))

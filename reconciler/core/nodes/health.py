"""Third phase: decides which nodes may take work, and when the work of a silent node is given up.

A silent node is ``Unknown`` at once, but its tasks may still run. They are given up only after
their lease, their grace and a margin since the last answer that could renew the lease,
or if somebody confirms that the node is gone. An undeclared node is ``Gone`` only when
nothing of its work can run there.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from reconciler.core import cycle_attempts, cycle_cache, cycle_context, remedy_log
from reconciler.core.cycle import attempt_losses, cycle_alarm, cycle_events, cycle_nodes
from reconciler.core.nodes import fitness, flapping, health_brake
from reconciler.model import desired
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState, EndReason, NodeState
from reconciler.model.values import quantities, times

#: Added to lease and grace before work is started elsewhere, because a node needs a moment to stop.
LEASE_MARGIN_S = 2.0
#: Message of a node none of whose reports can be processed.
UNHEARD = (
    f"{desired.INTERNAL_ERROR} prevents all its reports from being processed: it gets no new work, "
    "and its tasks are started elsewhere once their leases have ended; the controller's log has "
    "the trace"
)
_AWAY = (NodeState.UNKNOWN, NodeState.GONE)


class _Ready(cycle_cache.CachePart):
    """A cache of ready nodes, and until when each stays so without news."""

    def __init__(self, cache: cycle_cache.CycleCache) -> None:
        super().__init__(cache)
        self.until = cycle_cache.Moments()
        self.others: set[str] = set(cache.nodes.known)
        self.pool_of: dict[str, str] = {}
        self._made_for: tuple[desired.Structure, float] | None = None

    def begin(
        self, structure: desired.Structure, since: float, nodes: cycle_nodes.CycleNodes, now: float
    ) -> None:
        """Forget everything if the structure or the leader changed.

        Args:
            structure: as git has it, or with suspensions by overrides.
            since: start of the leadership.
            nodes: of this cycle.
            now: seconds since the epoch.
        """
        if self._made_for is None or self._made_for[1] != since:
            _forget_the_future(nodes, now)
        if self._made_for is not None and self._made_for[0] is structure:
            if self._made_for[1] == since:
                return
        else:
            self.pool_of = structure.pool_of_node()
        self._made_for = (structure, since)
        self.until.clear()
        self.others = set(nodes.names())

    def look(
        self,
        nodes: cycle_nodes.CycleNodes,
        drained: AbstractSet[str],
        unheard: Iterable[str],
        now: float,
    ) -> list[str]:
        """Return the names of nodes whose state may change, sorted."""
        if drained:
            self.others |= drained & set(nodes.names())
        self.others.update(name for name in unheard if nodes.get(name) is not None)
        changed = self.take_nodes(nodes.renewed)
        self.others |= changed
        self.others.update(self.until.over(now))
        for name in changed:
            self.until.drop(name)
        return sorted(self.others)


@dataclasses.dataclass(frozen=True, slots=True)
class _Silence:
    """When nodes count as silent.

    Attributes:
        allowed_s: after the last contact.
        leader_since: start of the leadership. No node is silent before it could be heard.
        recovers: nodes that were not heard since then are silent at once.
    """

    allowed_s: float
    leader_since: float
    recovers: bool = False

    def begins_at(self, node: records.NodeRecord) -> float:
        """Return when the node counts as silent unless it is heard."""
        if self.recovers and node.last_report_at < self.leader_since:
            return self.leader_since
        return max(last_contact(node), self.leader_since) + self.allowed_s


def _forget_the_future(nodes: cycle_nodes.CycleNodes, now: float) -> None:
    """Set contacts that lie in the future to now, because the clock was set back.

    Otherwise their nodes would count as ready, however silent, until the clock has caught up.
    """
    for name in nodes.names():
        node = nodes.get(name)
        if node is not None and last_contact(node) > now:
            nodes.renew(
                node,
                last_report_at=min(node.last_report_at, now),
                last_answer_at=min(node.last_answer_at, now),
            )


def pool_of_node(
    cache: cycle_cache.CycleCache,
    structure: desired.Structure,
    leader_since: float,
    nodes: cycle_nodes.CycleNodes,
    now: float,
) -> Mapping[str, str]:
    """Return pool names by node name, as git has them."""
    part = cache.part(_Ready)
    part.begin(structure, leader_since, nodes, now)
    return part.pool_of


def out_of_service(cache: cycle_cache.CycleCache) -> list[str]:
    """Return the names of nodes that may get no new work, and of some that may, sorted."""
    return sorted(cache.part(_Ready).others)


def watch(
    context: cycle_context.CycleContext, structure: desired.Structure, *, recovers: bool
) -> None:
    """Update every node's state, and give up work whose lease has ended.

    Args:
        context: of this cycle.
        structure: in force.
        recovers: the store may be older than what nodes run, so that only those count as known
            which were heard since this leader began.
    """
    observed = context.observed
    nodes, now = context.nodes, context.now
    pool_of = pool_of_node(context.cache, structure, observed.leader_since, nodes, now)
    ready = context.cache.part(_Ready)
    allowed_s = structure.settings.node_silence_s
    silence = _Silence(allowed_s, observed.leader_since, recovers)
    rules = _NodeRules(
        nodes,
        context.attempts,
        context.remedies,
        silence=silence,
        unheard=observed.unheard,
        alarm=context.alarm,
        now=now,
    )
    names = ready.look(nodes, context.override_drains.keys(), observed.unheard, now)
    brakes = health_brake.HealthBrakes(
        nodes, context.events, context.alarm, now, absent=context.absent
    )
    brakes.count(names, pool_of)
    renew = functools.partial(_renew_state, rules=rules, brakes=brakes, context=context)
    for name in names:
        node = nodes.get(name)
        if node is None:
            ready.others.discard(name)
            continue
        pool = structure.pools.get(pool_of.get(name, ""))
        node = renew(node, pool)
        if node.state is NodeState.UNKNOWN:
            _doubt_attempts(context.attempts, node)
            renewed_at = max(last_contact(node), observed.leader_since)
            of_node = context.attempts.of_node(name)
            if _expire_leases(
                context.losses,
                context.alarm,
                now,
                node=node,
                attempts=of_node,
                renewed_at=renewed_at,
            ):
                renew(node, pool)
        elif node.state is NodeState.GONE:
            _give_up(context.attempts, context.losses, node)
        elif node.state is NodeState.READY and node.brake is None and name not in nodes.renewed:
            ready.until.put(name, silence.begins_at(node))
            ready.others.discard(name)
    soonest = ready.until.first()
    if soonest is not None:
        context.alarm.wake(soonest)


def last_contact(node: records.NodeRecord) -> float:
    """Return when the node was last heard or answered."""
    return max(node.last_report_at, node.last_answer_at)


def given_up_at(attempt: records.AttemptRecord, renewed_at: float) -> float | None:
    """Return when a task of a silent node is started elsewhere; None if it has no lease.

    Args:
        renewed_at: the last answer that can have renewed the lease, seconds since the epoch.
    """
    if attempt.lease_s is None:
        return None
    grace_s = max(attempt.grace_s, attempt.stop.grace_s if attempt.stop else 0)
    return renewed_at + attempt.lease_s + grace_s + LEASE_MARGIN_S


def black_hole_message(node: records.NodeRecord) -> str:
    """Return why a node on which tasks fail is out, and until when."""
    until = times.format_time(node.out_until)
    return (
        f"tasks of {len(node.failures)} owners failed here soon after they started and none "
        f"succeeded: Muster keeps it out until {until}"
    )


def _look_into_hole(
    nodes: cycle_nodes.CycleNodes,
    events: cycle_events.CycleEvents,
    now: float,
    node: records.NodeRecord,
    pool: desired.Pool | None,
) -> records.NodeRecord:
    """Take out a node on which tasks of different owners fail quickly, or let it back in."""
    hole = pool.black_hole if pool else None
    if hole is None:
        return node
    if node.out_until > now:  # the clock was set back
        return nodes.renew(node, out_until=min(node.out_until, now + hole.out_s))
    if node.out_until:
        return nodes.renew(node, failures=(), out_until=0.0)
    quick = [
        one for one in node.failures if one.ran_s <= hole.quick_s and one.at > now - hole.window_s
    ]
    if len(quick) < hole.owners:
        return node
    node = nodes.renew(node, failures=tuple(quick), out_until=now + hole.out_s)
    events.add("NodeBlackHole", black_hole_message(node), node=node.name)
    return node


def _renew_state(
    node: records.NodeRecord,
    pool: desired.Pool | None,
    *,
    rules: "_NodeRules",
    brakes: health_brake.HealthBrakes,
    context: cycle_context.CycleContext,
) -> records.NodeRecord:
    nodes, events, now = context.nodes, context.events, context.now
    node = _look_into_hole(nodes, events, now, node, pool)
    drain = pool.drains.get(node.name) if pool else None
    drain = drain or context.override_drains.get(node.name)
    node = flapping.look(nodes, events, now, node, pool, drained=drain is not None)
    node = brakes.look(node, pool, drained=drain is not None)
    state, message = rules.state_of(node, pool, drain)
    if drain is not None and state is NodeState.UNHEALTHY:
        message = f"{message}; drained: {drain_message(drain)}"
    leave = node.leave if pool is None else pool.leaving
    # whatever else is wrong: a node is often drained because it is unhealthy, and a flapping check
    # or a silence must not restart the drain's time
    leaves = leave is not None and (drain is not None or pool is None)
    return nodes.renew(
        node,
        state=state,
        message=message,
        drain=drain,
        pool=pool.name if pool else "",
        leave=leave,
        drain_since=(node.drain_since or now) if leaves else 0.0,
    )


def drain_message(drain: desired.NodeDrain) -> str:
    """Return why a node is drained, by whom, and until when."""
    until = f", an override until {times.format_time(drain.until)}" if drain.until else ""
    return f"{drain.reason}{_who(drain)}{until}"


def _who(drain: desired.NodeDrain) -> str:
    return f" ({drain.owner})" if drain.owner else ""


def _doubt_attempts(attempts: cycle_attempts.CycleAttempts, node: records.NodeRecord) -> None:
    for attempt in attempts.of_node(node.name):
        if attempt.state is not AttemptState.UNKNOWN:
            attempts.renew(attempt, state=AttemptState.UNKNOWN)


def _give_up(
    attempts: cycle_attempts.CycleAttempts,
    losses: attempt_losses.AttemptLosses,
    node: records.NodeRecord,
) -> None:
    """End all attempts on a node that is known to be gone."""
    for attempt in attempts.of_node(node.name):
        losses.lose(attempt, EndReason.NODE_LOST, f"{node.name} is gone")


def _expire_leases(
    losses: attempt_losses.AttemptLosses,
    alarm: cycle_alarm.CycleAlarm,
    now: float,
    *,
    node: records.NodeRecord,
    attempts: Iterable[records.AttemptRecord],
    renewed_at: float,
) -> bool:
    """Give up attempts on a silent node whose lease has ended. Return True if there were any."""
    lost = False
    for attempt in attempts:
        ends_at = given_up_at(attempt, renewed_at)
        if ends_at is None:
            continue
        if ends_at <= now:
            message = f"{node.name} was not heard of for {now - last_contact(node):.0f} s"
            losses.lose(attempt, EndReason.NODE_LOST, message)
            lost = True
        else:
            alarm.wake(ends_at)
    return lost


def _strays_message(node: records.NodeRecord) -> str:
    """Return the message of a node that runs what no record says."""
    if node.unproven:
        first = node.unproven[0].report.id
        return (
            f"nothing proves that {len(node.unproven)} tasks were assigned here, such as {first}: "
            "`muster adopt` asks if that is so"
        )
    return f"{len(node.unwanted)} abandoned tasks still run, such as {node.unwanted[0]}"


def _lacks_devices(attempt: records.AttemptRecord) -> bool:
    """Return True if a task uses GPUs, or instances of them, of which nobody knows which."""
    return bool(attempt.resources.gpu_milli and not (attempt.devices or attempt.instances))


class _NodeRules:
    """The rules for the states of nodes.

    Args:
        nodes: of this cycle.
        attempts: of this cycle.
        remedies: of the last day. Open ones keep nodes out of service.
        silence: when nodes count as silent.
        unheard: nodes whose reports are quarantined.
        alarm: set to when time alone changes a state.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        nodes: cycle_nodes.CycleNodes,
        attempts: cycle_attempts.CycleAttempts,
        remedies: remedy_log.RemedyLog,
        *,
        silence: _Silence,
        unheard: Collection[str],
        alarm: cycle_alarm.CycleAlarm,
        now: float,
    ) -> None:
        self._nodes = nodes
        self._attempts = attempts
        self._remedies = remedies
        self._silence = silence
        self._unheard = unheard
        self._alarm = alarm
        self._now = now

    def state_of(
        self,
        node: records.NodeRecord,
        pool: desired.Pool | None,
        drain: desired.NodeDrain | None,
    ) -> tuple[NodeState, str]:
        silent_at = self._silence.begins_at(node)
        never_heard = node.last_report_at == 0.0
        attempts = self._attempts.of_node(node.name)
        busy = bool(attempts)
        if never_heard or silent_at <= self._now:
            if drain is not None and drain.gone:
                return NodeState.GONE, f"{drain.reason}{_who(drain)}"
            if pool is None:
                return self._undeclared(node)
            return NodeState.UNKNOWN, "not heard of"
        self._alarm.wake(silent_at)
        if node.state in _AWAY and not self._heard_again(node):
            return node.state, node.message
        if pool is None:
            return NodeState.DRAINING if busy else NodeState.DRAINED, "no pool declares it"
        missing = fitness.lacks(node.inventory, pool)
        if missing:
            return NodeState.UNHEALTHY, missing
        if node.name in self._unheard:
            return NodeState.UNHEALTHY, UNHEARD
        if node.undecided:
            return NodeState.UNHEALTHY, node.undecided
        held = node.brake is not None and node.brake.held
        failed = fitness.failed_checks(node.inventory, pool)
        if failed and not held:
            later = flapping.outlook(node, pool)
            return NodeState.UNHEALTHY, fitness.failure(failed[0]) + later
        remedy = self._remedies.open_on(node.name)
        if remedy is not None:
            return (
                NodeState.UNHEALTHY,
                f"{remedy.verb} is in progress: nothing starts until it ends",
            )
        if flapping.keeps_out(node, pool) and not held:
            self._alarm.wake(node.flapping.until)
            return NodeState.UNHEALTHY, flapping.message(node, pool)
        if node.out_until > self._now and pool.black_hole is not None:
            self._alarm.wake(node.out_until)
            return NodeState.UNHEALTHY, black_hole_message(node)
        if node.unproven or node.unwanted:
            return NodeState.UNHEALTHY, _strays_message(node)
        if blind := sum(_lacks_devices(one) for one in attempts):
            return NodeState.UNHEALTHY, (
                f"its agent forgot which GPUs {quantities.counted(blind, 'task')} "
                f"{'uses' if blind == 1 else 'use'}: nothing starts here before they end"
            )
        if drain is not None:
            state = NodeState.DRAINING if busy else NodeState.DRAINED
            return state, drain_message(drain)
        return NodeState.READY, health_brake.message(node) if held else ""

    def _heard_again(self, node: records.NodeRecord) -> bool:
        """Return True if a silent node has been heard since.

        Nothing else ends the silence, neither a new leader nor a longer allowed silence.
        """
        before = self._nodes.known.get(node.name)
        return before is None or last_contact(node) > last_contact(before)

    def _undeclared(self, node: records.NodeRecord) -> tuple[NodeState, str]:
        """Return the state of a silent node in no pool: gone once nothing can run there."""
        attempts = self._attempts.of_node(node.name)
        if not attempts:
            return NodeState.GONE, "silent, and no pool declares it"
        message = "not heard of, and no pool declares it"
        endless = sum(attempt.lease_s is None for attempt in attempts)
        if endless:
            waits, them = ("waits", "it") if endless == 1 else ("wait", "them")
            message += (
                f"; {quantities.counted(endless, 'task')} without a lease {waits} for it: an "
                f"override with `gone: true` in a pool that has it gives {them} up"
            )
        return NodeState.UNKNOWN, message

"""Keeps out a node whose health checks come and go, longer each time.

Each turn from well to failing is noted. After too many within a while (``desired.FlappingPolicy``)
the node has to be well without a break for a time that doubles with each further turn. When a
person drains the node and the drain ends, it starts clean.
"""

import msgspec

from reconciler.core.cycle import cycle_events, cycle_nodes
from reconciler.model import desired
from reconciler.model.observed import health_checks
from reconciler.model.state import records
from reconciler.model.values import quantities, times

#: The most doublings of the exclusion, which is bounded anyway.
DOUBLED_MAX = 30
#: The most turns of a node that are remembered, which is the most a pool can configure.
TURNS_MAX = 16


def look(
    nodes: cycle_nodes.CycleNodes,
    events: cycle_events.CycleEvents,
    now: float,
    node: records.NodeRecord,
    pool: desired.Pool | None,
    *,
    drained: bool,
) -> records.NodeRecord:
    """Note if the node has turned failing or well, and begin or end its exclusion."""
    before = node.flapping
    failed = _failed(node, pool)
    turned = msgspec.structs.replace(before, failing=bool(failed))
    if pool is None or pool.checks is None or pool.flapping.out_s == 0 or drained:
        turned = health_checks.CheckFlapping(failing=bool(failed))
    elif failed and not before.failing:
        turned = _turned_failing(events, now, node, pool, failed[0])
    elif not failed and before.held:
        turned = _is_well(now, before, pool.flapping)
    return node if turned == before else nodes.renew(node, flapping=turned)


def keeps_out(node: records.NodeRecord, pool: desired.Pool) -> bool:
    """Return True if only its unsteady checks keep the node out."""
    return pool.checks is not None and node.flapping.held and not node.flapping.failing


def message(node: records.NodeRecord, pool: desired.Pool) -> str:
    """Return why a node with passing checks is out, and until when."""
    was = node.flapping
    window = quantities.format_duration(pool.flapping.window_s)
    return (
        f"its checks failed {quantities.counted(len(was.at), 'time')} within {window}, last "
        f"{was.check}: Muster keeps it out until {times.format_time(was.until)}, longer each time"
    )


def outlook(node: records.NodeRecord, pool: desired.Pool) -> str:
    """Return the note that a failing node stays out after it is well again.

    Empty if it does not.
    """
    if not node.flapping.held:
        return ""
    out = quantities.format_duration(_out_s(node.flapping, pool.flapping))
    return f"; it comes and goes: once well it stays out for {out}"


def _failed(node: records.NodeRecord, pool: desired.Pool | None) -> list[str]:
    if pool is None or pool.checks is None:
        return []
    return [one.name for one in node.inventory.checks if one.verdict == "failed"]


def _out_s(was: health_checks.CheckFlapping, rule: desired.FlappingPolicy) -> int:
    return min(rule.out_max_s, rule.out_s << min(max(was.holds - 1, 0), DOUBLED_MAX))


def _turned_failing(
    events: cycle_events.CycleEvents,
    now: float,
    node: records.NodeRecord,
    pool: desired.Pool,
    check: str,
) -> health_checks.CheckFlapping:
    rule, was = pool.flapping, node.flapping
    recent = [at for at in was.at if at > now - rule.window_s]
    at = (*recent, now)[-TURNS_MAX:]
    if not was.held and len(at) < rule.failures:
        return msgspec.structs.replace(was, failing=True, at=at, check=check)
    calm = not was.held and now - was.until > rule.window_s
    holds = 1 if calm else was.holds + 1
    turned = health_checks.CheckFlapping(failing=True, at=at, held=True, holds=holds, check=check)
    if not was.held:
        out = quantities.format_duration(_out_s(turned, rule))
        window = quantities.format_duration(rule.window_s)
        often = quantities.counted(len(at), "time")
        text = f"its checks failed {often} within {window}, last {check}: {out}"
        events.add("NodeFlapping", f"{text} out once they are well", node=node.name)
    return turned


def _is_well(
    now: float,
    was: health_checks.CheckFlapping,
    rule: desired.FlappingPolicy,
) -> health_checks.CheckFlapping:
    """Return the state of an excluded node that is well now."""
    ends_at = now + _out_s(was, rule)
    # earlier than planned if git says less now, or if the clock was set back
    until = ends_at if was.failing else min(was.until, ends_at)
    if until <= now:
        return health_checks.CheckFlapping(holds=was.holds, until=until, check=was.check)
    return msgspec.structs.replace(was, failing=False, until=until)

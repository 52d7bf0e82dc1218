"""Nodes that take no work: the short texts in reasons of pending jobs."""

import msgspec
import pytest

from reconciler.core.nodes import unschedulable_nodes
from reconciler.model.state import records
from reconciler.model.state.pending_reasons import FunnelStep
from reconciler.model.state.states import NodeState
from reconciler.scheduling.inputs import snapshots
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation


@pytest.mark.parametrize(
    ("state", "message", "expected"),
    [
        (NodeState.READY, "", ""),
        (NodeState.UNHEALTHY, "check disk failed: 93 % full", "unhealthy (check disk failed)"),
        (NodeState.UNHEALTHY, "1 GPU of 2 declared", "unhealthy"),
        (NodeState.DRAINED, "fans (ops@example.org)", "drained"),
        (NodeState.DRAINING, "fans", "being drained"),
        (NodeState.UNKNOWN, "not heard of", "not heard of"),
    ],
)
def test_words(state: NodeState, message: str, expected: str) -> None:
    node = records.NodeRecord(name="n", state=state, pool="gpu", message=message)
    assert unschedulable_nodes.words(node) == expected
    if not expected:
        assert unschedulable_nodes.words(msgspec.structs.replace(node, pool="")) == "in no pool"
    assert unschedulable_nodes.words(None) == "never heard of"


def _close(s: Situation, closed: dict[int, str]) -> None:
    columns = s._columns
    s._columns = lambda: _with(columns(), closed)  # type: ignore[method-assign]


def _with(columns: snapshots.NodeColumns, closed: dict[int, str]) -> snapshots.NodeColumns:
    fields = {name: getattr(columns, name) for name in columns.__slots__}
    return snapshots.NodeColumns(**{**fields, "closed": closed})


def test_a_failing_check_is_named_and_its_end_is_the_advice() -> None:
    s = Situation().queue("main")
    s.node("a", gpu=8, accepts=False).node("b", gpu=8, accepts=False).node("c", gpu=8)
    s.job("on-c", gpu=8, on=("c",)).job("j", gpu=8)
    _close(s, {0: "unhealthy (check disk failed)", 1: "drained"})
    (reason,) = situations.reasons_of(s, s.decide(), "j")
    assert reason.funnel[:2] == (
        FunnelStep(1, "drained"),
        FunnelStep(1, "unhealthy (check disk failed)"),
    )
    assert reason.unblocks.endswith(
        "come free on one node, or until a node that is drained or unhealthy (check disk failed) "
        "takes work again"
    )


def test_where_every_node_is_closed_nothing_that_ends_would_help() -> None:
    s = Situation().queue("main").node("a", gpu=8, accepts=False)
    s.job("j", gpu=8)
    _close(s, {0: "unhealthy (check disk failed)"})
    (reason,) = situations.reasons_of(s, s.decide(), "j")
    assert "1 node: 1 unhealthy (check disk failed)" in reason.message
    assert reason.unblocks == (
        "wait until a node that is unhealthy (check disk failed) takes work again; `muster nodes` "
        "shows why"
    )
    too_small = Situation().queue("main").node("a", gpu=2, accepts=False).node("b", gpu=8)
    too_small.job("on-b", gpu=8, on=("b",)).job("j", gpu=8)
    _close(too_small, {0: "drained"})
    (reason,) = situations.reasons_of(too_small, too_small.decide(), "j")
    assert "takes work again" not in reason.unblocks, "what could not hold it is no advice"

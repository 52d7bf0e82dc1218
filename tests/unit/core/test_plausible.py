"""Whatever a node reports, neither cycles nor views fail."""

import enum
import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records, report_limits
from reconciler.model.state.states import NodeState
from reconciler.model.values.resources import Resources
from reconciler.operations.views import job_views
from reconciler.server import agent_sync, errors
from tests.unit.core.world import World, job

NUMBERS = [0, 1, -1, -3, 3, 1000, 1024, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
FLOATS = [0.0, 5.0, -1.0, 1e18, -1e18, 1e308, math.nan, math.inf, -math.inf]
TEXTS = ["", "x", "ok", "failed", "1g.10gb", "\0", "é😀", "../..", "x" * 3000]


def anything_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Return values that decode as a type of the wire, odd ones among them."""
    match kind:
        case inspect.StructType():
            fields = {f.encode_name: anything_of(f.type) for f in kind.fields if f.required}
            others = {f.encode_name: anything_of(f.type) for f in kind.fields if not f.required}
            return st.fixed_dictionaries(fields, optional=others)
        case inspect.IntType():
            return st.sampled_from(NUMBERS)
        case inspect.FloatType():
            return st.sampled_from(FLOATS)
        case inspect.StrType():
            return st.sampled_from(TEXTS)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.EnumType(cls=cls) if issubclass(cls, enum.Enum):
            return st.sampled_from([one.value for one in cls])
        case inspect.UnionType(types=types):
            return st.one_of([anything_of(one) for one in types])
        case inspect.VarTupleType(item_type=item):
            return st.lists(anything_of(item), max_size=3)
        case inspect.TupleType(item_types=items):
            return st.tuples(*[anything_of(one) for one in items])
        case inspect.DictType():
            return st.dictionaries(
                anything_of(kind.key_type), anything_of(kind.value_type), max_size=2
            )
    raise AssertionError(f"{kind} is new on the wire: say what it may hold")


def gpu_world() -> World:
    world = World(nodes=2, gpu=2)
    mig = (desired.MigLayout(1, (("1g.10gb", 7),)),)
    world.change_structure(pools={"pool": msgspec.structs.replace(world.pool, mig=mig)})
    world.commit(job("a", gpu=1), job("b", gpu=1), job("c"))
    world.settle()
    return world


def hear(world: World, node: str, said: agent_messages.SyncRequest) -> None:
    """Take over a report as the loop does."""
    world.nodes[node].sequence += 1
    known = world.nodes[node]
    world.memory.add_report(
        records.NodeReport(
            node=node,
            boot_id=known.boot_id,
            incarnation=known.incarnation,
            received_at=world.now,
            attempts=said.attempts,
            complete=said.complete,
            sequence=known.sequence,
            inventory=said.inventory,
            usage=said.usage,
            remedies=said.remedies,
        )
    )


REQUEST = anything_of(inspect.type_info(agent_messages.SyncRequest))
GPUS = st.lists(anything_of(inspect.type_info(records.Gpu)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(said=REQUEST, gpus=GPUS, parsed=st.booleans())
def test_no_report_stops_the_cycle_or_the_pages(
    said: dict[str, Any], gpus: list[Any], parsed: bool
) -> None:
    said |= {"node": "n0", "protocol": agent_messages.PROTOCOL_VERSION}
    said["inventory"] = (said.get("inventory") or {}) | {"gpus": gpus}
    body = msgspec.msgpack.encode(said)
    try:
        request = agent_sync.parse("n0", body)
    except errors.Failure:
        return  # of another type than the field, such as a number beyond 64 bits
    world = gpu_world()
    if not parsed:  # as an earlier controller has journalled it
        request = msgspec.msgpack.decode(body, type=agent_messages.SyncRequest)
    hear(world, "n0", request)
    world.cycle()
    world.advance(1)
    for node in world.memory.nodes.values():
        msgspec.json.encode(job_views.node_view(node, (), request.gpu_usage or ()))
    assert world.memory.nodes["n1"].state is NodeState.READY


def gpu(index: int, **changes: Any) -> records.Gpu:
    return records.Gpu(index, f"uuid{index}", "simulated", 2**30, simulated=True, **changes)


@pytest.mark.parametrize("index", [-1, -2, -3, -(2**63), 1024, 2**63])
@pytest.mark.parametrize("cut", [False, True])
def test_a_device_that_no_node_can_have_withholds_none(index: int, cut: bool) -> None:
    world = World(nodes=1, gpu=2)
    odd = gpu(index, mig_enabled=cut, state=devices.OK if cut else devices.LOST)
    has = records.Inventory(capacity=Resources(4000, 64 * 2**30, 2000), gpus=(gpu(0), gpu(1), odd))
    hear(world, "n0", agent_messages.SyncRequest("n0", "", "", inventory=has))
    world.commit(job("both", gpu=2))
    world.cycle()
    assert world.state("both").value == "Starting"
    assert [one.index for one in world.memory.nodes["n0"].inventory.gpus] == [0, 1]


@pytest.mark.parametrize("index", [-1, -3, 1024])
def test_a_device_that_was_taken_for_one_before_stops_nothing(index: int) -> None:
    world = World(nodes=1, gpu=2)
    world.cycle()
    node = world.memory.nodes["n0"]
    has = msgspec.structs.replace(
        node.inventory, gpus=(gpu(0), gpu(1), gpu(index, mig_enabled=True))
    )
    world.memory.nodes["n0"] = msgspec.structs.replace(node, inventory=has)
    world.memory = type(world.memory)(world.memory.observed((), {}), leader_since=world.now)
    world.commit(job("both", gpu=2))
    world.cycle()
    assert world.state("both").value == "Starting"


def test_a_device_that_is_told_twice_counts_once_and_less_than_nothing_is_nothing() -> None:
    world = World(nodes=1, gpu=2)
    has = records.Inventory(capacity=Resources(-5, -5, 2000), gpus=(gpu(0), gpu(0, state="lost")))
    hear(world, "n0", agent_messages.SyncRequest("n0", "", "", inventory=has))
    world.cycle()
    node = world.memory.nodes["n0"]
    assert node.inventory.capacity == Resources(0, 0, 2000)
    assert [one.state for one in node.inventory.gpus] == [devices.OK]
    assert node.state is NodeState.UNHEALTHY


@pytest.mark.parametrize("at", [1e18, math.nan, math.inf, -math.inf])
def test_use_is_of_no_time_that_is_to_come(at: float) -> None:
    world = World(nodes=1)
    used = records.NodeUsage(at=at, cpu_percent=math.nan, load_1m=math.inf, cache_bytes=-1)
    hear(world, "n0", agent_messages.SyncRequest("n0", "", "", usage=used))
    world.cycle()
    kept = world.memory.nodes["n0"].usage
    assert 0 <= kept.at <= world.now
    assert (kept.cpu_percent, kept.cache_bytes) == (0, 0)
    assert math.isfinite(kept.load_1m)


def test_what_is_shown_of_use_was_measured_by_now() -> None:
    used = records.NodeUsage(at=1e18, memory_used_bytes=-1)
    gpus = (
        devices.GpuUsage(0, "a", 1e18, utilization_ratio=math.nan),
        devices.GpuUsage(1, "b", 5.0, utilization_ratio=3.0),
        devices.GpuUsage(-1, "c", 5.0),
    )
    said = agent_messages.SyncRequest("n0", "", "", usage=used, gpu_usage=gpus)
    read = agent_sync.parse("n0", msgspec.msgpack.encode(said))
    assert read.usage is not None
    assert read.usage.at < 1e10
    assert read.usage.memory_used_bytes == 0
    assert read.gpu_usage is not None
    assert [(one.uuid, one.utilization_ratio) for one in read.gpu_usage] == [("a", None), ("b", 1)]
    assert read.gpu_usage[0].at == read.usage.at


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ((60.0, 45.0), (60.0, 45.0)),
        ((60.0, 90.0), (60.0, 60.0)),
        ((-1.0, math.nan), (0.0, 0.0)),
        ((math.inf, math.inf), (float(report_limits.AMOUNT_MAX),) * 2),
    ],
)
def test_the_time_of_gpus_is_kept_with_the_attempt(
    told: tuple[float, float], kept: tuple[float, float]
) -> None:
    world = World(nodes=1, cpu=1)
    world.commit(job("a"))
    world.settle()
    (attempt,) = world.attempts("a")
    node = world.nodes["n0"]
    node.end(attempt.id, world.now, exit_code=0)
    node.attempts[attempt.id] = msgspec.structs.replace(
        node.attempts[attempt.id], measured_gpu_s=told[0], busy_gpu_s=told[1]
    )
    world.hear()
    result = world.cycle()
    (ended,) = [one for one in result.attempts if one.id == attempt.id]
    assert (ended.measured_gpu_s, ended.busy_gpu_s) == kept

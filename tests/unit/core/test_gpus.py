"""GPUs that fail, differ from the declaration, or are held by strangers: node states and drift."""

from dataclasses import dataclass

import msgspec
import pytest

from reconciler.core.nodes import fitness
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.state import records
from reconciler.model.state.states import NodeState
from reconciler.model.values.resources import Resources
from tests.unit.core import world

GIB = 2**30


def gpu(index: int, *, state: str = devices.OK, message: str = "", mig: bool = False,
        model: str = "NVIDIA H200", memory: int = 141 * GIB,
        mode: str = "default") -> records.Gpu:  # fmt: skip
    return records.Gpu(
        index, f"GPU-{index}", model, memory, state=state, message=message, mig_enabled=mig,
        compute_mode=mode,
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    name: str
    gpus: tuple[records.Gpu, ...]
    lacks: str
    declared: int = 2
    driver: devices.GpuDriver | None = None


OFF = {"state": devices.LOST, "message": "it has fallen off the bus"}
ROWS = (
    Row("as declared", (gpu(0), gpu(1)), ""),
    Row("more than declared", (gpu(0), gpu(1), gpu(2)), ""),
    Row("one too few", (gpu(0),), "1 GPU, 2 declared"),
    Row("one is lost", (gpu(0), gpu(1, **OFF)),  # type: ignore[arg-type]
        "GPU 1 (GPU-1) is lost: it has fallen off the bus"),
    Row("a spare one is lost", (gpu(0), gpu(1), gpu(2, **OFF)), ""),  # type: ignore[arg-type]
    Row("one in use is lost though another is spare",
        (gpu(0), gpu(1, **OFF), gpu(2)),  # type: ignore[arg-type]
        "GPU 1 (GPU-1) is lost: it has fallen off the bus"),
    Row("one is split, which keeps nothing from the other", (gpu(0, mig=True), gpu(1)), ""),
    Row("another model", (gpu(0), gpu(1, model="NVIDIA H100")),
        "GPU 1 is a NVIDIA H100, NVIDIA H200 declared"),
    Row("the model as older drivers write it", (gpu(0, model="H200"), gpu(1)), ""),
    Row("too little memory", (gpu(0), gpu(1, memory=80 * GIB)),
        "80Gi of memory in GPU 1, 140Gi declared"),
    Row("one that nobody may compute on", (gpu(0), gpu(1, mode="prohibited")),
        "GPU 1 (GPU-1) is in compute mode prohibited: no task can use it"),
    Row("a spare one that nobody may compute on",
        (gpu(0), gpu(1), gpu(2, mode="prohibited")), ""),
    Row("one that one process at a time may compute on",
        (gpu(0), gpu(1, mode="exclusive-process")), ""),
    Row("no driver", (), "0 GPUs, 2 declared; NVIDIA driver absent: not installed",
        driver=devices.GpuDriver("absent", "not installed")),
    Row("a driver without devices", (), "0 GPUs, 2 declared", driver=devices.GpuDriver("ok")),
    Row("no driver is needed", (), "", 0, devices.GpuDriver("absent", "not installed")),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_a_node_lacks(row: Row) -> None:
    pool = desired.Pool(
        "p", ("n0",), Resources(gpu_milli=1000 * row.declared), gpu_model="NVIDIA H200",
        gpu_memory_bytes=140 * GIB,
    )  # fmt: skip
    usable = sum(one.usable for one in row.gpus)
    inventory = records.Inventory(
        capacity=Resources(gpu_milli=1000 * usable), gpus=row.gpus, gpu_driver=row.driver
    )
    assert fitness.lacks(inventory, pool) == row.lacks


STRANGER = devices.GpuProcess(
    4711, 3, "GPU-3", "python3.11", "mallory", 2 * GIB, 1_700_000_000.0, "left by attempt x"
)


class Node(world.VirtualNode):
    """A node with a foreign process on its GPUs."""

    strangers: tuple[devices.GpuProcess, ...] = ()

    def report(self, now: float) -> records.NodeReport:
        told = super().report(now)
        assert told.inventory is not None
        inventory = msgspec.structs.replace(told.inventory, foreign_gpu_processes=self.strangers)
        return msgspec.structs.replace(told, inventory=inventory)


def with_strangers(*strangers: devices.GpuProcess) -> tuple[world.World, Node]:
    made = world.World(nodes=1)
    node = Node("n0", made.pool)
    made.nodes["n0"] = node
    node.strangers = strangers
    made.settle()
    return made, node


def foreign(made: world.World) -> dict[str, tuple[str, float]]:
    return {
        one.subject: (one.message, one.first_seen)
        for one in made.memory.drift
        if one.kind == "gpu-process-foreign"
    }


def test_a_stranger_on_a_gpu_is_drift_until_it_leaves() -> None:
    made, node = with_strangers(STRANGER)
    ((subject, (message, since)),) = foreign(made).items()
    assert subject == "n0/gpu3/4711"
    assert message == (
        "python3.11 (4711) of user mallory holds GPU 3 (GPU-3) with 2048 MiB since "
        "2023-11-14T22:13:20.000Z and belongs to no task: left by attempt x"
    )
    assert made.memory.nodes["n0"].state is NodeState.READY, "it is told, and costs nobody a node"
    made.advance(60)
    assert foreign(made)[subject] == (message, since), "first seen stays"
    node.strangers = ()
    made.settle()
    assert not foreign(made)


def test_what_a_silent_node_said_is_no_drift_any_more() -> None:
    made, node = with_strangers(STRANGER)
    node.silent = True
    made.advance(100_000)
    assert made.memory.nodes["n0"].state is NodeState.UNKNOWN
    assert not foreign(made)


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_node_may_say_anything(at: float) -> None:
    odd = devices.GpuProcess(-1, 2**40, "x" * 5000, started_at=at, memory_bytes=-5)
    made, _ = with_strangers(*[odd] * 1000)
    assert all(len(message) <= 500 for message, _ in foreign(made).values())

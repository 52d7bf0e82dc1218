"""What a node offers follows the machine, but for what the command line says."""

from pathlib import Path

import msgspec
import psutil
import pytest

from agents.host import host_info
from agents.node import inventory
from agents.settings import AgentSettings

ROOT = Path("/nowhere")


@pytest.mark.parametrize("memory_bytes", [0, 2**30])
@pytest.mark.parametrize("cpu_milli", [0, 3000])
def test_capacity_follows_the_machine_unless_it_is_given(cpu_milli: int, memory_bytes: int) -> None:
    """A processor that has gone offline, or come, counts without a restart of the agent."""
    settings = AgentSettings(
        "http://127.0.0.1:1", "n1", ROOT, cpu_milli=cpu_milli, memory_bytes=memory_bytes
    )
    now = inventory.inventory_of(settings)
    fewer = msgspec.structs.replace(now.capacity, cpu_milli=1, memory_bytes=1, gpu_milli=2000)
    host = msgspec.structs.replace(host_info.read(), kernel="another")
    before = msgspec.structs.replace(now, capacity=fewer)
    found = inventory.with_host(before, host, now.address, settings)
    assert found.capacity.cpu_milli == (cpu_milli or 1000 * (psutil.cpu_count() or 1))
    assert found.capacity.memory_bytes == (memory_bytes or psutil.virtual_memory().total)
    assert found.capacity.gpu_milli == 2000  # whoever looks at GPUs says that
    assert found.host == host


def test_of_a_virtual_node_nothing_is_the_machines() -> None:
    settings = AgentSettings("http://127.0.0.1:1", "n1", ROOT, virtual=True)
    before = inventory.inventory_of(settings)
    assert inventory.with_host(before, host_info.read(), "192.0.2.7", settings) is before

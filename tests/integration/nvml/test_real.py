"""The same code over the driver of this machine, where it has one."""

from pathlib import Path

import pytest

from agents.gpus import gpu_watcher, nvml_client
from agents.settings import AgentSettings
from reconciler.model.observed import devices


@pytest.fixture
def look(tmp_path: Path) -> gpu_watcher.GpuLook:
    """What a watch over the machine's own GPUs sees."""
    source = nvml_client.NvmlClient()
    settings = AgentSettings("http://127.0.0.1:1", "n1", tmp_path)
    found = gpu_watcher.GpuWatch(tmp_path, "boot", source, settings).look({})
    source.close()
    if found.driver.state != devices.OK or not found.gpus:
        pytest.skip(f"no NVIDIA GPU to be asked here: {found.driver.message}")
    return found


def test_devices_say_what_they_are(look: gpu_watcher.GpuLook) -> None:
    assert look.driver.version
    assert look.driver.cuda_version
    assert len({gpu.uuid for gpu in look.gpus}) == len(look.gpus)
    for gpu in look.gpus:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.model
        assert gpu.memory_bytes > 2**30
        assert gpu.pci_address


def test_devices_say_what_they_do(look: gpu_watcher.GpuLook) -> None:
    assert {one.uuid for one in look.usage} == {g.uuid for g in look.gpus if g.state == devices.OK}
    for one in look.usage:
        assert one.memory_used_bytes is not None
        assert one.temperature_celsius is None or 0 < one.temperature_celsius < 120
        assert one.utilization_ratio is None or 0 <= one.utilization_ratio <= 1

"""A device that told of broken hardware: reset once nothing runs on its node, and back at work."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds
from tests.integration.nvml import sites
from tests.nvml import standin
from tests.nvml.standin import machine, uuid

HEALTH = """\
  health:
    interval: 1s
    off: [disk-space, inodes, clock, stuck-processes]
    remedies: [{check: gpu-xid, action: reset-gpu}]
"""
WAITS = """\
  pools: [h200]
  resources: {gpu: 1}
  script: |
    until [ -e go ]; do sleep 0.1; done"""
SEES = "  pools: [h200]\n  resources: {gpu: 2}\n  command: [sh, -c, 'echo $CUDA_VISIBLE_DEVICES']"


class Site(sites.Site):
    """A cluster with one node that has GPUs, and what was asked of the driver's tool there."""

    def __init__(self, folder: Path, library: Path) -> None:
        super().__init__(folder, library)
        tools, self.asked = folder / "tools", folder / "asked"
        tools.mkdir()
        tool = tools / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\necho "$@" >> {self.asked}\n')
        tool.chmod(0o755)
        self.environment["PATH"] = f"{tools}:{os.environ['PATH']}"


@pytest.fixture
def site(tmp_path: Path, libraries: dict[bool, Path]) -> Iterator[Site]:
    made = Site(tmp_path, libraries[False])
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_device_is_reset_when_its_node_is_idle_and_is_well_again(site: Site) -> None:
    bed = site.bed
    bed.commit({"h200.yaml": sites.POOL + HEALTH, "waits.yaml": beds.job("waits", WAITS)})
    (attempt,) = bed.until_state("waits", "Running", timeout_s=120)["attempts"]
    standin.write(site.situation, ["xid 1 0 79 0", *machine(2)])
    (row,) = bed.until(lambda: site.drift("node-check-failed"), 120)
    assert row["message"] == "GPU 1: XID 79, fallen off the bus"
    said = "waits until nothing runs on gpu1"
    bed.until(lambda: site.drift("node-check-failed")[0]["remedy"] == said, 120)
    standin.write(site.situation, machine(2))  # the driver tells of each once
    bed.commit({"sees.yaml": beds.job("sees", SEES)})
    bed.until(lambda: bed.job("sees")["reasons"], 120)
    assert not site.asked.exists()

    (site.root / "attempts" / attempt["id"] / "work" / "go").touch()
    bed.until_state("waits", "Succeeded", timeout_s=120)
    bed.until_state("sees", "Succeeded", timeout_s=120)
    assert bed.output("sees") == f"{uuid(0)},{uuid(1)}\n"
    assert site.asked.read_text() == f"--gpu-reset -i {uuid(1)}\n"
    bed.until(lambda: not bed.get("/v1/drift")["items"], 120)

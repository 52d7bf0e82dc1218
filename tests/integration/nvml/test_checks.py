"""Health checks of GPUs over the stand-in for the driver's library: its words become verdicts."""

import time
from typing import Any

import pytest

from agents.health import checks
from reconciler.model.observed.health_checks import CheckPlan
from tests.nvml.standin import GPU_IS_LOST, machine

PAIR = [
    line
    for link in (0, 1)
    for line in (
        f"nvlink-state:{link} 0 1",
        f"nvlink-remote-type:{link} 0 2",
        f"nvlink-remote-pci:{link} 0 00000000:C0:00.0",
    )
]
TABLE: list[tuple[list[list[str]], dict[str, str]]] = [
    ([[]], {}),
    ([[], [f"return:nvmlDeviceGetUUID 0 {GPU_IS_LOST}"]], {"gpu-count": "failed"}),
    ([["ecc:1:0 0 3"]], {"gpu-ecc": "failed"}),
    ([["ecc:0:0 0 3"]], {}),
    ([["remapped 0 1 1 0 1"]], {"gpu-memory": "failed"}),
    ([["remapped 0 1 0 1 0"]], {"gpu-memory": "degraded"}),
    ([["temperature:0 0 95"]], {"gpu-temperature": "degraded"}),
    ([["clock-reasons 0 64"]], {"gpu-temperature": "degraded"}),
    ([["pcie-width 0 8"]], {"gpu-pcie": "degraded"}),
    # the library was upgraded under its kernel module
    ([[], ["return:nvmlDeviceGetUUID * 18"]], {"gpu-count": "failed", "gpu-driver": "failed"}),
    ([["return:nvmlInitWithFlags * 9"]], {"gpu-count": "failed", "gpu-driver": "failed"}),
]


@pytest.mark.parametrize(("looks", "expected"), TABLE)
def test_what_the_driver_says_becomes_a_verdict(
    scene: Any, looks: list[list[str]], expected: dict[str, str]
) -> None:
    watch = None
    for changes in looks:
        scene.say([*changes, *machine(1)])
        watch = watch or scene.watch()
        found = watch.look({})
    readings = checks.Readings(gpus=found.gpus, usage=found.usage, driver=found.driver)
    verdicts = {
        one.name: one.verdict for one in checks.unwell(checks.judge(readings, CheckPlan(gpus=1)))
    }
    assert verdicts == expected


def test_an_nvlink_that_goes_down_is_noticed(scene: Any) -> None:
    scene.say([*PAIR, *machine(1)])
    gpus = scene.watch().look({}).gpus
    assert checks.links_of(gpus[0]) == 2
    down = ["nvlink-state:1 0 0", *PAIR, *machine(1)]
    scene.say(down)
    readings = checks.Readings(gpus=scene.watch().look({}).gpus, links_before={0: 2})
    (found,) = checks.unwell(checks.judge(readings, CheckPlan(gpus=1)))
    assert (found.name, found.message) == ("gpu-nvlink", "GPU 0 has 1 NVLinks, it had 2")


def test_an_xid_is_judged_by_its_class(scene: Any) -> None:
    scene.say([*machine(1), "xid 0 1 79 0"])
    watch = scene.watch()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = watch.look({})
        results = checks.unwell(checks.judge(checks.Readings(found.gpus, found.usage), CheckPlan()))
        if results:
            assert (results[0].name, results[0].verdict) == ("gpu-xid", "failed")
            assert "fallen off the bus" in results[0].message
            return
        time.sleep(0.1)
    raise AssertionError("no XID was seen")

"""Which devices, and which instances of them, a node sees that was given some by ``--gpus``."""

import msgspec
import pytest

from agents.gpus import gpu_inventory, gpu_selection, samples
from reconciler.model.observed import devices
from reconciler.model.state import records


def part(number: int) -> devices.MigInstance:
    return devices.MigInstance(f"MIG-{number}", "1g.18gb", number, 0)


def reading(index: int, *instances: int, **more: object) -> samples.DeviceReading:
    return samples.DeviceReading(
        index,
        devices.OK,
        uuid=f"GPU-{index}",
        memory_total_bytes=2**37,
        mig_enabled=bool(instances),
        mig=tuple(map(part, instances)),
        instances=tuple(devices.MigUsage(f"MIG-{number}", number) for number in instances),
        processes=tuple(
            samples.ProcessReading(100 + number, instance=(number, 0)) for number in instances
        ),
        **more,  # type: ignore[arg-type]
    )


def sample(*found: samples.DeviceReading) -> samples.Sample:
    return samples.Sample(1.0, devices.OK, devices=found)


MACHINE = sample(reading(0), reading(1, 1, 2, 3), reading(2, 7))


def look(
    seen: samples.Sample, *uuids: str, known: tuple[records.Gpu, ...] = ()
) -> tuple[records.Gpu, ...]:
    """The node's devices after a sample."""
    given = frozenset(uuids)
    return gpu_inventory.merge(
        known, gpu_selection.chosen(seen, given, known), lambda _address: None
    )


ROWS: list[tuple[tuple[str, ...], list[tuple[int, str, list[str]]]]] = [
    (("GPU-0",), [(0, "GPU-0", [])]),
    (("GPU-1",), [(0, "GPU-1", ["MIG-1", "MIG-2", "MIG-3"])]),
    (("MIG-2",), [(0, "GPU-1", ["MIG-2"])]),
    (("MIG-3", "MIG-1"), [(0, "GPU-1", ["MIG-1", "MIG-3"])]),
    (("MIG-7", "MIG-1"), [(0, "GPU-1", ["MIG-1"]), (1, "GPU-2", ["MIG-7"])]),
    (("MIG-7", "GPU-0"), [(0, "GPU-0", []), (1, "GPU-2", ["MIG-7"])]),
    (("MIG-9",), []),
]


@pytest.mark.parametrize(("uuids", "expected"), ROWS, ids=lambda row: " ".join(map(str, row)))
def test_a_node_has_what_it_was_given_and_counts_it_from_0(
    uuids: tuple[str, ...], expected: list[tuple[int, str, list[str]]]
) -> None:
    found = look(MACHINE, *uuids)
    assert [(gpu.index, gpu.uuid, [one.uuid for one in gpu.mig]) for gpu in found] == expected
    assert {gpu.state for gpu in found} <= {devices.OK}


def test_without_a_choice_everything_stays_as_the_driver_says() -> None:
    assert gpu_selection.chosen(MACHINE, None) is MACHINE


def test_usage_and_processes_of_other_instances_are_none_of_the_nodes() -> None:
    nobodys = samples.ProcessReading(50)
    device = reading(1, 1, 2)
    device = msgspec.structs.replace(device, processes=(*device.processes, nobodys))
    (seen,) = gpu_selection.chosen(sample(device), frozenset({"MIG-2"})).devices
    assert seen.instances == (devices.MigUsage("MIG-2", 2),)
    # one of which nobody knows where it is may be a task's of the node, and is no stranger to it
    assert [one.pid for one in seen.processes] == [102, 50]
    known = look(sample(device), "MIG-2")
    strangers, owned = gpu_inventory.attribute(
        sample(seen), known, {}, {}, {}, shared_cgroup="", clocks=(0, 0)
    )
    assert ([pid for _, pid in strangers], owned) == ([102], {})


def test_a_device_whose_instance_has_gone_is_missing_until_it_is_back() -> None:
    before = look(MACHINE, "MIG-1", "MIG-2")
    (gone,) = look(sample(reading(1, 1)), "MIG-1", "MIG-2", known=before)
    assert (gone.state, gone.uuid, gone.usable) == (devices.MISSING, "GPU-1", False)
    assert gone.message == "MIG-2, which --gpus names, is not there any more"
    (whole,) = look(sample(reading(1)), "MIG-1", "MIG-2", known=before)
    assert (whole.state, whole.mig_enabled) == (devices.MISSING, True), "it is offered to nobody"
    assert look(MACHINE, "MIG-1", "MIG-2", known=(gone,)) == before


def test_the_health_of_a_device_is_that_of_the_whole() -> None:
    before = look(MACHINE, "MIG-1")
    lost = samples.DeviceReading(1, devices.LOST, "it fell", uuid="GPU-1")
    (seen,) = look(sample(lost), "MIG-1", known=before)
    assert (seen.state, seen.message, seen.mig) == (devices.LOST, "it fell", (part(1),))


def test_a_device_named_whole_and_in_part_is_offered_in_no_way() -> None:
    (seen,) = look(MACHINE, "GPU-1", "MIG-2")
    assert (seen.state, seen.usable) == (devices.FAILED, False)
    assert seen.message == "--gpus names GPU-1, and MIG-2 of it: name either"


def test_what_is_not_there_is_told_with_what_is() -> None:
    given = frozenset({"GPU-0", "GPU-9", "MIG-1", "MIG-9"})
    assert list(gpu_selection.lacking(given, MACHINE.devices)) == [
        "--gpus GPU-9: there is no such GPU here, of GPU-0, GPU-1, GPU-2",
        "--gpus MIG-9: there is no such MIG instance here, of MIG-1, MIG-2, MIG-3, MIG-7",
    ]
    assert list(gpu_selection.lacking(given, ()))[-1].endswith("here, of none")
    assert not list(gpu_selection.lacking(None, MACHINE.devices))


def test_of_what_an_earlier_agent_knew_only_what_is_given_now_stays() -> None:
    before = look(MACHINE, "GPU-0", "GPU-1")
    (kept,) = gpu_selection.only(before, frozenset({"MIG-3"}))
    assert (kept.uuid, kept.mig) == ("GPU-1", (part(3),))
    assert gpu_selection.only(before, None) == before
    assert gpu_selection.only(before, frozenset({"GPU-0"})) == before[:1]

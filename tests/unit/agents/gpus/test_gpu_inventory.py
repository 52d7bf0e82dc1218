"""What holds of the judgement over samples, whatever the driver says."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agents.gpus import gpu_inventory, samples
from reconciler.model.observed import devices
from reconciler.model.state import records

UUIDS = ("", "a", "b", "c", "d")
READINGS = st.builds(
    samples.DeviceReading,
    index=st.integers(0, 5),
    state=st.sampled_from([devices.OK, devices.LOST, devices.FAILED]),
    uuid=st.sampled_from(UUIDS),
    memory_total_bytes=st.integers(0, 2**40),
)
SAMPLES = st.builds(
    samples.Sample,
    at=st.just(1.0),
    driver=st.sampled_from([devices.OK, devices.OK, "failed", devices.UNRESPONSIVE, "absent"]),
    devices=st.lists(READINGS, max_size=6, unique_by=lambda d: d.uuid or d.index).map(tuple),
)


@given(st.lists(SAMPLES, max_size=6))
def test_numbers_are_never_given_twice_or_anew(history: list[samples.Sample]) -> None:
    known: tuple[records.Gpu, ...] = ()
    numbers: dict[str, int] = {}
    for sample in history:
        known = gpu_inventory.merge(known, sample, lambda _address: None)
        assert len({gpu.index for gpu in known}) == len(known)
        assert {gpu.uuid: gpu.index for gpu in known}.items() >= numbers.items()
        numbers = {gpu.uuid: gpu.index for gpu in known}
        well = {d.uuid for d in sample.devices if d.state == devices.OK}
        for gpu in known:
            assert gpu.usable == (sample.driver == devices.OK and gpu.uuid in well)
        assert gpu_inventory.capacity_milli(known) == 1000 * sum(gpu.usable for gpu in known)


@given(st.lists(SAMPLES, max_size=4))
def test_the_same_sample_twice_changes_nothing(history: list[samples.Sample]) -> None:
    known: tuple[records.Gpu, ...] = ()
    for sample in history:
        known = gpu_inventory.merge(known, sample, lambda _address: None)
        assert gpu_inventory.merge(known, sample, lambda _address: None) == known


def test_simulated_devices_and_older_agents_read_as_before() -> None:
    old = msgspec.msgpack.encode({"index": 0, "uuid": "GPU-sim", "model": "m", "simulated": True})
    gpu = msgspec.msgpack.decode(old, type=records.Gpu)
    assert gpu == records.Gpu(0, "GPU-sim", "m", simulated=True)
    assert gpu.usable


def test_kinds_of_xids_are_bounded() -> None:
    events = [samples.EventReading("a", number, float(number)) for number in range(100)]
    counted = gpu_inventory.count_events({}, events)["a"]
    assert len(counted) == gpu_inventory.XIDS_MAX
    assert counted[0] == devices.Xid(99, 1, 99.0)

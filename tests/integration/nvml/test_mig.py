"""MIG over the stand-in: layouts made, kept, changed and left alone, by the real binding."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.gpus import gpu_watcher, mig_manager
from agents.settings import AgentSettings
from reconciler.model import desired
from reconciler.model.observed import devices
from reconciler.model.protocol.agent_messages import Assignment
from reconciler.model.state import records
from tests.integration.nvml.conftest import Scene
from tests.nvml import standin
from tests.nvml.standin import machine, uuid

ONES, MIXED = {"1g.18gb": 7}, {"3g.71gb": 1, "1g.18gb": 3}


def plan(take_over: bool = False, **layouts: dict[str, int]) -> desired.MigPlan:
    """``d0`` is the layout of device 0, and so on."""
    found = tuple(
        desired.MigLayout(int(name[1:]), tuple(sorted(said.items())))
        for name, said in layouts.items()
    )
    return desired.MigPlan(found, take_over)


class Bench:
    """A machine with two GPUs and an agent's cutter over them; time is what a test says."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.held: dict[str, Assignment | None] = {}
        self.now = 0.0
        self.say()
        self.begin()

    def holders(self) -> Mapping[str, Assignment | None]:
        return self.held

    def begin(
        self, boot_id: str = "boot", *, old: bool = False, given: frozenset[str] = frozenset()
    ) -> None:
        """A new agent; of devices of which it is given instances it has no more than those."""
        folder = self.scene.folder
        self.cutter = mig_manager.MigManager(
            folder, boot_id, self.holders, threading.RLock(), lambda: self.now, given=given
        )
        settings = AgentSettings("http://127.0.0.1:1", "n1", folder, gpu_uuids=given or None)
        source = self.scene.probe(old=old)
        self.watch = gpu_watcher.GpuWatch(folder, boot_id, source, settings, self.cutter)

    def say(self, *lines: str) -> None:
        """What NVML says from now on, beside what was made."""
        self.scene.say([*lines, *machine(2)])

    def others_made(self, *lines: str) -> None:
        """What is on the devices, made by whomever."""
        (self.scene.folder / "situation.mig").write_text("".join(f"{x}\n" for x in lines))

    def made(self) -> list[str]:
        """What is on the devices, as they keep it."""
        path = self.scene.folder / "situation.mig"
        return path.read_text().splitlines() if path.exists() else []

    def settle(self) -> tuple[records.Gpu, ...]:
        """Looks until nothing is done any more; the devices then."""
        for _ in range(12):
            look = self.watch.look({})
            if not look.again:
                return look.gpus
        raise AssertionError("it does not come to rest")

    def profiles(self, index: int) -> dict[str, int]:
        """What tasks would see of a device."""
        return dict(Counter(one.profile for one in self.settle()[index].mig))


@pytest.fixture
def bench(scene: Scene) -> Bench:
    return Bench(scene)


def cut(gpu: records.Gpu) -> tuple[str, str]:
    assert gpu.cut is not None
    return gpu.cut.state, gpu.cut.message


def test_a_layout_is_made_and_kept_over_restarts(bench: Bench) -> None:
    bench.cutter.follow(plan(d1=MIXED))
    first, second = bench.settle()
    assert (first.mig_enabled, first.cut, second.cut) == (False, None, devices.MigCut("fits"))
    assert dict(Counter(one.profile for one in second.mig)) == MIXED
    large = next(one for one in second.mig if one.profile == "3g.71gb")
    assert (large.slices, large.memory_bytes) == (3, 69 * standin.GIB)
    assert all(one.uuid.startswith("MIG-") for one in second.mig)
    before = bench.made()
    for boot_id in ("boot", "boot", "another"):
        bench.begin(boot_id)
        bench.cutter.follow(plan(d1=MIXED))
        assert cut(bench.settle()[1]) == ("fits", "")
        assert bench.made() == before


def test_it_changes_with_the_declaration_and_leaves_what_fits(bench: Bench) -> None:
    bench.cutter.follow(plan(d0={"1g.18gb": 2}))
    before = {one.uuid for one in bench.settle()[0].mig}
    bench.cutter.follow(plan(d0={"1g.18gb": 2, "3g.71gb": 1}))
    after = {one.uuid for one in bench.settle()[0].mig}
    assert before < after
    bench.cutter.follow(plan(d0={"7g.141gb": 1}))
    assert bench.profiles(0) == {"7g.141gb": 1}
    bench.cutter.follow(plan())
    gpu = bench.settle()[0]
    assert (gpu.mig_enabled, gpu.mig, gpu.cut) == (False, (), None)


def test_nothing_is_done_while_nobody_says_anything(bench: Bench) -> None:
    bench.others_made("mode 0 1 1 0 0", "gi 0 1 19 0 1", "ci 0 1 0 0 0")
    before = bench.made()
    assert bench.settle()[0].cut is None
    bench.cutter.follow(plan(d0={"1g.18gb": 1}))
    assert cut(bench.settle()[0]) == ("fits", "")
    assert bench.made() == before, "what fits is adopted"


OTHERS = ("mode 0 1 1 0 0", "gi 0 1 19 0 1", "ci 0 1 0 0 0")
BUSY: list[tuple[str, dict[str, Assignment | None], list[str], str]] = [
    ("a whole device", {"a": Assignment("a", "t", "b", devices=(0,))}, [], "a runs on it"),
    ("an attempt of which nothing is known", {"a": None}, [], "a may be on it"),
    ("a process", {}, ["process 0 4711 1048576"], "1 processes are on it, as 4711"),
]


@pytest.mark.parametrize("row", BUSY, ids=lambda row: row[0])
def test_a_device_that_is_busy_is_left_alone_and_says_so(bench: Bench, row: Any) -> None:
    _, bench.held, lines, says = row
    bench.say(*lines)
    bench.cutter.follow(plan(d0=ONES))
    assert cut(bench.settle()[0]) == ("waiting", f"waiting until it is idle: {says}")
    assert not bench.made()
    bench.held = {}
    bench.say()
    assert bench.profiles(0) == ONES


def test_a_task_on_an_instance_keeps_the_layout(bench: Bench) -> None:
    bench.cutter.follow(plan(d0=ONES))
    bench.settle()
    task = Assignment("a", "t", "b", mig_profile="1g.18gb", instances=(0,))
    bench.held = {"a": task}
    given = bench.cutter.allot(task)
    bench.cutter.follow(plan(d0=MIXED))
    assert cut(bench.settle()[0]) == ("waiting", "waiting until it is idle: a runs on it")
    assert bench.profiles(0) == ONES
    bench.begin()  # who has what outlives the agent
    bench.cutter.follow(plan(d0=MIXED))
    assert cut(bench.settle()[0])[0] == "waiting"
    assert bench.cutter._held == {"a": tuple(one.uuid for one in given)}
    bench.cutter.leave("a")
    bench.held = {}
    assert bench.profiles(0) == MIXED


def test_one_that_is_to_begin_keeps_it_as_well(bench: Bench) -> None:
    bench.cutter.follow(plan(d0=ONES))
    bench.settle()
    bench.held = {"a": Assignment("a", "t", "b", mig_profile="1g.18gb", instances=(0,))}
    bench.cutter.follow(plan(d0=MIXED))
    assert cut(bench.settle()[0]) == ("waiting", "waiting until it is idle: a may be on it")


def test_what_others_made_stays_unless_the_pool_says_otherwise(bench: Bench) -> None:
    bench.others_made(*OTHERS)
    before = bench.made()
    bench.cutter.follow(plan(d0=MIXED | {"1g.18gb": 0} | {"3g.71gb": 1}))
    bench.cutter.follow(plan(d0={"3g.71gb": 1}))
    assert cut(bench.settle()[0]) == ("blocked", "1 x 1g.18gb on it were created by others")
    bench.cutter.follow(plan())
    assert cut(bench.settle()[0]) == ("blocked", "1 MIG instances on it were created by others")
    assert bench.made() == before
    # what is wanted beside it can be had
    bench.cutter.follow(plan(d0={"1g.18gb": 3}))
    assert bench.profiles(0) == {"1g.18gb": 3}
    bench.cutter.follow(plan())
    assert cut(bench.settle()[0])[0] == "blocked"
    assert sorted(bench.made()) == sorted(before), "what Muster had made is undone"
    bench.cutter.follow(plan(True, d0={"3g.71gb": 1}))
    assert bench.profiles(0) == {"3g.71gb": 1}
    bench.cutter.follow(plan(True))
    assert not bench.settle()[0].mig_enabled


def test_a_mode_that_others_switched_on_stays_on(bench: Bench) -> None:
    bench.others_made("mode 0 1 1 0 0")
    bench.cutter.follow(plan(d0={"3g.71gb": 1}))
    assert bench.profiles(0) == {"3g.71gb": 1}
    bench.cutter.follow(plan())
    gpu = bench.settle()[0]
    assert (gpu.mig_enabled, gpu.mig) == (True, ())
    assert cut(gpu) == ("blocked", "its MIG mode was switched on by others")


FAILURES: list[tuple[str, list[str], dict[str, int], str, str]] = [
    ("a reset is needed", ["mig-activation 0 16"], ONES, "needs-reset", "nvidia-smi --gpu-reset"),
    ("in use, the driver says", ["mig-activation 0 19"], ONES, "waiting", "it is in use"),
    ("not as root", ["return:nvmlDeviceSetMigMode 0 4"], ONES, "failed", "start the agent as root"),
    ("no MIG", ["return:nvmlDeviceGetMigMode 0 3"], ONES, "failed", "the device has no MIG"),
    ("no room", ["return:nvmlDeviceCreateGpuInstanceWithPlacement 0 23"], ONES, "failed",
     "making a 1g.18gb at 0: the driver has no room for it"),
    ("no compute", ["return:nvmlGpuInstanceCreateComputeInstance 0 999"], ONES, "failed",
     "the compute of a 1g.18gb: NVML error 999"),
    ("an unknown profile", [], {"1g.10gb": 1}, "failed", "the device has no profile 1g.10gb"),
    ("too much", [], {"4g.71gb": 1, "3g.71gb": 1, "1g.18gb": 1}, "failed", "do not fit"),
    ("instances can't be listed", ["return:nvmlDeviceGetGpuInstances 0 4"], ONES, "failed",
     "start the agent as root"),
    ("the driver crashes", ["crash:nvmlDeviceCreateGpuInstanceWithPlacement 0 1"], ONES, "failed",
     "ended (-6) at a change of MIG"),
]  # fmt: skip


@pytest.mark.parametrize("row", FAILURES, ids=lambda row: row[0].replace(" ", "-"))
def test_what_goes_wrong_is_told_with_its_reason(bench: Bench, row: Any) -> None:
    _, lines, wanted, state, says = row
    bench.say(*lines)
    bench.cutter.follow(plan(d0=wanted, d1={"1g.18gb": 1}))
    gpus = bench.settle()
    assert cut(gpus[0])[0] == state
    assert says in cut(gpus[0])[1]
    assert cut(gpus[1]) == ("fits", ""), "one device's trouble costs the others nothing"
    assert not gpus[0].mig


def test_an_old_driver_says_that_it_is_too_old(bench: Bench) -> None:
    bench.begin(old=True)
    bench.cutter.follow(plan(d0=ONES))
    assert "the driver is too old" in cut(bench.settle()[0])[1]


def tries(bench: Bench, seconds: float, look: Callable[[], object]) -> int:
    """How often something is tried within a time, by the calls that were made."""
    orders: list[Any] = []
    driver = bench.scene.probes[-1]
    cut_by = driver.cut

    def counted(order: Any) -> Any:
        orders.append(order)
        return cut_by(order)

    driver.cut = counted  # type: ignore[method-assign]
    until = bench.now + seconds
    while bench.now < until:
        look()
        bench.now += seconds / 120
    driver.cut = cut_by  # type: ignore[method-assign]
    return len(orders)


def test_what_fails_is_tried_later_and_later_and_then_no_more(bench: Bench) -> None:
    refusal = "return:nvmlDeviceCreateGpuInstanceWithPlacement 0 23"
    bench.say(refusal)
    bench.cutter.follow(plan(d0=ONES))
    assert tries(bench, 86_400, bench.settle) == mig_manager.TRIES_MAX + 1, (
        "the mode, then six tries"
    )
    state, message = cut(bench.settle()[0])
    assert state == "failed"
    assert message.endswith("gave up after 6 tries: change the layout, or restart the agent")
    bench.say()
    assert tries(bench, 86_400, bench.settle) == 0
    bench.cutter.follow(plan(d0={"3g.71gb": 1}))
    assert bench.profiles(0) == {"3g.71gb": 1}


def test_a_device_in_use_is_asked_again_but_seldom(bench: Bench) -> None:
    bench.say("mig-activation 0 19")
    bench.cutter.follow(plan(d0=ONES))
    assert 5 <= tries(bench, 3600, bench.settle) <= 12
    bench.say()
    bench.now += 3600
    assert bench.profiles(0) == ONES


def test_after_a_reset_it_goes_on(bench: Bench) -> None:
    bench.say("mig-activation 0 16")
    bench.cutter.follow(plan(d0=ONES))
    assert cut(bench.settle()[0])[0] == "needs-reset"
    assert tries(bench, 86_400, bench.settle) == 0
    bench.others_made("mode 0 1 1 0 0")
    assert bench.profiles(0) == ONES


def test_a_mode_that_has_not_changed_yet_is_taken_back(bench: Bench) -> None:
    bench.say("mig-activation 0 16")
    bench.cutter.follow(plan(d0=ONES))
    bench.settle()
    assert bench.made() == ["mode 0 0 1 0 0"]
    bench.cutter.follow(plan())
    bench.settle()
    assert bench.made() == ["mode 0 0 0 0 0"]


def test_what_an_agent_died_over_is_its_own(bench: Bench) -> None:
    bench.say("crash:nvmlGpuInstanceCreateComputeInstance 0 1")
    bench.cutter.follow(plan(d0=ONES))
    bench.settle()
    assert [line.split()[0] for line in bench.made()] == ["mode", "gi"]
    bench.begin()
    bench.say()
    bench.cutter.follow(plan(d0=ONES))
    assert bench.profiles(0) == ONES
    bench.cutter.follow(plan())
    assert not bench.settle()[0].mig_enabled


def test_what_was_there_before_it_stays_somebody_elses(bench: Bench) -> None:
    bench.others_made(*OTHERS)
    bench.say("crash:nvmlGpuInstanceCreateComputeInstance 0 1")
    bench.cutter.follow(plan(d0={"1g.18gb": 2}))
    bench.settle()
    bench.begin()
    bench.say()
    bench.cutter.follow(plan(d0={"7g.141gb": 1}))
    assert cut(bench.settle()[0]) == ("blocked", "1 x 1g.18gb on it were created by others")


@pytest.mark.parametrize("text", ["", "{", '{"boot_id": 1}', "\x00"])
def test_a_broken_memory_makes_it_somebody_elses(bench: Bench, text: str) -> None:
    bench.cutter.follow(plan(d0=ONES))
    bench.settle()
    (bench.scene.folder / "mig.json").write_text(text)
    bench.begin()
    bench.cutter.follow(plan(d0=MIXED))
    assert cut(bench.settle()[0]) == ("blocked", "4 x 1g.18gb on it were created by others")
    assert bench.profiles(0) == ONES


# Instances of tasks ------------------------------------------------------------------------------


def wants(name: str, *numbers: int, profile: str = "1g.18gb") -> Assignment:
    return Assignment(name, "t", "b", mig_profile=profile, instances=numbers)


def test_each_task_gets_instances_of_its_own(bench: Bench) -> None:
    bench.cutter.follow(plan(d0=ONES, d1=MIXED))
    bench.settle()
    given: dict[str, str] = {}
    for number in range(10):
        (one,) = bench.cutter.allot(wants(f"a{number}", number))
        given[f"a{number}"] = one.uuid
    assert len(set(given.values())) == 10
    with pytest.raises(mig_manager.NotReadyError, match="none is free of the 10"):
        bench.cutter.allot(wants("late", 3))
    (again,) = bench.cutter.allot(wants("a3", 3))
    assert again.uuid == given["a3"], "asked again it has the same"
    bench.cutter.leave("a3")
    # a number means another instance once layouts have changed: what is free is given
    (other,) = bench.cutter.allot(wants("late", 9))
    assert other.uuid == given["a3"]
    assert len(bench.cutter.allot(wants("big", 0, profile="3g.71gb"))) == 1


def test_nothing_is_given_of_a_device_that_is_not_as_declared(bench: Bench) -> None:
    bench.cutter.follow(plan(d0=ONES))
    bench.settle()
    bench.cutter.follow(plan(d0=MIXED))
    with pytest.raises(mig_manager.NotReadyError, match="none is free of the 0"):
        bench.cutter.allot(wants("a", 0))
    with pytest.raises(mig_manager.NotReadyError, match=r"GPU 0 .* is split by MIG"):
        bench.cutter.allot(Assignment("b", "t", "b", devices=(0, 1)))
    assert bench.cutter.allot(Assignment("c", "t", "b", devices=(1,))) == ()


def test_usage_says_who_has_an_instance_and_what_it_takes(bench: Bench) -> None:
    bench.say("mig-used:1 0 1048576")
    bench.cutter.follow(plan(d0={"1g.18gb": 2}))
    bench.settle()
    (one,) = bench.cutter.allot(wants("a", 0))
    usage = bench.watch.look({}).usage[0]
    assert {(part.uuid, part.memory_used_bytes, part.attempt) for part in usage.instances} == {
        (one.uuid, 2**20, "a"),
        (next(p.uuid for p in bench.settle()[0].mig if p.uuid != one.uuid), 0, ""),
    }


def test_the_devices_are_those_of_the_situation(bench: Bench) -> None:
    assert [gpu.uuid for gpu in bench.settle()] == [uuid(0), uuid(1)]
    assert not Path(bench.scene.folder / "mig.json").exists(), "nothing was done"


# Instances of a device that is not the node's ----------------------------------------------------

SHARED = ("mode 1 1 1 0 0", "gi 1 1 19 0 1", "ci 1 1 0 0 0", "gi 1 2 19 1 1", "ci 1 2 0 0 0")
MINE = f"MIG-00000000-0000-0002-0000-{1:012d}"
DECLARED: list[tuple[str, desired.MigPlan, tuple[str, str]]] = [
    ("as given", plan(d0={"1g.18gb": 1}), ("fits", "")),
    ("more of it", plan(d0={"1g.18gb": 2}), ("blocked", "gives this node 1 x 1g.18gb of it")),
    ("cut otherwise", plan(d0=MIXED), ("blocked", "may not change its layout")),
    ("nothing", plan(), ("blocked", "declare exactly these")),
    ("taken over", plan(True), ("blocked", "declare exactly these")),
]


@pytest.mark.parametrize("row", DECLARED, ids=lambda row: row[0].replace(" ", "-"))
def test_the_layout_of_a_device_that_is_shared_out_is_never_changed(bench: Bench, row: Any) -> None:
    _, declared, (state, says) = row
    bench.others_made(*SHARED)
    bench.begin(given=frozenset({MINE}))
    bench.cutter.follow(declared)
    (gpu,) = bench.settle()
    assert (gpu.index, gpu.uuid, [one.uuid for one in gpu.mig]) == (0, uuid(1), [MINE])
    assert cut(gpu)[0] == state
    assert says in cut(gpu)[1]
    assert bench.made() == list(SHARED)
    if state == "fits":
        assert [one.uuid for one in bench.cutter.allot(wants("a", 0))] == [MINE]
        with pytest.raises(mig_manager.NotReadyError, match="none is free of the 1 "):
            bench.cutter.allot(wants("b", 0))
    with pytest.raises(mig_manager.NotReadyError, match="is split by MIG"):
        bench.cutter.allot(Assignment("c", "t", "b", devices=(0,)))


def test_an_instance_that_goes_is_given_to_nobody_until_it_is_back(bench: Bench) -> None:
    bench.others_made(*SHARED)
    bench.begin(given=frozenset({MINE}))
    bench.cutter.follow(plan(d0={"1g.18gb": 1}))
    bench.settle()
    bench.others_made(*SHARED[:3])
    for _ in range(2):  # a new agent of the node knows it, too
        (gpu,) = bench.settle()
        assert (gpu.state, gpu.usable) == (devices.MISSING, False)
        assert gpu.message == f"{MINE}, which --gpus names, is not there any more"
        with pytest.raises(mig_manager.NotReadyError, match="none is free of the 0"):
            bench.cutter.allot(wants("a", 0))
        bench.begin(given=frozenset({MINE}))
        bench.cutter.follow(plan(d0={"1g.18gb": 1}))
    bench.others_made(*SHARED)
    assert [gpu.state for gpu in bench.settle()] == ["ok"]
    assert bench.cutter.allot(wants("a", 0))

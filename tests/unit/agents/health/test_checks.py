"""Verdicts of the built-in checks, by table, and what executables of the site may do."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.health import checks, site_checks
from reconciler.model.documents.health_spec import CheckName
from reconciler.model.observed import devices
from reconciler.model.observed.health_checks import (
    BUILT_IN,
    CheckCommand,
    CheckPlan,
    CheckResult,
    worst,
)
from reconciler.model.state import records


def gpu(**more: Any) -> records.Gpu:
    values = {"index": 0, "uuid": "GPU-0", "model": "H200", "pcie_width_max": 16, **more}
    return records.Gpu(**values)


def usage(**more: Any) -> devices.GpuUsage:
    return devices.GpuUsage(index=0, uuid="GPU-0", at=1.0, **more)


def xid(number: int) -> tuple[devices.Xid, ...]:
    return (devices.Xid(number, 1, 1.0),)


R = checks.Readings
LINKS = (devices.NvLinkPeer("switch", "0000:c0:00.0", 17),)
DIFFERS = devices.GpuDriver(devices.FAILED, "reboot, or unload and load the module")
TABLE: list[tuple[str, checks.Readings, str, str]] = [
    ("gpu-count", R(gpus=(gpu(state=devices.LOST),)), "failed", "0 GPUs of 1 can be used: GPU 0"),
    ("gpu-count", R(), "failed", "0 GPUs of 1 can be used"),
    ("gpu-driver", R(gpus=(gpu(),), driver=DIFFERS), "failed", "driver is failed: reboot"),
    ("gpu-driver", R(gpus=(gpu(),), driver=devices.GpuDriver(devices.OK)), "healthy", ""),
    ("gpu-driver", R(driver=DIFFERS), "healthy", ""),  # it has no GPUs, and is to have none
    ("gpu-ecc", R(usage=(usage(ecc_volatile=(9, 1)),)), "failed", "uncorrectable"),
    ("gpu-ecc", R(usage=(usage(ecc_volatile=(9, 0)),)), "healthy", ""),
    ("gpu-ecc", R(usage=(usage(ecc_volatile=None),)), "healthy", ""),
    ("gpu-memory", R(usage=(usage(row_remap_failed=True),)), "failed", "replace it"),
    ("gpu-memory", R(usage=(usage(row_remap_pending=True),)), "degraded", "reset"),
    ("gpu-memory", R(usage=(usage(retired_pages_pending=True),)), "degraded", "reset"),
    ("gpu-xid", R(usage=(usage(xids=xid(79)),)), "failed", "XID 79, fallen off the bus"),
    ("gpu-xid", R(usage=(usage(xids=xid(94)),)), "degraded", "contained"),
    ("gpu-xid", R(usage=(usage(xids=xid(31)),)), "healthy", ""),
    ("gpu-temperature", R(usage=(usage(temperature_celsius=90),)), "degraded", "90 °C or above"),
    ("gpu-temperature", R(usage=(usage(temperature_celsius=89),)), "healthy", ""),
    (
        "gpu-temperature",
        R(usage=(usage(clock_event_reasons=("hardware-thermal-slowdown",)),)),
        "degraded",
        "slowed down by heat",
    ),
    ("gpu-nvlink", R(gpus=(gpu(nvlinks=LINKS),), links_before={0: 18}), "failed", "17 NVLinks"),
    ("gpu-nvlink", R(gpus=(gpu(nvlinks=LINKS),), links_before={0: 17}), "healthy", ""),
    (
        "gpu-nvlink",
        R(gpus=(gpu(nvlinks=LINKS, fabric_problem="is about to join its NVSwitch fabric"),)),
        "failed",
        "GPU 0 is about to join its NVSwitch fabric, and computes nothing till then",
    ),
    ("gpu-nvlink", R(gpus=(gpu(fabric_problem="is about to"),)), "healthy", ""),
    ("gpu-nvlink", R(gpus=(gpu(mig_enabled=True),), links_before={0: 18}), "healthy", ""),
    ("gpu-nvlink", R(gpus=(gpu(state=devices.LOST),), links_before={0: 18}), "healthy", ""),
    ("gpu-pcie", R(gpus=(gpu(),), usage=(usage(pcie_width=8),)), "degraded", "8 PCIe lanes of 16"),
    ("gpu-pcie", R(gpus=(gpu(),), usage=(usage(pcie_width=16),)), "healthy", ""),
    ("mounts", R(mounts={"/data": "is not mounted"}), "failed", "/data is not mounted"),
    ("mounts", R(mounts={"/data": ""}), "healthy", ""),
    ("disk-space", R(disk_free_ratio=0.04), "degraded", "less than 5.0% of its space"),
    ("disk-space", R(disk_free_ratio=0.009), "failed", "less than 1.0% of its space"),
    ("disk-space", R(disk_read_only=True), "failed", "mounted read-only"),
    ("inodes", R(inodes_free_ratio=0.0), "failed", "inodes"),
    ("clock", R(clock_synchronised=False), "degraded", "not synchronised"),
    ("clock", R(clock_synchronised=None), "healthy", ""),
    ("clock", R(clock_skew="the clock is more than 10 s ahead"), "degraded", "10 s ahead"),
    ("memory-errors", R(memory_errors=(999, 0)), "healthy", ""),
    ("memory-errors", R(memory_errors=(1000, 0)), "degraded", "1000 or more corrected errors"),
    ("memory-errors", R(memory_errors=(0, 1)), "failed", "could not be corrected"),
    ("stuck-processes", R(stuck=10), "failed", "can't be ended"),
    ("stuck-processes", R(stuck=9), "healthy", ""),
    ("task-start", R(start=(CheckResult("task-start", "failed", "no group"),)), "failed", "group"),
    ("task-start", R(), "healthy", ""),
]


@pytest.mark.parametrize(("name", "readings", "verdict", "says"), TABLE)
def test_a_verdict(name: str, readings: checks.Readings, verdict: str, says: str) -> None:
    plan = CheckPlan(gpus=1 if name == "gpu-count" else 0)
    found = {one.name: one for one in checks.judge(readings, plan)}
    assert found[name].verdict == verdict
    assert says in found[name].message
    others = [one for one in found.values() if one.name != name and one.verdict != "healthy"]
    assert others == []
    off = checks.judge(readings, CheckPlan(gpus=1, off=(name,)))
    assert name not in {one.name for one in off}


def test_every_check_is_in_the_table_and_in_the_documents() -> None:
    assert {name for name, *_ in TABLE} == set(BUILT_IN)
    assert CheckName.__args__ == tuple(BUILT_IN)  # type: ignore[attr-defined]


def test_a_driver_that_is_not_there_fails_where_gpus_are_declared() -> None:
    readings = R(driver=devices.GpuDriver("absent", "libnvidia-ml.so.1 is not installed"))
    found = {one.name: one for one in checks.unwell(checks.judge(readings, CheckPlan(gpus=8)))}
    assert set(found) == {"gpu-count", "gpu-driver"}
    assert "is absent: libnvidia-ml.so.1 is not installed" in found["gpu-driver"].message
    assert not checks.unwell(checks.judge(readings, CheckPlan()))


def test_the_worst_counts_and_the_devices_are_named() -> None:
    two = R(usage=(usage(row_remap_failed=True), usage(row_remap_pending=True)))
    (found,) = checks.unwell(checks.judge(two, CheckPlan()))
    assert found == CheckResult(
        "gpu-memory", "failed", "GPU 0 could not remap a row of its memory: replace it", (0,)
    )
    assert worst((found, CheckResult("x", "degraded"))) == "failed"
    assert worst((CheckResult("x", "degraded"),)) == "degraded"
    assert worst(()) == "healthy"


@pytest.mark.parametrize(
    ("script", "verdict", "message"),
    [
        ("exit 0", "healthy", ""),
        ("echo meh; echo more; exit 1", "degraded", "meh"),
        ("exit 7", "failed", "status 7"),
        ("kill -9 $$", "failed", "status -9"),
        ("echo broken >&2; exit 2", "failed", "broken"),
        ("head -c 100000000 /dev/zero | tr '\\0' x; exit 2", "failed", "x" * 300),
        ("printf '\\377\\376 bad'; exit 2", "failed", "\ufffd\ufffd bad"),
        ("sleep 600 & exit 0", "healthy", ""),
    ],
)
def test_an_executable(script: str, verdict: str, message: str) -> None:
    found = site_checks.SiteChecks().run(CheckCommand("c", ("sh", "-c", script), 60.0))
    assert (found.verdict, found.message) == (verdict, message)


def test_what_an_executable_prints_is_told_on_one_line_and_printable() -> None:
    code = r"print('\x1b[31mred\x1b[0m\ttab' + 'x' * 3000); raise SystemExit(2)"
    found = site_checks.SiteChecks().run(
        CheckCommand("c", (sys.executable, "-I", "-c", code), 60.0)
    )
    assert found.message.startswith(r"\x1b[31mred\x1b[0m\ttab")
    assert found.message.isprintable()
    assert len(found.message) == site_checks.MESSAGE_CHARACTERS_MAX


def test_an_executable_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    found = site_checks.SiteChecks().run(CheckCommand("c", ("sh", "-c", script), 2.0))
    assert (found.verdict, found.message) == ("failed", "it did not end within 2 s")
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.02)
    raise AssertionError("the child is still there")


def test_one_that_is_not_there_has_failed() -> None:
    found = site_checks.SiteChecks().run(CheckCommand("c", ("/nowhere/check",), 1.0))
    assert found.message == "it can't be run: No such file or directory"


def test_one_that_can_not_be_ended_holds_one_child_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child here is killed in vain, as one is that waits in the kernel for a dead device."""
    begun, gone = tmp_path / "begun", tmp_path / "gone"
    script = f"echo $$ >> {begun}; while [ ! -e {gone} ]; do sleep 0.05; done"
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    site = site_checks.SiteChecks()
    check = CheckCommand("c", ("sh", "-c", script), 1.0)
    try:
        assert site.run(check).message == "it did not end within 1 s"
        wait_for(begun.exists)
        (pid,) = begun.read_text().split()
        for _ in range(3):
            found = site.run(check)
            message = f"process {pid}, which made this check, can't be killed"
            assert (found.verdict, found.message) == ("failed", message)
        assert begun.read_text().split() == [pid]
        assert site.run(CheckCommand("other", ("true",), 60.0)).verdict == "healthy"
    finally:
        gone.touch()
    wait_for(lambda: site.run(CheckCommand("c", ("true",), 60.0)).verdict == "healthy")


def test_commands_around_jobs_are_made_then_and_until_they_are_well(tmp_path: Path) -> None:
    made, ill = tmp_path / "made", tmp_path / "ill"
    script = f"echo x >> {made}; ! [ -e {ill} ] || exit 3"
    plan = CheckPlan(
        commands=(CheckCommand("c", ("sh", "-c", script), 60.0),),
        before=("c", "clock"),
        off=("mounts",),
    )
    checker = checks.Checker(tmp_path, "boot")

    def count() -> int:
        return len(made.read_text().split()) if made.exists() else 0

    assert not checks.unwell(checker.look(plan, R()))
    assert count() == 0  # not on the interval
    ill.touch()
    (found, _) = checker.gate(plan, plan.before, R())
    assert (found.verdict, found.message, count()) == ("failed", "status 3", 1)
    busy = checks.unwell(checker.look(plan, R(), idle=False))
    assert ([one.name for one in busy], count()) == (["c"], 1)
    ill.unlink()
    assert not checks.unwell(checker.look(plan, R()))
    assert not checks.unwell(checker.look(plan, R()))
    assert count() == 2
    assert checks.merged((found,), (CheckResult("c"),)) == ()
    assert checks.merged((CheckResult("d", "failed"),), (found,)) == (
        CheckResult("d", "failed"),
        found,
    )


def test_a_trial_makes_commands_around_jobs_once_as_soon_as_nothing_runs(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def plan(word: str, *, trial: bool) -> CheckPlan:
        script = f"echo {word} >> {made}"
        commands = (CheckCommand("c", ("sh", "-c", script), 60.0),)
        return CheckPlan(commands=commands, before=("c",), off=("mounts",), trial=trial)

    checker = checks.Checker(tmp_path, "boot")
    checker.look(plan("old", trial=False), R())
    assert checker.has_tried(plan("old", trial=False))
    checker.gate(plan("old", trial=False), ("c",), R())
    new = plan("new", trial=True)
    checker.look(new, R(), idle=False)
    assert not checker.has_tried(new), "the result of the former command is none of this one"
    for _ in range(2):
        checker.look(new, R())
        assert checker.has_tried(new)
    assert made.read_text().split() == ["old", "new"]


@pytest.mark.parametrize(
    ("before", "timeout_s", "gated"),
    [
        (("c",), 30.0, ("c",)),  # only its timeout was changed
        ((), 60.0, ("c",)),  # it was made on the interval until now
    ],
)
def test_an_edit_of_a_command_that_fails_makes_no_node_well_before_it_is_made(
    tmp_path: Path, before: tuple[str, ...], timeout_s: float, gated: tuple[str, ...]
) -> None:
    made, ill = tmp_path / "made", tmp_path / "ill"
    script = f"echo x >> {made}; ! [ -e {ill} ]"

    def plan(timeout_s: float, names: tuple[str, ...], *, trial: bool = False) -> CheckPlan:
        commands = (CheckCommand("c", ("sh", "-c", script), timeout_s),)
        return CheckPlan(commands=commands, before=names, off=("mounts",), trial=trial)

    def verdict(plan: CheckPlan, *, idle: bool = True) -> str:
        found = {one.name: one.verdict for one in checker.look(plan, R(), idle=idle)}
        return found["c"]

    ill.touch()
    checker = checks.Checker(tmp_path, "boot")
    first = plan(60.0, before)
    checker.gate(first, ("c",), R())
    assert verdict(first, idle=False) == "degraded"
    count = len(made.read_text().split())
    edited = plan(timeout_s, gated)
    assert verdict(edited, idle=False) == "degraded"
    assert len(made.read_text().split()) == count, "not while a task runs"
    on_trial = plan(timeout_s, gated, trial=True)
    assert checker.has_tried(on_trial) is (edited.commands == first.commands)
    assert verdict(edited) == "degraded"
    assert len(made.read_text().split()) == count + 1
    ill.unlink()
    assert verdict(edited) == "healthy"
    assert checker.has_tried(on_trial)


def test_mounts_are_looked_at() -> None:
    mounts = checks.MountChecker()
    assert mounts.problem("/proc") == ""
    assert mounts.problem("/proc/self") == "is not mounted"
    assert mounts.problem("/nowhere") == "is not mounted"


def test_where_no_process_can_be_made_a_mount_counts_as_not_answering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that is in such trouble must not go on saying what it found before."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert checks.MountChecker().problem("/proc").startswith("can't be asked: ")


def test_nvlinks_are_counted_from_the_boot_on_whoever_starts_the_agent_anew(
    tmp_path: Path,
) -> None:
    plan = CheckPlan(gpus=1)
    whole, broken = R(gpus=(gpu(nvlinks=LINKS),)), R(gpus=(gpu(),))

    def finds(seen: checks.Readings, boot: str = "boot") -> list[str]:
        found = checks.unwell(checks.Checker(tmp_path, boot).look(plan, seen))
        return [one.message for one in found if one.name == "gpu-nvlink"]

    assert finds(broken) == []
    assert finds(whole) == []
    for _ in range(2):
        assert finds(broken) == ["GPU 0 has 0 NVLinks, it had 17"]
    assert finds(broken, "another") == []
    other = R(gpus=(gpu(uuid="GPU-9"),))
    assert finds(whole) == []
    assert finds(other) == [], "another device in its place"
    (tmp_path / "nvlinks.json").write_text("{")
    assert finds(broken) == []


def test_a_mount_that_hangs_holds_one_child_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child here is killed in vain, as one is that waits in the kernel for a dead server."""
    asked, gone = tmp_path / "asked", tmp_path / "gone"
    program = tmp_path / "stat"
    program.write_text(
        f"#!/bin/sh\necho $$ >> {asked}\n"
        f'[ "$2" = /proc ] && while [ ! -e {gone} ]; do sleep 0.05; done\ntrue\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(checks, "MOUNT_S", 1.0)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    mounts = checks.MountChecker()
    try:
        assert mounts.problem("/proc") == "does not answer in 1 s"
        wait_for(asked.exists)
        (pid,) = asked.read_text().split()
        for _ in range(3):
            assert mounts.problem("/proc") == (
                f"does not answer: process {pid}, which checked it, hangs there"
            )
        assert asked.read_text().split() == [pid]
        monkeypatch.setattr(checks, "MOUNT_S", 60.0)
        assert mounts.problem("/sys") == ""  # others are asked as ever
    finally:
        gone.touch()
    wait_for(lambda: mounts.problem("/proc") == "")
    assert len(asked.read_text().split()) == 3


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_look_at_this_machine_ends(tmp_path: Path) -> None:
    command = CheckCommand("own", (sys.executable, "-c", "raise SystemExit(1)"), 60.0)
    plan = CheckPlan(mounts=("/proc", "/nowhere"), commands=(command,))
    found = checks.unwell(checks.Checker(tmp_path, "boot").look(plan, R()))
    by_name = {one.name: one.verdict for one in found}
    assert by_name["mounts"] == "failed"
    assert by_name["own"] == "degraded"
    assert os.getpid() > 0


@pytest.mark.parametrize(
    ("written", "counts"),
    [
        (("D", 1, 1000, 0), False),  # a parent in vfork looks like this, and SIGKILL ends it
        (("D", 1, 1000, 0x100), True),
        (("D", 1, 1000, 0x4000), False),  # SIGTERM waits
        (("D", 1, 0, 0), True),  # what the machine itself runs
        (("D", 2, 0, 0x100), False),  # a kernel thread
        (("S", 1, 1000, 0x100), False),
    ],
)
def test_only_what_sigkill_does_not_end_is_stuck(
    written: tuple[str, int, int, int], counts: bool, tmp_path: Path
) -> None:
    state, parent, uid, pending = written
    process = tmp_path / "77"
    process.mkdir()
    rest = " ".join(["0"] * 17)
    (process / "stat").write_text(f"77 (a) b) {state} {parent} {rest} 4711 0\n")
    ids = f"{uid}\t{uid}\t{uid}\t{uid}"
    (process / "status").write_text(f"Name:\ta) b\nUid:\t{ids}\nSigPnd:\t{pending:016x}\n")
    (tmp_path / "meminfo").touch()
    assert list(checks.unkillable(str(tmp_path))) == ([(77, 4711)] if counts else [])

"""Health checks of this node: turns readings of GPUs and machine into verdicts.

Built-in checks are pure functions of readings. ``Checker`` makes the readings, runs the site's
executables with a deadline and without a shell, and remembers what a single look cannot show.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from agents.health import site_checks
from agents.host import host_info, processes
from reconciler import child_process
from reconciler.model.observed import devices
from reconciler.model.observed.health_checks import (
    BUILT_IN,
    TASK_START,
    CheckCommand,
    CheckPlan,
    CheckResult,
    Verdict,
)
from reconciler.model.state import records
from reconciler.model.values.quantities import counted
from reconciler.model.values.text_lines import split_lines

#: Time for a file system to answer.
MOUNT_S = 5.0
#: Corrected memory errors since boot that show a failing module.
CORRECTED_MANY = 1000
#: Time after which a process that cannot be ended counts as stuck.
STUCK_S = 60.0
#: SIGKILL in a mask of signals, as ``/proc`` has them.
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)
#: XIDs caused by the device, not the program, by NVIDIA's catalogue of remedies.
XIDS_FAILED = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row could not be remapped or page not retired",
    74: "NVLink error",
    79: "fallen off the bus",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
    140: "unrecovered ECC error",
}
XIDS_DEGRADED = {
    63: "row remapped or page retired",
    92: "many single-bit ECC errors",
    94: "contained memory error",
}
HEAT_REASONS = {"hardware-thermal-slowdown", "software-thermal-slowdown"}

#: Verdict, reason, and number of the GPU that it is about.
Finding = tuple[Verdict, str] | tuple[Verdict, str, int]


class Readings(msgspec.Struct, frozen=True):
    """Values that the built-in checks judge.

    Attributes:
        links_before: most NVLinks that each GPU has had since boot, by number.
        clock_synchronised: None if unknown.
        clock_skew: description of the problem; empty for none.
        memory_errors: corrected and uncorrected errors since boot.
        stuck: number of processes that have been unkillable for long.
        start: the result of the check of starts, unless that is healthy.
        mounts: problems by path.
    """

    gpus: tuple[records.Gpu, ...] = ()
    usage: tuple[devices.GpuUsage, ...] = ()
    driver: devices.GpuDriver | None = None
    links_before: dict[int, int] = {}
    disk_free_ratio: float = 1.0
    disk_read_only: bool = False
    inodes_free_ratio: float = 1.0
    clock_synchronised: bool | None = None
    clock_skew: str = ""
    memory_errors: tuple[int, int] = (0, 0)
    stuck: int = 0
    start: tuple[CheckResult, ...] = ()
    mounts: dict[str, str] = {}


def judge(readings: Readings, plan: CheckPlan) -> tuple[CheckResult, ...]:
    """Return the results of all built-in checks that are on, in their order."""
    found = []
    for name in BUILT_IN:
        if name not in plan.off:
            findings = list(_CHECKS[name](readings, plan))
            found.append(_result(name, findings))
    return tuple(found)


def _result(name: str, findings: list[Finding]) -> CheckResult:
    if not findings:
        return CheckResult(name)
    failed = [finding for finding in findings if finding[0] == "failed"]
    shown = failed or findings
    more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
    text = f"{shown[0][1]}{more}"[: site_checks.MESSAGE_CHARACTERS_MAX]
    numbers = tuple(sorted({finding[2] for finding in shown if len(finding) == 3}))
    return CheckResult(name, "failed" if failed else "degraded", text, numbers)


def _gpu_count(readings: Readings, plan: CheckPlan) -> Iterator[Finding]:
    usable = sum(gpu.state == devices.OK for gpu in readings.gpus)
    if usable < plan.gpus:
        bad = [gpu for gpu in readings.gpus if gpu.state != devices.OK]
        why = f": GPU {bad[0].index} is {bad[0].state}" if bad else ""
        yield "failed", f"{counted(usable, 'GPU')} of {plan.gpus} can be used{why}"


def _gpu_driver(readings: Readings, plan: CheckPlan) -> Iterator[Finding]:
    driver = readings.driver
    if driver is None or driver.state == devices.OK or not (plan.gpus or readings.gpus):
        return  # without GPUs the driver's state does not matter
    yield "failed", f"the NVIDIA driver is {driver.state}: {driver.message}"


def _gpu_ecc(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    for gpu in readings.usage:
        if gpu.ecc_volatile is not None and gpu.ecc_volatile[1]:
            yield (
                "failed",
                f"GPU {gpu.index} has uncorrectable ECC errors: it needs a reset",
                gpu.index,
            )


def _gpu_memory(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    for gpu in readings.usage:
        if gpu.row_remap_failed:
            yield (
                "failed",
                f"GPU {gpu.index} could not remap a row of its memory: replace it",
                gpu.index,
            )
        elif gpu.row_remap_pending or gpu.retired_pages_pending:
            yield (
                "degraded",
                f"GPU {gpu.index} has memory to remap or retire: it needs a reset",
                gpu.index,
            )


def _gpu_xid(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    for gpu in readings.usage:
        for xid in gpu.xids:
            if xid.number in XIDS_FAILED:
                yield (
                    "failed",
                    f"GPU {gpu.index}: XID {xid.number}, {XIDS_FAILED[xid.number]}",
                    gpu.index,
                )
            elif xid.number in XIDS_DEGRADED:
                yield (
                    "degraded",
                    f"GPU {gpu.index}: XID {xid.number}, {XIDS_DEGRADED[xid.number]}",
                    gpu.index,
                )


def _gpu_temperature(readings: Readings, plan: CheckPlan) -> Iterator[Finding]:
    most = plan.gpu_temperature_celsius
    for gpu in readings.usage:
        if gpu.temperature_celsius is not None and gpu.temperature_celsius >= most:
            yield "degraded", f"GPU {gpu.index} is at {most:g} °C or above", gpu.index
        elif HEAT_REASONS.intersection(gpu.clock_event_reasons or ()):
            yield "degraded", f"GPU {gpu.index} is slowed down by heat", gpu.index


def _gpu_nvlink(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    for gpu in readings.gpus:
        if gpu.state != devices.OK or gpu.mig_enabled:
            continue  # instances use no NVLinks
        # without NVLinks, as on machines with single GPUs, computing works
        if gpu.fabric_problem and links_of(gpu):
            said = f"GPU {gpu.index} {gpu.fabric_problem}, and computes nothing till then"
            yield "failed", f"{said}: see nvidia-fabricmanager", gpu.index
        before, now = readings.links_before.get(gpu.index, 0), links_of(gpu)
        if now < before:
            yield "failed", f"GPU {gpu.index} has {now} NVLinks, it had {before}", gpu.index


def links_of(gpu: records.Gpu) -> int:
    """Return the number of active NVLinks of a GPU."""
    return sum(peer.links for peer in gpu.nvlinks)


def _gpu_pcie(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    made_for = {gpu.index: gpu.pcie_width_max for gpu in readings.gpus}
    for one in readings.usage:
        most = made_for.get(one.index)
        if most and one.pcie_width and one.pcie_width < most:
            yield (
                "degraded",
                f"GPU {one.index} has {one.pcie_width} PCIe lanes of {most}",
                one.index,
            )


def _mounts(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    for path, problem in sorted(readings.mounts.items()):
        if problem:
            yield "failed", f"{path} {problem}"


def _disk_space(readings: Readings, plan: CheckPlan) -> Iterator[Finding]:
    if readings.disk_read_only:
        yield "failed", "the file system of its folder is mounted read-only"
    yield from _scarce("space", readings.disk_free_ratio, plan.disk_free_ratio)


def _inodes(readings: Readings, plan: CheckPlan) -> Iterator[Finding]:
    yield from _scarce("inodes", readings.inodes_free_ratio, plan.inodes_free_ratio)


def _scarce(what: str, free: float, least: float) -> Iterator[Finding]:
    if free < least / 5:
        yield "failed", f"less than {least / 5:.1%} of its {what} is free"
    elif free < least:
        yield "degraded", f"less than {least:.1%} of its {what} is free"


def _clock(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    if readings.clock_synchronised is False:
        yield "degraded", "the clock is not synchronised, according to systemd-timesyncd"
    if readings.clock_skew:
        yield "degraded", readings.clock_skew


def _memory_errors(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    corrected, uncorrected = readings.memory_errors
    if uncorrected:
        yield "failed", "the machine's memory has errors that could not be corrected: replace it"
    elif corrected >= CORRECTED_MANY:
        yield "degraded", f"the machine's memory has had {CORRECTED_MANY} or more corrected errors"


def _stuck(readings: Readings, plan: CheckPlan) -> Iterator[Finding]:
    if readings.stuck >= plan.stuck_processes:
        yield "failed", f"{plan.stuck_processes} or more processes can't be ended"


def _task_start(readings: Readings, _: CheckPlan) -> Iterator[Finding]:
    for result in readings.start:
        yield result.verdict, result.message


_CHECKS: dict[str, Callable[[Readings, CheckPlan], Iterator[Finding]]] = {
    "gpu-count": _gpu_count,
    "gpu-driver": _gpu_driver,
    "gpu-ecc": _gpu_ecc,
    "gpu-memory": _gpu_memory,
    "gpu-xid": _gpu_xid,
    "gpu-temperature": _gpu_temperature,
    "gpu-nvlink": _gpu_nvlink,
    "gpu-pcie": _gpu_pcie,
    "mounts": _mounts,
    "disk-space": _disk_space,
    "inodes": _inodes,
    "clock": _clock,
    "memory-errors": _memory_errors,
    "stuck-processes": _stuck,
    TASK_START: _task_start,
}


# --- reading --------------------------------------------------------------------------------


class MountChecker:
    """Checks mounts by child processes, because a dead server blocks whoever accesses it.

    If not even SIGKILL ends a child, no other one checks the same path until it has gone.
    """

    def __init__(self) -> None:
        self._stuck = child_process.StuckChildren()

    def problem(self, path: str) -> str:
        """Return what is wrong with a mount; empty if nothing is."""
        text = processes.read_file("/proc/self/mounts").decode("utf-8", "replace")
        points = {line.split()[1] for line in split_lines(text) if line.count(" ") > 1}
        if path.replace(" ", "\\040") not in points:
            return "is not mounted"
        return self.answer(path)

    def answer(self, path: str) -> str:
        """Return why a path does not answer; empty if it does."""
        stuck = self._stuck.pids(path)
        if stuck:
            return f"does not answer: process {stuck[0]}, which checked it, hangs there"
        try:
            result = child_process.run_child(
                child_process.ChildProgram(["stat", "-f", path]),
                child_process.ChildLimits(MOUNT_S),
            )
        except OSError as problem:  # no process can be created: the node is in trouble
            return f"can't be asked: {problem}"
        self._stuck.note(path, result)
        if result.status is None:
            return f"does not answer in {MOUNT_S:g} s"
        return "" if result.status == 0 else "can't be read"


class _KeptLinks(msgspec.Struct, frozen=True):
    """Contents of the file of ``NvlinkHistory``: most NVLinks of each GPU, by UUID."""

    boot_id: str
    most: dict[str, int]


_DECODE_LINKS = msgspec.json.Decoder(_KeptLinks).decode


class NvlinkHistory:
    """The most NVLinks that each GPU has had in this boot, also under earlier agents.

    A link that went down counts as down until it is repaired, even if the agent restarts.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._most: dict[str, int] = {}
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            stored = _DECODE_LINKS(path.read_bytes())
            self._most = stored.most if stored.boot_id == boot_id else {}

    def most(self, gpus: Iterable[records.Gpu]) -> dict[int, int]:
        """Return the maximum of these GPUs by number, including their present links."""
        found, grown = {}, False
        for gpu in gpus:
            now = links_of(gpu)
            if now > self._most.get(gpu.uuid, 0):
                self._most[gpu.uuid], grown = now, True
            found[gpu.index] = self._most.get(gpu.uuid, 0)
        if grown:
            fresh = self._path.with_suffix(".new")
            with contextlib.suppress(OSError):  # then only this agent remembers it
                fresh.write_bytes(msgspec.json.encode(_KeptLinks(self._boot_id, self._most)))
                fresh.replace(self._path)
        return found


def clock_synchronised() -> bool | None:
    """Return True if systemd-timesyncd keeps the clock; None if it does not run here."""
    marker = Path("/run/systemd/timesync/synchronized")
    if marker.parent.exists():
        return marker.exists()
    return None


class Checker:
    """The checks of one node. Callers hold ``turn`` until the results are reported, so that no
    older result replaces a newer one.

    Executables that run before or after jobs do not run on the interval, except those that have
    failed: on an idle node they run again, so that the node can become healthy.
    """

    def __init__(self, root: Path, boot_id: str) -> None:
        self._root = root
        self._links = NvlinkHistory(root / "nvlinks.json", boot_id)
        self._unkillable: dict[tuple[int, int], float] = {}
        self._mounts = MountChecker()
        self._site = site_checks.SiteChecks()
        #: The last results of executables by name, with what was run.
        self._made: dict[str, tuple[CheckCommand, CheckResult]] = {}
        self.turn = threading.Lock()

    def look(
        self,
        plan: CheckPlan,
        seen: Readings,
        *,
        idle: bool = True,
    ) -> tuple[CheckResult, ...]:
        """Return the results of all checks that are due, with readings not already in ``seen``.

        A command that was changed keeps a result that is not healthy until it is made again: an
        edit makes no node well.
        """
        found = list(judge(self._read(plan, seen), plan))
        gated = {*plan.before, *plan.after}
        self._forget(plan)
        for check in plan.commands:
            _, last = self._made.get(check.name, (check, None))
            is_due = plan.trial if last is None else last.verdict != "healthy"
            if check.name not in gated or (is_due and idle):
                last = self._make(check)
            found.append(last or CheckResult(check.name))
        return tuple(found)

    def has_tried(self, plan: CheckPlan) -> bool:
        """Return True if nothing of a plan on trial is left to do after a look."""
        names = {*plan.before, *plan.after}
        made = {check for check, _ in self._made.values()}
        return not plan.trial or all(
            check in made for check in plan.commands if check.name in names
        )

    def _make(self, check: CheckCommand) -> CheckResult:
        result = self._site.run(check)
        self._made[check.name] = check, result
        return result

    def _forget(self, plan: CheckPlan) -> None:
        """Forget results of commands that are gone, and healthy ones of those that changed."""
        there = {check.name: check for check in plan.commands}
        self._made = {
            name: (check, result)
            for name, (check, result) in self._made.items()
            if name in there and (there[name] == check or result.verdict != "healthy")
        }

    def gate(
        self, plan: CheckPlan, names: tuple[str, ...], seen: Readings
    ) -> tuple[CheckResult, ...]:
        """Make the named checks now, due or not."""
        built_in = {result.name: result for result in judge(self._read(plan, seen), plan)}
        commands = {command.name: command for command in plan.commands}
        found = []
        for name in names:
            if name in built_in:
                found.append(built_in[name])
            elif name in commands:
                found.append(self._make(commands[name]))
        return tuple(found)

    def _read(self, plan: CheckPlan, seen: Readings) -> Readings:
        most = self._links.most(seen.gpus)
        space = os.statvfs(self._root)
        read_only = bool(space.f_flag & os.ST_RDONLY)
        return msgspec.structs.replace(
            seen,
            links_before=most,
            disk_read_only=read_only,
            disk_free_ratio=space.f_bavail / space.f_blocks if space.f_blocks else 1.0,
            inodes_free_ratio=space.f_favail / space.f_files if space.f_files else 1.0,
            clock_synchronised=clock_synchronised(),
            memory_errors=(0, 0) if "memory-errors" in plan.off else host_info.memory_errors(),
            stuck=0 if "stuck-processes" in plan.off else self._stuck(),
            mounts={
                path: self._mounts.problem(path) for path in plan.mounts if "mounts" not in plan.off
            },
        )

    def _stuck(self) -> int:
        """Return the number of processes that have been unkillable in the kernel for long."""
        now = time.monotonic()
        seen = {key: self._unkillable.get(key, now) for key in unkillable()}
        self._unkillable = seen
        return sum(since + STUCK_S <= now for since in seen.values())


def unkillable(top: str = "/proc") -> Iterator[tuple[int, int]]:
    """Yield pid and start of processes that nothing seems to end, without kernel threads.

    They are in uninterruptible sleep. A user's process counts only if SIGKILL waits for it in vain:
    sleeps that SIGKILL ends look the same, such as that of a parent in ``vfork``, and anybody could
    take a node out of service by them.
    """
    for name in os.listdir(top):  # noqa: PTH208 - thousands of names, and no paths needed
        if not name.isdigit():
            continue
        fields = processes.read_file(f"{top}/{name}/stat").rpartition(b")")[2].split()
        if len(fields) <= 19 or fields[0] != b"D" or fields[1] in (b"0", b"2"):
            continue
        status = processes.read_file(f"{top}/{name}/status").split(b"\n")
        told = {key: value.split() for key, _, value in (line.partition(b":") for line in status)}
        pending = int((told.get(b"SigPnd") or [b"0"])[0], 16)
        if (told.get(b"Uid") or [b"0"])[0] == b"0" or pending & _SIGKILL_BIT:
            yield int(name), int(fields[19])


def unwell(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the results that are not healthy, in the order of their checks."""
    return tuple(result for result in results if result.verdict != "healthy")


def merged(told: Iterable[CheckResult], found: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return reported results with some of them replaced. Healthy ones are not reported."""
    merged = {result.name: result for result in told} | {result.name: result for result in found}
    return unwell(merged.values())

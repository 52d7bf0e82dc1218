"""Carries out remediations that the controller requests on this node, each exactly once.

They come with the set of assignments, and stay in it until their end is committed.
``remedies.json`` notes what has begun before anything is done: after a crash a remediation is not
repeated but reported as unknown. The boot id shows if a reboot has happened. What the controller
withdraws in time is not done.
"""

import contextlib
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from agents.health import site_checks
from agents.host import processes
from reconciler.model.observed import devices
from reconciler.model.observed.health_checks import CheckCommand
from reconciler.model.policy.drift_kinds import DriftRemedy
from reconciler.model.state.records import RemedyReport

#: Time for a process to end after SIGTERM, and after SIGKILL.
LEAVE_S = 10.0
GO_S = 5.0
#: Ends that are kept; the controller never has more open remediations for a node.
KEPT_MAX = 256
#: Tolerance for the start time of a process, because clocks are rounded.
STARTED_TOLERANCE_S = 2.0
#: Time for resetting GPUs, and for requesting a reboot.
RESET_S, REBOOT_S = 120.0, 30.0
#: Time for a machine to go down, and this agent with it.
DOWN_S = 600.0
#: Remediations that an agent does not survive: a new agent, or a new boot, is their end.
_RESTART, _REBOOT = "restart-agent.", "reboot."
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class RemediationError(Exception):
    """A remediation that cannot be carried out."""


class NodeActions(NamedTuple):
    """The agent as remediation sees it: lookups and actions.

    Attributes:
        foreign_processes: returns processes on GPUs that belong to no task, as last seen.
        occupants: returns attempts that have not ended, those included that are about to start.
        gpu_uuids: returns the UUIDs of real GPUs by index.
        partial_gpus: returns UUIDs of GPUs of which only some MIG instances belong to this node.
        exclusive_gpus: returns a context in which the agent neither has a GPU open nor changes
            one; if it ends without an error, the GPUs of the given UUIDs have been reset.
        restart: ends this agent soon, so that its service manager starts it again.
        owns_machine: returns True if no other node is on this machine.
        stops_within: waits up to that many seconds; returns True if the agent was told to stop.
    """

    foreign_processes: Callable[[], tuple[devices.GpuProcess, ...]]
    occupants: Callable[[], list[str]]
    gpu_uuids: Callable[[], dict[int, str]]
    partial_gpus: Callable[[], Collection[str]]
    exclusive_gpus: Callable[[Collection[str]], contextlib.AbstractContextManager[None]]
    restart: Callable[[], None]
    owns_machine: Callable[[], bool]
    stops_within: Callable[[float], bool]


class _Kept(msgspec.Struct, frozen=True):
    """Contents of ``remedies.json``. The agent died during those in ``begun`` that are not ended.

    Attributes:
        boots: boot in which each remediation came, by id.
    """

    begun: tuple[str, ...] = ()
    boots: dict[str, str] = {}
    ended: tuple[RemedyReport, ...] = ()


_DECODE_KEPT = msgspec.json.Decoder(_Kept).decode


Handler = Callable[[DriftRemedy, NodeActions], str]


class RemediationQueue:
    """The remediations of one node.

    Args:
        root: the node's folder.
        boot_id: id of the node's boot.
        node: what remediations may do with the agent.
        ended: called when there is an end to report.
        handlers: by verb, a function that carries out a remediation and returns what was done.
        repaired: called with the cause of a remediation that was carried out.
    """

    def __init__(
        self,
        root: Path,
        boot_id: str,
        node: NodeActions,
        ended: Callable[[], None],
        handlers: "dict[str, Handler] | None" = None,
        *,
        repaired: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._repaired = repaired
        self._path = root / "remedies.json"
        self._boot_id = boot_id
        self._node = node
        self._told = ended
        self._handlers = HANDLERS if handlers is None else handlers
        self._lock = threading.Lock()
        self._waiting: queue.Queue[DriftRemedy] = queue.Queue()
        self._wanted: set[str] = set()
        #: The boot in which each remediation came that is not withdrawn; empty if unknown.
        self._begun: dict[str, str] = {}
        self._ended: dict[str, RemedyReport] = {}
        self._load()

    def take(self, orders: Iterable[DriftRemedy]) -> None:
        """Take the remediations that the node shall have now, and start new ones."""
        wanted = {order.id: order for order in orders}
        with self._lock:
            self._wanted = set(wanted)
            for name in [name for name in self._ended if name not in wanted]:
                del self._ended[name]
                self._begun.pop(name, None)
            fresh = [order for name, order in wanted.items() if name not in self._begun]
            for order in fresh[: KEPT_MAX - len(self._begun)]:
                self._begun[order.id] = self._boot_id
                self._waiting.put(order)
            self._save()

    def reports(self) -> tuple[RemedyReport, ...]:
        """Return ends that the controller may not know yet."""
        with self._lock:
            return tuple(self._ended.values())

    def work(self) -> None:
        """Wait for the next remediation, and carry it out unless it was withdrawn."""
        order = self._waiting.get()
        if self._is_withdrawn(order):
            return
        handler = self._handlers.get(order.verb)
        try:
            if handler is None:
                message = f"this agent is too old for {order.verb}. To fix: upgrade the agent"
                raise RemediationError(message)  # noqa: TRY301
            report = RemedyReport(order.id, done=True, message=handler(order, self._node))
        except (RemediationError, OSError) as problem:
            report = RemedyReport(order.id, done=False, message=str(problem))
        if report.done:
            self._repaired(order.cause)
        with self._lock:
            self._ended[order.id] = report
            self._save()
        self._told()

    def _is_withdrawn(self, order: DriftRemedy) -> bool:
        """Return True if a remediation was withdrawn while it waited. It is then forgotten."""
        with self._lock:
            if order.id in self._wanted:
                return False
            self._begun.pop(order.id, None)
            self._save()
            return True

    def _load(self) -> None:
        try:
            stored = _DECODE_KEPT(self._path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            return
        self._ended = {one.id: one for one in stored.ended}
        for name in stored.begun:
            self._begun[name] = stored.boots.get(name, "")
            if name not in self._ended:
                self._ended[name] = _survived(name, self._begun[name], self._boot_id)

    def _save(self) -> None:
        fresh = self._path.with_suffix(".new")
        stored = _Kept(tuple(self._begun), dict(self._begun), tuple(self._ended.values()))
        with contextlib.suppress(OSError):  # an order may then be carried out twice, after a crash
            fresh.write_bytes(msgspec.json.encode(stored))
            fresh.replace(self._path)


def _survived(name: str, before: str, now: str) -> RemedyReport:
    """Return the end of a remediation that began in boot ``before`` under an agent that
    has died.
    """
    if name.startswith(_RESTART) or (name.startswith(_REBOOT) and before not in {"", now}):
        return RemedyReport(name, done=True, message="it was restarted")
    message = "the agent ended during it; the result is unknown"
    if name.startswith(_REBOOT) and before == now:
        message = "the agent ended during it, and the machine has not rebooted since"
    return RemedyReport(name, done=False, message=message)


def end_process(order: DriftRemedy, node: NodeActions) -> str:
    """End a process that holds a GPU and belongs to no task: SIGTERM, then SIGKILL.

    Raises:
        OrderError: it is another process, is needed here, or does not end.
    """
    pid = order.pid
    foreign = {(process.pid, process.uuid) for process in node.foreign_processes()}
    if (pid, order.uuid) not in foreign:
        return f"process {pid} is not on the device any more"
    if pid in _own():
        raise RemediationError(f"process {pid} is the agent itself or its ancestor")
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return f"process {pid} has gone"
    try:
        _check_start(order)
        for number, wait_s in ((signal.SIGTERM, LEAVE_S), (signal.SIGKILL, GO_S)):
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                return f"process {pid} has ended"
            except PermissionError:
                raise RemediationError(
                    f"process {pid} belongs to another user, and this agent may not end it: run "
                    "the agent as root"
                ) from None
            if _gone(handle, wait_s):
                return f"process {pid} ended by {number.name}"
    finally:
        os.close(handle)
    raise RemediationError(f"process {pid} survives SIGKILL: it is stuck in the kernel")


def _own() -> set[int]:
    """Return pids of this process and its ancestors."""
    found, at = set(), os.getpid()
    while at > 0 and at not in found:
        found.add(at)
        facts = processes.process_facts(at)
        at = facts[0] if facts else 0
    return found | {0, 1}


def _check_start(order: DriftRemedy) -> None:
    """Raise OrderError if the process id belongs to a newer process."""
    facts = processes.process_facts(order.pid)
    if facts is None or not order.started_at:
        return
    began = time.time() - processes.boottime() + facts[2] / _TICKS_PER_S
    if abs(began - order.started_at) > STARTED_TOLERANCE_S:
        raise RemediationError(
            f"process {order.pid} is not the process that was seen on the device"
        )


def _gone(handle: int, wait_s: float) -> bool:
    """Return True if the process of a handle ends in time."""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(1000 * wait_s))


def restart_agent(_: DriftRemedy, node: NodeActions) -> str:
    """End this agent without its tasks; its service manager starts it again."""
    node.restart()
    return "the agent ends, so that its service manager starts it again"


def run_command(order: DriftRemedy, node: NodeActions) -> str:
    """Run the site's command, with a deadline and without a shell.

    Raises:
        OrderError: a task runs here, or the command does not exit with status 0.
    """
    _must_be_idle(node)
    return _run(order.command, order.timeout_s)


def reset_gpu(order: DriftRemedy, node: NodeActions) -> str:
    """Reset GPUs that nobody uses, by nvidia-smi.

    Raises:
        OrderError: a task runs here, a GPU is not this node's alone, or the driver refuses.
    """
    known, parted = node.gpu_uuids(), node.partial_gpus()
    uuids = [known[number] for number in order.devices if number in known]
    others = [uuid for uuid in uuids if uuid in parted]
    if others:
        raise RemediationError(
            f"{', '.join(others)} is not this node's to reset, which --gpus gives MIG instances of "
            "it alone: others may be at work there; drain them, and reset it by hand"
        )
    _must_be_idle(node)
    if node.foreign_processes():
        raise RemediationError("processes outside tasks hold GPUs. To fix: end them first")
    if not uuids:
        raise RemediationError("no real GPU to reset")
    with node.exclusive_gpus(uuids):
        return _run(("nvidia-smi", "--gpu-reset", "-i", ",".join(uuids)), RESET_S)


def reboot(_: DriftRemedy, node: NodeActions) -> str:
    """Reboot the machine.

    A requested reboot is not an end: until the machine is down, nothing else may be done or
    started.

    Raises:
        OrderError: a task runs here, other nodes are on the machine, permission is missing, or the
            machine does not go down.
    """
    if not node.owns_machine():
        raise RemediationError(
            "several nodes share this machine, so it is not rebooted for one of them"
        )
    _must_be_idle(node)
    said = _run(("systemctl", "reboot"), REBOOT_S)
    if not node.stops_within(DOWN_S):
        raise RemediationError(f"{said}, and {DOWN_S:g} s later the machine is still up")
    return f"{said}, and the machine is going down"


#: One for this process, whose children they are that cannot be ended.
_SITE = site_checks.SiteChecks()


def _must_be_idle(node: NodeActions) -> None:
    here = node.occupants()
    if here:
        if len(here) == 1:
            raise RemediationError(f"task {here[0]} runs or starts here: nothing may")
        raise RemediationError(f"{len(here)} tasks run or start here, as {here[0]}: nothing may")


def _run(command: tuple[str, ...], timeout_s: float) -> str:
    found = _SITE.run(CheckCommand(command[0], command, timeout_s))
    if found.verdict != "healthy":
        raise RemediationError(f"{command[0]}: {found.message}")
    return f"{command[0]} has ended with status 0"


HANDLERS: dict[str, Handler] = {
    "end-process": end_process,
    "restart-agent": restart_agent,
    "run-command": run_command,
    "reset-gpu": reset_gpu,
    "reboot": reboot,
}

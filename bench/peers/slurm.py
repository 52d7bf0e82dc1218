"""Slurm beside us: ``slurmctld`` and several ``slurmd`` on one host, from Debian's packages.

Everything is in a temporary folder and on loopback, with a ``munged`` of its own key and socket.
Only the processes that were started here are ended. Jobs' states are in ``slurmctld``'s memory
and saved every few seconds (``StateSaveLocation``): an exit status is durable some time after it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agents.host import process_memory, processes
from bench import cluster
from bench.peers import bringing
from reconciler.operations.local import free_ports

DURABILITY = "state saved every few seconds: an exit status is durable later"
_PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "squeue": "slurm-client",
    "munged": "munge",
}
_READY_S, _END_S, _ARRAY_S = 60.0, 15.0, 1200.0

_CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmctldAddr=127.0.0.1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0,defer_batch
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MaxArraySize=100001
MaxJobCount=200000
MinJobAge=2
"""


def missing() -> str:
    """Have it here, installing it where it is missing; why it can't be a peer, or nothing."""
    if os.geteuid():
        return "slurmd wants to be started by root"
    return bringing.programs(_PROGRAMS)


def _ports(count: int) -> list[int]:
    """Return different ports of loopback that are free now."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_ports.free_port())
    return list(found)


class Slurm:
    """A running cluster."""

    def __init__(self, folder: Path, nodes: int, cpus: int) -> None:
        self.folder = folder
        self.nodes, self.cpus = nodes, cpus
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "HOME": str(folder),
        }
        self.version = ""

    def ask(self, *command: str) -> str:
        """What a command of the client prints.

        Raises:
            RuntimeError: it failed.
        """
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.returncode}")
        return done.stdout.strip()

    def start(self) -> None:
        """Start munge, controller and nodes, and wait until all nodes are idle."""
        self._start_munge()
        controller, *ports = _ports(self.nodes + 1)
        host = socket.gethostname().partition(".")[0]
        text = _CONFIGURATION.format(host=host, folder=self.folder, controller_port=controller)
        for number, port in enumerate(ports, 1):
            text += (
                f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs={self.cpus} RealMemory=8192 State=UNKNOWN\n"
            )
        text += f"PartitionName=main Nodes=n[1-{self.nodes}] Default=YES State=UP\n"
        (self.folder / "slurm.conf").write_text(text)
        self.version = self.ask("sbatch", "--version").split()[-1]
        (self.folder / "state").mkdir()
        self._start("slurmctld", "slurmctld", "-D")
        for number in range(1, self.nodes + 1):
            (self.folder / f"spool-n{number}").mkdir()
            self._start(f"slurmd-n{number}", "slurmd", "-D", "-N", f"n{number}")
        self._wait(lambda: self._idle() == self.nodes, "its nodes are not idle")

    def stop(self) -> None:
        """End what was started, the last first."""
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_S)
        for pid in self._left():
            processes.kill(pid)

    def _left(self) -> list[int]:
        """Pids of what the nodes' daemons left: it works in the folder that is ours alone."""
        found = []
        for pid in processes.processes():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cwd").readlink().is_relative_to(self.folder.resolve()):
                    found.append(pid)
        return found

    def array(self, count: int) -> float:
        """Seconds from ``sbatch`` of an array of ``/bin/true`` until none of it is left."""
        script = self.folder / "true.sh"
        script.write_text("#!/bin/sh\nexec /bin/true\n")
        began = time.monotonic()
        self.ask("sbatch", "-o/dev/null", "-n1", f"--array=0-{count - 1}", str(script))
        self._wait(lambda: not self.ask("squeue", "-h", "-o%i"), "an array did not end", _ARRAY_S)
        return time.monotonic() - began

    def sleepers(self, count: int) -> list[int]:
        """Start so many tasks that sleep; pids of the nodes' daemons and their step daemons."""
        script = self.folder / "sleep.sh"
        script.write_text("#!/bin/sh\nexec sleep 86400\n")
        self.ask("sbatch", "-o/dev/null", "-n1", f"--array=0-{count - 1}", str(script))
        steps: list[int] = []

        def all_run() -> bool:
            started = process_memory.read(processes.processes(), ())
            steps[:] = [pid for pid, text in started.items() if self._is_step(pid, text.words)]
            return len(steps) >= count

        self._wait(all_run, f"there are not {count} slurmstepd")
        return [*self.daemons(), *steps]

    def _is_step(self, pid: int, words: list[str]) -> bool:
        """Return True if a command line is that of the step daemon of one of these tasks."""
        if not any("slurmstepd" in word for word in words[:1]):
            return False
        with contextlib.suppress(OSError):
            return str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def daemons(self) -> list[int]:
        """Pids of the nodes' daemons."""
        return [p.pid for name, p in self.processes.items() if name.startswith("slurmd-")]

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        socket_path = self.folder / "munge.socket"
        self._start(
            "munged",
            *("munged", "--foreground", "--force", f"--socket={socket_path}"),
            *(f"--key-file={key}", f"--pid-file={self.folder}/munged.pid"),
            *(f"--seed-file={self.folder}/munged.seed", f"--log-file={self.folder}/munged.log"),
        )
        self._wait(socket_path.exists, "munged does not answer")

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as output:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def _idle(self) -> int:
        try:
            return self.ask("sinfo", "-h", "-N", "-tidle", "-o%N").count("n")
        except RuntimeError:
            return 0

    def _wait(self, condition: Callable[[], bool], problem: str, limit_s: float = _READY_S) -> None:
        ends_at = time.monotonic() + limit_s
        while not condition():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    words = (self.folder / f"{name}.out").read_text(errors="replace")[-500:]
                    raise RuntimeError(f"Slurm: {name} has ended: {words.strip()}")
            if time.monotonic() > ends_at:
                raise RuntimeError(f"Slurm: {problem} after {limit_s:.0f} s")
            time.sleep(0.05)


@contextmanager
def running(*, nodes: int, cpus: int, within: Path | None = None) -> Iterator[Slurm]:
    """A cluster for the length of a ``with`` block, all of its nodes idle."""
    with cluster.folder_of_its_own("bench-slurm-", within) as folder:
        folder.chmod(0o755)
        made = Slurm(folder, nodes, cpus)
        try:
            made.start()
            yield made
        finally:
            made.stop()

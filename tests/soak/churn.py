"""Thousands of tasks that fork, hide, hang, and fill memory and disk, while agents are killed.

``python -m tests.soak --tasks 4000`` is the proof, the integration tests run a short one. One node,
whose folder is a small disk of its own in memory, is given task after task by a controller that
only says what to run; where podman can be had, some of them run in containers. In the end there
must be no process of any task, no control group, no mount, no file, no container and no layer of
one; and the agent, whose last life is left alone, must be as large as before.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from agents.host import processes
from agents.isolation import cgroups
from agents.supervisor import journal
from reconciler.model.observed import storage
from reconciler.model.protocol import agent_messages
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason
from tests import started
from tests.integration import mounted
from tests.integration.agents import containers
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

#: Tasks that are there at the same time.
TOGETHER = 12
DISK_MIB = 96
MIB = 2**20
#: How long one task may take on a machine that is busy, and the whole to come to rest.
TASK_S, REST_S = 120.0, 120.0
#: Of all tasks, so many come after the last kill: over them the agent's memory is watched.
QUIET_RATIO = 0.4
#: By how much it may grow over those.
GROWTH_BYTES_MAX = 12 * MIB
#: And so many more files it may have open; a supervisor has those of the groups that it keeps.
HANDLES_MORE_MAX = {"agent": 8, "supervisor": 100}
#: Whose tasks some are, where the agent may become another user.
OTHER_USER = "nobody"

Make = Callable[[str], agent_messages.TaskTemplate]


def plain(script: str, **more: object) -> agent_messages.TaskTemplate:
    """A task of a shell; ``MARK`` in the script is what it is found by."""
    template = agent_messages.TaskTemplate(
        "soak", 1, "g", command=("bash", "-c", script), grace_s=1
    )
    return template if not more else msgspec.structs.replace(template, **more)


def kinds(source: Path, target: Path) -> dict[str, tuple[int, Make]]:
    """What tasks do, with how often it is drawn."""
    store_in, store_out = (
        storage.VolumeStore("in", str(source)),
        storage.VolumeStore("out", str(target)),
    )
    copies = storage.StagingPlan(
        ins=(storage.In("data", store_in),),
        outs=(storage.Out("made", store_out, "{job}/{index}", "always"),),
        timeout_s=60.0,
    )
    forks = "for i in 1 2 3 4 5 6 7 8; do (exec -a MARK sleep 3000) & done"
    copied = "mkdir made; cp -r $MUSTER_STAGED_DATA made/MARK"
    told = "for i in {1..200}; do echo MARK $i; done > $MUSTER_METRICS"
    hidden = (
        "(setsid bash -c 'exec -a MARK sleep 3000' >/dev/null 2>&1 &) ; "
        "env -i setsid bash -c '(exec -a MARK sleep 3000) & disown' >/dev/null 2>&1 & exit 0"
    )
    made: dict[str, tuple[int, Make]] = {
        "short": (30, lambda m: plain(f": {m}; exit $(( $$ % 3 ))")),
        "forks": (15, lambda m: plain(forks.replace("MARK", m))),
        "daemon": (15, lambda m: plain(hidden.replace("MARK", m))),
        "memory": (10, lambda m: plain(f": {m}; tail /dev/zero", memory_bytes=24 * MIB)),
        "hang": (8, lambda m: plain(f"trap '' TERM INT; (exec -a {m} sleep 3000); sleep 3000")),
        "disk": (8, lambda m: plain(f": {m}; cat /dev/zero > full; exit 1")),
        "output": (4, lambda m: plain(f"yes {m} | head -c 3000000")),
        "metrics": (5, lambda m: plain(told.replace("MARK", m))),
        "data": (5, lambda m: plain(copied.replace("MARK", m), stage=copies)),
        "missing": (
            2, lambda m: agent_messages.TaskTemplate("soak", 1, "g", command=(f"/none/{m}",)),
        ),
    }  # fmt: skip
    if os.geteuid() == 0:
        for kind, weight in (("short", 30), ("forks", 5), ("daemon", 5), ("missing", 2)):
            made[f"{kind}, another user's"] = weight, _as_another(made[kind][1])
    return made


def _as_another(make: Make) -> Make:
    """The same as another Unix user."""
    return lambda mark: msgspec.structs.replace(make(mark), user=OTHER_USER)


def in_containers() -> dict[str, tuple[int, Make]]:
    """What tasks do in containers, with how often it is drawn."""

    def made(script: str, **more: object) -> Make:
        return lambda mark: msgspec.structs.replace(
            plain(""), command=("sh", "-c", f": {mark}; {script}"),
            runtime="podman", image=containers.IMAGE, **more,
        )  # fmt: skip

    hidden = "setsid env -i /bin/sh -c ': MARK; sleep 3000; :' >/dev/null 2>&1 &"
    hang = "trap '' TERM INT; sleep 3000; sleep 3000"

    def marked(script: str) -> Make:
        return lambda mark: made(script.replace("MARK", mark))(mark)

    return {
        "contained": (5, made("touch /layer $TMPDIR/x; exit 3")),
        "contained-daemon": (3, marked(f"{hidden} sleep 0.1; exit 0")),
        "contained-hang": (3, made(hang)),
        "contained-memory": (1, made("tail /dev/zero; exit 9", memory_bytes=48 * MIB)),
        "contained-disk": (1, made("cat /dev/zero > full; exit 1")),
    }


@dataclass
class Account:
    """What was done and what became of it."""

    tasks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    supervisor_mib: list[float] = field(default_factory=list)
    supervisor_handles: list[int] = field(default_factory=list)
    #: Ends that an older request has overtaken by coming later, and did not hide.
    overtaken: int = 0
    seconds: float = 0.0


class Churn:
    """One run: a node, tasks that arrive, kills drawn from a seed."""

    def __init__(self, folder: Path, seed: int, count: int, kills: int, *, contained: bool) -> None:
        self.random = random.Random(seed)
        self.count, self.kills = count, kills
        self.account = Account()
        self.folder = Path(os.path.realpath(folder))
        self.folder.chmod(0o711)
        self.disk = self.folder / "disk"
        self.mark = f"soak{os.getpid()}x{seed}"
        self.controller = Controller()
        self.controller.acknowledge = True
        self.begun: dict[str, tuple[str, float]] = {}
        self.stopped: set[str] = set()
        self.ends: dict[str, AttemptReport] = {}
        source, target = self.folder / "source", self.folder / "target"
        for made in (self.disk, source, target):
            made.mkdir()
        (source / "data").write_bytes(b"d" * MIB)
        self.kinds = kinds(source, target)
        self.podman = containers.Podman() if contained else None
        if self.podman is not None:
            self.kinds |= in_containers()
        self.mounted = mount(self.disk)
        self.mounts = mounted.at(self.folder)
        self.node = Node(self.disk / "root", self.controller)
        self.node.log = self.folder / "agent.log"

    def run(self) -> Account:
        """Start, kill, wait for the end, look for what is left."""
        began = time.monotonic()
        try:
            self._start()
            self._churn()
            self._rest()
            self._leave()
            self._look_for_leaks()
        finally:
            self.node.tear_down()
            self.controller.close()
            if self.mounted:
                subprocess.run(["umount", "--lazy", str(self.disk)], check=True)
            if self.podman is not None:
                self.podman.remove()
        self.account.overtaken = len(self.controller.crossed)
        self.account.seconds = round(time.monotonic() - began, 1)
        return self.account

    def _start(self) -> None:
        words = ["--podman", " ".join(self.podman.command)] if self.podman is not None else []
        self.node.start("--stop-tasks-on-exit", "--logs-total", "8Mi", "--log-limit", "1Mi",
                        "--data-cache", "16Mi", *words)  # fmt: skip

    def _churn(self) -> None:
        """Keep so many tasks there until all have been."""
        names = [f"{self.mark}.{number}" for number in range(self.count)]
        quiet_from = int(self.count * (1 - QUIET_RATIO))
        kill_at = sorted(self.random.sample(range(quiet_from), min(self.kills, quiet_from)))
        begun = sampled = 0
        while begun < self.count or len(self.ends) < begun:
            self._take_ends()
            while begun < self.count and begun - len(self.ends) < TOGETHER:
                self._begin(names[begun], begun)
                begun += 1
                if kill_at and begun > kill_at[0]:
                    kill_at.pop(0)
                    self._kill()
            self._stop_some()
            if begun > quiet_from and len(self.ends) >= quiet_from + sampled * 100:
                sampled += 1
                self._measure()
            time.sleep(0.01)
        self._measure()

    def _begin(self, name: str, number: int) -> None:
        chosen = self.random.choices(
            list(self.kinds), [weight for weight, _ in self.kinds.values()]
        )[0]
        self.account.tasks[chosen] += 1
        self.begun[name] = chosen, time.monotonic()
        mark = name.replace(".", "_")
        self.controller.assign(name, template=self.kinds[chosen][1](mark), index=number)

    def _take_ends(self) -> None:
        with self.controller.news:
            found = [r for r in self.controller.seen.values() if r.state is AttemptState.ENDED]
            for report in found:
                del self.controller.seen[report.id]
                known = self.ends.setdefault(report.id, report)
                if known.end_reason is not report.end_reason:
                    self._wrong(f"{report.id} ended as {known.end_reason} and {report.end_reason}")
            del self.controller.requests[:-4], self.controller.headers[:-4]
        for report in found:
            self.controller.templates.pop(f"t-{report.id}", None)
        now = time.monotonic()
        for name, (kind, at) in self.begun.items():
            if name not in self.ends and now > at + TASK_S:
                text = f"{name} ({kind}) has not ended in {TASK_S:g} s:\n{self._all_of(name)}"
                raise AssertionError(text)

    def _all_of(self, name: str) -> str:
        """What everybody knows of an attempt whose end was not heard: who has lost it shows."""
        controller, root = self.controller, self.node.root
        with controller.news:
            last = {r.incarnation: r for r in controller.requests}
            listed = {
                f"agent {life}, request {request.sequence}": [
                    one.state.value for one in request.attempts if one.id == name
                ]
                for life, request in last.items()
            }
            known: dict[str, object] = {
                "controller has seen": controller.seen.get(name),
                "told by (life, request)": controller.told.get(name),
                "is assigned": controller.assignments.get(name),
                "agents said last": listed,
            }
        known["agent lives"] = self.node.agent is not None and self.node.agent.poll() is None
        known["supervisor"] = self.node.supervisor()
        known["journal says"] = journal.read(str(root / "journal")).get(name)
        known["folders"] = [
            str(path) for path in root.glob(f"*/{name}") if path.parent.name != "logs"
        ]
        known["processes"] = [
            pid for pid in self.node.tasks() if started.attempt_of(pid, str(root)) == name
        ]
        known["disk has left"] = f"{shutil.disk_usage(root).free / MIB:.1f} MiB"
        lines = [f"{what}: {said}" for what, said in known.items()]
        lines.append(self.node.log.read_text()[-1000:])
        lines.append((root / "supervisor.log").read_text()[-3000:])
        return "\n".join(lines)

    def _stop_some(self) -> None:
        """What hangs is stopped after a moment, some of it before it has begun."""
        now = time.monotonic()
        for name, (kind, at) in self.begun.items():
            if (
                kind.endswith("hang")
                and name not in self.stopped
                and now > at + self.random.random()
            ):
                self.stopped.add(name)
                with self.controller.news:
                    there = name in self.controller.assignments
                if there:
                    self.controller.stop(name, grace_s=1)

    def _kill(self) -> None:
        victim = self.random.choice(["agent", "agent", "supervisor", "both"])
        self.account.kills[victim] += 1
        if victim != "supervisor":
            self.node.kill_agent()
        if victim != "agent":
            self.node.kill_supervisor()
        if victim != "supervisor":
            self._start()

    def _measure(self) -> None:
        assert self.node.agent is not None
        agent = psutil.Process(self.node.agent.pid)
        self.account.memory_mib.append(round(agent.memory_info().rss / MIB, 1))
        self.account.handles.append(agent.num_fds())
        self.account.threads.append(agent.num_threads())
        supervisor = psutil.Process(self.node.supervisor())
        self.account.supervisor_mib.append(round(supervisor.memory_info().rss / MIB, 1))
        self.account.supervisor_handles.append(supervisor.num_fds())

    def _rest(self) -> None:
        """Wait until nothing is left to be deleted, and count the ends."""
        ran: Counter[int | None] = Counter()
        for name, report in self.ends.items():
            kind, reason = self.begun[name][0], report.end_reason or EndReason.LOST
            self.account.ends[f"{kind}: {reason.value}"] += 1
            if kind == "contained" and reason is EndReason.EXITED:
                ran[report.exit_code] += 1
        # 125 is podman's own word: where the disk is full it can't start one
        if ran.keys() - {3, 125} or ran[3] < ran[125]:
            self._wrong(f"containers ended with {dict(ran)}: 3 is what they are to end with")
        until = time.monotonic() + REST_S
        root = self.node.root
        while time.monotonic() < until and (
            any(list((root / name).iterdir()) for name in ("attempts", "trash", "staging"))
            or (self.podman is not None and self.podman.containers())
        ):
            time.sleep(0.1)

    def _leave(self) -> None:
        """The agent is told to leave, and takes its supervisor along."""
        assert self.node.agent is not None
        self.node.agent.terminate()
        self.node.agent.wait(120)

    def _wrong(self, what: str) -> None:
        self.account.wrong.append(what)

    def _look_for_leaks(self) -> None:
        """Everything that a task could leave behind."""
        root = self.node.root
        for name in ("attempts", "trash", "staging", "metrics"):
            left = list((root / name).rglob("*"))
            if left:
                self._wrong(f"{len(left)} files in {name}, as {left[0]}")
        parts = [p for p in (root / "cache").rglob("*") if p.name.endswith((".part", ".gone"))]
        if parts:
            self._wrong(f"{len(parts)} copies that are not whole, as {parts[0]}")
        for pid in processes.processes():
            words = processes.read_file(f"/proc/{pid}/cmdline") if pid != os.getpid() else b""
            if self._is_a_tasks(pid, words):
                self._wrong(f"process {pid}: {words.replace(bytes(1), b' ').decode()!r}")
        token = cgroups.token_of(str(root))
        groups = [path for path, _, _ in os.walk("/sys/fs/cgroup") if token in path]
        if groups:
            self._wrong(f"{len(groups)} control groups, as {groups[0]}")
        if self.podman is not None:
            stored = self.podman.left()
            if stored:
                self._wrong(f"{len(stored)} things in the storage of containers: {stored[:9]}")
        more = mounted.at(self.folder) - self.mounts
        if more:
            self._wrong(f"{len(more)} mounts, as {min(more)}")
        account = self.account
        for who, memory, handles in (
            ("agent", account.memory_mib, account.handles),
            ("supervisor", account.supervisor_mib, account.supervisor_handles),
        ):
            half = len(memory) // 2
            if half and max(memory[half:]) - max(memory[:half]) > GROWTH_BYTES_MAX / MIB:
                self._wrong(f"the {who} grew from {max(memory[:half])} to {max(memory[half:])} MiB")
            if half and max(handles[half:]) > max(handles[:half]) + HANDLES_MORE_MAX[who]:
                self._wrong(f"the {who}'s open files grew: {handles}")

    def _is_a_tasks(self, pid: int, words: bytes) -> bool:
        """Whether a process is a task's, or the monitor of a container."""
        if self.podman is not None and str(self.podman.folder).encode() in words:
            return True
        return self.mark.encode() in words or pid in self.node.tasks()


def mount(folder: Path) -> bool:
    """Make a folder a small disk; False where nothing can be mounted here."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "none", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main() -> int:
    """Run once, and print the account."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-containers", action="store_true")
    given = parser.parse_args()
    contained = containers.can_run() and not given.no_containers
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        churn = Churn(Path(folder), given.seed, given.tasks, given.kills, contained=contained)
        account = churn.run()
    sys.stdout.write(json.dumps(vars(account), indent=2) + "\n")
    return 1 if account.wrong else 0

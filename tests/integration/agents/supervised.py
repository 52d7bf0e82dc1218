"""A supervisor that a test gives orders to, and what of its tasks can be seen from outside."""

import os
import pwd
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.host import processes
from agents.isolation import cgroups
from agents.supervisor import client, task_isolation
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState

DEADLINE_S = 90.0


class Bed:
    """A supervisor, and what it says."""

    def __init__(self, root: Path, isolation: str = "auto") -> None:
        self.root = Path(os.path.realpath(root))
        self.root.mkdir(exist_ok=True)
        self.root.chmod(0o755)
        self.isolation = isolation
        self.reports: dict[str, AttemptReport] = {}
        self.supervisor = client.SupervisorClient(self.root, isolation)
        self.meet()

    def meet(self) -> None:
        """Reach the supervisor, or a new one."""
        for report in self.supervisor.connect(threading.Event()):
            self.reports[report.id] = report

    def start(self, name: str, script: str, *, user: str | None = None, **order: Any) -> None:
        """Order a script to be run."""
        self.supervisor.send([self.order(name, script, user=user, **order)])

    def order(
        self, name: str, script: str, *, user: str | None = None, **order: Any
    ) -> dict[str, Any]:
        """The order to run a script, not sent yet."""
        folder = f"{self.root}/attempts/{name}"
        given = None
        if user is not None:
            entry = pwd.getpwnam(user)
            given = {"name": user, "uid": entry.pw_uid, "gid": entry.pw_gid, "groups": []}
        environment = {"PATH": os.environ["PATH"], "MUSTER_ATTEMPT": name}
        environment["MUSTER_NODE_ROOT"] = str(self.root)
        return {
            "op": "start", "id": name, "argv": ["/bin/sh", f"{folder}/script"], "script": script,
            "env": environment, "cwd": f"{folder}/work", "user": given, "lease_s": None,
            "checkpoint_signal": "SIGTERM", "grace_s": 10, **order,
        }  # fmt: skip

    def until(self, name: str, state: AttemptState) -> AttemptReport:
        """The report of an attempt in a state."""
        deadline = time.monotonic() + DEADLINE_S
        while self.reports.get(name) is None or self.reports[name].state is not state:
            assert time.monotonic() < deadline, (name, state, self.reports)
            heard = self.supervisor.receive()
            assert heard is not None, "the supervisor has gone"
            self.reports |= {report.id: report for report in heard}
        return self.reports[name]

    def ended(self, name: str) -> AttemptReport:
        return self.until(name, AttemptState.ENDED)

    def run(self, script: str, **order: Any) -> AttemptReport:
        """Run a script to its end."""
        name = f"r.{len(self.reports)}"
        self.start(name, script, **order)
        return self.ended(name)

    def output(self, name: str) -> str:
        return (self.root / "logs" / f"{name}.stdout").read_text()

    def bases(self) -> list[str]:
        return task_isolation.remembered(str(self.root))

    def groups(self) -> list[str]:
        """Groups of attempts that there are, but for empty ones that wait for another attempt."""
        found = [f"{base}/run/{name}" for base in self.bases()
                 for name in cgroups._children(f"{base}/run")]  # fmt: skip
        return [f for f in found if "/kept-" not in f or cgroups.members(f)]

    def kept(self) -> set[str]:
        """Groups that were made to be another attempt's next."""
        names = {name for base in self.bases() for name in cgroups._children(f"{base}/run")}
        return {name for name in names if name.startswith("kept-")}

    def kill_supervisor(self) -> None:
        """It dies as by the kernel's hand."""
        (pid,) = processes.supervisors_of(str(self.root))
        os.kill(pid, signal.SIGKILL)
        if self.supervisor._started is not None:
            self.supervisor._started.wait(DEADLINE_S)
        self.supervisor.close()
        wait(lambda: not processes.supervisors_of(str(self.root)), "the end of the supervisor")

    def close(self) -> None:
        """End everything, and prove that nothing of it stays."""
        self.supervisor.close()
        bases = self.bases()
        for pid in processes.supervisors_of(str(self.root)):
            os.kill(pid, signal.SIGKILL)
        if self.supervisor._started is not None:
            self.supervisor._started.wait(DEADLINE_S)
        assert processes.kill_leftovers(str(self.root), [])
        assert task_isolation.clean_up(str(self.root))
        assert not [base for base in bases if Path(base).exists()]


def wait(condition: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return processes.process_facts(pid) is not None


@contextmanager
def made_in(folder: Path, isolation: str = "auto") -> Iterator[Bed]:
    """A bed in a folder that every user can reach."""
    made = Bed(folder / "root", isolation)
    for above in folder.parents:
        if str(above).startswith("/tmp/") and above.stat().st_uid == os.geteuid():
            above.chmod(above.stat().st_mode | 0o055)
    folder.chmod(0o755)
    try:
        yield made
    finally:
        made.close()

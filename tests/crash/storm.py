"""Kills by SIGKILL while short jobs run, and the account of what became of each job.

``python -m tests.crash.storm --kills 300`` is the proof; the integration tests run a short one.
Where something is wrong its folder stays, with the store, the logs and what the agents recorded.
Every task holds an exclusive lock for as long as it lives, on a file of its job: a second one of
the same task finds it held, says so in a file of its own, and the run fails.
"""

import argparse
import json
import os
import pwd
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from agents.host import processes
from reconciler.operations.client import api_client
from tests import started
from tests.integration import beds

POINTS = (
    "committed-not-sent",
    "sent-not-spawned",
    "spawned-not-recorded",
    "exited-not-recorded",
    "exited-not-acknowledged",
    "acknowledged-not-deleted",
)
#: Reached where tasks are forked: as those of another user are.
FORKED_POINT = "forked-not-begun"
VICTIMS = ("controller", "server", "agent", "supervisor")
NODES = 3
#: How long a named point may take to be reached before it is given up for this time.
POINT_S = 5.0
#: Seconds that a node stays cut off: past its lease of 3 s and the grace.
CUT_S = 14.0

#: Whose tasks run as the agents' own user.
OWN = "tester@example.org"
#: Whose tasks run as another Unix user, where the agents are root.
OTHER = "other@example.org"
OTHER_UNIX_USER = "nobody"
PEOPLE = f"""\
apiVersion: muster/v1
kind: Access
metadata: {{name: people}}
spec:
  identities: [{{email: {OTHER}, unixUser: {OTHER_UNIX_USER}}}]
"""
#: So many jobs in a row are of one user: of the other user, as many as have room begin at once.
IN_A_ROW = 24
JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: {name}}}
spec:
  owner: {owner}
  resources: {{cpu: 1}}
  retries: {{limit: 1, backoff: 0s}}
  terminationGrace: 1s
  script: |
    #!/bin/sh
    cd "$MUSTER_SHARED_DIR"
    exec 9>"lock-{name}"
    flock -n 9 || {{ echo "$MUSTER_ATTEMPT" >>overlaps; exit 98; }}
    id -un >"user-{name}"
    sleep {seconds:.2f}
    exit {code}
"""


@dataclass
class Account:
    """What was done and what became of it."""

    jobs: dict[str, int] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    cuts: int = 0
    owners: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Storm:
    """One run: a cluster, jobs that arrive, and kills drawn from a seed."""

    def __init__(self, bed: beds.Bed, points: Path, seed: int, jobs: int, kills: int) -> None:
        self.bed = bed
        self.points = points
        self.random = random.Random(seed)
        self.job_count = jobs
        self.kill_count = kills
        self.account = Account()
        self.as_root = os.geteuid() == 0

    def run(self) -> Account:
        """Submit, kill, wait for the end, check."""
        began = time.monotonic()
        batch = max(1, self.job_count // max(1, self.kill_count - 2))
        plan = self._plan()
        while plan or len(self.account.jobs) < self.job_count:
            self._submit(min(batch, self.job_count - len(self.account.jobs)))
            if plan:
                self._kill(plan.pop())
            self._keep_alive()
        self._cut_a_node()
        self.bed.until(self._all_ended, timeout_s=300)
        self.bed.until(self._nothing_left)
        self._check()
        self.account.seconds = time.monotonic() - began
        return self.account

    def _plan(self) -> list[str]:
        """Kills in a drawn order: every point and every process alike."""
        targets = [*points_reached(), *VICTIMS]
        plan = [targets[number % len(targets)] for number in range(self.kill_count)]
        self.random.shuffle(plan)
        return plan

    def _submit(self, count: int) -> None:
        files: dict[str, str | None] = {}
        for _ in range(count):
            name = f"j{len(self.account.jobs):04d}"
            code = self.random.choice([0, 0, 0, 0, 3])
            seconds = self.random.choice([0.05, 0.1, 0.3, 1.0])
            other = len(self.account.jobs) // IN_A_ROW % 2 == 0
            files[f"jobs/{name}.yaml"] = self._job(name, seconds, code, other=other)
        if files:
            self.bed.commit(files, f"{len(files)} jobs")

    def _job(self, name: str, seconds: float, code: int, *, other: bool) -> str:
        """A job, of another user's or of the agents' own."""
        owner = OTHER if other and self.as_root else OWN
        self.account.jobs[name] = code
        self.account.owners[name] = owner
        return JOB.format(name=name, owner=owner, seconds=seconds, code=code)

    def _kill(self, target: str) -> None:
        if target in points_reached():
            self._kill_at(target)
            return
        pids = self.bed.until(lambda: self._victims(target))
        os.kill(self.random.choice(pids), signal.SIGKILL)
        self.account.kills[target] += 1

    def _kill_at(self, point: str) -> None:
        """Arm a point and wait until somebody has died there; work keeps coming meanwhile."""
        armed = self.points / point
        for _ in range(12):
            armed.touch()
            ends_at = time.monotonic() + POINT_S
            while armed.exists() and time.monotonic() < ends_at:
                self._keep_alive()
                time.sleep(0.02)
            if not armed.exists():
                self.account.kills[point] += 1
                return
            name = f"k{sum(self.account.kills.values()):04d}{len(self.account.jobs):04d}"
            text = self._job(name, 0.05, 0, other=True)
            self.bed.commit({f"jobs/{name}.yaml": text}, "work for a point")
        armed.unlink(missing_ok=True)

    def _victims(self, target: str) -> list[int]:
        self._keep_alive()
        return self._pids(target)

    def _pids(self, what: str) -> list[int]:
        marks = {
            "controller": "reconciler.controller.process",
            "server": "reconciler.server",
            "agent": "--virtual",
            "supervisor": "supervisor/__main__.py",
        }
        state = str(self.bed.cluster.state)
        found = {}
        for process in psutil.process_iter(["cmdline", "ppid"]):
            words = " ".join(process.info["cmdline"] or [])
            if marks[what] in words and state in words:
                found[process.pid] = process.info["ppid"]
        # a forked child on its way to its program still has the words of its parent: to kill it
        # is to kill a task, which then ends by that signal, as it should
        return sorted(pid for pid, parent in found.items() if parent not in found)

    def _keep_alive(self) -> None:
        """Start again what died, as an init system would."""
        cluster = self.bed.cluster
        if not cluster.controller_alive:
            if cluster.controller_exit_code != -signal.SIGKILL:
                self.account.wrong.append(f"the controller left: {cluster.controller_exit_code}")
            cluster.start_controller()
        if cluster.nodes is not None:
            # at once: a crash loop's growing wait would only leave fewer processes to kill
            for name in cluster.nodes.names():
                cluster.nodes.start(name)

    def _cut_a_node(self) -> None:
        """A node loses the network past its lease, with work on it, and comes back."""
        text = self._job("cut", 20, 0, other=True)
        self.bed.commit({"jobs/cut.yaml": text})

        def running() -> beds.Json:
            self._keep_alive()
            job = self.bed.job("cut")
            return job if job["state"] == "Running" else None

        node = self.bed.until(running, timeout_s=120)["attempts"][-1]["node"]
        agents = [p for p in self._pids("agent") if f"--name {node} " in _words(p)]
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        ends_at = time.monotonic() + CUT_S
        while time.monotonic() < ends_at:
            self._keep_alive()
            time.sleep(0.1)
        for pid in agents:
            os.kill(pid, signal.SIGCONT)
        self.account.cuts += 1

    def _all_ended(self) -> bool:
        self._keep_alive()
        assert self.bed.api is not None
        items = self.bed.api.items("/v1/jobs", limit=1000)
        ended = sum(i["state"] in ("Succeeded", "Failed", "Cancelled", "TimedOut") for i in items)
        return ended == len(self.account.jobs)

    def _nothing_left(self) -> bool:
        """Whether no process of any task lives, of nodes whose jobs have all ended."""
        nodes = self.bed.cluster.nodes
        assert nodes is not None
        roots = [str(nodes.root(name)) for name in nodes.names()]
        table = processes.processes()
        return not any(started.attempt_of(pid, root) for root in roots for pid in table)

    def _check(self) -> None:
        wrong = self.account.wrong
        overlaps = self.bed.cluster.state / "shared" / "overlaps"
        for attempt in overlaps.read_text().split() if overlaps.exists() else ():
            story = _story(self.bed.job(attempt.split(".")[0]))
            wrong.append(f"{attempt} overlapped another attempt at its task: {story}")
        for name, code in self.account.jobs.items():
            job = self.bed.job(name)
            wanted = "Failed" if code else "Succeeded"
            if job["state"] != wanted:
                wrong.append(f"{name} is {job['state']}, not {wanted}: {job['message']}")
                continue
            last = max(job["attempts"], key=lambda attempt: attempt["attempt"])
            if (last["exitCode"], last["endReason"]) != (code, "Exited"):
                wrong.append(
                    f"{name} ended with {last['exitCode']} {last['endReason']}, not {code}"
                )
            if (who := self._user(name)) != (wanted_user := self._wanted_user(name)):
                wrong.append(f"{name} ran as {who}, not {wanted_user}")
            own = [a for a in job["attempts"] if a["endReason"] == "Exited"]
            if len(own) != (2 if code else 1):
                wrong.append(f"{name} was run to its end {len(own)} times: {_story(job)}")
        self._check_ends()
        database = sqlite3.connect(f"file:{self.bed.cluster.state / 'store.db'}?mode=ro", uri=True)
        verdict = database.execute("PRAGMA integrity_check").fetchone()[0]
        database.close()
        if verdict != "ok":
            wrong.append(f"the store is damaged: {verdict}")

    def _user(self, name: str) -> str:
        """The Unix user of a job's last attempt; where it left no word of it, what it said."""
        path = self.bed.cluster.state / "shared" / f"user-{name}"
        if path.exists():
            return path.read_text().strip()
        said = [one.read_text()[-500:] for one in self.bed.folder.rglob(f"{name}.*/stderr*")]
        return f"nobody known ({path} is not there; it said {said}; {_story(self.bed.job(name))})"

    def _wanted_user(self, name: str) -> str:
        if self.account.owners[name] == OTHER:
            return OTHER_UNIX_USER
        return pwd.getpwuid(os.geteuid()).pw_name

    def _check_ends(self) -> None:
        """Each job ended once: one event says so."""
        ends: Counter[str] = Counter()
        after: int | None = 0
        while True:
            page = self.bed.get("/v1/events", after=after or 0, limit=1000)
            for event in page["items"]:
                if event["kind"] in ("JobSucceeded", "JobFailed"):
                    ends[event["job"]] += 1
            if not page["items"]:
                break
            after = page["next"]
        for name in self.account.jobs:
            if ends[name] != 1:
                self.account.wrong.append(f"{name} ended {ends[name]} times")


def _story(job: dict[str, Any]) -> list[str]:
    """What became of each attempt at a job."""
    told = ("id", "node", "started", "ended", "exitCode", "signal", "endReason")
    return [" ".join(str(attempt[name]) for name in told) for attempt in job["attempts"]]


def points_reached() -> tuple[str, ...]:
    """The points that processes of this user get to."""
    return (*POINTS, FORKED_POINT) if os.geteuid() == 0 else POINTS


def _words(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


def run(folder: Path, *, kills: int, jobs: int, seed: int, isolation: str = "auto") -> Account:
    """One storm in a folder, which other users can reach afterwards."""
    points = folder / "points"
    points.mkdir()
    os.environ["MUSTER_CRASH_POINTS"] = str(points)
    bed = beds.Bed(folder, nodes=NODES, cpus=8, lease="3s", silence="2s")
    bed.cluster.options.isolation = isolation
    try:
        _let_in(folder, bed.cluster.state / "shared")
        bed.commit({"people.yaml": PEOPLE})
        bed.start()
        return Storm(bed, points, seed, jobs, kills).run()
    finally:
        bed.stop()
        del os.environ["MUSTER_CRASH_POINTS"]


def _let_in(folder: Path, shared: Path) -> None:
    """Let every user reach a folder, and write to the one that tasks share."""
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    shared.mkdir(parents=True)
    (shared / "overlaps").touch()
    for path, mode in ((shared.parent, 0o711), (shared, 0o777), (shared / "overlaps", 0o666)):
        path.chmod(mode)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--isolation", choices=("auto", "process-group"), default="auto")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    found = run(
        folder,
        kills=options.kills,
        jobs=options.jobs,
        seed=options.seed,
        isolation=options.isolation,
    )
    if not found.wrong:
        shutil.rmtree(folder, ignore_errors=True)
    report = {
        "jobs": len(found.jobs),
        "jobs_of_another_user": sum(owner == OTHER for owner in found.owners.values()),
        "isolation": options.isolation,
        "kills": dict(sorted(found.kills.items())),
        "kills_total": sum(found.kills.values()),
        "cuts": found.cuts,
        "seconds": round(found.seconds, 1),
        "wrong": found.wrong,
        "folder": str(folder) if found.wrong else None,
        "seed": options.seed,
    }
    print(json.dumps(report, indent=2))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except api_client.ApiError as error:
        sys.exit(f"storm: {error}")

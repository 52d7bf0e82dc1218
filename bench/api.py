"""Measures how quickly the API answers: 20,000 jobs wait, others come and go, 300 people read.

Controller, server and store are real, and so is git: each second a commit brings 100 new jobs and
takes away ended ones. This process plays four nodes, which report each task as running and then as
ended, over HTTP as agents do. Another process plays the people (``bench.api_readers``), and its CPU
time is a row of the result. Meanwhile this process asks ``/healthz``, and lets a node without work
sync.

Four spans are measured: the first read of the commit with all that waits; people who think for
three seconds; the same beside one user who asks for lists of a thousand on many connections without
a pause; and people who do not think, for the number of answers a second. In the second one
``muster status`` and ``muster jobs`` are run too.
"""

import argparse
import collections
import contextlib
import http.client
import os
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench import api_readers, cluster, idle, played_nodes
from bench.options import count
from reconciler.operations.client import api_client

_NODES = 4
_QUEUES = 4
_BATCH = 100
#: How many commits keep their jobs in git. The jobs of older ones are removed.
_BATCHES_KEPT = 5
_PROBE_EVERY_S = 0.05
_LOAD_S_MAX = 900.0
_PAGE_GOAL_MS, _QUICK_GOAL_MS, _RATE_GOAL, _STATUS_GOAL_S = 200.0, 50.0, 100.0, 0.5

_STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: played}
spec:
  hosts: played[1-4]
  nodes: {cpu: 256, memory: 256Gi}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: busy}
spec: {priority: 10}
"""
_QUEUE = """\
---
apiVersion: muster/v1
kind: Queue
metadata: {{name: full-{number}}}
spec: {{limit: {{cpu: 10}}}}
"""
_JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: {name}}}
spec:
  queue: {queue}
  pools: [played]
  owner: {owner}
  resources: {{cpu: 1, memory: 16Mi}}
  command: [date]
"""


class Threads:
    """Threads that do something over and over until the end, and what went wrong in them."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._problems: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Any, *arguments: Any) -> None:
        """Begin one more: ``work`` is called until the end."""

        def run() -> None:
            try:
                while not self.ended.is_set():
                    work(*arguments)
            except Exception as problem:
                self._problems.append(problem)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def look(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._problems:
            raise RuntimeError(f"a part of the load failed: {self._problems[0]!r}")

    def stop(self) -> None:
        """End all of them."""
        self.ended.set()
        for thread in self._threads:
            thread.join(10.0)


class Probes:
    """Milliseconds of what machines ask, by kind, since they were last taken."""

    def __init__(self, bed: cluster.Bed) -> None:
        address = bed.cluster.url.partition("//")[2]
        self._link = http.client.HTTPConnection(address, timeout=120)
        self._idle = played_nodes.Node(bed, "played4")
        self._api = api_client.ApiClient(bed.cluster.endpoint)
        self._taken: dict[str, list[float]] = collections.defaultdict(list)

    def health(self) -> None:
        """Ask if the server is well."""
        began = time.monotonic()
        self._link.request("GET", "/healthz")
        answer = self._link.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"/healthz answered {answer.status}")
        self._taken["healthz"].append(1e3 * (time.monotonic() - began))
        time.sleep(_PROBE_EVERY_S)

    def page(self) -> None:
        """Ask for the newest jobs, as a person does."""
        began = time.monotonic()
        self._api.get("/v1/jobs", limit=50)
        self._taken["page"].append(1e3 * (time.monotonic() - began))
        time.sleep(_PROBE_EVERY_S)

    def sync(self) -> None:
        """Have a node report that asks for no wait."""
        self._taken["sync"].append(self._idle.sync(0.0))
        time.sleep(_PROBE_EVERY_S)

    def take(self) -> dict[str, list[float]]:
        """Return what was measured since the last time."""
        found, self._taken = self._taken, collections.defaultdict(list)
        return found


class Arrivals:
    """A commit each second: new jobs come, those of some seconds ago leave git."""

    def __init__(self, bed: cluster.Bed) -> None:
        self._bed = bed
        self._number = 0
        self._due = time.monotonic()

    def __call__(self) -> None:
        """Commit the next ones when it is time."""
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = max(self._due + 1.0, time.monotonic())
        self._number += 1
        jobs = (
            _JOB.format(
                name=f"come-{self._number:05d}-{one:03d}", queue="busy", owner="bench@localhost"
            )
            for one in range(_BATCH)
        )
        old = self._bed.folder / "clone" / f"come-{self._number - _BATCHES_KEPT:05d}.yaml"
        old.unlink(missing_ok=True)
        self._bed.commit({f"come-{self._number:05d}.yaml": "---\n".join(jobs)}, "jobs come and go")


def _address(user: int) -> str:
    return f"user{user:03d}@example.org"


def _waiting(jobs: int, users: int, jobs_a_file: int) -> dict[str, str]:
    """The files of what waits."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for number in range(jobs):
        found[f"wait-{number // jobs_a_file:05d}.yaml"].append(
            _JOB.format(
                name=f"{played_nodes.WAITS}{number:06d}",
                queue=f"full-{number % _QUEUES}",
                owner=_address(number % users),
            )
        )
    return {name: "---\n".join(texts) for name, texts in found.items()}


def _admit(bed: cluster.Bed, users: int) -> list[str]:
    """Give every user a token."""
    tokens = [secrets.token_hex(24) for _ in range(users)]
    with (bed.cluster.state / "tokens").open("a", encoding="utf-8") as file:
        for user, token in enumerate(tokens):
            file.write(f"{token} {_address(user)} user\n")
    return tokens


def _report(node: played_nodes.Node) -> None:
    node.sync(0.0 if node.is_busy else 2.0)
    time.sleep(0.1)


class Measured(msgspec.Struct, frozen=True):
    """One span: what people and machines saw, and what it cost.

    ``waited_s`` is how long threads of the server were ready to run and had no core.
    """

    found: api_readers.Found
    probes: dict[str, list[float]]
    cpu_s: dict[str, float]
    waited_s: float
    rates: dict[str, float]
    commands_s: dict[str, float]


class Stage:
    """The cluster with its load, and spans that are measured on it."""

    def __init__(self, bed: cluster.Bed, tokens: list[str], jobs: int) -> None:
        self._bed, self._tokens, self._jobs = bed, tokens, jobs
        self.threads, self.probes = Threads(), Probes(bed)
        self._database = bed.cluster.state / "store.db"

    def begin(self) -> None:
        """Declare nodes and queues, and have the nodes come."""
        queues = "".join(_QUEUE.format(number=number) for number in range(_QUEUES))
        self._bed.commit({"structure.yaml": _STRUCTURE + queues}, "nodes and queues")
        for number in range(1, _NODES):
            self.threads.start(_report, played_nodes.Node(self._bed, f"played{number}"))
        self.threads.start(self.probes.health)
        self.threads.start(self.probes.sync)
        ready = "SELECT count(*) FROM nodes WHERE state = 'Ready' AND pool = 'played'"
        cluster.wait_until(lambda: cluster.one(self._database, ready) == _NODES, 60.0)

    def first_read(self, jobs_a_file: int) -> tuple[float, dict[str, list[float]]]:
        """Commit all that waits: the seconds until it is known, and what machines saw meanwhile."""
        self._bed.stage(_waiting(self._jobs, len(self._tokens), jobs_a_file))
        person = Threads()
        person.start(self.probes.page)
        self.probes.take()
        began = time.monotonic()
        self._bed.publish(f"{self._jobs} jobs")
        known = "SELECT count(*) FROM jobs"
        cluster.wait_until(
            lambda: cluster.one(self._database, known) == self._jobs, _LOAD_S_MAX, look_s=0.5
        )
        passed_s = time.monotonic() - began
        person.stop()
        person.look()
        running = "SELECT count(*) FROM attempts WHERE state = 'Running'"
        cluster.wait_until(lambda: cluster.one(self._database, running) == 10 * _QUEUES, 60.0)
        self.threads.look()
        return passed_s, self.probes.take()

    def span(
        self, seconds: float, think_s: float, flood: int = 0, *, commands: bool = False
    ) -> Measured:
        """Have people read for so long."""
        host, port = self._bed.cluster.url.partition("//")[2].split(":")
        plan = api_readers.Plan(
            host, int(port), self._tokens, self._jobs, seconds, think_s, flood=flood
        )
        pids = idle.parts(self._bed.folder.resolve())
        since, before, own = self._ended(), _cpu_s(pids), time.process_time()
        waited_s = _waited_s(pids["server"][0])
        came = self._came()
        self.probes.take()
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.api_readers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(plan))
        process.stdin.close()
        process.stdin = None
        taken = self._commands(seconds / 2) if commands else {}
        output, _ = process.communicate(timeout=seconds + 300.0)
        self.threads.look()
        if process.returncode != 0:
            raise RuntimeError(f"the readers left with {process.returncode}")
        found = msgspec.json.decode(output, type=api_readers.Found)
        spent = {name: now - before[name] for name, now in _cpu_s(pids).items()}
        spent["bed"] = time.process_time() - own
        rates = {
            "ends": (self._ended() - since) / found.passed_s,
            "arrivals": (self._came() - came) / found.passed_s,
        }
        waited_s = _waited_s(pids["server"][0]) - waited_s
        return Measured(found, self.probes.take(), spent, waited_s, rates, taken)

    def _commands(self, pause_s: float) -> dict[str, float]:
        """Seconds of commands as a person runs them, the median of three."""
        time.sleep(pause_s)
        state = self._bed.cluster.state
        environment = {
            **os.environ,
            "MUSTER_SERVER": self._bed.cluster.url,
            "MUSTER_TOKEN_FILE": str(state / "token"),
        }
        found = {}
        for name in ("status", "jobs"):
            taken = []
            for _ in range(3):
                began = time.monotonic()
                subprocess.run(
                    [Path(sys.executable).with_name("muster"), name],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    check=True,
                    cwd=self._bed.folder,
                )
                taken.append(time.monotonic() - began)
            found[name] = statistics.median(taken)
        return found

    def _ended(self) -> int:
        query = "SELECT count(*) FROM attempts WHERE state = 'Ended'"
        return int(cluster.one(self._database, query))

    def _came(self) -> int:
        query = "SELECT count(*) FROM jobs WHERE name LIKE 'come-%'"
        return int(cluster.one(self._database, query))


def _cpu_s(pids: dict[str, list[int]]) -> dict[str, float]:
    """CPU seconds so far of loop and server, with those of threads that have ended."""
    found = {}
    for name in ("loop", "server"):
        (pid,) = pids[name]
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        found[name] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return found


def _waited_s(pid: int) -> float:
    """Seconds that living threads of a process were ready to run and waited for a core."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[1]) for one in threads) / 1e9


@contextlib.contextmanager
def _stage(jobs: int, users: int) -> Iterator[tuple[cluster.Bed, Stage]]:
    with cluster.running(nodes=1, cpus=1, in_place=True) as bed:
        tokens = _admit(bed, users)
        stage = Stage(bed, tokens, jobs)
        try:
            yield bed, stage
        finally:
            stage.threads.stop()


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": round(value, 3), "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def _below(name: str, value: float, unit: str, goal: float | None) -> dict[str, Any]:
    if goal is None:
        return _row(name, value, unit)
    return _row(name, value, unit, goal=f"value < {goal:g}", met=value < goal)


def _rows(name: str, of: Measured, *, goals: bool) -> list[dict[str, Any]]:
    """The rows of one span."""
    rows = []
    for kind, taken in sorted(of.found.taken_ms.items()):
        told = api_readers.summary(taken)
        goal = _PAGE_GOAL_MS if goals and kind in {"job", "page"} else None
        rows.append(_row(f"{name}_{kind}_p50_ms", told["p50"], "ms"))
        rows.append(_below(f"{name}_{kind}_p95_ms", told["p95"], "ms", goal))
    for kind, taken in sorted(of.probes.items()):
        told = api_readers.summary(taken)
        goal = _QUICK_GOAL_MS if goals else None
        rows.append(_below(f"{name}_{kind}_p95_ms", told["p95"], "ms", goal))
        rows.append(_row(f"{name}_{kind}_max_ms", told["max"], "ms"))
    answers = sum(map(len, of.found.taken_ms.values()))
    others = answers + sum(map(len, of.probes.values()))
    rows.append(_row(f"{name}_readers_answers_per_s", answers / of.found.passed_s, "1/s"))
    rows.append(_row(f"{name}_server_cpu_ms_each", 1e3 * of.cpu_s["server"] / others, "ms"))
    for part, spent in (*of.cpu_s.items(), ("readers", of.found.cpu_s)):
        share = 100 * spent / of.found.passed_s
        rows.append(_row(f"{name}_{part}_cpu_percent", share, "% of a core"))
    share = 100 * of.waited_s / of.found.passed_s
    rows.append(_row(f"{name}_server_waits_for_a_core_percent", share, "% of the time"))
    rows += [_row(f"{name}_{what}_per_s", rate, "1/s") for what, rate in of.rates.items()]
    rows += [
        _below(f"{name}_muster_{command}_s", taken, "s", _STATUS_GOAL_S)
        for command, taken in of.commands_s.items()
    ]
    rows += [
        _row(f"{name}_other_answers_{what.replace(' ', '_')}", times, "count")
        for what, times in sorted(of.found.refused.items())
    ]
    return rows


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench api", description=__doc__)
    parser.add_argument("--jobs", type=count, default=20_000, help="how many wait")
    parser.add_argument("--jobs-a-file", type=count, default=1000, help="of those that wait")
    parser.add_argument("--users", type=count, default=300, help="who read")
    parser.add_argument("--seconds", type=count, default=60, help="of the span with thought")
    parser.add_argument("--think", type=float, default=3.0, help="seconds between two questions")
    parser.add_argument("--flood", type=count, default=20, help="connections of one user")
    options = parser.parse_args(arguments)
    with _stage(options.jobs, options.users) as (bed, stage):
        stage.begin()
        load_s, probes = stage.first_read(options.jobs_a_file)
        stage.threads.start(Arrivals(bed))
        stage.span(5.0, options.think)  # until caches are filled
        thinking = stage.span(options.seconds, options.think, commands=True)
        flooded = stage.span(options.seconds / 2, options.think, options.flood)
        greedy = stage.span(options.seconds / 4, 0.0)
    rate = sum(map(len, greedy.found.taken_ms.values())) / greedy.found.passed_s
    first = [
        _row(f"first_read_{kind}_max_ms", max(taken), "ms")
        for kind, taken in sorted(probes.items())
    ]
    return [
        _row("first_read_s", load_s, "s"),
        *first,
        *_rows("thinking", thinking, goals=True),
        *_rows("flooded", flooded, goals=True),
        *_rows("greedy", greedy, goals=False),
        _row(
            "answers_per_s_most",
            rate,
            "1/s",
            goal=f"value >= {_RATE_GOAL:g}",
            met=rate >= _RATE_GOAL,
        ),
    ]

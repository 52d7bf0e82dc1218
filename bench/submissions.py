"""How many submissions a second the API takes, and what each costs: 200 users, 2,000 jobs.

Real controller, server and bare repository. Every user has a token, a role that lets it submit, and
a connection of its own, over which it posts one prepared document after the other: the next one
when the one before is answered, which is when its commit stands in the branch. Jobs are suspended,
so that nothing runs. The clients are this one process, which does no more than write bytes and find
the end of an answer. Every job is looked for in git afterwards. CPU is the kernel's own count: of
the server's threads, of the git processes that it starts, and of the loop, which takes all of it up
meanwhile.
"""

import argparse
import asyncio
import secrets
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import agent_cost, cluster, idle
from bench.latency import percentile
from bench.throughput import QUEUE

_GOAL = 200.0
_ACCESS = """\
apiVersion: muster/v1
kind: Access
metadata: {{name: people}}
spec:
  identities:
{identities}
  roles:
    - name: submitters
      members: ["group:people"]
      allow: [{{verbs: [submit], queues: [bench]}}]
"""
_JOB = """\
apiVersion: muster/v1
kind: Job
metadata: {{name: job-{number:05d}}}
spec:
  queue: bench
  suspend: true
  resources: {{cpu: 1, memory: 16Mi}}
  command: [python3, train.py, --learning-rate, "0.001", --seed, "{number}"]
"""


class _Costs(NamedTuple):
    """CPU seconds so far, by who spent them."""

    server: float
    git: float
    loop: float
    clients: float


def _address(user: int) -> str:
    return f"user{user:03d}@example.org"


def _access(users: int) -> str:
    lines = [f"    - {{email: {_address(user)}, groups: [people]}}" for user in range(users)]
    return _ACCESS.format(identities="\n".join(lines))


def _admit(bed: cluster.Bed, users: int) -> list[str]:
    """Give every user a token; the controller, which reads them once, is started again."""
    tokens = [secrets.token_hex(24) for _ in range(users)]
    with (bed.cluster.state / "tokens").open("a", encoding="utf-8") as file:
        for user, token in enumerate(tokens):
            file.write(f"{token} {_address(user)} user\n")
    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    return tokens


def _request(url: str, token: str, body: bytes) -> bytes:
    """A whole request, ready to be written."""
    head = (
        "POST /v1/jobs HTTP/1.1\r\n"
        f"Host: {url.partition('//')[2]}\r\n"
        f"Authorization: Bearer {token}\r\n"
        "Content-Type: application/yaml\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _user(address: tuple[str, int], requests: list[bytes]) -> list[float]:
    """Post one after the other; how many milliseconds each answer took.

    Raises:
        RuntimeError: one was refused.
    """
    reader, writer = await asyncio.open_connection(*address)
    taken = []
    for request in requests:
        began = time.monotonic()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        answer = await reader.readexactly(length)
        taken.append(1e3 * (time.monotonic() - began))
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"a submission was answered with {head[:20]!r}: {answer[:300]!r}")
    writer.close()
    return taken


async def _all(address: tuple[str, int], requests: list[list[bytes]]) -> list[float]:
    found = await asyncio.gather(*(_user(address, one) for one in requests))
    return [each for of_user in found for each in of_user]


def _children_s(pid: int) -> float:
    """CPU time of the children of a process: those that live, and those that it has waited for."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
    living = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for task in Path(f"/proc/{pid}/task").iterdir():
        if task.name != str(pid):
            living += map(int, (task / "children").read_text().split())
    return sum(map(int, ticks)) / 100 + agent_cost.cpu_s(living)


def _costs(pids: dict[str, list[int]]) -> _Costs:
    (server,), (loop,) = pids["server"], pids["loop"]
    return _Costs(
        server=agent_cost.cpu_s([server]),
        git=_children_s(server),
        loop=agent_cost.cpu_s([loop]),
        clients=time.process_time(),
    )


def _said(repository: Path, *command: str) -> list[str]:
    """The lines that a git command writes."""
    done = subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True)
    return done.stdout.decode().splitlines()


def _row(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "value": round(value, 3), "unit": unit}
    row.update({"peer": None, "peer_value": None, "ratio": None, "goal": None, "met": None})
    return row | more


def run(arguments: list[str]) -> list[dict[str, Any]]:
    """Measure; the rows of the report."""
    parser = argparse.ArgumentParser(prog="python -m bench submissions", description=__doc__)
    parser.add_argument("--users", type=int, default=200, help="who submit at the same time")
    parser.add_argument("--jobs", type=int, default=2000, help="submissions, one job each")
    options = parser.parse_args(arguments)
    with cluster.running(nodes=1, cpus=2) as bed:
        repository = Path(bed.cluster.options.repository)
        cluster.git(repository, "config", "core.logAllRefUpdates", "always")
        tokens = _admit(bed, options.users)
        bed.commit({"queue.yaml": QUEUE, "access.yaml": _access(options.users)}, "people")
        database = bed.cluster.state / "store.db"
        head = _said(repository, "rev-parse", "main")[0]
        cluster.wait_until(lambda: bed.api.get("/v1/sync")["revision"] == head, 60.0)
        requests: list[list[bytes]] = [[] for _ in tokens]
        for number in range(options.jobs):
            token = tokens[number % len(tokens)]
            body = _JOB.format(number=number).encode()
            requests[number % len(tokens)].append(_request(bed.cluster.url, token, body))
        host, port = bed.cluster.url.partition("//")[2].split(":")
        pids = idle.parts(bed.folder.resolve())
        moves = len(_said(repository, "reflog", "show", "main"))
        before, began = _costs(pids), time.monotonic()
        taken = asyncio.run(_all((host, int(port)), requests))
        passed_s = time.monotonic() - began
        spent = _Costs(*(now - was for was, now in zip(before, _costs(pids), strict=True)))
        moves = len(_said(repository, "reflog", "show", "main")) - moves
        there = _said(repository, "ls-tree", "-r", "--name-only", "main", "jobs/")
        if len(there) != options.jobs:
            raise RuntimeError(f"{options.jobs} were accepted, and {len(there)} stand in git")
        commits = len(_said(repository, "rev-list", f"{head}..main"))
        known = "SELECT count(*) FROM jobs"
        cluster.wait_until(lambda: cluster.one(database, known) == options.jobs, 300.0)
        known_s = time.monotonic() - began
    rate = options.jobs / passed_s
    goal = {"goal": f"at least {_GOAL:g}", "met": rate >= _GOAL}
    return [
        _row("accepted_per_s", rate, "1/s", **goal),
        _row("answer_p50_ms", statistics.median(taken), "ms"),
        _row("answer_p99_ms", percentile(taken, 0.99), "ms"),
        _row("answer_max_ms", max(taken), "ms"),
        _row("server_cpu_ms_each", 1e3 * spent.server / options.jobs, "ms"),
        _row("git_cpu_ms_each", 1e3 * spent.git / options.jobs, "ms"),
        _row("loop_cpu_ms_each", 1e3 * spent.loop / options.jobs, "ms"),
        _row("client_cpu_ms_each", 1e3 * spent.clients / options.jobs, "ms"),
        _row("submissions_a_move_of_the_branch", options.jobs / moves, "count"),
        _row("submissions_a_commit", options.jobs / commits, "count"),
        _row("all_known_to_the_loop_s", known_s, "s"),
    ]

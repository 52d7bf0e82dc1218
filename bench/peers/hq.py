"""HyperQueue beside us: one local server and its workers, from the wheel on PyPI.

``python -m bench.peers.hq --tasks N --workers W --cores C`` is the cluster in a process of its
own; it prints one line of JSON. Its journal is off, as it is by default: what ended is in the
server's memory alone and nothing is durable. Its client asks once a second whether a job has
ended, so that up to a second of every run is the client's.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.peers import bringing

DURABILITY = "journal off (its default): no exit status is durable"
TIMEOUT_S = 1200.0


def missing() -> str:
    """Have it here, installing it where it is missing; why that can't be, or nothing."""
    return bringing.wheel("hyperqueue")


def array(tasks: int, workers: int, cores: int, within: Path) -> dict[str, float]:
    """Seconds that one array of ``/bin/true`` takes, submission included.

    Its files are left below ``within``, which the caller deletes.

    Raises:
        RuntimeError: the run failed.
    """
    command = [sys.executable, "-m", "bench.peers.hq", "--tasks", str(tasks)]
    command += ["--workers", str(workers), "--cores", str(cores)]
    command += ["--within", str(within)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"HyperQueue ended with {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _run(tasks: int, workers: int, cores: int, within: Path) -> dict[str, float]:
    hyperqueue: Any = importlib.import_module("hyperqueue")
    name = tempfile.mkdtemp(prefix="bench-hq-", dir=within)
    os.chdir(name)
    cluster = hyperqueue.LocalCluster(f"{name}/server")
    for _ in range(workers):
        cluster.start_worker(hyperqueue.cluster.WorkerConfig(cores=cores))
    client = cluster.client()
    job = hyperqueue.Job(default_workdir=name)
    for _ in range(tasks):
        job.program(["/bin/true"])
    began = time.monotonic()
    submitted = client.submit(job)
    accepted = time.monotonic()
    client.wait_for_jobs([submitted])
    ended = time.monotonic()
    cluster.stop()
    return {"seconds": ended - began, "submit_s": accepted - began}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.hq", description=__doc__)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--within", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    found = _run(options.tasks, options.workers, options.cores, options.within)
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

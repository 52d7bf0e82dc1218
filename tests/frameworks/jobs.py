"""Runs programs of frameworks as jobs of a cluster, and programs that several tests run."""

import json
import textwrap
from pathlib import Path
from typing import Any

from tests.frameworks import install
from tests.integration import beds

PROGRAMS = install.FOLDER / "bin"
LONG_S = 200.0
ENVIRONMENT = {
    "PATH": f"{PROGRAMS}:/usr/bin:/bin",
    "OMP_NUM_THREADS": "1",
    # a busy machine takes its time
    "RAY_raylet_start_wait_time_s": "120",
}
ENDED = ("Succeeded", "Failed", "TimedOut", "Cancelled")

RANKS = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
# one write a line, as all ranks of a task share its output
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()} "
            f"task {os.environ['MUSTER_RANK']} sum {int(total)}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""
TUNE = """\
import ray, time

ray.init(address="auto", log_to_driver=False)
open("head-is-up", "w").close()
until = time.monotonic() + 150
while len([one for one in ray.nodes() if one["Alive"]]) < 2:
    assert time.monotonic() < until, ray.nodes()
    time.sleep(0.2)

@ray.remote(num_cpus=1)
def square(number):
    return number * number

print("squares", ray.get([square.remote(number) for number in range(4)]), flush=True)
"""


WAIT = "until [ -e head-is-up ]; do sleep 0.5; done"


def guides_script(section: str, **replaced: str) -> str:
    """The script of a section of the guide to distributed work, with some of it replaced once."""
    text = (install.PROJECT / "docs/guides/researcher/distributed.md").read_text()
    _, _, script = text.partition(f"## {section}\n")[2].partition("script: |\n")
    script = textwrap.dedent(script.partition("```")[0])
    for found, other in replaced.items():
        assert script.count(found) == 1, found
        script = script.replace(found, other)
    return script


def guides_ray() -> str:
    """The script of the guide for a cluster of Ray, with two CPUs on each node.

    Workers come once the head is up. A node of Ray dies if its own agents are not ready within 15 s
    (ray-project/ray#65983), which they are not where two nodes start on two cores at once.
    """
    small = "--num-cpus 2"
    return guides_script(
        "Ray",
        **{"ray start --head": f"ray start --head {small} --include-dashboard=false"},
        **{"exec ray start --address": f"{WAIT}\nexec ray start {small} --address"},
    )


def python(bed: beds.Bed, name: str, text: str, folder: Path, **spec: Any) -> str:
    """Run a program of Python as a job; what its first task says."""
    (folder / "program.py").write_text(text)
    return run(bed, name, "#!/bin/sh\nexec python3 program.py\n", folder, **spec)


def submit(bed: beds.Bed, name: str, script: str, folder: Path, **spec: Any) -> None:
    """Commit a job whose programs are those of the frameworks' environment."""
    fields = {
        "workingDirectory": str(folder),
        "timeLimit": "4m",
        "environment": ENVIRONMENT,
        **spec,
    }
    lines = [f"  {key}: {json.dumps(value)}" for key, value in fields.items()]
    lines += ["  script: |", textwrap.indent(script, "    ")] if script else []
    bed.commit({f"{name}.yaml": beds.job(name, "\n".join(lines))})


def run(bed: beds.Bed, name: str, script: str, folder: Path, **spec: Any) -> str:
    """Run a job, which has to succeed; what its first task says."""
    submit(bed, name, script, folder, **spec)
    return succeeded(bed, name)


def succeeded(bed: beds.Bed, name: str) -> str:
    """What the first task of a job says, which has to succeed."""
    job = bed.until_state(name, *ENDED, timeout_s=LONG_S)
    said = bed.output(name)
    assert job["state"] == "Succeeded", f"{job.get('message')}\n{said}\n{errors(bed, job)}"
    return said


def errors(bed: beds.Bed, job: beds.Json) -> str:
    """What the tasks of a job have written to their standard error."""
    logs = bed.folder.glob(f"**/logs/{job['key']}.*.stderr")
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')}" for path in sorted(logs))


def all_said(bed: beds.Bed, name: str, tasks: int) -> str:
    """What the newest try of each task of a job has said."""
    return "".join(bed.output(name, task=f"main-{index}") for index in range(tasks))

"""What people run: data loaders, managers, gangs of PyTorch, Lightning, Ray, Dask, notebooks.

Each is a job of a real controller on virtual nodes; what it does is checked by what it says.
"""

import signal
from pathlib import Path

import pytest

from tests.frameworks import jobs
from tests.integration import beds

LOADER = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.ones(1000, 8))
    print("rows", sum(batch[0].shape[0] for batch in DataLoader(data, 100, num_workers=2)))
"""
MANAGER = """\
import multiprocessing

def add(shared, number):
    shared.append(number)

if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        shared = manager.list()
        for number in range(2):
            one = multiprocessing.Process(target=add, args=(shared, number))
            one.start()
            one.join()
        print("shared", sorted(shared))
"""
#: Trains until it is told that it is enough; saves on SIGUSR1 and every few steps.
DDP = """\
import os, pathlib, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
stop = False

def save_and_leave(number, frame):
    global stop
    stop = True

signal.signal(signal.SIGUSR1, save_and_leave)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
folder = pathlib.Path(os.environ["MUSTER_CHECKPOINT_DIR"])
latest, first = os.environ.get("MUSTER_CHECKPOINT"), 0
if latest:
    saved = torch.load(folder / latest, weights_only=True)
    model.load_state_dict(saved["model"])
    first = saved["step"]
# one write a line, as both ranks of a task share its output
os.write(1, f"rank {rank} task {os.environ['MUSTER_RANK']} from step {first}\\n".encode())

def save(step):
    if rank == 0:
        path = folder / f"step-{step:06d}"
        torch.save({"model": model.state_dict(), "step": step}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)

step = first
while True:
    step += 1
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # all ranks have to leave in the same step
    told = torch.tensor([float(stop), float(first > 0 and step >= first + 3)])
    dist.all_reduce(told, dist.ReduceOp.MAX)
    if told[0] or told[1]:
        save(step)
        dist.barrier()
        dist.destroy_process_group()
        os.write(1, f"rank {rank} leaves at step {step}\\n".encode())
        sys.exit(0 if told[1] else 75)
    if step == 3 and rank == 0:
        os.write(1, b"training\\n")
    time.sleep(0.1)
"""
LIGHTNING = """\
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import SLURMEnvironment

assert SLURMEnvironment.detect()
fabric = Fabric(accelerator="cpu", devices=DEVICES, num_nodes=NODES, strategy="ddp")
fabric.launch()
environment = fabric.strategy.cluster_environment
total = fabric.all_reduce(float(fabric.global_rank), reduce_op="sum")
print("rank", fabric.global_rank, "of", fabric.world_size, "by", type(environment).__name__,
      "sum", int(total), "job", SLURMEnvironment.job_id(), flush=True)
# gloo aborts a process now and then whose peers have left before it
fabric.barrier()
dist.destroy_process_group()
"""
SUBMITIT = """\
import os
import submitit

os.environ["SUBMITIT_EXECUTOR"] = "slurm"  # as its executor does
found = submitit.JobEnvironment()
print("rank", found.global_rank, "of", found.num_tasks, "on", len(found.hostnames), found.job_id)
"""
DASK = """\
import os, sys
from distributed import Client

with Client(f"tcp://{os.environ['MUSTER_MASTER_ADDR']}:{os.environ['MUSTER_MASTER_PORT']}",
            timeout="90s") as client:
    client.wait_for_workers(2, timeout=90)
    print("squares", client.gather(client.map(lambda number: number**2, range(4))))
"""
NOTEBOOK = """\
import json, os, subprocess, sys, time, urllib.request

server = subprocess.Popen(
    [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--ip=127.0.0.1",
     "--port=0", "--IdentityProvider.token=hidden", "--ServerApp.root_dir=."])
info = None
until = time.monotonic() + 60
while info is None and time.monotonic() < until:
    listed = subprocess.run([sys.executable, "-m", "jupyter_server", "list", "--json"],
                            capture_output=True, text=True)
    info = json.loads(listed.stdout.splitlines()[0]) if listed.stdout.strip() else None
request = urllib.request.Request(info["url"] + "api/status")
request.add_header("Authorization", "token hidden")
print("kernels", json.load(urllib.request.urlopen(request))["kernels"])
server.terminate()
server.wait()
"""


def test_a_data_loader_has_workers(bed: beds.Bed, tmp_path: Path) -> None:
    assert "rows 1000" in jobs.python(bed, "a-data-loader-with-a-long-name", LOADER, tmp_path)


def test_a_manager_serves_processes(bed: beds.Bed, tmp_path: Path) -> None:
    assert "shared [0, 1]" in jobs.python(bed, "manager", MANAGER, tmp_path)


def test_tasks_are_ranks_of_pytorch(bed: beds.Bed, tmp_path: Path) -> None:
    said = jobs.python(bed, "env-ranks", jobs.RANKS, tmp_path, framework="torchrun", count=2)
    assert "of 2 task" in said
    assert "sum 1" in said


def guides_torchrun(processes: int, program: str) -> str:
    """The script of the guide, with so many processes in each task."""
    return jobs.guides_script(
        "torchrun itself",
        **{"--nproc-per-node 8": f"--nproc-per-node {processes}", "train.py": program},
    )


def test_ranks_of_torchrun_stay_on_their_tasks(bed: beds.Bed, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(jobs.RANKS)
    script = guides_torchrun(2, "program.py")
    said = jobs.run(bed, "static", script, tmp_path, framework="torchrun", count=2)
    assert sorted(line for line in said.splitlines() if line.startswith("rank")) in [
        [f"rank {rank} of 4 task {task} sum 6" for rank in (2 * task, 2 * task + 1)]
        for task in (0, 1)
    ]


def test_a_gang_that_is_preempted_saves_and_goes_on(bed: beds.Bed, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(DDP)
    jobs.submit(
        bed, "ddp", guides_torchrun(2, "program.py"), tmp_path,
        framework="torchrun", count=2, resources={"cpu": 3},
        checkpoint={"signal": "SIGUSR1", "grace": "60s", "pattern": "step-*", "settle": "0s"},
    )  # fmt: skip
    bed.until(lambda: "training" in jobs.all_said(bed, "ddp", 2), jobs.LONG_S)
    jobs.submit(
        bed, "urgent", "sleep 1", tmp_path, count=2, resources={"cpu": 3}, priority=90,
    )  # fmt: skip
    jobs.succeeded(bed, "urgent")
    job = bed.until_state("ddp", *jobs.ENDED, timeout_s=jobs.LONG_S)
    said = jobs.all_said(bed, "ddp", 2)
    assert job["state"] == "Succeeded", (job.get("message"), said)
    begun = [line for line in said.splitlines() if "from step" in line]
    assert len(begun) == 4
    assert "from step 0" not in said


@pytest.mark.parametrize("tasks", [2, 4])
def test_lightning_reads_the_variables_of_slurm(bed: beds.Bed, tmp_path: Path, tasks: int) -> None:
    said = []
    for name in ("one", "other"):
        # tasks on each node, as Lightning wants them: its devices times its nodes
        text = LIGHTNING.replace("DEVICES", str(tasks // 2)).replace("NODES", "2")
        said.append(
            jobs.python(
                bed, f"lightning-{name}-{tasks}", text, tmp_path,
                framework="slurm", count=tasks, resources={"cpu": 4 // (tasks // 2)},
            )
        )  # fmt: skip
        assert f"of {tasks} by SLURMEnvironment sum {sum(range(tasks))}" in said[-1]
    numbers = {line.split()[-1] for text in said for line in text.splitlines() if "job" in line}
    assert len(numbers) == 2


def test_submitit_knows_its_place(bed: beds.Bed, tmp_path: Path) -> None:
    said = jobs.python(bed, "submitit", SUBMITIT, tmp_path, framework="slurm", count=2)
    assert "of 2 on" in said


def test_a_job_of_ray_ends_as_its_head_does(bed: beds.Bed, tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(jobs.TUNE)
    said = jobs.run(
        bed, "ray", jobs.guides_ray(), tmp_path, framework="ray", count=2, resources={"cpu": 2}
    )
    assert "squares [0, 1, 4, 9]" in said
    ends = {one["task"]: one["signal"] for one in bed.job("ray")["attempts"]}
    assert ends.keys() == {"main-0", "main-1"}
    assert ends["main-1"] != signal.SIGKILL, "the worker ends by itself, well within its grace"


def test_a_cluster_of_dask_ends_with_its_client(bed: beds.Bed, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(DASK)
    address = "tcp://$MUSTER_MASTER_ADDR:$MUSTER_MASTER_PORT"
    groups = [
        {"name": "client", "script": "#!/bin/sh\nexec python3 client.py\n"},
        {
            "name": "scheduler",
            "script": "#!/bin/sh\nexec dask scheduler --host $MUSTER_MASTER_ADDR "
            "--port $MUSTER_MASTER_PORT --no-dashboard\n",
        },
        {
            "name": "worker",
            "count": 2,
            "script": f"#!/bin/sh\nexec dask worker {address} --nthreads 1 --no-dashboard\n",
        },
    ]
    jobs.submit(bed, "dask", "", tmp_path, framework="slurm", groups=groups, endsWith="client")
    assert "squares [0, 1, 4, 9]" in jobs.succeeded(bed, "dask")


def test_a_notebook_server_answers(bed: beds.Bed, tmp_path: Path) -> None:
    assert "kernels 0" in jobs.python(bed, "notebook", NOTEBOOK, tmp_path)

"""What no nodes that there may be could hold at once is told where the job is written."""

import random

import msgspec
import pytest

from reconciler.desired.apply import validate
from reconciler.model import desired
from reconciler.simulation.traces import trace_replay, trace_results

HEAD = "apiVersion: muster/v1\n"
STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: a}
spec:
  hosts: 'a[1-4]'
  nodes: {cpu: 8, memory: 64Gi, gpus: {count: 1}}
  labels: {room: north}
  topology:
    levels: [rack]
    domains: [{hosts: 'a[1-2]', path: [r1]}, {hosts: a3, path: [r2]}]
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: b}
spec:
  provisioner: virtual
  min: 0
  max: 3
  nodes: {cpu: 4, memory: 8Gi}
  overcommit: {cpu: 2}
  topology: {levels: [rack], domains: [{hosts: b-0, path: [r1]}]}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: c}
spec:
  hosts: c1
  nodes:
    cpu: 1
    memory: 4Gi
    gpus: {count: 2, memory: 16Gi, mig: [{devices: [0], instances: {1g.5gb: 7}}]}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
"""
AT_ONCE = "asked for what starts together"
SPECS = {
    "resources: {gpu: 1, cpu: 1}, count: 5": None,
    "pools: [a], resources: {gpu: 1, cpu: 1}, count: 4": None,
    "pools: [a], resources: {gpu: 1, cpu: 1}, count: 5": f"5 GPUs {AT_ONCE}, and all nodes that "
    "it may use (4 of pool a) have 4 GPUs",
    "pools: [a], resources: {gpu: 1, cpu: 1}, min: 4, max: 9": None,
    "resources: {gpu: 1, cpu: 2}, count: 5": f"5 GPUs {AT_ONCE}, and all nodes that it may use "
    "(4 of pool a) have 4 GPUs",
    "pools: [a], nodeSelector: {room: north}, resources: {gpu: 0.5, cpu: 1}, count: 8": None,
    "nodeSelector: {room: north}, resources: {gpu: 1, cpu: 1}, count: 5": None,
    "pools: [a], nodeSelector: {room: north}, resources: {gpu: 0.4, cpu: 1}, count: 9": "9 tasks "
    "of group main start together, and all nodes that they may use (4 of pool a) could hold 8",
    "nodeSelector: {node: a1}, resources: {cpu: 5}, count: 2": f"10 CPUs {AT_ONCE}, and all nodes "
    "that it may use (1 of pool a) have 8 CPUs",
    "pools: [b], resources: {cpu: 8}, count: 3": None,
    "pools: [b], resources: {cpu: 6}, count: 4": "4 tasks of group main start "
    "together, and all nodes that they may use (3 of pool b) could hold 3",
    "pools: [a, b], resources: {cpu: 5}, count: 7": None,
    "pools: [a, b], resources: {cpu: 5}, count: 8": "8 tasks of group main start together, and "
    "all nodes that they may use (4 of pool a, 3 of pool b) could hold 7",
    "pools: [a, b], resources: {cpu: 5, memory: 10Gi}, count: 5": "5 tasks of group main start "
    "together, and all nodes that they may use (4 of pool a) could hold 4",
    "pools: [c], resources: {gpuMemory: 8Gi, cpu: 100m}, count: 5": None,
    "pools: [c], resources: {mig: {profile: 1g.5gb}, cpu: 100m}, count: 8": None,
    "topology: {required: rack}, resources: {cpu: 8}, count: 3": None,
    "topology: {required: rack}, resources: {cpu: 8}, count: 4": f"32 CPUs {AT_ONCE} in one rack, "
    "and no rack of nodes that it may use has more than 24 CPUs",
    "topology: {required: rack}, resources: {cpu: 5}, count: 4": "4 tasks of group main start "
    "together in one rack, and no rack of nodes that they may use could hold more than 3",
    "topology: {required: rack}, pools: [c], resources: {cpu: 1}": "what starts together has to be "
    "in one rack, and no rack has nodes that it may use",
    "topology: {slices: {size: 2, level: rack}}, pools: [a], resources: {gpu: 1}, count: 3": None,
    "topology: {slices: {size: 2, level: rack}}, pools: [a], resources: {gpu: 1}, count: 4": "4 "
    "tasks of group main start together, each 2 of them in one rack, and the nodes that they may "
    "use have room for 1 such slice",
    "pools: [a], resources: {cpu: 4}, count: 8, tasksPerNode: 2": None,
    "pools: [a], resources: {cpu: 3}, count: 6, tasksPerNode: 1": "6 tasks of group main start "
    "together, 1 on each node, and all nodes that they may use (4 of pool a) could hold 4",
    "pools: [a], resources: {cpu: 3}, count: 3, tasksPerNode: 3": "3 tasks of group main start "
    "together, 3 on each node, and all nodes that they may use (4 of pool a) could hold 0",
    "groups: [{name: x, count: 2, resources: {cpu: 8}}, {name: y, count: 3, resources: {cpu: 6}}], "
    "pools: [a]": f"34 CPUs {AT_ONCE}, and all nodes that it may use (4 of pool a) have 32 CPUs",
    "groups: [{name: x, count: 2, resources: {cpu: 8}}, {name: y, count: 2, resources: {cpu: 6}}], "
    "pools: [a]": None,
}  # fmt: skip


def told(spec: str, structure: str = STRUCTURE) -> list[str]:
    text = HEAD + f"kind: Job\nmetadata: {{name: j}}\nspec: {{{spec}, command: ['true']}}\n"
    found = validate.check({"s.yaml": structure.encode(), "j.yaml": text.encode()})
    assert {one.severity for one in found.status.problems} <= {"warning"}, found.status.problems
    return [f"{one.rule}: {one.message}" for one in found.status.problems]


@pytest.mark.parametrize(("spec", "expected"), SPECS.items())
def test_what_no_nodes_could_hold_at_once_is_told(spec: str, expected: str | None) -> None:
    assert told(spec) == ([] if expected is None else [f"never-fits: {expected}"])


@pytest.mark.parametrize(
    ("spec", "is_told"),
    [
        ("framework: mpi, count: 2", True),
        ("framework: mpi, count: 2, tasksPerNode: 2", True),
        ("framework: mpi, count: 2, tasksPerNode: 1", False),
        ("framework: mpi", False),
        ("framework: torchrun, count: 2", False),
    ],
)
def test_mpi_jobs_whose_tasks_may_share_a_node_are_warned_of(spec: str, *, is_told: bool) -> None:
    assert [one.partition(":")[0] for one in told(spec)] == (["mpi-tasks"] if is_told else [])


def drawn(seed: int) -> tuple[str, str]:
    """Two pools and a queue, and a job of one group."""
    chance = random.Random(seed)
    pools = []
    for name in "ab":
        count = chance.randint(1, 4)
        racks = ", ".join(
            f"{{hosts: {name}{node}, path: [r{chance.randint(1, 2)}]}}"
            for node in range(1, count + 1)
            if chance.random() < 0.8
        )
        topology = f", topology: {{levels: [rack], domains: [{racks}]}}"
        gpus = f", gpus: {{count: {chance.randint(1, 3)}}}" if chance.random() < 0.7 else ""
        pools.append(
            f"{HEAD}kind: NodePool\nmetadata: {{name: {name}}}\n"
            f"spec: {{hosts: '{name}[1-{count}]', nodes: {{cpu: {chance.randint(1, 8)}, "
            f"memory: 8Gi{gpus}}}, overcommit: {{cpu: {chance.choice([1, 1.5])}}}{topology}}}\n"
            "---\n"
        )
    asked = [f"cpu: {chance.choice([0.5, 1, 2, 3, 5])}"]
    if chance.random() < 0.6:
        asked.append(f"gpu: {chance.choice([0.3, 0.5, 1, 2])}")
    each = chance.choice([0, 0, 1, 2])
    count = chance.randint(1, 4) * each or chance.randint(1, 9)
    spec = f"resources: {{{', '.join(asked)}}}, count: {count}"
    spec += f", tasksPerNode: {each}" if each else ""
    near = chance.choice(["", "", "required: rack", "slices: {size: 2, level: rack}"])
    spec += f", topology: {{{near}}}" if near else ""
    spec += chance.choice(["", ", pools: [a]", ", nodeSelector: {pool: b}"])
    return "".join(pools) + f"{HEAD}kind: Queue\nmetadata: {{name: default}}\nspec: {{}}\n", spec


def test_told_is_what_does_not_start_on_idle_nodes() -> None:
    """The scheduler itself judges, with everything free that is declared."""
    outcomes = set()
    for seed in range(60):
        structure, spec = drawn(seed)
        text = f"{HEAD}kind: Job\nmetadata: {{name: j}}\nspec: {{{spec}, command: ['true']}}\n"
        found = validate.check({"s.yaml": structure.encode(), "j.yaml": text.encode()})
        assert {one.severity for one in found.status.problems} <= {"warning"}, found.status.problems
        pools = {
            name: msgspec.structs.replace(pool, runs_unmapped=True)
            for name, pool in found.structure.pools.items()
        }
        wanted = desired.Desired(
            structure=msgspec.structs.replace(found.structure, pools=pools), jobs=found.jobs
        )
        run = trace_replay.replay_state(wanted, lambda *_: 10.0)
        starts = not trace_results.never_started(run)
        assert starts is not bool(found.status.problems), (structure, spec, found.status.problems)
        outcomes.add((starts, "topology" in spec))
    assert len(outcomes) == 4

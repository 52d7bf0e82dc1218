"""Memory of GPUs is admitted as the share that it is of the dearest device the job might get."""

import pytest

from reconciler.desired.apply import validate

HEAD = "apiVersion: muster/v1\n"
STRUCTURE = """\
apiVersion: muster/v1
kind: NodePool
metadata: {name: small}
spec:
  hosts: s1
  labels: {room: north}
  nodes: {cpu: 8, memory: 8Gi, gpus: {count: 2, memory: 40Gi, model: A}}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: big}
spec:
  hosts: b1
  labels: {room: south}
  nodes: {cpu: 8, memory: 8Gi, gpus: {count: 2, memory: 80Gi, model: B}}
---
apiVersion: muster/v1
kind: NodePool
metadata: {name: unsaid}
spec:
  hosts: u1
  labels: {room: attic}
  nodes: {cpu: 8, memory: 8Gi, gpus: {count: 2}}
---
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {limit: {gpu: 0.4}}
"""
#: What a job says, and the milli-GPUs that it asks for.
SPECS = {
    "resources: {gpuMemory: 20Gi}": 500,
    "resources: {gpuMemory: 20Gi}, pools: [small, big]": 500,
    "resources: {gpuMemory: 20Gi}, pools: [big]": 250,
    "resources: {gpuMemory: 20Gi}, pools: [big, unsaid]": 250,
    "resources: {gpuMemory: 20Gi, gpu: 2}, pools: [big]": 500,
    "resources: {gpuMemory: 20Gi}, nodeSelector: {pool: big}": 250,
    "resources: {gpuMemory: 20Gi}, nodeSelector: {gpu-model: B}": 250,
    "resources: {gpuMemory: 20Gi}, nodeSelector: {room: south}": 250,
    "resources: {gpuMemory: 20Gi}, nodeSelector: {room: north}, pools: [small, big]": 500,
    "resources: {gpuMemory: 20Gi}, nodeSelector: {node: b1}": 250,
    "resources: {gpuMemory: 20Gi}, nodeSelector: {rack: r1}": 500,
    "resources: {gpuMemory: 60Gi}": 750,
    "resources: {gpuMemory: 60Gi}, pools: [small]": 750,
    "resources: {gpuMemory: 20Gi}, pools: [unsaid]": 500,
    "resources: {gpuMemory: 20Gi}, pools: [gone]": 500,
    "resources: {gpuMemory: 90Gi}, pools: [big]": 1000,
    "groups: [{name: g, resources: {gpuMemory: 20Gi}}], pools: [big]": 250,
}


@pytest.mark.parametrize(("spec", "asked"), SPECS.items())
def test_a_job_asks_for_the_dearest_share_that_it_might_get(spec: str, asked: int) -> None:
    text = HEAD + f"kind: Job\nmetadata: {{name: j}}\nspec: {{{spec}, command: ['true']}}\n"
    found = validate.check({"s.yaml": STRUCTURE.encode(), "j.yaml": text.encode()})
    assert {one.severity for one in found.status.problems} <= {"warning"}, found.status.problems
    assert found.jobs["j"].groups[0].resources.gpu_milli == asked
    beyond = "never-within-limit" in {one.rule for one in found.status.problems}
    assert beyond == (asked > 400)

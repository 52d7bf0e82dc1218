"""GPUs of containers by CDI: what podman is asked for, answered by a real podman.

There is no GPU here, so that the description names devices that every kernel has in their place. It
stands in an ``/etc/cdi`` that podman alone sees, by a mount namespace of its own.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.tasks import container_runtimes
from reconciler.model.state.records import Gpu
from tests.integration.agents import containers

pytestmark = [
    pytest.mark.needs("podman"),
    pytest.mark.skipif(not all(map(shutil.which, containers.PROGRAMS)), reason="no podman here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the test's storage needs root"),
]

WHOLE, OTHER, PART = "GPU-00000000-aa", "GPU-00000000-bb", "MIG-00000000-cc"
#: In a mount namespace: a folder of the test over /etc, read only, then podman.
SEEN = 'mount -t overlay -o "lowerdir=$1:/etc" overlay /etc && shift && exec "$@"'


@pytest.fixture
def podman() -> Iterator[containers.Podman]:
    made = containers.Podman()
    yield made
    made.remove()


def described(name: str) -> dict[str, Any]:
    """A device as ``nvidia-ctk`` describes one: a node below /dev and a variable."""
    node = {"path": f"/dev/nvidia-{name}", "hostPath": "/dev/zero"}
    edits = {"deviceNodes": [node], "env": [f"SEEN_{name[:3]}={name}"]}
    return {"name": name, "containerEdits": edits}


def run(
    podman: containers.Podman, top: Path, box: container_runtimes.ContainerTask
) -> tuple[int, str, str]:
    """Exit status, output and errors of a box whose podman finds descriptions in ``top``."""
    program = ("unshare", "--mount", "sh", "-c", SEEN, "sh", str(top), *podman.command)
    done = subprocess.run(
        container_runtimes.Podman(program).run(box),
        env=os.environ | box.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=containers.TIMEOUT_S,
    )
    return done.returncode, done.stdout, done.stderr


def test_podman_gives_the_devices_that_it_is_asked_for(
    podman: containers.Podman, tmp_path: Path
) -> None:
    top = tmp_path / "etc"
    (top / "cdi").mkdir(parents=True)
    devices = [described(name) for name in (WHOLE, OTHER, PART)]
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    (top / "cdi/nvidia.yaml").write_text(json.dumps(spec))  # JSON is YAML
    box = container_runtimes.ContainerTask(
        attempt="a.1", root=str(tmp_path), image=containers.IMAGE, cwd="/", environment={},
        argv=("sh", "-c", "echo $SEEN_GPU $SEEN_MIG; ls -d /dev/nvidia-*"), as_root=True,
        gpus=(Gpu(0, WHOLE, "H200"), Gpu(1, "GPU-sim-1", "sim", simulated=True)),
        instances=(PART,), limits=container_runtimes.limits_of_process(),
    )  # fmt: skip
    status, said, errors = run(podman, top, box)
    assert status == 0, errors
    assert said.split() == [WHOLE, PART, f"/dev/nvidia-{WHOLE}", f"/dev/nvidia-{PART}"]

    unknown = msgspec.structs.replace(
        box, attempt="a.2", gpus=(Gpu(0, "GPU-00000000-dd", "H200"),), instances=()
    )
    status, said, errors = run(podman, top, unknown)
    assert (status != 0, said) == (True, "")
    assert "nvidia.com/gpu=GPU-00000000-dd" in errors, "who is not described is named"

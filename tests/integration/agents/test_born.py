"""A task is born in its control groups, whether the kernel can have it born there or not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.isolation import cgroups
from agents.supervisor import spawn

KIND, _ = cgroups.offers(cgroups.discover())
pytestmark = pytest.mark.skipif(KIND == "process-group", reason="no control groups here")

#: Starts one task as a supervisor would: where it was, and what the kernel says of it at its end.
_START = """\
import json, os, sys
from agents.supervisor import orders, task_isolation

root, way, user = sys.argv[1:]
made = task_isolation.TaskIsolation(root, "auto")
made.recover()
can = bool(made._born_in)
if way == "goes there":
    made._born_in = ""
read, write = os.pipe()
order = orders.StartOrder(
    "one.1", ("cat", "/proc/self/cgroup"), {"PATH": os.environ["PATH"]},
    limits={"memory_bytes": 2**26, "cpu_milli": 500, "pids": 64},
)
if user == "other":
    order = order._replace(user=orders.UserIds("nobody", 65534, 65534, ()))
    os.mkdir(root + "/attempts", 0o711)
    os.mkdir(root + "/attempts/one.1")
    for inner in ("work", "tmp"):
        os.mkdir(root + "/attempts/one.1/" + inner)
null = os.open(os.devnull, os.O_RDWR)
pid = made.wait_for_start("one.1", made.start(order, (null, write, null)))
os.close(write)
with open(read) as stream:
    said = stream.read()
_, status = os.waitpid(pid, 0)
own = open("/proc/self/cgroup").read()
folders = dict(made.groups["one.1"].folders)
ended = made.close("one.1", contained=False)
made.leave()
print(json.dumps({
    "can": can, "said": said, "own": own, "status": status, "folders": folders, "ended": ended,
}))
"""


def started(root: Path, way: str, user: str) -> dict[str, Any]:
    root.mkdir()
    root.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", _START, str(root), way, user],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("user", ["own", "other"])
def test_both_ways_lead_to_the_same_groups(tmp_path: Path, user: str) -> None:
    tmp_path.chmod(0o755)
    born, went = (started(tmp_path / name, name, user) for name in ("is born there", "goes there"))
    assert born["status"] == went["status"] == 0
    assert set(born["folders"]) == set(went["folders"])
    for found in (born, went):
        lines = found["said"].splitlines()
        names = {Path(folder).name for folder in found["folders"].values()}
        (name,) = names
        inside = [line for line in lines if line.endswith(f"/run/{name}")]
        assert len(inside) == len(found["folders"])
        assert name not in found["own"]
        assert found["ended"].keys() == born["ended"].keys()


def test_the_kernel_of_this_machine_is_asked(tmp_path: Path) -> None:
    if cgroups.UNIFIED not in cgroups.discover():
        pytest.skip("no hierarchy of version 2 here")
    assert started(tmp_path / "root", "is born there", "own")["can"]


def test_a_folder_that_is_no_group_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        spawn.fork_into(str(tmp_path))

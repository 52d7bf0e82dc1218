"""Command lines of container runtimes, word by word. Apptainer's are not exercised elsewhere."""

from pathlib import Path

import msgspec
import pytest

from agents.isolation import task_limits
from agents.tasks import container_runtimes, start_commands, task_users
from agents.tasks.node_context import NodeContext, UnstartableError
from reconciler.model.observed.devices import MigInstance
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import Gpu
from tests import ordering
from tests.unit.agents.host.test_host_info import tree
from tests.unit.agents.isolation.test_task_limits import DRIVER, GPUS

BOX = container_runtimes.ContainerTask(
    attempt="j.1.0.0.main.0.1",
    root="/var/lib/muster",
    image="docker.io/library/debian:12",
    argv=("python3", "-c", "print('a b')"),
    cwd="/work",
    environment={"PATH": "/bin", "HOME": "/root", "TOKEN": "hidden", "MUSTER_JOB": "j"},
    binds=(("/var/lib/muster/attempts/a", False), ("/data", True)),
    gpus=(Gpu(0, "GPU-aa", "H200"), Gpu(1, "GPU-sim-1", "sim", simulated=True)),
    memory_bytes=2**30,
    pids_max=100,
    as_root=True,
    cgroup="/muster-1/run/a",
    cpus="0-1",
    limits=(("nofile", 1024, 4096),),
)


def test_podman() -> None:
    made = container_runtimes.Podman(("podman", "--runtime", "runc")).run(BOX)
    assert made == [
        "podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", "run",
        f"--name={BOX.name}", "--pull=never", "--cgroup-parent=/muster-1/run/a",
        "--log-driver=none", "--network=host", "--workdir=/work", "--shm-size=1073741824",
        "--ulimit=nofile=1024:4096", "--memory=1073741824", "--cpuset-cpus=0-1",
        "--pids-limit=100",
        "--device=nvidia.com/gpu=GPU-aa",
        "--volume=/var/lib/muster/attempts/a:/var/lib/muster/attempts/a:rw",
        "--volume=/data:/data:ro", "--env=MUSTER_JOB", "--env=TOKEN", "--entrypoint=",
        "--", "docker.io/library/debian:12", "python3", "-c", "print('a b')",
    ]  # fmt: skip
    assert "hidden" not in " ".join(made)
    assert container_runtimes.Podman().environment(BOX)["TOKEN"] == "hidden"


def test_commands_join_a_container_of_podman() -> None:
    podman = container_runtimes.Podman(("podman", "--runtime", "runc"))
    before = ["podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", "exec", "--interactive"]
    assert podman.enter(BOX, terminal=False) == [*before, "--env=MUSTER_SESSION", "--", BOX.name]
    assert podman.enter(BOX, terminal=True) == [
        *(*before, "--tty", "--env=MUSTER_SESSION", "--env=TERM", "--", BOX.name)
    ]
    ungrouped = msgspec.structs.replace(BOX, cgroup="")
    assert podman.enter(ungrouped, terminal=False) == [
        *("podman", "--runtime", "runc", "exec", "--interactive"),
        *("--env=MUSTER_SESSION", "--", BOX.name),
    ]
    assert container_runtimes.Apptainer().enter(BOX, terminal=True) is None


def test_podman_without_root() -> None:
    made = container_runtimes.Podman().run(msgspec.structs.replace(BOX, as_root=False, gpus=()))
    assert "--cgroups=disabled" in made
    assert "--userns=keep-id" in made
    of_root = ("--memory", "--device", "--pids", "--cpuset")
    assert not [word for word in made if word.startswith(of_root)], "its groups hold it"


def test_podman_where_there_are_no_groups() -> None:
    made = container_runtimes.Podman().run(msgspec.structs.replace(BOX, cgroup=""))
    assert not [word for word in made if word.startswith("--cgroup")]


@pytest.mark.parametrize(
    ("program", "prefix"), [("apptainer", "APPTAINERENV_"), ("singularity", "SINGULARITYENV_")]
)
def test_apptainer(program: str, prefix: str) -> None:
    runtime = container_runtimes.Apptainer((program,))
    assert runtime.run(msgspec.structs.replace(BOX, image="/images/pt.sif")) == [
        program, "--quiet", "exec", "--contain", "--cleanenv", "--pwd=/work", "--nv",
        "--bind=/var/lib/muster/attempts/a:/var/lib/muster/attempts/a:rw", "--bind=/data:/data:ro",
        "--", "/images/pt.sif", "python3", "-c", "print('a b')",
    ]  # fmt: skip
    found = runtime.environment(BOX)
    assert found[f"{prefix}TOKEN"] == "hidden"
    assert f"{prefix}PATH" not in found
    assert runtime.remove("x") is None


def test_what_is_fetched() -> None:
    podman, apptainer = container_runtimes.Podman(), container_runtimes.Apptainer()
    assert podman.present("a:1") == ["podman", "image", "exists", "--", "a:1"]
    assert podman.pull("a:1") == ["podman", "pull", "--quiet", "--", "a:1"]
    assert podman.remove("n") == ["podman", "rm", "--force", "--ignore", "--time=0", "--", "n"]
    # the user looks, who may see more of a file server than root does
    assert apptainer.present("/images/pt.sif") == ["test", "-r", "/images/pt.sif"]
    assert apptainer.pull("/images/pt.sif") is None
    assert apptainer.present("docker://a:1") == ["false"]
    pull = ["apptainer", "--quiet", "exec", "--contain", "--", "docker://a:1", "true"]
    assert apptainer.pull("docker://a:1") == pull


def test_the_one_that_is_installed(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert container_runtimes.find("podman", ("podman",), path) is None
    assert container_runtimes.find("apptainer", ("podman",), path) is None
    for name in ("singularity", "apptainer", "podman"):
        (tmp_path / name).touch(0o755)
        found = container_runtimes.find(
            "podman" if name == "podman" else "apptainer", ("podman",), path
        )
        assert found is not None
        assert found.run(BOX)[0] == name


def test_a_node_without_the_runtime_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    template = TaskTemplate("j", 1, "g", ("true",), runtime="apptainer", image="x", allow_root=True)
    with pytest.raises(UnstartableError, match="apptainer, which is not installed on node n1"):
        ordering.order_for(Assignment("a.1", "t", "b"), template, NodeContext("n1", "/r", "/s"))


@pytest.mark.parametrize("simulated", [True, False])
def test_no_runtime_is_asked_for_a_device_that_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, simulated: bool
) -> None:
    (tmp_path / "apptainer").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    part = MigInstance("MIG-1", "1g.10gb", 1, 0)
    gpus = (Gpu(0, "GPU-1", "H200", simulated=simulated, mig=(part,)),)
    template = TaskTemplate("j", 1, "g", ("true",), runtime="apptainer", image="x", allow_root=True)
    order = ordering.order_for(
        Assignment("a.1", "t", "b", mig_profile="1g.10gb", instances=(0,)), template,
        NodeContext("n1", "/r", "/s", gpus=gpus),
        instances=(part,),
    )  # fmt: skip
    assert ("--nv" in order["argv"]) is not simulated
    prefix = container_runtimes.PREFIXES[0]
    assert order["env"][f"{prefix}CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_the_runtime_is_the_nodes_wherever_its_job_looks_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jobs", "nodes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "podman").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "nodes"))
    template = TaskTemplate(
        "j", 1, "g", ("true",), runtime="podman", image="x", allow_root=True,
        environment={"PATH": str(tmp_path / "jobs"), "MY": "own"},
    )  # fmt: skip
    place = NodeContext("n1", "/r", "/s")
    order = ordering.order_for(Assignment("a.1", "t", "b"), template, place)
    user = task_users.find_user(template, place)
    image = start_commands.image_request(template, place, user)
    assert image is not None
    assert order["cleanup"] is not None
    told = [order["env"], order["cleanup"]["env"], dict(image.environment)]
    assert {one["PATH"] for one in told} == {str(tmp_path / "nodes")}
    assert order["env"]["MY"] == "own"
    assert "--env=PATH" not in order["argv"]
    (tmp_path / "nodes/podman").unlink()
    with pytest.raises(UnstartableError, match="podman, which is not installed"):
        ordering.order_for(Assignment("a.1", "t", "b"), template, place)


@pytest.mark.parametrize(("user", "denies"), [("nobody", True), ("root", False)])
@pytest.mark.parametrize("runtime", ["apptainer", "podman"])
def test_what_an_ordinary_user_runs_is_kept_from_others_gpus_by_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, runtime: str, *, denies: bool
) -> None:
    """``--nv`` shows all devices of the machine to a container, whoever they were given to."""
    (tmp_path / runtime).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(task_users, "DEFAULT_PATH", str(tmp_path))
    monkeypatch.setattr(task_limits, "_PROC", tree(tmp_path / "proc", DRIVER))
    template = TaskTemplate(
        "j", 1, "g", ("true",), runtime=runtime, image="x", user=user, allow_root=True,
        cpu_milli=1000,
    )  # fmt: skip
    holding = task_limits.IsolationCapabilities(
        "cgroup-v1", ("cpu", "cpuset", "devices"), path="/muster-1/run"
    )
    place = NodeContext("n1", "/r", "/s", gpus=GPUS, as_root=True, isolation=holding)
    order = ordering.order_for(
        Assignment("a.1", "t", "b", devices=(1,)),
        template,
        place,
        cpus="3",
    )
    rules = ["c 195:7 rwm", "c 195:5 rwm"]
    limits = {"cpu_milli": 1000, "cpus": "3"} | ({"deny_devices": rules} if denies else {})
    assert order["limits"] == limits
    of_root = runtime == "podman" and user == "root"
    assert ("--cpuset-cpus=3" in order["argv"]) is of_root

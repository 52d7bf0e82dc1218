"""What ``muster agent --check`` finds, on machines that are trees of files and scripted samples."""

import contextlib
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents import __main__, settings
from agents.gpus import samples
from agents.isolation import task_privileges
from agents.node import agent_identity
from agents.preflight import (
    finding,
    gpu_findings,
    host_findings,
    option_findings,
    preflight_check,
    task_findings,
)
from reconciler.model.observed import devices
from reconciler.model.observed.host_facts import Host, Link, RdmaPort
from tests.unit.agents.host.test_host_info import tree

GPU = samples.DeviceReading(
    0, devices.OK, uuid="GPU-0", name="NVIDIA H200", memory_total_bytes=2**37
)
LINKS = (samples.LinkReading(0, "switch", "0000:c0:00.0"),)
OK_SAMPLE = samples.Sample(1.0, devices.OK, "", "550.54.15", "12.4", devices=(GPU,))
ABSENT = samples.Sample(1.0, "absent", "libnvidia-ml.so.1 is not installed")


def levels(findings: Any) -> dict[str, tuple[str, str]]:
    return {one.name: (one.level, one.found) for one in findings}


def replaced(**values: Any) -> samples.Sample:
    (device,) = OK_SAMPLE.devices
    return msgspec.structs.replace(OK_SAMPLE, devices=(msgspec.structs.replace(device, **values),))


BUS = {
    "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n",
    "sys/bus/pci/devices/0000:00:1f.0/vendor": "0x8086\n",
    "sys/bus/pci/devices/0000:00:1f.0/class": "0x060100\n",
}


def test_what_restricted_tasks_lack_is_told(tmp_path: Path) -> None:
    (told,) = task_findings.privileges(tmp_path)
    assert (told.name, told.level) == ("privileges", "ok")
    assert "no-new-privileges, system-calls" in told.found
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert levels(task_findings.privileges(tmp_path))["nvidia-uvm"][0] == "note"


def test_what_the_kernel_refuses_to_take_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = task_privileges.Privileges(("no-new-privileges",), ("system-calls of tasks: no",))
    monkeypatch.setattr(task_privileges, "tried", lambda: refused)
    (told,) = task_findings.privileges(tmp_path)
    assert (told.level, told.do) == ("note", "Not taken: system-calls of tasks: no")


HUNG = samples.Sample(1.0, devices.UNRESPONSIVE, "the NVIDIA driver hangs")


@pytest.mark.parametrize(
    ("sample", "files", "expected"),
    [
        (None, {}, ("gpus", "note", "--gpus none")),
        (ABSENT, {}, ("driver", "note", "not installed")),
        (ABSENT, BUS, ("driver", "failed", "1 NVIDIA GPU on the bus, but libnvidia-ml.so.1")),
        (HUNG, {}, ("driver", "failed", "hangs")),
        (OK_SAMPLE, {}, ("driver", "ok", "550.54.15, CUDA 12.4, 1 GPU;")),
        (OK_SAMPLE, {}, ("gpu 0", "ok", "GPU-0 NVIDIA H200 128 GiB")),
        (OK_SAMPLE, {}, ("cdi", "note", "no description")),
        (replaced(state="lost", message="it fell"), {}, ("gpu 0", "failed", "lost: it fell")),
        (
            replaced(compute_mode="prohibited"),
            {},
            ("gpu 0", "failed", "in compute mode prohibited no program may use it"),
        ),
        (
            replaced(fabric_problem="is about to join its NVSwitch fabric", links=LINKS),
            {},
            ("gpu 0", "failed", "128 GiB: it is about to join its NVSwitch fabric"),
        ),
        (replaced(fabric_problem="is about to"), {}, ("gpu 0", "ok", "128 GiB")),
        (replaced(mig_enabled=True), {}, ("gpu 0", "ok", "0 MIG instances")),
        (OK_SAMPLE, {}, ("mig", "note", "no GPU here supports MIG")),
        (replaced(mig_able=True), {}, ("mig", "ok", "1 of 1 GPU can be split into instances")),
        (replaced(mig_able=True), {}, ("mig", "ok", finding.NOT_EXERCISED)),
    ],
)
def test_gpus(
    sample: samples.Sample | None,
    files: dict[str, str],
    expected: tuple[str, str, str],
    tmp_path: Path,
) -> None:
    name, level, says = expected
    found = levels(gpu_findings.gpus(sample, tree(tmp_path, files)))
    assert found[name][0] == level
    assert says in found[name][1]


def test_simulated_gpus_are_told_and_no_driver_is_looked_for(tmp_path: Path) -> None:
    (found,) = gpu_findings.gpus(ABSENT, tmp_path, simulated=2)
    assert (found.name, found.found) == ("gpus", "2 simulated, as requested; they compute nothing")


def test_a_description_for_containers_is_found(tmp_path: Path) -> None:
    top = tree(tmp_path, {"etc/cdi/nvidia.yaml": "cdiVersion: 0.6.0"})
    level, found = levels(gpu_findings.gpus(OK_SAMPLE, top))["cdi"]
    assert (level, finding.NOT_EXERCISED in found) == ("ok", True)


V2 = {
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/cgroup.procs": "",
}
V1 = {
    "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n2:freezer:/\n",
    "proc/self/mountinfo": "31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 20 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 20 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n",
    "sys/fs/cgroup/memory/tasks": "",
    "sys/fs/cgroup/cpu/tasks": "",
    "sys/fs/cgroup/freezer/tasks": "",
}


@pytest.mark.parametrize(
    ("files", "level", "says"),
    [
        ({}, "note", "process groups only: no control groups can be created here"),
        (V1, "note", "cgroup v1: memory, cpu"),
        (V2 | {"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n"},
         "ok", "cgroup v2: memory, cpu, cpuset, pids"),
        (V2 | {"sys/fs/cgroup/cgroup.controllers": "cpu pids\n"},
         "note", "cgroup v2: tasks are only killed as one"),
    ],
)  # fmt: skip
def test_isolation(files: dict[str, str], level: str, says: str, tmp_path: Path) -> None:
    found = levels(task_findings.isolation(tree(tmp_path, files)))
    assert found["isolation"] == (level, says)
    assert found["systemd"][0] == "note"


def test_what_was_never_seen_at_work_is_said(tmp_path: Path) -> None:
    files = V2 | {"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n"}
    found = levels(task_findings.isolation(tree(tmp_path, files)))
    assert finding.NOT_EXERCISED in found["cgroup v2"][1]


def test_runtimes_are_found_in_the_path(tmp_path: Path) -> None:
    assert levels(task_findings.runtimes(str(tmp_path), tmp_path))["containers"][0] == "note"
    program = tmp_path / "podman"
    program.touch(0o755)
    found = levels(task_findings.runtimes(str(tmp_path), tmp_path))
    assert found["runtimes"] == ("ok", f"process, podman ({program})")
    assert found["podman"][0] == "note", "podman alone is of no use to users"
    other = tmp_path / "apptainer"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert levels(task_findings.runtimes(str(tmp_path), tmp_path))["apptainer"] == (
        "note",
        finding.NOT_EXERCISED,
    )


def test_networks() -> None:
    host = Host(
        links=(Link("eth0", "up", 200 * 10**9), Link("eth1", "down")),
        rdma=(RdmaPort("mlx5_0", 1, "ACTIVE"), RdmaPort("mlx5_1", 1, "DOWN")),
    )
    found = levels(host_findings.machine(host))
    assert found["network"] == ("ok", "eth0 200 Gb/s")
    assert found["rdma"] == ("note", f"1 of 2 ports are active; {finding.NOT_EXERCISED}")


def test_users() -> None:
    assert host_findings.user(0).level == "ok"
    assert host_findings.user(54321).found == "54321: every task runs as 54321"


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert levels(host_findings.folder(tmp_path / "new" / "node"))["folder"][0] in {"ok", "note"}
    assert list(tmp_path.iterdir()) == [tmp_path / "file"], "nothing is left behind"
    assert levels(host_findings.folder(tmp_path / "file" / "node"))["folder"][0] == "failed"


def arguments(*words: str) -> list[str]:
    return ["--check", "--gpus", "none", *words]


def test_the_way_to_the_controller(tmp_path: Path) -> None:
    parser = settings.parser(required=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert (
            levels(option_findings.controller(parser.parse_args(["--server", url])))["controller"][
                0
            ]
            == "ok"
        )
    assert (
        levels(option_findings.controller(parser.parse_args(["--server", url])))["controller"][0]
        == "failed"
    )
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(stat.S_IRUSR | stat.S_IROTH)
    found = levels(option_findings.controller(parser.parse_args(["--token-file", str(token)])))
    assert found["token"][0] == "failed"
    assert "secret" not in found["token"][1]


def test_the_exit_code_and_both_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(arguments("--root", str(tmp_path), "-o", "json")) == 0
    report = msgspec.json.decode(capsys.readouterr().out, type=finding.PreflightReport)
    assert report.ok
    assert {one.level for one in report.findings} <= {"ok", "note"}
    assert __main__.main(arguments("--root", "/proc/none/such")) == 1
    out = capsys.readouterr().out
    assert "failed  folder" in out
    assert out.endswith("No node can run on this host yet: fix the lines marked `failed`.\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--name", "no such"], "--name 'no such': a node's name has letters, digits"),
        (["--name", "n-"], "begins and ends with a letter or digit"),
        (["--memory", "much"], "--memory much: "),
        (["--label", "rack"], "each label must be KEY=VALUE"),
        (["--simulated-gpus", "-1"], "--simulated-gpus -1: expected 0 to"),
        (["--gpus", "MIG-1,GPU-0,MIG-1"], "--gpus: MIG-1 is named more than once"),
    ],
)
def test_what_an_agent_would_not_start_with_is_told(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(arguments(*words)) == 1
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "options" in one]
    assert line.startswith("failed  options")
    assert told in line


def test_gpus_that_are_not_there_are_told() -> None:
    given = settings.parser(required=False).parse_args(["--gpus", "GPU-0,GPU-9"])
    (one,) = gpu_findings.chosen(OK_SAMPLE, settings.chosen_gpus(given))
    assert one.found == "--gpus GPU-9: there is no such GPU here, of GPU-0"
    given = settings.parser(required=False).parse_args([])
    assert not list(gpu_findings.chosen(OK_SAMPLE, settings.chosen_gpus(given)))


PARTS = tuple(devices.MigInstance(f"MIG-{i}", "1g.18gb", i, 0) for i in range(3))


@pytest.mark.parametrize(
    ("chosen", "level", "says"),
    [
        ("MIG-9", "failed", "there is no such MIG instance here, of MIG-0, MIG-1, MIG-2"),
        ("GPU-0,MIG-1", "failed", "--gpus names GPU-0, and MIG-1 of it: name either"),
        ("MIG-1,MIG-2", "note", "2 of 3 MIG instances of GPU-0 are this node's"),
    ],
)
def test_instances_that_a_node_is_given_are_told(chosen: str, level: str, says: str) -> None:
    given = settings.parser(required=False).parse_args(["--gpus", chosen])
    seen = replaced(mig_enabled=True, mig=PARTS)
    (one,) = gpu_findings.chosen(seen, settings.chosen_gpus(given))
    assert one.level == level
    assert says in one.found
    assert ("neither changes its layout nor resets it" in one.do) == (level == "note")


def test_secrets_that_others_could_read_are_told_without_what_is_in_them(tmp_path: Path) -> None:
    own = tmp_path / "secrets" / pwd.getpwuid(os.geteuid()).pw_name
    own.mkdir(parents=True, mode=0o700)
    (own / "token").touch(mode=0o600)
    (own / "token").write_text("hidden")
    folder = own.parent
    folder.chmod(0o755)
    assert levels(option_findings.secrets(folder))["secrets"][0] == "ok"
    (own / "token").chmod(0o644)
    (folder / "nobody-of-this-name").mkdir()
    found = [(one.level, one.found) for one in option_findings.secrets(folder)]
    assert found == [
        ("failed", f"{folder}/nobody-of-this-name: there is no Unix user nobody-of-this-name here"),
        (
            "failed",
            f"{own}/token has mode 0644: others can get at it; chmod 600 {own}/token",
        ),
    ]
    assert "hidden" not in str(found)
    (missing,) = option_findings.secrets(tmp_path / "nowhere")
    assert missing.found == f"{tmp_path}/nowhere is no folder"
    assert not list(option_findings.secrets(None))


def test_tables_that_few_tasks_can_take_are_told_with_what_mends_them(tmp_path: Path) -> None:
    top = tree(tmp_path, {"proc/sys/kernel/pid_max": "99999", "proc/sys/fs/aio-max-nr": "65536"})
    told = host_findings.tables(8, top)
    assert (told.level, told.found) == (
        "note",
        "too small for 8 tasks, one a CPU: kernel.pid_max 99999, fs.aio-max-nr 65536",
    )
    assert told.do == (
        "One task, or a few, can take all processes, requests of asynchronous I/O. To fix: "
        "sysctl -w kernel.pid_max=262144 fs.aio-max-nr=524288, and in /etc/sysctl.d"
    )
    enough = host_findings.tables(1, top)
    assert (enough.level, enough.found) == (
        "ok",
        "enough for 1 tasks of usual needs, one a CPU; one task can still take all of a table",
    )


def test_every_finding_that_failed_says_what_to_do(tmp_path: Path) -> None:
    given = settings.parser(required=False).parse_args(
        ["--root", "/proc/none/such", "--server", "http://127.0.0.1:1"]
    )
    for sample in (HUNG, replaced(state="lost"), ABSENT):
        for one in preflight_check.findings(
            given, sample, tree(tmp_path / os.urandom(4).hex(), BUS)
        ):
            assert one.do or one.level != "failed", one


def test_a_python_that_only_root_gets_at_is_told(tmp_path: Path) -> None:
    (tmp_path / "home" / "bin").mkdir(parents=True)
    program = tmp_path / "home" / "bin" / "python"
    tmp_path.chmod(0o755)
    before = task_findings.unreachable_folder(program)
    (tmp_path / "home").chmod(0o700)
    found = task_findings.unreachable_folder(program)
    assert found == tmp_path / "home"
    assert before != found


def test_a_relative_place_is_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What isolates is tried out on the way, which leaves the process elsewhere."""
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("abc\n")
    Path("token").chmod(0o600)
    given = settings.parser(required=False).parse_args(
        ["--root", "node", "--gpus", "none", "--token-file", "token"]
    )
    try:
        preflight_check.main(given)
    finally:
        os.chdir(tmp_path)
    told = capsys.readouterr().out
    assert f"ok      token         {tmp_path}/token" in told
    assert f"{tmp_path}/node" in told


def test_a_port_for_metrics_is_tried_where_it_is_asked_for(tmp_path: Path) -> None:
    def found(*given: str) -> dict[str, tuple[str, str]]:
        parser = settings.parser(required=False)
        words = ["--root", str(tmp_path), *given]
        return levels(option_findings.metrics_port(parser.parse_args(words)))

    assert found() == {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        level, said = found("--metrics-listen", listen)["metrics port"]
        assert (level, f"process {os.getpid()} of" in said) == ("note", True)
        with contextlib.closing(
            os.fdopen(agent_identity.take(tmp_path))
        ):  # as the agent of this root
            told = found("--metrics-listen", listen)["metrics port"]
            assert told == ("ok", f"{listen} is in use by the agent of {tmp_path} itself")
        assert found("--metrics-listen", listen)["metrics port"][0] == "note"
    assert found("--metrics-listen", listen)["metrics port"] == ("ok", f"{listen} is free")
    level, said = found("--metrics-listen", "0.0.0.0:0")["metrics port"]
    assert (level, "no --metrics-token-file" in said) == ("failed", True)
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    open_to_all = ("--metrics-listen", "0.0.0.0:0", "--metrics-token-file", str(token))
    assert found(*open_to_all)["metrics port"][0] == "failed"
    token.chmod(0o600)
    level, said = found(*open_to_all)["metrics port"]
    assert (level, "unencrypted" in said) == ("ok", True)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """Return a folder that all users get to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="tasks have other users where root is the agent")
@pytest.mark.parametrize(
    ("above", "mode", "says", "fix"),
    [
        (0o755, 0o755, "all users get to their folders", ""),
        (0o755, 0o711, "all users get to their folders", ""),
        (0o755, 0o750, "because {shared} has mode 0750", "chmod 0751 {shared}"),
        (0o700, 0o755, "because {above} has mode 0700", "chmod 0711 {above}"),
        (0o755, 0o777, "has mode 0777: others than root may write there", "chmod 0755 {shared}"),
        (0o755, 0o1777, "has mode 1777: others than root may write there", "chmod 0755 {shared}"),
        (0o755, 0o775, "has mode 0775: others than root may write there", "chmod 0755 {shared}"),
    ],
)
def test_a_shared_folder_that_tasks_of_users_can_not_use_is_told(
    open_place: Path, above: int, mode: int, says: str, fix: str
) -> None:
    shared = open_place / "above" / "shared"
    shared.mkdir(parents=True)
    shared.chmod(mode)
    shared.parent.chmod(above)
    (found,) = task_findings.folders(None, shared)
    names = {"shared": shared, "above": shared.parent}
    assert says.format(**names) in found.found
    assert (found.level == "ok") is (not fix)
    assert fix.format(**names) in found.do


@pytest.mark.skipif(os.geteuid() != 0, reason="tasks have other users where root is the agent")
def test_a_node_folder_below_one_of_root_alone_is_told(open_place: Path) -> None:
    root = open_place / "home" / "muster"
    root.parent.mkdir()
    root.parent.chmod(0o700)
    work, shared = task_findings.folders(root, None)
    for one in (work, shared):
        assert (one.level, f"because {root.parent} has mode 0700" in one.found) == ("note", True)
    (fine,) = task_findings.folders(open_place / "new", None)
    assert fine.level == "ok", "the agent makes it as it has to be"

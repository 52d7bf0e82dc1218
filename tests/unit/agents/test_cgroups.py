"""What is asked of control groups, on trees of plain files; the kernel's part is in integration."""

import os
from pathlib import Path

import pytest

from agents import cgroups, keeper
from tests.unit.agents.test_hosts import tree

SCOPE = "/muster.slice/muster-1.scope"
V2 = {
    "proc/self/cgroup": f"0::{SCOPE}\n",
    "proc/self/mountinfo": "25 1 8:1 / / rw - ext4 /dev/sda rw\n"
    "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    f"sys/fs/cgroup{SCOPE}/cgroup.controllers": "cpuset cpu io memory pids\n",
    f"sys/fs/cgroup{SCOPE}/cgroup.procs": "",
}
LIMITS = {"memory_bytes": 2**30, "cpu_milli": 2500, "pids": 100, "cpus": "2-3",
          "deny_devices": ["c 195:0 rwm"]}  # fmt: skip


def made(top: Path, files: dict[str, str], *, kill: str) -> cgroups.Tree:
    """A tree of groups in plain files; ``kill`` is a file that the kernel would make."""
    tree(top, files)
    own = cgroups.discover(str(top))
    token = cgroups.token_of("/root-of-node")
    for base in own.values():
        run = Path(base) / token / "run"
        run.mkdir(parents=True)
        (run / kill).touch()
    return cgroups.Tree("/root-of-node", own)


def said(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir() if p.is_file()}


def test_version_2_is_asked_for_all_limits(tmp_path: Path) -> None:
    groups = made(tmp_path, V2, kill="cgroup.kill")
    base = Path(groups.bases["unified"])
    assert groups.facts() == {
        "kind": "cgroup-v2", "enforces": ["memory", "cpu", "cpuset", "pids"],
        "kills": "cgroup.kill", "problems": [], "path": f"{base}/run",
    }  # fmt: skip
    assert base.parent == tmp_path / f"sys/fs/cgroup{SCOPE}"
    for folder in (base.parent, base, base / "run"):
        assert said(folder)["cgroup.subtree_control"] == "+memory +cpu +cpuset +pids"
    chosen = groups.make("a.1", LIMITS)
    assert chosen == ["unified"]
    group = base / "run/a.1"
    assert said(group) == {"cpu.weight": "250", "pids.max": "100", "cpuset.cpus": "2-3"}
    groups.enter("a.1", chosen)
    assert said(group)["cgroup.procs"] == "0"
    assert groups.bound("a.1", LIMITS)
    assert said(group)["memory.max"] == str(2**30)
    assert said(group)["memory.swap.max"] == "0"
    assert said(group)["memory.oom.group"] == "1"
    groups.kill("a.1")
    assert said(group)["cgroup.kill"] == "1"
    (group / "memory.events").write_text("low 0\noom 2\noom_kill 3\noom_group_kill 1\n")
    (group / "memory.peak").write_text("4096\n")
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert groups.outcome("a.1", chosen) == {
        "oom_kills": 3, "max_memory_bytes": 4096, "cpu_s": 2.5,
    }  # fmt: skip


def test_controllers_that_are_not_handed_down_are_not_promised(tmp_path: Path) -> None:
    (tmp_path / f"sys/fs/cgroup{SCOPE}/cgroup.subtree_control").mkdir(parents=True)
    groups = made(tmp_path, V2, kill="cgroup.kill")
    assert (groups.kind, groups.enforced) == ("cgroup-v2", [])
    assert "memory cpu cpuset pids" in groups.problems[0]
    assert groups.make("a.1", LIMITS) == ["unified"]
    assert groups.bound("a.1", LIMITS)
    assert said(Path(groups.bases["unified"]) / "run/a.1") == {}


def test_an_old_kernel_of_version_2_is_frozen_and_killed(tmp_path: Path) -> None:
    groups = made(tmp_path, V2, kill="cgroup.freeze")
    assert groups.kills_by == "cgroup.freeze"
    groups.make("a.1", {})
    group = Path(groups.bases["unified"]) / "run/a.1"
    groups.kill("a.1")
    assert said(group)["cgroup.freeze"] == "0"  # let go again when all have their signal


def test_version_1_without_a_tree_of_version_2_uses_the_freezer(tmp_path: Path) -> None:
    names = ("memory", "cpu,cpuacct", "cpuset", "devices", "pids", "freezer")
    mounts = "".join(
        f"3{i} 20 0:2{i} / /sys/fs/cgroup/{n} rw - cgroup cgroup rw,{n}\n"
        for i, n in enumerate(names)
    )
    files = {
        "proc/self/cgroup": "".join(f"{i}:{n}:/job\n" for i, n in enumerate(names)),
        "proc/self/mountinfo": mounts,
        "sys/fs/cgroup/cpuset/job/cpuset.cpus": "0-7\n",
        "sys/fs/cgroup/cpuset/job/cpuset.mems": "0-1\n",
    } | {f"sys/fs/cgroup/{n}/job/cgroup.procs": "" for n in names}
    groups = made(tmp_path, files, kill="freezer.state")
    assert groups.facts()["enforces"] == ["memory", "cpu", "cpuset", "devices", "pids"]
    assert groups.kills_by == "freezer"
    chosen = groups.make("a.1", LIMITS)
    groups.bound("a.1", LIMITS)
    told = {h: said(Path(groups.bases[h]) / "run/a.1") for h in chosen}
    assert told == {
        "memory": {"memory.limit_in_bytes": str(2**30), "memory.memsw.limit_in_bytes": str(2**30)},
        "cpu": {"cpu.shares": "2560"},
        "cpuset": {"cpuset.cpus": "2-3", "cpuset.mems": "0-1"},
        "devices": {"devices.deny": "c 195:0 rwm"},
        "pids": {"pids.max": "100"},
        "freezer": {},
    }
    groups.kill("a.1")
    assert said(Path(groups.bases["freezer"]) / "run/a.1")["freezer.state"] == "THAWED"


def test_a_mount_of_a_part_of_the_tree(tmp_path: Path) -> None:
    """As in a container without a namespace of its own for groups."""
    files = {
        "proc/self/cgroup": "0::/docker/abc/inner\n",
        "proc/self/mountinfo": "30 20 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/inner/cgroup.procs": "",
    }
    found = cgroups.discover(str(tree(tmp_path, files)))
    assert found == {"unified": f"{tmp_path}/sys/fs/cgroup/inner"}


@pytest.mark.parametrize(
    ("milli", "weight", "shares"),
    [(1, 1, 2), (500, 50, 512), (1000, 100, 1024), (10**9, 10_000, 262_144)],
)
def test_shares_of_cpu(milli: int, weight: int, shares: int) -> None:
    assert (cgroups.cpu_weight(milli), cgroups.cpu_shares(milli)) == (weight, shares)


def test_systemd_is_asked_for_a_delegated_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "systemd-run").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    name = f"{cgroups.token_of('/r')}-{os.getpid()}"
    rest = ["--scope", "--quiet", "--collect", f"--unit={name}", "--slice=muster.slice",
            "--property=Delegate=yes", "--"]  # fmt: skip
    assert keeper.scope("auto", "/r", tmp_path, 0) == ["systemd-run", *rest]
    assert keeper.scope("systemd", "/r", tmp_path, 1000) == ["systemd-run", "--user", *rest]
    assert keeper.scope("cgroup", "/r", tmp_path, 0) == []
    assert keeper.scope("auto", "/r", tmp_path / "elsewhere", 0) == []

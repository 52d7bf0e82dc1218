"""What is asked of control groups, on trees of plain files; the kernel's part is in integration."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from agents.isolation import attempt_cgroups, cgroups
from agents.supervisor import client, orders, task_isolation
from tests.unit.agents.host.test_host_info import tree

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


def take(made: cgroups.Tree, limits: dict[str, object]) -> attempt_cgroups.AttemptCgroup:
    """The groups of an attempt that bears its own name."""
    return attempt_cgroups.CgroupPool(made, 1024).take("a.1", limits, keep=False)


def said(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir() if p.is_file()}


def test_version_2_is_asked_for_all_limits(tmp_path: Path) -> None:
    tree_of = made(tmp_path, V2, kill="cgroup.kill")
    base = Path(tree_of.bases["unified"])
    assert tree_of.facts() == {
        "kind": "cgroup-v2", "enforces": ["memory", "cpu", "cpuset", "pids"],
        "kills": "cgroup.kill", "problems": [], "path": f"{base}/run",
    }  # fmt: skip
    assert base.parent == tmp_path / f"sys/fs/cgroup{SCOPE}"
    for folder in (base.parent, base, base / "run"):
        assert said(folder)["cgroup.subtree_control"] == "+memory +cpu +cpuset +pids"
    attempt = take(tree_of, LIMITS)
    group = base / "run/a.1"
    assert attempt.folders == {"unified": str(group)}
    assert said(group) == {"cpu.weight": "250", "pids.max": "100", "cpuset.cpus": "2-3"}
    attempt.enter()
    assert said(group)["cgroup.procs"] == "0"
    assert attempt.bound(LIMITS)
    assert said(group)["memory.max"] == str(2**30)
    assert said(group)["memory.swap.max"] == "0"
    assert said(group)["memory.oom.group"] == "1"
    attempt.kill()
    assert said(group)["cgroup.kill"] == "1"
    (group / "memory.events").write_text("low 0\noom 2\noom_kill 3\noom_group_kill 1\n")
    (group / "memory.peak").write_text("4096\n")
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert attempt.outcome() == {
        "oom_kills": 3, "max_memory_bytes": 4096, "cpu_s": 2.5,
    }  # fmt: skip


def test_controllers_that_are_not_handed_down_are_not_promised(tmp_path: Path) -> None:
    (tmp_path / f"sys/fs/cgroup{SCOPE}/cgroup.subtree_control").mkdir(parents=True)
    tree_of = made(tmp_path, V2, kill="cgroup.kill")
    assert (tree_of.kind, tree_of.enforced) == ("cgroup-v2", [])
    assert "memory cpu cpuset pids" in tree_of.problems[0]
    attempt = take(tree_of, LIMITS)
    assert list(attempt.folders) == ["unified"]
    assert attempt.bound(LIMITS)
    assert said(Path(tree_of.bases["unified"]) / "run/a.1") == {}


def test_an_old_kernel_of_version_2_is_frozen_and_killed(tmp_path: Path) -> None:
    tree_of = made(tmp_path, V2, kill="cgroup.freeze")
    assert tree_of.kills_by == "cgroup.freeze"
    attempt = take(tree_of, {})
    group = Path(tree_of.bases["unified"]) / "run/a.1"
    attempt.kill()
    assert said(group)["cgroup.freeze"] == "0"  # let go again when all have their signal


def version_1(*names: str) -> dict[str, str]:
    """A machine with hierarchies of version 1 and no tree of version 2."""
    mounts = "".join(
        f"3{i} 20 0:2{i} / /sys/fs/cgroup/{n} rw - cgroup cgroup rw,{n}\n"
        for i, n in enumerate(names)
    )
    return {
        "proc/self/cgroup": "".join(f"{i}:{n}:/job\n" for i, n in enumerate(names)),
        "proc/self/mountinfo": mounts,
        "sys/fs/cgroup/cpuset/job/cpuset.cpus": "0-7\n",
        "sys/fs/cgroup/cpuset/job/cpuset.mems": "0-1\n",
    } | {f"sys/fs/cgroup/{n}/job/cgroup.procs": "" for n in names}


USED = ("memory", "cpu,cpuacct", "cpuset", "devices", "pids", "freezer")


def test_version_1_without_a_tree_of_version_2_uses_the_freezer(tmp_path: Path) -> None:
    tree_of = made(tmp_path, version_1(*USED), kill="freezer.state")
    assert tree_of.facts()["enforces"] == ["memory", "cpu", "cpuset", "devices", "pids"]
    assert tree_of.kills_by == "freezer"
    attempt = take(tree_of, LIMITS)
    attempt.bound(LIMITS)
    told = {hierarchy: said(Path(folder)) for hierarchy, folder in attempt.folders.items()}
    assert told == {
        "memory": {"memory.limit_in_bytes": str(2**30), "memory.memsw.limit_in_bytes": str(2**30)},
        "cpu": {"cpu.shares": "2560"},
        "cpuset": {"cpuset.cpus": "2-3", "cpuset.mems": "0-1"},
        "devices": {"devices.deny": "c 195:0 rwm"},
        "pids": {"pids.max": "100"},
        "freezer": {},
    }
    attempt.kill()
    assert said(Path(tree_of.bases["freezer"]) / "run/a.1")["freezer.state"] == "THAWED"


def test_the_end_of_a_container_leaves_room_for_the_next_task(tmp_path: Path) -> None:
    """Its runtime makes groups in all hierarchies, of which some hold no other attempt."""
    tree(tmp_path, version_1(*USED, "blkio"))
    tree_of = cgroups.Tree("/root-of-node", cgroups.discover(str(tmp_path)), str(tmp_path))
    attempt = take(tree_of, LIMITS)
    runs = {
        mount: Path(f"{mount}/job/{tree_of.token}/run") for mount in cgroups.mounts(str(tmp_path))
    }
    for run in runs.values():
        (run / "a.1/of-the-runtime").mkdir(parents=True, exist_ok=True)
    for folder in attempt.folders.values():
        for file in Path(folder).iterdir():
            file.unlink() if file.is_file() else None  # a group goes with its files
    tree_of.drop_elsewhere("a.1")
    assert [mount.rpartition("/")[2] for mount, run in runs.items() if not run.exists()] == [
        "blkio"
    ]
    assert not [run for run in runs.values() if (run / "a.1").exists()]
    Path(tree_of.bases["devices"], "run").rmdir()
    assert take(tree_of, LIMITS).folders == attempt.folders


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
    assert (attempt_cgroups.cpu_weight(milli), attempt_cgroups.cpu_shares(milli)) == (
        weight,
        shares,
    )


def test_systemd_is_asked_for_a_delegated_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "systemd-run").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    name = f"{cgroups.token_of('/r')}-{os.getpid()}"
    rest = ["--scope", "--quiet", "--collect", f"--unit={name}", "--slice=muster.slice",
            "--property=Delegate=yes", "--"]  # fmt: skip
    assert client.scope("auto", "/r", tmp_path, 0) == ["systemd-run", *rest]
    assert client.scope("systemd", "/r", tmp_path, 1000) == ["systemd-run", "--user", *rest]
    assert client.scope("cgroup", "/r", tmp_path, 0) == []
    assert client.scope("auto", "/r", tmp_path / "elsewhere", 0) == []


HYBRID = ("memory", "cpu", "pids")


@pytest.fixture
def hybrid(tmp_path: Path) -> cgroups.Tree:
    """Version 1 with an empty tree of version 2 beside it, as many machines have them."""
    mounts = "".join(
        f"3{i} 20 0:2{i} / /sys/fs/cgroup/{n} rw - cgroup cgroup rw,{n}\n"
        for i, n in enumerate(HYBRID)
    )
    files = {
        "proc/self/cgroup": "".join(f"{i + 1}:{n}:/\n" for i, n in enumerate(HYBRID)) + "0::/\n",
        "proc/self/mountinfo": mounts
        + "39 20 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/unified/cgroup.controllers": "\n",
    } | {f"sys/fs/cgroup/{n}/cgroup.procs": "" for n in HYBRID}
    return made(tmp_path, files, kill="cgroup.kill")


def kernel(group: attempt_cgroups.AttemptCgroup, **files: str) -> None:
    """What the kernel's files say after a task that did nothing special, or otherwise."""
    for hierarchy, file, text in (
        ("unified", "cgroup.events", "populated 0\nfrozen 0\n"),
        ("unified", "cpu.stat", "usage_usec 1500\n"),
        ("pids", "pids.current", "0\n"),
        ("memory", "memory.oom_control", "under_oom 0\noom_kill 0\n"),
        ("memory", "memory.max_usage_in_bytes", "262144\n"),
        ("memory", "memory.usage_in_bytes", "262144\n"),
    ):
        if hierarchy in group.folders:
            path = Path(group.folders[hierarchy]) / file
            path.write_text(files.get(file.replace(".", "_"), text))


PLAIN = {"memory_bytes": 2**28, "cpu_milli": 1000, "pids": 64}


@pytest.fixture
def files_appear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control files are there as soon as their group is, as the kernel has them."""
    make = attempt_cgroups.AttemptCgroup.make

    def with_files(group: attempt_cgroups.AttemptCgroup) -> None:
        make(group)
        for hierarchy, folder in group.folders.items():
            names = {
                "unified": ["cgroup.procs"], "cpu": ["tasks", "cpu.shares"],
                "pids": ["tasks", "pids.max"],
                "memory": ["tasks", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
            }[hierarchy]  # fmt: skip
            for name in names:
                (Path(folder) / name).touch()
        kernel(group)

    monkeypatch.setattr(attempt_cgroups.AttemptCgroup, "make", with_files)


@pytest.mark.usefixtures("files_appear")
def test_groups_that_were_left_as_they_were_found_are_another_attempts_next(
    hybrid: cgroups.Tree,
) -> None:
    pool = attempt_cgroups.CgroupPool(hybrid, 1024)
    first = pool.take("a.1", PLAIN, keep=True)
    assert sorted(first.folders) == ["cpu", "memory", "pids", "unified"]
    assert first.bound(PLAIN)
    kernel(first)
    assert first.outcome() == {"oom_kills": 0, "max_memory_bytes": 262144, "cpu_s": 0.0015}
    pool.give_back(first, 10.0)
    told = said(Path(first.folders["memory"]))
    assert told["memory.limit_in_bytes"].endswith("-1")  # for whoever goes in next
    assert told["memory.max_usage_in_bytes"].startswith("0")
    assert pool.take("a.2", {"cpu_milli": 1000}, keep=True) is not first  # it needs fewer
    second = pool.take("a.3", {**PLAIN, "pids": 65}, keep=True)
    assert second is first
    assert said(Path(second.folders["pids"]))["pids.max"].endswith("65")
    (Path(second.folders["unified"]) / "cpu.stat").write_text("usage_usec 4000\n")
    assert second.outcome()["cpu_s"] == 0.0025  # its own


DOUBTS = {
    "somebody is in there": {"cgroup_events": "populated 1\nfrozen 0\n"},
    "it is held still": {"cgroup_events": "populated 0\nfrozen 1\n"},
    "a thread is in there": {"pids_current": "1\n"},
    "killed for memory": {"memory_oom_control": "under_oom 0\noom_kill 1\n"},
    "memory is left": {"memory_max_usage_in_bytes": "9000000", "memory_usage_in_bytes": "9000000"},
}


@pytest.mark.usefixtures("files_appear")
@pytest.mark.parametrize("doubt", [*DOUBTS, "a kill", "a group in it"])
def test_groups_in_doubt_are_nobodys_next(hybrid: cgroups.Tree, doubt: str) -> None:
    pool = attempt_cgroups.CgroupPool(hybrid, 1024)
    first = pool.take("a.1", PLAIN, keep=True)
    kernel(first, **DOUBTS.get(doubt, {}))
    if doubt == "a kill":
        first.kill()
    if doubt == "a group in it":
        (Path(first.folders["cpu"]) / "below").mkdir()
    first.outcome()
    pool.give_back(first, 10.0)
    assert pool.take("a.2", PLAIN, keep=True) is not first


@pytest.mark.usefixtures("files_appear")
def test_memory_that_was_given_back_is_no_doubt(hybrid: cgroups.Tree) -> None:
    pool = attempt_cgroups.CgroupPool(hybrid, 1024)
    first = pool.take("a.1", PLAIN, keep=True)
    kernel(first, memory_max_usage_in_bytes="900000000")
    pool.give_back(first, 10.0)
    assert pool.take("a.2", PLAIN, keep=True) is first


@pytest.mark.usefixtures("files_appear")
def test_what_is_kept_has_limits_in_number_and_time(hybrid: cgroups.Tree) -> None:
    pool = attempt_cgroups.CgroupPool(hybrid, 4 * attempt_cgroups._OPEN_MAX)  # room for two
    taken = [pool.take(f"a.{i}", PLAIN, keep=True) for i in range(3)]
    assert [group.kept for group in taken] == [True, True, False]
    assert taken[2].folders["cpu"].endswith("/a.2")
    assert not pool.take("c.1", PLAIN, keep=False).kept
    for group in taken[:2]:
        pool.give_back(group, 10.0)
    assert pool.tidy(10.0 + attempt_cgroups.IDLE_S / 2) == 10.0 + attempt_cgroups.IDLE_S
    for group in taken[:2]:  # the kernel removes a group with its files
        for folder in map(Path, group.folders.values()):
            for file in folder.iterdir():
                file.unlink()
    assert pool.tidy(10.0 + attempt_cgroups.IDLE_S) is None
    assert not [f for group in taken[:2] for f in group.folders.values() if Path(f).exists()]
    again = pool.take("a.4", PLAIN, keep=True)
    assert again.kept
    assert again not in taken


def user(uid: int, gid: int, *groups_of: int) -> dict[str, Any]:
    return {"user": orders.UserIds("u", uid, gid, groups_of)}


@pytest.mark.parametrize(
    ("order", "euid", "kept"),
    [
        (user(1000, 1000, 1000), 0, True),
        ({}, 0, False),  # the agent's own user: root
        (user(0, 0), 0, False),
        (user(1000, 0), 0, False),
        (user(1000, 1000, 0), 0, False),
        (user(1000, 1000), 1000, False),
        ({}, 1000, False),
        ({**user(1000, 1000), "cleanup": {"argv": ["podman", "rm"]}}, 0, False),
    ],
)
def test_only_groups_that_their_task_could_not_change_are_kept(
    order: dict[str, Any], euid: int, *, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert task_isolation.may_keep(orders.StartOrder("a.1", **order)) is kept


@pytest.mark.usefixtures("files_appear")
@pytest.mark.parametrize("file", ["cgroup.events", "pids.current"])
def test_what_cannot_be_read_is_not_taken_for_empty(
    hybrid: cgroups.Tree, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = attempt_cgroups.CgroupPool(hybrid, 1024)
    limits = PLAIN if file == "pids.current" else {"cpu_milli": 1000}  # without a group for pids
    first = pool.take("a.1", limits, keep=True)
    kernel(first)
    real = os.open

    def full(path: str, *rest: int) -> int:
        if path.endswith(file):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        if file == "cgroup.events":
            assert not first.is_empty()
        pool.give_back(first, 10.0)
    assert pool.take("a.2", limits, keep=True) is not first


@pytest.mark.usefixtures("files_appear")
@pytest.mark.parametrize(
    ("why", "kept"),
    [(errno.EBUSY, False), (errno.EIO, False), (errno.EOPNOTSUPP, True), (errno.EINVAL, True)],
)
def test_a_limit_that_could_not_be_set_once_is_not_missing_for_ever(
    hybrid: cgroups.Tree, why: int, *, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = attempt_cgroups.CgroupPool(hybrid, 1024)
    first = pool.take("a.1", PLAIN, keep=True)
    kernel(first)
    real = attempt_cgroups.AttemptCgroup._write

    def write(group: attempt_cgroups.AttemptCgroup, path: str, text: str) -> None:
        if path.endswith("memsw.limit_in_bytes"):
            raise OSError(why, os.strerror(why))
        real(group, path, text)

    with monkeypatch.context() as patch:
        patch.setattr(attempt_cgroups.AttemptCgroup, "_write", write)
        assert first.bound(PLAIN)
    assert first.bound(PLAIN)
    swap = Path(first.folders["memory"]) / "memory.memsw.limit_in_bytes"
    assert bool(swap.read_text()) is not kept
    pool.give_back(first, 10.0)
    assert (pool.take("a.2", PLAIN, keep=True) is first) is kept


def deserted(top: Path, root: Path) -> Path:
    """What a supervisor of a folder leaves that is killed with its reaper; the kernel's files of
    such groups are not among what has to be removed."""
    base = top / cgroups.token_of(str(root))
    for name in ("keeper", "run/a.1"):
        (base / name).mkdir(parents=True)
    cgroups.mark(str(base), str(root))
    if cgroups.marked(str(base)) != str(root):
        pytest.skip("this file system keeps no marks")
    return base


def test_the_group_of_a_folder_that_is_gone_goes(tmp_path: Path) -> None:
    base = deserted(tmp_path / "groups", tmp_path / "gone")
    assert cgroups.remove_deserted(str(base))
    assert not base.exists()


def test_the_group_of_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    root = tmp_path / "there"
    base = deserted(tmp_path / "groups", root)
    root.mkdir()
    assert not cgroups.remove_deserted(str(base))
    root.rmdir()
    root.symlink_to("nowhere")
    assert not cgroups.remove_deserted(str(base))
    assert (base / "run/a.1").exists()


def test_a_group_of_which_nobody_knows_whose_it_is_stays(tmp_path: Path) -> None:
    base = deserted(tmp_path / "groups", tmp_path / "gone")
    other = base.rename(base.parent / "muster-00000000")  # what it says is not what it is called
    assert not cgroups.remove_deserted(str(other))
    plain = base.parent / cgroups.token_of("/nowhere")
    plain.mkdir()
    assert not cgroups.remove_deserted(str(plain))


@pytest.mark.parametrize("where", ["keeper", "run/a.1"])
def test_a_group_with_a_process_stays_as_it_is(tmp_path: Path, where: str) -> None:
    base = deserted(tmp_path / "groups", tmp_path / "gone")
    (base / where / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert not cgroups.remove_deserted(str(base))
    assert (base / "keeper").exists()

"""What is asked of the kernel for the groups of commands, on files that stand in for it."""

from pathlib import Path

import pytest

from agents.isolation import cgroups, command_cgroups

GIB = 2**30
V1_NAMES = ("memory", "pids", "cpu", "devices", "freezer")


def mounted(top: Path, *lines: str) -> None:
    folder = top / "proc/self"
    folder.mkdir(parents=True)
    (folder / "mountinfo").write_text("".join(f"1 1 0:1 / {line}\n" for line in lines))


def text(path: Path) -> str:
    return path.read_text().strip()


def test_groups_are_told_apart_by_what_they_are_mounted_as(tmp_path: Path) -> None:
    mounted(
        tmp_path,
        "/c rw - tmpfs tmpfs rw",
        "/c/memory rw - cgroup cgroup rw,memory",
        "/c/both rw - cgroup cgroup rw,cpu,cpuacct",
        "/c/systemd rw - cgroup cgroup rw,xattr,name=systemd",
        "/c/unified rw - cgroup2 cgroup2 rw",
    )
    named = {name: f"{tmp_path}/c/{name}/a/muster-1" for name in ("memory", "both", "unified")}
    found = cgroups.by_hierarchy(
        [*named.values(), f"{tmp_path}/c/systemd/x", "/other"], str(tmp_path)
    )
    assert found == {"memory": named["memory"], "cpu": named["both"], "unified": named["unified"]}


def test_in_version_1_a_user_has_limits_and_a_command_is_found_by_its_own_group(
    tmp_path: Path,
) -> None:
    mounted(tmp_path, *[f"/c/{name} rw - cgroup cgroup rw,{name}" for name in V1_NAMES])
    bases = [tmp_path / "c" / name / "muster-1" for name in V1_NAMES]
    for base in bases:
        (base / "run").mkdir(parents=True)
    groups = command_cgroups.CommandCgroups(lambda: map(str, bases), str(tmp_path))
    group = groups.take("7", denied=["c 195:0 rwm"])
    assert group is not None
    memory, pids, cpu, devices, freezer = (base / "commands/7" for base in bases)
    assert text(memory / "memory.limit_in_bytes") == str(8 * GIB)
    assert text(memory / "memory.memsw.limit_in_bytes") == str(8 * GIB)
    assert text(pids / "pids.max") == "4096"
    assert (text(cpu / "cpu.shares"), text(cpu / "cpu.cfs_quota_us")) == ("1024", "400000")
    assert text(devices / group.name / "devices.deny") == "c 195:0 rwm"
    assert (group.tracks, group.kills_by) == ("freezer", "freezer")
    assert set(group.entries()) == {
        f"{memory}/tasks", f"{pids}/tasks", f"{cpu}/tasks", f"{devices}/{group.name}/tasks",
        f"{freezer}/{group.name}/tasks",
    }  # fmt: skip


def test_in_version_2_limits_are_passed_on_to_the_users_group(tmp_path: Path) -> None:
    mounted(tmp_path, "/c rw - cgroup2 cgroup2 rw")
    base = tmp_path / "c/muster-1"
    user = base / "commands/7"
    user.mkdir(parents=True)
    for folder in (base, base / "commands", user):
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (base / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (base / "cgroup.kill").touch()
    group = command_cgroups.CommandCgroups(lambda: [str(base)], str(tmp_path)).take("7")
    assert group is not None
    assert text(base / "cgroup.subtree_control") == "cpu memory pids"  # as the supervisor left it
    assert text(base / "commands/cgroup.subtree_control") == "+memory +cpu +pids"
    assert not (user / "cgroup.subtree_control").exists()
    assert {name: text(user / name) for name in ("memory.max", "memory.swap.max", "pids.max")} == {
        "memory.max": str(8 * GIB), "memory.swap.max": "0", "pids.max": "4096",
    }  # fmt: skip
    assert text(user / "memory.oom.group") == "1"
    assert (text(user / "cpu.weight"), text(user / "cpu.max")) == ("100", "400000 100000")
    assert group.entries() == [f"{user}/{group.name}/cgroup.procs"]
    assert group.kills_by == "cgroup.kill"
    assert not group.has_exceeded_memory()
    (user / "memory.events").write_text("low 0\noom_kill 1\n")
    assert group.has_exceeded_memory()


def test_without_groups_there_are_none(tmp_path: Path) -> None:
    mounted(tmp_path, "/c rw - cgroup2 cgroup2 rw")
    gone = f"{tmp_path}/c/scope/muster-1"  # with the scope that it was in
    for bases in ([], [gone]):
        groups = command_cgroups.CommandCgroups(lambda bases=bases: bases, str(tmp_path))  # type: ignore[misc]
        assert groups.take("7") is None
        assert groups.clear() == []


def test_who_leaves_what_cannot_be_killed_is_refused_at_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with a file in it can't be removed, as a group with a process can't."""
    monkeypatch.setattr(command_cgroups, "EMPTY_S", 0.0)
    mounted(tmp_path, "/c rw - cgroup2 cgroup2 rw")
    base = tmp_path / "c/muster-1"
    base.mkdir(parents=True)
    groups = command_cgroups.CommandCgroups(lambda: [str(base)], str(tmp_path))
    for _ in range(command_cgroups.STAYING_MAX):
        group = groups.take("7")
        assert group is not None
        stays = base / "commands/7" / group.name / "stays"
        stays.touch()
        assert not groups.give_back(group)
    with pytest.raises(command_cgroups.CommandRefusedError, match="16 earlier commands"):
        groups.take("7")
    assert groups.take("8") is not None
    stays.unlink()
    assert groups.take("7") is not None

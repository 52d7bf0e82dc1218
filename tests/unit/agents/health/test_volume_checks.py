"""Volumes of a node: judged by the table of mounts, and told before anything starts by it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.health import checks, volume_checks
from reconciler.model.observed.storage import VolumeState, WantedVolume

TABLE = volume_checks.table(
    "/dev/vda / ext4 rw,relatime 0 0\n"
    "filer:/set /data/set nfs4 ro,hard 0 0\n"
    "old:/x /data/x nfs rw 0 0\n"
    "filer:/x /data/x nfs4 rw 0 0\n"
    "filer:/a\\040b /data/a\\040b nfs4 rw 0 0\n"
    "short line\n"
)
W = WantedVolume


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (W("v", "/data/set"), ""),
        (W("v", "/anywhere"), ""),
        (W("v", "/data/set", "nfs4"), ""),
        (W("v", "/data/set/", "nfs4", "filer:/set"), ""),
        (W("v", "/data/set", "lustre"), "/data/set is mounted as nfs4, not as lustre"),
        (
            W("v", "/data/set", source="other:/set"),
            "/data/set is mounted from filer:/set, not from other:/set",
        ),
        (W("v", "/data/set/below", "nfs4"), "/data/set/below is not mounted"),
        (W("v", "/data/set", writable=True), "/data/set is mounted read-only"),
        (W("v", "/data/set/below", writable=True), "/data/set/below is mounted read-only"),
        (W("v", "/data/settle", writable=True), ""),
        (W("v", "/data/x", "nfs4", "filer:/x", writable=True), ""),
        (W("v", "/data/a b", source="filer:/a b"), ""),
        (W("v", "/", "ext4", writable=True), ""),
    ],
)
def test_the_table_of_mounts_is_judged(wanted: WantedVolume, problem: str) -> None:
    assert volume_checks.judge(wanted, TABLE) == problem


def test_what_is_found_is_told_and_looked_at_again(tmp_path: Path) -> None:
    told: list[tuple[VolumeState, ...]] = []
    watch = volume_checks.VolumeChecker(checks.MountChecker(), told.append)
    folder = tmp_path / "data"
    watch.follow((W("a", str(tmp_path)), W("b", str(folder)), W("c", str(tmp_path), "lustre")))
    watch.turn(0)
    assert [(one.name, bool(one.problem)) for one in told[-1]] == [
        ("a", False), ("b", True), ("c", True),
    ]  # fmt: skip
    assert watch.problem(["a", "unknown"]) == ""
    assert "volume b" in watch.problem(["a", "b"])
    folder.mkdir()
    watch._known.clear()  # as when that was a while ago
    assert watch.problem(["b"]) == ""
    watch.follow((W("b", str(folder)),))
    watch.turn(0)
    assert told[-1] == (VolumeState("b"),)
    file = tmp_path / "file"
    file.touch()
    watch.follow((W("f", str(file)),))
    assert "volume f" in watch.problem(["f"])


def test_a_volume_that_is_dropped_meanwhile_keeps_nobody(tmp_path: Path) -> None:
    watch = volume_checks.VolumeChecker(checks.MountChecker(), lambda _: None)
    watch.follow((W("a", str(tmp_path / "missing")), W("b", str(tmp_path))))

    def needed() -> Iterator[str]:
        yield "b"
        watch.follow(())
        yield "a"

    assert watch.problem(needed()) == ""
    assert watch.problem(["a", "b"]) == ""


def test_a_volume_that_hangs_keeps_no_start_that_needs_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, folder, gate = tmp_path / "blocked", tmp_path / "bin", tmp_path / "gate"
    hangs.mkdir()
    folder.mkdir()
    program = folder / "stat"
    program.write_text(
        f"#!/bin/sh\ncase $2 in */blocked/*) while [ ! -e {gate} ]; do sleep 0.05; done;; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(checks, "MOUNT_S", 600.0)
    told: list[tuple[VolumeState, ...]] = []
    watch = volume_checks.VolumeChecker(checks.MountChecker(), told.append)
    watch.follow((W("a", str(hangs)), W("b", str(tmp_path))))
    turn = threading.Thread(target=watch.turn, args=(0,))
    turn.start()
    try:
        assert watch.problem(["b"]) == ""
        assert told == [(VolumeState("b"),)]
        assert turn.is_alive()
    finally:
        gate.touch()
        turn.join(60)
    assert told[-1] == (VolumeState("a"), VolumeState("b"))

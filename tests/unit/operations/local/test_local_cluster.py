"""A folder has one cluster: a second one is refused and costs the first one nothing."""

import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from reconciler.operations.client import endpoints
from reconciler.operations.local import free_ports, local_cluster
from tests.unit.desired.repositories import git


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_lock_that_leads_to_another_file_is_not_taken(tmp_path: Path, *, is_hard: bool) -> None:
    """The lock is noted in its file, which has to be no other."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".muster").mkdir()
    other = tmp_path / "other"
    other.write_text("mine")
    lock = tmp_path / ".muster" / "up.lock"
    lock.hardlink_to(other) if is_hard else lock.symlink_to(other)
    cluster = local_cluster.LocalCluster(
        local_cluster.LocalClusterOptions(folder=tmp_path, repository=str(tmp_path), branch="main")
    )
    with pytest.raises(local_cluster.ClusterError, match=r"up\.lock: "):
        cluster.start()
    cluster.stop()
    assert other.read_text() == "mine"


def test_a_second_cluster_leaves_the_first_alone(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    state = tmp_path / ".muster"
    state.mkdir()
    held = os.open(state / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    (state / "tokens").write_text("of the first\n")
    first = endpoints.Endpoint(url="http://127.0.0.1:1", token_file=str(state / "token"))
    endpoints.write(tmp_path, first)
    second = local_cluster.LocalCluster(
        local_cluster.LocalClusterOptions(folder=tmp_path, repository=str(tmp_path), branch="main")
    )
    try:
        with pytest.raises(local_cluster.ClusterError, match=r"a cluster already runs in"):
            second.start()
        second.stop()
        assert (state / "tokens").read_text() == "of the first\n"
        assert (tmp_path / endpoints.ENDPOINT_FILE).exists()
        assert not second.controller_alive
    finally:
        os.close(held)


def made(folder: Path, **options: Any) -> local_cluster.LocalCluster:
    listen = f"127.0.0.1:{free_ports.free_port()}"
    asked: dict[str, Any] = {
        "repository": str(folder),
        "listen": listen,
        "branch": "main",
        **options,
    }
    return local_cluster.LocalCluster(local_cluster.LocalClusterOptions(folder=folder, **asked))


@pytest.mark.parametrize("of", ["nowhere", "below", "missing"])
def test_what_is_no_repository_is_refused_and_nothing_is_left(tmp_path: Path, of: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    if of == "below":
        git(tmp_path, "init", "--quiet")
    told = {
        "nowhere": r"is no git repository. To fix: create one with `muster init FOLDER`",
        "below": rf"is a folder inside the repository {tmp_path}: run it there",
        "missing": r"there is no folder elsewhere",
    }[of]
    cluster = made(folder, **({"repository": "elsewhere"} if of == "missing" else {}))
    with pytest.raises(local_cluster.ClusterError, match=told):
        cluster.start()
    cluster.stop()
    assert list(folder.iterdir()) == []


def test_addresses_of_elsewhere_are_left_to_git() -> None:
    for address in ("https://git.example.org/a.git", "git@git.example.org:a.git"):
        local_cluster.require_repository(address)


@pytest.mark.parametrize("listen", ["foo", "127.0.0.1", ":80", "127.0.0.1:0", "127.0.0.1:70000"])
def test_an_address_is_checked_before_anything_is_started(tmp_path: Path, listen: str) -> None:
    git(tmp_path, "init", "--quiet")
    with pytest.raises(local_cluster.ClusterError, match="expected HOST:PORT"):
        made(tmp_path, listen=listen).start()
    assert not (tmp_path / ".muster").exists()


def test_an_address_that_is_taken_is_told_and_the_folder_let_go(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(2):
            with pytest.raises(local_cluster.ClusterError, match=f"listen on {listen}: Addr"):
                made(tmp_path, listen=listen).start()
    assert git(tmp_path, "status", "--porcelain") == "", "git would commit tokens"
    again = made(tmp_path)
    again.claim()
    (tmp_path / ".muster" / "token").write_text("secret")
    assert git(tmp_path, "status", "--porcelain") == ""
    again.stop()


def test_a_start_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    cluster = made(tmp_path)
    try:
        with pytest.raises(local_cluster.StartStoppedError):
            cluster.start(lambda: True)
        assert cluster.controller_alive
    finally:
        cluster.stop()
    assert not cluster.controller_alive


def test_a_second_up_says_nothing_of_a_start(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    first = made(tmp_path)
    first.claim()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "reconciler.cli.main", "up", "--listen", first.options.listen],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        first.stop()
    assert done.returncode == 1
    assert done.stderr.startswith(f"muster: a cluster already runs in {tmp_path}")
    assert "start" not in done.stderr.partition("start this one")[0]
    assert "stopping" not in done.stderr


def test_why_a_controller_ended_is_what_it_says_of_itself(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    cluster = made(tmp_path)
    cluster.claim()
    (cluster.state / "controller.log").write_text("of an earlier one: ERROR no room\n")
    try:
        cluster.start_controller()
        cluster.kill_controller()
        with pytest.raises(local_cluster.ClusterError, match=r"ended: killed by signal 9$"):
            cluster.wait_ready()
    finally:
        cluster.stop()


def test_what_keeps_a_cluster_from_being_ready_is_said_once(
    tmp_path: Path,
) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    told: list[str] = []
    cluster = made(tmp_path)
    try:
        ends_at = time.monotonic() + 60
        cluster.start(say=told.append)
        cluster.keep(lambda: bool(told) or time.monotonic() > ends_at, told.append)
    finally:
        cluster.stop()
    (line,) = told
    assert line.startswith("not all of what git says is in force: ")

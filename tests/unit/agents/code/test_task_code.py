"""Folders of code are ready before a start, and go if nothing starts."""

import hashlib
import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.code import task_code
from agents.deletion import deleter
from agents.host import disk_space
from agents.isolation import user_commands
from agents.settings import AgentSettings
from agents.tasks import task_users
from agents.tasks.node_context import UnstartableError
from reconciler.model.observed import job_code
from reconciler.model.protocol.agent_messages import TaskTemplate
from tests.unit.agents.code import test_pack_cache

USER = task_users.TaskUser("u", os.geteuid(), os.getegid(), "/", switch=False)


@pytest.fixture
def server() -> Iterator[test_pack_cache.PackServer]:
    with test_pack_cache.PackServer() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def code_of(root: Path, server: test_pack_cache.PackServer) -> task_code.TaskCode:
    settings = AgentSettings(
        name="n", server=f"http://127.0.0.1:{server.server_port}", root=root, token_file=None
    )
    made = task_code.TaskCode(root, settings, user_commands.UserCommands(), deleter.Deleter())
    made.is_taken = True
    return made


def pack(data: bytes = b"code") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo("a.py")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def outcome(code: task_code.TaskCode, data: bytes, path: str = "") -> Any:
    """Wait for the code of attempt ``a``. Return its problem; empty if it is there."""
    over, told = threading.Event(), list[Any]()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    template = TaskTemplate("j", 1, "g", code=job_code.JobCode(digest, folder=path))

    def resume(problem: Any = "", _: Any = None) -> bool:
        told.append(problem)
        over.set()
        return True

    code.wait("a", template, USER).begin(resume)
    assert over.wait(60)
    return told[0]


def test_a_folder_is_ready_for_the_supervisor(
    tmp_path: Path, server: test_pack_cache.PackServer
) -> None:
    data = server.packs["a"] = pack()
    assert outcome(code_of(tmp_path, server), data) == ""
    ready = tmp_path / "code" / "ready" / "a"
    assert (ready / "a.py").read_text() == "code"
    assert ready.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("data", "path", "told"),
    [
        (b"no tar at all" * 100, "", "code: the pack can't be read"),
        (pack(), "part", "code: the code has no folder part"),
    ],
)
def test_why_there_is_no_code_is_told_and_nothing_stays(
    tmp_path: Path, server: test_pack_cache.PackServer, data: bytes, path: str, told: str
) -> None:
    server.packs["a"] = data
    problem = outcome(code_of(tmp_path, server), data, path)
    assert isinstance(problem, UnstartableError)
    assert told in str(problem)
    assert list((tmp_path / "code" / "ready").iterdir()) == []


def test_a_start_that_is_stopped_waits_no_more(
    tmp_path: Path, server: test_pack_cache.PackServer
) -> None:
    server.packs["a"], server.failures = pack(), 10**6
    code = code_of(tmp_path, server)
    over = threading.Event()
    digest = f"sha256:{hashlib.sha256(pack()).hexdigest()}"
    template = TaskTemplate("j", 1, "g", code=job_code.JobCode(digest))
    wait = code.wait("a", template, USER)

    def resume(*_: Any) -> bool:
        over.set()
        return False

    wait.begin(resume)
    wait.cancel("a")
    assert over.wait(60)
    assert not (tmp_path / "code" / "ready" / "a").exists()


def test_a_start_that_begins_again_fills_its_folder_once_the_other_is_over(
    tmp_path: Path, server: test_pack_cache.PackServer
) -> None:
    """As when the supervisor was lost meanwhile: what the first one leaves is not in the way."""
    data = server.packs["a"] = pack()
    server.failures = 2
    code = code_of(tmp_path, server)
    over = threading.Event()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    first = code.wait("a", TaskTemplate("j", 1, "g", code=job_code.JobCode(digest)), USER)

    def resume(*_: Any) -> bool:
        over.set()
        return True

    first.begin(resume)
    assert outcome(code, data) == ""
    assert over.wait(60)
    assert (tmp_path / "code" / "ready" / "a" / "a.py").read_text() == "code"


def test_folders_that_an_earlier_agent_has_left_go(
    tmp_path: Path, server: test_pack_cache.PackServer
) -> None:
    code_of(tmp_path, server)
    (tmp_path / "code" / "ready" / "old").mkdir()
    code_of(tmp_path, server)
    assert list((tmp_path / "code" / "ready").iterdir()) == []
    (gone,) = (tmp_path / "code" / "trash").iterdir()
    assert gone.name.startswith("old@")


def test_a_supervisor_that_would_start_it_without_is_not_asked(
    tmp_path: Path, server: test_pack_cache.PackServer
) -> None:
    code = code_of(tmp_path, server)
    code.is_taken = False
    with pytest.raises(UnstartableError, match="of an older version"):
        code.wait("a", TaskTemplate("j", 1, "g"), USER)


@pytest.mark.parametrize("size_mib", [2, 5], ids=["for the pack", "for what it holds"])
def test_a_disk_without_room_is_the_nodes_fault(
    tmp_path: Path, server: test_pack_cache.PackServer, size_mib: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(root)]
    if subprocess.run(mount, capture_output=True, check=False, timeout=60).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        data = server.packs["a"] = pack(b"x" * (3 * 2**20))
        problem = outcome(code_of(root, server), data)
        assert isinstance(problem, disk_space.FullDiskError)
        assert "No space left on device" in str(problem)
        assert list((root / "code" / "ready").iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True, timeout=60)

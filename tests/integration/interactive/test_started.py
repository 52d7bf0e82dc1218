"""What the supervisor starts for a person has the task's place and rights, and no more."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.interactive import supervisor_link
from reconciler.model.state.states import AttemptState
from tests.integration.agents import supervised
from tests.integration.interactive import people

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
LOOK = (
    "id -u; id -G; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ls /proc/self/fd | wc -l; "
    "readlink /proc/self/ns/mnt /proc/self/ns/ipc; cat /proc/self/oom_score_adj; pwd"
)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[supervised.Bed]:
    with supervised.made_in(tmp_path) as made:
        yield made


async def _run(bed: supervised.Bed, attempt: str, argv: list[str], **more: Any) -> tuple[str, Any]:
    """What a command writes, and how it ends."""
    link = supervisor_link.SupervisorLink(bed.root)
    request = {"op": "exec", "attempt": attempt, "session": "5e55", "argv": argv, **more}
    try:
        handles = await link.ask(request)
        said = b""
        if len(handles) == 3:
            while piece := await asyncio.to_thread(os.read, handles[1], 65_536):
                said += piece
        ended = await link.end()
        supervisor_link.close_all(handles)
    finally:
        link.close()
    return said.decode(), ended


def _start(bed: supervised.Bed, **order: Any) -> int:
    bed.start("a.1", "sleep 600", user="nobody", **order)
    bed.until("a.1", AttemptState.RUNNING)
    return bed.supervisor.pids["a.1"]


def test_a_command_has_the_rights_of_its_task_and_no_more(bed: supervised.Bed) -> None:
    folder = bed.root / "attempts" / "a.1" / "work"
    pid = _start(bed, privileges="restricted", private={"shm_bytes": 0, "ipc": ""})
    said, ended = asyncio.run(_run(bed, "a.1", ["sh", "-c", LOOK]))
    assert ended == {"exit": 0}
    uid, groups, bound, effective, gains, files, mounts, ipc, score, where = said.splitlines()
    assert (uid, groups) == ("65534", "65534")
    words = [line.split() for line in (bound, effective, gains)]
    restricts = bed.supervisor.hello["isolation"]["restricts"]
    values = {name.rstrip(":"): value for name, value in words}
    assert int(values["CapEff"], 16) == 0
    assert (int(values["CapBnd"], 16) == 0) is ("capabilities" in restricts)
    assert (values["NoNewPrivs"] == "1") is ("no-new-privileges" in restricts)
    assert files == "4"  # its three, and the folder that is listed
    if bed.supervisor.hello["isolation"].get("views"):
        assert mounts == str(Path(f"/proc/{pid}/ns/mnt").readlink())
        assert ipc == str(Path(f"/proc/{pid}/ns/ipc").readlink())
        assert mounts != str(Path("/proc/self/ns/mnt").readlink())
    assert score == "1000"
    assert where == str(folder)


def test_namespaces_that_a_task_made_are_not_entered(bed: supervised.Bed) -> None:
    if not bed.supervisor.hello["isolation"].get("views"):
        pytest.skip("no mount namespaces here")
    bed.start("a.1", "exec unshare -Urm sleep 600", user="nobody", private={"shm_bytes": 0})
    bed.until("a.1", AttemptState.RUNNING)
    pid, own = bed.supervisor.pids["a.1"], str(Path("/proc/self/ns/user").readlink())
    try:
        people.until(lambda: str(Path(f"/proc/{pid}/ns/user").readlink()) != own, "its namespace")
    except (AssertionError, FileNotFoundError):
        pytest.skip("no user namespaces here")
    with pytest.raises(supervisor_link.StartRefusedError, match="left the task's namespaces"):
        asyncio.run(_run(bed, "a.1", ["true"]))


def test_a_task_that_is_not_there_has_no_commands(bed: supervised.Bed) -> None:
    with pytest.raises(supervisor_link.StartRefusedError, match="does not run any more"):
        asyncio.run(_run(bed, "a.9", ["true"]))


def test_what_is_no_request_hurts_nobody(bed: supervised.Bed) -> None:
    _start(bed)
    for request in ({"op": "fly"}, {"op": "exec", "attempt": "a.1", "session": "../x"}):

        async def ask(wrong: dict[str, Any] = request) -> None:
            link = supervisor_link.SupervisorLink(bed.root)
            with contextlib.closing(link):
                await link.ask(wrong)

        with pytest.raises(supervisor_link.StartRefusedError):
            asyncio.run(ask())
    assert asyncio.run(_run(bed, "a.1", ["sh", "-c", "echo well"])) == ("well\n", {"exit": 0})


def test_a_supervisor_that_dies_leaves_nothing_of_a_session(bed: supervised.Bed) -> None:
    _start(bed)

    async def hold() -> None:
        link = supervisor_link.SupervisorLink(bed.root)
        script = "t=33; exec sleep ${t}01.5"
        argv = ["sh", "-c", script]
        request = {"op": "exec", "attempt": "a.1", "session": "a5", "argv": argv}
        handles = await link.ask(request)
        await asyncio.to_thread(people.until, lambda: people.marked("3301.5"), "the command")
        bed.kill_supervisor()
        assert await link.end() == {}
        link.close()
        supervisor_link.close_all(handles)

    asyncio.run(hold())
    people.until(lambda: not people.marked("3301.5"), "its end")
    bed.meet()


def test_a_session_ends_when_its_connection_does(bed: supervised.Bed) -> None:
    _start(bed)

    async def hold() -> None:
        link = supervisor_link.SupervisorLink(bed.root)
        script = "trap '' HUP; t=33; setsid sleep ${t}02.5 & sleep ${t}02.5"
        argv = ["sh", "-c", script]
        request = {"op": "exec", "attempt": "a.1", "session": "a6", "argv": argv, "size": [5, 5]}
        handles = await link.ask(request)
        await asyncio.to_thread(people.until, lambda: len(people.marked("3302.5")) == 2, "both")
        await link.signal(signal.SIGCONT)
        link.close()
        supervisor_link.close_all(handles)

    asyncio.run(hold())
    people.until(lambda: not people.marked("3302.5"), "its end")
    people.until(lambda: not _groups_of_sessions(bed), "the end of its control group")


def _groups_of_sessions(bed: supervised.Bed) -> list[Path]:
    return [one for base in bed.bases() for one in Path(base).glob("run/*/session-*")]

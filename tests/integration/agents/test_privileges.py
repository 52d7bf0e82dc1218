"""Tasks have no more rights than their user, gain none, and still do what jobs do."""

import os
import shutil
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.isolation import system_call_filter
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import EndReason
from tests.integration.agents import supervised
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller
from tests.integration.agents.supervised import Bed

PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
USER = "games"
#: What the kernel says of a process that is restricted, and is not root.
RESTRICTED = {"NoNewPrivs": "1", "Seccomp": "2", "CapBnd": "0" * 16, "CapEff": "0" * 16}
STATUS = "grep -E '^(NoNewPrivs|Seccomp|CapBnd|CapEff):' /proc/self/status"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    if os.geteuid() != 0:
        pytest.skip("only root can change users")
    with supervised.made_in(tmp_path) as made:
        yield made


def restricted(bed: Bed, script: str, privileges: str = "restricted") -> str:
    """What a restricted task of a user writes, to its end in order."""
    name = f"r.{len(bed.reports)}"
    bed.start(name, script, user=USER, privileges=privileges)
    end = bed.ended(name)
    wrong = (bed.root / f"logs/{name}.stderr").read_text()
    assert (end.end_reason, end.exit_code) == (EndReason.EXITED, 0), (end.message, wrong)
    return bed.output(name)


def program(bed: Bed, text: str) -> str:
    """A Python program that any user's task can run, as a command line."""
    path = bed.root / f"program-{len(list(bed.root.glob('program-*')))}.py"
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)
    return f"{PYTHON} {path}"


def facts(text: str) -> dict[str, str]:
    """Lines of the kernel's status of a process, by name."""
    return {line.split(":")[0]: line.split(":")[1].strip() for line in text.splitlines()}


def test_a_task_has_no_capability_and_is_filtered(bed: Bed) -> None:
    assert facts(restricted(bed, STATUS)) == RESTRICTED
    free = facts(restricted(bed, STATUS, ""))
    assert (free["NoNewPrivs"], free["Seccomp"]) == ("0", "0")


def test_setuid_gains_nothing(bed: Bed) -> None:
    """Neither by the setuid bit nor by that of a group."""
    tool = bed.root / "id"
    shutil.copy("/usr/bin/id", tool)
    tool.chmod(0o6755)
    assert restricted(bed, f"{tool} -u; {tool} -g", "").split() == ["0", "0"]
    assert "0" not in restricted(bed, f"{tool} -u; {tool} -g").split()


def test_calls_that_no_job_needs_are_denied(bed: Bed) -> None:
    denied = system_call_filter.ARCHITECTURES[os.uname().machine].denied
    check = program(
        bed,
        f"""
        import ctypes, errno
        call = ctypes.CDLL(None, use_errno=True).syscall
        for name, number in {denied!r}.items():
            ctypes.set_errno(0)
            assert call(number, 0, 0, 0, 0, 0, 0) == -1, name
            assert ctypes.get_errno() == errno.EPERM, (name, errno.errorcode[ctypes.get_errno()])
        print("denied")
        """,
    )
    assert restricted(bed, check) == "denied\n"


def test_what_jobs_do_works(bed: Bed) -> None:
    """Processes, threads, shared memory, sockets, code that is written and run, clocks."""
    check = program(
        bed,
        """
        import concurrent.futures, mmap, multiprocessing, os, select, socket, time
        from multiprocessing import shared_memory

        def square(number):
            return number * number

        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    assert pool.map(square, range(4)) == [0, 1, 4, 9]
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                assert list(pool.map(square, range(4))) == [0, 1, 4, 9]
            segment = shared_memory.SharedMemory(create=True, size=4096)
            segment.close()
            segment.unlink()
            mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
            for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
                socket.socket(family).close()
            os.close(os.memfd_create("x"))
            os.sched_setaffinity(0, os.sched_getaffinity(0))
            os.nice(1)
            select.epoll().close()
            os.eventfd(0)
            time.clock_gettime(time.CLOCK_REALTIME)
            print("works")
        """,
    )
    assert restricted(bed, check) == "works\n"


def test_a_task_reads_and_traces_its_own_processes(bed: Bed) -> None:
    """As MPI, CUDA, debuggers and profilers do."""
    check = program(
        bed,
        """
        import ctypes, os, signal
        libc = ctypes.CDLL(None, use_errno=True)
        class Piece(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        text = ctypes.create_string_buffer(b"before")
        read, write = os.pipe()
        child = os.fork()
        if not child:
            text.value = b"within"
            os.write(write, b"x")
            signal.pause()
        os.read(read, 1)
        mine = ctypes.create_string_buffer(7)
        local = Piece(ctypes.addressof(mine), 7)
        remote = Piece(ctypes.addressof(text), 7)
        found = libc.process_vm_readv(child, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        assert found == 7 and mine.value == b"within", (found, ctypes.get_errno())
        assert libc.ptrace(0x4206, child, None, None) == 0, ctypes.get_errno()  # PTRACE_SEIZE
        os.kill(child, 9)
        os.waitpid(child, 0)
        print("read")
        """,
    )
    assert restricted(bed, check) == "read\n"
    if shutil.which("gdb", path="/usr/bin"):
        assert "exited normally" in restricted(bed, "gdb -nx -batch -ex run /bin/true 2>&1")


def test_a_user_namespace_of_its_own_is_a_tasks_to_make(bed: Bed) -> None:
    """Apptainer, Enroot and bubblewrap start containers by it. A node's own setting forbids it."""
    script = "unshare --user --map-root-user --mount sh -c 'mount -t tmpfs x /mnt && id -u'"
    assert restricted(bed, script) == "0\n"


def test_services_of_its_user_are_not_there(bed: Bed) -> None:
    """Through them a task starts what outlives it."""
    services = bed.root / "services"
    services.mkdir()
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(os.path.relpath(services / "bus"))
        assert restricted(bed, f"ls {services}") == "bus\n"
        bed.start("a.1", f"ls -A {services}; touch {services}/x 2>/dev/null || echo no",
                  user=USER, private={"hides": [str(services), "/nowhere"]})  # fmt: skip
        assert bed.ended("a.1").exit_code == 0
        assert bed.output("a.1") == "no\n"


@needs_root
def test_a_pool_decides_and_root_is_root(everybodys: Node, controller: Controller) -> None:
    node = everybodys
    node.start()
    templates = {
        "default.1": TaskTemplate("j", 1, "g", script=STATUS, user=USER),
        "free.1": TaskTemplate("j", 1, "g", script=STATUS, user=USER, privileges="unrestricted"),
        "root.1": TaskTemplate("j", 1, "g", script=STATUS),
    }
    found = {}
    for name, template in templates.items():
        controller.assign(name, template=template)
        assert controller.ended(name).exit_code == 0
        found[name] = facts((node.root / f"logs/{name}.stdout").read_text())
    assert found["default.1"] == RESTRICTED
    assert found["free.1"]["NoNewPrivs"] == found["root.1"]["NoNewPrivs"] == "0"
    assert int(found["root.1"]["CapEff"], 16)
    assert controller.inventory is not None
    assert controller.inventory.isolation is not None
    assert controller.inventory.isolation.restricts == (
        "capabilities", "no-new-privileges", "system-calls",
    )  # fmt: skip


@needs_root
def test_an_agent_that_is_not_root_restricts_too(everybodys: Node, controller: Controller) -> None:
    node = everybodys
    node.root.chmod(0o755)
    shutil.chown(node.root, "nobody")
    shutil.chown(node.root / "crash", "nobody")
    node.start_as("nobody")
    controller.assign("a.1", template=TaskTemplate("j", 1, "g", script=STATUS))
    assert controller.ended("a.1").exit_code == 0
    found = facts((node.root / "logs/a.1.stdout").read_text())
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")

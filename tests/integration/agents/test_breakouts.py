"""Tasks that do what they can to get at others, to grow and to stay, as users and as root."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.host import processes
from agents.isolation import cgroups
from reconciler.model.state.states import AttemptState, EndReason
from tests import started
from tests.integration.agents import supervised
from tests.integration.agents.supervised import Bed, alive, wait

KIND, CONTROLLERS = cgroups.offers(cgroups.discover())
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users"),
    pytest.mark.skipif(KIND == "process-group", reason="no control groups can be made here"),
]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with supervised.made_in(tmp_path) as made:
        yield made


def program(bed: Bed, text: str) -> str:
    """A Python program that any user's task can run, as a command line."""
    path = bed.root / f"program-{len(list(bed.root.glob('program-*')))}.py"
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)
    return f"{PYTHON} -IS {path}"


#: Hides by all there is: its own sessions, no environment, no open file, deaf to signals; forks
#: again before each look; leaves its groups where it may.
HIDES = """
    import os, signal, sys, time
    names = ("TERM", "HUP", "INT", "QUIT", "USR1", "USR2", "CHLD", "PIPE")
    def vanish():
        os.setsid()
        for name in names:
            signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
        for line in open("/proc/self/cgroup").read().splitlines():
            number, kinds, path = line.split(":", 2)
            for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", f"/sys/fs/cgroup/{kinds}"):
                above = path
                while above not in ("", "/"):
                    above = os.path.dirname(above)
                    try:
                        open(f"{mount}{above}/cgroup.procs", "w").write("0")
                    except OSError:
                        continue
    where = sys.argv[1]
    if os.fork() == 0:
        vanish()
        if os.fork():
            os._exit(0)
        vanish()
        if os.fork():
            os._exit(0)
        with open(where, "w") as stream:
            stream.write(f"{os.getpid()} ")
        for handle in range(64):
            try:
                os.close(handle)
            except OSError:
                pass
        os.execve(sys.executable, [sys.executable, "-ISc", "import time, signal\\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\ntime.sleep(998811)"], {})
    while not os.path.exists(where) or not open(where).read().endswith(" "):
        time.sleep(0.01)
"""


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("user", ["nobody", None], ids=["user", "root"])
def test_what_hides_by_all_there_is_ends_with_its_task(
    bed: Bed, user: str | None, *, beside: bool
) -> None:
    if beside:
        bed.start("other", "exec sleep 999", user="daemon")
        bed.until("other", AttemptState.RUNNING)
    report = bed.run(f"{program(bed, HIDES)} $PWD/pid", user=user)
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 0)
    pid = int((bed.root / f"attempts/{report.id}/work/pid").read_text())
    wait(lambda: not alive(pid), "the end of what hid")
    if beside:
        assert alive(bed.supervisor.pids["other"])


BOMB = """
    import os, time
    until = time.monotonic() + 600
    while time.monotonic() < until:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            pass
"""


@pytest.mark.skipif("pids" not in CONTROLLERS, reason="no controller pids here")
def test_a_fork_bomb_in_sessions_of_its_own_is_held_and_stopped(bed: Bed) -> None:
    most = 40
    bed.start("bomb", f"exec {program(bed, BOMB)}", user="nobody", limits={"pids": most})
    bed.until("bomb", AttemptState.RUNNING)
    (run,) = [one for one in bed.groups() if "/pids/" in one]
    held = Path(run) / "pids.current"
    wait(lambda: int(held.read_text()) == most, "as many as there may be")
    assert bed.run("sh -c 'echo up'", user="daemon").exit_code == 0  # others start all the same
    assert int(held.read_text()) <= most
    bed.supervisor.send([{"op": "stop", "id": "bomb", "reason": "Cancelled", "signal": "SIGTERM",
                      "grace_s": 1}])  # fmt: skip
    assert bed.ended("bomb").end_reason is EndReason.CANCELLED
    assert not [p for p in processes.processes() if started.attempt_of(p, str(bed.root))]


#: Each says a word where it succeeds, and nothing where it doesn't.
SPY = """
    import ctypes, os, signal, sys
    pid, address, secret = int(sys.argv[1]), int(sys.argv[2], 16), sys.argv[3].encode()
    libc = ctypes.CDLL(None, use_errno=True)
    def attempt(word, what):
        try:
            if what():
                print(word)
        except (OSError, PermissionError):
            pass
    for request, word in ((16, "attached"), (0x4206, "seized")):
        attempt(word, lambda: libc.ptrace(request, pid, 0, 0) == 0)
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    def copied():
        buffer = ctypes.create_string_buffer(64)
        here = Part(ctypes.cast(buffer, ctypes.c_void_p).value, 64)
        there = Part(address, 64)
        read = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        return read > 0
    attempt("copied", copied)
    def content(name):
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read(2**16)
    for name in ("environ", "maps", "cmdline", "status", "io"):
        attempt(name, lambda: content(name))
    def memory():
        with open(f"/proc/{pid}/mem", "r+b") as stream:
            stream.seek(address)
            return stream.read(64)
    attempt("memory", memory)
    for name in ("cwd", "root", "exe"):
        attempt(name, lambda: os.readlink(f"/proc/{pid}/{name}"))
    for name in ("root/tmp", "root/dev/shm", "cwd", "fd"):
        attempt(name, lambda: os.listdir(f"/proc/{pid}/{name}"))
    for number in (0, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        attempt(f"signal {number}", lambda: os.kill(pid, number) is None)
    attempt("pidfd", lambda: os.pidfd_open(pid) and signal.pidfd_send_signal(
        os.pidfd_open(pid), signal.SIGTERM) is None)
    attempt("all", lambda: os.fork() == 0 and os.setsid() and os.kill(-1, signal.SIGTERM) and False)
    attempt("slower", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19) is None)
    attempt("limit", lambda: __import__("resource").prlimit(pid, 0))
    attempt("moved", lambda: os.sched_setaffinity(pid, {0}) is None)
    sys.stdout.flush()
"""
VICTIM = """
    import ctypes, os, time
    secret = ctypes.create_string_buffer(b"hidden-7a1-secret")
    for folder in ("/tmp", "/dev/shm"):
        open(f"{folder}/victims-own", "w").write("hidden")
    with open("address.new", "w") as stream:
        stream.write(hex(ctypes.addressof(secret)))
    os.rename("address.new", "address")
    time.sleep(998822)
"""


def victim(bed: Bed, user: str) -> tuple[int, str]:
    """A task that holds something, with views as all tasks get; its pid and where it holds it."""
    private = {
        "binds": [(f"{bed.root}/attempts/victim/tmp", "/var/tmp")],
        "shm_bytes": 2**20, "own_processes": True,
    }  # fmt: skip
    words = VICTIM.replace('"/tmp"', '"/var/tmp"')
    bed.start("victim", f"exec {program(bed, words)}", user=user, private=private)
    bed.until("victim", AttemptState.RUNNING)
    path = bed.root / "attempts/victim/work/address"
    wait(path.exists, "the other task")
    return bed.supervisor.pids["victim"], path.read_text()


@pytest.mark.parametrize("sees", [True, False], ids=["sees all processes", "sees its own"])
def test_no_way_leads_into_another_users_task(bed: Bed, *, sees: bool) -> None:
    """Also where it sees the other: by its rights, then, not by what is hidden alone."""
    pid, address = victim(bed, "daemon")
    spy = f"{program(bed, SPY)} {pid} {address} hidden-7a1"
    private = {} if sees else {"private": {"own_processes": True}}
    report = bed.run(f"{spy}; ls /var/tmp/victims-own /dev/shm/victims-own; "
                     f"cat {bed.root}/attempts/victim/tmp/victims-own; true", user="nobody",
                     **private)  # fmt: skip
    # what /proc tells of anyone to everyone; without a view of its own it sees that
    public = {"cmdline", "status", "limit", "pidfd"} if sees else set()
    said = set(bed.output(report.id).splitlines())
    assert said <= public - {"pidfd"}, said
    assert alive(pid)
    assert bed.run("true").exit_code == 0


def test_the_same_ways_lead_into_ones_own(bed: Bed) -> None:
    """So that the test above sees something: what it tries is what works where it may."""
    pid, address = victim(bed, "nobody")
    report = bed.run(f"{program(bed, SPY)} {pid} {address} x", user="nobody")
    said = set(bed.output(report.id).splitlines())
    assert {"environ", "maps", "cwd", "root", "signal 0", "root/dev/shm"} <= said


def test_a_mask_of_a_device_stays_where_it_is(bed: Bed) -> None:
    """A user takes it off neither by hand nor from a namespace of its own, nor makes the device."""
    tries = [
        "umount /dev/full", "umount -l /dev/full", "mknod $PWD/full c 1 7 && cat $PWD/full",
        "unshare -Urm sh -c 'umount /dev/full; head -c 1 /dev/full'",
        "unshare -Urm sh -c 'mknod $PWD/again c 1 7; head -c 1 $PWD/again'",
        "unshare -Urm sh -c 'mount -t devtmpfs none /mnt && head -c 1 /mnt/full'",
        "mount --bind /dev/null /dev/full", "ln -sf /dev/full full; head -c 1 full",
    ]  # fmt: skip
    script = "\n".join(f"({one}) >/dev/null 2>&1" for one in tries)
    script += "\nhead -c 1 /dev/full | wc -c; head -c 1 full 2>/dev/null | wc -c"
    script += "\nunshare -Urm sh -c 'umount -l /dev/full 2>/dev/null; head -c 1 /dev/full' | wc -c"
    report = bed.run(script, user="nobody", private={"masks": ["/dev/full"]})
    assert report.exit_code == 0
    assert bed.output(report.id).split() == ["0", "0", "0"]
    with Path("/dev/full").open("rb") as stream:
        assert stream.read(1) == b"\0"

"""What holds tasks: each promise beside an attempt to break it, with a real supervisor.

Where this machine has no control groups that can be made, or the tests are not root, what needs
them is left out.
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.host import processes
from agents.isolation import cgroups
from agents.supervisor import task_isolation
from reconciler.model.state.states import AttemptState, EndReason
from tests import started
from tests.integration import mounted
from tests.integration.agents import supervised
from tests.integration.agents.supervised import DEADLINE_S, Bed, alive, wait

KIND, CONTROLLERS = cgroups.offers(cgroups.discover())
ROOT = os.geteuid() == 0
groups = pytest.mark.skipif(KIND == "process-group", reason="no control groups can be made here")
needs_root = pytest.mark.skipif(not ROOT, reason="only root can make mount namespaces here")


def controller(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(name not in CONTROLLERS, reason=f"no controller {name} here")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with supervised.made_in(tmp_path) as made:
        yield made


#: What tasks do to stay when they are over; each writes the pid of what is to stay.
ESCAPES = {
    "background": "sleep 999 & echo $! > pid",
    "session": "setsid sh -c 'echo $$ > pid; exec sleep 999' & while [ ! -s pid ]; do :; done",
    "double fork": "( setsid sh -c 'sleep 999 & echo $! > pid' & ) ; "
    "while [ ! -s pid ]; do :; done",
    "no environment": "setsid env -i /bin/sh -c 'echo $$ > pid; exec sleep 999' >/dev/null 2>&1 "
    "</dev/null & while [ ! -s pid ]; do :; done",
    "daemon without environment": "env -i /bin/sh -c '( /usr/bin/setsid /bin/sh -c \"/bin/sleep "
    "999 & echo \\$! > pid\" & ) &' ; while [ ! -s pid ]; do :; done",
    "ignores signals": "trap '' TERM HUP INT; setsid env -i /bin/sh -c 'trap \"\" TERM HUP; "
    "echo $$ > pid; while :; do /bin/sleep 1; done' & while [ ! -s pid ]; do :; done",
}  # fmt: skip


@groups
@pytest.mark.parametrize("how", ESCAPES)
def test_nothing_outlives_its_task(bed: Bed, how: str) -> None:
    report = bed.run(ESCAPES[how])
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 0)
    pid = int((bed.root / f"attempts/{report.id}/work/pid").read_text())
    assert not alive(pid)
    assert not bed.groups()


@groups
def test_a_stranger_that_lives_beside_it_is_left_alone(bed: Bed) -> None:
    """What daemonises without an environment is killed with its own task, not with another's."""
    bed.start("a.long", ESCAPES["daemon without environment"] + "; echo ready; exec sleep 999")
    pid_file = bed.root / "attempts/a.long/work/pid"
    wait(lambda: pid_file.exists() and pid_file.read_text().strip(), "the daemon")
    bed.run("true")
    pid = int(pid_file.read_text())
    assert alive(pid)
    bed.supervisor.send([{"op": "stop", "id": "a.long", "reason": "Cancelled", "signal": "SIGTERM",
                      "grace_s": 5}])  # fmt: skip
    assert bed.ended("a.long").end_reason is EndReason.CANCELLED
    assert not alive(pid)


BORN_RUNNING = r"""
#include <unistd.h>
#include <sys/syscall.h>
int main(void) {  /* forks before anyone can look, in sessions of their own */
  for (int i = 0; i < 6; i++) {
    if (fork() == 0) { setsid(); if (fork()) _exit(0); }
  }
  char *empty[] = {0}, *argv[] = {"/bin/sleep", "998877", 0};
  if (getppid() == 1 || getsid(0) == getpid() || 1) { if (fork()) { usleep(20000); _exit(0); } }
  execve(argv[0], argv, empty);
  return 1;
}
"""


@groups
@pytest.mark.needs("gcc")
def test_what_forks_before_it_is_moved_is_moved_after_it(bed: Bed, tmp_path: Path) -> None:
    source, program = tmp_path / "born.c", tmp_path / "born"
    source.write_text(BORN_RUNNING)
    subprocess.run(["gcc", "-static", "-O1", "-o", str(program), str(source)], check=True)
    for i in range(20):
        name = f"b.{i}"
        bed.start(name, "", argv=[str(program)])
        bed.ended(name)
        left = [p for p in processes.processes() if "998877" in started.command_of(p)]
        assert not left
    assert not bed.groups()


@controller("memory")
def test_too_much_memory_is_told_apart(bed: Bed) -> None:
    limits = {"limits": {"memory_bytes": 48 * 2**20}}
    hungry = "python3 -c 'x = bytearray(400 * 2**20)'"
    report = bed.run(f"exec {hungry}", **limits)
    assert report.end_reason is EndReason.OUT_OF_MEMORY
    assert report.signal == signal.SIGKILL
    assert "its limit is 48 MiB" in report.message
    assert report.max_memory_bytes > 30 * 2**20
    # in a child, that the task gets over
    report = bed.run(f"{hungry} || true; exit 0", **limits)
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 0)
    assert "killed for memory" in report.message
    # a kill by hand is none
    report = bed.run("kill -KILL $$", **limits)
    assert (report.end_reason, report.signal) == (EndReason.EXITED, signal.SIGKILL)


@pytest.mark.skipif(KIND != "cgroup-v1", reason="groups are kept in version 1 alone")
@controller("memory")
def test_groups_are_used_again_and_hold_the_next_task_as_the_first(bed: Bed) -> None:
    small, large = {"memory_bytes": 48 * 2**20}, {"memory_bytes": 512 * 2**20}
    fills = "exec python3 -c 'x = bytearray(200 * 2**20)'"
    assert bed.run("true", limits=small).exit_code == 0
    assert not bed.kept()  # as root it could have written to the files of its group
    for _ in range(10):
        assert bed.run("true", limits=small, user="nobody").exit_code == 0
        first = bed.kept()
        assert len(first) == 1
        assert bed.run(fills, limits=large, user="nobody").exit_code == 0  # no smaller limit now
        if bed.kept() == first:
            break  # else more than a little of files that it read is charged to its group still
    assert bed.kept() == first
    assert bed.run("true", limits=large, user="nobody").exit_code == 0
    report = bed.run(fills, limits=small, user="nobody")  # and the larger one too
    assert report.end_reason is EndReason.OUT_OF_MEMORY
    assert not bed.kept()  # nobody else has a group in which something was killed
    assert bed.run("true", limits=small, user="nobody").exit_code == 0
    escaped = bed.run(ESCAPES["session"], limits=small, user="nobody")
    pid = int((bed.root / f"attempts/{escaped.id}/work/pid").read_text())
    assert not alive(pid)
    assert not bed.groups()


@pytest.mark.skipif(KIND != "cgroup-v1", reason="groups are kept in version 1 alone")
@controller("memory")
def test_a_peak_is_the_tasks_own(bed: Bed) -> None:
    limits = {"memory_bytes": 512 * 2**20}
    fills = "exec python3 -c 'x = bytearray(200 * 2**20)'"
    for _ in range(10):
        # The files that these programs read are charged to who reads them first: to a group that
        # goes, unless the kernel forgets them in between.
        bed.run("python3 -c pass", limits=limits)
        much = bed.run(fills, limits=limits, user="nobody")
        kept = bed.kept()
        if kept:
            break
    assert len(kept) == 1
    little = bed.run("true", limits=limits, user="nobody")
    # None was made for it. The one it had may be gone: of files that it was the first to read more
    # than a little can be charged to it still.
    assert bed.kept() <= kept
    assert much.max_memory_bytes > 200 * 2**20
    assert little.max_memory_bytes < 20 * 2**20


@controller("memory")
@needs_root
def test_shared_memory_counts_and_is_bounded(bed: Bed) -> None:
    order = {"limits": {"memory_bytes": 64 * 2**20}, "private": {"shm_bytes": 8 * 2**20}}
    report = bed.run(
        "head -c 20000000 /dev/zero > /dev/shm/x; echo $?; wc -c < /dev/shm/x", **order
    )
    assert report.exit_code == 0
    status, size = bed.output(report.id).split()
    assert (status, int(size)) == ("1", 8 * 2**20)


@controller("pids")
def test_a_fork_bomb_stays_small(bed: Bed) -> None:
    script = "i=0; while [ $i -lt 100 ]; do sleep 999 & i=$((i+1)); done; echo all"
    report = bed.run(script, limits={"pids": 20})
    assert report.exit_code != 0
    assert "all" not in bed.output(report.id)
    assert not bed.groups()


@controller("cpuset")
def test_a_task_stays_on_its_cores(bed: Bed) -> None:
    script = "taskset -p 0xffff $$ >/dev/null 2>&1; grep Cpus_allowed_list /proc/self/status"
    report = bed.run(script, limits={"cpus": "0"})
    assert bed.output(report.id).split() == ["Cpus_allowed_list:", "0"]


@controller("cpu")
def test_cpu_time_goes_by_what_was_asked_for(bed: Bed) -> None:
    """One core, two that want all of it: shares of 1 to 8."""
    script = "while :; do :; done"
    for name, milli in (("small", 250), ("large", 2000)):
        bed.start(name, script, limits={"cpu_milli": milli, "cpus": "0"})
        bed.until(name, AttemptState.RUNNING)
    time_of: dict[str, float] = {}
    deadline = time.monotonic() + DEADLINE_S
    while sum(time_of.values()) < 3.0:
        assert time.monotonic() < deadline
        for name in ("small", "large"):
            fields = processes.read_file(f"/proc/{bed.supervisor.pids[name]}/stat").split()
            time_of[name] = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        time.sleep(0.05)
    assert time_of["large"] > 3 * time_of["small"]


@controller("devices")
def test_devices_that_are_denied(bed: Bed) -> None:
    report = bed.run(
        "cat /proc/self/cgroup; head -c 1 /dev/full >/dev/null && exit 1; "
        "head -c 1 /dev/zero >/dev/null",
        limits={"deny_devices": ["c 1:7 rwm"]},
    )
    assert report.exit_code == 0, bed.output(report.id)


@groups
@needs_root
def test_a_user_lifts_no_limit_and_leaves_no_group(bed: Bed) -> None:
    script = """
        find /sys/fs/cgroup -type f -writable 2>/dev/null | head
        for group in $(find /sys/fs/cgroup -name cgroup.procs 2>/dev/null | head -n 500); do
            (echo $$ > $group) 2>/dev/null && echo "left for $group"
        done
        before=$(cat /proc/self/cgroup); unshare -C true 2>/dev/null && echo "a namespace"
        test "$before" = "$(cat /proc/self/cgroup)"; echo $?"""
    bed.start("a.1", script, user="nobody", limits={"memory_bytes": 2**27})
    report = bed.until("a.1", AttemptState.ENDED)
    assert report.exit_code == 0
    assert bed.output("a.1") == "0\n"


@needs_root
def test_devices_that_are_masked(bed: Bed) -> None:
    report = bed.run("test $(head -c 4 /dev/zero | wc -c) = 0", private={"masks": ["/dev/zero"]})
    assert report.exit_code == 0
    with Path("/dev/zero").open("rb") as stream:
        assert stream.read(1) == b"\0"


@needs_root
def test_temporary_folders_are_its_own(bed: Bed, tmp_path: Path) -> None:
    elsewhere = tmp_path / "not-the-machines-own"
    elsewhere.mkdir()
    places = (bed.root, elsewhere)
    before = mounted.at(*places)
    for name in ("one", "two"):
        private = {
            "binds": [(f"{bed.root}/attempts/{name}/tmp", str(elsewhere))],
            "shm_bytes": 2**20,
        }
        bed.start(name, f"ls {elsewhere} /dev/shm; echo {name} > {elsewhere}/x; "
                  "echo x > /dev/shm/muster-test", private=private)  # fmt: skip
        assert bed.ended(name).exit_code == 0
        assert sorted(bed.output(name).split()) == ["/dev/shm:", f"{elsewhere}:"]
        assert (bed.root / f"attempts/{name}/tmp/x").read_text() == f"{name}\n"
    assert not list(elsewhere.iterdir())
    assert not Path("/dev/shm/muster-test").exists()
    assert mounted.at(*places) == before


@needs_root
def test_a_view_that_cannot_be_made_is_said(bed: Bed) -> None:
    report = bed.run("true", private={"binds": [("/no/such", "/tmp")]})
    assert report.end_reason is EndReason.CHECK_FAILED
    assert report.id in bed.supervisor.node_faults
    assert "/tmp" in report.message
    assert bed.run("true").exit_code == 0  # the supervisor is where it was
    assert not bed.groups()


@needs_root
@pytest.mark.parametrize("what", ["binds", "memory"])
def test_a_view_is_not_made_through_a_link(bed: Bed, tmp_path: Path, what: str) -> None:
    for name in ("precious", "target"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "precious")
    view = {"binds": [(str(link), str(tmp_path / "target"))], "memory": str(link)}
    report = bed.run("true", private={what: view[what]})
    assert report.end_reason is EndReason.CHECK_FAILED
    assert str(link) in report.message


@needs_root
@pytest.mark.parametrize("secrets", [{}, {"token": "s3cret"}], ids=["without", "with"])
@pytest.mark.parametrize("private", [{}, {"shm_bytes": 0}], ids=["on disk", "in memory"])
def test_a_task_cannot_have_the_supervisor_delete_for_it(
    bed: Bed, tmp_path: Path, secrets: dict[str, str], private: dict[str, int]
) -> None:
    """It leaves a link to root's own files where its secrets were."""
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "id_rsa").write_text("x")
    script = (
        "cd ..; ls secrets; mv secrets was || true; touch was/more && exit 4\n"
        f"ln -s {precious} secrets; ln -s {precious} other; test -L other"
    )
    report = bed.run(script, user="nobody", secrets=secrets, private=private)
    assert report.exit_code == 0, bed.output(report.id)
    assert bed.output(report.id).split() == list(secrets)
    assert (precious / "id_rsa").exists()
    assert bed.run("true").exit_code == 0


@pytest.mark.parametrize("recorded", [True, False])
def test_secrets_of_a_dead_supervisor_go(bed: Bed, *, recorded: bool) -> None:
    bed.start("a.1", "exec sleep 999", secrets={"token": "s3cret"})
    bed.until("a.1", AttemptState.RUNNING)
    kept = bed.root / "attempts/a.1/secrets/token"
    assert kept.read_text() == "s3cret"
    bed.kill_supervisor()
    if not recorded:  # as when it dies between the start and the word of it
        (bed.root / "journal").unlink()
    bed.meet()
    assert bed.reports["a.1"].end_reason is EndReason.LOST
    assert not kept.exists()


@needs_root
def test_of_many_that_are_begun_at_once_each_is_told_its_own(bed: Bed) -> None:
    """Tasks of two users, commands that are not there, and one that is ordered twice."""
    orders = []
    for number in range(24):
        user = None if number % 7 == 3 else "nobody"
        missing = {"argv": ["nosuchcommand"]} if number % 4 == 1 else {}
        limits, private = {"memory_bytes": 2**26}, {"own_processes": True}
        orders.append(bed.order(
            f"m.{number}", f"echo {number} $(id -u)", user=user, limits=limits, private=private,
            **missing,
        ))  # fmt: skip
    orders.insert(3, bed.order("m.2", "echo again", user="nobody"))
    bed.supervisor.send(orders)
    for number in range(24):
        report = bed.ended(f"m.{number}")
        if number % 4 == 1:
            assert (report.end_reason, report.exit_code) == (EndReason.START_FAILED, 127)
            assert "'nosuchcommand' was not found" in report.message
            continue
        assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 0)
        uid = os.geteuid() if number % 7 == 3 else pwd.getpwnam("nobody").pw_uid
        assert bed.output(f"m.{number}") == f"{number} {uid}\n"
    wait(lambda: not bed.groups(), "the end of the groups")


@needs_root
def test_another_users_task_is_out_of_reach(bed: Bed) -> None:
    secret = "SECRET_WORD=hidden-7a1 exec sleep 998866"
    bed.start("victim", secret, user="daemon")
    victim = bed.until("victim", AttemptState.RUNNING)
    pid = bed.supervisor.pids["victim"]
    wait(lambda: "998866" in started.command_of(pid), "the other task")
    work = f"{bed.root}/attempts/{victim.id}/work"
    script = f"""
        kill -0 {pid} && echo signalled; kill {pid} && echo signalled
        cat /proc/{pid}/environ && echo read; ls /proc/{pid} && echo seen
        ls {work} && echo listed; cat {bed.root}/logs/victim.stdout && echo read
        ps -e -o args | grep '[9]98866' && echo listed
        true"""
    report = bed.run(script, user="nobody", private={"own_processes": True})
    assert report.exit_code == 0
    assert bed.output(report.id) == ""
    assert alive(pid)


@groups
def test_a_dead_supervisor_leaves_nothing(bed: Bed) -> None:
    """Killed by the reaper, though the environment says nothing and the session is another."""
    bed.start("a.1", ESCAPES["daemon without environment"] + "; exec sleep 999")
    pid_file = bed.root / "attempts/a.1/work/pid"
    wait(lambda: pid_file.exists() and pid_file.read_text().strip(), "the daemon")
    pid = int(pid_file.read_text())
    bed.kill_supervisor()
    wait(lambda: not alive(pid), "the reaper's work")
    bed.meet()
    assert bed.reports["a.1"].end_reason is EndReason.LOST
    assert not bed.groups()
    assert bed.run("true").exit_code == 0


@groups
@pytest.mark.skipif(shutil.which("flock") is None, reason="the reaper takes the lock by flock")
def test_a_dead_supervisor_that_nobody_follows_leaves_no_groups(bed: Bed) -> None:
    bed.start("a.1", ESCAPES["session"] + "; exec sleep 999")
    bed.until("a.1", AttemptState.RUNNING)
    bases = bed.bases()
    assert bases
    bed.kill_supervisor()
    wait(lambda: not [base for base in bases if Path(base).exists()], "the reaper's work")


@groups
def test_what_a_node_left_that_never_comes_back_goes_when_another_starts(tmp_path: Path) -> None:
    """Supervisor and reaper are killed at once, and then the folder goes."""
    gone = Bed(tmp_path / "gone", "auto")
    bases = gone.bases()
    assert bases
    (supervisor,) = processes.supervisors_of(str(gone.root))
    os.kill(supervisor, signal.SIGSTOP)  # lest it start another reaper
    for pid in set().union(*(cgroups.members(base) for base in bases)) - {supervisor}:
        os.kill(pid, signal.SIGKILL)
    gone.kill_supervisor()
    other = Bed(tmp_path / "other", "auto")
    try:
        assert [base for base in bases if Path(base).exists()], "its folder is there"
        shutil.rmtree(gone.root)
        other.kill_supervisor()
        other.meet()
        assert not [base for base in bases if Path(base).exists()]
    finally:
        other.close()
        for base in bases:
            task_isolation.abandon(base)


@groups
def test_in_order_it_leaves_nothing(bed: Bed) -> None:
    bed.run("true")
    bases = bed.bases()
    assert bases
    bed.supervisor.send([{"op": "shutdown", "reason": "Drained", "grace_s": 1}])
    wait(lambda: not processes.supervisors_of(str(bed.root)), "the end of the supervisor")
    assert not [base for base in bases if Path(base).exists()]


def test_without_groups_it_works_all_the_same(tmp_path: Path) -> None:
    made = Bed(tmp_path / "root", "process-group")
    try:
        assert made.supervisor.hello["isolation"]["kind"] == "process-group"
        assert made.run(ESCAPES["session"]).exit_code == 0
    finally:
        made.close()

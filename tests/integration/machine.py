"""A machine of its own whose first process is systemd, in namespaces over this one's file system.

The file system is this machine's, read-only; what systemd writes to is in memory; no unit is known
but those of a test, so that nothing of the machine itself is started or touched. Control groups are
below groups made for it, and go with it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

DEADLINE_S = 120.0
SYSTEMD = Path("/lib/systemd/systemd")
CGROUPS = Path("/sys/fs/cgroup")
#: What is written to in there, each in memory.
WRITTEN = ("run", "var/lib", "var/log", "var/tmp", "mnt", "dev")
SCRIPT = """\
set -e
mount --make-rprivate /
mount --rbind / "$R"
mount -o remount,bind,ro "$R"
mount -t tmpfs none "$M"
for kept in $WRITTEN; do mount -t tmpfs none "$R/$kept" -o mode=755; done
cp -a /etc "$M/etc"
cp -a "$F/units/." "$M/etc/systemd/system/"
cp -a "$F/etc/." "$M/etc/"
mount --bind "$M/etc" "$R/etc"
mount --bind "$F/mnt" "$R/mnt"
for seen in $SEEN; do
  mount --bind "$(readlink "$F/seen/$seen")" "$R/mnt/$seen"
done
mount -t proc proc "$R/proc"
mount -o remount,bind,ro "$R/sys"
mount -t tmpfs none "$R/sys/fs/cgroup" -o mode=755
mkdir "$R/sys/fs/cgroup/systemd" "$R/sys/fs/cgroup/unified"
mount -t cgroup -o none,name=systemd cgroup "$R/sys/fs/cgroup/systemd"
mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup/unified"
for device in null zero full random urandom tty; do
  touch "$R/dev/$device"; mount --bind "/dev/$device" "$R/dev/$device"
done
mkdir "$R/dev/shm" "$R/dev/pts" "$R/dev/mqueue" "$R/dev/hugepages"
mount -t tmpfs none "$R/dev/shm" -o mode=1777
mount -t devpts devpts "$R/dev/pts" -o newinstance,ptmxmode=0666
ln -s pts/ptmx "$R/dev/ptmx"
ln -s /proc/self/fd "$R/dev/fd"
# no chroot, which whoever enters the mount namespace again would not be in
cd "$R"
pivot_root . .
umount -l .
exec env -i container=muster PATH=/usr/bin:/bin:/usr/sbin:/sbin \
  "$S" --unit=empty.target --log-target=console
"""
EMPTY = "[Unit]\nDefaultDependencies=no\n"


def problem() -> str:
    """Why there can be no such machine here; empty where there can."""
    if os.geteuid() != 0:
        return "only root can make a machine in namespaces"
    if not SYSTEMD.exists() or shutil.which("systemd-run") is None:
        return "no systemd is installed here"
    if Path("/run/systemd/system").exists():
        return "systemd runs this machine: its control groups are left alone"
    if not (CGROUPS / "systemd").is_dir() or not (CGROUPS / "unified").is_dir():
        return "no control groups of version 1 beside version 2 here"
    probe = ["unshare", "--pid", "--fork", "--mount", "--cgroup", "--ipc", "--uts", "true"]
    made = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return "" if made and os.access(CGROUPS / "systemd", os.W_OK) else "no namespaces here"


class Machine:
    """One, in a folder: ``mnt`` of it is /mnt in there.

    ``units`` and ``etc`` are texts of files by name; ``seen`` are folders of this machine that are
    at /mnt/NAME in there, wherever they stand and whoever may go there.
    """

    def __init__(
        self,
        folder: Path,
        units: dict[str, str],
        etc: dict[str, str],
        seen: dict[str, Path] | None = None,
    ) -> None:
        self.folder = folder
        self._seen = seen or {}
        self.name = f"machine-{os.getpid()}"
        for made in ("root", "memory", "mnt", "units", "etc"):
            (folder / made).mkdir(parents=True)
        (folder / "seen").mkdir()
        for name, place in self._seen.items():
            (folder / "mnt" / name).mkdir()
            (folder / "seen" / name).symlink_to(place.resolve())
        known = {path.name for path in SYSTEMD.parent.joinpath("system").iterdir()}
        for unit in known:
            if unit.rpartition(".")[2] in {"service", "socket", "timer", "mount", "path"}:
                (folder / "units" / unit).symlink_to("/dev/null")
        for unit, text in {"empty.target": EMPTY, **units}.items():
            (folder / "units" / unit).unlink(missing_ok=True)
            (folder / "units" / unit).write_text(text, encoding="utf-8")
        for name, text in etc.items():
            path = folder / "etc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self.log = folder / "log"
        self._groups: list[Path] = []
        self._outer: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Boot it; systemd answers afterwards."""
        self._make_groups()
        into = "".join(f"echo $$ > '{group}/cgroup.procs'; " for group in self._groups)
        space = "exec unshare --pid --fork --kill-child --mount --cgroup --ipc --uts "
        names = {
            "R": f"{self.folder}/root", "M": f"{self.folder}/memory", "F": str(self.folder),
            "S": str(SYSTEMD), "WRITTEN": " ".join(WRITTEN), "SEEN": " ".join(self._seen),
            "PATH": os.environ["PATH"],
        }  # fmt: skip
        with self.log.open("ab") as stream:
            self._outer = subprocess.Popen(
                ["sh", "-c", f'set -e; {into}{space} sh -c "$0"', SCRIPT],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=names,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + DEADLINE_S
        while self.run("systemctl", "is-active", "empty.target").stdout.strip() != "active":
            assert self._outer.poll() is None, self.log.read_text(errors="replace")
            assert time.monotonic() < until, self.log.read_text(errors="replace")
            time.sleep(0.1)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in there, as root."""
        first = self._first()
        if not first:
            return subprocess.CompletedProcess(command, 1, "", "")
        inside = ["nsenter", "--target", str(first), "--mount", "--pid", "--cgroup", "--ipc",
                  "--uts", "--root", "--wd", "--"]  # fmt: skip
        return subprocess.run(
            [*inside, *command], capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )

    def _first(self) -> int:
        """Its first process as this machine counts it, once that is systemd."""
        assert self._outer is not None
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        with contextlib.suppress(OSError):
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                    return int(pid)
        return 0

    def _make_groups(self) -> None:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            where = CGROUPS / (controllers.removeprefix("name=").split(",")[0] or "unified")
            if not where.is_dir():
                continue
            parent = where / path.lstrip("/")
            group = parent / self.name
            group.mkdir()
            self._groups.append(group)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (group / name).exists():
                    (group / name).write_text((parent / name).read_text())

    def stop(self) -> None:
        """End everything in there, and take its control groups away."""
        if self._outer is not None:
            first = self._first()
            for pid in (first, self._outer.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL) if pid else None
            self._outer.wait(DEADLINE_S)
        until = time.monotonic() + DEADLINE_S
        while left := [group for group in self._groups if not _removed(group)]:
            assert time.monotonic() < until, left
            time.sleep(0.1)


def _removed(group: Path) -> bool:
    """Whether a group and all below it is gone; a group that still dies is tried again."""
    for path, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(path).rmdir()
    return not group.exists()

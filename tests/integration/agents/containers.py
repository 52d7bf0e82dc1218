"""podman with storage of its own and an image that no registry has: for tests that run containers.

The image holds busybox and nothing else. What the storage holds beyond that image can be asked, so
that a test can tell what containers have left.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

IMAGE = "localhost/muster-test"
APPLETS = [
    *("sh", "cat", "dd", "dirname", "echo", "env", "ls", "mktemp", "mv", "rm", "setsid", "sleep"),
    *("tail", "tar", "touch", "true"),
]
PROGRAMS = ("podman", "runc", "busybox")
#: One that takes longer hangs; which one it was, the exception tells.
TIMEOUT_S = 120.0
#: How often a listing is asked for before its failure counts.
LISTINGS = 10


def can_run() -> bool:
    """Whether containers can be run here: what is needed is installed, and this is root."""
    return all(map(shutil.which, PROGRAMS)) and os.geteuid() == 0


class Podman:
    """One storage; made in a folder of its own, since podman refuses folders with long names."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mp-"))
        self.command = [
            "podman", "--root", str(self.folder / "root"), "--runroot", str(self.folder / "run"),
            "--runtime", "runc",
        ]  # fmt: skip
        tree = self.folder / "image"
        (tree / "bin").mkdir(parents=True)
        (tree / "tmp").mkdir()
        busybox = shutil.which("busybox")
        assert busybox
        shutil.copy(busybox, tree / "bin/busybox")
        for applet in APPLETS:
            (tree / "bin" / applet).symlink_to("busybox")
        archive = self.folder / "image.tar"
        subprocess.run(["tar", "-C", str(tree), "-cf", str(archive), "."], check=True)
        self.ask("import", str(archive), IMAGE)
        self.layers = self._layers()

    def ask(self, *words: str) -> str:
        """What podman says to a command that has to succeed."""
        done = subprocess.run(
            [*self.command, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        """Names of the containers that there are, in whatever state, those of storage alone too.

        A listing fails if a container is removed while it is made: then it is asked for again.
        """
        words = ("ps", "--all", "--external", "--format", "{{.Names}}")
        for _ in range(LISTINGS - 1):
            with contextlib.suppress(AssertionError):
                return self.ask(*words).split()
        return self.ask(*words).split()

    def left(self) -> list[str]:
        """What there is beyond the image: containers, layers, mounts, in words."""
        found = [f"container {name}" for name in self.containers()]
        found += [f"layer {name}" for name in sorted(self._layers() - self.layers)]
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            where = line.split()[1]
            below = where.startswith(f"{self.folder}/")
            if below and where != str(self.folder / "root/overlay"):
                found.append(f"mount {where}")
        return found

    def remove(self) -> None:
        """Remove the storage, containers included."""
        subprocess.run(
            [*self.command, "rm", "--force", "--all", "--time=0"],
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        self.ask("rmi", "--force", IMAGE)
        if f" {self.folder}/root/overlay " in Path("/proc/self/mountinfo").read_text():
            subprocess.run(["umount", f"{self.folder}/root/overlay"], check=True)
        shutil.rmtree(self.folder)

    def _layers(self) -> set[str]:
        """Folders of layers, of images and of containers alike."""
        return {
            str(one.relative_to(self.folder))
            for kind in ("overlay", "overlay-containers", "vfs", "vfs-containers")
            for one in (self.folder / "root" / kind).glob("*")
            if one.is_dir() and one.name != "l"
        }

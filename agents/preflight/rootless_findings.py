"""Check if users of this host can run containers without root, by looks alone.

Podman without root needs ids of its own for each user, two programs that may hand them out, and
user namespaces. Nothing is run: whether an image starts, only a job tells.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from agents.deletion import subordinate_ids
from agents.preflight.finding import PreflightFinding, note, ok

#: Programs that give users the ids of their containers.
_MAPPERS = ("newuidmap", "newgidmap")
#: Files that list these ids.
_LISTS = ("etc/subuid", "etc/subgid")
#: Settings of the kernel that forbid user namespaces if they are 0, and what they are to be.
_SWITCHES = {"user.max_user_namespaces": 15_000, "kernel.unprivileged_userns_clone": 1}
_USERMOD = (
    "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER for each user, with "
    "ranges of their own"
)
_INSTALL = "apt-get install uidmap crun (dnf install shadow-utils crun)"


def podman(path: str, top: Path, uid: int) -> PreflightFinding:
    """Check if users can run podman without root here.

    Args:
        path: where programs are looked for.
        top: root of the file system.
        uid: user of the agent. One that is not root runs all tasks as itself.
    """
    whose = "users" if uid == 0 else "the agent's user"
    problems = [
        *_programs(path),
        *(() if _asks_a_directory(top) else _lists(top, uid)),
        *_forbidden(top),
    ]
    if not problems:
        return ok("podman", f"{whose} can have containers without root, as far as can be seen")
    what, fixes = zip(*problems, strict=True)
    return note(
        "podman",
        f"{whose} can't run podman without root: {'; '.join(what)}",
        f"Jobs with runtime: podman fail here. To fix: {'; '.join(dict.fromkeys(fixes))}",
    )


def _programs(path: str) -> Iterator[tuple[str, str]]:
    """Yield programs that are missing or can't do their work, each with how to fix it."""
    for name in _MAPPERS:
        program = shutil.which(name, path=path)
        if program is None:
            yield f"{name} is not installed", _INSTALL
        elif not _is_privileged(program):
            yield f"{program} has neither the setuid bit nor capabilities", f"chmod u+s {program}"
    if shutil.which("crun", path=path) is None:
        # runc refuses --cgroups=disabled, by which a container stays in the task's group
        yield (
            "crun is not installed, and runc can't take a container into a task's limits",
            _INSTALL,
        )


def _is_privileged(program: str) -> bool:
    if Path(program).stat().st_mode & stat.S_ISUID:
        return True
    try:
        return bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def _asks_a_directory(top: Path) -> bool:
    """Return True if a directory service lists ids of users, so that the files tell nothing."""
    try:
        text = (top / "etc/nsswitch.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    lines = (line.partition("#")[0].split() for line in text.split("\n"))
    return any(line[:1] == ["subid:"] and line[1:] != ["files"] for line in lines)


def _lists(top: Path, uid: int) -> Iterator[tuple[str, str]]:
    """Yield files that list no ids for users, or none for the agent's own."""
    for name in _LISTS:
        if uid == 0:
            has_any = bool(subordinate_ids.holders(top / name))
        else:
            has_any = bool(subordinate_ids.ids_of(uid, top / name))
        if not has_any:
            who = "any user" if uid == 0 else "it"
            yield f"/{name} has no ids for {who}", _USERMOD


def _forbidden(top: Path) -> Iterator[tuple[str, str]]:
    """Yield settings of the kernel that forbid user namespaces."""
    for name, wanted in _SWITCHES.items():
        path = top / "proc/sys" / name.replace(".", "/")
        try:
            value = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if value == "0":
            yield f"{name} is 0: users have no namespaces", f"sysctl -w {name}={wanted}"

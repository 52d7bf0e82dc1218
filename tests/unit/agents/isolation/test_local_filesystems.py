"""What can not hang while the system does not: told by the table of mounts alone."""

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from agents.isolation import local_filesystems

TABLE = r"""
20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:20 / /proc rw - proc proc rw
22 20 0:21 / /run rw - tmpfs tmpfs rw
23 20 0:40 / /home rw - nfs4 server:/home rw
24 23 8:1 /ada /home/ada rw - ext4 /dev/sda1 rw
25 20 8:2 / /var/lib/muster rw - xfs /dev/sdb rw
26 20 8:3 / /scratch rw - xfs /dev/sdc rw
27 20 0:41 / /my\040data rw - fuse.sshfs x: rw
28 20 0:42 / /opt rw - nfs4 server:/opt rw
29 28 8:1 /opt /opt rw - ext4 /dev/sda1 rw
30 20 0:43 / /auto rw - autofs systemd-1 rw
no line of it
"""


def test_far_is_what_has_another_disk_or_a_server() -> None:
    far = local_filesystems.far_mounts(TABLE, ["/", "/usr/bin/sh", "/var/lib/muster/node"])
    assert far == {"/proc", "/home", "/scratch", "/my data", "/auto"}


def test_without_a_table_nothing_is_far() -> None:
    assert local_filesystems.far_mounts("", ["/", "/root"]) == set()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Links and folders; ``far`` is taken for a mount that must not be looked at."""
    (tmp_path / "here").mkdir()
    (tmp_path / "far/below").mkdir(parents=True)
    for name, target in {
        "to-far": "far/x", "to-near": "here", "round": "round", "whole": f"{tmp_path}/far",
        "here/up": "../far/below", "here/own": "../here",
    }.items():  # fmt: skip
        (tmp_path / name).symlink_to(target)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "astray"),
    [
        ("here", False),
        ("here/none/none", False),
        ("here/./own/own", False),
        ("to-near/own", False),
        ("round/x", False),  # an error at once
        ("far", True),
        ("far/..", True),  # to come back one goes there
        ("here/../far/below", True),
        ("to-far", True),
        ("whole/x", True),
        ("to-near/up", True),
    ],
)
def test_who_follows_a_path(place: Path, path: str, *, astray: bool) -> None:
    far = frozenset({f"{place}/far"})
    assert local_filesystems.leads_astray(f"{place}/{path}", far) is astray
    assert local_filesystems.leads_astray(f"{place}/{path}", far, str(place)) is astray


def test_what_runs_a_program(tmp_path: Path) -> None:
    shell = os.path.realpath("/bin/sh")
    linked = local_filesystems.interpreter_of(shell)
    assert linked
    assert Path(linked).exists()
    texts = {
        "script": (b"#!/opt/python -u\nx", "/opt/python"),
        "spaces": (b"#!  /opt/a b\n", "/opt/a"),
        "empty": (b"#!\n", ""),
        "other": (b"MZ\x90", None),
        "cut": (b"\x7fELF\x02\x01" + b"\0" * 20, None),
        "far back": (Path(shell).read_bytes()[:32] + b"\xff" * 2000, None),
    }
    for name, (text, told) in texts.items():
        (tmp_path / name).write_bytes(text)
        assert local_filesystems.interpreter_of(str(tmp_path / name)) == told, name
    os.mkfifo(tmp_path / "fifo")
    assert local_filesystems.interpreter_of(str(tmp_path / "fifo")) == "", (
        "and nobody waits for a writer"
    )
    assert local_filesystems.interpreter_of(str(tmp_path / "none")) == ""


def order(cwd: Path, command: str, path: str = "/usr/bin:/bin") -> tuple[str, str, str, str]:
    return "a.1", str(cwd), command, path


def test_an_order_is_near_only_with_all_that_it_needs(place: Path) -> None:
    made = local_filesystems.LocalPaths(str(place), ["/bin/sh"])
    made._far = frozenset({f"{place}/far"})  # as if it were mounted there
    script = place / "here/script"
    script.write_text(f"#!{place}/far/below/sh\n")
    script.chmod(0o755)
    shutil.copy("/bin/sh", place / "here/sh")
    near = [
        order(place, "/bin/sh"),
        order(place, "sh"),
        order(place / "here", "./sh"),
        order(place / "none", "sh"),
        order(place, "nosuchcommand"),
        order(place, "sh", path=f"/usr/bin:/bin:{place}/far"),  # found before it is looked there
    ]
    far = [
        order(place / "far", "/bin/sh"),
        order(place, f"{place}/far/sh"),
        order(place, "to-far/sh"),
        order(place, "sh", path=f"{place}/far:/usr/bin:/bin"),
        order(place, "nosuchcommand", path=f"/usr/bin:{place}/whole"),
        order(place / "here", "./script"),
        order(place / "here", "script", path=str(place / "here")),
        order(Path("here"), "/bin/sh"),
    ]
    for _ in range(2):  # the second time it is known
        assert [made.has(*one) for one in near] == [True] * len(near)
        assert [made.has(*one) for one in far] == [False] * len(far)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount here")
def test_what_is_mounted_later_is_seen(place: Path) -> None:
    made = local_filesystems.LocalPaths(str(place), ["/bin/sh"])
    assert made.has(*order(place / "here", "/bin/sh"))
    libc, kind = ctypes.CDLL(None), b"sysfs"
    assert libc.mount(b"x", os.fsencode(place / "here"), kind, 0, None) == 0
    try:
        assert not made.has(*order(place / "here", "/bin/sh"))
    finally:
        libc.umount2(os.fsencode(place / "here"), 2)
    assert made.has(*order(place / "here", "/bin/sh"))

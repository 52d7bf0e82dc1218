"""Quotas of projects: the calls as the kernel's headers describe them, and when there are none."""

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from agents.isolation import project_quotas

HEADERS = Path("/usr/include/linux")


class Recorder(project_quotas.Kernel):
    """Notes calls as (folder, call, number, argument), and answers like a file system."""

    def __init__(self, problem: int = 0) -> None:
        self.calls: list[tuple[str, str, int, object]] = []
        self.problem = problem

    def ioctl(self, handle: int, code: int, argument: bytes) -> bytes:
        self.calls.append((_name(handle), "ioctl", code, argument))
        return struct.pack("=IIIII8x", 0x10, 7, 3, 0, 9) if code == 0x801C581F else argument

    def quotactl(self, handle: int, command: int, project: int, limits: bytes) -> bytes:
        self.calls.append((_name(handle), "quotactl", command, (project, limits)))
        if self.problem:
            raise OSError(self.problem, os.strerror(self.problem))
        return limits


def _name(handle: int) -> str:
    return Path(f"/proc/self/fd/{handle}").readlink().name


def test_the_calls_that_bound_an_attempt(tmp_path: Path) -> None:
    folder = tmp_path / "a.1"
    for inner in ("work", "tmp"):
        (folder / inner).mkdir(parents=True)
    recorder = Recorder()
    project_quotas.limit(str(folder), 5 * 2**20 + 1, recorder)
    project = 2**31 + folder.stat().st_ino % (2**31 - 1)
    limits = struct.pack("=8QI4x", 5120, 0, 0, 0, 0, 0, 0, 0, 1)
    get, put = 0x801C581F, 0x401C5820
    belongs = struct.pack("=IIIII8x", 0x210, 7, 0, project, 9)
    assert recorder.calls == [
        ("a.1", "quotactl", 0x80000802, (project, limits)),
        *(
            (name, "ioctl", code, argument)
            for name in ("a.1", "work", "tmp")
            for code, argument in ((get, bytes(28)), (put, belongs))
        ),
    ]


def test_what_somebody_else_has_put_there_is_not_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "a.1"
    (folder / "tmp").mkdir(parents=True)
    (folder / "work").symlink_to("/tmp")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        project_quotas.limit(str(folder), 2**20, Recorder())


@pytest.mark.parametrize("problem", [0, errno.EIO])
def test_a_quota_is_tried_beforehand_and_leaves_nothing(tmp_path: Path, problem: int) -> None:
    recorder = Recorder(problem)
    said = project_quotas.rehearse(str(tmp_path), recorder)
    assert said == (os.strerror(problem) if problem else "")
    assert recorder.calls
    assert not list(tmp_path.iterdir())
    assert "Not a directory" in project_quotas.rehearse("/dev/null", recorder)


@pytest.mark.parametrize("inode", [0, 1, 2**31 - 1, 2**32 - 1, 2**63])
def test_a_project_is_never_one_of_the_sites_own(inode: int) -> None:
    assert 2**31 <= project_quotas.project_of(inode) < 2**32 - 1


def mounts(folder: Path, mounted: str) -> str:
    """A file with mounted file systems, one of them that of a folder."""
    device = folder.stat().st_dev
    path = folder / "mountinfo"
    path.write_text(
        "22 1 0:21 / /proc rw - proc proc rw,prjquota\n"
        f"23 1 {os.major(device)}:{os.minor(device)} / / rw,noatime shared:1 - "
        f"{mounted}\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("mounted", "problem", "uid", "told"),
    [
        ("xfs /dev/a rw,attr2,prjquota", 0, 0, ""),
        ("ext4 /dev/a rw,prjquota", errno.ENOENT, 0, ""),
        ("ext4 /dev/a rw", 0, 0, "the file system (ext4) is not mounted with prjquota"),
        ("xfs /dev/a rw,pqnoenforce", 0, 0, "the file system (xfs) is not mounted with prjquota"),
        ("ext4 /dev/a rw,prjquota", errno.ENOSYS, 0, "the kernel is older than 5.14"),
        ("ext4 /dev/a rw,prjquota", errno.ESRCH, 0, "quotas can't be asked for: No such process"),
        ("ext4 /dev/a rw,prjquota", 0, 1000, "only root sets quotas"),
    ],
)
def test_where_there_are_quotas(
    tmp_path: Path, mounted: str, problem: int, uid: int, told: str
) -> None:
    found = project_quotas.offer(str(tmp_path), Recorder(problem), mounts(tmp_path, mounted), uid)
    assert found == (not told, told)


def test_a_file_system_that_is_not_listed_has_none(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    found = project_quotas.offer(str(tmp_path), Recorder(), str(tmp_path / "none"), 0)
    assert found.problem == "the file system (unknown) is not mounted with prjquota"


def header(name: str) -> str:
    path = HEADERS / name
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    return path.read_text()


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    quota, files = header("quota.h"), header("fs.h")
    commands = dict(re.findall(r"#define (Q_[GS]ETQUOTA)\s+(0x\w+)", quota))
    codes = [int(commands[name], 16) << 8 | 2 for name in ("Q_GETQUOTA", "Q_SETQUOTA")]
    assert codes == [project_quotas._GET_QUOTA, project_quotas._SET_QUOTA]
    (inherit,) = re.findall(r"#define FS_XFLAG_PROJINHERIT\s+(0x\w+)", files)
    assert int(inherit, 16) == project_quotas._INHERIT
    fields = re.findall(r"fsx_(\w+)", files[files.index("struct fsxattr {") :])[:6]
    assert fields == ["xflags", "extsize", "nextents", "projid", "cowextsize", "pad"]
    limits = quota[quota.index("struct if_dqblk {") :]
    assert re.findall(r"dqb_(\w+);", limits)[:9] == [
        "bhardlimit", "bsoftlimit", "curspace", "ihardlimit", "isoftlimit", "curinodes",
        "btime", "itime", "valid",
    ]  # fmt: skip

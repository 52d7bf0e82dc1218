"""What is in a pack is not trusted: nothing is made outside the folder, nor more than allowed."""

import errno
import io
import os
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.code import code_worker

ENTRIES_MAX, BYTES_MAX = 100, 2**20


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def pack_of(*members: tarfile.TarInfo, file_format: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=file_format) as archive:
        for one in members:
            archive.addfile(one, io.BytesIO(b"x" * one.size))
    return made.getvalue()


@pytest.mark.parametrize(
    ("number", "status", "told"),
    [
        (errno.ENOSPC, code_worker.NO_ROOM, "[Errno 28] No space left on device: '/x'"),
        (errno.EDQUOT, code_worker.FAULT, "quota of the job's user is used up there. To fix: "),
        (errno.EACCES, code_worker.FAULT, "[Errno 13] Permission denied: '/x'"),
    ],
)
def test_the_quota_of_a_person_is_no_fault_of_the_node(number: int, status: int, told: str) -> None:
    found, said = code_worker.of_system(OSError(number, os.strerror(number), "/x"))
    assert found == status
    assert told in said


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[bytes], None]:
    """Unpacks into an empty folder, with a file beside it that nothing may touch."""
    (tmp_path / "work").mkdir()
    (tmp_path / "beside").write_text("mine")

    def run(data: bytes) -> None:
        path = tmp_path / "pack"
        path.write_bytes(data)
        handle = os.open(path, os.O_RDONLY)
        code_worker.unpack(handle, str(tmp_path / "work"), ENTRIES_MAX, BYTES_MAX)

    return run


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([member("../beside", size=3)], "leads out of its folder"),
        ([member("a/../../beside", size=3)], "leads out of its folder"),
        ([member("out", tarfile.SYMTYPE, "/etc")], "leads out of its folder"),
        ([member("out", tarfile.SYMTYPE, "../beside")], "leads out of its folder"),
        (
            [member("d", tarfile.SYMTYPE, "."), member("d/../../beside", size=3)],
            "leads out of its folder",
        ),
        ([member("hard", tarfile.LNKTYPE, "../beside")], "no file, folder or link"),
        ([member("null", tarfile.CHRTYPE)], "no file, folder or link"),
        ([member("disk", tarfile.BLKTYPE)], "no file, folder or link"),
        ([member("pipe", tarfile.FIFOTYPE)], "no file, folder or link"),
        ([member("holes", tarfile.GNUTYPE_SPARSE)], "no file, folder or link"),
        ([member(f"f{number}") for number in range(ENTRIES_MAX + 1)], "more than 100 files"),
        ([member("a", size=BYTES_MAX), member("b", size=1)], "or 1048576 bytes"),
    ],
    ids=lambda value: None if isinstance(value, str) else value[-1].name,
)
def test_what_no_pack_may_hold(
    unpack: Callable[[bytes], None], tmp_path: Path, members: list[tarfile.TarInfo], told: str
) -> None:
    with pytest.raises(code_worker.CodeError, match=told):
        unpack(pack_of(*members, file_format=tarfile.GNU_FORMAT))
    assert (tmp_path / "beside").read_text() == "mine"
    assert {one.name for one in tmp_path.iterdir()} == {"work", "beside", "pack"}


def test_an_absolute_name_stays_below(unpack: Callable[[bytes], None], tmp_path: Path) -> None:
    unpack(pack_of(member(f"{tmp_path}/beside", size=3)))
    assert (tmp_path / "beside").read_text() == "mine"
    assert (tmp_path / "work").joinpath(f"{tmp_path}/beside"[1:]).read_text() == "xxx"


def test_a_sparse_file_of_the_newer_form_is_refused(unpack: Callable[[bytes], None]) -> None:
    """Its header says how large it seems: gigabytes from a few bytes."""
    one = member("holes", size=10)
    one.pax_headers = {
        "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "holes",
        "GNU.sparse.size": str(2**40), "GNU.sparse.numblocks": "1", "GNU.sparse.map": "0,10",
    }  # fmt: skip
    with pytest.raises(code_worker.CodeError):
        unpack(pack_of(one))


@pytest.mark.parametrize("data", [b"no tar at all" * 100, pack_of(member("a", size=5000))[:2000]])
def test_what_is_no_pack(unpack: Callable[[bytes], None], data: bytes) -> None:
    with pytest.raises(code_worker.CodeError, match="the pack can't be read"):
        unpack(data)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[str, str, str]:
    """A bare repository: its URL, an old commit, and the newest."""
    work = tmp_path / "origin"
    work.mkdir()
    git(work, "init", "--quiet")
    (work / "a.py").write_text("old")
    git(work, "add", ".")
    git(work, "commit", "--quiet", "-m", "old")
    old = git(work, "rev-parse", "HEAD")
    (work / "a.py").write_text("new")
    git(work, "commit", "--quiet", "-am", "new")
    git(tmp_path, "clone", "--quiet", "--bare", "origin", "bare.git")
    return f"file://{tmp_path}/bare.git", old, git(work, "rev-parse", "HEAD")


def test_a_commit_is_checked_out(repository: tuple[str, str, str], tmp_path: Path) -> None:
    url, old, new = repository
    for revision, text in ((old, "old"), (new, "new")):
        (tmp_path / text).mkdir()
        place = str(tmp_path / text)
        code_worker.check_out(place, url, revision, bytes_max=2**26, timeout_s=60)
        assert (tmp_path / text / "a.py").read_text() == text
        assert git(tmp_path / text, "rev-parse", "HEAD") == revision


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (("", "0" * 40, 2**26), "`git fetch`"),
        (("file:///not/there.git", "0" * 40, 2**26), "`git fetch`.*not/there"),
        (("", "", 10), "the repository has more than 10 bytes"),
    ],
    ids=["no such commit", "no repository", "too large"],
)
def test_a_commit_that_can_not_be_had(
    repository: tuple[str, str, str],
    tmp_path: Path,
    wanted: tuple[str, str, int],
    told: str,
) -> None:
    (tmp_path / "work").mkdir()
    url, revision, bytes_max = wanted
    url, revision, place = url or repository[0], revision or repository[2], str(tmp_path / "work")
    with pytest.raises(code_worker.CodeError, match=told):
        code_worker.check_out(place, url, revision, bytes_max=bytes_max, timeout_s=60)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"git://127.0.0.1:{server.getsockname()[1]}/x"
        with pytest.raises(code_worker.SilentError, match="the repository sent nothing"):
            code_worker.check_out(
                str(tmp_path), url, "0" * 40, bytes_max=2**26, timeout_s=60, silence_s=0.1
            )


@pytest.mark.parametrize("brings", [True, False])
def test_who_has_answered_may_be_silent_later(tmp_path: Path, *, brings: bool) -> None:
    """What has come may need work before more of it is written."""
    git(tmp_path, "init", "--quiet")
    runs = code_worker._GitRuns(str(tmp_path), 2**26, time.monotonic() + 60, 0.0)
    before = runs._fetched()
    if brings:
        (tmp_path / ".git" / "objects" / "pack" / "tmp_pack").write_bytes(b"PACK")
    for _ in range(2):
        runs._silent_since = time.monotonic()
        assert runs._goes_well(before) is brings


def test_a_folder_to_start_in_has_to_be_in_the_code(tmp_path: Path) -> None:
    place = str(tmp_path / "work")
    (tmp_path / "work" / "part").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "work" / "out").symlink_to(tmp_path / "other")
    code_worker.require_folder(place, "part")
    code_worker.require_folder(place, "")
    for path in ("out", "none"):
        with pytest.raises(code_worker.CodeError, match=f"no folder {path}"):
            code_worker.require_folder(place, path)


def test_many_empty_files_are_as_much_as_large_ones(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"folder{number}").mkdir()
        (tmp_path / f"folder{number}" / "empty").touch()
    least = 40 * code_worker.ENTRY_BYTES
    assert code_worker._size(str(tmp_path), 10 * least) == least
    assert code_worker._size(str(tmp_path), least // 2) > least // 2

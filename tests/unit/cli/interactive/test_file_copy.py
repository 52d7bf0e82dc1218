"""Nothing that a task sends is written outside of the target."""

import io
import tarfile
from pathlib import Path

import pytest

from reconciler.cli.interactive import copy_errors, file_copy


def _tar(*members: tuple[str, bytes, str]) -> io.BytesIO:
    """A tar of members: name, kind and where a link leads."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            member.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"text") if member.size else None)
    made.seek(0)
    return made


def test_the_copy_has_the_name_of_the_target(tmp_path: Path) -> None:
    made = _tar(("out", tarfile.DIRTYPE, ""), ("out/a", tarfile.REGTYPE, ""))
    file_copy.unpack(made, tmp_path, "out", "mine")
    assert (tmp_path / "mine/a").read_text() == "text"


@pytest.mark.parametrize(
    "member",
    [
        ("../evil", tarfile.REGTYPE, ""),
        ("/etc/evil", tarfile.REGTYPE, ""),
        ("out/../../evil", tarfile.REGTYPE, ""),
        ("other", tarfile.REGTYPE, ""),
        ("out/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("out/link", tarfile.SYMTYPE, "../../evil"),
        ("out/link", tarfile.LNKTYPE, "/etc/passwd"),
        ("out/device", tarfile.CHRTYPE, ""),
    ],
)
def test_what_leads_out_is_refused(tmp_path: Path, member: tuple[str, bytes, str]) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(file_copy.CopyError, match="refused"):
        file_copy.unpack(_tar(member), target, "out", "out")
    assert [one.name for one in tmp_path.iterdir()] == ["target"]


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_copy, "FILES_MAX", 1)
    made = _tar(("out", tarfile.DIRTYPE, ""), ("out/a", tarfile.REGTYPE, ""))
    with pytest.raises(file_copy.CopyError, match="more than 1 files"):
        file_copy.unpack(made, tmp_path, "out", "out")


@pytest.mark.parametrize(
    ("code", "said", "ends", "told"),
    [
        (2, b"tar: a: Cannot open: Permission denied\n", 1, "permission denied"),
        (127, b"sh: 1: dirname: not found\n", 1, "dirname: not found"),
        (137, b"", 1, "the copy ended with exit code 137 in the task"),
        (127, b"", 127, ""),
        (130, b"", 130, ""),
        (125, b"", 125, ""),
        (255, b"", 255, ""),
        (0, b"", 0, ""),
    ],
)
def test_no_copy_fails_without_a_word(
    code: int, said: bytes, ends: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 127 without output, 125, 255 and a signal here it was said before what happened."""
    place = copy_errors.TaskPlace("train", "out")
    assert file_copy.status_of(code, said, place) == ends
    printed = " ".join(capsys.readouterr().err.split())
    assert told in printed if told else not printed

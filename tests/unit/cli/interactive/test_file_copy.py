"""Nothing that a task sends is written outside of the target."""

import io
import tarfile
from pathlib import Path

import pytest

from reconciler.cli.interactive import file_copy


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

"""A pack is what its folder holds, and nothing else; unpacked it is the same again."""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.code import code_worker
from reconciler.model.observed import job_code
from reconciler.operations.code import folder_pack
from reconciler.operations.code.folder_files import PackingError

_NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
_PATHS = st.lists(
    _NAMES.filter(
        lambda name: (
            name not in {".", "..", ".git", ".gitignore", ".musterignore"}
            and len(name.encode()) < 60
        )
    ),
    min_size=1,
    max_size=3,
).map("/".join)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


def names(folder: Path) -> list[str]:
    """Return the names in the pack of a folder."""
    packed = folder_pack.pack(folder)
    with packed.file, tarfile.open(fileobj=packed.file) as archive:
        return archive.getnames()


def digest(folder: Path) -> str:
    packed = folder_pack.pack(folder)
    with packed.file:
        assert packed.digest == f"sha256:{hashlib.sha256(packed.file.read()).hexdigest()}"
    return packed.digest


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def contents(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Return the files of a folder, each with what it holds and whether it may run."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in folder.rglob("*")
        if path.is_file()
    }


@given(st.dictionaries(_PATHS, st.tuples(st.binary(max_size=2000), st.booleans()), min_size=1))
@settings(max_examples=25, deadline=None)
def test_what_is_unpacked_is_what_was_packed(files: dict[str, tuple[bytes, bool]]) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder, other, target = (Path(made, name) for name in ("a", "b", "c"))
        for one in (folder, other, target):
            one.mkdir()
        written: dict[str, tuple[bytes, bool]] = {}
        for path, (data, runs) in files.items():
            try:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue
            (folder / path).chmod(0o755 if runs else 0o600)
            written[path] = (data, runs)
        packed = folder_pack.pack(folder)
        shutil.copytree(folder, other, dirs_exist_ok=True, copy_function=shutil.copy)
        for copy in reversed(list(other.rglob("*"))):
            os.utime(copy, (1, 1))
        assert digest(other) == packed.digest, "times and the order on disk are no matter"
        with packed.file:
            handle = os.dup(packed.file.fileno())
            code_worker.unpack(handle, str(target), 10_000, job_code.PACK_BYTES_MAX)
        assert contents(target) == written
        assert packed.files == len(written)


def test_content_names_and_who_may_run_make_another_digest(project: Path) -> None:
    seen = [digest(project)]
    (project / "train.py").write_text("print(2)\n")
    seen.append(digest(project))
    (project / "train.py").chmod(0o755)
    seen.append(digest(project))
    (project / "train.py").rename(project / "main.py")
    seen.append(digest(project))
    assert len(set(seen)) == 4
    (project / "main.py").chmod(0o700)
    assert digest(project) == seen[-1], "for the owner alone is the same"


def test_of_a_repository_it_is_what_git_does_not_ignore(project: Path) -> None:
    git(project, "init", "--quiet")
    (project / ".gitignore").write_text("*.ckpt\nout/\n")
    (project / "tracked.ckpt").write_text("x")
    (project / "gone.py").write_text("x")
    git(project, "add", "--force", ".")
    (project / "gone.py").unlink()
    (project / "train.py").write_text("changed\n")
    (project / "new.py").write_text("new\n")
    (project / "model.ckpt").write_text("x")
    (project / "out").mkdir()
    (project / "out" / "a").write_text("x")
    (project / ".muster-submit").mkdir()
    (project / ".muster-submit" / "marker").write_text("x")
    assert names(project) == [".gitignore", "new.py", "tracked.ckpt", "train.py"]


def test_a_folder_in_a_repository_is_packed_alone(project: Path) -> None:
    git(project, "init", "--quiet")
    (project / "part").mkdir()
    (project / "part" / "a.py").write_text("x")
    assert names(project / "part") == ["a.py"]


@pytest.mark.parametrize("is_repository", [True, False])
def test_musterignore_takes_files_out(project: Path, *, is_repository: bool) -> None:
    for name in ("data/big.bin", "data/keep.txt", "deep/data/x", "notes.md"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    if is_repository:
        git(project, "init", "--quiet")
        git(project, "add", "notes.md")
    (project / ".musterignore").write_text("/data/*\n!/data/keep.txt\n*.md\n")
    assert names(project) == [".musterignore", "data/keep.txt", "deep/data/x", "train.py"]


def test_outside_of_git_all_files_go(project: Path) -> None:
    (project / ".gitignore").write_text("*.ckpt\n")
    (project / "a.ckpt").write_text("x")
    assert names(project) == [".gitignore", "a.ckpt", "train.py"]


def test_a_repository_in_it_goes_along_without_its_history(project: Path) -> None:
    git(project, "init", "--quiet")
    (project / "lib").mkdir()
    git(project / "lib", "init", "--quiet")
    (project / "lib" / "a.py").write_text("x")
    (project / "lib" / ".gitignore").write_text("*.o\n")
    (project / "lib" / "a.o").write_text("x")
    assert names(project) == ["lib/.gitignore", "lib/a.py", "train.py"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "inner/../../secret", "loop"])
def test_links_that_lead_out_are_refused_and_named(project: Path, target: str) -> None:
    (project / "inner").mkdir()
    (project / "inner" / "a").write_text("x")
    (project.parent / "secret").write_text("x")
    (project / "loop").symlink_to("..")
    (project / "bad").symlink_to(target)
    with pytest.raises(PackingError) as caught:
        folder_pack.pack(project)
    assert f"bad -> {target}" in caught.value.details
    assert "links that lead out of the folder" in str(caught.value)


def test_links_within_go_as_links(project: Path) -> None:
    (project / "latest").symlink_to("train.py")
    (project / "later").symlink_to("not-there-yet")
    packed = folder_pack.pack(project)
    with packed.file, tarfile.open(fileobj=packed.file) as archive:
        assert archive.getmember("latest").linkname == "train.py"
        assert archive.getmember("later").linkname == "not-there-yet"


def test_too_much_is_refused_with_the_largest_files(project: Path) -> None:
    for name, size in (("small", 10), ("large", 200 * 2**20), ("larger", 201 * 2**20)):
        with (project / name).open("wb") as file:
            file.truncate(size)
    with pytest.raises(PackingError, match=r"expected at most 256 ?Mi") as caught:
        folder_pack.pack(project)
    assert [one.split(":")[0] for one in caught.value.details[:2]] == ["larger", "large"]
    assert ".musterignore" in str(caught.value)


def test_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackingError, match="found no file in it"):
        folder_pack.pack(tmp_path)
    with pytest.raises(PackingError, match="found no such folder"):
        folder_pack.pack(tmp_path / "none")
    (tmp_path / "train.py").touch()
    with pytest.raises(PackingError, match=r"found a file, expected a folder\. To fix: name"):
        folder_pack.pack(tmp_path / "train.py")

"""A file system with quotas of projects, where the kernel has them, stops who writes too much."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.isolation import project_quotas


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system with quotas of projects."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    image.touch()
    os.truncate(image, 64 * 2**20)
    for command in (
        ["mkfs.ext4", "-q", "-O", "quota,project", str(image)],
        ["mount", "-o", "loop,prjquota", str(image), str(place)],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip(f"{command[0]} is not installed")
        if done.returncode != 0:
            pytest.skip(f"this kernel mounts no ext4 with quotas of projects: {done.stderr}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_file_system_with_quotas_stops_who_writes_too_much(mounted: Path) -> None:
    assert project_quotas.offer(str(mounted)) == (True, "")
    folder = mounted / "a.1"
    for inner in ("work", "tmp"):
        (folder / inner).mkdir(parents=True)
        (folder / inner).chmod(0o777)
    project_quotas.limit(str(folder), 4 * 2**20)
    command = "head -c 3000000 /dev/zero > work/a && head -c 3000000 /dev/zero > tmp/b"
    folder.chmod(0o755)
    mounted.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, user=65534, capture_output=True, text=True, check=False
    )
    assert "Disk quota exceeded" in done.stderr
    (mounted / "other").write_bytes(bytes(6 * 2**20))

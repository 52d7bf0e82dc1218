"""The lines of a file of locked packages, from what pip says it would install."""

from typing import Any

import pytest

from tools import lock


def package(name: str, version: str, **hashes: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "version": version},
        "download_info": {
            "url": "https://index.invalid/file.whl",
            "archive_info": {"hashes": hashes},
        },
    }


def test_each_package_has_its_hash_and_no_address() -> None:
    report = {
        "install": [package("PyYAML", "6.0", sha256="bb"), package("anyio", "4", sha256="aa")]
    }
    assert lock.requirements(report) == [
        "anyio==4 --hash=sha256:aa",
        "PyYAML==6.0 --hash=sha256:bb",
    ]


def test_the_project_itself_is_left_out() -> None:
    folder = {
        "metadata": {"name": "muster-cluster", "version": "1"},
        "download_info": {"url": "file:///here", "dir_info": {}},
    }
    assert lock.requirements({"install": [folder]}) == []


def test_a_package_without_a_hash_is_refused() -> None:
    with pytest.raises(lock.LockError, match=r"no SHA-256 of anyio 4: is it a folder or a link\?"):
        lock.requirements({"install": [package("anyio", "4", md5="aa")]})

"""Checksum of the supervisor's own source files, to notice upgrades: standard library only.

A supervisor outlives upgrades of its node's package, because its tasks would end with it. It
reports the checksum that it started with. An agent that finds another checksum on disk replaces the
supervisor as soon as the node has no task.
"""

# No pathlib here: it would cost the supervisor memory.
# ruff: noqa: PTH100, PTH113, PTH118, PTH120, PTH123

import os
import re
import zlib

#: The script that is started, relative to the package ``agents``.
SCRIPT = "supervisor/__main__.py"
_IMPORT = re.compile(r"^from agents((?:\.\w+)*) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)


def package_folder() -> str:
    """Return the folder of the package ``agents`` that this module belongs to."""
    return os.path.abspath(__file__).rpartition(f"{os.sep}supervisor{os.sep}")[0]


def source_files(folder: str = "") -> list[str]:
    """List the files that a supervisor is made of, relative to ``folder``, in sorted order.

    They are found by following the imports from ``SCRIPT`` through the package ``agents``.

    Raises:
        OSError: a file cannot be read.
    """
    folder = folder or package_folder()
    found: set[str] = set()
    waiting = [SCRIPT, "__init__.py"]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        with open(os.path.join(folder, path), encoding="utf-8") as stream:
            text = stream.read()
        for package, names in _IMPORT.findall(text):
            waiting += _imported(folder, package.strip(".").replace(".", "/"), names)
        parent = os.path.dirname(path)
        if parent:
            waiting.append(f"{parent}/__init__.py")
    return sorted(found)


def _imported(folder: str, package: str, names: str) -> list[str]:
    """Return the files behind one import statement."""
    if os.path.isfile(os.path.join(folder, f"{package}.py")):
        return [f"{package}.py"]
    modules = re.findall(r"(\w+)(?:\s+as\s+\w+)?\s*(?:,|$|\))", names.strip("() \n"), re.MULTILINE)
    return [f"{package}/{name}.py" if package else f"{name}.py" for name in modules]


def on_disk(folder: str = "") -> str:
    """Return the checksum of the files in ``folder``, by default of the running package.

    The result is empty if a file cannot be read.
    """
    folder = folder or package_folder()
    checksum = 0
    try:
        for path in source_files(folder):
            with open(os.path.join(folder, path), "rb") as stream:
                checksum = zlib.crc32(stream.read(), checksum)
    except OSError:
        return ""
    return f"{checksum:08x}"

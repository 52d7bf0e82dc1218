"""Compiles ``standin.c`` and writes the situations that it tells of."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("standin.c")
VARIABLE = "MUSTER_NVML_SITUATION"
COMPILER = shutil.which("gcc")

GIB = 2**30
#: NVML's error codes by the names of its header.
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT = 3, 4, 6, 9, 10
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, OPERATING_SYSTEM = 13, 15, 16, 17
LIBRARY_MISMATCH, UNKNOWN = 18, 999


IN_USE, INSUFFICIENT_RESOURCES = 19, 23
#: What an H200 can be cut into, and where, as NVIDIA's MIG guide has it.
MIG_PROFILES = [
    f"mig-profile:{number} {profile} {slices} {count} {memory * 1024} {name}"
    for number, profile, slices, count, memory, name in (
        (0, 19, 1, 7, 16, "1g.18gb"),
        (7, 20, 1, 1, 16, "1g.18gb+me"),
        (9, 15, 1, 4, 32, "1g.35gb"),
        (1, 14, 2, 3, 32, "2g.35gb"),
        (2, 9, 3, 2, 69, "3g.71gb"),
        (3, 5, 4, 1, 69, "4g.71gb"),
        (4, 0, 7, 1, 139, "7g.141gb"),
    )
] + [
    "mig-place:19 0:1 1:1 2:1 3:1 4:1 5:1 6:1",
    "mig-place:20 0:1 1:1 2:1 3:1 4:1 5:1 6:1",
    "mig-place:15 0:2 2:2 4:2 6:2",
    "mig-place:14 0:2 2:2 4:2",
    "mig-place:9 0:4 4:4",
    "mig-place:5 0:4",
    "mig-place:0 0:8",
]


def build(folder: Path, *, old: bool = False) -> Path:
    """The folder that holds ``libnvidia-ml.so.1``; ``old``: as a driver of 2021 has it."""
    assert COMPILER is not None
    library = folder / ("old" if old else "new") / "libnvidia-ml.so.1"
    library.parent.mkdir()
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += ["-DOLD_DRIVER"] if old else []
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True, timeout=60)
    return library.parent


def environment(library: Path, situation: Path) -> dict[str, str]:
    """What a process needs to see the situation through the stand-in."""
    return {"LD_LIBRARY_PATH": str(library), VARIABLE: str(situation)}


def uuid(index: int) -> str:
    """The UUID of a device of :func:`machine`."""
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def device(index: int, *changes: str, number: int | None = None) -> list[str]:
    """Lines of one H200, the changes first: of two lines of one key the first one holds.

    ``number``: the device with this UUID, which the driver lists at ``index``.
    """
    who = index if number is None else number
    lines = [
        "name NVIDIA H200",
        f"uuid {uuid(who)}",
        f"pci 00000000:{0x10 + who:02X}:00.0",
        f"memory {141 * GIB} {GIB} {GIB // 2}",
        "compute-mode 0",
        "mig-mode 0 0",
        *MIG_PROFILES,
        "utilization 55 12",
        "power-mw 350500",
        "power-limit-mw 700000",
        "energy-mj 123456789",
        "temperature:0 45",
        "field:82:0 51",
        "clock-mhz:1 1980",
        "clock-mhz:2 3201",
        "clock-reasons 0",
        "pcie-generation 5",
        "pcie-generation-max 5",
        "pcie-width 16",
        "pcie-width-max 16",
        "pcie-kb-per-s:0 1000",
        "pcie-kb-per-s:1 2000",
        "pcie-replays 0",
        "ecc-mode 1 1",
        *(f"ecc:{error}:{counter} 0" for error in (0, 1) for counter in (0, 1)),
        "remapped 0 0 0 0",
        f"field:138:{2**32 - 1} 1000",
        f"field:139:{2**32 - 1} 2000",
    ]
    return [_at(index, line) for line in (*changes, *lines)]


def _at(index: int, line: str) -> str:
    key, _, values = line.partition(" ")
    return f"{key} {index} {values}"


def machine(count: int = 2, *changes: str) -> list[str]:
    """Lines of a machine with so many devices; changes are whole lines and come first."""
    lines = [*changes, "driver * 550.54.15", "nvml * 12.550.54.15", "cuda * 12040"]
    lines.append(f"count * {count}")
    for index in range(count):
        lines += device(index)
    return lines


def write(path: Path, lines: list[str]) -> None:
    """Make this the situation, at once."""
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.replace(fresh, path)  # noqa: PTH105 - a replacement is what it is

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

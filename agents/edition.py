"""Which edition of the supervisor's own files somebody has: standard library only.

A supervisor outlives upgrades of its node's package, since tasks would end with it. So that it does
not do so for ever, it says at which edition it began, and an agent that finds another one on the
disk has it replaced as soon as there is no task.
"""

# No pathlib here: it would cost the supervisor memory.
# ruff: noqa: PTH100, PTH118, PTH120, PTH123

import os
import zlib

#: The modules that a supervisor is made of.
PARTS = (
    "__init__", "cgroups", "clients", "confinement", "crashpoints", "edition", "groups", "guardian",
    "journal", "nearby", "processes", "sandbox", "spawning", "starting", "supervisor", "sweeping",
    "verdicts",
)  # fmt: skip


def on_disk(folder: str = "") -> str:
    """The edition of the files of a folder, by default of those that this module is one of; empty
    where they can't be read."""
    folder = folder or os.path.dirname(os.path.abspath(__file__))
    found = 0
    for name in PARTS:
        try:
            with open(os.path.join(folder, f"{name}.py"), "rb") as stream:
                found = zlib.crc32(stream.read(), found)
        except OSError:
            return ""
    return f"{found:08x}"

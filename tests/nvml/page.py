"""The page that lists what the agent was shown of GPUs, made from the situations themselves.

``python -m tests.nvml.page`` writes it; a test holds that what is committed is what it writes.
"""

import sys
from typing import Any

from reconciler import package_data
from tests.nvml import situations

PATH = package_data.checkout() / "docs" / "reference" / "gpu-situations.md"
HEAD = """\
<!-- Written by `python -m tests.nvml.page`; do not edit. -->

# Situations of GPUs that are tested

Each is told to the agent by the stand-in for NVML, `tests/nvml/standin.c`, through NVIDIA's own
binding, in one look or several; `tests/integration/nvml/test_situations.py` compares what the agent
makes of the last one. Names are those of `agents.gpus.gpu_watcher.GpuLook`: `gpus.0` is the first
device, `usage.0` what it does, `foreign` processes that are no task's. {count} situations.
"""
GROUPS = (
    ("Drivers", situations.DRIVERS),
    ("Devices that come and go", situations.LOSSES),
    ("Values", situations.VALUES),
    ("NVLink, fabric, MIG", situations.WIRING),
    ("Processes", situations.PROCESSES),
)
#: So many of what is seen are told of each; the first ones are what it is about.
TOLD_MAX = 3


def text() -> str:
    """The whole page."""
    parts = [HEAD.format(count=len(situations.ROWS))]
    for title, rows in GROUPS:
        lines = [f"| {row.name}{_how(row)} | {_seen(row.sees)} |" for row in rows]
        parts.append(
            f"## {title}\n\n| situation | seen as |\n| --- | --- |\n" + "\n".join(lines) + "\n"
        )
    return "\n".join(parts)


def _how(row: situations.Row) -> str:
    settings = "".join(f", `{name}`" for name in row.settings)
    return f"{' (old driver)' if row.old else ''}{settings}"


def _seen(sees: dict[str, Any]) -> str:
    told = [_one(path, value) for path, value in list(sees.items())[:TOLD_MAX]]
    more = f", and {len(sees) - TOLD_MAX} more" if len(sees) > TOLD_MAX else ""
    return ", ".join(told) + more


def _one(path: str, value: object) -> str:
    name = path.rstrip("~!")
    if value is None:
        return f"`{name}` is {'' if path.endswith('!') else 'not '}told"
    if path.endswith("~"):
        return f"`{name}` has `{value}`"
    if value in ((), ""):
        return f"`{name}` is empty"
    return f"`{name}`: `{value}`"


def main() -> int:
    """Write the page."""
    PATH.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{PATH}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

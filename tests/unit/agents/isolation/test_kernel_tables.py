"""What one task may take of the kernel's tables, and which are too small for many."""

from pathlib import Path

import pytest

from agents.isolation import kernel_tables
from tests.unit.agents.host.test_host_info import tree


@pytest.mark.parametrize(
    ("wanted", "pid_max", "threads_max", "expected"),
    [
        (32_768, "32768", "1000000", 8192),
        (32_768, "4194304", "1000000", 32_768),
        (32_768, "4194304", "65536", 16_384),
        (1000, "32768", "1000000", 1000),
        (32_768, "8192", "1000000", kernel_tables.PIDS_MIN),
        (0, "32768", "1000000", 0),
        (32_768, "much", "", 32_768),
    ],
)
def test_a_task_may_have_a_part_of_all_processes(
    wanted: int, pid_max: str, threads_max: str, expected: int, tmp_path: Path
) -> None:
    top = tree(
        tmp_path,
        {
            "proc/sys/kernel/pid_max": pid_max,
            "proc/sys/kernel/threads-max": threads_max,
        },
    )
    assert kernel_tables.pids_max(wanted, top) == expected


def test_tables_are_too_small_by_the_number_of_tasks(tmp_path: Path) -> None:
    top = tree(
        tmp_path,
        {
            "proc/sys/kernel/pid_max": "32768\n",
            "proc/sys/fs/aio-max-nr": "65536\n",
            "proc/sys/kernel/pty/max": "4096\n",
        },
    )

    def small(tasks: int) -> dict[str, tuple[int, int]]:
        return {
            table.sysctl: (found, table.wanted(tasks))
            for table, found in kernel_tables.too_small(tasks, top)
        }

    assert small(1) == {}
    assert small(4) == {"kernel.pid_max": (32768, 131072), "fs.aio-max-nr": (65536, 262144)}
    assert small(10_000)["kernel.pid_max"] == (32768, 2**22), "more the kernel does not take"
    assert small(5)["kernel.pty.max"] == (4096, 5120)

"""What tasks use, from trees of files as machines have them."""

import math
from pathlib import Path

import pytest

from agents.isolation import cgroups
from agents.node import usage_sampler
from reconciler.model.observed import devices, task_usage
from reconciler.model.protocol import agent_messages
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState
from tests.unit.agents.host.test_host_info import tree

TOKEN = "muster-0000abcd"
PAGE = usage_sampler._PAGE_BYTES
MOUNTS = """\
30 1 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
31 1 0:31 /docker/box /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
#: Group of the task in both hierarchies.
RUN = f"{TOKEN}/run/a.1"


def process(
    pid: int, parent: int, session: int, *, ticks: tuple[int, int, int, int] = (0, 0, 0, 0),
    pages: int = 1, io: str | None = None, state: str = "S",
) -> dict[str, str]:  # fmt: skip
    """The files of a process whose name is made to mislead."""
    used = " ".join(map(str, ticks))
    begin = f"{pid} (a) b (c) {state} {parent} {pid} {session}"
    stat = f"{begin} 0 -1 0 0 0 0 0 {used} 20 0 1 0 99 0 {pages}"
    files = {f"proc/{pid}/stat": f"{stat} 0 0\n"}
    return files | ({f"proc/{pid}/io": io} if io is not None else {})


def io_of(read: int, written: int) -> str:
    return f"rchar: 9\nwchar: 9\nread_bytes: {read}\nwrite_bytes: {written}\n"


def test_all_processes_of_a_task_count_wherever_they_hide(tmp_path: Path) -> None:
    one_s = round(1 / usage_sampler._TICK_S)
    files = {
        **process(10, 1, 10, ticks=(one_s, one_s, one_s, 0), pages=10, io=io_of(100, 7)),
        **process(11, 10, 10, ticks=(one_s, 0, 0, 0), pages=5, io=io_of(1, 1)),
        **process(12, 10, 12, pages=2, io=""),  # in a session of its own
        **process(13, 1, 13, pages=3, io=io_of(0, 2)),  # a daemon: only its group tells
        **process(14, 13, 14, pages=1, io=io_of(0, 0)),
        **process(15, 10, 10, state="Z", ticks=(one_s, 0, 0, 0), pages=0),
        **process(20, 1, 20, pages=1000, io=io_of(5000, 5000)),  # somebody else
        "proc/self/mountinfo": MOUNTS,
        "proc/10/cgroup": f"4:memory:/agent\n0::/docker/box/{RUN}\n",
        f"sys/fs/cgroup/unified/{RUN}/cgroup.procs": "10\n11\n12\n13\n",
    }
    uses = usage_sampler.TaskUsageSampler(TOKEN, str(tree(tmp_path, files)))
    gpus = (task_usage.GpuUse(0, 1, 5),)
    uses.look({"a.1": 10, "b.1": 999}, {"a.1": gpus})
    told = {one.attempt: one for one in uses.news() or ()}
    assert uses.news() is None
    found = told["a.1"]
    assert (found.processes, found.cpu_s, found.gpus) == (5, 5.0, gpus)
    assert (found.memory_bytes, found.memory_max_bytes) == (21 * PAGE, 21 * PAGE)
    assert (found.read_bytes, found.written_bytes) == (101, 10)
    assert told["b.1"].processes == 0  # it has just gone


def test_sums_do_not_fall_and_come_with_the_end(tmp_path: Path) -> None:
    files = {
        **process(10, 1, 10, ticks=(500, 0, 0, 0), pages=10, io=io_of(100, 7)),
        "proc/self/mountinfo": "",
        "proc/10/cgroup": "0::/\n",
    }
    uses = usage_sampler.TaskUsageSampler(TOKEN, str(tree(tmp_path, files)))
    uses.look({"a.1": 10}, {})
    tree(tmp_path, process(10, 1, 10, pages=2, io=""))
    uses.look({"a.1": 10}, {})
    (found,) = uses.news() or ()
    assert (found.memory_bytes, found.memory_max_bytes) == (2 * PAGE, 10 * PAGE)
    assert (found.read_bytes, found.written_bytes) == (100, 7)
    assert found.cpu_s == 500 * usage_sampler._TICK_S
    ended = uses.with_use(AttemptReport("a.1", AttemptState.ENDED, cpu_s=0.5, written_bytes=9))
    assert (ended.cpu_s, ended.max_memory_bytes) == (found.cpu_s, 10 * PAGE)
    assert (ended.read_bytes, ended.written_bytes) == (100, 9)
    other = AttemptReport("b.1", AttemptState.ENDED)
    assert uses.with_use(other) is other
    uses.look({}, {})
    assert uses.news() is None


def test_the_time_of_gpus_is_summed_and_comes_with_the_end(tmp_path: Path) -> None:
    files = {**process(10, 1, 10), "proc/self/mountinfo": "", "proc/10/cgroup": "0::/\n"}
    # the third look is after a gap, as if the machine had slept, and the last after a step back
    moments = [100.0, 110.0, 500.0, 510.0, 400.0]
    clock = iter(moments).__next__
    uses = usage_sampler.TaskUsageSampler(TOKEN, str(tree(tmp_path, files)), clock)
    given = agent_messages.Assignment("a.1", "a.main", "boot", devices=(0, 1, 2), share_milli=500)
    usage = [
        devices.GpuUsage(0, "u0", 0.0, utilization_ratio=1.0),
        devices.GpuUsage(1, "u1", 0.0, utilization_ratio=0.5),
        devices.GpuUsage(2, "u2", 0.0),  # its driver does not say
    ]
    shares = usage_sampler.gpu_shares({"a.1": given, "b.1": None}, usage)
    assert shares == {"a.1": (1.0, 0.75)}
    for _ in moments:
        uses.look({"a.1": 10}, {}, shares)
    ended = uses.with_use(AttemptReport("a.1", AttemptState.ENDED))
    assert (ended.measured_gpu_s, ended.busy_gpu_s) == (20.0, 15.0)


@pytest.mark.parametrize("version", [1, 2])
def test_what_processes_share_is_counted_once_where_a_group_tells(
    tmp_path: Path, version: int
) -> None:
    old = {
        "memory.usage_in_bytes": "900", "memory.max_usage_in_bytes": "1000",
        "memory.stat": "cache 300\ntotal_inactive_file 200\n",
    }  # fmt: skip
    new = {"memory.current": "900", "memory.peak": "1000", "memory.stat": "inactive_file 200\n"}
    folder = f"sys/fs/cgroup/{'memory' if version == 1 else 'unified'}/{RUN}"
    line = f"4:memory:/{RUN}\n" if version == 1 else f"0::/docker/box/{RUN}\n"
    files = {
        **process(10, 1, 10, pages=1000),
        **process(11, 10, 10, pages=1000),
        "proc/self/mountinfo": MOUNTS,
        "proc/10/cgroup": line,
        **{f"{folder}/{name}": text for name, text in (old if version == 1 else new).items()},
    }
    uses = usage_sampler.TaskUsageSampler(TOKEN, str(tree(tmp_path, files)))
    uses.look({"a.1": 10}, {})
    (found,) = uses.news() or ()
    assert (found.memory_bytes, found.memory_max_bytes, found.processes) == (700, 1000, 2)


def test_the_token_is_the_supervisors() -> None:
    assert cgroups.token_of("/srv/n1").startswith("muster-")


def test_what_a_node_says_is_brought_within_reason() -> None:
    gpus = (task_usage.GpuUse(0, -1, -5), task_usage.GpuUse(0, 3), task_usage.GpuUse(10**9, 1))
    told = task_usage.TaskUse("a", math.nan, -3, math.nan, 2**70, -1, None, -2, gpus)
    assert task_usage.bounded(told, 50.0) == task_usage.TaskUse(
        "a", 0.0, 0, 0.0, task_usage.AMOUNT_MAX, 0, None, 0, (task_usage.GpuUse(0, 0, 0),)
    )
    assert task_usage.bounded(task_usage.TaskUse("a", 99.0), 50.0).at == 50.0


def test_a_group_whose_name_is_no_text_costs_nobody_else_anything(tmp_path: Path) -> None:
    """A task that may make groups may give them any name."""
    files = {
        **process(10, 1, 10, pages=10),
        **process(20, 1, 20, pages=3),
        "proc/self/mountinfo": MOUNTS,
    }
    top = tree(tmp_path, files)
    (top / "proc/10/cgroup").write_bytes(b"4:memory:/agent/\xff\n")
    uses = usage_sampler.TaskUsageSampler(TOKEN, str(top))
    uses.look({"a.1": 10, "b.1": 20}, {})
    told = {one.attempt: one.memory_bytes for one in uses.news() or ()}
    assert told == {"a.1": 10 * PAGE, "b.1": 3 * PAGE}

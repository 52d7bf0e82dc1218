"""Whose a process on a GPU is: a table of process trees."""

from dataclasses import dataclass, field

import pytest

from agents.gpus.process_owners import Facts, owner_of

TASKS = {"train": 100, "serve": 200}
BASE = {
    1: Facts(0, 1, 0, 0, "init"),
    50: Facts(1, 50, 1, 0, "supervisor"),
    100: Facts(50, 100, 2, 1000, "python", "train", "/muster/train"),
    200: Facts(50, 200, 2, 1001, "python", "serve", "/muster/serve"),
}


@dataclass(frozen=True)
class Row:
    name: str
    process: Facts | None
    owner: str
    others: dict[int, Facts] = field(default_factory=dict)
    shared: str = "/"
    pid: int = 900


ROWS = (
    Row("the main process itself", None, "train", pid=100),
    Row("a child", Facts(100, 100, 3, 1000), "train"),
    Row("a grandchild", Facts(300, 300, 3, 1000), "train", {300: Facts(100, 300, 3, 1000)}),
    Row("a child in a session of its own", Facts(100, 900, 3, 1000), "train"),
    Row("an orphan in the task's session", Facts(1, 200, 3, 1001), "serve"),
    Row("a daemon that kept its environment", Facts(1, 900, 3, 1000, "d", "train"), "train"),
    Row("another user who took the name", Facts(1, 900, 3, 1002, "d", "train"), ""),
    Row("a name of a task that is no more", Facts(1, 900, 3, 1000, "d", "gone"), ""),
    Row("a daemon in the task's cgroup", Facts(1, 900, 3, 7, cgroup="/muster/train"), "train"),
    Row("in a cgroup below it", Facts(1, 900, 3, 7, cgroup="/muster/train/inner"), "train"),
    Row("in a cgroup of a like name", Facts(1, 900, 3, 7, cgroup="/muster/training"), ""),
    Row("in a cgroup that the agent shares", Facts(1, 900, 3, 7, cgroup="/muster/train"), "",
        shared="/muster/train"),
    Row("somebody else's", Facts(1, 900, 3, 1000, "python"), ""),
    Row("gone", None, ""),
    Row("in a circle, as pids may be reused", Facts(901, 900, 3), "", {901: Facts(900, 901, 3)}),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_owner_of_a_process(row: Row) -> None:
    table = BASE | row.others | ({row.pid: row.process} if row.process else {})
    assert owner_of(row.pid, table, TASKS, row.shared) == row.owner

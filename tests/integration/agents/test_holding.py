"""What becomes of a task that starts but can't be held, and what one inherits and is told to have
used: with a real supervisor."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.host import processes
from reconciler.model.state.states import EndReason
from tests import started
from tests.integration.agents.supervised import Bed
from tests.integration.agents.test_isolation import bed, controller

__all__ = ["bed"]

#: No kernel takes this for a number of bytes.
WRONG = 1e18


def together(bed: Bed, names: list[str], script: str, **order: Any) -> None:
    """Order tasks in one breath: all but the first are started without a fork."""
    orders: list[dict[str, Any]] = []
    send, bed.supervisor.send = bed.supervisor.send, orders.extend  # type: ignore[assignment,method-assign]
    for name in names:
        bed.start(name, script, **order)
    bed.supervisor.send = send  # type: ignore[method-assign]
    assert bed.supervisor.send(orders)


@controller("memory")
def test_a_task_whose_limit_is_refused_ends_before_its_end_is_told(bed: Bed) -> None:
    names = [f"w.{number}" for number in range(6)]
    together(bed, names, "setsid sleep 999 & sleep 999", limits={"memory_bytes": WRONG})
    for name in names:
        report = bed.ended(name)
        left = [p for p in processes.processes() if started.attempt_of(p, str(bed.root)) == name]
        assert not left, name
        assert (report.end_reason, report.exit_code) == (EndReason.CHECK_FAILED, None)
        assert name in bed.supervisor.node_faults
        assert "control group of the task: Invalid argument" in report.message
    assert bed.run("exit 3").exit_code == 3, "the supervisor goes on"


@controller("memory")
def test_a_small_task_is_not_told_to_have_used_what_the_supervisor_had(bed: Bed) -> None:
    names = [f"s.{number}" for number in range(6)]
    limit = 8 * 2**20
    together(bed, names, "exit 0", limits={"memory_bytes": limit})
    for name in names:
        report = bed.ended(name)
        assert report.exit_code == 0
        assert 0 < report.max_memory_bytes <= limit


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[Bed]:
    """A supervisor whose agent's parent ignored and blocked signals."""
    ignored = (signal.SIGUSR2, signal.SIGQUIT, signal.SIGTSTP, signal.SIGRTMIN)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        made = Bed(tmp_path / "root")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    yield made
    made.close()


@pytest.mark.parametrize("user", [None, "nobody"])
def test_a_task_finds_all_signals_at_their_default(deaf: Bed, user: str | None) -> None:
    if user is not None:
        if os.geteuid() != 0:
            pytest.skip("only root can change users")
        for folder in deaf.root.parents:
            if str(folder).startswith("/tmp/") and folder.stat().st_uid == 0:
                folder.chmod(0o755)
    names = [f"d.{number}" for number in range(4)]
    together(deaf, names, "grep -E 'Sig(Ign|Blk):' /proc/self/status", user=user)
    for name in names:
        assert deaf.ended(name).exit_code == 0
        masks = [int(line.split()[1], 16) for line in deaf.output(name).splitlines()]
        # the C library keeps two for itself, and ignores them where it starts a process
        found = {n for mask in masks for n in signal.valid_signals() if mask >> (n - 1) & 1}
        assert len(masks) == 2
        assert not found

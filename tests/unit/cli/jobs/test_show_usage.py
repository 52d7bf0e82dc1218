"""What tasks use, beside what they asked for, as a terminal of 80 columns shows it."""

import re

import msgspec
import pytest

from reconciler.cli.jobs import show_usage
from reconciler.model.observed import task_usage
from reconciler.model.state.records import AttemptRecord
from reconciler.model.state.states import AttemptState
from reconciler.model.values.resources import Resources
from reconciler.operations.views import attempt_views
from tests.unit.store import samples

MIB = 2**20
ON_GPUS = (task_usage.GpuUse(0, 1, 70 * 1024 * MIB + 1), task_usage.GpuUse(3, 2, None))
SAMPLED = task_usage.TaskUse(
    "x", 160.0, 3, 90.0, 300 * MIB, 1536 * MIB, 0, 12_345_678_901_234, ON_GPUS
)


def tried(number: int = 0, **changes: object) -> AttemptRecord:
    """A try at a task of a gang that runs since second 100 and asked for 16 CPUs and 64 GiB."""
    made = samples.attempt(samples.job("j"), state=AttemptState.RUNNING)
    has = Resources(cpu_milli=16_000, memory_bytes=64 * 1024 * MIB, gpu_milli=2000)
    return msgspec.structs.replace(
        made, **({"index": number, "started_at": 100.0, "resources": has} | changes)
    )


def shown(
    capsys: pytest.CaptureFixture[str],
    *tries: AttemptRecord,
    use: task_usage.TaskUse | None = SAMPLED,
) -> list[str]:
    """The lines below the attempts."""
    views = [attempt_views.attempt_view(one, array=False, use=use) for one in tries]
    show_usage.show(msgspec.to_builtins(views))
    return capsys.readouterr().out.splitlines()


def test_what_is_used_stands_beside_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _, headings, row, gpus, _efficiency = shown(capsys, tried())
    assert headings.split() == ["TASK", "TRY", "CPUS", "MEMORY", "PEAK", "READ", "WRITTEN"]
    cells = re.split(r"\s{2,}", row.strip())
    assert cells[2:] == ["1.50 of 16", "300Mi", "1.5Gi of 64Gi", "0", "11Ti"]
    assert gpus == "    GPU 0: 70Gi in 1 process; GPU 3: memory unknown in 2 processes"
    assert max(map(len, (headings, row, gpus))) <= 80


def test_columns_of_which_nothing_is_known_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = tried(
        state=AttemptState.ENDED, ended_at=110.0, cpu_s=1.0, max_memory_bytes=2000, read_bytes=None,
        written_bytes=None, resources=Resources(),
    )  # fmt: skip
    _, headings, row = shown(capsys, ended, use=None)
    assert headings.split() == ["TASK", "TRY", "CPUS", "MEMORY", "PEAK"]
    assert row.split()[2:] == ["0.10", "-", "2Ki"]


def test_nothing_is_shown_where_nothing_was_sampled(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, tried(), use=None) == []


def test_what_was_used_in_less_than_a_second_has_no_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quick = tried(state=AttemptState.ENDED, ended_at=100.5, cpu_s=0.4)
    _, headings, row = shown(capsys, quick)
    assert headings.split()[2] == "CPUS"
    assert "- of 16" in row, "it stays, since what was asked for stands behind it"


def test_a_wide_gang_is_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, *(tried(number, started_at=100.0 + number) for number in range(20)))
    assert lines[-2] == "and 12 more tasks (-o json has all)"
    assert len(lines) == 4 + 2 * show_usage.TASKS_MAX


def test_a_controller_of_before_does_not_say_what_was_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = msgspec.to_builtins(attempt_views.attempt_view(tried(), array=False, use=SAMPLED))
    del view["asked"]
    show_usage.show([view])
    assert " of " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"), (1023, "1023"), (1024, "1Ki"), (1536, "1.5Ki"), (10 * 1024, "10Ki"),
        (MIB - 1, "1Mi"), (1023 * MIB, "1023Mi"), (2**40, "1Ti"), (2**50, "1Pi"),
        (1023 * 2**50, "1023Pi"), (2**60, "1Ei"), (2**63, "8Ei"),
    ],
)  # fmt: skip
def test_sizes_take_four_digits_at_the_most(amount: int, text: str) -> None:
    assert show_usage._size(amount) == text


def test_the_efficiency_is_what_was_used_of_what_was_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(capsys, tried(), tried(1))
    assert "Efficiency: CPU 9% of 32m00s, memory 2% at its peak" in lines


def test_the_efficiency_of_gpus_is_kept_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    ended = tried(state=AttemptState.ENDED, ended_at=160.0, measured_gpu_s=120.0, busy_gpu_s=48.0)
    (line,) = [one for one in shown(capsys, ended, use=None) if "Efficiency" in one]
    assert line.endswith("GPU 40% of 2m00s")


def test_how_busy_the_gpus_of_an_attempt_are_is_that_of_its_node() -> None:
    gpus = [{"index": number, "usage": {"utilization": number / 4}} for number in range(4)]
    nodes = [{"name": "n1", "gpus": gpus}, {"name": "n2", "gpus": gpus}]
    alive = {"node": "n1", "state": "Running", "devices": [1, 2]}
    over = {**alive, "state": "Ended"}
    found = show_usage.with_busy([alive, over], nodes)
    assert [one.get("busy") for one in found] == [0.375, None]

"""Files that tasks write metrics to: read on, bounded, and nobody else's read by a trick."""

import json
import os
import threading
from pathlib import Path

import pytest

from agents.job_data import metric_lines, metrics
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

NAME = "j.1.h.0.main.0.1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "attempts" / NAME).mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    return tmp_path


def file_of(root: Path) -> Path:
    return root / "attempts" / NAME / "metrics"


def write(root: Path, text: str, mode: str = "a") -> None:
    with file_of(root).open(mode) as stream:
        stream.write(text)


def values(listener: metrics.MetricsReader) -> dict[str, float]:
    told = listener.news()
    return {} if told is None else {m.name: m.value for m in told[0].metrics}


def rows(root: Path) -> list[dict[str, float]]:
    text = (root / "logs" / f"{NAME}.metrics").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_what_is_written_is_read_once_line_by_line(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    listener.look([NAME])
    assert listener.news() is None
    write(root, '{"step": 1, "loss": 3}\n{"step": 2, "lo')
    listener.look([NAME])
    assert values(listener) == {"loss": 3}
    assert listener.news() is None
    write(root, 'ss": 2}\n')
    listener.look([NAME])
    assert values(listener) == {"loss": 2}
    assert [row["step"] for row in rows(root)] == [1, 2]


def test_another_agent_goes_on_where_the_last_one_was(root: Path) -> None:
    write(root, '{"step": 1, "loss": 3}\n')
    metrics.MetricsReader(root).look([NAME])
    write(root, '{"step": 2, "loss": 2}\n')
    again = metrics.MetricsReader(root)
    again.look([NAME])
    assert values(again) == {"loss": 2}
    assert [row["step"] for row in rows(root)] == [1, 2]


def test_what_nobody_took_is_told_again(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    write(root, "loss 1\n")
    listener.look([NAME])
    told = listener.news()
    assert listener.news() is None
    listener.again(told)
    assert listener.news() == told
    listener.again()
    assert listener.news() == told


def test_a_file_of_prometheus_that_is_replaced_is_read_anew(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    for number in (5, 7):
        fresh = file_of(root).with_suffix(".new")
        fresh.write_text(f"# TYPE loss gauge\nloss {number}\nlr 0.1\n")
        fresh.replace(file_of(root))
        listener.look([NAME])
        assert values(listener) == {"loss": number, "lr": 0.1}
    assert [row["loss"] for row in rows(root)] == [5, 7]


def test_the_last_words_of_a_task_are_read_before_its_end_is_told(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    write(root, '{"loss": 1}\n{"checkpoint": "step-3", "step": 3, "time": 5}')
    end = AttemptReport(NAME, AttemptState.ENDED, end_reason=EndReason.EXITED)
    listener.heard([end])
    saved = listener.with_saved(end).checkpoint
    assert saved is not None
    assert (saved.path, saved.at) == ("step-3", 5.0)
    assert values(listener) == {"loss": 1}
    listener.forget((NAME,))
    listener.again()
    assert listener.news() is None
    assert not list((root / "metrics").iterdir())


def test_who_makes_a_report_never_waits_for_a_disk(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    write(root, '{"loss": 1}\n{"checkpoint": "step-3", "step": 3, "time": 5}\n')
    listener.look([NAME])
    done = threading.Event()

    def report() -> None:
        told = listener.news()
        listener.again(told)
        listener.with_saved(AttemptReport(NAME, AttemptState.RUNNING))
        listener.forget((NAME,))
        done.set()

    with listener._reading:  # a read that hangs
        threading.Thread(target=report, daemon=True).start()
        assert done.wait(60)
    assert list((root / "metrics").iterdir())
    listener.look([])
    assert not list((root / "metrics").iterdir())


@pytest.mark.parametrize("kind", ["link", "hard-link", "pipe", "folder", "folder-link"])
def test_no_other_file_is_read(root: Path, kind: str) -> None:
    secret = root / "secret"
    secret.write_text("loss 1\n")
    target = file_of(root)
    match kind:
        case "link":
            target.symlink_to(secret)
        case "hard-link":
            target.hardlink_to(secret)
        case "pipe":
            os.mkfifo(target)
        case "folder":
            target.mkdir()
        case _:
            target.parent.rmdir()
            (root / "elsewhere").mkdir()
            (root / "elsewhere" / "metrics").write_text("loss 1\n")
            target.parent.symlink_to(root / "elsewhere")
    listener = metrics.MetricsReader(root)
    listener.look([NAME])
    assert listener.news() is None


def test_a_task_that_writes_too_fast_is_read_at_its_end(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    count = metrics.BEHIND_BYTES_MAX // 10
    write(root, "".join(f"loss {number:06}\n" for number in range(count)))
    listener.look([NAME])
    told = listener.news()
    assert told is not None
    assert told[0].metrics[0].value == count - 1
    assert told[0].skipped_bytes > 0
    assert told[0].bad_lines == 0


def test_all_that_a_task_wrote_last_is_read(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    count = 3 * metrics.READ_BYTES_MAX // 10
    write(root, "".join(f"loss {number:04}\n" for number in range(count)) + "last 7")
    listener.heard([AttemptReport(NAME, AttemptState.ENDED, end_reason=EndReason.EXITED)])
    told = listener.news()
    assert told is not None
    assert {m.name: m.value for m in told[0].metrics} == {"loss": count - 1, "last": 7}
    assert (told[0].lines, told[0].bad_lines, told[0].skipped_bytes) == (count + 1, 0, 0)


def test_what_is_left_out_at_the_end_is_counted(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    line = "loss 000001\n"
    write(root, line * (2 * metrics.LAST_BYTES_MAX // len(line)) + "last 7\n")
    size = file_of(root).stat().st_size
    listener.heard([AttemptReport(NAME, AttemptState.ENDED, end_reason=EndReason.EXITED)])
    told = listener.news()
    assert told is not None
    assert told[0].metrics[0].value == 7
    assert told[0].skipped_bytes == size - metrics.LAST_BYTES_MAX
    assert told[0].bad_lines == 0


def test_a_line_without_an_end_costs_no_memory_and_hides_nothing(root: Path) -> None:
    listener = metrics.MetricsReader(root)
    write(root, "x" * 3 * metrics.READ_BYTES_MAX)
    for _ in range(4):
        listener.look([NAME])
    write(root, "\nloss 4\n")
    listener.look([NAME])
    told = listener.news()
    assert told is not None
    assert (told[0].metrics[0].value, told[0].bad_lines) == (4.0, 1)
    assert f"longer than {metric_lines.LINE_BYTES_MAX}" in told[0].problem


def test_the_past_is_bounded_and_rare_series_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "ROWS_MAX", 100)
    listener = metrics.MetricsReader(root)
    for number in range(1000):
        line = f'{{"step": {number}, "loss": 1}}\n'
        if number % 100 == 99:
            line += f'{{"step": {number}, "valid": 2}}\n'
        write(root, line)
        if number % 50 == 0:
            listener.look([NAME])
    listener.look([NAME])
    kept = rows(root)
    assert len(kept) <= 100
    assert sum("valid" in row for row in kept) == 10
    steps = [row["step"] for row in kept if "loss" in row]
    assert steps[0] == 0
    assert steps[-1] > 960
    assert steps == sorted(steps)


def test_the_module_of_tasks_is_put_where_they_find_it(tmp_path: Path) -> None:
    os.umask(os.umask(0o077))
    metrics.install(tmp_path)
    metrics.install(tmp_path)
    placed = tmp_path / "lib" / "muster.py"
    assert placed.stat().st_mode & 0o777 == 0o644
    assert placed.parent.stat().st_mode & 0o777 == 0o755
    assert not list(placed.parent.glob("*.part"))


def test_what_an_agent_that_was_killed_has_noted_goes(root: Path) -> None:
    write(root, "loss 1\n")
    metrics.MetricsReader(root).look([NAME])
    again = metrics.MetricsReader(root)
    assert [path.name for path in (root / "metrics").iterdir()] == [NAME]
    again.forget((NAME,))
    assert not list((root / "metrics").iterdir())
    (root / "metrics" / "gone.1").touch()
    metrics.MetricsReader(root)
    assert not list((root / "metrics").iterdir())

"""Logs of processes that know nothing of it stay bounded, and keep their newest part."""

from pathlib import Path

from reconciler.operations.local import log_files


def test_a_log_is_turned_over_under_the_process_that_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "controller.log"
    with path.open("ab", buffering=0) as output:
        output.write(b"old " * 100)
        assert not log_files.bound(path, 400)
        output.write(b"newest")
        assert log_files.bound(path, 400)
        output.write(b"after")
    assert path.read_bytes() == b"after", "written at the new end, not behind a hole"
    kept = (tmp_path / "controller.log.1").read_bytes()
    assert len(kept) == 400
    assert kept.endswith(b"old newest")


def test_what_is_not_there_is_let_be(tmp_path: Path) -> None:
    assert not log_files.bound(tmp_path / "none", 1)

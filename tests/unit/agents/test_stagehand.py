"""What a copy never does, whatever its source says."""

import io
import os
from pathlib import Path

import pytest

from agents import stagehand


def test_what_grows_while_it_is_copied_is_not_written_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    chunks = iter([b"x" * 600, b"x" * 400, b"x" * 2**20, b"x" * 2**20])
    with pytest.raises(stagehand.StageError, match="was changed while it was copied"):
        stagehand._write(str(path), chunks, 1000, hashing=False, progress=stagehand.Progress())
    assert path.stat().st_size == 1000
    assert next(chunks)  # the rest was not asked for


def test_no_path_leads_up(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    handle = os.open(tmp_path / "a", stagehand.FOLDER)
    try:
        with pytest.raises(stagehand.StageError, match="leads elsewhere"):
            stagehand.descend(handle, "../a")
    finally:
        os.close(handle)


def test_what_grows_is_sent_no_further_than_shows_it(tmp_path: Path) -> None:
    stream = stagehand.AtMost(io.BytesIO(b"x" * 100), 10)
    with pytest.raises(stagehand.StageError, match="was changed"):
        stagehand.Folder(str(tmp_path)).write("file", stream, 10)
    assert stream.read(100) == b""
    assert not list(tmp_path.iterdir())

"""The key of proofs: one for as long as file or store has it, and never in the way of a start."""

from pathlib import Path

import pytest

from reconciler.controller.host import proof_key

ONE, TWO = b"1" * 32, b"2" * 32


def _write(state: Path, text: str | None) -> Path:
    path = state / proof_key.FILE
    if text is not None:
        path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("written", "stored", "keys"),
    [
        (ONE, None, (ONE,)),
        (ONE, ONE, (ONE,)),
        (None, TWO, (TWO,)),
        (ONE, TWO, (TWO, ONE)),  # a restored store: nodes have proofs by its key
        (ONE, b"short", (ONE,)),
    ],
)
def test_the_stores_key_goes_before_that_of_the_file(
    tmp_path: Path, written: bytes | None, stored: bytes | None, keys: tuple[bytes, ...]
) -> None:
    path = _write(tmp_path, written.hex() if written else None)
    assert proof_key.load(tmp_path, stored) == keys
    assert bytes.fromhex(path.read_text()) == keys[0]
    assert proof_key.load(tmp_path, None) == keys[:1]


@pytest.mark.parametrize("text", [None, "", "xyz", "00", "\x80"])
def test_a_key_that_is_lost_is_made_anew_and_kept(tmp_path: Path, text: str | None) -> None:
    path = _write(tmp_path, text)
    (key,) = proof_key.load(tmp_path, None)
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert proof_key.load(tmp_path, None) == (key,)
    (tmp_path / "other").mkdir()
    assert proof_key.load(tmp_path / "other", None) != (key,)


def test_a_folder_that_cannot_be_written_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert proof_key.load(tmp_path / "gone", ONE) == (ONE,)
    assert "the store alone has the key" in caplog.text

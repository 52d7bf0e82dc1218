"""The file of what proves which attempts were assigned to a node."""

from pathlib import Path

import pytest

from agents.host import operator_log
from agents.link import assignment_proofs

SAYS = operator_log.Console("n1")


def test_proofs_outlive_their_agent_and_are_private(tmp_path: Path) -> None:
    file = assignment_proofs.ProofFile(tmp_path, SAYS)
    for proofs in ({"a": "1"}, {}, {"a": "1", "b": "2"}):
        file.save(proofs)
        assert assignment_proofs.load(tmp_path, SAYS) == proofs
        assert (tmp_path / assignment_proofs.FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "found"), [("", {}), ("[]", {}), ("{", {}), ('{"a": "1", "b": 2}', {"a": "1"})]
)
def test_a_file_that_cannot_be_read_stops_nobody(
    tmp_path: Path, text: str, found: dict[str, str]
) -> None:
    (tmp_path / assignment_proofs.FILE).write_text(text)
    assert assignment_proofs.load(tmp_path, SAYS) == found


def test_a_disk_that_cannot_be_written_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = assignment_proofs.ProofFile(tmp_path / "gone", SAYS)
    file.save({"a": "1"})
    file.save({"a": "1"})
    assert capsys.readouterr().err.count("can't be written") == 1

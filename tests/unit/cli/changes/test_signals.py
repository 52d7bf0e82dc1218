"""``--signal`` of submit and run: as Slurm writes it, and what it becomes in a document."""

import pytest

from reconciler.cli.changes import submit_options
from reconciler.operations.changes import job_document


@pytest.mark.parametrize(
    ("written", "checkpoint"),
    [
        ("USR1", {"signal": "SIGUSR1"}),
        ("sigterm", {"signal": "SIGTERM"}),
        ("USR1@300", {"signal": "SIGUSR1", "signalBeforeLimit": "300s"}),
        ("B:USR2@5m", {"signal": "SIGUSR2", "signalBeforeLimit": "5m"}),
        # what is none of it is left to the check of the document
        ("USR1@", {"signal": "SIGUSR1", "signalBeforeLimit": ""}),
        ("KILL@soon", {"signal": "SIGKILL", "signalBeforeLimit": "soon"}),
    ],
)
def test_a_signal_becomes_a_checkpoint(written: str, checkpoint: dict[str, str]) -> None:
    assert submit_options.checkpoint(written) == checkpoint
    options = job_document.JobOptions("j", ("true",), checkpoint=checkpoint)
    spec = job_document.job_document(options)["spec"]
    assert isinstance(spec, dict)
    assert spec["checkpoint"] == checkpoint


def test_no_signal_is_no_checkpoint() -> None:
    assert submit_options.checkpoint(None) == {}
    spec = job_document.job_document(job_document.JobOptions("j", ("true",)))["spec"]
    assert isinstance(spec, dict)
    assert "checkpoint" not in spec

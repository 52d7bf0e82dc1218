"""What an agent's log says of tasks: that one started and that it ended, each once."""

from pathlib import Path

import pytest

from agents import settings, state
from agents.host import operator_log
from agents.logs import event_log
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import AttemptState, EndReason

RUNS = AttemptReport("a.1", AttemptState.RUNNING, started_at=1.0)
ENDS = AttemptReport(
    "a.1",
    AttemptState.ENDED,
    started_at=1.0,
    ended_at=2.0,
    exit_code=0,
    end_reason=EndReason.EXITED,
)


@pytest.mark.parametrize("reports", [(RUNS, ENDS), (ENDS,), (RUNS, RUNS, ENDS, ENDS)])
def test_a_task_that_starts_and_ends_in_the_same_reports_starts_once(
    reports: tuple[AttemptReport, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = settings.AgentSettings(name="n1", root=tmp_path, server="http://127.0.0.1:1")
    event_log.EventLog(options, operator_log.Console("n1")).heard(reports, state.AgentState("boot"))
    said = capsys.readouterr().err
    assert (said.count("task started"), said.count("task ended")) == (1, 1)

"""What an agent says of attempts names nothing of where the node keeps them."""

import pytest

from agents.link import sync
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", ""),
        (
            "no such file: /srv/n1/attempts/a.1/work/run.sh",
            "no such file: attempts/a.1/work/run.sh",
        ),
        ("/srv/n1/attempts/a.1: /srv/n1/logs/x", "attempts/a.1: logs/x"),
        ("no such file: /srv/n10/data", "no such file: /srv/n10/data"),
    ],
)
def test_paths_are_told_from_the_nodes_folder_on(message: str, expected: str) -> None:
    report = records.AttemptReport("a.1", AttemptState.ENDED, message=message)
    assert sync.relative(report, "/srv/n1").message == expected

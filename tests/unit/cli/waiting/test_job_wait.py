"""What is said while somebody waits for a job: news, each time that there are some."""

import pytest

from reconciler.cli.waiting import job_wait

LIMIT = ("ArrayLimit", "2 elements run at once (parallelism)")
ROOM = ("InsufficientResources", "1 CPU asked; 3 nodes: 3 lack CPUs")
BEHIND = ("Behind", "it would fit, but others go first: a")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        pytest.param([LIMIT, LIMIT, LIMIT], [LIMIT], id="the same"),
        pytest.param([ROOM, BEHIND, ROOM], [ROOM, BEHIND, ROOM], id="each change"),
        pytest.param([LIMIT, ROOM, LIMIT, ROOM], [LIMIT, ROOM], id="as asked for, between two"),
        pytest.param([ROOM, LIMIT, BEHIND, LIMIT], [ROOM, LIMIT, BEHIND], id="something new"),
    ],
)
def test_reasons_are_told_that_are_news(
    seen: list[tuple[str, str]], said: list[tuple[str, str]]
) -> None:
    told, usual, found = "", set[str](), []
    for code, message in seen:
        text = job_wait.new_reason_text({"code": code, "message": message}, told, usual)
        if text:
            told = text
            found.append(text)
    assert found == [f"{code}: {message}" for code, message in said]

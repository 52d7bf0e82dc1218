"""Nobody is told when work starts that could not start as queues and nodes are."""

import dataclasses

import pytest

from tests.unit.scheduling.situations import Situation


def busy() -> Situation:
    """Four GPUs, taken for ten minutes more."""
    s = Situation().node("n", gpu=4)
    s.queue("main", guaranteed=4).queue("small", limit=2).queue("off", suspended=True)
    return s.job("r", "main", gpu=4, on=("n",), time_limit_s=600)


@pytest.mark.parametrize(
    ("queue", "gpu", "preemptible"),
    [
        ("small", 3, True),  # over the limit of its queue
        ("main", 5, True),  # more than any node has
        ("off", 1, True),  # its queue is suspended
        ("small", 1, False),  # may not borrow, and nothing is guaranteed
    ],
)
def test_what_can_never_start_has_no_estimate(queue: str, gpu: int, *, preemptible: bool) -> None:
    s = busy().job("w", queue, gpu=gpu, preemptible=preemptible, time_limit_s=60)
    s.job("x", "main", gpu=1, time_limit_s=60)
    found = s.decide().estimates
    assert "w" not in found
    assert found["x"].at == 600.0


def test_what_can_start_has_one() -> None:
    s = busy().job("w", "small", gpu=2, time_limit_s=60)
    assert s.decide().estimates["w"].at == 600.0


def test_the_queue_that_has_less_of_its_share_is_reckoned_with_first() -> None:
    """Though what waits in the other came earlier: it will not start in that order."""
    s = Situation().node("n", gpu=4).queue("a", guaranteed=2).queue("b", guaranteed=2)
    s.policy = dataclasses.replace(s.policy, backfill="none", reclaim=False)
    for number in range(4):
        limit_s = 100.0 * (number + 1)
        s.job(f"r{number}", "b", gpu=1, on=("n",), time_limit_s=limit_s)
    for number in range(2):
        s.job(f"early{number}", "b", gpu=1, time_limit_s=1000.0)
    for number in range(2):
        s.job(f"late{number}", "a", gpu=1, time_limit_s=1000.0)
    found = {job: one.at for job, one in s.decide().estimates.items()}
    assert found == {"late0": 100.0, "late1": 200.0, "early0": 300.0, "early1": 400.0}

"""A search that came to nothing stands for others of which the same is certain, and no more."""

import pytest

from tests.unit.scheduling.situations import Situation


@pytest.mark.parametrize("first", ["half", "whole"])
def test_a_whole_gpu_may_be_of_a_node_that_shares_none(first: str) -> None:
    s = Situation().queue("a", guaranteed=2).queue("b")
    s.node("n", gpu=1, shareable=False).node("s", gpu=1)
    s.job("low", "b", gpu=1, on=("n",)).job("fixed", "b", gpu=1, on=("s",), preemptible=False)
    for name in (first, *{"half", "whole"} - {first}):
        s.job(name, "a", gpu={"half": 0.5, "whole": 1}[name])
    assert [(one.job, one.for_job) for one in s.decide().evictions] == [("low", "whole")]

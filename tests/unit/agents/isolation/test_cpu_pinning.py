"""Which cores tasks get."""

from hypothesis import given
from hypothesis import strategies as st

from agents.isolation import cpu_pinning

TWO_NODES = ((0, 1, 2, 3), (4, 5, 6, 7))


def test_near_the_gpus_first() -> None:
    held = cpu_pinning.CorePool(TWO_NODES)
    assert held.take("a", 2000, near={1}) == "4-5"
    assert held.take("b", 1000) == "6"  # the node that is fullest stays the one that is used
    assert held.take("c", 4000) == "0-2,7"
    held.give_back("a")
    assert held.take("d", 2000, near={1}) == "4-5"


def test_fractions_share_a_core_while_they_fit() -> None:
    held = cpu_pinning.CorePool(((0, 1),))
    assert [held.take(n, 400) for n in "abc"] == ["0", "0", "1"]
    assert held.take("d", 1000) == "1"  # none is free: the least loaded


def test_what_was_given_out_before_is_not_given_again() -> None:
    held = cpu_pinning.CorePool(((0, 1, 2, 3),))
    held.restore("old", "0,2-3")
    assert held.take("new", 1000) == "1"


def test_of_a_machine() -> None:
    assert cpu_pinning.of_machine(["0-1", "2-3"], {0, 2, 3, 9}).numa == ((0,), (2, 3), (9,))
    assert cpu_pinning.of_machine([], {1, 0}).numa == ((0, 1),)


@given(st.sets(st.integers(0, 200)))
def test_lists_read_back(chosen: set[int]) -> None:
    assert set(cpu_pinning.parse(cpu_pinning.text_of(chosen))) == chosen


@given(st.lists(st.tuples(st.integers(100, 4000), st.booleans()), max_size=30))
def test_whole_cpus_are_nobody_elses_while_there_is_room(steps: list[tuple[int, bool]]) -> None:
    held = cpu_pinning.CorePool(TWO_NODES)
    for i, (milli, gives_back) in enumerate(steps):
        rounded = milli - milli % 1000
        loads = held._loads()
        if sum(not load for load in loads.values()) * 1000 >= rounded and milli % 1000 == 0:
            chosen = cpu_pinning.parse(held.take(f"t{i}", milli))
            assert all(loads[core] == 0 for core in chosen)
            assert len(chosen) == milli // 1000
        if gives_back:
            held.give_back(f"t{i}")

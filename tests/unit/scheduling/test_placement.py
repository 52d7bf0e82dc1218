"""Where elements go: few nodes, tight fits, lowest devices, gangs whole."""

from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation, amounts


def places(situation: Situation) -> list[tuple[str, list[tuple[str, tuple[int, ...]]]]]:
    """(job, [(node, devices)]) for everything that starts."""
    decisions = situation.decide()
    return [
        (p.job, [(situation.nodes[t.node].name, t.devices) for t in p.tasks])
        for p in decisions.placements
    ]


def test_a_task_goes_to_the_node_that_it_fills_best_and_keeps_blocks_of_devices() -> None:
    s = Situation().node("a", gpu=8).node("b", gpu=8).node("c", gpu=8, accepts=False).queue("main")
    s.job("runs", gpu=5, on=("b",)).job("small", gpu=2).job("big", gpu=8)
    assert places(s) == [("small", [("b", (6, 7))]), ("big", [("a", tuple(range(8)))])]


def test_work_without_gpus_keeps_off_nodes_with_gpus_where_it_can() -> None:
    s = Situation().node("gpu", gpu=8).node("cpu", gpu=0).queue("main").job("j", cpu=4)
    assert places(s) == [("j", [("cpu", ())])]


def test_a_gang_takes_as_few_nodes_as_can_be_and_the_smallest_hole_for_the_rest() -> None:
    s = Situation().queue("main")
    s.node("a", gpu=2).node("b", gpu=4).node("c", gpu=4).node("d", gpu=1)
    s.job("gang", gpu=1, tasks=5)
    assert places(s) == [
        ("gang", [("b", (0,)), ("b", (1,)), ("b", (2,)), ("b", (3,)), ("d", (0,))])
    ]


def test_a_gang_that_does_not_fit_whole_starts_nothing_and_lets_smaller_work_pass() -> None:
    s = Situation().node("a", gpu=4).node("b", gpu=4).queue("main")
    s.job("runs", gpu=1, on=("a",)).job("gang", gpu=4, tasks=2).job("small", gpu=1)
    decisions = s.decide()
    assert situations.started(decisions) == ["small"]
    assert situations.code(s, decisions, "gang") == "InsufficientResources"


def test_groups_of_different_shape_start_together() -> None:
    s = Situation().node("a", gpu=4, cpu=8).node("b", gpu=0, cpu=32).queue("main")
    groups = (("server", 1, amounts(0, 30)), ("worker", 2, amounts(2, 4)))
    s.job("train", groups=groups)
    (placement,) = s.decide().placements
    assert [(t.group, t.index, t.node, t.devices) for t in placement.tasks] == [
        (0, 0, 1, ()),
        (1, 0, 0, (0, 1)),
        (1, 1, 0, (2, 3)),
    ]


def test_the_search_finds_what_no_greedy_order_finds() -> None:
    s = Situation().queue("main")
    s.node("a", cpu=10, memory=100).node("b", cpu=10, memory=100).node("c", cpu=7, memory=100)
    groups = (("x", 2, amounts(0, 5, 1)), ("y", 2, amounts(0, 3, 1)), ("z", 3, amounts(0, 2, 1)))
    s.job("puzzle", groups=(*groups, ("w", 1, amounts(0, 4, 1))))
    (placement,) = s.decide().placements
    assert len(placement.tasks) == 8


def test_an_array_starts_as_many_elements_as_fit_and_no_more_than_its_parallelism() -> None:
    s = Situation().node("a", gpu=4).queue("main")
    s.job("wide", gpu=1, array=9).job("narrow", cpu=1, array=5, parallelism=2)
    decisions = s.decide()
    assert [(p.job, p.element) for p in decisions.placements] == [
        ("wide", 0),
        ("wide", 1),
        ("wide", 2),
        ("wide", 3),
        ("narrow", 0),
        ("narrow", 1),
    ]
    assert situations.code(s, decisions, "wide") == "InsufficientResources"
    assert situations.code(s, decisions, "narrow") == "ArrayLimit"


def test_nothing_goes_to_nodes_that_are_not_eligible() -> None:
    s = Situation().node("a", gpu=8, pool="a100").node("b", gpu=8, pool="h100").queue("main")
    s.job("j", gpu=1, pool="h100")
    assert places(s) == [("j", [("b", (0,))])]

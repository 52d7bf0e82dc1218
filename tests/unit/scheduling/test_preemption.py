"""Who has to leave for whom, situation by situation."""

import dataclasses

from reconciler.scheduling.cycle import scheduling_cycle
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import Situation, evicted, started


def two_teams(guaranteed: int = 4, gpus: int = 8) -> Situation:
    """One node, two queues with the same guarantee."""
    s = Situation().node("n", gpu=gpus).queue("a", guaranteed=guaranteed)
    return s.queue("b", guaranteed=guaranteed)


def test_a_guarantee_is_taken_back_from_who_borrowed_it() -> None:
    s = two_teams()
    for index in range(8):
        s.job(f"b{index}", "b", gpu=1, on=("n",))
    s.job("mine", "a", gpu=2)
    decisions = s.decide()
    assert evicted(decisions) == [("b7", "mine"), ("b6", "mine")]
    assert situations.code(s, decisions, "mine") == "WaitingForEvictions"
    again = s.apply(decisions).decide()
    assert (started(again), evicted(again)) == ([], [])
    assert situations.code(s, again, "mine") == "WaitingForEvictions"
    assert started(s.left().decide()) == ["mine"]


def test_borrowing_gives_no_right_to_evict() -> None:
    s = two_teams().job("b", "b", gpu=8, on=("n",)).job("greedy", "a", gpu=5)
    assert evicted(s.decide()) == []


def test_a_queue_within_its_guarantee_loses_nothing_to_others() -> None:
    s = two_teams(gpus=6).job("b1", "b", gpu=4, on=("n",)).job("urgent", "a", gpu=3, priority=99)
    assert evicted(s.decide()) == []


def test_only_what_is_over_the_guarantee_is_taken() -> None:
    s = two_teams()
    for index in range(3):
        s.job(f"b{index}", "b", gpu=2, on=("n",))
    s.job("a", "a", gpu=2, on=("n",)).job("more", "a", gpu=2).job("most", "a", gpu=1)
    assert evicted(s.decide()) == [("b2", "more")]


def test_a_gang_that_straddles_the_guarantee_may_be_taken_when_nothing_else_helps() -> None:
    s = two_teams().job("gang", "b", gpu=6, on=("n",)).job("mine", "a", gpu=4)
    assert evicted(s.decide()) == [("gang", "mine")]


def test_older_work_within_the_guarantee_is_not_taken_for_a_newer_straddler() -> None:
    s = Situation().node("x", gpu=4).node("y", gpu=4)
    s.queue("a", guaranteed=4).queue("b", guaranteed=4)
    s.job("old", "b", gpu=4, on=("x",)).job("new", "b", gpu=1, on=("y",)).job("mine", "a", gpu=4)
    assert evicted(s.decide()) == [("new", "mine")]


def test_higher_priority_evicts_lower_of_its_own_queue_only() -> None:
    s = Situation().node("n", gpu=4).queue("a").queue("b")
    s.job("theirs", "b", gpu=1, priority=1, on=("n",)).job("same", "a", gpu=1, on=("n",))
    s.job("low", "a", gpu=2, priority=10, on=("n",)).job("high", "a", gpu=2)
    assert evicted(s.decide()) == [("low", "high")]


def test_priority_takes_more_than_it_frees_only_within_its_queues_share() -> None:
    """What it took beyond would be reclaimed at once, and so on without end."""

    def contended(guaranteed: int) -> Situation:
        s = Situation().node("n", gpu=1, cpu=4).queue("a", guaranteed_cpu=4)
        s.queue("b", guaranteed=guaranteed).job("low", "a", cpu=4, priority=10, on=("n",))
        return s.job("high", "a", gpu=1, priority=50)

    assert evicted(contended(0).decide()) == [("low", "high")], "nobody else asks for the GPU"
    owed = contended(1).job("owed", "b", gpu=1)
    assert ("low", "high") not in evicted(owed.decide())


def test_the_cheapest_go_lowest_priority_then_least_work_then_newest() -> None:
    s = Situation().node("n", gpu=5).queue("main")
    for name, priority, cost_s in [("p20", 20, 0), ("dear", 10, 9), ("x", 10, 5), ("y", 10, 5)]:
        s.job(name, gpu=1, priority=priority, cost_s=cost_s, on=("n",))
    s.job("firm", gpu=1, priority=1, preemptible=False, on=("n",))
    s.job("one", gpu=1)
    assert evicted(s.decide()) == [("y", "one")]
    s.job("two", gpu=2)
    assert evicted(s.decide()) == [("y", "one"), ("x", "two"), ("dear", "two")]


def test_nobody_is_evicted_in_vain() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.job("firm", gpu=2, priority=1, preemptible=False, on=("n",))
    s.job("low", gpu=2, priority=1, on=("n",)).job("high", gpu=3)
    decisions = s.decide()
    assert evicted(decisions) == []
    assert situations.code(s, decisions, "high") == "InsufficientResources"


def test_victims_that_turn_out_not_to_help_are_spared() -> None:
    s = Situation().node("x", gpu=2).node("y", gpu=4).queue("main")
    s.job("cheap", gpu=2, priority=1, on=("x",)).job("dear", gpu=4, priority=2, on=("y",))
    s.job("high", gpu=4)
    assert evicted(s.decide()) == [("dear", "high")]


def test_gangs_are_evicted_whole_and_need_no_more_than_is_missing() -> None:
    s = Situation().node("x", gpu=2).node("y", gpu=2).queue("main")
    s.job("gang", gpu=1, tasks=2, priority=1, on=("x", "y"))
    s.job("high", gpu=2, tasks=2)
    assert evicted(s.decide()) == [("gang", "high")]


def test_what_is_leaving_anyway_is_waited_for() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.job("going", gpu=2, on=("n",), leaving=True).job("low", gpu=2, priority=1, on=("n",))
    decisions = s.job("high", gpu=2).decide()
    assert evicted(decisions) == []
    assert situations.code(s, decisions, "high") == "WaitingForEvictions"


def test_room_that_others_were_evicted_for_is_kept() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.job("low", gpu=2, priority=1, on=("n",), leaving=True, leaving_for="high")
    s.job("high", gpu=4).job("small", gpu=2, priority=99)
    decisions = s.decide()
    assert (started(decisions), evicted(decisions)) == ([], [])
    assert situations.code(s, decisions, "high") == "WaitingForEvictions"
    assert situations.code(s, decisions, "small") == "Behind"
    assert "high" in situations.message(s, decisions, "small")


def test_a_promise_outlives_the_victims() -> None:
    s = Situation().node("n", gpu=2).queue("a").queue("b")
    s.job("low", "a", gpu=2, priority=1, on=("n",)).job("high", "a", gpu=2)
    s.apply(s.decide()).left()
    s.jobs["low"].order = 99
    s.job("rival", "b", gpu=2, priority=99)
    s.jobs["rival"].order = -1
    assert started(s.decide()) == ["high"]


def test_priority_makes_room_under_a_limit() -> None:
    s = Situation().node("n", gpu=8).queue("main", limit=4)
    s.job("low", gpu=4, priority=1, on=("n",)).job("high", gpu=4)
    assert evicted(s.decide()) == [("low", "high")]
    s.apply(s.decide())
    assert started(s.decide()) == []
    assert started(s.left().decide()) == ["high"]


def test_a_sibling_gives_back_though_the_parent_is_over_its_guarantee() -> None:
    s = Situation().node("n", gpu=8).queue("top", guaranteed=4)
    s.queue("a", "top", guaranteed=2).queue("b", "top", guaranteed=2)
    s.job("b", "b", gpu=2, on=("n",))
    for index in range(6):
        s.job(f"b{index}", "b", gpu=1, on=("n",))
    assert evicted(s.job("mine", "a", gpu=2).decide()) == [("b5", "mine"), ("b4", "mine")]


def test_a_cousin_loses_only_what_its_branch_has_over_its_guarantee() -> None:
    s = Situation().node("n", gpu=8).queue("x", guaranteed=4).queue("y", guaranteed=4)
    s.queue("x-1", "x", guaranteed=4).queue("y-1", "y").queue("y-2", "y", guaranteed=4)
    for index in range(5):
        s.job(f"y{index}", "y-1", gpu=1, on=("n",))
    s.job("mine", "x-1", gpu=4)
    assert evicted(s.decide()) == [("y4", "mine")]


def test_an_array_takes_back_as_many_as_it_may() -> None:
    s = two_teams()
    for index in range(8):
        s.job(f"b{index}", "b", gpu=1, on=("n",))
    s.job("mine", "a", gpu=1, array=9)
    decisions = s.decide()
    assert [victim for victim, _ in evicted(decisions)] == ["b7", "b6", "b5", "b4"]


def test_a_reclaim_wastes_none_of_its_right_on_nodes_that_do_not_help() -> None:
    s = Situation().queue("a", guaranteed=4).queue("b", guaranteed=8)
    for node in ("x", "y", "z"):
        s.node(node, gpu=4)
        for index in range(4):
            s.job(f"{node}{index}", "b", gpu=1, cost_s=float(index), on=(node,))
    s.job("mine", "a", gpu=4)
    decisions = s.decide()
    assert len({victim[0] for victim, _ in evicted(decisions)}) == 1
    assert len(decisions.evictions) == 4


def test_firm_work_is_not_held_up_by_preemptible_work_of_its_own_queue() -> None:
    s = two_teams().job("low", "a", gpu=4, priority=1, on=("n",))
    s.job("firm", "a", gpu=4, preemptible=False)
    decisions = s.decide()
    assert (started(decisions), evicted(decisions)) == (["firm"], [])


def test_among_equal_nodes_the_newest_work_leaves() -> None:
    s = Situation().queue("a", guaranteed=2).queue("b", guaranteed=2)
    for node in ("x", "y", "z"):
        s.node(node, gpu=3).job(f"b-{node}", "b", gpu=2, on=(node,))
    s.job("mine", "a", gpu=2)
    assert evicted(s.decide()) == [("b-z", "mine")]


def test_on_one_node_queues_lose_in_turn() -> None:
    s = Situation().node("n", gpu=6).queue("a", guaranteed=1).queue("b", guaranteed=1)
    s.queue("c", guaranteed=2, weight=0)
    for index in range(3):
        s.job(f"a{index}", "a", gpu=1, on=("n",)).job(f"b{index}", "b", gpu=1, on=("n",))
    s.job("gang", "c", gpu=1, tasks=2)
    assert sorted(evicted(s.decide())) == [("a2", "gang"), ("b2", "gang")]


def test_who_is_alone_at_a_priority_needs_no_weight_to_come_before_lower_ones() -> None:
    """Weights divide between queues of one priority; there is nobody to divide with."""
    s = Situation().node("n", gpu=4).queue("low", guaranteed=1).queue("due", guaranteed=1)
    s.queue("high", guaranteed=1, weight=0, priority=1)
    for index in range(2):
        s.job(f"low{index}", "low", gpu=1, on=("n",)).job(f"high{index}", "high", gpu=1, on=("n",))
    s.job("asks", "due", gpu=1)
    assert evicted(s.decide()) == [("low1", "asks")]


def owed_beside_gaps(*, movable: bool) -> Situation:
    """Four of eight GPUs are owed to a queue; the other has five on two nodes, and more waits."""
    s = Situation().node("x", gpu=4).node("y", gpu=4)
    s.queue("holds", guaranteed=4).queue("owed", guaranteed=4)
    s.job("stays", "holds", gpu=2, movable=movable, on=("x",))
    s.job("moves", "holds", gpu=2, movable=movable, on=("y",))
    s.job("leaves", "holds", gpu=1, on=("y",))
    return s.job("waits", "holds", gpu=3).job("due", "owed", gpu=4)


def test_an_amount_that_is_owed_is_taken_and_other_work_moves_together_for_its_shape() -> None:
    """To take a whole node at once would leave the other queue less than its guarantee."""
    decisions = owed_beside_gaps(movable=True).decide()
    found = {e.job: e.ground for e in decisions.evictions}
    assert found == {"moves": "consolidate", "leaves": "reclaim"}


def test_where_nothing_can_be_moved_together_the_cheapest_node_is_taken() -> None:
    assert evicted(owed_beside_gaps(movable=False).decide()) == [("stays", "due")]


def test_nobody_leaves_for_an_amount_who_adds_nothing_to_it() -> None:
    """What the newest has is on a node too small for it; the next newest has what is missing."""
    s = Situation().node("x", gpu=4).node("y", gpu=4).node("z", gpu=1)
    s.queue("holds", guaranteed=3).queue("owed", guaranteed=4)
    s.job("stays", "holds", gpu=2, movable=True, on=("x",))
    s.job("moves", "holds", gpu=1, movable=True, on=("y",))
    s.job("leaves", "holds", gpu=2, on=("y",))
    s.job("small", "holds", gpu=1, on=("z",))
    s.job("waits", "holds", gpu=3).job("due", "owed", gpu=4)
    found = {e.job: e.ground for e in s.decide().evictions}
    assert found == {"stays": "consolidate", "moves": "reclaim"}


def test_what_grows_preempts_lower_priority_of_its_queue() -> None:
    s = Situation().node("n", gpu=3).queue("main", guaranteed=3)
    s.job("low", "main", gpu=1, tasks=2, least=1, on=("n", "n"))
    s.job("high", "main", gpu=1, tasks=2, least=1, priority=90, on=("n",))
    decisions = s.decide()
    assert [(e.job, e.tasks) for e in decisions.evictions] == [("low", ((0, 1),))]


def test_an_elastic_job_grows_by_nodes_of_as_many_tasks_as_it_asks_for() -> None:
    """The node with one of two tasks is filled first; a node with room for one is not taken."""
    s = Situation().queue("main")
    for name, gpu in (("a", 2), ("b", 2), ("c", 2), ("d", 1)):
        s.node(name, gpu=gpu)
    s.job("elastic", gpu=1, tasks=8, least=2, per_node=2, on=("a", "a", "b"))
    grown = [(t.index, "abcd"[t.node]) for one in s.decide().placements for t in one.tasks]
    assert grown == [(3, "b"), (4, "c"), (5, "c")]


def test_a_job_of_pairs_gets_the_rest_of_a_pair_before_another() -> None:
    """Tasks 0 and 1 were given up, and of the pair of 2 and 3 one was lost."""
    s = Situation().queue("main").node("a", gpu=2).node("b", gpu=2).node("c", gpu=2)
    s.job("elastic", gpu=1, tasks=6, least=2, per_node=2, on=("a", "a", "b", "b", "c"))
    s.held = [
        dataclasses.replace(one, tasks=tuple(t for t in one.tasks if t.index >= 2))
        for one in s.held
    ]
    grown = [(t.index, "abc"[t.node]) for one in s.decide().placements for t in one.tasks]
    assert grown == [(5, "c"), (0, "a"), (1, "a")]


def test_work_that_fits_nowhere_else_stays_and_other_work_moves() -> None:
    s = Situation().node("x", gpu=4).node("y", gpu=4).queue("main", guaranteed=2)
    s.job("full", gpu=3, on=("x",)).job("small", gpu=1, movable=True, on=("y",))
    s.job("large", gpu=2, movable=True, on=("y",)).job("asks", gpu=2)
    assert evicted(s.decide()) == [("small", "asks")]


def test_a_search_that_fails_on_an_elastic_gang_leaves_no_room_behind() -> None:
    s = Situation().node("n1", gpu=4).node("n2", gpu=4).queue("main", guaranteed=8)
    s.job("elastic", gpu=2, tasks=2, least=1, priority=10, on=("n1", "n1"))
    s.job("firm", gpu=4, priority=10, preemptible=False, on=("n2",))
    s.job("big", gpu=4, tasks=2, priority=90).job("small", gpu=2, priority=10)
    decisions = s.decide()
    assert (decisions.promised, evicted(decisions)) == ({}, [])
    assert situations.code(s, decisions, "small") == "InsufficientResources"


def test_a_search_that_fails_for_shares_says_nothing_of_whole_devices() -> None:
    s = Situation().node("n1", gpu=1).queue("main")
    s.job("low", gpu=1, priority=10, on=("n1",))
    s.job("halves", priority=90, groups=(("main", 1, situations.amounts(0.5, 1, 1)),))
    s.job("whole", gpu=1, priority=90)
    snapshot = s.snapshot()
    shapes = list(snapshot.shapes)
    two = dataclasses.replace(shapes[1].groups[0], devices=2, amounts=(1000, 2**30, 1000))
    shapes[1] = dataclasses.replace(shapes[1], groups=(two,))
    decisions = scheduling_cycle.schedule(dataclasses.replace(snapshot, shapes=tuple(shapes)))
    assert evicted(decisions) == [("low", "whole")]


def test_the_ground_of_an_eviction_names_a_queue_that_is_above_it() -> None:
    s = Situation().node("n", gpu=8).queue("a", guaranteed=4).queue("b", guaranteed=4)
    s.job("borrower", "b", gpu=6, on=("n",)).job("mine", "a", gpu=4)
    (eviction,) = s.decide().evictions
    assert eviction.why == (
        "queue a takes back its share for mine; queue b has more than its fair share of 4 GPUs"
    )


def test_what_grows_leaves_in_the_next_cycle_at_the_earliest() -> None:
    """Else the task that it was given would start while all others of it stop."""
    s = Situation().node("n", gpu=2).queue("q")
    s.job("elastic", "q", gpu=1, tasks=2, least=1, on=("n",))
    s.jobs["elastic"].promised = 1
    s.job("urgent", "q", gpu=1, priority=90)
    decisions = s.decide()
    assert [(p.job, p.action) for p in decisions.placements] == [("elastic", "grow")]
    assert not decisions.evictions
    decisions = s.apply(decisions).decide()
    assert [(e.job, e.tasks) for e in decisions.evictions] == [("elastic", ((0, 1),))]
    assert decisions.promised["urgent"]


def test_the_share_that_makes_no_room_does_not_use_up_what_may_be_taken() -> None:
    """A queue has half a device too much: its owner's whole one is freed all the same."""
    s = Situation().node("n", gpu=4)
    s.queue("own", guaranteed=1).queue("borrower", guaranteed=3).queue("other")
    s.job("firm", "other", gpu=0.5, preemptible=False, on=("n",), devices=(3,))
    s.job("share", "borrower", gpu=0.5, priority=10, on=("n",), devices=(3,))
    for device in range(3):
        s.job(f"whole{device}", "borrower", gpu=1, on=("n",), devices=(device,))
    decisions = s.job("due", "own", gpu=1).decide()
    assert [e.job for e in decisions.evictions] == ["whole2"]
    assert started(s.apply(decisions).left().decide()) == ["due"]

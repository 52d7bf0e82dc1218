"""Why work waits: true codes, counts that add up, texts that stay the same."""

import dataclasses

import pytest

from reconciler.model.state.pending_reasons import FunnelStep
from reconciler.scheduling.inputs.snapshots import WHOLE, TaskGroupShape
from reconciler.scheduling.reasons import reason_text
from tests.unit.scheduling import situations
from tests.unit.scheduling.situations import GIB, Situation, amounts, code, message


def test_the_funnel_counts_every_node_once() -> None:
    s = Situation().queue("main")
    s.node("cpu", pool="cpu").node("drained", gpu=8, accepts=False)
    for name in ("x", "y", "z"):
        s.node(name, gpu=8).job(f"on-{name}", gpu=5, on=(name,))
    s.job("free-cpus", cpu=60, on=("z",)).job("j", gpu=8, pool="gpu")
    decisions = s.decide()
    (reason,) = situations.reasons_of(s, decisions, "j")
    assert reason.code == "Fragmented"
    assert reason.funnel == (
        FunnelStep(1, "not in pool gpu"),
        FunnelStep(1, "not accepting work"),
        FunnelStep(3, "lack GPUs (8 asked, at most 3 free)"),
    )
    assert reason.message == (
        "enough is free, but not together: 8 GPUs, 1 CPU, 1Gi memory asked; "
        "5 nodes: 1 not in pool gpu, 1 not accepting work, "
        "3 lack GPUs (8 asked, at most 3 free)"
    )


def test_what_no_node_could_hold_is_told_apart_from_what_has_to_wait() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.job("runs", gpu=4, on=("n",)).job("wait", gpu=4).job("never", gpu=5)
    s.job("gang", gpu=4, tasks=2)
    decisions = s.decide()
    assert [code(s, decisions, job) for job in ("wait", "never", "gang")] == [
        "InsufficientResources",
        "NeverFits",
        "NeverFits",
    ]
    assert "the nodes would hold 1 of 2 such tasks" in message(s, decisions, "gang")


def test_groups_that_do_not_fit_together_never_fit() -> None:
    s = Situation().node("n", gpu=4, cpu=4).queue("main")
    s.job("j", groups=(("a", 1, amounts(1, 3)), ("b", 1, amounts(1, 3))))
    decisions = s.decide()
    assert code(s, decisions, "j") == "NeverFits"
    assert "do not fit together" in message(s, decisions, "j")


def test_a_limit_is_told_before_what_never_fits() -> None:
    s = Situation().node("n", gpu=4).queue("main", limit=2).job("j", gpu=8)
    decisions = s.decide()
    reasons = situations.reasons_of(s, decisions, "j")
    assert [reason.code for reason in reasons] == ["OverLimit", "NeverFits"]
    assert "it can't start under this limit" in reasons[0].message


def test_who_goes_first_is_named() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.job("first", gpu=3, priority=90).job("second", gpu=2)
    decisions = s.decide()
    assert (code(s, decisions, "second"), message(s, decisions, "second")) == (
        "Behind",
        "it would fit, but others go first: first",
    )


def test_work_that_moves_is_named_where_it_goes_to() -> None:
    """Room is kept there for it, in the cycle that moves it and until it has left."""
    s = Situation().node("n1", gpu=4, pool="a").node("n2", gpu=2, pool="b").queue("main")
    s.job("moves", gpu=1, on=("n1",), movable=True)
    s.job("whole", gpu=4, priority=90, pool="a").job("late", gpu=2, priority=10, pool="b")
    told = "it would fit, but others go first: moves"
    first = s.decide()
    assert situations.evicted(first) == [("moves", "whole")]
    assert message(s, first, "late") == told
    again = s.apply(first).decide()
    assert (situations.evicted(again), again.promised) == ([], {"whole": 1, "moves": 1})
    assert message(s, again, "late") == told


def test_texts_stay_the_same_while_nothing_happens() -> None:
    s = Situation().node("n", gpu=4).queue("main")
    s.job("runs", gpu=2, on=("n",)).job("a", gpu=3).job("b", gpu=2, tasks=2)
    first = s.decide()
    assert s.apply(first).decide().reasons == first.reasons


def test_no_nodes_at_all() -> None:
    s = Situation().queue("main").job("j", gpu=1)
    decisions = s.decide()
    assert code(s, decisions, "j") == "InsufficientResources"
    (reason,) = situations.reasons_of(s, decisions, "j")
    assert (reason.message, reason.never) == ("no node has joined yet", False)


def test_a_gang_is_told_what_it_needs_in_all() -> None:
    s = Situation().node("n", gpu=4).node("m", gpu=4).queue("main")
    s.job("runs", gpu=2, on=("n",)).job("rest", gpu=4, on=("m",)).job("gang", gpu=1, tasks=5)
    (reason,) = situations.reasons_of(s, s.decide(), "gang")
    assert reason.unblocks == (
        "wait until 5 GPUs, 5 CPUs, 5Gi memory are free for 5 tasks of 1 GPU, 1 CPU, 1Gi memory "
        "at once (2 of them have room now)"
    )


@pytest.mark.parametrize(
    ("group", "text", "together"),
    [
        (
            TaskGroupShape("g", 2, (1000, 0, 428), None, 3, WHOLE, 0, 0),
            "3 1g.10gb instances, 1 CPU",
            "6 1g.10gb instances, 2 CPUs are free for 2 tasks of 3 1g.10gb instances, 1 CPU",
        ),
        (
            TaskGroupShape("g", 1, (0, 0, 142), None, 1, WHOLE, 0, 0),
            "1 1g.10gb instance",
            "1 1g.10gb instance are free for 1 task of 1 1g.10gb instance",
        ),
        (
            TaskGroupShape("g", 2, (1000, GIB, 750), None, 1, WHOLE, 30 * GIB),
            "30Gi of one GPU, 1 CPU, 1Gi memory",
            (
                "30Gi of each of 2 GPUs, 2 CPUs, 2Gi memory are free for 2 tasks of "
                "30Gi of one GPU, 1 CPU, 1Gi memory"
            ),
        ),
        (
            TaskGroupShape("g", 3, (1000, 0, 2000), None, 2),
            "2 GPUs, 1 CPU",
            "6 GPUs, 3 CPUs are free for 3 tasks of 2 GPUs, 1 CPU",
        ),
    ],
)
def test_what_is_told_to_be_lacking_is_what_was_asked_for(
    group: TaskGroupShape, text: str, together: str
) -> None:
    """Not what it is charged: nobody is helped by 0.428 GPUs who asked for three instances."""
    situation = dataclasses.replace(Situation().node("n").snapshot(), profiles=("1g.10gb",))
    assert reason_text.task_text(situation, group) == text
    assert reason_text.together(situation, group) == together


def test_a_share_waits_for_one_gpu_and_not_for_as_much_on_several() -> None:
    s = Situation().node("n", gpu=1, cpu=64).queue("main")
    s.job("half", gpu=0.5, cpu=1, memory=1, on=("n",)).job("more", gpu=0.6, cpu=2, memory=0)
    (reason,) = situations.reasons_of(s, s.decide(), "more")
    assert reason.unblocks == "wait until 0.6 of one GPU, 2 CPUs come free on one node"


def test_shares_of_several_gpus_wait_for_each() -> None:
    s = Situation()
    group = TaskGroupShape("main", 1, (0, 0, 1000), devices=2, share=500)
    assert reason_text.freed_text(s.snapshot(), group) == "0.5 of each of 2 GPUs"


def test_what_others_keep_nodes_from_is_not_called_fragmented() -> None:
    """Two GPUs are idle on a node that somebody has to itself: no packing would help."""
    s = Situation().queue("main").node("n", gpu=4)
    s.job("alone", gpu=2, on=("n",), exclusive=True).job("w", gpu=1)
    (reason,) = situations.reasons_of(s, s.decide(), "w")
    assert reason.code == "InsufficientResources"
    assert (
        reason.message
        == "1 GPU, 1 CPU, 1Gi memory asked; 1 node: 1 taken exclusively by other work"
    )
    assert reason.unblocks == "wait until the work that has a node to itself ends"


def half_away(*, back: bool = False) -> Situation:
    """Two queues are guaranteed eight GPUs each, eight are in service and in use by halves."""
    s = Situation().node("n1", gpu=8).node("n2", gpu=8, accepts=back)
    s.queue("a", guaranteed=8).queue("b", guaranteed=8).queue("team", "b", guaranteed=8)
    s.job("ra", "a", gpu=4, on=("n1",)).job("rb", "team", gpu=4, on=("n1",))
    return s.job("more", "team", gpu=4)


SHRUNK = (
    "is guaranteed 8 GPUs, of which 4 GPUs count now: 16 GPUs are guaranteed in all, "
    "and 8 GPUs are in service"
)


def test_who_waits_for_room_is_told_that_its_guarantee_counts_for_less_than_is_written() -> None:
    s = half_away().job("j", "a", gpu=4).job("firm", "a", gpu=4, preemptible=False)
    decisions = s.decide()
    for job, queue in (("j", "a"), ("firm", "a"), ("more", "b")):
        assert code(s, decisions, job) == "InsufficientResources"
        assert message(s, decisions, job).endswith(f"; queue {queue} {SHRUNK}")


def test_who_has_room_reserved_is_told_so_too() -> None:
    s = half_away().job("j", "a", gpu=4).job("short", "a", gpu=1, priority=10)
    s.jobs["rb"].time_limit_s = 600.0
    decisions = s.decide()
    assert "; room is reserved for it from" in message(s, decisions, "j")
    assert message(s, decisions, "j").endswith(SHRUNK)


@pytest.mark.parametrize(
    ("job", "gpu"),
    [
        pytest.param("beyond", 5, id="more than is guaranteed as written"),
        pytest.param("cpus", 0, id="of something else"),
    ],
)
def test_nothing_is_told_of_a_guarantee_that_would_not_cover_it(job: str, gpu: int) -> None:
    s = half_away().job("j", "a", gpu=1).job(job, "a", gpu=gpu, cpu=64, pool="gpu")
    assert SHRUNK not in message(s, s.decide(), job)


def test_nothing_is_told_of_guarantees_where_all_is_in_service() -> None:
    s = half_away(back=True).job("j", "a", gpu=4).job("k", "a", gpu=4, priority=10)
    decisions = s.decide()
    assert "guaranteed" not in "".join(r.message for one in decisions.reasons.values() for r in one)

"""What a store from the past believes of what nodes report, with a proof and without one."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from reconciler.core import reconcile
from reconciler.core.jobs import takeover, unproven_attempts
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, EndReason, JobState
from tests.unit.core.world import World, job

HELD = AttemptState.RUNNING


class Recovering:
    """A world whose leader has a store from the past, and jobs that may have run."""

    def __init__(self, *names: str, **settings: object) -> None:
        self.world = World(nodes=3)
        for name in names:
            self.world.commit(job(name, **settings))
        self.recovery: desired.Recovery | None = desired.Recovery(frozenset(names))
        self.world.memory.leader_since = self.world.now
        self.numbers = itertools.count(1)
        self.cycle()

    def cycle(self) -> outcome.Outcome:
        world = self.world
        world.now += 1
        world.generation += 1
        wanted = desired.Desired(
            world.generation,
            world.structure,
            dict(world.jobs),
            status=desired.SyncStatus(sync="Synced"),
            recovery=self.recovery,
        )
        reports, answered = world.memory.take_input()
        observed = world.memory.observed(reports, answered, (), ())
        result = reconcile.reconcile(wanted, observed, world.now, cache=world.memory.cache)
        world.memory.absorb(result)
        return result

    def id_of(self, name: str, number: int = 1, index: int = 0) -> str:
        spec = self.world.jobs[name]
        return f"{name}.1.{spec.hash}.0.{spec.groups[0].name}.{index}.{number}"

    def tell(
        self, node: str, *told: records.AttemptReport, proven: bool = False, held: bool = True
    ) -> outcome.Outcome:
        report = msgspec.structs.replace(
            self.world.nodes[node].report(self.world.now),
            attempts=told,
            sequence=next(self.numbers),
            held=tuple(records.HeldAttempt(one.id) for one in told) if held else None,
            proven=tuple(one.id for one in told) if proven else (),
        )
        self.world.memory.add_report(report)
        return self.cycle()

    def settle(self, *trusted: str) -> outcome.Outcome:
        self.recovery = desired.Recovery(trusted=frozenset(trusted))
        result = self.cycle()
        self.recovery = None
        self.cycle()
        return result

    def state(self, name: str) -> JobState:
        return self.world.memory.jobs[name].state

    def on(self, name: str) -> dict[str, str]:
        """Return the nodes of live attempts of a job, by id."""
        attempts = self.world.memory.attempts.values()
        return {
            one.id: one.node
            for one in attempts
            if one.job == name and one.state is not AttemptState.ENDED
        }

    def unproven(self, node: str) -> list[tuple[str, str]]:
        found = self.world.memory.nodes[node].unproven
        return [(one.report.id, one.doubt) for one in found]


def runs(attempt: str) -> records.AttemptReport:
    return records.AttemptReport(attempt, AttemptState.RUNNING, started_at=1.0)


def ended(attempt: str) -> records.AttemptReport:
    return records.AttemptReport(
        attempt, AttemptState.ENDED, exit_code=0, end_reason=EndReason.EXITED, started_at=1.0
    )


@pytest.mark.parametrize("seed", range(20))
def test_nothing_follows_from_any_report_without_a_proof(seed: int) -> None:
    chance = random.Random(seed)
    bed = Recovering("a", "b", "c")
    bed.tell("n0", runs(bed.id_of("a")), proven=True)
    bed.cycle()
    before = (bed.on("a"), [bed.state(name) for name in "abc"])
    for _ in range(20):
        told = {}
        for _ in range(chance.randrange(4)):
            attempt = bed.id_of(chance.choice("abc"), chance.choice([0, 1, 2, 7, 10**8, 10**30]))
            told[attempt] = chance.choice([runs, ended])(attempt)
        bed.tell(chance.choice(["n1", "n2"]), *told.values(), held=chance.random() < 0.8)
        bed.tell("n0", runs(bed.id_of("a")))
        assert (bed.on("a"), [bed.state(name) for name in "abc"]) == before
    bed.settle()
    assert bed.on("a") == {bed.id_of("a"): "n0"}
    assert [bed.unproven(node) for node in ("n0", "n1", "n2")] == [[], [], []]


def test_what_was_assigned_before_and_its_node_does_not_have_has_ended() -> None:
    """To the store it is new, and may be on its way: its node has had it, and has it no more."""
    bed = Recovering()
    bed.recovery = None
    for node in ("n0", "n1", "n2"):
        bed.tell(node)
    bed.world.commit(job("a"))
    bed.cycle()
    ((attempt, node),) = bed.on("a").items()
    bed.tell(node)
    assert bed.on("a") == {attempt: node}, "it may be on its way"
    bed.world.now += 1
    bed.world.memory.leader_since = bed.world.now
    bed.recovery = desired.Recovery(frozenset({"a"}))
    result = bed.tell(node)
    assert bed.on("a") == {}
    assert any(f"{node} no longer has it" in one.message for one in result.events)


@pytest.mark.parametrize(("told", "state"), [(runs, "Running"), (ended, "Succeeded")])
def test_what_a_node_proves_is_taken_over_at_once(told: object, state: str) -> None:
    bed = Recovering("a", "b")
    assert callable(told)
    bed.tell("n1", told(bed.id_of("a", 3)), proven=True)
    bed.cycle()
    assert (bed.state("a").value, bed.state("b").value) == (state, "Pending")
    assert bed.unproven("n1") == []


def test_what_has_no_proof_keeps_the_node_as_it_is_until_somebody_believes_it() -> None:
    bed = Recovering("a", "b", "c")
    told = [runs(bed.id_of("a", 2)), ended(bed.id_of("b"))]
    bed.tell("n1", *told)
    assert bed.unproven("n1") == [(one.id, "") for one in told]
    update = bed.world.engine.update("n1", bed.world.structure, bed.world.memory)
    assert update.payload == b"", "no set makes it end what it runs"
    # the end is told once more and acknowledged; then the agent knows it no more
    bed.tell("n1", told[0], held=False)
    assert bed.unproven("n1") == [(one.id, "") for one in told]
    result = bed.settle("n1")
    assert bed.on("a") == {told[0].id: "n1"}
    assert [bed.state(name).value for name in "abc"] == ["Running", "Succeeded", "Starting"]
    assert any(one.node == "n1" for one in result.actions if hasattr(one, "node"))
    update = bed.world.engine.update("n1", bed.world.structure, bed.world.memory)
    assert update.payload


def test_an_unproven_attempt_that_a_complete_report_leaves_out_is_gone() -> None:
    bed = Recovering("a")
    bed.tell("n1", runs(bed.id_of("a")))
    result = bed.tell("n1", held=False)
    assert bed.unproven("n1") == []
    assert outcome.WithdrawAttempt(bed.id_of("a"), "n1") in result.actions


def test_unproven_attempts_of_an_earlier_recovery_leave_no_node_alone() -> None:
    bed = Recovering("a")
    bed.tell("n1", runs(bed.id_of("a")))
    bed.recovery = None
    bed.cycle()
    assert bed.unproven("n1") == []


@pytest.mark.parametrize(
    ("settings", "pool", "doubt"),
    [
        ({}, {}, ""),
        ({"pools": ("other",)}, {}, "n1 is not in pool other"),
        ({"node_selector": {"room": "b"}}, {}, "n1 has no label room=b"),
        ({"node_selector": {"room": "b"}}, {"labels": {"room": "b"}}, ""),
        ({"node_selector": {"node": "n1"}}, {}, ""),
        ({}, {"observe_only": True}, "n1 is in no pool that runs jobs"),
        ({"gpu": 8}, {}, "n1 has not the GPUs for it"),
    ],
)
def test_a_node_that_could_not_have_got_a_job_is_doubted(
    settings: dict[str, object], pool: dict[str, object], doubt: str
) -> None:
    bed = Recovering("a", **settings)
    (name,) = bed.world.structure.pools
    changed = msgspec.structs.replace(bed.world.structure.pools[name], **pool)
    bed.world.change_structure(pools={name: changed})
    bed.tell("n1", runs(bed.id_of("a")))
    assert bed.unproven("n1") == [(bed.id_of("a"), doubt)]


@pytest.mark.parametrize("proven", [True, False])
def test_a_try_that_its_node_reports_alive_is_not_followed_by_another_nodes(
    *, proven: bool
) -> None:
    bed = Recovering("a")
    first = runs(bed.id_of("a"))
    bed.tell("n0", first, proven=True)
    bed.tell("n0", first, held=False)
    bed.tell("n1", runs(bed.id_of("a", 2)), proven=proven)
    assert bed.on("a") == {first.id: "n0"}
    assert bed.unproven("n1") == [(bed.id_of("a", 2), "try 1 is alive on n0")]
    bed.settle("n1")
    assert bed.on("a") == {bed.id_of("a", 2): "n1"}, "somebody has said so"


def test_a_newer_try_with_a_proof_follows_one_that_was_not_heard() -> None:
    bed = Recovering("a")
    bed.tell("n0", runs(bed.id_of("a")), proven=True)
    bed.world.memory.leader_since = bed.world.now + 1  # another leader begins
    bed.world.now += 5
    bed.tell("n1", runs(bed.id_of("a", 4)), proven=True)
    assert bed.on("a") == {bed.id_of("a", 4): "n1"}


def _elastic() -> desired.Job:
    spec = job("a", count=3)
    groups = (msgspec.structs.replace(spec.groups[0], minimum=1),)
    return msgspec.structs.replace(spec, groups=groups)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_tasks_that_joined_an_elastic_gang_later_are_taken_over_beside_the_others(
    order: tuple[int, ...],
) -> None:
    bed = Recovering("a")
    bed.world.commit(_elastic())
    bed.cycle()
    held = {bed.id_of("a", number=tries, index=n): f"n{n}" for n, tries in enumerate((1, 4, 2))}
    told = list(held.items())
    for n in order:
        attempt, node = told[n]
        bed.tell(node, runs(attempt), proven=True)
    assert bed.on("a") == held
    bed.tell("n0", runs(told[0][0]), runs(bed.id_of("a", number=3, index=1)), proven=True)
    assert bed.on("a") == held, "a newer try of the same task is known"


@pytest.mark.parametrize("told", [runs, ended])
def test_a_try_that_nobody_believes_gives_its_id_to_no_other(told: Callable[..., Any]) -> None:
    """Its node would go on with it, or never start the other, because it has had one of that id."""
    bed = Recovering("a")
    bed.tell("n0", told(bed.id_of("a", 3)))
    bed.recovery = desired.Recovery(trusted=frozenset(), started=frozenset({"a"}))
    bed.cycle()
    assert list(bed.on("a")) == [bed.id_of("a", 4)]


@pytest.mark.parametrize(("number", "following"), [(3, 4), (10**8, 1)])
def test_a_try_that_is_heard_of_after_all_gives_its_id_to_no_other(
    number: int, following: int
) -> None:
    """Its node was not heard when somebody chose that the job starts anew."""
    bed = Recovering("a")
    bed.recovery = None
    bed.world.commit(msgspec.structs.replace(bed.world.jobs["a"], suspend=True))
    bed.tell("n1", ended(bed.id_of("a", number)), held=False)
    bed.world.commit(msgspec.structs.replace(bed.world.jobs["a"], suspend=False))
    bed.cycle()
    assert list(bed.on("a")) == [bed.id_of("a", following)]


def left(attempt: str, reason: EndReason) -> records.AttemptReport:
    return msgspec.structs.replace(
        ended(attempt), exit_code=0 if reason is EndReason.EXITED else None, end_reason=reason
    )


@pytest.mark.parametrize(
    "before",
    [
        left("", EndReason.PREEMPTED),
        left("", EndReason.EXITED),
        msgspec.structs.replace(ended(""), exit_code=1),
    ],
    ids=["preempted", "succeeded", "failed"],
)
def test_a_task_that_left_an_elastic_gang_ends_none_that_nobody_has_heard_of(
    before: records.AttemptReport,
) -> None:
    bed = Recovering("a")
    retries = desired.Retries(limit=1)
    bed.world.commit(msgspec.structs.replace(_elastic(), retries=retries))
    bed.cycle()
    bed.tell("n0", msgspec.structs.replace(before, id=bed.id_of("a", index=2)), proven=True)
    bed.cycle()
    going = {bed.id_of("a", index=n): f"n{n + 1}" for n in range(2)}
    for attempt, node in going.items():
        bed.tell(node, runs(attempt), proven=True)
    bed.cycle()
    assert bed.on("a") == going
    assert [bed.world.memory.attempts[name].stop for name in going] == [None, None]
    assert bed.state("a") is JobState.RUNNING
    note = bed.world.memory.jobs["a"].notes.get(0, records.ElementNote())
    assert note.retries_spent == (before.exit_code == 1)


def test_a_report_that_a_later_one_has_overtaken_loses_nothing() -> None:
    """It was under way while the controller stopped and began again."""
    bed = Recovering()
    old = msgspec.structs.replace(
        bed.world.nodes["n1"].report(bed.world.now), sequence=0, held=(), proven=()
    )
    bed.tell("n1")
    bed.world.commit(job("a"))
    bed.recovery = desired.Recovery(frozenset({"a"}))
    bed.tell("n1", runs(bed.id_of("a")), proven=True)
    bed.world.now += 5
    bed.world.memory.leader_since = bed.world.now
    bed.tell("n1", runs(bed.id_of("a")), proven=True)
    bed.world.memory.add_report(old)
    bed.cycle()
    assert bed.on("a") == {bed.id_of("a"): "n1"}
    # within one cycle, too
    newest = next(bed.numbers)
    for sequence, told in ((newest, (runs(bed.id_of("a")),)), (newest - 1, ())):
        report = bed.world.nodes["n1"].report(bed.world.now)
        bed.world.memory.add_report(
            msgspec.structs.replace(report, attempts=told, sequence=sequence, held=(), proven=())
        )
    bed.cycle()
    assert bed.on("a") == {bed.id_of("a"): "n1"}


@pytest.mark.parametrize("chosen", [True, False])
def test_a_gang_of_which_a_part_is_known_is_tried_again_only_if_somebody_says_so(
    *, chosen: bool
) -> None:
    bed = Recovering("a", count=2)
    bed.tell("n0", runs(bed.id_of("a")), proven=True)
    started = frozenset({"a"} if chosen else ())
    bed.recovery = desired.Recovery(trusted=frozenset(), started=started)
    bed.cycle()
    (stop,) = [bed.world.memory.attempts[name].stop for name in bed.on("a")]
    assert (stop is not None) is chosen


def test_nothing_starts_beside_a_task_whose_gpus_its_agent_has_forgotten() -> None:
    bed = Recovering("a", gpu=1)
    forgotten = bed.id_of("a")
    report = msgspec.structs.replace(
        bed.world.nodes["n0"].report(bed.world.now),
        attempts=(runs(forgotten),),
        sequence=99,
        held=(records.HeldAttempt(forgotten, assigned=False),),
        proven=(forgotten,),
    )
    bed.world.memory.add_report(report)
    bed.cycle()
    node = bed.world.memory.nodes["n0"]
    assert (node.state.value, bed.on("a")) == ("Unhealthy", {forgotten: "n0"})
    assert "forgot which GPUs 1 task uses" in node.message


def test_a_run_that_follows_one_which_the_store_believes_alive_is_not_ended() -> None:
    """The store is older than the end of the first run. It learns of both in one cycle."""
    bed = Recovering("a", "b")
    bed.tell("n0", runs(bed.id_of("a")), proven=True)
    bed.world.memory.leader_since = bed.world.now + 1
    bed.world.now += 5
    bed.world.commit(job("a", run=2))
    second = bed.id_of("a").replace("a.1.", "a.2.")
    bed.tell("n1", runs(second), proven=True)
    assert bed.unproven("n1") == [
        (second, "the store knows an earlier run of its job that is not over")
    ]
    update = bed.world.engine.update("n1", bed.world.structure, bed.world.memory)
    assert update.payload == b"", "no set makes it end what it runs"
    bed.tell("n0", proven=True)
    bed.cycle()
    bed.settle("n1")
    assert bed.on("a") == {second: "n1"}


def test_the_begin_is_an_event() -> None:
    bed = Recovering("a")
    bed.recovery = desired.Recovery(frozenset({"a"}), begun="it was restored")
    said = [one for one in bed.cycle().events if one.kind == "StoreFromThePast"]
    assert len(said) == 1
    assert said[0].message.startswith("it was restored; what ended since")


def test_a_try_far_behind_the_known_one_is_doubted() -> None:
    bed = Recovering("a")
    bed.tell("n1", runs(bed.id_of("a")), proven=True)
    bed.tell("n1", runs(bed.id_of("a", 3)))
    assert bed.unproven("n1") == [(bed.id_of("a", 3), "it would be try 3, and 1 are known")]


@pytest.mark.parametrize("moment", [math.nan, math.inf, -math.inf, 1e300, -1.0])
def test_times_and_codes_that_no_node_has_are_not_taken_over(moment: float) -> None:
    bed = Recovering("a")
    told = records.AttemptReport(
        bed.id_of("a"),
        AttemptState.ENDED,
        started_at=moment,
        ended_at=moment,
        exit_code=2**63,
        signal=2**40,
    )
    result = bed.tell("n1", told, proven=True)
    (attempt,) = result.attempts
    assert (attempt.exit_code, attempt.signal) == (None, None)
    assert attempt.ended_at is not None
    assert attempt.started_at is None or 0 <= attempt.started_at <= attempt.ended_at
    assert 0 <= attempt.assigned_at <= attempt.ended_at <= bed.world.now


@pytest.mark.parametrize(
    ("started_at", "ended_at"), [(0.0, 9.0), (5.0, 9.0), (5.0, None), (None, 9.0), (None, None)]
)
def test_a_clock_that_began_with_1970_charges_nobody_for_decades(
    started_at: float | None, ended_at: float | None
) -> None:
    bed = running("a")
    bed.world.now = bed.world.memory.leader_since = 1.8e9
    told = msgspec.structs.replace(
        ended(bed.id_of("a", 2)), started_at=started_at, ended_at=ended_at
    )
    result = bed.tell("n1", told, proven=True)
    (attempt,) = (one for one in result.attempts if one.id == told.id)
    assert (attempt.started_at, attempt.ended_at) == (None, bed.world.now)
    assert attempt.assigned_at == bed.world.now
    assert bed.state("a") is JobState.SUCCEEDED


def test_a_clock_that_was_set_back_meanwhile_makes_no_end_before_the_start() -> None:
    bed = Recovering("a")
    began = bed.world.now - 100
    told = msgspec.structs.replace(ended(bed.id_of("a")), started_at=began, ended_at=began - 3600)
    (attempt,) = bed.tell("n1", told, proven=True).attempts
    assert (attempt.assigned_at, attempt.started_at, attempt.ended_at) == (began,) * 3


def running(name: str, **settings: object) -> Recovering:
    """Return a store from a time at which a job ran on n0, and that began to lead much later."""
    bed = Recovering(name, **settings)
    bed.tell("n0", runs(bed.id_of(name)), proven=True)
    bed.world.now += 1000
    bed.world.memory.leader_since = bed.world.now
    bed.recovery = desired.Recovery(frozenset({name}))
    return bed


@pytest.mark.parametrize(
    "ends", [{"time_limit_s": 60}, {"deadline": 1_000_500.0}], ids=["limit", "deadline"]
)
def test_time_ends_nothing_of_which_another_try_may_run(ends: dict[str, object]) -> None:
    bed = running("a", **ends)
    for _ in range(3):
        bed.cycle()
    assert bed.state("a") is JobState.RUNNING
    bed.tell("n0", held=True)
    assert bed.state("a") is JobState.PENDING, "it waits for somebody to say if it has run"
    second = bed.id_of("a", number=2)
    late = msgspec.structs.replace(runs(second), started_at=bed.world.now)
    bed.tell("n1", late, proven=True)
    assert bed.on("a") == {second: "n1"}


def test_a_time_limit_counts_again_once_a_job_is_known() -> None:
    bed = running("a", time_limit_s=60)
    bed.tell("n0", runs(bed.id_of("a")), proven=True)
    assert bed.state("a") is JobState.RUNNING
    bed.recovery = desired.Recovery(frozenset())
    bed.cycle()
    (attempt,) = bed.world.memory.attempts.values()
    assert attempt.stop is not None
    assert attempt.stop.reason is EndReason.TIMED_OUT


@pytest.mark.parametrize(("rest", "state"), [("", "Running"), ("n1", "Succeeded")])
def test_a_gang_has_succeeded_when_all_of_it_is_known_to_have(rest: str, state: str) -> None:
    bed = Recovering("a", count=2)
    bed.tell("n0", runs(bed.id_of("a")), proven=True)
    bed.tell("n0", ended(bed.id_of("a")), proven=True)
    if rest:
        bed.tell(rest, ended(bed.id_of("a", index=1)), proven=True)
    bed.cycle()
    assert (bed.state("a") is JobState.SUCCEEDED) is (state == "Succeeded")
    if not rest:  # somebody has it start again
        bed.recovery = desired.Recovery(trusted=frozenset(), started=frozenset({"a"}))
        bed.cycle()
        assert set(bed.on("a")) == {bed.id_of("a", number=2, index=index) for index in (0, 1)}


def test_what_is_lost_counts_until_it_was_heard_of_last() -> None:
    bed = running("a")
    heard_at = bed.world.memory.nodes["n0"].last_report_at
    (attempt,) = bed.tell("n0").attempts
    assert (attempt.end_reason, attempt.ended_at) == (EndReason.LOST, heard_at)
    assert bed.world.now > heard_at + 900


@pytest.mark.parametrize(
    ("condition", "starts"), [("afterOk", True), ("afterAny", True), ("afterNotOk", False)]
)
def test_what_waits_for_a_job_that_counts_as_done_starts(condition: str, *, starts: bool) -> None:
    bed = Recovering("first")
    waits = job("second", depends_on=(desired.Dependency("first", condition),))  # type: ignore[arg-type]
    bed.world.commit(waits)
    key = bed.world.jobs["first"].key
    bed.recovery = desired.Recovery(ended=frozenset({key}), trusted=frozenset())
    bed.cycle()
    assert bed.state("first") is JobState.CANCELLED
    bed.recovery = None
    for node in bed.world.nodes:
        bed.tell(node)
    assert bool(bed.on("second")) is starts
    assert (bed.world.reason("second") == "DependencyNeverMet") is not starts


@pytest.mark.parametrize("answers", [True, False])
def test_nodes_that_get_no_answer_are_not_called_silent(*, answers: bool) -> None:
    """While another controller leads, it is this one that refuses their reports."""
    bed = Recovering("a")
    bed.recovery = desired.Recovery(frozenset({"a"}), answers=answers)
    bed.world.now += 3600
    kinds = {one.kind for one in bed.cycle().drift or ()}
    assert bool(kinds & {"node-silent", "node-missing"}) is answers


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("is_elastic", [True, False])
def test_what_counts_as_done_starts_no_more(*, is_heard: bool, is_elastic: bool) -> None:
    """The store believes that it is alive, and its nodes say that it is not."""
    bed = Recovering("a", count=3)
    if is_elastic:
        bed.world.commit(_elastic())
        bed.cycle()
    for number in range(3):
        bed.tell(f"n{number}", runs(bed.id_of("a", index=number)), proven=True)
    assert bed.state("a") is JobState.RUNNING
    bed.world.now += 1000
    bed.world.memory.leader_since = bed.world.now
    bed.recovery = desired.Recovery(frozenset({"a"}))
    for node in bed.world.nodes if is_heard else ():
        bed.tell(node)
    key = bed.world.jobs["a"].key
    bed.recovery = desired.Recovery(ended=frozenset({key}), trusted=frozenset())
    bed.cycle()
    bed.recovery = None
    for _ in range(3):
        for node in bed.world.nodes:
            bed.tell(node)
    assert bed.on("a") == {}
    assert bed.state("a") is JobState.CANCELLED
    assert bed.world.memory.jobs["a"].declared_over


def test_what_runs_of_a_job_that_counts_as_done_goes_on_and_ends_without_that_word() -> None:
    bed = Recovering("a")
    bed.tell("n0", runs(bed.id_of("a")), proven=True)
    key = bed.world.jobs["a"].key
    bed.recovery = desired.Recovery(ended=frozenset({key}), trusted=frozenset())
    bed.cycle()
    assert bed.on("a") == {bed.id_of("a"): "n0"}
    assert bed.world.memory.jobs["a"].message == takeover.STILL_ALIVE
    bed.recovery = None
    bed.tell("n0", ended(bed.id_of("a")))
    assert bed.state("a") is JobState.SUCCEEDED
    assert bed.world.memory.jobs["a"].message == ""


def _gang_of_two(least: int) -> desired.Job:
    spec = job("a", count=2)
    groups = (msgspec.structs.replace(spec.groups[0], minimum=least),)
    return msgspec.structs.replace(spec, groups=groups)


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("told", [ended, None])
def test_what_runs_goes_on_whatever_became_of_its_siblings(
    least: int, told: Callable[..., Any] | None
) -> None:
    """The sibling has ended after the store was copied: its node no longer has it, or says so."""
    bed = Recovering("a", count=2)
    bed.world.commit(_gang_of_two(least))
    bed.cycle()
    ids = [bed.id_of("a", index=n) for n in range(2)]
    for n in range(2):
        bed.tell(f"n{n}", runs(ids[n]), proven=True)
    bed.world.now += 1000
    bed.world.memory.leader_since = bed.world.now
    bed.tell("n1", runs(ids[1]), proven=True)
    bed.tell("n0", *([told(ids[0])] if told is not None else []), proven=True)
    for _ in range(4):
        bed.world.now += 100
        bed.tell("n1", runs(ids[1]), proven=True)
        (alive,) = bed.on("a")
        assert alive == ids[1]
        assert bed.world.memory.attempts[alive].stop is None


def test_a_part_of_an_elastic_gang_is_not_too_small_while_the_rest_may_run() -> None:
    """It left at once: fewer of its tasks ran than it needs, as far as anybody had heard."""
    spec = job("a", count=4)
    groups = (msgspec.structs.replace(spec.groups[0], minimum=2),)
    settings = desired.ClusterSettings(scheduling=desired.Scheduling(stale_gang_s=0))
    bed = Recovering("a", count=4)
    bed.world.change_structure(settings=settings)
    bed.world.commit(msgspec.structs.replace(spec, groups=groups))
    bed.cycle()
    ids = [bed.id_of("a", index=n) for n in range(2)]
    bed.tell("n0", runs(ids[0]), proven=True)
    for _ in range(3):
        bed.cycle()
    bed.tell("n1", runs(ids[1]), proven=True)
    bed.cycle()
    assert set(bed.on("a")) == set(ids)
    assert [bed.world.memory.attempts[one].stop for one in ids] == [None, None]


@pytest.mark.parametrize("ends", ["by choice", "itself", "unheard"])
def test_what_runs_of_a_job_that_nobody_knows_goes_on_until_somebody_names_its_node(
    ends: str,
) -> None:
    """A job without a file in git, whose note nothing proves once the key is lost."""
    bed = Recovering("a")
    unknown = bed.id_of("a").replace("a.", "short.", 1)
    bed.tell("n1", runs(unknown))
    assert bed.unproven("n1") == [(unknown, unproven_attempts.OF_NOBODY)]
    assert bed.world.engine.update("n1", bed.world.structure, bed.world.memory).payload == b""
    if ends == "by choice":
        bed.settle("n1")
    elif ends == "itself":
        bed.tell("n1", ended(unknown), held=False)
    else:
        bed.tell("n1")
    assert bed.unproven("n1") == []


@pytest.mark.parametrize("choice", ["none yet", "over", "start"])
def test_nobody_takes_the_room_of_what_would_not_start_again(choice: str) -> None:
    bed = Recovering("a", cpu=4, priority=10)
    bed.world.change_structure(settings=desired.ClusterSettings())
    bed.tell("n0", runs(bed.id_of("a")), proven=True)
    if choice != "none yet":
        key = bed.world.jobs["a"].key
        over = frozenset({key}) if choice == "over" else frozenset()
        bed.recovery = desired.Recovery(ended=over, trusted=frozenset())
        bed.cycle()
        bed.recovery = None
    for number in range(3):
        bed.world.commit(job(f"b{number}", cpu=4, priority=900))
    for _ in range(3):
        for node in bed.world.nodes:
            told = [runs(one) for one, where in bed.on("a").items() if where == node]
            bed.tell(node, *told, held=False)
    stop = bed.world.memory.attempts[bed.id_of("a")].stop
    assert (stop is not None) is (choice == "start")

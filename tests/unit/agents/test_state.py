"""Rows of situations: what an agent knows, what it hears, and the steps that follow."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import state
from agents.state import (
    AgentState,
    Complain,
    EndAttempt,
    Forget,
    Refuse,
    Release,
    RenewLeases,
    ReportNow,
    SaveEpoch,
    Start,
)
from reconciler.model.observed.job_commands import JobCommands
from reconciler.model.protocol.agent_messages import (
    Assignment,
    AssignmentSet,
    LogRequest,
    SyncResponse,
    TaskTemplate,
)
from reconciler.model.state.records import AttemptReport, StopOrder
from reconciler.model.state.states import AttemptState, EndReason

BOOT = "boot-1"
TEMPLATE = TaskTemplate("job", 1, "g", command=("true",), lease_s=900.0)
RUNNING = AttemptReport("a", AttemptState.RUNNING)
ENDED = AttemptReport("a", AttemptState.ENDED, end_reason=EndReason.EXITED, exit_code=0)
ORDER = StopOrder(EndReason.PREEMPTED, "SIGUSR1", 30, at=0.0)


def assigned(name: str = "a", **fields: Any) -> Assignment:
    """An assignment for this boot."""
    return Assignment(**{"attempt": name, "template": "t", "boot_id": BOOT, **fields})


def answer(*assignments: Assignment, epoch: int = 1, version: int = 1, **more: Any) -> SyncResponse:
    """An answer with a whole set."""
    chosen = AssignmentSet({"t": TEMPLATE}, assignments)
    return SyncResponse(epoch, version, chosen, **more)


def node(*reports: AttemptReport) -> AgentState:
    """A node whose supervisor knows some attempts."""
    made = AgentState(BOOT, epoch=1)
    made.supervisor_up(reports)
    return made


def acts(steps: list[state.Step]) -> list[state.Step]:
    """Steps without those that every answer brings, or the first one."""
    usual = RenewLeases | ReportNow | state.SetJobCommands
    return [step for step in steps if not isinstance(step, usual)]


def test_the_first_set_tells_the_commands_around_jobs_also_if_there_are_none() -> None:
    """An earlier agent may have left failures of some that are gone."""
    made = node()
    told = [step for step in made.answered(answer(), 0.0) if isinstance(step, state.SetJobCommands)]
    assert told == [state.SetJobCommands(JobCommands())]
    again = made.answered(answer(version=9), 0.0)
    assert not any(isinstance(step, state.SetJobCommands) for step in again)


@pytest.mark.parametrize(
    ("known", "assignments", "expected"),
    [
        pytest.param((), (assigned(),), [Start(assigned(), TEMPLATE)], id="unknown: start"),
        pytest.param((RUNNING,), (assigned(),), [], id="running: nothing"),
        pytest.param((ENDED,), (assigned(),), [], id="ended: never again"),
        pytest.param(
            (RUNNING,), (assigned(stop=ORDER),),
            [EndAttempt("a", EndReason.PREEMPTED, "SIGUSR1", 30)], id="stop as ordered",
        ),
        pytest.param((ENDED,), (assigned(stop=ORDER),), [], id="ended before the stop"),
        pytest.param(
            (), (assigned(stop=ORDER),),
            [Refuse("a", EndReason.PREEMPTED, "stopped before it started")], id="stop unknown",
        ),
        pytest.param((RUNNING,), (), [EndAttempt("a", EndReason.CANCELLED)], id="not assigned"),
        pytest.param((ENDED,), (), [], id="not assigned, but ended"),
        pytest.param((RUNNING,), (assigned(boot_id="other"),), [], id="adopted whatever the boot"),
    ],
)  # fmt: skip
def test_what_follows_from_a_set(
    known: tuple[AttemptReport, ...],
    assignments: tuple[Assignment, ...],
    expected: list[state.Step],
) -> None:
    made = node(*known)
    assert acts(made.answered(answer(*assignments), 5.0)) == expected
    assert acts(made.answered(answer(*assignments, version=2), 6.0)) == []


def test_proofs_are_kept_before_anything_starts_and_for_as_long_as_it_is_here() -> None:
    made = node()
    first = acts(made.answered(answer(assigned(proof="p"), assigned("b")), 5.0))
    assert first[0] == state.SaveProofs({"a": "p"})
    made.attempts_changed([RUNNING])
    assert acts(made.answered(answer(assigned(proof="p"), assigned("b"), version=2), 6.0)) == []
    # a new key after a loss of the store
    renewed = answer(assigned(proof="q"), assigned("b"), version=3)
    assert acts(made.answered(renewed, 7.0)) == [state.SaveProofs({"a": "q"})]
    made.answered(answer(version=4), 8.0)
    assert made.proofs == {"a": "q"}, "it has not ended yet"
    made.attempts_changed([ENDED])
    made.answered(answer(version=5, acknowledged=("a",)), 9.0)
    made.answered(answer(version=6), 9.0)
    assert made.proofs == {}


def test_proofs_of_an_earlier_agent_outlive_a_set_that_comes_before_the_supervisor() -> None:
    made = AgentState(BOOT)
    made.proofs = {"a": "p"}
    made.answered(answer(), 5.0)
    assert made.proofs == {"a": "p"}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [(assigned(boot_id="other"), "'other'"), (assigned(template="x"), "'x'")],
)
def test_what_is_refused(assignment: Assignment, words: str) -> None:
    (step,) = acts(node().answered(answer(assignment), 5.0))
    assert isinstance(step, Refuse)
    assert step.reason is EndReason.REFUSED
    assert words in step.message


def test_nothing_is_started_without_a_supervisor() -> None:
    made = AgentState(BOOT)
    assert acts(made.answered(answer(assigned()), 5.0)) == [SaveEpoch(1)]
    assert acts(made.supervisor_up([])) == [Start(assigned(), TEMPLATE)]
    made.supervisor_down()
    assert acts(made.answered(answer(assigned(), assigned("b"), version=2), 6.0)) == []
    lost = AttemptReport("a", AttemptState.ENDED, end_reason=EndReason.LOST)
    assert acts(made.supervisor_up([lost])) == [Start(assigned("b"), TEMPLATE)]


def test_nothing_is_stopped_before_a_set_has_come() -> None:
    assert acts(AgentState(BOOT).supervisor_up([RUNNING])) == []


def test_an_older_epoch_changes_nothing() -> None:
    made = AgentState(BOOT, epoch=5)
    made.supervisor_up([RUNNING])
    (step,) = made.answered(answer(epoch=4, version=99, acknowledged=("a",)), 5.0)
    assert isinstance(step, Complain)
    assert made.have == (0, 0)


def test_a_newer_epoch_is_saved_before_anything_else() -> None:
    steps = node().answered(answer(assigned(), epoch=2), 5.0)
    assert (steps[0], acts(steps)[1:]) == (SaveEpoch(2), [Start(assigned(), TEMPLATE)])


def test_a_set_that_was_overtaken_is_not_acted_on() -> None:
    made = node()
    made.answered(answer(assigned(), version=3), 5.0)
    assert acts(made.answered(answer(version=2), 5.0)) == []
    assert made.have == (1, 3)


def test_a_stop_that_overtakes_the_start_reaches_the_supervisor() -> None:
    made = node()
    made.answered(answer(assigned()), 5.0)
    steps = acts(made.answered(answer(assigned(stop=ORDER), version=2), 5.0))
    assert steps == [EndAttempt("a", EndReason.PREEMPTED, "SIGUSR1", 30)]


def test_an_acknowledged_attempt_does_not_start_again_from_a_set_that_still_has_it() -> None:
    made = node(ENDED)
    made.answered(answer(assigned()), 5.0)
    steps = acts(made.answered(answer(assigned(), version=2, acknowledged=("a",)), 5.0))
    assert steps == [Forget(("a",))]
    assert acts(made.answered(answer(assigned(), version=3), 5.0)) == []
    assert acts(made.supervisor_up([])) == []
    assert made.reports(complete=True) == ((), True)
    assert made.has_ended("a")


def test_only_an_end_can_be_acknowledged() -> None:
    made = node(RUNNING)
    assert acts(made.answered(answer(assigned(), acknowledged=("a", "b")), 5.0)) == []


def test_one_that_is_held_is_let_go_once() -> None:
    made = node()
    held = assigned(hold=True)
    assert acts(made.answered(answer(held), 0.0)) == [Start(held, TEMPLATE)]
    fetching = AttemptReport("a", AttemptState.FETCHING)
    assert made.reports(complete=False)[0] == (fetching,), "or its gang would start without it"
    assert made.reports(complete=False)[0] == ()
    assert made.reports(complete=True)[0] == (fetching,)
    made.stages = {"a": AttemptState.READY}
    made.notes = {"a": "waits"}
    told = AttemptReport("a", AttemptState.READY, message="waits")
    assert made.reports(complete=False)[0] == (told,)
    assert made.reports(complete=False)[0] == ()
    made.not_delivered((told,))
    assert made.reports(complete=False)[0] == (told,)
    assert acts(made.answered(answer(held, version=2), 0.0)) == []
    assert acts(made.answered(answer(assigned(), version=3), 0.0)) == [Release("a")]
    assert acts(made.answered(answer(assigned(), version=4), 0.0)) == []


def test_one_that_is_held_can_be_stopped() -> None:
    made = node()
    made.answered(answer(assigned(hold=True)), 0.0)
    stopped = assigned(stop=ORDER)
    (step,) = acts(made.answered(answer(stopped, version=2), 0.0))
    assert isinstance(step, EndAttempt)
    assert acts(made.answered(answer(stopped, version=3), 0.0)) == []


def test_reports() -> None:
    made = node(RUNNING)
    made.answered(answer(assigned(), assigned("b")), 5.0)
    starting = AttemptReport("b", AttemptState.STARTING)
    assert made.reports(complete=True) == ((RUNNING, starting), True)
    assert made.reports(complete=False) == ((), False)
    made.attempts_changed([ENDED])
    # An end is told until it is acknowledged, anything else once.
    assert made.reports(complete=False) == ((ENDED,), False)
    assert made.reports(complete=False) == ((ENDED,), False)
    running = AttemptReport("b", AttemptState.RUNNING)
    made.attempts_changed([running])
    assert made.reports(complete=False) == ((ENDED, running), False)
    assert made.reports(complete=False) == ((ENDED,), False)
    made.not_delivered([running])
    assert made.reports(complete=False) == ((ENDED, running), False)
    assert made.running() == ["b"]
    assert not made.has_ended("b")


def test_an_end_is_final() -> None:
    """Being copied out, told after the copy has ended, would have it wait for an end for ever."""
    made = node(RUNNING)
    made.answered(answer(assigned()), 5.0)
    made.attempts_changed([ENDED])
    late = AttemptReport("a", AttemptState.STOPPING, message="copying out its results")
    assert made.attempts_changed([late]) == []
    assert made.reports(complete=True) == ((ENDED,), True)


def test_what_is_awaited() -> None:
    made = node(RUNNING)
    made.answered(answer(assigned(), assigned("b")), 5.0)
    assert [name for name in ("a", "b", "c") if made.awaits(name)] == ["b"]
    made.attempts_changed([AttemptReport("b", AttemptState.ENDED)])
    made.answered(SyncResponse(1, 1, acknowledged=("b",)), 6.0)
    assert not made.awaits("b"), "its end is acknowledged: it never begins again"


def test_too_many_reports_are_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "REPORTS_MAX", 2)
    made = node(
        RUNNING, AttemptReport("b", AttemptState.RUNNING), AttemptReport("c", AttemptState.ENDED)
    )
    reports, complete = made.reports(complete=True)
    assert [report.id for report in reports] == ["c", "a"]
    assert not complete


def test_inventory_and_logs() -> None:
    made = node()
    made.want_inventory = False
    request = LogRequest("l", "a")
    steps = made.answered(SyncResponse(1, 1, want_inventory=True, log_requests=(request,)), 5.0)
    assert steps == [RenewLeases(5.0), ReportNow(), state.StreamLog(request)]
    assert made.want_inventory


def test_shortest_lease() -> None:
    made = node()
    assert made.lease_s_min() is None
    made.answered(answer(assigned()), 5.0)
    assert made.lease_s_min() == 900.0


def test_a_set_that_comes_late_for_a_lease_in_it_is_asked_for_again_once() -> None:
    """An idle node's question may be older than the lease of what it is answered with."""
    made = node()
    late = answer(assigned())
    assert acts(made.answered(late, 0.0, waited_s=451.0)) == []
    assert made.have < (late.epoch, late.version)
    assert made.lease_s_min() is None
    assert acts(made.answered(late, 451.0, waited_s=1.0)) == [Start(assigned(), TEMPLATE)]
    slow = node()
    slow.answered(late, 0.0, waited_s=451.0)
    assert acts(slow.answered(late, 451.0, waited_s=451.0)) == [Start(assigned(), TEMPLATE)]


NAMES = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(st.tuples(st.sampled_from(["set", "end", "ack", "crash", "old"]), NAMES), max_size=40)
)
def test_whatever_happens_nothing_starts_twice(events: list[tuple[str, str]]) -> None:
    made, version, wanted = node(), 1, set[str]()
    started: list[str] = []
    kept: dict[str, AttemptReport] = {}

    def carry_out(steps: list[state.Step]) -> None:
        for step in steps:
            if isinstance(step, Start):
                started.append(step.assignment.attempt)
                kept[step.assignment.attempt] = AttemptReport(
                    step.assignment.attempt, AttemptState.RUNNING
                )
            if isinstance(step, Forget):
                for name in step.attempts:
                    del kept[name]

    finished: set[str] = set()
    for kind, name in events:
        chosen = tuple(assigned(n) for n in sorted(wanted))
        if kind == "set" and name not in finished:
            version += 1
            wanted ^= {name}
            carry_out(made.answered(answer(*map(assigned, sorted(wanted)), version=version), 1.0))
        elif kind == "end" and name in kept:
            kept[name] = AttemptReport(name, AttemptState.ENDED)
            carry_out(made.attempts_changed([kept[name]]))
        elif kind == "ack":
            known = kept.get(name)
            if known is not None and known.state is AttemptState.ENDED:
                finished.add(name)
                wanted.discard(name)
            carry_out(made.answered(SyncResponse(1, version, acknowledged=(name,)), 1.0))
        elif kind == "crash":
            made.supervisor_down()
            for lost in kept:
                kept[lost] = AttemptReport(lost, AttemptState.ENDED)
            carry_out(made.supervisor_up(list(kept.values())))
        elif kind == "old":
            carry_out(made.answered(answer(*chosen, version=version - 1), 1.0))
    assert len(started) == len(set(started))


def test_an_answer_that_renews_nothing_leaves_leases_and_tasks_as_they_are() -> None:
    made = node(RUNNING)
    made.answered(answer(assigned()), 1.0)
    early = SyncResponse(1, 1, acknowledged=(), renews=False)
    assert made.answered(early, 5.0) == []
    assert made.have == (1, 1)
    assert made.answered(SyncResponse(1, 1), 6.0) == [RenewLeases(6.0)]
    newer = made.answered(SyncResponse(2, 0, renews=False), 7.0)
    assert newer == [SaveEpoch(2)], "an older leader is refused from here on all the same"


def test_a_task_above_its_limit_is_ended_once() -> None:
    limited = msgspec.structs.replace(TEMPLATE, scratch_bytes=5)
    made = node(AttemptReport("a", AttemptState.RUNNING), AttemptReport("b", AttemptState.RUNNING))
    made.answered(SyncResponse(1, 2, AssignmentSet({"t": limited}, (assigned("a"),))), 0.0)
    assert made.scratch_limits() == {"a": 5}
    (step,) = made.over_limit("a", "too much")
    assert step == state.EndAttempt("a", EndReason.DISK_LIMIT, grace_s=10, message="too much")
    assert made.over_limit("a", "still too much") == []
    assert made.over_limit("gone", "nothing") == []

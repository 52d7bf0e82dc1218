"""What an adoption withholds, and when it is over, as records of leaders and nodes say."""

import itertools
from typing import Any

import msgspec
import pytest

from reconciler.controller import adoption, lead_claim
from reconciler.core import observed_state
from reconciler.model import desired
from reconciler.model.protocol import loop_messages
from reconciler.model.state import adoption_state, records
from reconciler.model.state.states import ELEMENT_CODE, AttemptState, EndReason, JobState, NodeState
from tests.simulation.test_invariants import attempt
from tests.unit.core.world import World, job

NOW = 1_000_000.0


class Adopting:
    """A store from the past, a cluster of two nodes, and what was heard."""

    def __init__(self, *jobs: desired.Job, **kept: Any) -> None:
        self.world = World(nodes=2, settings=desired.ClusterSettings(lease_s=60))
        self.memory = observed_state.ObservedState(records.Observed(), leader_since=NOW)
        values: dict[str, Any] = {"pending": True, "why": "a copy", **kept}
        state = adoption_state.AdoptionState(**values)
        self.adopting = adoption.Adoption(state, self.memory, itertools.count(-3, -1))
        self.wanted = desired.Desired(1, self.world.structure, {one.name: one for one in jobs})
        for one in jobs:
            waits = bytes([ELEMENT_CODE[JobState.PENDING]]) * one.element_count
            self.memory.jobs[one.name] = records.JobRecord(one, JobState.PENDING, waits, NOW)

    def hear(self, *nodes: str) -> None:
        for name in nodes:
            self.memory.nodes[name] = records.NodeRecord(
                name, NodeState.READY, "pool", last_report_at=NOW + 1
            )

    def runs(self, spec: desired.Job, index: int, node: str, **changes: Any) -> None:
        one = attempt(spec, index, node, **changes)
        self.memory.attempts[one.id] = one
        live = bytes([ELEMENT_CODE[JobState.RUNNING]]) * spec.element_count
        record = records.JobRecord(spec, JobState.RUNNING, live, NOW)
        self.memory.jobs[spec.name] = record

    def withheld(self) -> set[str]:
        recovery = self.adopting.in_force(self.wanted).recovery
        return set(recovery.awaiting) if recovery is not None else set()


def elastic(name: str, **changes: Any) -> desired.Job:
    spec = job(name, count=2, lease_s=60, **changes)

    groups = (msgspec.structs.replace(spec.groups[0], minimum=1),)
    return msgspec.structs.replace(spec, groups=groups)


@pytest.mark.parametrize("made", [elastic, lambda name: job(name, count=2, lease_s=60)])
def test_a_gang_waits_while_a_part_of_it_may_run_on_a_node_that_was_not_heard(made: Any) -> None:
    """It would grow, or start the missing task again, beside the one that nobody has heard of."""
    spec = made("gang")
    bed = Adopting(spec)
    bed.adopting.in_force(bed.wanted)
    bed.hear("n0")
    bed.runs(spec, 0, "n0")
    bed.adopting.look(bed.wanted, NOW + 2)
    assert bed.withheld() == {"gang"}
    bed.hear("n1")
    bed.runs(spec, 1, "n1")
    bed.adopting.look(bed.wanted, NOW + 3)
    assert (bed.withheld(), bed.adopting.pending) == (set(), False)


@pytest.mark.parametrize("nodes", [["n0"], ["n0", "n1"]])
def test_what_an_elastic_gang_lacks_may_have_ended_well_where_nobody_knows_it(
    nodes: list[str],
) -> None:
    spec = elastic("gang")
    bed = Adopting(spec)
    bed.adopting.in_force(bed.wanted)
    bed.hear(*nodes)
    bed.runs(spec, 0, "n0")
    bed.adopting.look(bed.wanted, bed.adopting.state.ready_at + 1)
    assert bed.withheld() == {"gang"}


@pytest.mark.parametrize("is_known", [False, True])
def test_a_restored_store_knows_what_is_noted_whoever_led_last(*, is_known: bool) -> None:
    """Who restores one may have deleted the record of the leader, as the docs say."""
    ran = job("ran")
    bed = Adopting(pending=True, known=is_known)
    bed.adopting.judge(lead_claim.LeadVerdict(store="s", ephemeral=(_noted(ran),)))
    bed.adopting.in_force(bed.wanted)
    # what is noted later than the first revision in force has begun under this controller
    assert bed.withheld() == (set() if is_known else {"ran"})


def test_a_job_of_which_a_node_reports_tasks_without_a_proof_waits() -> None:
    spec = elastic("gang")
    bed = Adopting(spec)
    bed.adopting.in_force(bed.wanted)
    bed.hear("n0", "n1")
    bed.runs(spec, 0, "n0")
    other = attempt(spec, 1, "n1")
    told = records.AttemptReport(other.id, other.state)
    bed.memory.nodes["n1"] = records.NodeRecord(
        "n1",
        NodeState.UNHEALTHY,
        "pool",
        last_report_at=NOW + 1,
        unproven=(records.UnprovenAttempt(told),),
    )
    bed.adopting.look(bed.wanted, NOW + 2)
    assert bed.withheld() == {"gang"}


def test_a_task_that_has_ended_where_it_was_heard_is_not_waited_for() -> None:
    spec = job("gang", count=2, lease_s=60)
    bed = Adopting(spec)
    bed.adopting.in_force(bed.wanted)
    bed.hear("n0", "n1")
    bed.runs(spec, 0, "n0")
    bed.runs(spec, 1, "n1", state=AttemptState.UNKNOWN)
    bed.adopting.look(bed.wanted, NOW + 2)
    assert bed.withheld() == {"gang"}
    bed.runs(spec, 1, "n1", state=AttemptState.ENDED)
    bed.adopting.look(bed.wanted, NOW + 3)
    assert (bed.withheld(), bed.adopting.pending) == (set(), False)


@pytest.mark.parametrize(("known", "pending"), [(False, True), (True, True), (True, False)])
def test_while_another_leads_nothing_is_known_and_no_lease_ends(
    *, known: bool, pending: bool
) -> None:
    """What it starts meanwhile may run when its lead is over, whatever was new at first."""
    first, later = job("first"), job("later")
    bed = Adopting(first, known=known, pending=pending, awaiting={"old": "may have run"})
    bed.adopting.judge(lead_claim.LeadVerdict("another led", "another leads", "us"))
    assert bed.withheld() == {"first"}
    bed.adopting.begin(NOW + 5000)
    assert bed.memory.leader_since == NOW + 5000
    jobs = {"first": first, "later": later}
    bed.wanted = desired.Desired(2, bed.world.structure, jobs)
    bed.adopting.judge(lead_claim.LeadVerdict("another led", "", "us"))
    bed.adopting.begin(NOW + 5001)
    assert bed.withheld() == {"first", "later"}
    bed.adopting.begin(NOW + 6000)
    assert bed.memory.leader_since == NOW + 5001, "now nodes are waited for"


def test_before_git_is_read_everything_may_have_run() -> None:
    bed = Adopting(job("first"))
    bed.wanted = desired.Desired(-1, bed.world.structure, bed.wanted.jobs)
    assert bed.withheld() == {"first"}


def test_what_was_submitted_meanwhile_stays_new_after_another_start() -> None:
    kept = adoption_state.AdoptionState(
        pending=True, why="a copy", known=True, awaiting={"old": "may have run"}, ready_at=NOW + 9
    )
    begun = adoption_state.at_start(kept, empty=False, copied=False)
    bed = Adopting(job("old"), job("new"), **{f: getattr(begun, f) for f in kept.__struct_fields__})
    assert bed.withheld() == {"old"}
    assert bed.adopting.state.ready_at == NOW + 9


def test_the_begin_is_said_once() -> None:
    bed = Adopting(job("first"))
    said = []
    for _ in range(3):
        recovery = bed.adopting.in_force(bed.wanted).recovery
        assert recovery is not None
        said.append(recovery.begun)
        bed.adopting.note_stored()
    assert said == ["a copy", "", ""]


def test_who_is_to_start_is_told_once() -> None:
    bed = Adopting(job("first"), job("second"))
    bed.adopting.in_force(bed.wanted)
    bed.hear("n0", "n1")
    bed.adopting.look(bed.wanted, NOW + 2)
    choice = loop_messages.Adopt(("first",), everything=False)
    assert bed.adopting.choose(choice, bed.wanted, NOW + 3)
    recovery = bed.adopting.in_force(bed.wanted).recovery
    assert recovery is not None
    assert recovery.started == {"first"}
    bed.adopting.note_stored()
    assert bed.adopting.in_force(bed.wanted).recovery is None


@pytest.mark.parametrize(
    ("past", "waits"), [("another led at noon", {"old"}), ("a third led at one", {"old", "new"})]
)
def test_a_copy_made_while_its_store_asked_goes_on_unless_another_one_led_since(
    past: str, waits: set[str]
) -> None:
    bed = Adopting(
        job("old"),
        job("new"),
        why="another led at noon",
        known=True,
        told=True,
        awaiting={"old": adoption_state.MAY_HAVE_RUN},
    )
    verdict = lead_claim.LeadVerdict(past, "", "here", frozenset(), above=0)
    bed.adopting.judge(verdict)
    assert bed.withheld() == waits
    assert bed.adopting.state.told is (waits == {"old"})


def test_a_record_that_is_deleted_while_its_leader_is_waited_for_is_not_forgotten() -> None:
    bed = Adopting(job("a"), pending=False, why="")
    theirs = "another led at noon"
    for past, blocked in ((theirs, "it leads until one"), ("", "")):
        bed.adopting.judge(lead_claim.LeadVerdict(past, blocked, "here", frozenset(), above=0))
    assert bed.withheld() == {"a"}
    assert (bed.adopting.pending, bed.adopting.state.blocked) == (True, "")


@pytest.mark.parametrize("reason", [EndReason.LOST, EndReason.NODE_LOST])
@pytest.mark.parametrize("others", [0, 1])
def test_what_its_node_no_longer_has_may_have_ended_well(reason: EndReason, others: int) -> None:
    """An elastic gang that had succeeded began anew unasked, or one of its tasks did."""
    spec = elastic("gang")
    bed = Adopting(spec)
    bed.adopting.in_force(bed.wanted)
    bed.hear("n0", "n1")
    bed.runs(spec, 1, "n1", state=AttemptState.ENDED, end_reason=reason, ended_at=NOW + 1)
    if others:
        bed.runs(spec, 0, "n0")
    bed.adopting.look(bed.wanted, NOW + 2)
    assert bed.withheld() == {"gang"}


def _noted(spec: desired.Job, state: str = "") -> adoption_state.EphemeralRun:
    kept = None if state else spec
    return adoption_state.EphemeralRun(spec.name, spec.key, "", "default", NOW, state, job=kept)


@pytest.mark.parametrize("start", [True, False])
def test_of_jobs_without_a_file_what_may_run_waits_and_what_ran_is_listed(*, start: bool) -> None:
    alive, over, known = job("alive"), job("over"), job("known")
    bed = Adopting(known, pending=False)
    bed.memory.jobs["known"] = msgspec.structs.replace(bed.memory.jobs["known"], ephemeral=True)
    bed.memory.past_runs.update([known.key])
    bed.wanted = desired.Desired(1, bed.world.structure, {})
    noted = (_noted(alive), _noted(over, "Succeeded"), _noted(known, "Failed"))
    bed.adopting.judge(lead_claim.LeadVerdict("a copy", store="s", ephemeral=noted))
    asked = bed.adopting.in_force(bed.wanted)
    assert asked.recovery is not None
    assert asked.recovery.ephemeral == {"alive"}
    assert list(asked.jobs) == ["alive"]
    # an older store may hold what has ended since for alive
    assert bed.withheld() == {"alive", "known"}
    assert [one.name for one in bed.adopting.state.ephemeral] == ["alive", "over"]
    # the cycle has admitted it, and all nodes were heard
    bed.memory.jobs["alive"] = msgspec.structs.replace(bed.memory.jobs["known"], spec=alive)
    bed.hear("n0", "n1")
    bed.adopting.look(asked, NOW + 2)
    names = ("alive",) if start else ()
    assert bed.adopting.choose(loop_messages.Adopt(names), bed.wanted, NOW + 9)
    after = bed.adopting.in_force(bed.wanted)
    assert after.recovery is not None
    ended = {known.key} if start else {known.key, alive.key}
    assert after.recovery.ended == ended
    bed.adopting.note_stored()
    assert [one.name for one in bed.adopting.state.ephemeral] == ["over"]


@pytest.mark.parametrize("trust", ["all", "n0", "none"])
@pytest.mark.parametrize(("tasks", "proven"), [(1, 0), (2, 0), (2, 1)])
def test_a_job_whose_tasks_all_run_where_somebody_trusts_is_not_over_though_not_named(
    trust: str, tasks: int, proven: int
) -> None:
    spec = elastic("gang")
    bed = Adopting(spec)
    bed.adopting.in_force(bed.wanted)
    told = [attempt(spec, index, "n0") for index in range(proven, tasks)]
    unproven = tuple(
        records.UnprovenAttempt(records.AttemptReport(one.id, one.state)) for one in told
    )
    bed.memory.nodes["n0"] = records.NodeRecord(
        "n0", NodeState.UNHEALTHY, "pool", last_report_at=NOW + 1, unproven=unproven
    )
    bed.hear("n1")
    if proven:
        bed.runs(spec, 0, "n1")
    bed.adopting.look(bed.wanted, NOW + 2)
    assert bed.adopting.choose(loop_messages.Adopt((), trust=trust), bed.wanted, NOW + 9)
    after = bed.adopting.in_force(bed.wanted)
    assert after.recovery is not None
    goes_on = tasks == 2 and trust != "none"
    assert after.recovery.ended == (set() if goes_on else {spec.key})

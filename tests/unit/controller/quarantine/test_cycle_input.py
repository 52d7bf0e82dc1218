"""Beside an internal error no input is lost, except what can't be processed on its own."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest

from reconciler.controller.quarantine import cycle_input, cycle_rescue
from reconciler.core import reconcile
from reconciler.core.cycle import report_order
from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.model.state import instance_records, outcome, records
from reconciler.model.state.states import AttemptState, JobState, NodeState
from tests.unit.controller.quarantine.test_containment import POISON, Contained
from tests.unit.core.world import World, job


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Contained]:
    """A loop over three hundred nodes, every tenth of which is poisonous."""
    made = Contained(tmp_path, World(nodes=300))
    made.revision(job("fine"))
    made.cycle()
    made.core.nodes = {f"n{number}" for number in range(0, 300, 10)}
    yield made
    made.close()


def test_tries_are_bounded_and_what_they_did_not_come_to_is_for_the_next_cycle(
    many: Contained,
) -> None:
    many.hear(*many.world.nodes)
    healthy = many.world.nodes.keys() - many.core.nodes
    for _ in range(10):
        many.core.calls = 0
        many.cycle()
        assert many.core.calls <= cycle_rescue.TRIES_MAX + 4
        assert many.loop._internal_errors._ignored_until.keys() <= many.core.nodes, (
            "only what raised by itself"
        )
        if not many.loop._state.reports:
            break
        assert many.loop._wake_at == many.now, "the next one follows at once"
    assert not many.loop._state.reports
    assert many.loop._state.nodes.keys() == healthy
    assert many.loop._internal_errors._ignored_until.keys() == many.core.nodes


def test_what_people_and_scripts_said_is_come_to_first(many: Contained) -> None:
    """They send it once, and nodes send again what was not processed."""
    many.hear(*many.world.nodes)
    came = cycle_input.CycleInput(
        reports=tuple(many.loop._state.reports),
        asked=(records.ClearOverride("o1", "drain", "n1", "ada@example.org"),),
        provisioned=(instance_records.OrderResult("create", "pool", "r", 1),),
    )
    names = [one.name for one in came.sources()]
    assert names[:3] == ["override o1", "the script of pool pool", "node n0"]


def test_what_is_put_back_is_taken_as_it_came(many: Contained) -> None:
    many.hear("n1", "n2")
    came = cycle_input.CycleInput(
        reports=tuple(many.loop._state.reports),
        asked=(records.ClearOverride("o1", "drain", "n1", "ada@example.org"),),
        provisioned=(instance_records.OrderResult("create", "pool", "r", 1),),
    )
    memory = many.loop._state
    memory.take_input()
    cycle_input.put_back(came, memory)
    again = cycle_input.CycleInput(
        reports=memory.take_input()[0],
        asked=memory.take_asked(),
        provisioned=memory.take_provisioned(),
    )
    assert again == came


class Site(Contained):
    """Nodes that do what they are told. The core raises when a job of one name runs."""

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder, world)
        self.loop._decider.decide_by = self.decide
        self.is_fixed = False
        #: Nodes that the server answers no more, as it is told to.
        self.unanswered: AbstractSet[str] = frozenset()

    def decide(self, *args: Any, **options: Any) -> outcome.Outcome:
        result = reconcile.reconcile(*args, **options)
        runs = any(a.job == POISON and a.state is AttemptState.RUNNING for a in result.attempts)
        if runs and not self.is_fixed:
            raise KeyError(POISON)
        return result

    def pass_time(self, seconds: float) -> None:
        """Dispatch assignments, let time pass, and let nodes report as agents do."""
        loop = self.loop
        structure = self.world.structure
        for name, node in self.world.nodes.items():
            update = loop._engine.update(name, structure, loop._state)
            assert update.payload is not None
            alive = loop._state.attempts_by_node.get(name, {})
            ended = tuple(one for one in node.attempts if one not in alive)
            node.take(update.payload, ended, self.now)
        self.now += seconds
        for name, node in self.world.nodes.items():
            told = node.report(self.now)
            request = agent_messages.SyncRequest(
                node=name,
                boot_id=told.boot_id,
                incarnation=told.incarnation,
                sequence=told.sequence,
                attempts=told.attempts,
                complete=True,
                inventory=told.inventory,
            )
            if name not in self.unanswered:
                loop._take_message(loop_messages.Answered(name, self.now))
            loop._take_message(loop_messages.Reported(request, self.now))
        self.cycle()


def test_a_task_that_cannot_be_decided_costs_its_node_none_of_its_other_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, World(nodes=1))
    site.revision(job("fine"), job("later"), job(POISON))
    for _ in range(12):
        site.pass_time(20)
    assert site.states() == {
        "fine": JobState.RUNNING,
        "later": JobState.RUNNING,
        POISON: JobState.STARTING,
    }
    said = next(one for one in caplog.messages if "left out" in one)
    (poison,) = [one.id for one in site.loop._state.attempts.values() if one.job == POISON]
    assert f"attempt {poison} on node n0 was left out" in said
    (fine,) = [one.id for one in site.loop._state.attempts.values() if one.job == "fine"]
    site.world.nodes["n0"].end(fine, site.now, exit_code=0)
    for _ in range(6):
        site.pass_time(20)
    assert site.states()["fine"] is JobState.SUCCEEDED
    assert site.states()["later"] is JobState.RUNNING
    node = site.loop._state.nodes["n0"]
    assert (node.state, node.message) == (NodeState.UNHEALTHY, cycle_input.UNDECIDED)
    site.revision(job("fine"), job("later"), job(POISON), job("new"))
    site.pass_time(20)
    assert site.states()["new"] is JobState.PENDING, "nothing new goes there"
    site.is_fixed = True
    for _ in range(6):
        site.pass_time(20)
    assert site.states()[POISON] is JobState.RUNNING
    assert site.loop._state.nodes["n0"].state is NodeState.READY
    assert site.states()["new"] in {JobState.STARTING, JobState.RUNNING}
    site.close()


def test_a_node_is_out_of_service_while_no_report_of_it_passes_at_all(tmp_path: Path) -> None:
    """Not even its reboot is processed, which every part of a report contains."""
    site = Site(tmp_path, World(nodes=2))

    def decide(wanted: object, observed: records.Observed, *args: Any, **options: Any) -> Any:
        for one in observed.reports:
            if (
                one.node == "n0"
                and one.boot_id != "boot-of-n0"
                and not report_order.tells_nothing(one)
            ):
                assert site.is_fixed
        return reconcile.reconcile(wanted, observed, *args, **options)  # type: ignore[arg-type]

    site.loop._decider.decide_by = decide
    site.revision(job("fine"))
    site.world.nodes["n0"].boot_id = "boot-of-n0"
    site.pass_time(20)
    assert site.loop._state.nodes["n0"].state is NodeState.READY
    site.world.nodes["n0"].boot_id = "another"
    for _ in range(8):
        site.pass_time(20)
        node = site.loop._state.nodes["n0"]
        assert (node.state, node.boot_id) == (NodeState.UNHEALTHY, "boot-of-n0")
    assert site.loop._state.nodes["n1"].state is NodeState.READY
    site.is_fixed = True
    for _ in range(4):
        site.pass_time(20)
    assert site.loop._state.nodes["n0"].state is NodeState.READY
    site.close()


def report(**changes: Any) -> records.NodeReport:
    return records.NodeReport("n0", "boot", "agent", 1.0, sequence=7, **changes)


def left(**changes: Any) -> records.NodeReport:
    return report(complete=False, undecided=cycle_input.UNDECIDED, **changes)


ONE, TWO = (records.AttemptReport(id=name, state=AttemptState.RUNNING) for name in ("a", "b"))
INVENTORY = records.Inventory()


@pytest.mark.parametrize(
    ("reports", "pieces"),
    [
        ((report(complete=False),), (left(),)),
        ((left(),), ()),
        ((left(attempts=(ONE,)),), ()),
        ((report(),), (left(),)),
        ((report(attempts=(ONE,)),), (left(), left(attempts=(ONE,)))),
        (
            (report(attempts=(ONE, TWO), inventory=INVENTORY),),
            (left(), left(inventory=INVENTORY), left(attempts=(ONE,)), left(attempts=(TWO,))),
        ),
        (
            (report(complete=False, attempts=(ONE,)), report(complete=False, attempts=(TWO,))),
            (left(), left(attempts=(ONE,)), left(), left(attempts=(TWO,))),
        ),
    ],
)
def test_what_a_node_said_comes_apart_and_a_piece_does_not(
    reports: tuple[records.NodeReport, ...], pieces: tuple[records.NodeReport, ...]
) -> None:
    found = cycle_input.CycleInput(reports=reports).pieces()
    assert cycle_input.join(found).reports == pieces
    assert all(not one.pieces() for one in found)
    assert not cycle_input.CycleInput(
        asked=(records.ClearOverride("o", "drain", "n", "a"),)
    ).pieces()

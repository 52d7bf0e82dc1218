"""An internal error costs only its cause: a revision, or what one node reported.

The loop, the store and the git watcher are real. The core is the real one behind a function that
raises for a job, a node or a report that a test names.
"""

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler import log_format
from reconciler.controller import publisher
from reconciler.controller.quarantine import cycle_rescue, internal_errors
from reconciler.core import reconcile
from reconciler.core.cycle import report_order
from reconciler.model import desired
from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.model.state import outcome, records
from reconciler.model.state.states import AttemptState, JobState
from reconciler.operations.views import stored_views
from reconciler.store import StoreReader, errors
from tests.unit import replays
from tests.unit.core.world import World, job
from tests.unit.test_replay import Leader, url

POISON = "poison"


class Core:
    """The real core, except that it raises for what is poisonous."""

    def __init__(self) -> None:
        self.jobs: set[str] = set()
        self.queues: set[str] = set()
        self.nodes: set[str] = set()
        self.always = False
        #: Whether a node is poisonous that says nothing but that it is there.
        self.hears = True
        self.calls = 0

    def __call__(
        self, wanted: desired.Desired, observed: records.Observed, now: float, **options: Any
    ) -> outcome.Outcome:
        self.calls += 1
        if self.always:
            raise ArithmeticError("nothing can be decided")
        # half of the work is done before it is found
        result = reconcile.reconcile(wanted, observed, now, **options)
        if self.jobs & wanted.jobs.keys() or self.queues & wanted.structure.queues.keys():
            raise KeyError("a secret of somebody's")
        said = [
            one for one in observed.reports if self.hears or not report_order.tells_nothing(one)
        ]
        if self.nodes & {report.node for report in said}:
            raise ZeroDivisionError
        return result


class Contained(Leader):
    """A loop that survives internal errors, driven by hand."""

    def __init__(self, folder: Path, world: World, **options: Any) -> None:
        self.core = Core()
        self.world = world
        self.refusals: list[cycle_rescue.RevisionRefusal] = []
        options = {"contained": True} | options
        super().__init__(
            folder, world.now, decide=self.core, refuse=self.refusals.append, **options
        )
        self.generation = 0

    def revision(self, *jobs: desired.Job, revision: str = "", queue: str = "") -> None:
        self.generation += 1
        revision = revision or f"{self.generation:040d}"
        status = desired.SyncStatus(
            sync="Synced",
            attempted_revision=revision,
            structure_revision=revision,
            jobs_revision=revision,
        )
        wanted = {one.name: one for one in jobs}
        structure = self.world.structure
        if queue:
            queues = {**structure.queues, queue: desired.Queue(queue)}
            structure = msgspec.structs.replace(structure, queues=queues)
        value = desired.Desired(self.generation, structure, wanted, status=status)
        self.want(value, f"accepted {self.generation}".encode())

    def hear(self, *names: str) -> None:
        self.report(*[self.world.nodes[name].report(self.now) for name in names])

    def states(self) -> dict[str, JobState]:
        return {one.name: one.state for one in self.store.reader.jobs()}

    def sync(self) -> desired.SyncStatus:
        wanted = self.loop._track.desired
        assert wanted is not None
        return wanted.status

    @property
    def counts(self) -> dict[str, int]:
        return {part: n for part, n in self.loop._counters.defects.items() if n}


@pytest.fixture
def world() -> World:
    return World(nodes=4)


@pytest.fixture
def leader(tmp_path: Path, world: World) -> Iterator[Contained]:
    made = Contained(tmp_path, world)
    yield made
    made.close()


def test_a_defect_reaches_whoever_drives_the_loop_without_containment(
    tmp_path: Path, world: World
) -> None:
    leader = Contained(tmp_path, world, contained=False)
    leader.core.jobs = {POISON}
    leader.revision(job(POISON))
    with pytest.raises(KeyError):
        leader.cycle()
    leader.close()


def test_a_revision_that_cannot_be_decided_costs_nothing_that_was_there(
    leader: Contained, caplog: pytest.LogCaptureFixture
) -> None:
    leader.core.queues = {POISON}
    leader.revision(job("fine"))
    leader.hear("n0", "n1", "n2", "n3")
    leader.cycle()
    assert leader.store.reader.incumbents() == b"accepted 1"
    leader.revision(job("fine"), job("other"), queue=POISON)
    leader.now += 1
    leader.hear("n0")
    leader.loop._state.ask(records.ClearOverride("o1", "drain", "n1", "ada@example.org"))
    result = leader.cycle()
    assert "o1" in result.answers, "what was asked went into the second try"
    assert leader.loop._state.nodes["n0"].last_report_at == leader.now
    assert set(leader.states()) == {"fine"}
    status = leader.sync()
    assert (status.sync, status.attempted_revision) == ("OutOfSync", f"{2:040d}")
    assert (status.structure_revision, status.jobs_revision) == (f"{1:040d}", f"{1:040d}")
    (problem,) = status.problems
    assert problem.rule == "defect"
    assert "KeyError in " in problem.message
    assert "secret" not in problem.message
    assert "Traceback" not in problem.message
    assert status == stored_views.stored_sync(leader.store.reader.view(stored_views.SYNC))
    assert leader.store.reader.incumbents() == b"accepted 1", "it has to be judged again"
    assert leader.refusals == [cycle_rescue.RevisionRefusal(2, problem, b"accepted 1")]
    assert leader.counts == {"revision": 1}
    traces = [one for one in caplog.records if one.exc_info]
    assert len(traces) == 1
    assert internal_errors.MARK in traces[0].getMessage()
    kinds = {one.kind for one in leader.loop._state.drift}
    assert "head-not-applied" in kinds
    leader.core.calls = 0
    leader.now += 1
    leader.cycle()
    assert leader.core.calls == 1, "cycles go by what was there before"


def test_a_newer_revision_is_tried_anew(leader: Contained) -> None:
    leader.core.queues = {POISON}
    leader.revision(job("fine"))
    leader.cycle()
    for _ in range(2):
        leader.revision(job("fine"), queue=POISON)
        leader.cycle()
    assert leader.counts == {"revision": 2}
    assert [one.generation for one in leader.refusals] == [2, 3]
    leader.revision(job("fine"), job("more"))
    leader.cycle()
    assert leader.sync().sync == "Synced"
    assert set(leader.states()) == {"fine", "more"}
    assert leader.store.reader.incumbents() == b"accepted 4"


def test_at_a_start_the_store_alone_is_gone_by(tmp_path: Path, world: World) -> None:
    first = Contained(tmp_path, world)
    first.revision(job("runs"), job("done"))
    first.hear(*world.nodes)
    first.cycle()
    world.memory = first.loop._state
    was = desired.SyncStatus(jobs_revision="a" * 40, structure_revision="b" * 40)
    before = desired.Desired(structure=world.structure, status=was)
    first.close()
    again = Contained(tmp_path, world, before=before, accepted=b"then")
    again.core.queues = {POISON}
    again.generation = 1
    again.revision(job("runs"), job("done"), queue=POISON)
    again.cycle()
    assert set(again.states()) == {"runs", "done"}
    assert set(again.states().values()) <= {JobState.STARTING, JobState.PENDING}
    assert again.sync().jobs_revision == "a" * 40
    assert again.sync().structure_revision == "b" * 40
    (refusal,) = again.refusals
    assert refusal.incumbents == b"then"
    again.close()


def test_what_was_decided_in_spite_of_a_defect_can_be_replayed(
    leader: Contained, tmp_path: Path
) -> None:
    leader.core.jobs = {POISON}
    leader.core.nodes = {"n2"}
    leader.revision(job("fine"))
    leader.hear(*leader.world.nodes)
    leader.cycle()
    leader.now += 1
    leader.revision(job("fine"), job(POISON))
    leader.hear("n0", "n1")
    leader.cycle()
    leader.now += 1
    leader.core.jobs, leader.core.nodes = set(), set()
    leader.revision(job("fine"), job("third"))
    leader.hear("n3")
    leader.cycle()
    leader.store.close()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        replayed = [one.call.disagreements for one in replays.replay_all(reader)]
    assert len(replayed) > 3
    assert set(replayed) == {()}


@pytest.mark.parametrize("poisoned", [{"n2"}, {"n0"}, {"n3", "n0"}, {"n0", "n1", "n2", "n3"}])
def test_a_report_that_cannot_be_decided_costs_only_its_node(
    leader: Contained, poisoned: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    leader.revision(job("fine"))
    leader.cycle()
    leader.core.nodes = poisoned
    leader.hear(*leader.world.nodes)
    leader.cycle()
    assert leader.loop._state.nodes.keys() == leader.world.nodes.keys() - poisoned
    assert leader.sync().sync == "Synced"
    assert not leader.refusals
    assert leader.counts == {"input": 1}
    said = next(one.getMessage() for one in caplog.records if "left out" in one.getMessage())
    assert all((f"node {name}" in said) == (name in poisoned) for name in leader.world.nodes)


def test_a_new_revision_passes_though_a_report_beside_it_does_not(leader: Contained) -> None:
    leader.revision(job("fine"))
    leader.cycle()
    leader.core.nodes = {"n1"}
    leader.revision(job("fine"), job("new"))
    leader.hear("n0", "n1")
    leader.cycle()
    assert set(leader.states()) == {"fine", "new"}
    assert leader.sync().sync == "Synced"
    assert leader.counts == {"input": 1}
    assert leader.loop._state.nodes.keys() == {"n0"}


def test_a_poisonous_revision_and_a_poisonous_report_at_once(leader: Contained) -> None:
    leader.revision(job("fine"))
    leader.cycle()
    leader.core.queues, leader.core.nodes = {POISON}, {"n1"}
    leader.revision(job("fine"), queue=POISON)
    leader.hear("n0", "n1")
    leader.cycle()
    assert set(leader.states()) == {"fine"}
    assert leader.loop._state.nodes.keys() == {"n0"}
    assert leader.counts == {"input": 1, "revision": 1}


def test_a_node_whose_report_could_not_be_decided_is_not_heard_for_a_while(
    leader: Contained,
) -> None:
    leader.revision(job("fine"))
    leader.cycle()
    leader.core.nodes, leader.core.hears = {"n1"}, False
    leader.hear("n0", "n1")
    leader.cycle()
    node = leader.world.nodes["n1"]

    def say(question: int) -> bool:
        request = agent_messages.SyncRequest(
            node="n1", boot_id=node.boot_id, incarnation=node.incarnation, sequence=9
        )
        return leader.loop._take_message(
            loop_messages.Reported(request, leader.now, question=question)
        )

    assert not say(0)
    assert not leader.loop._state.answered
    assert say(7), "only a cycle answers how it stands, and no lease is renewed before that"
    with server(leader) as client:
        leader.loop._dispatcher.questions["n1"] = 7  # another server has asked since
        leader.cycle()
        (told,) = [m for m in client() if isinstance(m, loop_messages.NodeUpdate) and m.confirms]
    assert (told.node, told.confirms) == ("n1", 7)
    assert not leader.loop._dispatcher.questions
    assert leader.loop._state.nodes["n1"].undecided, "what it said is not listened to"
    leader.now += internal_errors.IGNORED_S + 1
    leader.core.nodes = set()
    assert say(8)
    leader.cycle()
    assert not leader.loop._state.nodes["n1"].undecided


def test_what_was_said_counts_as_heard_while_it_waits_to_be_decided(
    tmp_path: Path,
) -> None:
    """After a stall everything comes at once. No node is silent while its report waits."""
    world = World(nodes=2, settings=desired.ClusterSettings(lease_s=5, node_silence_s=5))
    leader = Contained(tmp_path, world)
    leader.revision(job("a", lease_s=5))
    leader.hear("n0", "n1")
    leader.cycle()
    (attempt,) = leader.loop._state.attempts.values()
    running = records.AttemptReport(
        id=attempt.id, state=AttemptState.RUNNING, started_at=leader.now
    )
    world.nodes[attempt.node].attempts = {attempt.id: running}
    leader.now += 1
    leader.hear("n0", "n1")
    leader.cycle()
    world.nodes[attempt.node].end(attempt.id, leader.now + 1, exit_code=0)
    leader.core.nodes = {"n0", "n1"} - {attempt.node}
    leader.now += 600
    leader.hear("n0", "n1")
    leader.cycle()
    assert leader.states() == {"a": JobState.SUCCEEDED}
    leader.close()


def test_when_nodes_were_answered_is_known_whatever_is_left_out(leader: Contained) -> None:
    leader.revision(job("fine"))
    leader.hear(*leader.world.nodes)
    leader.cycle()
    leader.core.nodes = {"n1"}
    leader.now += 5
    leader.loop._state.answered["n1"] = leader.now
    leader.hear("n1")
    leader.cycle()
    assert leader.loop._state.nodes["n1"].last_answer_at == leader.now


def test_where_nothing_can_be_decided_the_loop_ends_and_says_what_to_send(
    leader: Contained, caplog: pytest.LogCaptureFixture
) -> None:
    leader.revision(job("fine"))
    leader.cycle()
    leader.core.always = True
    leader.hear("n0")
    with pytest.raises(ArithmeticError):
        leader.cycle()
    assert any("muster backup" in one.getMessage() for one in caplog.records)
    assert leader.counts == {"input": 1}


def test_what_the_store_says_ends_the_loop_as_ever(leader: Contained) -> None:
    leader.revision(job("fine"))
    leader.cycle()
    leader.store.lead("another", leader.now + 1)
    leader.revision(job("fine"), job("new"))
    with pytest.raises(errors.DeposedError):
        leader.cycle()
    assert leader.counts == {}


class Broken(log_format.EventLines):
    """Event lines that can't be written."""

    def write(self, happened: object, *, cycle: int, revision: str) -> None:
        raise LookupError(revision)


def fail(*_: object) -> Any:
    raise LookupError("it can't be told")


class Uncounted(publisher.NoNotices):
    """Notices that can't be counted."""

    def counts(self) -> Mapping[tuple[str, str], int]:
        raise LookupError("they can't be counted")


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ("notices", {"on_outcome": fail}),
        ("lines", {"event_lines": Broken("readable", "loop", sys.stderr)}),
        ("metrics", {"notice_counts": Uncounted()}),
        ("tell", {"provision": fail}),
    ],
)
def test_what_comes_of_a_decision_may_fail_by_itself(
    part: str, options: dict[str, Any], tmp_path: Path, world: World
) -> None:
    leader = Contained(tmp_path, world, **options)
    with server(leader) as client:
        leader.revision(job("fine"))
        for _ in range(2):
            leader.now += 1
            leader.hear(*world.nodes)
            leader.cycle()
        assert part in leader.counts
        assert leader.states() == {"fine": JobState.STARTING}
        (started,) = leader.loop._state.attempts.values()
        told = [one for one in client() if isinstance(one, loop_messages.NodeUpdate)]
        assert started.node in {one.node for one in told}
        assert leader.sync().sync == "Synced"
    leader.close()
    again = Contained(tmp_path, world, contained=False, **options)
    with server(again):
        again.generation = 1
        again.revision(job("fine"), job("more"))
        again.hear(*world.nodes)
        with pytest.raises(LookupError):
            again.cycle()
    again.close()


@contextlib.contextmanager
def server(leader: Leader) -> Iterator[Callable[[], list[loop_messages.ToServer]]]:
    """Yield a function that returns what the loop sent to the server process."""
    decoder = msgspec.msgpack.Decoder(loop_messages.ToServer)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(leader.folder / "loop.sock"))
        client.settimeout(1)
        leader.loop._take(leader.loop._selector.select(5))

        def heard() -> list[loop_messages.ToServer]:
            frames, found = loop_messages.FrameBuffer(), []
            with contextlib.suppress(TimeoutError):
                while data := client.recv(1 << 20):
                    found += [decoder.decode(body) for body in frames.feed(data)]
            return found

        yield heard


def test_a_set_that_cannot_be_made_costs_only_its_node(leader: Contained) -> None:
    leader.revision(job("fine"), job("big", cpu=4))
    leader.hear("n0", "n1")
    leader.cycle()
    node_of = {one.job: one.node for one in leader.loop._state.attempts.values()}
    assert node_of["fine"] != node_of["big"]
    record = leader.loop._state.jobs["big"]
    (group,) = record.spec.groups
    worse = msgspec.structs.replace(group, command=(2**70,))  # no message can hold it
    spec = msgspec.structs.replace(record.spec, groups=(worse,))
    leader.loop._state.jobs["big"] = msgspec.structs.replace(record, spec=spec)
    with server(leader) as client:
        told = {one.node for one in client() if isinstance(one, loop_messages.NodeUpdate)}
        assert told == {node_of["fine"]}
        leader.loop._dispatcher.questions = {node_of["fine"]: 3, node_of["big"]: 4}
        leader.cycle()
        assert leader.loop._dispatcher.questions == {node_of["big"]: 4}, "it is asked for again"
    assert leader.counts == {"tell": 2}


def test_a_journal_that_cannot_be_written_begins_anew(leader: Contained, tmp_path: Path) -> None:
    leader.revision(job("fine"))
    leader.hear("n0")
    leader.cycle()
    report = leader.world.nodes["n1"].report(leader.now)
    # of an attempt that nobody knows nothing is kept, but for the journal, which can't hold it
    told = records.AttemptReport(id="unknown", state=AttemptState.RUNNING, max_memory_bytes=2**70)
    leader.report(msgspec.structs.replace(report, attempts=(told,)))
    leader.now += 1
    leader.cycle()
    assert leader.counts == {"journal": 1}
    assert leader.sync().sync == "Synced"
    leader.now += 1
    leader.revision(job("fine"), job("more"))
    leader.cycle()
    leader.store.close()
    with contextlib.closing(StoreReader.open(url(tmp_path))) as reader:
        found = list(replays.replay_all(reader))
    assert found[-1].call.wanted.jobs.keys() == {"fine", "more"}
    assert {one.call.disagreements for one in found} == {()}

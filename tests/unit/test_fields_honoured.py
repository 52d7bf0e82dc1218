"""A field that is accepted is honoured: two values of each make a different outcome.

Every leaf field of every built kind is found by looking at the types, so that a new one without
an entry in ``TABLE``, or in that of ``test_fields_of_scheduling``, fails there. An entry puts two
values into the same documents and says what is seen of each behind the real pipeline: documents,
core, engine, and the orders and environment that an agent makes of its assignments.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from agents.tasks import task_environment, task_users
from agents.tasks.node_context import NodeContext
from reconciler.controller import control_loop, loop_inbox
from reconciler.core import garbage_collection
from reconciler.desired.apply import validate
from reconciler.desired.normalise import job_defaults
from reconciler.model import desired
from reconciler.model.documents import kinds
from reconciler.model.observed import devices, health_checks, task_reports
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState
from reconciler.model.values.resources import Resources
from reconciler.operations.local import local_nodes
from reconciler.operations.views import job_views
from reconciler.store import sql_store
from tests import ordering
from tests.unit.core import world

Json = Any
Document = dict[str, Any]

#: Accepted and not read by Muster, on purpose; nothing else may stand here.
NOT_READ = {
    "*.metadata.annotations": "notes of people and tools, which their description says",
    "Access.metadata.labels": "facts for people and tools; only jobs are shown and listed by them",
    "Cluster.metadata.labels": "as for Access",
    "NodePool.metadata.labels": "as for Access; labels of its nodes are spec.labels",
    "PriorityClass.metadata.labels": "as for Access",
    "Queue.metadata.labels": "as for Access",
    "Quota.metadata.labels": "as for Access",
    "Reservation.metadata.labels": "as for Access",
    "Volume.metadata.labels": "as for Access",
}


# --- which fields there are -----------------------------------------------------------------


def leaves(info: msgspec.inspect.Type, path: str) -> Iterator[str]:
    """The paths of all fields below a type; ``[]`` stands for the items of a list."""
    inner: list[msgspec.inspect.Type] = [info]
    while inner:
        part = inner.pop()
        if isinstance(part, msgspec.inspect.UnionType):
            inner.extend(part.types)
        elif isinstance(part, msgspec.inspect.Metadata):
            inner.append(part.type)
        elif isinstance(part, msgspec.inspect.StructType):
            for field in part.fields:
                yield from leaves(field.type, f"{path}.{field.encode_name}")
            return
        elif isinstance(part, msgspec.inspect.ListType):
            if any(True for _ in leaves(part.item_type, "")):
                below = list(leaves(part.item_type, f"{path}[]"))
                if below != [f"{path}[]"]:
                    yield from below
                    return
        elif isinstance(part, msgspec.inspect.LiteralType) and len(part.values) == 1:
            return  # there is no second value to choose
    yield path


def fields() -> list[str]:
    """Every leaf field of every built kind that has more than one possible value."""
    return [
        leaf
        for kind, part in kinds.KINDS.items()
        if kind not in kinds.KINDS_NOT_BUILT
        for leaf in leaves(msgspec.inspect.type_info(part), kind)
    ]


# --- documents ------------------------------------------------------------------------------


def document(kind: str, name: str, spec: Document, **metadata: Json) -> Document:
    return {
        "apiVersion": "muster/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def pool(**spec: Json) -> Document:
    """Two virtual nodes of four CPUs, 8 GiB and four GPUs."""
    nodes = {"cpu": 4, "memory": "8Gi", "gpus": {"count": 4, "model": "simulated"}}
    return document("NodePool", "p", {"provisioner": "virtual", "count": 2, "nodes": nodes} | spec)


def job(name: str = "j", **spec: Json) -> Document:
    """A job of one CPU, in the default queue."""
    return document("Job", name, {"command": ["true"]} | spec)


def queue(name: str, **spec: Json) -> Document:
    return document("Queue", name, spec)


BASE = (document("Cluster", "c", {}), pool(), job())


def put(whole: Document, path: str, value: Json) -> Document:
    """A copy with one field set; ``[]`` is the first item of a list."""
    keys = path.replace("[]", ".[]").split(".")
    copy: Json = msgspec.json.decode(msgspec.json.encode(whole))
    at = copy
    for key, following in zip(keys, [*keys[1:], ""], strict=True):
        empty: Json = [] if following == "[]" else {}
        if key == "[]":
            if not at:
                at.append({})
            if following == "":
                at[0] = value
            at = at[0]
        elif following == "":
            at[key] = value
        else:
            at = at.setdefault(key, empty)
    return copy  # type: ignore[no-any-return]


def read(documents: tuple[Document, ...]) -> desired.Desired:
    """The desired state that the documents make."""
    return validate.check({"all.yaml": b"\n---\n".join(map(msgspec.json.encode, documents))})


# --- the pipeline ---------------------------------------------------------------------------


class Node(world.VirtualNode):
    """A node that keeps the last set it was given, and may be one that runs as root."""

    wanted = agent_messages.AssignmentSet()
    as_root = False

    def take(self, payload: bytes, acknowledged: tuple[str, ...], now: float) -> None:
        self.wanted = msgspec.msgpack.decode(payload, type=agent_messages.AssignmentSet)
        super().take(payload, acknowledged, now)

    def report(self, now: float) -> records.NodeReport:
        return msgspec.structs.replace(
            super().report(now),
            inventory=records.Inventory(
                capacity=Resources(4000, 8 * 2**30, 4000),
                gpus=tuple(
                    records.Gpu(
                        i,
                        f"G{i}",
                        self.pool.gpu_model or "simulated",
                        16 * 2**30,
                        simulated=bool(self.pool.mig),
                    )
                    for i in range(4)
                ),
                runs_as_root=self.as_root,
            ),
        )


class Run(world.World):
    """The core and the engine over documents."""

    def __init__(self, documents: tuple[Document, ...], *, as_root: bool = False) -> None:
        self.as_root = as_root
        super().__init__(nodes=0)
        self.nodes: dict[str, world.VirtualNode] = {}
        self.write(documents)

    def write(self, documents: tuple[Document, ...]) -> None:
        """Git holds these documents now, and nothing else."""
        found = read(documents)
        errors = [p.text() for p in found.status.problems if p.severity == "error"]
        assert not errors
        self.documents = documents
        self.structure, self.jobs = found.structure, dict(found.jobs)
        self.generation += 1
        for of in found.structure.pools.values():
            for name in of.nodes:
                if name not in self.nodes:
                    self.nodes[name] = Node(name, of)
                    self.nodes[name].as_root = self.as_root  # type: ignore[attr-defined]
        self.settle()

    def add(self, *documents: Document) -> None:
        """Git holds these as well."""
        self.write((*self.documents, *documents))

    def live(self, name: str) -> list[records.AttemptRecord]:
        """The attempts at a job that hold something."""
        return [a for a in self.attempts(name) if a.state is not AttemptState.ENDED]

    def count(self, name: str) -> int:
        return len(self.live(name))

    def sent(
        self, name: str = "j"
    ) -> list[tuple[agent_messages.Assignment, agent_messages.TaskTemplate]]:
        """What nodes were told of a job last, task by task."""
        found = [
            (assignment, node.wanted.templates[assignment.template])
            for node in self.nodes.values()
            if isinstance(node, Node)
            for assignment in node.wanted.assignments
        ]
        return sorted(
            (one for one in found if one[1].job == name),
            key=lambda one: (one[0].element, one[1].group, one[0].index),
        )

    def template(self, name: str = "j") -> agent_messages.TaskTemplate:
        return self.sent(name)[0][1]

    def orders(self, shared: Path, name: str = "j") -> list[Any]:
        """What the agent tells its supervisor of a job's tasks."""
        place = NodeContext(name="n", root=str(shared), shared=str(shared))
        return [ordering.order_for(one, template, place) for one, template in self.sent(name)]


def states(*names: str) -> Callable[[Run, Path], Json]:
    return lambda run, _: [run.state(name).value for name in names]


def counted(*names: str) -> Callable[[Run, Path], Json]:
    return lambda run, _: [run.count(name) for name in names]


def reason(name: str = "j") -> Callable[[Run, Path], Json]:
    return lambda run, _: run.reason(name) or run.state(name).value


def why_held(run: Run, _: Path) -> Json:
    """What is said of the first job, in whole."""
    return run.memory.reasons[run.memory.jobs["j"].reason_key][0].message


def template(field: str) -> Callable[[Run, Path], Json]:
    return lambda run, _: getattr(run.template(), field)


def submitted(part: str, field: str) -> Callable[[Run, Path], Json]:
    return lambda run, _: getattr(getattr(run.template().submitted, part), field)


def coded(field: str) -> Callable[[Run, Path], Json]:
    return lambda run, _: getattr(run.template().code, field)


PACKS = (f"sha256:{'0' * 64}", f"sha256:{'1' * 64}")
SUBMITTED: Json = {
    "path": "/a", "device": 1, "inode": 2, "bootId": "e", "marker": "m", "markerSha256": "2" * 64
}  # fmt: skip


def variable(name: str) -> Callable[[Run, Path], Json]:
    return lambda run, shared: [order["env"].get(name) for order in run.orders(shared)]


def ordered(field: str) -> Callable[[Run, Path], Json]:
    return lambda run, shared: [order[field] for order in run.orders(shared)]


class Case(msgspec.Struct, frozen=True):
    """Two values of a field, and what is seen of each.

    ``documents`` has the document that the value goes into first; ``look`` gets the settled run.
    """

    values: tuple[Json, Json]
    look: Callable[[Run, Path], Json]
    seen: tuple[Json, Json]
    documents: tuple[Document, ...] = ()
    as_root: bool = False


CLUSTER = (document("Cluster", "c", {}), pool(), job())
COMMANDS: Json = {"commands": [{"name": "c", "command": ["c"]}]}
AROUND = (
    pool(beforeJob=[{"name": "n", "command": ["/n"]}], afterJob=[{"name": "o", "command": ["/o"]}]),
    job(),
)
HEALED_BARE = (pool(health={"remedies": [{"check": "clock"}], "remediesAtOnce": 1}),)
HEALED = (
    pool(
        health={
            "remedies": [{"check": "clock", "action": "run-command", "command": ["r"]}],
            "remediesAtOnce": 1,
        }
    ),
)
FLAPS = (pool(count=1, health={"flapping": {"failures": 3}}),)
HOLE = (
    pool(count=1, health={"blackHole": {"owners": 2}}),
    document(
        "Access",
        "people",
        {
            "identities": [
                {"email": f"{who}@example.org", "unixUser": who} for who in ("ada", "bob")
            ]
        },
    ),
    job(owner="ada@example.org"),
    job("k", owner="bob@example.org"),
)
KILLED = (
    document("Cluster", "c", {"drift": {"policy": {"task-killed": "remediate"}}}),
    pool(),
    job(),
)
OVER = (*CLUSTER, job("n"))
POOL = (pool(), job())
JOB = (job(), pool())
ONE_NODE = pool(count=1)
ACCESS = (document("Access", "people", {}), pool(), job(owner="ada@example.org"))
CLASS = (document("PriorityClass", "k", {"value": 50}), ONE_NODE)
HOSTS = document(
    "NodePool",
    "p",
    {"hosts": "n[1-2]", "nodes": {"cpu": 4, "memory": "8Gi", "gpus": {"count": 4}}},
)


# --- looking closer -------------------------------------------------------------------------


def silent(seconds: float) -> Callable[[Run, Path], Json]:
    """What node and job are when the only node was not heard of for so long."""

    def look(run: Run, _: Path) -> Json:
        for node in run.nodes.values():
            node.silent = True
        run.advance(seconds)
        tried = run.memory.jobs["j"].notes.get(0)
        return [run.memory.nodes["p-0"].state.value, tried.losses if tried else 0]

    return look


def after_failures(*waits: float) -> Callable[[Run, Path], Json]:
    """How often the job was tried, failing at once, when so much time has passed each time."""

    def look(run: Run, _: Path) -> Json:
        for wait in waits:
            run.end("j", exit_code=1)
            run.advance(wait)
            if not run.count("j"):
                break
        return [run.state("j").value, run.count("j")]

    return look


def then(*documents: Document) -> Callable[[Run, Path], Json]:
    """What the job ``late`` comes to once it is there too."""

    def look(run: Run, _: Path) -> Json:
        run.add(*documents)
        run.settle()
        return [run.count("j"), run.count("late")]

    return look


def stops(run: Run) -> list[tuple[str, records.StopOrder]]:
    """Every stop order that was given."""
    return [
        (attempt.id, attempt.stop)
        for outcome in run.outcomes
        for attempt in outcome.attempts
        if attempt.stop is not None
    ]


def held_grace(run: Run, _: Path) -> Json:
    """The grace that tasks get when their job is cancelled."""
    run.write(tuple(d for d in run.documents if d["kind"] != "Job"))
    return stops(run)[0][1].grace_s


def resumed(ages_s: dict[str, float]) -> Callable[[Run, Path], Json]:
    """Name and step that the next attempt is told of, where files of these ages lie."""

    def look(run: Run, shared: Path) -> Json:
        folder = shared / str(run.template().checkpoint_path)
        folder.mkdir(parents=True, exist_ok=True)
        for name, age_s in ages_s.items():
            (folder / name).write_text("weights")
            os.utime(folder / name, (time.time() - age_s,) * 2)
        (order,) = run.orders(shared)
        told = order["env"]
        return [Path(told["MUSTER_CHECKPOINT"]).name, told["MUSTER_CHECKPOINT_STEP"]]

    return look


def leave_grace(run: Run, _: Path) -> Json:
    """The grace that a task's node is told of beforehand."""
    return run.template().grace_s


def leaves_by(field: str) -> Callable[[Run, Path], Json]:
    """By what a node that is drained lets its work leave."""
    return lambda run, _: getattr(run.memory.nodes["p-0"].leave, field)


def of_up(run: Run, _: Path) -> Json:
    """The nodes that ``muster up`` starts: name and memory of a GPU."""
    shown = [job_views.pool_view(one, {}) for one in run.structure.pools.values()]
    told = msgspec.json.decode(msgspec.json.encode(shown))
    return [(name, node.gpu_memory) for name, node in local_nodes.declared_nodes(told)]


def node_of(name: str) -> Callable[[Run, Path], Json]:
    def look(run: Run, _: Path) -> Json:
        node = run.memory.nodes.get(name)
        return None if node is None else [node.state.value, node.message]

    return look


def kept(field: str) -> Callable[[Run, Path], Json]:
    """Rows of a table two days after they were written, under the real loop and store."""

    def look(run: Run, folder: Path) -> Json:
        store = sql_store.Store.open(f"sqlite:///{folder / 'store.db'}")
        now = [1_000_000.0]
        inbox = loop_inbox.Inbox()
        try:
            loop = control_loop.Loop(
                led=sql_store.LedStore(store, store.lead("test", now[0])),
                socket_path=folder / "loop.sock",
                inbox=inbox,
                clock=lambda: now[0],
            )
            for _ in range(2):
                inbox.put_desired(read(run.documents), b"")
                loop._take_desired()
                loop.cycle()
                now[0] += 2 * 86_400
            now[0] -= 2 * 86_400
            loop._prune()
            loop._link.close()
            loop._selector.close()
        finally:
            store.close()
        engine = sa.create_engine(f"sqlite:///{folder / 'store.db'}")
        with engine.connect() as connection:
            statement = sa.text(f"select count(*) from {field} where at < 1000001")  # noqa: S608
            rows = connection.execute(statement).scalar()
        engine.dispose()
        return bool(rows)

    return look


def over(seconds: float) -> Callable[[Run, Path], Json]:
    """Which jobs are listed so long after one ended and its document left, and a look later."""

    def look(run: Run, _: Path) -> Json:
        run.end("j")
        run.commit(remove=("j",))
        run.settle()
        run.advance(seconds)
        run.advance(garbage_collection.EVERY_S)
        return sorted(run.memory.jobs)

    return look


def killed_tries(*waits: float) -> Callable[[Run, Path], Json]:
    """How often a task that somebody keeps killing was started anew, by when it may be."""

    def look(run: Run, _: Path) -> Json:
        for wait in waits:
            for attempt in run.live("j"):
                run.nodes[attempt.node].end(attempt.id, run.now, signal=9)
            run.settle()
            run.advance(wait)
        return [run.state("j").value, len(run.memory.remedies)]

    return look


def driver_is(version: str) -> Callable[[Run, Path], Json]:
    """What state nodes are in that have this driver."""

    def look(run: Run, _: Path) -> Json:
        driver = devices.GpuDriver(devices.OK, version=version)
        name = next(iter(run.nodes))
        told = run.nodes[name].report(run.now)
        inventory = msgspec.structs.replace(
            told.inventory or records.Inventory(), gpu_driver=driver
        )
        run.memory.add_report(msgspec.structs.replace(told, inventory=inventory))
        run.cycle()
        return run.memory.nodes[name].state.value

    return look


def planned(field: str) -> Callable[[Run, Path], Json]:
    """What a node is told to look at."""

    def look(run: Run, _: Path) -> Json:
        sent = run.engine.update("p-0", run.structure, run.memory)
        plan = msgspec.msgpack.decode(sent.payload or b"", type=agent_messages.AssignmentSet).checks
        return getattr(plan, field)

    return look


def around(moment: str, field: str) -> Callable[[Run, Path], Json]:
    """What a node is told to run before or after a job."""

    def look(run: Run, _: Path) -> Json:
        sent = run.engine.update("p-0", run.structure, run.memory)
        told = msgspec.msgpack.decode(sent.payload or b"", type=agent_messages.AssignmentSet)
        return getattr(getattr(told.job_commands, moment)[0], field)

    return look


def commanded(field: str) -> Callable[[Run, Path], Json]:
    """What a node is told to run to see how it is."""
    return lambda run, shared: getattr(planned("commands")(run, shared)[0], field)


def healed(field: str, *nodes: str) -> Callable[[Run, Path], Json]:
    """What is ordered when every check of some nodes has failed."""

    def look(run: Run, _: Path) -> Json:
        for _turn in range(4):
            for name in nodes or ("p-0",):
                told = run.nodes[name].report(run.now)
                failed = tuple(
                    health_checks.CheckResult(one, "failed", "x") for one in ("clock", "mounts")
                )
                inventory = msgspec.structs.replace(
                    told.inventory or records.Inventory(), checks=failed
                )
                run.memory.add_report(msgspec.structs.replace(told, inventory=inventory))
            run.cycle()
            run.now += 1
        return [getattr(one, field) for one in run.memory.remedies]

    return look


def hole(ran_s: float, later_s: float = 0) -> Callable[[Run, Path], Json]:
    """What a node is on which tasks of two owners failed after so long."""

    def look(run: Run, _: Path) -> Json:
        for name in ("j", "k"):
            run.advance(ran_s)
            run.end(name, exit_code=1)
        run.advance(later_s)
        run.hear()
        run.cycle()
        return run.memory.nodes["p-0"].state.value

    return look


def flapping(turns: int, apart_s: float, well_s: float = 1) -> Callable[[Run, Path], Json]:
    """What a node is whose check failed so often, and has been well for so long since."""

    def look(run: Run, _: Path) -> Json:
        def finds(*found: health_checks.CheckResult) -> None:
            told = run.nodes["p-0"].report(run.now)
            inventory = msgspec.structs.replace(told.inventory or records.Inventory(), checks=found)
            run.memory.add_report(msgspec.structs.replace(told, inventory=inventory))
            run.cycle()

        for _turn in range(turns):
            run.now += apart_s
            finds(health_checks.CheckResult("clock", "failed", "x"))
            finds()
        run.now += well_s
        finds()
        return run.memory.nodes["p-0"].state.value

    return look


def failing(apart_s: float) -> Callable[[Run, Path], Json]:
    """Return how many nodes are out on which a check failed, one after another."""

    def look(run: Run, _: Path) -> Json:
        found = (health_checks.CheckResult("clock", "failed", "x"),)
        failed: list[str] = []
        for name in sorted(run.nodes):
            failed.append(name)
            for one in failed:
                told = run.nodes[one].report(run.now)
                inventory = msgspec.structs.replace(
                    told.inventory or records.Inventory(), checks=found
                )
                run.memory.add_report(msgspec.structs.replace(told, inventory=inventory))
            run.cycle()
            run.now += apart_s
        return sum(run.memory.nodes[name].state.value == "Unhealthy" for name in run.nodes)

    return look


def node_gone(seconds: float) -> Callable[[Run, Path], Json]:
    """Which nodes are listed so long after one was taken away, and a look later."""

    def look(run: Run, _: Path) -> Json:
        (pool,) = run.structure.pools.values()
        run.change_structure(pools={"p": msgspec.structs.replace(pool, nodes=("p-0",))})
        run.nodes["p-1"].silent = True
        run.advance(100)
        run.advance(seconds)
        run.advance(garbage_collection.EVERY_S)
        return sorted(run.memory.nodes)

    return look


def usage(field: str, name: str) -> Callable[[Run, Path], Json]:
    """What a queue is accounted for."""
    return lambda run, _: next(
        getattr(one, field)
        for decided in reversed(run.outcomes)
        for one in decided.queues or ()
        if one.name == name
    )


def guarantee(resource: str) -> tuple[Document, ...]:
    """A queue to be guaranteed something, and one that has borrowed all of it."""
    asked: dict[str, Json] = {"cpu": "10m", "memory": 0, "gpu": 0}
    greedy: dict[str, Json] = asked | {resource: {"cpu": 1, "memory": "2Gi", "gpu": 1}[resource]}
    # without weight a queue has no claim beyond what it is guaranteed
    return (
        queue("own", weight=0),
        queue("lent"),
        ONE_NODE,
        job("j", queue="lent", array={"count": 4}, resources=greedy),
    )


def reclaim(resource: str) -> Callable[[Run, Path], Json]:
    """Elements that go on, and the owner's job, once the owner asks for one unit."""
    amount = {"cpu": 1, "memory": "2Gi", "gpu": 1}[resource]
    asked: dict[str, Json] = {"cpu": "10m", "memory": 0, "gpu": 0} | {resource: amount}
    return then(job("late", queue="own", resources=asked))


def limited(resource: str, **more: Json) -> tuple[Document, ...]:
    asked = {"cpu": 1, "memory": "1Gi", "gpu": 1}
    return (queue("q", **more), pool(), job(queue="q", array={"count": 8}, resources=asked))


def again(run: Run, _: Path) -> Json:
    """Which run a job is at after it has ended and its document was read once more."""
    run.end("j")
    run.add(job("other"))
    return [run.memory.jobs["j"].spec.run, run.state("j").value]


def first_of_two(run: Run, _: Path) -> Json:
    """Which of two jobs got the only place."""
    return [run.count("j"), run.count("k")]


def when_ends(exit_code: int) -> Callable[[Run, Path], Json]:
    def look(run: Run, _: Path) -> Json:
        run.end("before", exit_code=exit_code)
        run.settle()
        return run.reason("j") or run.state("j").value

    return look


def one_element_ends(run: Run, _: Path) -> Json:
    run.end("before", element=1)
    run.settle()
    return run.count("j")


def group_ends(group: str) -> Callable[[Run, Path], Json]:
    """What the job has come to when the task of a group has ended."""

    def look(run: Run, _: Path) -> Json:
        run.end("j", group=group)
        run.settle()
        return run.state("j").value

    return look


def after(seconds: float) -> Callable[[Run, Path], Json]:
    def look(run: Run, _: Path) -> Json:
        run.advance(seconds)
        run.settle()
        return run.state("j").value

    return look


def saved_and_after(seconds: float) -> Callable[[Run, Path], Json]:
    """What the job has come to so long after it has written a checkpoint."""

    def look(run: Run, shared: Path) -> Json:
        for node in run.nodes.values():
            for name, told in node.attempts.items():
                saved = task_reports.Saved("step-1", run.now)
                node.attempts[name] = msgspec.structs.replace(told, checkpoint=saved)
        run.settle()
        return after(seconds)(run, shared)

    return look


GROUP = job(groups=[{"name": "a"}])
ARRAY = job(array={"count": 3})
BEFORE = job("before", array={"count": 3})
AFTER = job(dependsOn=[{"job": "before"}])


#: What each field does. Paths are those of ``fields()``.
TABLE: dict[str, Case] = {
    # Cluster
    "Cluster.spec.suspend": Case((False, True), reason(), ("Running", "Held"), CLUSTER),
    "Cluster.spec.lease": Case(
        ("1m", "1h"),
        silent(600),
        (["Unknown", 1], ["Unknown", 0]),
        (document("Cluster", "c", {}), ONE_NODE, job(retries={"limit": 1})),
    ),
    "Cluster.spec.nodeSilence": Case(
        ("1m", "1h"),
        silent(600),
        (["Unknown", 0], ["Ready", 0]),
        (document("Cluster", "c", {}), ONE_NODE, job()),
    ),
    "Cluster.spec.retention.finishedJobs": Case(
        ("1h", "30d"), over(7200), (["n"], ["j", "n"]), OVER
    ),
    "Cluster.spec.retention.finishedJobsMax": Case((0, 5), over(0), (["n"], ["j", "n"]), OVER),
    "Cluster.spec.retention.goneNodes": Case(
        ("1h", "30d"), node_gone(7200), (["p-0"], ["p-0", "p-1"]), CLUSTER
    ),
    "Cluster.spec.retention.history": Case(
        ("1d", "30d"),
        lambda run, _: run.structure.settings.retain_history_s,
        (86_400, 2_592_000),
        CLUSTER,
    ),
    "Cluster.spec.retention.events": Case(("1d", "30d"), kept("events"), (False, True), CLUSTER),
    "Cluster.spec.retention.journal": Case(("1d", "30d"), kept("journal"), (False, True), CLUSTER),
    "Cluster.spec.drift.policy": Case(
        ({"task-killed": "report"}, {"task-killed": "remediate"}),
        killed_tries(1),
        (["Failed", 0], ["Running", 1]),
        CLUSTER,
    ),
    "Cluster.spec.drift.remediation.attempts": Case(
        (1, 2), killed_tries(600, 600), (["Failed", 1], ["Running", 2]), KILLED
    ),
    "Cluster.spec.drift.remediation.backoff": Case(
        ("1s", "1h"), killed_tries(60, 60), (["Running", 2], ["Failed", 1]), KILLED
    ),
    "Cluster.spec.drift.remediation.perHour": Case(
        (1, 2), killed_tries(600, 600), (["Failed", 1], ["Running", 2]), KILLED
    ),
    # Access
    "Access.spec.identities[].email": Case(
        ("ada@example.org", "bob@example.org"),
        reason(),
        ("Running", "NoUnixUser"),
        (
            document("Access", "people", {"identities": [{"email": "x@y", "unixUser": "ada"}]}),
            *ACCESS[1:],
        ),
        as_root=True,
    ),
    "Access.spec.identities[].unixUser": Case(
        ("ada", "games"),
        template("user"),
        ("ada", "games"),
        (document("Access", "people", {"identities": [{"email": "ada@example.org"}]}), *ACCESS[1:]),
        as_root=True,
    ),
    # PriorityClass
    "PriorityClass.spec.value": Case(
        (10, 90),
        first_of_two,
        ([0, 1], [1, 0]),
        (*CLASS, job(priorityClass="k", resources={"cpu": 4}), job("k", resources={"cpu": 4})),
    ),
    "PriorityClass.spec.preemptible": Case(
        (True, False),
        then(job("late", priority=90, resources={"cpu": 4})),
        ([0, 1], [1, 0]),
        (*CLASS, job(priorityClass="k", resources={"cpu": 4})),
    ),
    "PriorityClass.spec.preemptionPolicy": Case(
        ("evict", "never"),
        then(job("late", priorityClass="k", resources={"cpu": 4})),
        ([0, 1], [1, 0]),
        (document("PriorityClass", "k", {"value": 90}), ONE_NODE, job(resources={"cpu": 4})),
    ),
    # NodePool
    "NodePool.spec.hosts": Case(
        ("n[1-2]", "n3"),
        lambda run, _: sorted(run.memory.nodes),
        (["n1", "n2"], ["n3"]),
        (HOSTS,),
    ),
    "NodePool.spec.count": Case(
        (1, 3),
        lambda run, _: sorted(run.memory.nodes),
        (["p-0"], ["p-0", "p-1", "p-2"]),
        POOL,
    ),
    "NodePool.spec.nodes.cpu": Case(
        (4, 8), node_of("p-0"), (["Ready", ""], ["Unhealthy", "4 CPUs, 8 declared"]), POOL
    ),
    "NodePool.spec.nodes.memory": Case(
        ("1Gi", "2Gi"),
        reason(),
        ("NeverFits", "Running"),
        (pool(), job(resources={"memory": "2Gi"})),
    ),
    "NodePool.spec.nodes.gpus.count": Case(
        (1, 2), counted("j"), ([2], [4]), (pool(), job(array={"count": 8}, resources={"gpu": 1}))
    ),
    "NodePool.spec.nodes.gpus.model": Case(
        ("A", "B"),
        reason(),
        ("Running", "NeverFits"),
        (pool(), job(nodeSelector={"gpu-model": "A"})),
    ),
    "NodePool.spec.nodes.gpus.memory": Case(
        ("16Gi", "32Gi"),
        lambda run, folder: [run.memory.nodes["p-0"].state.value, of_up(run, folder)[0]],
        (["Ready", ("p-0", str(16 * 2**30))], ["Unhealthy", ("p-0", str(32 * 2**30))]),
        POOL,
    ),
    "NodePool.spec.labels": Case(
        ({"room": "b1"}, {"room": "b2"}),
        reason(),
        ("Running", "NeverFits"),
        (pool(), job(nodeSelector={"room": "b1"})),
    ),
    "NodePool.spec.drift.policy": Case(
        ({"task-killed": "report"}, {"task-killed": "remediate"}),
        killed_tries(1),
        (["Failed", 0], ["Running", 1]),
        POOL,
    ),
    "NodePool.spec.nodes.mounts": Case(
        (["/a"], ["/b"]), planned("mounts"), (("/a",), ("/b",)), (pool(health={}), job())
    ),
    "NodePool.spec.health.interval": Case(("1m", "2m"), planned("interval_s"), (60, 120), POOL),
    "NodePool.spec.health.off": Case(([], ["clock"]), planned("off"), ((), ("clock",)), POOL),
    "NodePool.spec.health.gpuTemperature": Case(
        (80, 90), planned("gpu_temperature_celsius"), (80, 90), POOL
    ),
    "NodePool.spec.health.diskFree": Case((0.1, 0.2), planned("disk_free_ratio"), (0.1, 0.2), POOL),
    "NodePool.spec.health.inodesFree": Case(
        (0.1, 0.2), planned("inodes_free_ratio"), (0.1, 0.2), POOL
    ),
    "NodePool.spec.health.stuckProcesses": Case((1, 2), planned("stuck_processes"), (1, 2), POOL),
    "NodePool.spec.health.commands[].name": Case(
        ("a", "b"), commanded("name"), ("a", "b"), (pool(health=COMMANDS), job())
    ),
    "NodePool.spec.health.commands[].command": Case(
        (["x"], ["y", "z"]),
        commanded("command"),
        (("x",), ("y", "z")),
        (pool(health=COMMANDS), job()),
    ),
    "NodePool.spec.health.commands[].timeout": Case(
        ("1s", "2s"), commanded("timeout_s"), (1, 2), (pool(health=COMMANDS), job())
    ),
    "NodePool.spec.health.beforeJob": Case(
        ([], ["clock", "c"]),
        planned("before"),
        ((), ("clock", "c")),
        (pool(health=COMMANDS), job()),
    ),
    "NodePool.spec.health.afterJob": Case(
        (["c"], ["gpu-xid"]),
        planned("after"),
        (("c",), ("gpu-xid",)),
        (pool(health=COMMANDS), job()),
    ),
    "NodePool.spec.beforeJob[].name": Case(
        ("a", "b"), around("before", "name"), ("a", "b"), AROUND
    ),
    "NodePool.spec.beforeJob[].command": Case(
        (["/x"], ["/y", "z"]), around("before", "command"), (("/x",), ("/y", "z")), AROUND
    ),
    "NodePool.spec.beforeJob[].timeout": Case(
        ("1s", "2m"), around("before", "timeout_s"), (1, 120), AROUND
    ),
    "NodePool.spec.beforeJob[].runAs": Case(
        ("agent", "user"), around("before", "run_as"), ("agent", "user"), AROUND
    ),
    "NodePool.spec.afterJob[].name": Case(("a", "b"), around("after", "name"), ("a", "b"), AROUND),
    "NodePool.spec.afterJob[].command": Case(
        (["/x"], ["/y", "z"]), around("after", "command"), (("/x",), ("/y", "z")), AROUND
    ),
    "NodePool.spec.afterJob[].timeout": Case(
        ("1s", "2m"), around("after", "timeout_s"), (1, 120), AROUND
    ),
    "NodePool.spec.afterJob[].runAs": Case(
        ("agent", "user"), around("after", "run_as"), ("agent", "user"), AROUND
    ),
    "NodePool.spec.health.remedies[].check": Case(
        ("clock", "mounts"),
        healed("cause"),
        (["node-check-failed:p-0/clock"], ["node-check-failed:p-0/mounts"]),
        HEALED,
    ),
    "NodePool.spec.health.remedies[].action": Case(
        ("restart-agent", "reset-gpu"),
        healed("verb"),
        (["restart-agent"], ["reset-gpu"]),
        HEALED_BARE,
    ),
    "NodePool.spec.health.remedies[].command": Case(
        (["x"], ["y"]), healed("command"), ([("x",)], [("y",)]), HEALED
    ),
    "NodePool.spec.health.remedies[].timeout": Case(
        ("1s", "2s"), healed("timeout_s"), ([1], [2]), HEALED
    ),
    "NodePool.spec.health.remediesAtOnce": Case(
        (1, 2), healed("node", "p-0", "p-1"), (["p-0"], ["p-0", "p-1"]), HEALED
    ),
    "NodePool.spec.health.blackHole.owners": Case((2, 3), hole(1), ("Unhealthy", "Ready"), HOLE),
    "NodePool.spec.health.blackHole.quick": Case(
        ("5s", "60s"), hole(30), ("Ready", "Unhealthy"), HOLE
    ),
    "NodePool.spec.health.blackHole.window": Case(
        ("1s", "10m"), hole(4), ("Ready", "Unhealthy"), HOLE
    ),
    "NodePool.spec.health.blackHole.out": Case(
        ("10s", "1h"), hole(1, 60), ("Ready", "Unhealthy"), HOLE
    ),
    "NodePool.spec.health.brake.share": Case(
        (0.5, 1), failing(0), (1, 2), (pool(health={"brake": {"share": 0.3}}),)
    ),
    "NodePool.spec.health.brake.window": Case(
        ("1m", "1h"), failing(120), (2, 1), (pool(health={"brake": {"share": 0.5}}),)
    ),
    "NodePool.spec.health.flapping.failures": Case(
        (2, 3), flapping(2, 60), ("Unhealthy", "Ready"), FLAPS
    ),
    "NodePool.spec.health.flapping.window": Case(
        ("1m", "10m"), flapping(3, 61), ("Ready", "Unhealthy"), FLAPS
    ),
    "NodePool.spec.health.flapping.out": Case(
        ("1m", "10m"), flapping(3, 1, 120), ("Ready", "Unhealthy"), FLAPS
    ),
    "NodePool.spec.health.flapping.outMax": Case(
        ("1m", "10m"), flapping(3, 1, 120), ("Ready", "Unhealthy"), FLAPS
    ),
    "NodePool.spec.nodes.driver": Case(
        ("550", "535"), driver_is("550.54.15"), ("Ready", "Unhealthy"), POOL
    ),
    "NodePool.spec.mode": Case(("manage", "observe"), reason(), ("Running", "NeverFits"), POOL),
    "NodePool.spec.allowRoot": Case(
        (True, False),
        reason(),
        ("Running", "NoUnixUser"),
        (
            pool(),
            document(
                "Access",
                "people",
                {"identities": [{"email": "root@example.org", "unixUser": "root"}]},
            ),
            job(owner="root@example.org"),
        ),
        as_root=True,
    ),
    "NodePool.spec.privileges": Case(
        ("restricted", "unrestricted"),
        lambda run, _: run.template().privileges,
        ("restricted", "unrestricted"),
        (pool(), job()),
    ),
    "NodePool.spec.scratchLimit": Case(
        ("1Gi", "2Gi"),
        lambda run, _: run.template().scratch_bytes,
        (2**30, 2**31),
        (pool(), job()),
    ),
    "NodePool.spec.overrides[].hosts": Case(
        ("p-0", "p-1"),
        lambda run, _: [node.state.value for node in run.memory.nodes.values()],
        (["Drained", "Ready"], ["Ready", "Drained"]),
        (pool(overrides=[{"hosts": "p-0", "reason": "fan"}]),),
    ),
    "NodePool.spec.overrides[].reason": Case(
        ("fan", "disk"),
        node_of("p-0"),
        (["Drained", "fan"], ["Drained", "disk"]),
        (pool(overrides=[{"hosts": "p-0", "reason": "fan"}]),),
    ),
    "NodePool.spec.overrides[].drain": Case(
        (True, False),
        node_of("p-0"),
        (["Drained", "fan"], ["Ready", ""]),
        (pool(overrides=[{"hosts": "p-0", "reason": "fan"}]),),
    ),
    "NodePool.spec.overrides[].gone": Case(
        (False, True),
        silent(600),
        (["Unknown", 0], ["Gone", 0]),
        (pool(count=1, overrides=[{"hosts": "p-0", "reason": "burnt"}]), job()),
    ),
    "NodePool.spec.overrides[].owner": Case(
        ("ada", "bob"),
        node_of("p-0"),
        (["Drained", "fan (ada)"], ["Drained", "fan (bob)"]),
        (pool(overrides=[{"hosts": "p-0", "reason": "fan"}]),),
    ),
    # What follows from them, in time: tests/unit/core/nodes/test_draining.py.
    "NodePool.spec.drain.waitFor": Case(
        ("unsaved", "nothing"),
        leaves_by("wait_for"),
        ("unsaved", "nothing"),
        (pool(drain={}, overrides=[{"hosts": "p-0", "reason": "fan"}]),),
    ),
    "NodePool.spec.drain.grace": Case(
        ("1m", "2h"),
        leaves_by("grace_s"),
        (60, 7200),
        (pool(drain={}, overrides=[{"hosts": "p-0", "reason": "fan"}]),),
    ),
    "NodePool.spec.terminationGrace": Case(("5s", "1m"), leave_grace, (5, 60), POOL),
    "NodePool.metadata.name": Case(
        ("p", "q"), lambda run, _: sorted(run.nodes), (["p-0"], ["q-0"]), (ONE_NODE,)
    ),
    # Queue
    "Queue.spec.parent": Case(
        ("small", "large"),
        counted("j"),
        ([1], [8]),
        (*limited(""), queue("small", limit={"cpu": 1}), queue("large", limit={"cpu": 8})),
    ),
    "Queue.spec.guaranteed.cpu": Case((0, 1), reclaim("cpu"), ([4, 0], [3, 1]), guarantee("cpu")),
    "Queue.spec.guaranteed.memory": Case(
        (0, "2Gi"), reclaim("memory"), ([4, 0], [3, 1]), guarantee("memory")
    ),
    "Queue.spec.guaranteed.gpu": Case((0, 1), reclaim("gpu"), ([4, 0], [3, 1]), guarantee("gpu")),
    "Queue.spec.limit.cpu": Case((1, 3), counted("j"), ([1], [3]), limited("cpu")),
    "Queue.spec.limit.memory": Case(("1Gi", "3Gi"), counted("j"), ([1], [3]), limited("memory")),
    "Queue.spec.limit.gpu": Case((1, 3), counted("j"), ([1], [3]), limited("gpu")),
    "Queue.spec.onNeverMet": Case(
        ("wait", "cancel"),
        when_ends(1),
        ("DependencyNeverMet", "Cancelled"),
        (queue("q"), pool(), job(queue="q", dependsOn=[{"job": "before"}]), job("before")),
    ),
    "Queue.spec.suspend": Case((False, True), counted("j"), ([8], [0]), limited("")),
    # Job
    "Job.metadata.name": Case(("a", "b"), lambda run, _: list(run.states()), (["a"], ["b"]), JOB),
    "Job.metadata.labels": Case(
        ({"team": "a"}, {"team": "b"}),
        lambda run, _: job_views.job_view(run.memory.jobs["j"]).labels,
        ({"team": "a"}, {"team": "b"}),
        JOB,
    ),
    "Job.spec.queue": Case(
        ("q", "r"),
        usage("running_jobs", "q"),
        (1, 0),
        (*JOB, queue("q"), queue("r")),
    ),
    "Job.spec.owner": Case(
        ("ada@example.org", "bob@example.org"),
        template("user"),
        ("ada", "bob"),
        (
            *JOB,
            document(
                "Access",
                "people",
                {
                    "identities": [
                        {"email": "ada@example.org", "unixUser": "ada"},
                        {"email": "bob@example.org", "unixUser": "bob"},
                    ]
                },
            ),
        ),
    ),
    "Job.spec.run": Case((1, 2), variable("MUSTER_RUN"), (["1"], ["2"]), JOB),
    "Job.spec.suspend": Case((False, True), states("j"), (["Running"], ["Held"]), JOB),
    "Job.spec.suspendReason": Case(
        ("data is wrong", "  the disk\nis full "),
        why_held,
        (
            "held by its document: data is wrong",
            "held by its document: the disk is full",
        ),
        (job(suspend=True), *JOB[1:]),
    ),
    "Job.spec.priorityClass": Case(
        ("low", "high"),
        first_of_two,
        ([0, 1], [1, 0]),
        (
            job(resources={"cpu": 4}),
            ONE_NODE,
            job("k", resources={"cpu": 4}),
            document("PriorityClass", "low", {"value": 1}),
            document("PriorityClass", "high", {"value": 99}),
        ),
    ),
    "Job.spec.priority": Case(
        (10, 90),
        first_of_two,
        ([0, 1], [1, 0]),
        (job(resources={"cpu": 4}), ONE_NODE, job("k", resources={"cpu": 4})),
    ),
    "Job.spec.preemptible": Case(
        (True, False),
        then(job("late", priority=90, resources={"cpu": 4})),
        ([0, 1], [1, 0]),
        (job(resources={"cpu": 4}), ONE_NODE),
    ),
    "Job.spec.count": Case((1, 3), counted("j"), ([1], [3]), JOB),
    "Job.spec.resources.cpu": Case((1, "9"), reason(), ("Running", "NeverFits"), JOB),
    "Job.spec.resources.memory": Case(("1Gi", "9Gi"), reason(), ("Running", "NeverFits"), JOB),
    "Job.spec.resources.gpu": Case((1, 2), variable("MUSTER_GPUS"), (["0"], ["0,1"]), JOB),
    "Job.spec.command": Case((["a"], ["b", "c"]), ordered("argv"), ([["a"]], [["b", "c"]]), JOB),
    "Job.spec.script": Case(
        ("#!/bin/sh\na\n", "#!/bin/sh\nb\n"),
        ordered("script"),
        (["#!/bin/sh\na\n"], ["#!/bin/sh\nb\n"]),
        (document("Job", "j", {}), pool()),
    ),
    "Job.spec.arguments": Case(
        (["a"], ["b", "c"]),
        lambda run, shared: [order["argv"][2:] for order in run.orders(shared)],
        ([["a"]], [["b", "c"]]),
        (document("Job", "j", {"script": "true\n"}), pool()),
    ),
    "Job.spec.groups[].arguments": Case(
        (["a"], ["b", "c"]),
        lambda run, shared: [order["argv"][2:] for order in run.orders(shared)],
        ([["a"]], [["b", "c"]]),
        (document("Job", "j", {"groups": [{"name": "g", "script": "true\n"}]}), pool()),
    ),
    "Job.spec.environment": Case(({"A": "1"}, {"A": "2"}), variable("A"), (["1"], ["2"]), JOB),
    "Job.spec.workingDirectory": Case(("/a", "/b"), ordered("cwd"), (["/a"], ["/b"]), JOB),
    **{
        f"Job.spec.submitted.{part}.{field}": Case(
            values,
            submitted(part, name),
            values,
            (job(submitted={part: SUBMITTED}), pool()),
        )
        for part in ("folder", "python")
        for field, name, values in (
            ("path", "path", ("/a", "/b")),
            ("device", "device", (1, 2)),
            ("inode", "inode", (3, 4)),
            ("bootId", "boot_id", ("ab", "cd")),
            ("marker", "marker", ("a", "b")),
            ("markerSha256", "marker_sha256", ("0" * 64, "1" * 64)),
        )
    },
    "Job.spec.modules": Case((["gcc"], ["cuda"]), template("modules"), (("gcc",), ("cuda",)), JOB),
    "Job.spec.code.digest": Case(PACKS, coded("digest"), PACKS, JOB),
    "Job.spec.code.git": Case(
        ("https://git.example.org/a", "ada@git.example.org:b"),
        coded("git"),
        ("https://git.example.org/a", "ada@git.example.org:b"),
        (job(code={"revision": "0" * 40}), pool()),
    ),
    "Job.spec.code.revision": Case(
        ("0" * 40, "1" * 64),
        coded("revision"),
        ("0" * 40, "1" * 64),
        (job(code={"git": "file:///a"}), pool()),
    ),
    "Job.spec.code.path": Case(
        ("a", "b/c"),
        lambda run, shared: [order["cwd"].split("/work/")[1] for order in run.orders(shared)],
        (["a"], ["b/c"]),
        (job(code={"digest": PACKS[0]}), pool()),
    ),
    "Job.spec.groups[].name": Case(
        ("a", "b"), variable("MUSTER_GROUP"), (["a"], ["b"]), (GROUP, pool())
    ),
    "Job.spec.groups[].count": Case((1, 3), counted("j"), ([1], [3]), (GROUP, pool())),
    "Job.spec.groups[].resources.cpu": Case(
        (1, 9), reason(), ("Running", "NeverFits"), (GROUP, pool())
    ),
    "Job.spec.groups[].resources.memory": Case(
        ("1Gi", "9Gi"), reason(), ("Running", "NeverFits"), (GROUP, pool())
    ),
    "Job.spec.groups[].resources.gpu": Case(
        (1, 2), variable("MUSTER_GPUS"), (["0"], ["0,1"]), (GROUP, pool())
    ),
    "Job.spec.groups[].command": Case(
        (["a"], ["b"]), ordered("argv"), ([["a"]], [["b"]]), (GROUP, pool())
    ),
    "Job.spec.groups[].script": Case(
        ("#!/bin/sh\na\n", "#!/bin/sh\nb\n"),
        ordered("script"),
        (["#!/bin/sh\na\n"], ["#!/bin/sh\nb\n"]),
        (GROUP, pool()),
    ),
    "Job.spec.groups[].environment": Case(
        ({"A": "1"}, {"A": "2"}), variable("A"), (["1"], ["2"]), (GROUP, pool())
    ),
    "Job.spec.endsWith": Case(
        ("a", "b"),
        group_ends("a"),
        ("Succeeded", "Running"),
        (job(groups=[{"name": "a"}, {"name": "b"}]), pool()),
    ),
    "Job.spec.output": Case(
        ("/a", "/b"), lambda run, _: run.template().files.output, ("/a", "/b"), JOB
    ),
    "Job.spec.error": Case(
        ("/a", "/b"), lambda run, _: run.template().files.error, ("/a", "/b"), JOB
    ),
    "Job.spec.openMode": Case(
        ("truncate", "append"),
        lambda run, _: run.template().files.appends,
        (False, True),
        (job(output="/a"), pool()),
    ),
    "Job.spec.framework": Case(("none", "torchrun"), variable("WORLD_SIZE"), ([None], ["1"]), JOB),
    "Job.spec.runtime": Case(
        ("podman", "apptainer"),
        template("runtime"),
        ("podman", "apptainer"),
        (job(image="debian:12"), pool()),
    ),
    "Job.spec.image": Case(
        ("a", "b"), template("image"), ("a", "b"), (job(runtime="podman"), pool())
    ),
    "Job.spec.imageTimeout": Case(
        ("5m", "1h"),
        template("image_timeout_s"),
        (300, 3600),
        (job(runtime="podman", image="a"), pool()),
    ),
    "Job.spec.secrets[].name": Case(
        ("a", "b"), template("secrets"), ((("a", ""),), (("b", ""),)), JOB
    ),
    "Job.spec.secrets[].environment": Case(
        ("A", "B"),
        template("secrets"),
        ((("s", "A"),), (("s", "B"),)),
        (job(secrets=[{"name": "s"}]), pool()),
    ),
    "Job.spec.array.count": Case((2, 3), counted("j"), ([2], [3]), JOB),
    "Job.spec.array.indexes": Case(
        ("1,3", "1-7:2"), counted("j"), ([2], [4]), (job(array={"indexes": "0"}), pool())
    ),
    "Job.spec.array.only": Case(("1", "0,2"), counted("j"), ([1], [2]), (ARRAY, pool())),
    "Job.spec.array.cancelled": Case(("1", "0,2"), counted("j"), ([2], [1]), (ARRAY, pool())),
    "Job.spec.array.held": Case(("1", "0,2"), counted("j"), ([2], [1]), (ARRAY, pool())),
    "Job.spec.array.parallelism": Case((1, 2), counted("j"), ([1], [2]), (ARRAY, pool())),
    "Job.spec.dependsOn[].job": Case(
        ("before", "other"),
        when_ends(0),
        ("Running", "Dependency"),
        (AFTER, pool(), job("before"), job("other")),
    ),
    "Job.spec.dependsOn[].condition": Case(
        ("afterAny", "afterOk"),
        when_ends(1),
        ("Running", "DependencyNeverMet"),
        (AFTER, pool(), job("before")),
    ),
    "Job.spec.dependsOn[].perElement": Case(
        (False, True),
        one_element_ends,
        (0, 1),
        (job(array={"count": 3}, dependsOn=[{"job": "before"}]), pool(), BEFORE),
    ),
    "Job.spec.pools": Case((["p"], ["q"]), reason(), ("Running", "NeverFits"), JOB),
    "Job.spec.nodeSelector": Case(
        ({"pool": "p"}, {"pool": "q"}), reason(), ("Running", "NeverFits"), JOB
    ),
    "Job.spec.hosts": Case(("p-[0-9]", "q"), reason(), ("Running", "NeverFits"), JOB),
    "Job.spec.excludeHosts": Case(("q", "p-[0-9]"), reason(), ("Running", "NeverFits"), JOB),
    "Job.spec.notBefore": Case(
        ("1970-01-12T13:46:00Z", "1970-01-12T23:00:00Z"), reason(), ("Running", "BackingOff"), JOB
    ),
    "Job.spec.timeLimit": Case(("1m", "1h"), after(600), ("TimedOut", "Running"), JOB),
    "Job.spec.deadline": Case(
        ("1970-01-12T13:50:00Z", "1970-01-12T23:00:00Z"), after(600), ("TimedOut", "Running"), JOB
    ),
    "Job.spec.retries.limit": Case(
        (0, 1), after_failures(60), (["Failed", 0], ["Running", 1]), JOB
    ),
    "Job.spec.retries.backoff": Case(
        ("10s", "5m"),
        after_failures(60),
        (["Running", 1], ["Pending", 0]),
        (job(retries={"limit": 3}), pool()),
    ),
    "Job.spec.retries.maxBackoff": Case(
        ("30s", "10m"),
        after_failures(300, 300, 60),
        (["Running", 1], ["Pending", 0]),
        (job(retries={"limit": 5, "backoff": "150s"}), pool()),
    ),
    "Job.spec.checkpoint.signal": Case(
        ("SIGUSR1", "SIGINT"), template("checkpoint_signal"), ("SIGUSR1", "SIGINT"), JOB
    ),
    "Job.spec.checkpoint.to": Case(
        ("main", "all"), template("checkpoint_to"), ("main", "all"), JOB
    ),
    "Job.spec.checkpoint.signalBeforeLimit": Case(
        ("1m", "9m"),
        after(120),
        ("Running", "TimedOut"),
        (job(timeLimit="10m", checkpoint={}), pool()),
    ),
    "Job.spec.checkpoint.requeueOnTimeLimit": Case(
        (False, True),
        saved_and_after(90),
        ("TimedOut", "Pending"),
        (job(timeLimit="1m", checkpoint={}, retries={"limit": 1, "backoff": "1s"}), pool()),
    ),
    "Job.spec.checkpoint.grace": Case(("5s", "1m"), leave_grace, (5, 60), JOB),
    "Job.spec.checkpoint.path": Case(
        ("a/b", "c"),
        lambda run, shared: [
            Path(order["env"]["MUSTER_CHECKPOINT_DIR"]).relative_to(shared).as_posix()
            for order in run.orders(shared)
        ],
        (["a/b"], ["c"]),
        JOB,
    ),
    "Job.spec.resumeFrom": Case(
        ("a.1.0123456789abcdef", "b.2.0123456789abcdef"),
        template("checkpoint_path"),
        ("checkpoints/a/1-871c40f9", "checkpoints/b/2-871c40f9"),
        (job(checkpoint={}), pool()),
    ),
    "Job.spec.checkpoint.pattern": Case(
        ("a-*", "b-*"), resumed({"a-1": 90, "b-2": 60}), (["a-1", "1"], ["b-2", "2"]), JOB
    ),
    "Job.spec.checkpoint.marker": Case(
        (".ok", ".done"),
        resumed({"a-1": 90, "a-2": 60, "a-1.ok": 90, "a-2.done": 60}),
        (["a-1", "1"], ["a-2", "2"]),
        (job(checkpoint={"pattern": "a-?"}), pool()),
    ),
    "Job.spec.checkpoint.settle": Case(
        ("1m", "2h"),
        resumed({"a-1": 3 * 3600, "a-2": 600}),
        (["a-2", "2"], ["a-1", "1"]),
        (job(checkpoint={"pattern": "a-*"}), pool()),
    ),
    "Job.spec.checkpoint.every": Case(
        ("5m", "1h"), lambda run, _: [a.saves_every_s for a in run.live("j")], ([300], [3600]), JOB
    ),
    "Job.spec.terminationGrace": Case(("5s", "1m"), held_grace, (5, 60), JOB),
    "Job.spec.lease": Case(
        ("1m", "none"),
        silent(600),
        (["Unknown", 1], ["Unknown", 0]),
        (job(), ONE_NODE),
    ),
}


def problems(documents: tuple[Document, ...]) -> list[tuple[str, str]]:
    return [(p.rule, p.object) for p in read(documents).status.problems if p.severity == "error"]


#: Fields of which one value is refused beside the rest of its document, or that only name it.
TABLE_OF_PROBLEMS: dict[str, tuple[tuple[Json, Json], tuple[Json, Json], tuple[Document, ...]]] = {
    "Cluster.metadata.name": (
        ("a", "b"),
        ([("wrong-value", "Cluster/a")], [("wrong-value", "Cluster/b")]),
        (document("Cluster", "c", {"lease": "1x"}),),
    ),
    "Access.metadata.name": (
        ("people", "robots"),
        ([("duplicate-name", "Access/people")], []),
        (document("Access", "x", {}), document("Access", "people", {})),
    ),
    "PriorityClass.metadata.name": (
        ("k", "other"),
        ([], [("unknown-priority-class", "Job/j")]),
        (document("PriorityClass", "k", {"value": 1}), pool(), job(priorityClass="k")),
    ),
    "Queue.metadata.name": (
        ("q", "other"),
        ([], [("unknown-queue", "Job/j")]),
        (queue("q"), pool(), job(queue="q")),
    ),
    "NodePool.spec.provisioner": (
        ("virtual", "static"),
        ([], [("missing-field", "NodePool/p"), ("exclusive-fields", "NodePool/p")]),
        (pool(),),
    ),
}


def check_difference(field: str, case: Case, which: int, folder: Path) -> None:
    """One of two values of a field leads to what it should, and the other to something else."""
    assert case.values[0] != case.values[1]
    assert case.seen[0] != case.seen[1]
    target, *others = case.documents
    assert target["kind"] == field.split(".", maxsplit=1)[0]
    chosen = put(target, field.split(".", 1)[1], case.values[which])
    run = Run((chosen, *others), as_root=case.as_root)
    assert case.look(run, folder) == case.seen[which]


# --- tests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", TABLE)
@pytest.mark.parametrize("which", [0, 1])
def test_two_values_make_a_difference(field: str, which: int, tmp_path: Path) -> None:
    check_difference(field, TABLE[field], which, tmp_path)


@pytest.mark.parametrize("field", TABLE_OF_PROBLEMS)
def test_two_values_are_judged_differently(field: str) -> None:
    values, seen, (target, *others) = TABLE_OF_PROBLEMS[field]
    assert seen[0] != seen[1]
    for value, expected in zip(values, seen, strict=True):
        chosen = put(target, field.split(".", 1)[1], value)
        assert problems((chosen, *others)) == expected


def test_annotations_say_that_nobody_reads_them() -> None:
    documents = (put(job(), "metadata.annotations", {"a": "b"}), pool())
    assert read(documents).jobs == read((job(), pool())).jobs


@pytest.mark.parametrize("where", ["spec.environment", "spec.groups[].environment"])
def test_variables_that_are_the_systems_are_refused(where: str, tmp_path: Path) -> None:
    """Whatever the agent sets over a job's own variables can't be written in a job."""
    whole = job(
        framework="torchrun", array={"count": 2}, checkpoint={}, groups=[{"name": "a", "count": 2}]
    )
    assignment, template = Run((whole, pool())).sent()[0]
    place = NodeContext(name="n", root=str(tmp_path), shared=str(tmp_path))
    user = task_users.find_user(template, place)
    plain = task_environment.environment_of(assignment, template, place, user)
    shouting = msgspec.structs.replace(template, environment=dict.fromkeys(plain, "mine"))
    heard = task_environment.environment_of(assignment, shouting, place, user)
    for name, value in heard.items():
        rules = [rule for rule, _ in problems((put(whole, where, {name: "mine"}), pool()))]
        theirs = value.split(":")[0] == "mine"
        assert rules == ([] if theirs else ["reserved-environment"]), name
    assert problems((put(whole, where, {f"{job_defaults.RESERVED_PREFIX}X": ""}), pool()))
    assert not problems((put(job(), "spec.environment", {"RANK": "1"}), pool()))


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_nodes_are_told_how_devices_are_shared(sharing: str) -> None:
    """The other side of ``NodePool.spec.sharing``: which tasks it lets in is told elsewhere."""
    run = Run((job(), pool(sharing=sharing)))
    assert run.template().mps is (sharing == "mps")

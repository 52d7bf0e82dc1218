"""Random stories, each drawn whole from one seed before anything happens.

A story is data: the cluster that git describes at first, and what people and faults do at which
moment. So a story that fails can be told again with less in it, until nothing more can be left
out. Every story has at least one crash of the controller and one partition.
"""

import random
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from reconciler.model import desired
from reconciler.model.resources import Resources
from reconciler.simulation import faults

GI = 2**30
BEGIN = 1_000_000.0
#: Seconds for which people and faults are at work.
STORM_S = 900.0
SILENCE_S = 30
LEASE_S = 60
GRACE_S = 8
#: The longest that a task runs which ends by itself.
RUNS_S_MAX = 90.0
#: The longest that a message takes.
DELAY_S_MAX = 20.0
#: How long the controller's machine stands still.
PAUSE_S = 60.0
#: The longest from one cycle to the next where there is input: leases have to be renewed meanwhile.
PACE_S_MAX = 5.0
#: In which part of the stories somebody has amounts by pool.
BY_POOL = 0.4
#: Which part of the jobs needs an image, and how long one may take to come.
IMAGES = 0.3
FETCHES_S = (0.0, 2.0, 10.0, 45.0)
OWNERS = ("alice@example.org", "bob@example.org")

What = Literal[
    "submit",
    "cancel",
    "change",
    "structure",
    "fault",
    "repair",
    "pause",
    "crash-before-commit",
    "crash-after-commit",
]


class Step(msgspec.Struct, frozen=True):
    """One thing that happens.

    Attributes:
        at: seconds after the beginning.
        what: ``change`` replaces ``fields`` of a job's document; ``structure`` sets one of the
            ``Changes``; ``crash-*`` kills the controller in its next cycle; ``pause`` stops it for
            ``PAUSE_S``; ``repair`` brings back a machine that was said to be gone.
        subject: a job, or the field of ``Changes``.
    """

    at: float
    what: What
    subject: str = ""
    job: desired.Job | None = None
    fields: tuple[tuple[str, Any], ...] = ()
    fault: faults.Fault | None = None

    def text(self) -> str:
        """One line."""
        told = ""
        if self.job is not None:
            short = ("queue", "priority", "array_count", "lease_s", "preemptible", "depends_on")
            told = ", ".join(f"{name}={getattr(self.job, name)}" for name in short)
            groups = [(g.least, g.count, g.resources.as_vector()) for g in self.job.groups]
            told = f"{told}, tasks={groups}"
        if self.fault is not None:
            told = f"{self.fault.kind} {self.fault.node} {self.fault.amount_s or ''}"
        told += ", ".join(f"{name}={value}" for name, value in self.fields)
        return f"{self.at:7.1f} {self.what} {self.subject} {told}".rstrip()


class Changes(msgspec.Struct, frozen=True):
    """What commits have made of the first structure; the plain value changes nothing."""

    drained: str = ""
    gone: str = ""
    undeclared: str = ""
    suspended: bool = False
    swollen: bool = False
    limit: int | None = None
    closed: str = ""


class Plan(msgspec.Struct, frozen=True):
    """A whole story.

    ``lose``, ``duplicate``, ``delay``: of messages. ``pace_s``: from one cycle to the next at the
    least, as of a controller that is slower than its input; what comes in between comes together.
    """

    seed: int
    structure: desired.Structure
    steps: tuple[Step, ...]
    lose: float
    duplicate: float
    delay: float
    pace_s: float = 0.0

    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(name for pool in self.structure.pools.values() for name in pool.nodes)


def structure_with(first: desired.Structure, changes: Changes) -> desired.Structure:
    """The structure after commits."""
    replace = msgspec.structs.replace
    pools = {}
    for pool in first.pools.values():
        drains = {}
        if changes.drained in pool.nodes:
            drains[changes.drained] = desired.Drain("fan", owner=OWNERS[0])
        if changes.gone in pool.nodes:
            drains[changes.gone] = desired.Drain("burnt", gone=True)
        nodes = tuple(name for name in pool.nodes if name != changes.undeclared)
        has = pool.node_resources
        if changes.swollen:
            has = replace(has, cpu_milli=2 * has.cpu_milli)
        pools[pool.name] = replace(pool, drains=drains, nodes=nodes, node_resources=has)
    queues = dict(first.queues)
    if changes.limit is not None:
        limit = desired.Amounts(cpu_milli=changes.limit)
        queues["research"] = replace(queues["research"], limit=limit)
    if changes.closed in queues:
        queues[changes.closed] = replace(queues[changes.closed], suspend=True)
    settings = replace(first.settings, suspend=changes.suspended)
    return replace(first, pools=pools, queues=queues, settings=settings)


def draw(seed: int) -> Plan:
    """The story of a seed."""
    chance = random.Random(seed)
    structure = _by_pool(random.Random(f"{seed} pools"), _structure(chance))
    nodes = tuple(name for pool in structure.pools.values() for name in pool.nodes)
    steps = [*_work(chance), *_commits(chance, nodes), *_faults(chance, nodes)]
    steps += _corners(random.Random(f"{seed} rare"), nodes, [s.subject for s in steps if s.job])
    steps = [_with_image(seed, step) for step in steps]
    images = random.Random(f"{seed} images")
    steps += images_on_the_way(images, nodes) if images.random() < 0.4 else []
    steps.sort(key=lambda step: step.at)
    calm = chance.random() < 0.2
    return Plan(
        seed=seed,
        structure=structure,
        steps=tuple(steps),
        lose=0.0 if calm else chance.choice([0.0, 0.03, 0.1]),
        duplicate=0.0 if calm else chance.choice([0.0, 0.1]),
        delay=0.0 if calm else chance.choice([0.0, 0.1, 0.3]),
        pace_s=random.Random(f"{seed} pace").choice([0.0, 2.0, PACE_S_MAX, PACE_S_MAX]),
    )


def plain(plan: Plan) -> Plan:
    """A story as it was before images, slow cycles and amounts by pool: some are known by seed."""
    replace = msgspec.structs.replace
    steps = tuple(
        replace(step, job=replace(step.job, runtime="process", image="")) if step.job else step
        for step in plan.steps
    )
    queues = {name: replace(queue, flavors=()) for name, queue in plan.structure.queues.items()}
    quotas = {name: one for name, one in plan.structure.quotas.items() if not one.pool}
    structure = replace(plan.structure, queues=queues, quotas=quotas)
    return replace(plan, structure=structure, steps=steps, pace_s=0.0)


def _with_image(seed: int, step: Step) -> Step:
    """Some jobs need an image, which takes its time to come."""
    if step.job is None or random.Random(f"{seed} {step.subject} image").random() > IMAGES:
        return step
    job = msgspec.structs.replace(step.job, runtime="podman", image="docker.io/library/busybox")
    return msgspec.structs.replace(step, job=job)


# -- what git says


def _structure(chance: random.Random) -> desired.Structure:
    choose = chance.choice
    gpu_nodes = tuple(f"g{number}" for number in range(choose([1, 2, 3])))
    cpu_nodes = tuple(f"c{number}" for number in range(choose([1, 2])))
    gpus = choose([2, 2, 4])
    pools = {
        "gpu": desired.Pool(
            name="gpu",
            nodes=gpu_nodes,
            node_resources=Resources(8000, 64 * GI, gpus * 1000),
            allow_root=True,
            grace_s=GRACE_S,
            gpu_memory_bytes=16 * GI,
        ),
        "cpu": desired.Pool(
            name="cpu",
            nodes=cpu_nodes,
            node_resources=Resources(4000, 16 * GI),
            allow_root=True,
            grace_s=GRACE_S,
        ),
    }
    scheduling = desired.Scheduling(
        backfill=choose(["none", "easy", "easy", "conservative"]),
        consolidation=choose([True, True, False]),
        placement=choose(["least-fragmentation", "pack", "spread"]),
        order=choose(["arrival", "fit"]),
        min_runtime_s=choose([0, 0, 0, 30]),
        stale_gang_s=choose([0, 20, 60]),
    )
    return desired.Structure(
        settings=desired.Settings(lease_s=LEASE_S, node_silence_s=SILENCE_S, scheduling=scheduling),
        pools=pools,
        queues=_queues(chance, gpus * len(gpu_nodes)),
        quotas=_quotas(chance),
        reservations=_reservations(chance, gpu_nodes),
    )


def _queues(chance: random.Random, gpus: int) -> dict[str, desired.Queue]:
    """A tree with owners of guarantees, and queues that only borrow."""
    choose = chance.choice
    owed = desired.Amounts(cpu_milli=6000, gpu_milli=1000 * (gpus // 2))
    part = desired.Amounts(cpu_milli=3000, gpu_milli=1000 * (gpus // 4))
    queues = (
        desired.Queue(name="default", weight=choose([1.0, 2.0])),
        desired.Queue(name="research", guaranteed=owed),
        desired.Queue(name="near", parent="research", guaranteed=part),
        desired.Queue(name="far", parent="research", guaranteed=part, weight=choose([1.0, 3.0])),
        desired.Queue(
            name="batch",
            limit=desired.Amounts(cpu_milli=choose([None, 6000]), gpu_milli=choose([None, 2000])),
            priority=choose([0, 0, -5]),
        ),
    )
    return {queue.name: queue for queue in queues}


def _by_pool(chance: random.Random, structure: desired.Structure) -> desired.Structure:
    """In some stories queues have limits in pools, and a pool has a cap."""
    if chance.random() > BY_POOL:
        return structure
    replace, choose = msgspec.structs.replace, chance.choice
    queues, quotas = dict(structure.queues), dict(structure.quotas)
    limit = desired.Amounts(cpu_milli=choose([None, 3000]), gpu_milli=choose([1000, 2000]))
    queues["batch"] = replace(queues["batch"], flavors=(desired.Flavor("gpu", limit=limit),))
    if chance.random() < 0.5:
        few = desired.Amounts(cpu_milli=choose([1000, 2000]))
        order = (desired.Flavor("cpu", limit=few), desired.Flavor("gpu"))
        queues["default"] = replace(queues["default"], flavors=order)
    if chance.random() < 0.4:
        most = desired.Amounts(cpu_milli=choose([4000, 6000]))
        quotas["rented"] = desired.Quota(name="rented", pool="gpu", resources=most)
    return replace(structure, queues=queues, quotas=quotas)


def _quotas(chance: random.Random) -> dict[str, desired.Quota]:
    quotas = (
        desired.Quota(
            name="alice",
            user=OWNERS[0],
            resources=desired.Amounts(cpu_milli=5000),
            running=chance.choice([None, 3]),
            pending=chance.choice([None, 4]),
        ),
        desired.Quota(name="few", queue="batch", resources=desired.Amounts(gpu_milli=1500)),
    )
    return {quota.name: quota for quota in quotas if chance.random() < 0.4}


def _reservations(chance: random.Random, nodes: tuple[str, ...]) -> dict[str, desired.Reservation]:
    if chance.random() < 0.7:
        return {}
    begin = BEGIN + chance.uniform(100, 600)
    one = desired.Reservation(
        name="course",
        nodes=(chance.choice(nodes),),
        starts_at=begin,
        ends_at=begin + chance.uniform(60, 300),
        users=() if chance.random() < 0.5 else (OWNERS[1],),
        maintenance=chance.random() < 0.3,
    )
    return {one.name: one}


def a_job(chance: random.Random, name: str, others: list[str]) -> desired.Job:
    """A job of some shape."""
    choose = chance.choice
    gpu = choose([0, 0, 1000, 1000, 2000, 500, 250])
    count = choose([1, 1, 1, 2, 3])
    array = choose([None, None, None, 2, 4])
    needs: list[desired.Dependency] = []
    if others and chance.random() < 0.25:
        condition: Literal["afterOk", "afterAny", "afterNotOk"]
        condition = choose(["afterOk", "afterAny", "afterNotOk"])
        needs.append(desired.Dependency(choose([*others[-5:], "never"]), condition))
    group = desired.TaskGroup(
        name="main",
        count=count,
        resources=Resources(choose([500, 1000, 2000]), choose([1, 2, 8]) * GI, gpu),
        command=("true",),
        minimum=choose([None, 1]) if count > 1 else None,
    )
    return desired.Job(
        name=name,
        run=1,
        hash="0123456789abcdef",
        queue=choose(["default", "default", "near", "far", "batch"]),
        owner=choose(["", *OWNERS]),
        groups=(group,),
        suspend=chance.random() < 0.08,
        priority=choose([10, 50, 50, 90]),
        preemptible=chance.random() < 0.8,
        framework=choose(["none", "none", "torchrun"]),
        array_count=array,
        parallelism=choose([None, 1, 2]) if array else None,
        depends_on=tuple(needs),
        pools=choose([(), (), (), ("gpu",)]),
        time_limit_s=choose([None, None, 30, 120]),
        deadline=BEGIN + chance.uniform(50, STORM_S) if chance.random() < 0.08 else None,
        retries=desired.Retries(limit=choose([0, 1, 3]), backoff_s=choose([0, 5, 20])),
        checkpoint=desired.Checkpoint(grace_s=choose([2, GRACE_S])) if choose([0, 1]) else None,
        grace_s=choose([None, 1, GRACE_S]),
        lease_s=choose([None, LEASE_S, LEASE_S, 20]),
        exclusive=chance.random() < 0.03,
    )


def endless(name: str) -> bool:
    """Whether a job's tasks run until they are told to leave."""
    return name.startswith(("hog", "owed"))


def hogs(chance: random.Random) -> list[desired.Job]:
    """Preemptible work without a guarantee that takes what there is and gives nothing back."""
    return [
        msgspec.structs.replace(
            a_job(chance, f"hog{number}", []),
            queue=chance.choice(["default", "batch"]),
            owner="",
            preemptible=True,
            suspend=False,
            deadline=None,
            time_limit_s=None,
            exclusive=False,
        )
        for number in range(chance.choice([2, 4, 6]))
    ]


def owed(seed: int) -> list[desired.Job]:
    """Work that asks for what is guaranteed, once all is calm."""
    chance = random.Random(f"{seed} owed")
    found = []
    for number in range(3):
        group = desired.TaskGroup(
            name="main",
            count=1,
            resources=Resources(chance.choice([500, 1000]), GI, chance.choice([0, 500, 1000])),
            command=("true",),
        )
        found.append(
            desired.Job(
                name=f"owed{number}",
                run=1,
                hash="0123456789abcdef",
                queue=chance.choice(["near", "far"]),
                groups=(group,),
                preemptible=chance.random() < 0.7,
            )
        )
    return found


# -- what people do


def _work(chance: random.Random) -> Iterable[Step]:
    found = [Step(chance.uniform(0, 60), "submit", job.name, job) for job in hogs(chance)]
    names: list[str] = []
    for number in range(chance.choice([18, 26, 34])):
        name = f"j{number}"
        job = a_job(chance, name, names)
        names.append(name)
        at = chance.uniform(0, 0.85 * STORM_S)
        found.append(Step(at, "submit", name, job))
        if chance.random() < 0.15:
            found.append(Step(at + chance.uniform(0, 200), "cancel", name))
        for _ in range(chance.choice([0, 0, 1, 2])):
            field, value = chance.choice(
                [
                    ("queue", chance.choice(["default", "near", "batch"])),
                    ("priority", chance.choice([1, 99])),
                    ("suspend", True),
                    ("suspend", False),
                    ("run", 2),
                    ("time_limit_s", 20),
                    ("deadline", BEGIN + at + 100),
                ]
            )
            begin = at + chance.uniform(0, 120)
            found.append(Step(begin, "change", name, fields=((field, value),)))
            if field == "suspend":
                found.append(Step(begin + 90, "change", name, fields=(("suspend", not value),)))
    return found


def _commits(chance: random.Random, nodes: tuple[str, ...]) -> Iterable[Step]:
    """Changes of the structure, each taken back after a while."""
    found = []
    some: list[tuple[str, Any]] = [
        ("drained", chance.choice(nodes)),
        ("undeclared", chance.choice(nodes)),
        ("suspended", True),
        ("swollen", True),
        ("limit", chance.choice([0, 3000])),
        ("closed", chance.choice(["default", "near"])),
    ]
    for field, value in some:
        for _ in range(chance.choice([0, 1, 2])):
            at = chance.uniform(60, 0.8 * STORM_S)
            found.append(Step(at, "structure", field, fields=((field, value),)))
            plain = getattr(Changes(), field)
            back = at + chance.uniform(5, 150)
            found.append(Step(back, "structure", field, fields=((field, plain),)))
    return found


# -- what goes wrong


def _faults(chance: random.Random, nodes: tuple[str, ...]) -> Iterable[Step]:
    rates = faults.Rates(
        cut_every_s=chance.choice([0, 500, 1000]),
        flap_every_s=chance.choice([0, 900]),
        power_off_every_s=chance.choice([0, 700, 1500]),
        restart_agent_every_s=chance.choice([0, 500]),
        skew_clock_every_s=chance.choice([0, 400]),
        change_leader_every_s=chance.choice([0, 500]),
        away_s=chance.choice([30, 200]),
        skew_s=chance.choice([5, 600]),
    )
    plan = faults.draw(chance, nodes, 0.0, STORM_S, rates)
    found = [Step(one.at, "fault", one.node, fault=one) for one in plan]
    crashes: list[What] = ["crash-before-commit", "crash-after-commit"]
    found += [
        Step(chance.uniform(0, STORM_S), chance.choice(crashes))
        for _ in range(chance.choice([1, 3, 5]))
    ]
    at = chance.uniform(0, 0.8 * STORM_S)
    back = at + chance.choice([10, 50, 150])
    apart = chance.sample(nodes, max(1, len(nodes) // 2))
    for node in apart:
        found.append(Step(at, "fault", node, fault=faults.Fault(at, "cut", node)))
        found.append(Step(back, "fault", node, fault=faults.Fault(back, "connect", node)))
    if chance.random() < 0.3:  # a machine breaks, and somebody says so while it is off
        node, at = chance.choice(nodes), chance.uniform(60, 0.7 * STORM_S)
        found.append(Step(at, "fault", node, fault=faults.Fault(at, "power-off", node)))
        found.append(Step(at + 0.5, "fault", node, fault=faults.Fault(at, "cut", node)))
        found.append(Step(at + 1, "structure", "gone", fields=(("gone", node),)))
    return found


# -- what seldom comes about by itself


def _corners(chance: random.Random, nodes: tuple[str, ...], jobs: list[str]) -> Iterable[Step]:
    """Sequences that lead to the transitions which a storm alone hardly ever takes."""
    tales = (
        _undeclared_and_silent,
        _gone_and_repaired,
        _gone_in_a_pause,
        _drained_and_silent,
        _unhealthy_and_undeclared,
        _unhealthy_and_silent,
    )
    found: list[Step] = []
    for tale in chance.sample(tales, chance.choice([1, 2, 3])):
        found += tale(chance, chance.choice(nodes))
    if chance.random() < 0.4:
        found += _flaky(chance)
    if chance.random() < 0.4:
        found += _late_and_cut(chance, nodes)
    if chance.random() < 0.4:
        found += _cancelled_in_silence(chance, nodes, jobs)
    return found


def _fault(at: float, kind: faults.FaultKind, node: str) -> Step:
    return Step(at, "fault", node, fault=faults.Fault(at, kind, node))


def _set(at: float, field: str, value: Any) -> Step:
    return Step(at, "structure", field, fields=((field, value),))


def _undeclared_and_silent(chance: random.Random, node: str) -> list[Step]:
    """A node that no pool has any more falls silent, and comes back as nobody's."""
    at = chance.uniform(60, 0.5 * STORM_S)
    return [
        _set(at, "undeclared", node),
        _fault(at + 2, "cut", node),
        _fault(at + 150, "connect", node),
        _set(at + 220, "undeclared", ""),
    ]


def _gone_and_repaired(chance: random.Random, node: str) -> list[Step]:
    """A broken machine is repaired before git learns of it, at times with less than is declared."""
    at = chance.uniform(60, 0.5 * STORM_S)
    found = [
        _fault(at, "power-off", node),
        _fault(at + 0.5, "cut", node),
        _set(at + 1, "gone", node),
        Step(at + 60, "repair", node),
        _set(at + 120, "gone", ""),
    ]
    if chance.random() < 0.5:
        found += [_set(at + 50, "swollen", True), _set(at + 130, "swollen", False)]
    return found


def _gone_in_a_pause(chance: random.Random, node: str) -> list[Step]:
    """The controller stands still while a node breaks and somebody says that it has."""
    at = chance.uniform(60, 0.5 * STORM_S)
    return [
        Step(at, "pause"),
        _fault(at + 1, "power-off", node),
        _fault(at + 1.5, "cut", node),
        _set(at + 2, "gone", node),
        _set(at + 200, "gone", ""),
    ]


def _drained_and_silent(chance: random.Random, node: str) -> list[Step]:
    """A drained node falls silent and comes back drained."""
    at = chance.uniform(60, 0.4 * STORM_S)
    return [
        _set(at, "drained", node),
        _fault(at + 120, "cut", node),
        _fault(at + 200, "connect", node),
        _set(at + 260, "drained", ""),
    ]


def _unhealthy_and_undeclared(chance: random.Random, node: str) -> list[Step]:
    """A node that has less than is declared leaves its pool, busy or idle, and comes back."""
    at = chance.uniform(60, 0.5 * STORM_S)
    left = at + chance.choice([5, 60, 120])
    return [
        _set(at, "swollen", True),
        _set(left, "undeclared", node),
        _set(left + 60, "undeclared", ""),
        _set(left + 90, "swollen", False),
    ]


def _unhealthy_and_silent(chance: random.Random, node: str) -> list[Step]:
    """A node falls silent, and has less than is declared when it is heard of again."""
    at = chance.uniform(60, 0.5 * STORM_S)
    return [
        _fault(at, "cut", node),
        _set(at + 50, "swollen", True),
        _fault(at + 80, "connect", node),
        _set(at + 140, "swollen", False),
    ]


def _late_and_cut(chance: random.Random, nodes: tuple[str, ...]) -> list[Step]:
    """Work is given to nodes that are out of reach, and its deadline comes before it starts."""
    at = chance.uniform(60, 0.6 * STORM_S)
    job = msgspec.structs.replace(
        a_job(chance, "late", []),
        groups=(desired.TaskGroup("main", 1, Resources(500, GI), command=("true",)),),
        queue="near",
        owner="",
        priority=95,
        array_count=None,
        parallelism=None,
        suspend=False,
        deadline=BEGIN + at + 16,
        exclusive=False,
        pools=(),
    )
    found = [_fault(at, "cut", node) for node in nodes]
    found.append(Step(at + 1, "submit", job.name, job))
    return found + [_fault(at + chance.choice([20, 100]), "connect", node) for node in nodes]


def _cancelled_in_silence(
    chance: random.Random, nodes: tuple[str, ...], jobs: list[str]
) -> list[Step]:
    """Work is cancelled while its node is out of reach, which comes back before leases end."""
    at = chance.uniform(100, 0.8 * STORM_S)
    found = [_fault(at, "cut", node) for node in nodes]
    wanted = chance.sample(jobs, min(6, len(jobs)))
    found += [Step(at + SILENCE_S + 12, "cancel", name) for name in wanted]
    return found + [_fault(at + SILENCE_S + 16, "connect", node) for node in nodes]


def images_on_the_way(chance: random.Random, nodes: tuple[str, ...]) -> list[Step]:
    """A gang's agents begin anew, or fall silent, while its images come."""
    at = chance.uniform(60, 0.7 * STORM_S)
    job = msgspec.structs.replace(
        a_job(chance, "imaged", []),
        groups=(desired.TaskGroup("main", 2, Resources(500, GI), command=("true",)),),
        queue="near",
        owner="",
        priority=97,
        array_count=None,
        parallelism=None,
        suspend=False,
        deadline=None,
        exclusive=False,
        pools=(),
        runtime="podman",
        image="docker.io/library/busybox",
    )
    found = [Step(at, "submit", job.name, job)]
    if chance.random() < 0.5:
        return found + [_fault(at + 4, "restart-agent", node) for node in nodes]
    found += [_fault(at + 4, "cut", node) for node in nodes]
    return found + [_fault(at + 4 + SILENCE_S + 6, "connect", node) for node in nodes]


def is_flaky(name: str) -> bool:
    """Whether most tries of a job's tasks fail."""
    return name.startswith("flaky")


def _flaky(chance: random.Random) -> list[Step]:
    """An array most of whose elements fail, ended while the rest of it waits or is held."""
    job = msgspec.structs.replace(
        a_job(chance, "flaky", []),
        groups=(desired.TaskGroup("main", 1, Resources(500, GI), command=("true",)),),
        queue="default",
        owner="",
        array_count=4,
        parallelism=1,
        suspend=False,
        deadline=None,
        exclusive=False,
        pools=(),
        retries=desired.Retries(limit=1, backoff_s=120),
    )
    at = chance.uniform(0, 200)
    ends_at = at + chance.uniform(100, 500)
    found = [Step(at, "submit", job.name, job), Step(ends_at, "cancel", job.name)]
    if chance.random() < 0.5:
        held_at = ends_at - 40
        found.append(Step(held_at, "change", job.name, fields=(("suspend", True),)))
    return found

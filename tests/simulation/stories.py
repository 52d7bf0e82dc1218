"""Random stories, each drawn whole from one seed before anything happens.

Every story has at least one crash of the controller, one partition and ``sizes.STEPS_MIN`` steps.
"""

import random
from collections.abc import Iterable
from typing import Any

import msgspec

from reconciler.model import desired
from reconciler.model.values.resources import Resources
from reconciler.simulation.engine import faults
from tests.simulation import corners, plans, sizes, work
from tests.simulation.plans import GI, Plan, Step

#: In which part of the stories somebody has amounts by pool.
BY_POOL = 0.4
#: Which part of them knows what GPUs are near each other.
BY_SOCKET = 0.5
#: Which part of the jobs needs an image, and how long one may take to come.
IMAGES = 0.3
#: In which part of the stories nobody passes the first of a queue that borrows.
STRICT = 0.3


def draw(seed: int, size: sizes.Size | None = None) -> Plan:
    """Return the story of a seed, by default of the size that the seed draws."""
    size = size or sizes.of(seed)
    chance = random.Random(seed)
    structure = _by_pool(random.Random(f"{seed} pools"), _structure(chance, size))
    structure = _by_socket(random.Random(f"{seed} sockets"), structure)
    structure = _in_order(random.Random(f"{seed} strict"), structure)
    nodes = tuple(name for pool in structure.pools.values() for name in pool.nodes)
    steps = [*_work(chance, size), *_commits(chance, nodes), *_faults(chance, nodes)]
    rare = random.Random(f"{seed} rare")
    corner = [*corners.draw(rare, nodes, [s.subject for s in steps if s.job])]
    images = random.Random(f"{seed} images")
    later = corners.images_on_the_way(images, nodes) if images.random() < 0.4 else []
    later += corners.fewer_gpus(random.Random(f"{seed} fewer"))
    lacking = sizes.STEPS_MIN - len(steps) - len(corner) - len(later)
    steps += _more(random.Random(f"{seed} more"), nodes, steps, lacking)
    grid_s = random.Random(f"{seed} grid").choice(size.grids_s)
    steps = [_on_grid(step, grid_s) for step in steps] if grid_s else steps
    steps = [_with_image(seed, step) for step in [*steps, *corner]] + later
    if structure.pools["gpu"].numa:
        steps = [_near(seed, step) for step in steps]
    steps.sort(key=lambda step: step.at)
    calm = chance.random() < 0.2
    return Plan(
        seed=seed,
        structure=structure,
        steps=tuple(steps),
        lose=0.0 if calm else chance.choice([0.0, 0.03, 0.1]),
        duplicate=0.0 if calm else chance.choice([0.0, 0.1]),
        delay=0.0 if calm else chance.choice([0.0, 0.1, 0.3]),
        pace_s=random.Random(f"{seed} pace").choice([0.0, 2.0, plans.PACE_S_MAX, plans.PACE_S_MAX]),
        size=size.name,
        full_s=random.Random(f"{seed} full").choice([0.0, 0.0, 10.0, 30.0]),
    )


def plain(plan: Plan) -> Plan:
    """Return a story without images, slow cycles, amounts by pool and near GPUs.

    Some such stories are known by their seed.
    """
    replace = msgspec.structs.replace
    steps = tuple(replace(s, job=_plain(s.job)) if s.job else s for s in plan.steps)
    pools = {name: replace(pool, numa=()) for name, pool in plan.structure.pools.items()}
    queues = {name: replace(queue, flavors=()) for name, queue in plan.structure.queues.items()}
    quotas = {name: one for name, one in plan.structure.quotas.items() if not one.pool}
    structure = replace(plan.structure, queues=queues, quotas=quotas, pools=pools)
    return replace(plan, structure=structure, steps=steps, pace_s=0.0)


def _plain(job: desired.Job) -> desired.Job:
    replace = msgspec.structs.replace
    groups = tuple(replace(g, inner_required="", inner_preferred="") for g in job.groups)
    return replace(job, runtime="process", image="", groups=groups)


def _near(seed: int, step: Step) -> Step:
    """Let some jobs require the GPUs of each task at one NUMA node."""
    chance = random.Random(f"{seed} {step.subject} near")
    level = chance.choice(["inner_required", "inner_required", "inner_preferred", ""])
    if step.job is None or not level:
        return step
    groups = tuple(
        msgspec.structs.replace(group, **{level: "numa"})
        if group.resources.gpu_milli > 1000
        else group
        for group in step.job.groups
    )
    return msgspec.structs.replace(step, job=msgspec.structs.replace(step.job, groups=groups))


def _with_image(seed: int, step: Step) -> Step:
    """Let some jobs need an image, which takes time to fetch."""
    if step.job is None or random.Random(f"{seed} {step.subject} image").random() > IMAGES:
        return step
    job = msgspec.structs.replace(step.job, runtime="podman", image="docker.io/library/busybox")
    return msgspec.structs.replace(step, job=job)


def _on_grid(step: Step, grid_s: float) -> Step:
    """Round moments so that steps share some, in the same order."""
    at = step.at // grid_s * grid_s
    fault = msgspec.structs.replace(step.fault, at=at) if step.fault else None
    return msgspec.structs.replace(step, at=at, fault=fault)


# -- what git says


def _structure(chance: random.Random, size: sizes.Size) -> desired.Structure:
    choose = chance.choice
    gpu_nodes = tuple(f"g{number}" for number in range(choose(size.gpu_nodes)))
    cpu_nodes = tuple(f"c{number}" for number in range(choose(size.cpu_nodes)))
    gpus = choose([2, 2, 4])
    pools = {
        "gpu": desired.Pool(
            name="gpu",
            nodes=gpu_nodes,
            node_resources=Resources(8000, 64 * GI, gpus * 1000),
            runs_unmapped=True,
            grace_s=plans.GRACE_S,
            gpu_memory_bytes=16 * GI,
        ),
        "cpu": desired.Pool(
            name="cpu",
            nodes=cpu_nodes,
            node_resources=Resources(4000, 16 * GI),
            runs_unmapped=True,
            grace_s=plans.GRACE_S,
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
        settings=desired.ClusterSettings(
            lease_s=plans.LEASE_S, node_silence_s=plans.SILENCE_S, scheduling=scheduling
        ),
        pools=pools,
        queues=_queues(chance, gpus * len(gpu_nodes)),
        quotas=_quotas(chance),
        reservations=_reservations(chance, gpu_nodes),
    )


def _queues(chance: random.Random, gpus: int) -> dict[str, desired.Queue]:
    """Return a tree with owners of guarantees, and queues that only borrow."""
    choose = chance.choice
    owed = desired.QuotaAmounts(cpu_milli=6000, gpu_milli=1000 * (gpus // 2))
    part = desired.QuotaAmounts(cpu_milli=3000, gpu_milli=1000 * (gpus // 4))
    queues = (
        desired.Queue(name="default", weight=choose([1.0, 2.0])),
        desired.Queue(name="research", guaranteed=owed),
        desired.Queue(name="near", parent="research", guaranteed=part),
        desired.Queue(name="far", parent="research", guaranteed=part, weight=choose([1.0, 3.0])),
        desired.Queue(
            name="batch",
            limit=desired.QuotaAmounts(
                cpu_milli=choose([None, 6000]), gpu_milli=choose([None, 2000])
            ),
            priority=choose([0, 0, -5]),
        ),
    )
    return {queue.name: queue for queue in queues}


def _by_socket(chance: random.Random, structure: desired.Structure) -> desired.Structure:
    """In some stories, declare which GPUs of a node are near each other."""
    if chance.random() > BY_SOCKET:
        return structure
    pool = structure.pools["gpu"]
    every = tuple(range(pool.node_resources.gpu_milli // 1000))
    halves = chance.choice([(every[0::2], every[1::2]), (every[:2], every[2:])])
    numa = halves if len(every) == 4 else (every,)
    pools = {**structure.pools, "gpu": msgspec.structs.replace(pool, numa=numa)}
    return msgspec.structs.replace(structure, pools=pools)


def _in_order(chance: random.Random, structure: desired.Structure) -> desired.Structure:
    """In some stories, make queues strict, except those with a guarantee.

    There a first job that never fits would deny the owner its guarantee.
    """
    if chance.random() > STRICT:
        return structure
    some = chance.choice([("default",), ("batch",), ("default", "batch")])
    queues = {
        name: msgspec.structs.replace(queue, strict=name in some)
        for name, queue in structure.queues.items()
    }
    return msgspec.structs.replace(structure, queues=queues)


def _by_pool(chance: random.Random, structure: desired.Structure) -> desired.Structure:
    """In some stories, add limits and guarantees in pools, and a cap of a pool."""
    if chance.random() > BY_POOL:
        return structure
    replace, choose = msgspec.structs.replace, chance.choice
    queues, quotas = dict(structure.queues), dict(structure.quotas)
    limit = desired.QuotaAmounts(cpu_milli=choose([None, 3000]), gpu_milli=choose([1000, 2000]))
    queues["batch"] = replace(queues["batch"], flavors=(desired.QueueFlavor("gpu", limit=limit),))
    if chance.random() < 0.5:
        few = desired.QuotaAmounts(cpu_milli=choose([1000, 2000]))
        order = (desired.QueueFlavor("cpu", limit=few), desired.QueueFlavor("gpu"))
        queues["default"] = replace(queues["default"], flavors=order)
    if chance.random() < 0.4:
        most = desired.QuotaAmounts(cpu_milli=choose([4000, 6000]))
        quotas["rented"] = desired.Quota(name="rented", pool="gpu", resources=most)
    if chance.random() < 0.5:
        queues |= _guaranteed_there(chance, queues)
    return replace(structure, queues=queues, quotas=quotas)


def _guaranteed_there(
    chance: random.Random, queues: dict[str, desired.Queue]
) -> dict[str, desired.Queue]:
    """Move part of the guarantees to the GPU pool, of one owner or of both."""
    owners = ("near", "far") if chance.random() < 0.6 else ("near",)
    cpu_milli = chance.choice([None, 3000])
    gpu_milli = queues["near"].guaranteed.gpu_milli or 0
    there = desired.QuotaAmounts(cpu_milli=cpu_milli, gpu_milli=gpu_milli)
    both = desired.QuotaAmounts(
        cpu_milli=None if cpu_milli is None else cpu_milli * len(owners),
        gpu_milli=gpu_milli * len(owners),
    )
    found = {name: desired.QueueFlavor("gpu", guaranteed=there) for name in owners}
    found["research"] = desired.QueueFlavor("gpu", guaranteed=both)
    return {
        name: msgspec.structs.replace(queues[name], flavors=(flavor,))
        for name, flavor in found.items()
    }


def _quotas(chance: random.Random) -> dict[str, desired.Quota]:
    quotas = (
        desired.Quota(
            name="alice",
            user=plans.OWNERS[0],
            resources=desired.QuotaAmounts(cpu_milli=5000),
            running=chance.choice([None, 3]),
            pending=chance.choice([None, 4]),
        ),
        desired.Quota(name="few", queue="batch", resources=desired.QuotaAmounts(gpu_milli=1500)),
    )
    return {quota.name: quota for quota in quotas if chance.random() < 0.4}


def _reservations(chance: random.Random, nodes: tuple[str, ...]) -> dict[str, desired.Reservation]:
    if chance.random() < 0.7:
        return {}
    begin = plans.BEGIN + chance.uniform(100, 600)
    one = desired.Reservation(
        name="course",
        nodes=(chance.choice(nodes),),
        starts_at=begin,
        ends_at=begin + chance.uniform(60, 300),
        users=() if chance.random() < 0.5 else (plans.OWNERS[1],),
        maintenance=chance.random() < 0.3,
    )
    return {one.name: one}


# -- what people do


def _work(chance: random.Random, size: sizes.Size) -> Iterable[Step]:
    hogs = work.hogs(chance, size)
    found = [Step(chance.uniform(0, 60), "submit", job.name, job) for job in hogs]
    names: list[str] = []
    for number in range(chance.choice(size.jobs)):
        name = f"j{number}"
        job = work.narrow(work.a_job(chance, name, names), size.wide_max)
        names.append(name)
        at = chance.uniform(0, 0.85 * plans.STORM_S)
        found.append(Step(at, "submit", name, job))
        if chance.random() < 0.15:
            found.append(Step(at + chance.uniform(0, 200), "cancel", name))
        for _ in range(chance.choice([0, 0, 1, 2])):
            found += _change(chance, name, at)
    return found


def _change(chance: random.Random, name: str, at: float) -> list[Step]:
    """Return a change of one field of a job's document after ``at``. A hold is released later."""
    field, value = chance.choice(
        [
            ("queue", chance.choice(["default", "near", "batch"])),
            ("priority", chance.choice([1, 99])),
            ("suspend", True),
            ("suspend", False),
            ("run", 2),
            ("time_limit_s", 20),
            ("deadline", plans.BEGIN + at + 100),
        ]
    )
    begin = at + chance.uniform(0, 120)
    found = [Step(begin, "change", name, fields=((field, value),))]
    if field == "suspend":
        found.append(Step(begin + 90, "change", name, fields=(("suspend", not value),)))
    return found


def _more(
    chance: random.Random, nodes: tuple[str, ...], steps: list[Step], lacking: int
) -> list[Step]:
    """Return steps that a story lacks: changes of jobs, and more often short faults."""
    jobs = [step for step in steps if step.job]
    found: list[Step] = []
    while len(found) < lacking:
        at = chance.uniform(0, 0.7 * plans.STORM_S)
        if chance.random() < 0.3:
            job = chance.choice(jobs)
            found += _change(chance, job.subject, max(job.at, at))
        else:
            found += _short_fault(chance, chance.choice(nodes), at)
    return found


def _commits(chance: random.Random, nodes: tuple[str, ...]) -> Iterable[Step]:
    """Return changes of the structure, each reverted after a while."""
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
            at = chance.uniform(60, 0.8 * plans.STORM_S)
            found.append(Step(at, "structure", field, fields=((field, value),)))
            plain = getattr(plans.Changes(), field)
            back = at + chance.uniform(5, 150)
            found.append(Step(back, "structure", field, fields=((field, plain),)))
    return found


# -- what goes wrong


def _short_fault(chance: random.Random, node: str, at: float) -> list[Step]:
    """Return a fault that is over before leases end, or only affects a node's clock or agent."""
    fault = faults.InjectedFault
    first = chance.choice(
        [
            fault(at, "cut", node),
            fault(at, "power-off", node),
            fault(at, "restart-agent", node),
            fault(at, "skew-clock", node, chance.uniform(-20, 20)),
        ]
    )
    found = [first]
    back = at + chance.choice([3, 20, 45])
    if first.kind == "cut":
        found.append(fault(back, "connect", node))
    elif first.kind == "power-off":
        found.append(fault(back, "boot", node))
    return [Step(one.at, "fault", node, fault=one) for one in found]


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
    plan = faults.draw(chance, nodes, 0.0, plans.STORM_S, rates)
    found = [Step(one.at, "fault", one.node, fault=one) for one in plan]
    crashes: list[plans.What] = ["crash-before-commit", "crash-after-commit"]
    found += [
        Step(chance.uniform(0, plans.STORM_S), chance.choice(crashes))
        for _ in range(chance.choice([1, 3, 5]))
    ]
    at = chance.uniform(0, 0.8 * plans.STORM_S)
    back = at + chance.choice([10, 50, 150])
    apart = chance.sample(nodes, max(1, len(nodes) // 2))
    for node in apart:
        found.append(Step(at, "fault", node, fault=faults.InjectedFault(at, "cut", node)))
        found.append(Step(back, "fault", node, fault=faults.InjectedFault(back, "connect", node)))
    if chance.random() < 0.3:  # a machine breaks, and somebody says so while it is off
        node, at = chance.choice(nodes), chance.uniform(60, 0.7 * plans.STORM_S)
        found.append(Step(at, "fault", node, fault=faults.InjectedFault(at, "power-off", node)))
        found.append(Step(at + 0.5, "fault", node, fault=faults.InjectedFault(at, "cut", node)))
        found.append(Step(at + 1, "structure", "gone", fields=(("gone", node),)))
    return found

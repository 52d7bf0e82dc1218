"""The fragmentation benchmark: reading traces, the referee, other policies, and our own."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench import fragmentation, gpu_trace, own_placement
from bench.gpu_trace import MIB, Trace
from bench.peers import placement
from bench.peers.placement import Cluster, Kind, Spot
from reconciler.scheduling.inputs.snapshots import TaskGroupShape

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,1024,2,T4\nb,4000,512,1,P100\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "p,1000,16,1,470,\nq,2000,32,2,1000,T4|A10\nr,500,8,0,0,\ns,1000,16,1,470,\n"
)


def trace(folder: Path, nodes: str = NODES, pods: str = PODS) -> Trace:
    (folder / "nodes.csv").write_text(nodes, encoding="utf-8")
    (folder / "pods.csv").write_text(pods, encoding="utf-8")
    return gpu_trace.read(folder / "nodes.csv", folder / "pods.csv")


def test_reading(tmp_path: Path) -> None:
    found = trace(tmp_path)
    assert found.node_class.tolist() == [1, 0]  # models by name
    assert found.capacity.tolist() == [[8000, 1024 * MIB, 2000], [4000, 512 * MIB, 1000]]
    assert [(k.group.amounts, k.group.devices, k.group.share) for k in found.kinds] == [
        ((500, 8 * MIB, 0), 0, 1000),
        ((1000, 16 * MIB, 470), 1, 470),
        ((2000, 32 * MIB, 2000), 2, 1000),
    ]
    assert [kind.eligible.tolist() for kind in found.kinds] == [
        [True, True],
        [True, True],
        [False, True],
    ]
    assert found.kind_of.tolist() == [1, 2, 0, 1]
    assert found.empty().devices.tolist() == [[1000, 1000], [1000, -1]]


def test_columns_in_another_order_and_without_what_is_optional(tmp_path: Path) -> None:
    found = trace(tmp_path, "gpu,other,cpu_milli\n2,x,8000\n", "num_gpu,cpu_milli\n1,1000\n0,500\n")
    assert found.capacity.tolist() == [[8000, 0, 2000]]
    assert [kind.group.amounts for kind in found.kinds] == [(500, 0, 0), (1000, 0, 1000)]
    assert all(kind.eligible.all() for kind in found.kinds)


def test_rows_that_cannot_be_read_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = PODS + "t,x,16,1,470,\nu,1,16,1,1470,\nv,1,-16,1,470,\nw,1\n"
    found = trace(tmp_path, NODES, pods)
    assert len(found.kind_of) == 4
    told = capsys.readouterr().err
    assert "pods.csv: 4 rows left out: line 6: cpu_milli is 'x', expected a whole number" in told
    assert "line 7: gpu_milli is 1470, expected 1 to 1000" in told
    assert "line 8: memory_mib is -16, expected 0 or more" in told
    assert "line 9: num_gpu is None" in told


@pytest.mark.parametrize(
    ("nodes", "pods", "message"),
    [
        ("sn,gpu\na,1\n", PODS, r"nodes.csv: columns \['cpu_milli'\] are missing; found"),
        (NODES, "name,cpu_milli,num_gpu\np,1000,0\n", "expected nodes with GPUs and tasks"),
        (NODES, "", "pods.csv: columns"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, nodes: str, pods: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        trace(tmp_path, nodes, pods)


def test_a_missing_file_is_named_with_its_option(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"nowhere.csv.*--nodes"):
        gpu_trace.read(tmp_path / "nowhere.csv", tmp_path / "pods.csv")


def test_arrivals_are_the_tasks_once_and_then_until_enough_is_asked(tmp_path: Path) -> None:
    found = trace(tmp_path)
    drawn = fragmentation.arrivals(found, 0)
    assert sorted(drawn[:4]) == [0, 1, 1, 2]
    asked = [found.kinds[kind].group.amounts[2] for kind in drawn]
    assert sum(asked) >= 1.3 * 3000 > sum(asked[:-1])
    assert drawn == fragmentation.arrivals(found, 0)
    assert drawn != fragmentation.arrivals(found, 1)


class Stubborn:
    """Names one spot whatever is asked."""

    def __init__(self, spot: Spot | None) -> None:
        self.spot = spot

    def observe(self, shares_of_arrivals: placement.Costs) -> None:
        """Nothing to learn."""

    def choose(self, kind: int) -> Spot | None:
        """The spot."""
        return self.spot


@pytest.mark.parametrize(
    ("spot", "message"),
    [
        (None, "fits node 0; it was not placed"),
        (Spot(1, (0, 1)), "without room"),  # may not go there
        (Spot(0, (0, 0)), "without room"),
        (Spot(0, (0,)), "without room"),
    ],
)
def test_the_referee(tmp_path: Path, spot: Spot | None, message: str) -> None:
    found = trace(tmp_path)
    with pytest.raises(RuntimeError, match=message):
        fragmentation.given_out(found, found.empty(), Stubborn(spot), iter([(2, None)]))


def test_the_figure_is_what_is_given_out(tmp_path: Path) -> None:
    found = trace(tmp_path)
    once = fragmentation.given_out(
        found, found.empty(), Stubborn(Spot(0, (0, 1))), iter([(2, None)])
    )
    assert once == pytest.approx(200 / 3)


# -- other policies, small cases by hand


def kind(share: int = 1000, devices: int = 1, cpu: int = 1) -> Kind:
    group = TaskGroupShape("k", 1, (cpu, 0, share * devices), devices=devices, share=share)
    return Kind(group, np.ones(1, dtype=np.bool_))


def cluster(*devices: tuple[int, ...], cpu: tuple[int, ...] = ()) -> Cluster:
    count, width = len(devices), max(map(len, devices))
    table = np.array([(*free, *[-1] * (width - len(free))) for free in devices], dtype=np.int64)
    cpus = np.array(cpu or (10,) * count, dtype=np.int64)
    zero = np.zeros(count, dtype=np.int64)
    gpus = (table >= 0).sum(axis=1) * 1000
    capacity = np.column_stack([np.full(count, 10), zero, gpus])
    return Cluster(np.zeros(count, dtype=np.intp), cpus, zero, table, capacity)


@pytest.mark.parametrize(
    ("asked", "devices", "spot"),
    [
        # the device in use with least free that is enough
        (kind(300), ((1000, 1000), (500, 1000), (400, 250)), Spot(2, (0,))),
        # whole ones: nodes in use first, those with fewest idle devices
        (kind(), ((1000, 1000), (300, 1000, 1000), (300, 1000)), Spot(2, (1,))),
        (kind(), ((1000, 1000), (1000,)), Spot(1, (0,))),
        (kind(devices=0, share=1000), ((1000,), (900,)), Spot(1, ())),
        (kind(devices=2), ((1000,), (900,)), None),
    ],
)
def test_packing(asked: Kind, devices: tuple[tuple[int, ...], ...], spot: Spot | None) -> None:
    assert placement.Packing(cluster(*devices), [asked]).choose(0) == spot


@pytest.mark.parametrize(
    ("asked", "devices", "cpu", "spot"),
    [
        # left over: 1.0 + 0.5 of ten CPUs and two devices, against 0.4 + 1.0
        (kind(300), ((1000, 1000), (500, 500)), (4, 10), Spot(0, (0,))),
        (kind(300), ((1000, 1000), (500, 500)), (4, 8), Spot(1, (0,))),
        (kind(300), ((1000, 400), (350, 330)), (9, 9), Spot(1, (1,))),
        (kind(cpu=5), ((1000,), (1000,)), (4, 10), Spot(1, (0,))),
    ],
)
def test_best_fit(
    asked: Kind, devices: tuple[tuple[int, ...], ...], cpu: tuple[int, ...], spot: Spot
) -> None:
    assert placement.BestFit(cluster(*devices, cpu=cpu), [asked]).choose(0) == spot


def test_random_is_by_seed_and_only_where_there_is_room() -> None:
    there = cluster((1000, 1000), (200, 200), (1000, 400))
    spots = [placement.Random(there, [kind(300)], seed).choose(0) for seed in range(40)]
    assert spots == [placement.Random(there, [kind(300)], seed).choose(0) for seed in range(40)]
    assert {(s.node, s.devices) for s in spots if s} == {
        (0, (0,)),
        (0, (1,)),
        (2, (0,)),
        (2, (1,)),
    }
    assert placement.Random(there, [kind(devices=3)], 0).choose(0) is None


def test_fragments_of_one_more_task() -> None:
    kinds = [kind(400), kind(1000, cpu=6)]
    there = cluster((1000, 300), (500, 500), (1000, 1000), cpu=(10, 10, 5))
    policy = placement.Gradient(there, kinds)
    policy.observe(np.array([0.75, 0.25]))
    states = placement.States(there.node_class, there.cpu, there.memory, there.devices)
    # 300 lost to both; nothing to the first and all to the second; all to the second by CPU
    assert policy.fragments(states).tolist() == [300.0, 250.0, 500.0]


def test_the_gradient_leaves_what_the_next_can_use() -> None:
    kinds = [kind(400), kind(1000, cpu=6)]
    # on the first a share breaks the only whole device, on the second it goes where one is broken
    there = cluster((1000,), (1000, 500))
    policy = placement.Gradient(there, kinds)
    policy.observe(np.array([0.5, 0.5]))
    spot = policy.choose(0)
    assert spot == Spot(1, (1,))
    found = trace_of(kinds)
    fragmentation.book(found, there, 0, spot)
    # 100 are left of it: now the choice is between whole devices, and the first node is as good
    assert policy.choose(0) == Spot(0, (0,))
    assert placement.Gradient(there, [kind(devices=3)]).choose(0) is None


def test_of_equal_nodes_the_gradient_takes_the_first_or_the_tightest() -> None:
    there = cluster((1000, 1000), (1000,), (1000,), cpu=(9, 9, 8))
    for tight, node in ((False, 0), (True, 2)):
        policy = placement.Gradient(there, [kind()], tight=tight)
        policy.observe(np.ones(1))
        assert policy.choose(0) == Spot(node, (0,))


def trace_of(kinds: list[Kind]) -> Trace:
    one = np.zeros(1, dtype=np.intp)
    return Trace(one, np.array([[10, 0, 1000]]), tuple(kinds), one)


# -- our own


def busy(seed: int, nodes: int = 12, tasks: int = 40) -> Trace:
    """A small trace with work of many sizes."""
    generator = np.random.default_rng(seed)
    models = generator.choice(["A", "B"], nodes)
    have = [
        (f"n{at}", generator.integers(8, 64) * 1000, 4096, generator.choice([2, 4, 8]), models[at])
        for at in range(nodes)
    ]
    asked = [
        (
            f"t{at}",
            generator.integers(1, 12) * 1000,
            64,
            *((1, generator.choice([190, 470, 530, 810])), (generator.choice([1, 2, 4]), 1000))[
                int(generator.integers(2))
            ],
            generator.choice(["", "A"]),
        )
        for at in range(tasks)
    ]
    return _written(have, asked)


def _written(have: Sequence[Sequence[object]], asked: Sequence[Sequence[object]]) -> Trace:
    rows = [
        dict(zip(("sn", "cpu_milli", "memory_mib", "gpu", "model"), map(str, r), strict=True))
        for r in have
    ]
    columns = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")
    tasks = [dict(zip(columns, map(str, r), strict=True)) for r in asked]
    return gpu_trace.of_rows(list(enumerate(rows)), list(enumerate(tasks)))


@pytest.mark.parametrize("seed", range(4))
def test_a_room_chooses_what_whole_cycles_choose(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragmentation, "TOLD_FIRST", 8)
    found = busy(seed)
    told = list(fragmentation.as_they_come(found, seed))
    assert any(news is not None for _, news in told)
    spots = []
    for own in (own_placement.Rooms, own_placement.Cycles):
        there = found.empty()
        policy, mine = own(found, there), []
        for asked, news in told:
            if news is not None:
                policy.observe(news)
            mine.append(policy.choose(asked))
            if mine[-1] is not None:
                fragmentation.book(found, there, asked, mine[-1])
        spots.append(mine)
    assert spots[0] == spots[1]
    assert None in spots[0]


@pytest.mark.parametrize("seed", range(2))
def test_all_figures(seed: int) -> None:
    found = fragmentation.figures(busy(seed), seed, cycles=False, only=())
    assert list(found) == [
        *("random", "packing", "best_fit", "fgd", "fgd_tightest", "muster"),
        *("fgd_batch", "muster_batch"),
    ]
    assert all(50 < value <= 100 for value in found.values())


def test_rows_tell_the_goals() -> None:
    found = [
        {"fgd": 94.0, "muster": online, "fgd_batch": 98.0, "muster_batch": batch}
        for online, batch in ((96.0, 99.0), (95.5, 99.0))
    ]
    rows = {row["name"]: row for row in fragmentation.rows_of(found)}
    assert rows["online"]["value"] == 95.75
    assert (rows["online"]["met"], rows["batch"]["met"]) == (True, False)
    assert rows["online"]["peer_value"] == 94.0
    assert rows["batch"]["by_seed"] == [99.0, 99.0]
    assert not {row["name"]: row for row in fragmentation.rows_of([found[0] | {"fgd": 95.1}])}[
        "online"
    ]["met"]
    # without the peer there is no telling
    assert fragmentation.rows_of([{"muster": 97.0}])[0]["met"] is None

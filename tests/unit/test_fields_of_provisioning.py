"""A field that is accepted is honoured, for pools whose nodes come and go.

Two values of each field are played through the core with a script that the test answers for; the
cases are named as in ``test_fields_honoured``, and ``test_fields_of_scheduling`` counts them in.
"""

from collections.abc import Callable

import msgspec
import pytest

from reconciler.model.state import instance_records
from tests.unit import test_fields_honoured
from tests.unit.core.pools.test_provisioning import Cloud, cores
from tests.unit.test_fields_honoured import Document, Json, pool

_NODES = {"cpu": 4, "memory": "8Gi"}


def scaled(**provision: Json) -> Document:
    """Up to four nodes by a script."""
    spec = {"provisioner": "exec", "max": 4, "nodes": _NODES}
    given = {"script": "cloud", "cooldown": "0s", **provision}
    return test_fields_honoured.document("NodePool", "c", spec | {"provision": given})


def cloud_of(document: Document) -> Cloud:
    found = test_fields_honoured.read((document,))
    assert not [p.text() for p in found.status.problems if p.severity == "error"]
    of = found.structure.pools["c"]
    assert of.provisioning is not None
    cloud = Cloud(of.provisioning)
    cloud.change_structure(pools={"c": msgspec.structs.replace(of, runs_unmapped=True)})
    cloud.go()
    return cloud


def made(seconds: float = 30.0, count: int = 1) -> Callable[[Cloud], Json]:
    """How many machines there are so long after jobs came."""

    def look(cloud: Cloud) -> Json:
        cloud.commit(*(cores(f"j{number}") for number in range(count)))
        cloud.go(seconds, step=10)
        return len(cloud.machines)

    return look


def left(seconds: float) -> Callable[[Cloud], Json]:
    """How many machines there are so long after the work of two ended, one minute apart."""

    def look(cloud: Cloud) -> Json:
        cloud.commit(cores("a"), cores("b"))
        cloud.go(20)
        cloud.end("a")
        cloud.go(60)
        cloud.end("b")
        cloud.go(seconds)
        return len(cloud.machines)

    return look


def open_order(cloud: Cloud) -> instance_records.Order:
    cloud.commit(cores("a"))
    cloud.cycle()
    return next(one for one in instance_records.orders(cloud.provision) if one.verb == "create")


def of_order(field: str) -> Callable[[Cloud], Json]:
    return lambda cloud: getattr(open_order(cloud), field)


def never_up(cloud: Cloud) -> Json:
    """How many machines were made within ten minutes, if none ever comes up."""
    cloud.never_up = 100
    cloud.commit(cores("a"))
    cloud.go(600, step=10)
    return len(cloud.created)


def failing(cloud: Cloud) -> Json:
    """Whether the pool rests after ten minutes in which every create failed."""
    cloud.fails = {"create"}
    cloud.commit(cores("a"))
    cloud.go(600, step=10)
    return "PoolPaused" in {e.kind for r in cloud.outcomes for e in r.events}


def stray(cloud: Cloud) -> Json:
    """Whether a machine that nobody asked for is there after three lists."""
    cloud.machines["i-stray"] = ""
    cloud.go(950, step=30)
    return "i-stray" in cloud.machines


def replaced(cloud: Cloud) -> Json:
    """How many machines were made in half an hour in which each one is lost at once."""
    cloud.never_up = 10**6
    for number in range(6):
        cloud.commit(cores(f"j{number}"))
        cloud.go(300, step=10)
    return len(cloud.created)


class Case(msgspec.Struct, frozen=True):
    """Two values of a field, and what is seen of each in a pool."""

    values: tuple[Json, Json]
    look: Callable[[Cloud], Json]
    seen: tuple[Json, Json]
    document: Document


_P = "NodePool.spec.provision"
TABLE: dict[str, Case] = {
    "NodePool.spec.min": Case((0, 2), lambda cloud: len(cloud.machines), (0, 2), scaled()),
    "NodePool.spec.max": Case((2, 3), made(count=4), (2, 3), scaled()),
    f"{_P}.script": Case(("one", "two"), of_order("script"), ("one", "two"), scaled()),
    f"{_P}.settings": Case(
        ({"type": "a"}, {"type": "b"}),
        of_order("settings"),
        ({"type": "a"}, {"type": "b"}),
        scaled(),
    ),
    f"{_P}.scriptTimeout": Case(("10s", "2m"), of_order("timeout_s"), (10, 120), scaled()),
    f"{_P}.delay": Case(("0s", "1h"), made(), (1, 0), scaled()),
    f"{_P}.idleTime": Case(("2m", "1h"), left(300), (0, 2), scaled()),
    f"{_P}.cooldown": Case(("0s", "1h"), left(300), (0, 2), scaled(idleTime="2m")),
    f"{_P}.createTimeout": Case(("2m", "1h"), never_up, (4, 1), scaled(retries=10)),
    f"{_P}.retries": Case((0, 20), failing, (True, False), scaled()),
    f"{_P}.createsPerHour": Case(
        (1, 30), replaced, (1, 8), scaled(createTimeout="1m", retries=100)
    ),
    f"{_P}.orphans": Case(("report", "destroy"), stray, (True, False), scaled()),
}

TABLE_OF_PROBLEMS: dict[str, tuple[tuple[Json, Json], tuple[Json, Json], Document]] = {}


@pytest.mark.parametrize("field", TABLE)
@pytest.mark.parametrize("which", [0, 1])
def test_two_values_make_a_difference(field: str, which: int) -> None:
    case = TABLE[field]
    assert case.values[0] != case.values[1]
    assert case.seen[0] != case.seen[1]
    chosen = test_fields_honoured.put(case.document, field.split(".", 1)[1], case.values[which])
    assert case.look(cloud_of(chosen)) == case.seen[which]


@pytest.mark.parametrize(
    ("document", "rules"),
    [
        (pool(min=1), ["exclusive-fields"]),
        (pool(count=None, min=3, max=2), ["min-above-max"]),
        (pool(count=None, min=3), ["missing-field"]),
        (pool(provision={"idleTime": "1m"}), ["exclusive-fields"]),
        (pool(count=None, max=2, provision={"script": "a"}), ["exclusive-fields"]),
        (pool(count=None, max=2, provision={"settings": {"a": "b"}}), ["exclusive-fields"]),
        (pool(provisioner="exec"), ["missing-field"]),
        (pool(count=None, max=2), []),
        (pool(provisioner="exec", provision={"script": "a"}), []),
        (scaled(script="../escape"), ["schema"]),
    ],
)
def test_what_can_not_be_is_refused(document: Document, rules: list[str]) -> None:
    spec = {name: value for name, value in document["spec"].items() if value is not None}
    found = test_fields_honoured.read((document | {"spec": spec},)).status.problems
    if rules == ["schema"]:
        assert [p.field for p in found if p.severity == "error"] == ["spec.provision.script"]
    else:
        assert [p.rule for p in found if p.severity == "error"] == rules

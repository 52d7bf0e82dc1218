"""Each field of volumes and of what jobs copy makes a difference in what nodes are told.

``test_fields_of_scheduling`` holds that no field is forgotten here.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from reconciler.model.observed import storage
from tests.unit import test_fields_honoured
from tests.unit.test_fields_honoured import BASE, Case, Document, Json, Run, job, pool, variable

S3: Json = {"endpoint": "https://s3.example.org", "bucket": "data"}
PEM = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
KEYS: Json = {"accessKeySecret": "a", "secretKeySecret": "b"}


def mount(name: str = "v", **spec: Json) -> Document:
    return test_fields_honoured.document("Volume", name, {"mountPath": "/data"} | spec)


def bucket(**s3: Json) -> Document:
    return test_fields_honoured.document("Volume", "b", {"type": "s3", "s3": S3 | s3})


def copying(volume: str = "v", **more: Json) -> Document:
    return job(stage={"inputs": [{"volume": volume} | more]})


def leaving(volume: str = "v", **more: Json) -> Document:
    return job(stage={"outputs": [{"path": "out", "volume": volume} | more]})


def wanted(field: str) -> Callable[[Run, Path], Json]:
    """What nodes are to look at."""

    def look(run: Run, _: Path) -> Json:
        nodes = [node for node in run.nodes.values() if isinstance(node, test_fields_honoured.Node)]
        return [getattr(one, field) for one in nodes[0].wanted.volumes]

    return look


def objects(field: str) -> Callable[[Run, Path], Json]:
    """The bucket that a job copies from."""

    def look(run: Run, _: Path) -> Json:
        found = run.template().stage.ins[0].store.objects
        assert found is not None
        return getattr(found, field)

    return look


def first_in(field: str) -> Callable[[Run, Path], Json]:
    return lambda run, _: getattr(run.template().stage.ins[0], field)


def first_out(field: str) -> Callable[[Run, Path], Json]:
    return lambda run, _: getattr(run.template().stage.outs[0], field)


def copied_from(run: Run, _: Path) -> Json:
    return run.template().stage.ins[0].store.volume


def copied_to(run: Run, _: Path) -> Json:
    return run.template().stage.outs[0].store.volume


def time_limit(run: Run, _: Path) -> Json:
    return run.template().stage.timeout_s


FROM_BUCKET = (bucket(), pool(), copying("b"))
TWO = (mount("v"), mount("w"), pool())

TABLE: dict[str, Case] = {
    "Volume.spec.fileSystem": Case(
        ("nfs4", "lustre"), wanted("file_system"), (["nfs4"], ["lustre"]), (mount(), *BASE)
    ),
    "Volume.spec.source": Case(
        ("a:/x", "b:/x"), wanted("source"), (["a:/x"], ["b:/x"]), (mount(), *BASE)
    ),
    "Volume.spec.readOnly": Case(
        (True, False), wanted("writable"), ([False], [True]), (mount(), *BASE)
    ),
    "Volume.spec.s3.endpoint": Case(
        ("http://a", "https://b:9/"), objects("endpoint"), ("http://a", "https://b:9"), FROM_BUCKET
    ),
    "Volume.spec.s3.bucket": Case(("one", "two"), objects("bucket"), ("one", "two"), FROM_BUCKET),
    "Volume.spec.s3.prefix": Case(("a", "a/b"), objects("prefix"), ("a", "a/b"), FROM_BUCKET),
    "Volume.spec.s3.region": Case(("eu", "us"), objects("region"), ("eu", "us"), FROM_BUCKET),
    "Volume.spec.s3.accessKeySecret": Case(
        ("x", "y"), objects("access_key"), ("x", "y"), (bucket(**KEYS), pool(), copying("b"))
    ),
    "Volume.spec.s3.secretKeySecret": Case(
        ("x", "y"), objects("secret_key"), ("x", "y"), (bucket(**KEYS), pool(), copying("b"))
    ),
    "Volume.spec.s3.caCertificate": Case(
        (PEM, PEM * 2), objects("ca_certificate"), (PEM, PEM * 2), (bucket(), pool(), copying("b"))
    ),
    "Job.spec.stage.inputs[].volume": Case(
        ("v", "w"), copied_from, ("v", "w"), (copying(), *TWO)
    ),
    "Job.spec.stage.inputs[].path": Case(
        ("a", "a/.b"), first_in("path"), ("a", "a/.b"), (copying(), *TWO)
    ),
    "Job.spec.stage.inputs[].name": Case(
        ("a-b", "c"), variable("MUSTER_STAGED_A_B"), ([""], [None]), (copying(), *TWO)
    ),
    "Job.spec.stage.inputs[].sha256": Case(
        ("0" * 64, "1" * 64), first_in("sha256"), ("0" * 64, "1" * 64), (copying(), *TWO)
    ),
    "Job.spec.stage.inputs[].checksums": Case(
        ("S", "T"), first_in("checksums"), ("S", "T"), (copying(), *TWO)
    ),
    "Job.spec.stage.outputs[].path": Case(
        ("a", "b"), first_out("path"), ("a", "b"), (leaving(), *TWO)
    ),
    "Job.spec.stage.outputs[].volume": Case(
        ("v", "w"), copied_to, ("v", "w"), (leaving(), *TWO)
    ),
    "Job.spec.stage.outputs[].to": Case(
        ("a", "{job}/b"), first_out("to"), ("a", "{job}/b"), (leaving(), *TWO)
    ),
    "Job.spec.stage.outputs[].when": Case(
        ("success", "always"), first_out("when"), ("success", "always"), (leaving(), *TWO)
    ),
    "Job.spec.stage.timeout": Case(
        ("1m", "1h"), time_limit, (60.0, 3600.0), (copying(), *TWO)
    ),
}  # fmt: skip

#: Fields of which one value is refused beside the rest of its document.
TABLE_OF_PROBLEMS: dict[str, tuple[tuple[Json, Json], tuple[Json, Json], tuple[Document, ...]]] = {
    "Volume.spec.type": (
        ("s3", "mount"),
        ([], [("missing-field", "Volume/b"), ("exclusive-fields", "Volume/b")]),
        (bucket(), *BASE),
    ),
}


@pytest.mark.parametrize("field", TABLE)
@pytest.mark.parametrize("which", [0, 1])
def test_two_values_make_a_difference(field: str, which: int, tmp_path: Path) -> None:
    test_fields_honoured.check_difference(field, TABLE[field], which, tmp_path)


@pytest.mark.parametrize("field", TABLE_OF_PROBLEMS)
def test_two_values_are_judged_differently(field: str) -> None:
    values, expected, (target, *others) = TABLE_OF_PROBLEMS[field]
    for value, seen in zip(values, expected, strict=True):
        chosen = test_fields_honoured.put(target, field.split(".", 1)[1], value)
        assert test_fields_honoured.problems((chosen, *others)) == seen


@pytest.mark.parametrize(
    ("documents", "rule"),
    [
        ((bucket(), pool(), job(volumes=["b"])), "not-mounted"),
        ((mount(readOnly=True), pool(), leaving()), "read-only"),
        ((mount(), pool(), job(count=2, stage=leaving()["spec"]["stage"])), "overwriting"),
        ((mount(), pool(), leaving(to="{jobs}")), "unknown-placeholder"),
        ((mount(), pool(), leaving(to="x}")), "unknown-placeholder"),
        ((mount(), pool(), copying("w")), "unknown-volume"),
        ((mount(), pool(), copying(sha256="0" * 64, checksums="S")), "exclusive-fields"),
        (
            (mount(), pool(), job(stage={"inputs": [{"volume": "v"}, {"volume": "v"}]})),
            "duplicate-name",
        ),
        ((bucket(accessKeySecret="a"), *BASE), "missing-field"),
        (
            (test_fields_honoured.document("Volume", "v", {}), *BASE),
            "missing-field",
        ),
        (
            (
                test_fields_honoured.document("Volume", "v", {"type": "s3"}),
                *BASE,
            ),
            "missing-field",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(documents: tuple[Document, ...], rule: str) -> None:
    assert rule in [found for found, _ in test_fields_honoured.problems(documents)]


def test_work_goes_where_its_data_is() -> None:
    """A node that says that a volume is not there takes no job that needs it."""
    run = Run((pool(count=1), mount(), job("k")))
    node = next(iter(run.nodes.values()))
    assert isinstance(node, test_fields_honoured.Node)
    plain = node.report

    def report(now: float) -> Json:
        told = plain(now)
        assert told.inventory is not None
        states = (storage.VolumeState("v", "/data is not mounted"),)
        inventory = msgspec.structs.replace(told.inventory, volumes=states)
        return msgspec.structs.replace(told, inventory=inventory)

    node.report = report  # type: ignore[method-assign]
    run.settle()
    run.add(job(volumes=["v"]))
    assert "volume v: /data is not mounted" in whys(run, "j")
    run.add(job("big", volumes=["v"], resources={"cpu": 999}))
    told, *_ = run.memory.reasons[run.memory.jobs["j"].reason_key]
    assert told.code == "InsufficientResources"  # it is not for ever, and mounting it is what helps
    assert told.message == (
        "volume v is not there now on the nodes that could hold 1 CPU "
        "(volume v: /data is not mounted)"
    )
    assert told.unblocks == "mount v there as the Volume says"
    big, *_ = run.memory.reasons[run.memory.jobs["big"].reason_key]
    assert big.code == "NeverFits"  # with the volume as well
    node.report = plain  # type: ignore[method-assign]
    run.settle()
    assert run.state("j").value == "Running"


def whys(run: Run, name: str) -> list[str]:
    """Steps of the funnels that say why a job waits."""
    reasons = run.memory.reasons[run.memory.jobs[name].reason_key]
    return [step.why for reason in reasons for step in reason.funnel]

"""What is accepted with a warning says so to whoever submits it."""

from collections.abc import Sequence

import msgspec
import pytest

from reconciler.desired.checks import submission_checks
from reconciler.model import desired
from reconciler.model.values import times
from reconciler.operations.changes import remote_changes
from tests.unit.core.world import World

TEXT = """\
apiVersion: muster/v1
kind: Job
metadata: {name: %s}
spec: {resources: {gpu: %d}, command: [nvidia-smi]}
"""


def test_what_no_pool_could_ever_hold_is_told() -> None:
    structure = World(nodes=1, gpu=2).structure
    assert isinstance(structure, desired.Structure)
    text = "---\n".join((TEXT % ("small", 2), TEXT % ("large", 9)))
    small, large = remote_changes.read(
        text, "ann", submission_checks.SubmissionValidator(structure)
    )
    assert small.warnings == ()
    (told,) = large.warnings
    assert told.startswith("no pool could ever hold a task of group main: pool: 9 GPUs asked")


GANG = """\
apiVersion: muster/v1
kind: Job
metadata: {name: gang}
spec: {queue: leaf, groups: [%s], command: [nvidia-smi]}
"""


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ("{name: a, count: 4, resources: {gpu: 1}}", ""),
        ("{name: a, count: 5, resources: {gpu: 1}}", "5 GPUs asked for what starts together"),
        ("{name: a, count: 5, min: 4, resources: {gpu: 1}}", ""),
        (
            "{name: a, count: 3, resources: {gpu: 1}}, {name: b, count: 2, resources: {gpu: 1}}",
            "more than the limit of queue top, 4 GPUs: it can't start under this limit",
        ),
    ],
)
def test_what_no_limit_lets_start_is_told(groups: str, told: str) -> None:
    structure = msgspec.structs.replace(
        World(nodes=4, gpu=8).structure,
        queues={
            "top": desired.Queue("top", limit=desired.QuotaAmounts(gpu_milli=4000)),
            "leaf": desired.Queue("leaf", parent="top"),
        },
    )
    (gang,) = remote_changes.read(
        GANG % groups, "ann", submission_checks.SubmissionValidator(structure)
    )
    assert len(gang.warnings) == bool(told)
    assert told in "".join(gang.warnings)


AFTER = """\
apiVersion: muster/v1
kind: Job
metadata: {name: %s}
spec: {command: [nvidia-smi], dependsOn: [{job: %s}]}
"""


def test_what_depends_on_a_job_that_nobody_knows_is_told() -> None:
    structure = World(nodes=1, gpu=2).structure
    text = "---\n".join(AFTER % pair for pair in (("a", "there"), ("b", "a"), ("c", "ther")))
    judge = submission_checks.SubmissionValidator(structure)
    asked: list[Sequence[str]] = []

    def known(names: Sequence[str]) -> list[str]:
        asked.append(names)
        return [name for name in names if name == "there"]

    found = remote_changes.read(text, "ann", judge, known=known)
    assert [one.warnings for one in found] == [
        (),
        (),
        ("the job ther is not there: this one waits until it is",),
    ]
    assert asked == [["there", "ther"]]
    assert not any(one.warnings for one in remote_changes.read(text, "ann", judge)), (
        "nobody can tell"
    )
    # a text of thousands of names makes no thousands of warnings
    text = "---\n".join(AFTER % (f"job-{number}", f"no-{number}") for number in range(50))
    text += "---\n" + AFTER % ("again", "no-1")
    found = remote_changes.read(text, "ann", judge, known=known)
    assert sum(len(one.warnings) for one in found) == len(asked[-1]) == 20


@pytest.mark.parametrize(("now", "warned"), [(1_801_000_000.0, False), (1_802_000_000.0, True)])
def test_a_deadline_that_is_over_is_told(now: float, *, warned: bool) -> None:
    text = TEXT.replace("spec: {", "spec: {deadline: 2027-01-31T06:00:00Z, ") % ("late", 1)
    judge = submission_checks.SubmissionValidator(World(nodes=1, gpu=2).structure)
    (found,) = remote_changes.read(text, "ann", judge, now)
    told = ("its deadline has passed: it will be TimedOut at once",)
    assert found.warnings == (told if warned else ())


@pytest.mark.parametrize(
    ("limit", "warned"), [("", False), ("timeLimit: 1h, ", False), ("timeLimit: 2h, ", True)]
)
def test_a_deadline_that_a_time_limit_can_not_meet_is_told(limit: str, *, warned: bool) -> None:
    text = TEXT.replace("spec: {", f"spec: {{deadline: 2027-01-31T06:00:00Z, {limit}")
    judge = submission_checks.SubmissionValidator(World(nodes=1, gpu=2).structure)
    now = times.parse_time("2027-01-31T05:00:00Z")
    (found,) = remote_changes.read(text % ("late", 1), "ann", judge, now)
    told = (
        "its deadline can't be met by its time limit: it would have had to start by "
        "2027-01-31T04:00:00.000Z at the latest"
    )
    assert found.warnings == ((told,) if warned else ())

"""What is wrong with a document is said in words of what it may be, and of what ends that."""

import pytest

from reconciler.desired.checks import cross_references
from reconciler.desired.documents import schema_errors
from reconciler.model import desired
from reconciler.model.values import found_values
from tests.unit.core.world import job

NAMES = "A-Z, a-z, 0-9 and _, no digit first, such as DATA_FOLDER"
CUT = [{"devices": [0], "instances": {"large": 1}}]
LAYOUT = {"nodes": {"cpu": 4, "memory": "8Gi", "gpus": {"count": 2, "mig": CUT}}}
PROFILES = "a MIG profile, such as 1g.10gb"


@pytest.mark.parametrize(
    ("kind", "spec", "found", "expected"),
    [
        ("Job", {"environment": {"A=B": "1"}}, "A=B", NAMES),
        ("Job", {"environment": {"": "1"}}, "", NAMES),
        ("NodePool", LAYOUT, "large", PROFILES),
    ],
)
def test_names_in_a_mapping_are_told_in_words(
    kind: str, spec: dict[str, object], found: str, expected: str
) -> None:
    whole = {"apiVersion": "muster/v1", "kind": kind, "metadata": {"name": "j"}, "spec": spec}
    (fault,) = schema_errors.faults(kind, whole, "refused")
    assert (fault.rule, fault.message) == ("wrong-key", "a name in it does not fit")
    assert (fault.found, fault.expected) == (found_values.quote(found), expected)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (True, "the job a is refused as it stands: this one waits until it is accepted"),
        (False, "the job a is not there: this one waits until it is"),
    ],
)
def test_who_waits_for_a_job_is_told_until_what(told: str, *, refused: bool) -> None:
    waits = job("b", depends_on=(desired.Dependency("a", "afterOk"),))
    (fault,) = cross_references.dependencies(waits, lambda name: None, lambda name: refused)
    assert fault.message == told

"""When and where a job may start, as documents say it."""

from typing import Any

import pytest

from reconciler.desired.documents.faults import FaultCollector
from reconciler.desired.normalise import start_terms
from reconciler.model import desired
from reconciler.model.documents import job_spec
from tests.unit.core.world import job

EARLY, LATE = "2027-01-31T06:00:00Z", "2027-01-31T06:00:00+00:01"


def normalised(**fields: Any) -> tuple[desired.Job, FaultCollector]:
    faults = FaultCollector()
    spec = job_spec.JobSpec(command=["true"], **fields)
    return start_terms.with_start(job("one"), spec, faults), faults


def test_moments_are_seconds_and_hosts_are_names() -> None:
    found, faults = normalised(
        not_before=EARLY, deadline="2027-01-31T06:01:00Z", hosts="n[1-3]", exclude_hosts="n2"
    )
    assert not faults.found
    assert (found.not_before, found.deadline) == (1801375200.0, 1801375260.0)
    assert (found.hosts, found.exclude_hosts) == (("n1", "n2", "n3"), ("n2",))


def test_a_job_that_says_nothing_is_as_it_was() -> None:
    found, faults = normalised()
    assert not faults.found
    assert found == job("one")


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"not_before": "2027-01-31"}, "bad-time", "notBefore"),
        ({"deadline": "soon"}, "bad-time", "deadline"),
        ({"not_before": EARLY, "deadline": EARLY}, "never-in-time", "notBefore"),
        ({"not_before": EARLY, "deadline": LATE}, "never-in-time", "notBefore"),
        ({"hosts": "n[1-"}, "bad-host-list", "hosts"),
        ({"exclude_hosts": ""}, "bad-host-list", "excludeHosts"),
        ({"hosts": "n[1-1025]"}, "too-many-hosts", "hosts"),
        ({"exclude_hosts": f"{'n' * 200}[100-190]"}, "too-many-hosts", "excludeHosts"),
        ({"hosts": "n[1-2]", "exclude_hosts": "n2,n1"}, "no-hosts", "excludeHosts"),
    ],
)
def test_what_can_not_be_is_a_fault(fields: dict[str, str], code: str, field: str) -> None:
    _, faults = normalised(**fields)
    (fault,) = faults.found
    assert (fault.rule, fault.path) == (code, ("spec", field))

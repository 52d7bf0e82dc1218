"""Stored views that can't be read, and jobs that are written and have no run."""

from collections.abc import Callable

import msgspec
import pytest

from reconciler.model import desired
from reconciler.model.rules import review_findings
from reconciler.model.state import outcome
from reconciler.operations.views import job_views, stored_views, view_types
from reconciler.store import DamagedError
from tests.unit.store import samples


def test_a_queue_tells_what_it_lends() -> None:
    none = (None, None, None)
    in_pool = outcome.PoolUsage("a", (0, 0, 0), none, none)
    usage = outcome.QueueUsage("q", None, (0, 0, 0), none, none, pools=(in_pool,))
    said = desired.Queue(
        "q",
        lending_limit=desired.QuotaAmounts(gpu_milli=2000),
        flavors=(desired.QueueFlavor("a", lending_limit=desired.QuotaAmounts(cpu_milli=500)),),
    )
    found = job_views.queue_view(usage, said=said)
    assert found.lending_limit is not None
    assert (found.lending_limit.cpu, found.lending_limit.gpu) == (None, 2.0)
    assert found.pools[0].lending_limit is not None
    assert (found.pools[0].lending_limit.cpu, found.pools[0].lending_limit.gpu) == (0.5, None)
    assert job_views.queue_view(usage).lending_limit is None


@pytest.mark.parametrize("body", [b"\xc1", b"\x01", b"\x93\x01\x02"])
@pytest.mark.parametrize(
    "stored",
    [
        stored_views.stored_queues,
        stored_views.stored_pools,
        stored_views.stored_sync,
        stored_views.stored_refused,
    ],
)
def test_a_damaged_view_is_told(stored: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(DamagedError, match=r"the stored view '\w+' can't be read .* restart"):
        stored(body)


def test_a_job_that_is_refused_is_invalid() -> None:
    broken = job_views.refused_view("train", "a.yaml:3:1: error: …", 1.0)
    assert (broken.state, broken.reasons[0].code) == ("Pending", "Invalid")


def test_a_job_that_an_internal_error_refuses_is_to_be_reported() -> None:
    problem = desired.Problem(review_findings.UNDECIDED, "error", "a.yaml", "x", object="Job/train")
    sync = desired.SyncStatus(problems=(problem,))
    assert set(job_views.undecided_jobs(sync)) == {"train"}
    (why,) = job_views.refused_view("train", "any words", 1.0, is_undecided=True).reasons
    assert (why.code, why.unblocks) == ("Invalid", job_views.REPORT_DEFECT)


def test_a_job_that_nobody_answers_for_who_may_is_not_allowed() -> None:
    told = desired.unanswered("0123456789ab" * 3, "it has no signature")
    refused = job_views.refused_view("train", told, 1.0)
    (why,) = refused.reasons
    assert (refused.state, why.code) == ("Pending", "NotAllowed")
    assert why.message == "commit 0123456789ab changes it, and it has no signature"


def test_the_tasks_of_an_elastic_gang_are_told() -> None:
    one = samples.job("gang")
    (group,) = one.spec.groups
    assert job_views.job_view(one, running=1).tasks is None, "all have to be there"
    grows = msgspec.structs.replace(group, name="workers", count=6, minimum=2)
    spec = msgspec.structs.replace(one.spec, groups=(group, grows))
    gang = msgspec.structs.replace(one, spec=spec)
    told = job_views.job_view(gang, running=4).tasks
    assert told == view_types.TasksView(4, group.count + 2, group.count + 6)
    array = msgspec.structs.replace(spec, array_count=3)
    assert job_views.job_view(msgspec.structs.replace(gang, spec=array), running=4).tasks is None

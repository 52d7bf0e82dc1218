"""What counts as less than guaranteed: work that would fit in the rest, and gets no room."""

import msgspec
import pytest

from reconciler import metrics
from reconciler.metrics import starvation
from reconciler.model import desired
from reconciler.model.state import outcome, records
from reconciler.model.state.pending_reasons import Reason, ReasonCode
from reconciler.model.state.states import JobState
from reconciler.model.values import resources
from tests.unit.store import samples

GPU = 1000
ROOM = ReasonCode.INSUFFICIENT_RESOURCES


def usage(name: str, parent: str | None, guaranteed: int | None, has: int) -> outcome.QueueUsage:
    """A queue by its GPUs."""
    due = None if guaranteed is None else guaranteed * GPU
    return outcome.QueueUsage(
        name, parent, (0, 0, has * GPU), (0, 0, due), (None, None, None), 0, 0
    )


QUEUES = (
    usage("all", None, 10, 6),
    usage("research", "all", 6, 4),
    usage("product", "all", None, 2),
)


@pytest.mark.parametrize(
    ("queue", "code", "elements", "each", "lacks"),
    [
        ("research", ROOM, 1, 2, {"all": 2, "research": 2}),
        ("research", ReasonCode.BEHIND, 1, 1, {"all": 1, "research": 1}),
        # an array is as large as its elements, and no more is due than is guaranteed
        ("research", ROOM, 100, 1, {"all": 4, "research": 2}),
        # a gang that is larger than what is left would have to borrow
        ("research", ROOM, 1, 3, {"all": 3}),
        ("research", ROOM, 1, 12, {}),
        # what a queue is not guaranteed may be due to the one above it
        ("product", ROOM, 1, 3, {"all": 3}),
        # nobody waits for room
        ("research", ReasonCode.OVER_LIMIT, 1, 2, {}),
        ("research", ReasonCode.NEVER_FITS, 1, 2, {}),
        ("research", ReasonCode.WAITING_FOR_QUOTA, 1, 2, {}),
        ("research", ReasonCode.DEPENDENCY, 1, 2, {}),
    ],
)
def test_work_that_would_fit_in_the_rest_counts(
    queue: str, code: ReasonCode, elements: int, each: int, lacks: dict[str, int]
) -> None:
    asked = {(queue, "r", ""): starvation.QueueDemand(elements, [0, 0, elements * each * GPU])}
    found = starvation.amounts(QUEUES, asked, {"r": (Reason(code, "x"),)})
    assert {name: lack[2] // GPU for name, lack in found.items() if any(lack)} == lacks


def pool_usage(pool: str, guaranteed: int | None, has: int, *, named: bool) -> outcome.PoolUsage:
    due = None if guaranteed is None else guaranteed * GPU
    return outcome.PoolUsage(pool, (0, 0, has * GPU), (None, None, due), named=named)


@pytest.mark.parametrize(
    ("pool", "code", "elements", "each", "lacks"),
    [
        ("h200", ROOM, 1, 2, {("research", "h200"): 2}),
        ("h200", ROOM, 9, 1, {("research", "h200"): 3}),
        ("h200", ROOM, 1, 4, {}),  # more than is left there
        ("a100", ROOM, 1, 2, {}),  # it has what it is guaranteed there
        ("", ROOM, 1, 2, {}),  # it could go elsewhere
        ("h200", ReasonCode.OVER_LIMIT, 1, 2, {}),
    ],
)
def test_what_a_queue_is_guaranteed_in_a_pool_is_for_work_that_has_to_go_there(
    pool: str, code: ReasonCode, elements: int, each: int, lacks: dict[tuple[str, str], int]
) -> None:
    pools = (
        pool_usage("h200", 4, 1, named=True),
        pool_usage("a100", 2, 5, named=True),
        pool_usage("l40", None, 3, named=False),
    )
    # in the cluster it has all that it is guaranteed
    research = msgspec.structs.replace(usage("research", None, 6, 9), pools=pools)
    asked = {
        ("research", "r", pool): starvation.QueueDemand(elements, [0, 0, elements * each * GPU])
    }
    found = starvation.in_pools((research,), asked, {"r": (Reason(code, "x"),)})
    assert set(found) == {("research", "h200"), ("research", "a100")}
    assert {key: lack // GPU for key, lack in found.items() if lack} == lacks


def test_a_page_tells_of_it_as_work_comes_and_goes() -> None:
    group = msgspec.structs.replace(samples.GROUP, resources=resources.Resources(0, 0, 2 * GPU))
    waits = samples.job("wait", elements=3, queue="research", reason_key="r")
    waits = msgspec.structs.replace(
        waits, spec=msgspec.structs.replace(waits.spec, groups=(group,))
    )
    counters = metrics.Counters()
    memory = records.Observed(reasons={"r": (Reason(ROOM, "x"),)})
    kept = counters.sums(memory, 0.0)

    def page(job: records.JobRecord) -> list[str]:
        cycle = samples.cycle(jobs=(job,), queues=QUEUES)
        counters.cycle(cycle, decide_s=0, commit_s=0)
        lines = metrics.render_cluster(
            counters=counters, memory=memory, wanted=desired.Desired(), epoch=1, now=1.0
        )
        return [one for one in lines.decode().splitlines() if "starved_gpus{" in one]

    assert page(waits) == [
        'muster_queue_starved_gpus{queue="all"} 4.0',
        'muster_queue_starved_gpus{queue="research"} 2.0',
    ]
    ended = msgspec.structs.replace(waits, state=JobState.CANCELLED)
    assert [line.split()[-1] for line in page(ended)] == ["0.0", "0.0"]
    assert kept.asked_by_reason == {}

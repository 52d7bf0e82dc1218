"""The page at a node's own port says what the controller's page of the node says."""

import threading

import msgspec
import pytest

from agents import reports
from agents.exporter import metrics_page
from reconciler.model.metrics import node_series
from reconciler.model.observed import task_reports, task_usage
from reconciler.model.protocol import agent_messages
from reconciler.model.state import records
from reconciler.model.state.states import AttemptState
from reconciler.model.values import resources
from tests.unit import gpusamples
from tests.unit.store import samples

SAVED = task_reports.Saved("step-1", 90.0)


def attempts() -> tuple[records.AttemptRecord, ...]:
    """Attempts as the controller has them: one that runs and saves, one of four ranks, one that
    has begun only."""
    job = samples.job("train", elements=3)
    first = msgspec.structs.replace(
        samples.attempt(job, 0, state=AttemptState.RUNNING),
        resources=resources.Resources(500, 2**30, 1000),
        devices=(0, 1),
        saved=SAVED,
        saves_every_s=600,
    )
    ranked = msgspec.structs.replace(
        samples.attempt(job, 1, state=AttemptState.STOPPING),
        rank=records.RankPlacement(rank=3, world_size=4),
        saves_every_s=600,
        devices=(),
        resources=resources.Resources(1000, 2**20),
    )
    begun = msgspec.structs.replace(samples.attempt(job, 2), state=AttemptState.STARTING)
    return first, ranked, msgspec.structs.replace(begun, started_at=None, devices=(1,))


def given(attempt: records.AttemptRecord) -> reports.AssignedAttempt:
    """The same, as the node was told of it and as it reports it."""
    template = agent_messages.TaskTemplate(
        attempt.job,
        attempt.run,
        attempt.group,
        cpu_milli=attempt.resources.cpu_milli,
        memory_bytes=attempt.resources.memory_bytes,
    )
    assignment = agent_messages.Assignment(
        attempt.id,
        "t",
        attempt.boot_id,
        element=attempt.element,
        index=attempt.index,
        devices=attempt.devices,
        share_milli=attempt.share_milli,
        rank=attempt.rank,
        saves_every_s=attempt.saves_every_s,
    )
    report = records.AttemptReport(
        attempt.id, attempt.state, started_at=attempt.started_at, checkpoint=attempt.saved
    )
    return reports.AssignedAttempt(report, assignment, template)


def now() -> reports.NodeSnapshot:
    record, first = gpusamples.node(), attempts()[0]
    return reports.NodeSnapshot(
        node=record.name,
        pool=record.pool,
        boot_id=record.boot_id,
        reported_at=record.last_report_at,
        inventory=record.inventory,
        usage=record.usage,
        attempts=tuple(map(given, attempts())),
        gpu_usage=(gpusamples.usage(),),
        words={
            first.id: task_reports.TaskMetrics(
                first.id, (task_reports.Metric("loss", 0.5, 99.0),), 1
            )
        },
        uses={first.id: task_usage.TaskUse(first.id, 99.0, processes=2, cpu_s=1.5)},
    )


def test_it_says_what_the_page_of_the_controller_says() -> None:
    values = now()
    theirs = node_series.render_node(
        gpusamples.node(), attempts(), values.gpu_usage, values.words, values.uses
    ).decode()
    own = metrics_page.render(values).decode()
    assert "muster_task_unsaved_since_timestamp_seconds" in own
    assert own.splitlines() == [
        line for line in theirs.splitlines() if "muster_node_state" not in line
    ]


class Scene:
    """A page at a time that a test says."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.values: reports.NodeSnapshot | None = now()
        self.made = 0
        self.page = metrics_page.NodePage(self.take, threading.Event(), lambda: self.time)
        self.ready = 0
        self.page.on_ready = self.count

    def take(self) -> reports.NodeSnapshot | None:
        self.made += 1
        return self.values

    def count(self) -> None:
        self.ready += 1


def test_nobody_asks_and_nothing_is_made() -> None:
    scene = Scene()
    assert not scene.page.make_if_wanted()
    assert scene.made == 0


def test_who_asks_gets_what_is_there_already() -> None:
    scene = Scene()
    assert scene.page.ask() is None
    assert scene.page.make_if_wanted()
    found = scene.page.ask()
    assert found is not None
    assert found.page == metrics_page.render(now())
    assert scene.page.ask() is found
    assert (scene.made, scene.ready) == (1, 1)


@pytest.mark.parametrize(
    ("later_s", "kept"), [(metrics_page.WANTED_S, True), (metrics_page.WANTED_S + 1, False)]
)
def test_it_is_kept_up_to_date_for_a_while(later_s: float, *, kept: bool) -> None:
    scene = Scene()
    scene.page.ask()
    scene.time += later_s
    assert scene.page.make_if_wanted() == kept


def test_what_has_grown_old_is_not_handed_out() -> None:
    scene = Scene()
    scene.page.ask()
    scene.page.make_if_wanted()
    scene.time += metrics_page.FRESH_S
    assert scene.page.ask() is not None
    scene.time += 1
    assert scene.page.ask() is None


def test_before_a_controller_has_spoken_it_is_said_why_there_is_none() -> None:
    scene = Scene()
    scene.values = None
    scene.page.ask()
    scene.page.make_if_wanted()
    assert scene.page.ask() == metrics_page.Ready(problem=metrics_page.NOT_YET)

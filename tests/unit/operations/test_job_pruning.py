"""Files leave when their jobs ended long ago and nothing that stays depends on them."""

import msgspec

from reconciler.model import desired
from reconciler.model.state.states import JobState
from reconciler.operations import job_pruning
from tests.unit.store import samples

DAY = 86_400.0


def item(
    name: str, state: str, day: int | None, *after: str, removed: bool = False
) -> job_pruning.PrunableJob:
    ended = None if day is None else f"1970-01-{day:02}T00:00:00Z"
    return job_pruning.of_item({
        "name": name, "state": state, "ended": ended, "removed": removed, "dependsOn": list(after)
    })  # fmt: skip


def test_only_what_ended_long_ago_leaves() -> None:
    items = [
        item("old", "Succeeded", 2),
        item("failed", "Failed", 3),
        item("new", "Succeeded", 9),
        item("running", "Running", None),
        item("gone", "Succeeded", 2, removed=True),
    ]
    assert job_pruning.choose(items, 5 * DAY) == job_pruning.Chosen(["failed", "old"], {})


def test_what_others_depend_on_stays() -> None:
    items = [
        item("first", "Succeeded", 2),
        item("second", "Succeeded", 3, "first"),
        item("third", "Pending", None, "second"),
        item("alone", "Succeeded", 2),
        item("after-alone", "Succeeded", 3, "alone"),
    ]
    chosen = job_pruning.choose(items, 5 * DAY)
    assert chosen.names == ["after-alone", "alone"]
    assert chosen.kept == {"first": "second", "second": "third"}


def test_what_has_left_the_repository_asks_for_nothing_there() -> None:
    items = [
        item("sweep", "Succeeded", 2),
        item("after", "Cancelled", 9, "sweep", removed=True),
        item("later", "Pending", None, "sweep", removed=True),
    ]
    assert job_pruning.choose(items, 5 * DAY) == job_pruning.Chosen(["sweep"], {})


def test_records_of_the_store_are_seen_as_the_api_shows_them() -> None:
    alive = samples.job("alive", state=JobState.RUNNING)
    done = msgspec.structs.replace(samples.job("done", state=JobState.SUCCEEDED), ended_at=DAY)
    spec = msgspec.structs.replace(done.spec, depends_on=(desired.Dependency("alive"),))
    done = msgspec.structs.replace(done, spec=spec)
    assert job_pruning.of_record(alive) == job_pruning.PrunableJob("alive", None, False, ())
    assert job_pruning.of_record(done) == item("done", "Succeeded", 2, "alive")


def test_names_that_are_not_there_and_circles_end() -> None:
    items = [
        item("a", "Cancelled", 2, "b", "nowhere"),
        item("b", "Cancelled", 2, "a"),
        item("c", "Pending", None, "a"),
    ]
    assert job_pruning.choose(items, 5 * DAY) == job_pruning.Chosen([], {"a": "c", "b": "a"})

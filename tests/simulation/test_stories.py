"""Some dozens of stories of faults; ``make simulate-faults`` tells many more."""

import random
from collections import Counter

import msgspec
import pytest

from tests.simulation import corners, invariants, shrinking, sizes, stories, telling, views

#: Where the seeds of these tests begin.
FIRST = 0
SEEDS = 60
PARTS = 12
#: Stories of images in which much happens: alone they have all that is looked for, and where they
#: no longer do, others are told until it has been seen.
RICH = (83, 31, 11)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_invariant_breaks(part: int) -> None:
    counts = telling.Told()
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        plan = stories.draw(seed)
        try:
            counts.add(telling.tell(plan))
        except telling.BrokenError as error:
            short = shrinking.shrink(plan, error.checker, tellings_max=40)
            pytest.fail(f"seed {seed}: {error}\n{shrinking.text(short)}")
    assert counts.crashes >= SEEDS // PARTS
    assert counts.cuts >= SEEDS // PARTS
    assert counts.starts > 10 * SEEDS // PARTS
    assert counts.replays > 5 * SEEDS // PARTS


def test_the_number_of_a_try_never_comes_again() -> None:
    """In this story an attempt was named like one that its node had had and forgotten."""
    telling.tell(stories.plain(stories.draw(85, sizes.LARGE)))


@pytest.mark.parametrize("seed", [137, 206])
def test_work_that_left_for_another_does_not_come_back_for_ever(seed: int) -> None:
    """In these stories it took the turn of what it had left for, which then had it leave again."""
    telling.tell(stories.plain(stories.draw(seed, sizes.LARGE)))


def test_what_was_held_and_released_is_judged_like_any_other() -> None:
    """In this story the verdict of a hold stayed with an element that had left by it already."""
    telling.tell(stories.draw(600_241))


@pytest.mark.parametrize("seed", range(20))
def test_every_story_has_a_crash_and_a_partition(seed: int) -> None:
    plan = stories.draw(seed)
    kinds = Counter(step.fault.kind if step.fault else step.what for step in plan.steps)
    assert kinds["crash-before-commit"] + kinds["crash-after-commit"] > 0
    assert kinds["cut"] > 0
    assert plan == stories.draw(seed)


def test_a_story_that_fails_is_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken checker stands for a broken scheduler: one step of many is to blame."""
    plan = stories.draw(1)
    (name,) = [step.subject for step in plan.steps if step.what == "submit"][:1]

    def blames(view: views.View) -> list[str]:
        return [f"{name} is there"] if name in view.job_records else []

    monkeypatch.setattr(invariants, "once", blames)
    error = shrinking.broken(plan)
    assert error is not None
    short = shrinking.shrink(plan, error.checker)
    assert [(step.what, step.subject) for step in short.steps] == [("submit", name)]
    assert (short.lose, short.duplicate, short.delay) == (0.0, 0.0, 0.0)
    assert f"submit {name}" in shrinking.text(short)


def test_transitions_are_counted() -> None:
    plan = msgspec.structs.replace(stories.draw(2), steps=())
    with telling.transitions() as taken:
        telling.tell(plan)
    counts = telling.by_table(taken)
    assert set(counts) == set(telling.TABLES)
    assert "Pending→Starting" not in telling.missing(
        "jobs and elements", counts["jobs and elements"]
    )
    assert "Ready→Gone" in telling.missing("nodes", counts["nodes"])


def test_images_on_the_way_lead_through_what_comes_before_a_start() -> None:
    wanted = {"Assigned→Ready", "Fetching→Ready", "Ready→Starting", "Ready→Fetching"}
    wanted |= {"Starting→Ready", "Starting→Fetching", "Unknown→Ready", "Unknown→Fetching"}
    with telling.transitions() as taken:
        for seed in (*RICH, *range(120)):
            plan = stories.draw(seed, sizes.LARGE)
            steps = tuple(corners.images_on_the_way(random.Random(seed), plan.nodes()))
            telling.tell(msgspec.structs.replace(plan, steps=steps, lose=0.0, pace_s=0.0))
            counts = telling.by_table(taken)["attempts"]
            missing = wanted - {name for name, count in counts.items() if count}
            if not missing:
                break
    assert not missing

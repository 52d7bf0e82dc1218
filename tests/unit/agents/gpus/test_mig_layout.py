"""From instances that are there to those that are wanted."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.gpus import mig_layout
from agents.gpus.mig_layout import GpuInstance, MemorySlices, MigProfile
from tests.nvml import standin


def profiles() -> dict[str, MigProfile]:
    """Those of the stand-in's H200."""
    places: dict[int, tuple[MemorySlices, ...]] = {}
    shapes: list[tuple[str, int, int]] = []
    for line in standin.MIG_PROFILES:
        key, *values = line.split()
        if key.startswith("mig-place:"):
            pairs = [word.split(":") for word in values]
            places[int(key.partition(":")[2])] = tuple(
                MemorySlices(int(a), int(b)) for a, b in pairs
            )
        else:
            shapes.append((values[4], int(values[0]), int(values[1])))
    return {name: MigProfile(name, id_, slices, places[id_]) for name, id_, slices in shapes}


H200 = profiles()


def at(id_: int, profile: str, start: int, **more: bool) -> GpuInstance:
    size = H200[profile].places[0].size
    return GpuInstance(id_, profile, MemorySlices(start, size), **more)


def made(steps: mig_layout.MigSteps) -> list[tuple[str, int]]:
    return sorted((profile.name, where.start) for profile, where in steps.create)


@pytest.mark.parametrize(
    ("wanted", "there", "destroyed", "created"),
    [
        ([("1g.18gb", 2)], [], [], [("1g.18gb", 0), ("1g.18gb", 1)]),
        ([("7g.141gb", 1)], [], [], [("7g.141gb", 0)]),
        ([("3g.71gb", 1), ("1g.18gb", 3)], [], [],
         [("1g.18gb", 4), ("1g.18gb", 5), ("1g.18gb", 6), ("3g.71gb", 0)]),
        # what fits stays where it is
        ([("1g.18gb", 2)], [at(1, "1g.18gb", 5)], [], [("1g.18gb", 0)]),
        ([("1g.18gb", 1)], [at(1, "1g.18gb", 5), at(2, "3g.71gb", 0)], [2], []),
        ([("3g.71gb", 1)], [at(1, "3g.71gb", 4, mine=False), at(2, "3g.71gb", 0)], [2], []),
        # unless it stands in the way
        ([("3g.71gb", 2)], [at(1, "3g.71gb", 4)], [], [("3g.71gb", 0)]),
        ([("4g.71gb", 1), ("1g.18gb", 1)], [at(1, "1g.18gb", 2)], [1],
         [("1g.18gb", 4), ("4g.71gb", 0)]),
        # one that is cut further is another one
        ([("3g.71gb", 1)], [at(1, "3g.71gb", 0, whole=False)], [1], [("3g.71gb", 0)]),
    ],
)  # fmt: skip
def test_the_least_is_changed(
    wanted: list[tuple[str, int]],
    there: list[GpuInstance],
    destroyed: list[int],
    created: list[tuple[str, int]],
) -> None:
    steps = mig_layout.plan(wanted, there, H200)
    assert [one.id for one in steps.destroy] == destroyed
    assert made(steps) == created


def test_an_instance_without_compute_gets_it() -> None:
    empty = at(1, "1g.18gb", 0, whole=False, empty=True)
    steps = mig_layout.plan([("1g.18gb", 1)], [empty], H200)
    assert (steps.destroy, steps.complete, steps.create) == ((), (empty,), ())


@pytest.mark.parametrize(
    ("wanted", "there", "blocked", "says"),
    [
        ([("1g.10gb", 1)], [], False, "has no profile 1g.10gb; it has: 1g.18gb"),
        ([("4g.71gb", 2)], [], False, "2 x 4g.71gb do not fit on the device together"),
        ([("3g.71gb", 2), ("1g.18gb", 1)], [], False, "do not fit"),
        (
            [("3g.71gb", 1)],
            [at(1, "1g.18gb", 0, mine=False)],
            True,
            "1 x 1g.18gb on it were created",
        ),
        ([("4g.71gb", 1), ("1g.18gb", 1)], [at(1, "1g.18gb", 2, mine=False)], True, "by others"),
    ],
)
def test_what_can_not_be_is_said(
    wanted: list[tuple[str, int]], there: list[GpuInstance], blocked: bool, says: str
) -> None:
    with pytest.raises(mig_layout.LayoutError, match=re.escape(says)) as caught:
        mig_layout.plan(wanted, there, H200)
    assert caught.value.blocked == blocked


def planned(
    wanted: mig_layout.Wanted, there: list[GpuInstance]
) -> tuple[mig_layout.MigSteps, mig_layout.LayoutError | None]:
    """The steps, or why there are none."""
    try:
        return mig_layout.plan(wanted, there, H200), None
    except mig_layout.LayoutError as problem:
        return mig_layout.MigSteps(), problem


LAYOUTS = st.lists(st.sampled_from(sorted(H200)), max_size=7)


@given(before=LAYOUTS, after=LAYOUTS, mine=st.booleans(), skip=st.integers(0, 3))
def test_steps_lead_to_the_layout_and_nothing_overlaps(
    before: list[str], after: list[str], mine: bool, skip: int
) -> None:
    first = mig_layout.place(before, H200, ()) or ()
    there = [
        GpuInstance(number, profile.name, where, mine=mine)
        for number, (profile, where) in enumerate(first[skip:])
    ]
    wanted = list(Counter(after).items())
    steps, problem = planned(wanted, there)
    if problem is not None:
        # either there is no room at all, or what others made would have to go
        assert problem.blocked or mig_layout.place(after, H200, ()) is None
        assert not (problem.blocked and mine)
        return
    assert mine or not steps.destroy
    left = [one for one in there if one not in steps.destroy]
    result = [*(one.profile for one in left), *(p.name for p, _ in steps.create)]
    assert Counter(result) == Counter(after)
    slices = [n for one in left for n in one.place.slices()]
    slices += [n for _, where in steps.create for n in where.slices()]
    assert len(slices) == len(set(slices))
    assert all(where in profile.places for profile, where in steps.create)

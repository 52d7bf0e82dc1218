"""How large stories are: most are small, some as large as a storm on a small cluster gets.

What breaks in the large mostly breaks in the small too, if the small is searched widely (the
hypothesis behind bounded model checking); and one large story costs as much time as four small
ones. So the seed draws the size first, by these shares. All sizes have the same kinds of steps,
of faults and of endings, and at least ``STEPS_MIN`` steps.
"""

import random

import msgspec

#: The fewest steps of a story; what people and faults have done by themselves is filled up to it.
STEPS_MIN = 100


class Size(msgspec.Struct, frozen=True):
    """Bounds of what is drawn; each tuple is chosen from, its members with equal chances.

    Attributes:
        share: out of the sum of all shares, how many stories are of this size.
        gpu_nodes, cpu_nodes: how many nodes the two pools have.
        hogs: how many jobs take what they get and never end.
        jobs: how many others are submitted.
        wide_max: the most tasks of a group and the most elements of an array.
        grids_s: what moments of steps are rounded down to, so that those of one moment are decided
            together as the changes of one commit are; 0: each has a moment of its own.
    """

    name: str
    share: int
    gpu_nodes: tuple[int, ...]
    cpu_nodes: tuple[int, ...]
    hogs: tuple[int, ...]
    jobs: tuple[int, ...]
    wide_max: int
    grids_s: tuple[float, ...]


SMALL = Size(
    "small",
    share=87,
    gpu_nodes=(1, 1, 2),
    cpu_nodes=(1,),
    hogs=(2, 3),
    jobs=(6, 8, 10),
    wide_max=2,
    grids_s=(0.0, 15.0, 15.0, 30.0),
)
MIDDLE = Size(
    "middle",
    share=10,
    gpu_nodes=(1, 2),
    cpu_nodes=(1, 2),
    hogs=(2, 3),
    jobs=(12, 16),
    wide_max=3,
    grids_s=(0.0, 5.0),
)
LARGE = Size(
    "large",
    share=3,
    gpu_nodes=(1, 2, 3),
    cpu_nodes=(1, 2),
    hogs=(2, 4, 6),
    jobs=(18, 26, 34),
    wide_max=4,
    grids_s=(0.0,),
)
SIZES = (SMALL, MIDDLE, LARGE)


def of(seed: int) -> Size:
    """The size of a seed's story."""
    chance = random.Random(f"{seed} size")
    return chance.choices(SIZES, [size.share for size in SIZES])[0]

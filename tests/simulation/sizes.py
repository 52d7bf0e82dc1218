"""Sizes of stories: most are small, some as large as a storm on a small cluster.

What breaks in a large story mostly breaks in a small one, if many are tried (the small scope
hypothesis), and a large one costs as much as four small ones. All sizes have the same kinds of
steps, faults and endings, and at least ``STEPS_MIN`` steps.
"""

import random

import msgspec

#: The fewest steps of a story; what people and faults have done by themselves is filled up to it.
STEPS_MIN = 100


class Size(msgspec.Struct, frozen=True):
    """Bounds of what is drawn. Members of each tuple have equal chances.

    Attributes:
        share: of all stories, relative to the sum of all shares.
        gpu_nodes: number of nodes of the GPU pool.
        cpu_nodes: number of nodes of the CPU pool.
        hogs: number of jobs that take what they get and never end.
        jobs: number of other jobs.
        wide_max: the most tasks of a group and elements of an array.
        grids_s: to what moments of steps are rounded down, so that one cycle sees several of them,
            as
            in one commit; 0: each has its own moment.
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
    """Return the size of a seed's story."""
    chance = random.Random(f"{seed} size")
    return chance.choices(SIZES, [size.share for size in SIZES])[0]

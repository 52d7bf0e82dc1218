"""How nodes drop out, and why nodes were chosen, in words."""

from typing import Any

import numpy as np
import pytest

from reconciler.model.state.pending_reasons import FunnelStep
from reconciler.scheduling.inputs.snapshots import AffinityTerm, TaskGroupShape
from tests.unit.scheduling.rooms import GIB, Node, group, mix, room, shape

IDLE = 1000


def told(steps: tuple[FunnelStep, ...]) -> str:
    """The steps as a reader sees them."""
    return ", ".join(f"{step.count} {step.why}" for step in steps)


THERE = [
    Node(cpu=4, devices=(IDLE,) * 4, path=(0,)),
    Node(cpu=64, devices=(IDLE, 0, 500, -1), path=(0,)),
    Node(cpu=64, devices=(IDLE, IDLE), path=(1,), shareable=False),
    Node(devices=(IDLE,) * 8, accepts=False, path=(1,)),
    Node(devices=(), cpu=2, path=(-1,), device_memory=0),
    Node(devices=(IDLE,) * 8, exclusive=True, occupied=1, path=(2,)),
]
ASIDE = "1 not accepting work, 1 taken exclusively by other work, "


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            group(4, cpu=8),
            "3 lack GPUs (4 asked, at most 2 free), 1 lack CPUs (8 asked, at most 4 free)",
        ),
        (
            group(1, 7, cpu=1),
            "1 lack GPUs (1 asked, at most 0 free), 3 have room for 7 of 7 tasks",
        ),
        (
            group(1, 9, cpu=1),
            "1 lack GPUs (1 asked, at most 0 free), 3 have room for 7 of 9 tasks",
        ),
        (
            group(1, 5, cpu=1, required_level=0),
            "1 in no rack, 3 have room for 5 of 5 tasks, at most 5 in one rack",
        ),
        (
            group(1, 6, cpu=1, required_level=0),
            "1 in no rack, 3 have room for 6 of 6 tasks, at most 5 in one rack",
        ),
        (
            group(2, share=600, cpu=1),
            (
                "1 do not share GPUs, "
                "2 lack room on 2 GPUs each (0.6 asked, at most 0.5 free), "
                "1 has room for 1 of 1 tasks"
            ),
        ),
        (
            group(1, share_bytes=81 * GIB),
            (
                "3 have GPUs with less than 81Gi of memory, "
                "1 lack room on one GPU (81Gi of memory asked, at most 0 free)"
            ),
        ),
        (
            group(1, profile=0),
            "4 lack 1g.10gb instances (1 asked, at most 0 free)",
        ),
    ],
)
def test_funnel(asked: TaskGroupShape, expected: str) -> None:
    """Counted, with what is asked and the most that there is."""
    there = list(THERE)
    for node in there:
        node.instances = (0,)
    space = room(there, shape(asked, nodes=len(there)), levels=("rack",), profiles=("1g.10gb",))

    assert told(space.funnel(0)) == ASIDE + expected


def test_funnel_of_filters_affinity_and_exclusive() -> None:
    """What the shape left out comes first, as it was counted."""
    there = [Node(), Node(), Node(occupied=1), Node()]
    asked = shape(
        group(1),
        nodes=4,
        eligible=[1, 2, 3],
        filtered=(FunnelStep(1, "not in pool a100"),),
        exclusive=True,
        affinities=(AffinityTerm(0, apart=True),),
    )
    present = np.array([[0, 0, 0, 1]], dtype=np.int64)
    space = room(there, asked, presence=present)

    assert told(space.funnel(0)) == (
        "1 not in pool a100, 1 in use (whole nodes asked), "
        "1 ruled out by affinity to other jobs, 1 has room for 1 of 1 tasks"
    )


@pytest.mark.parametrize(
    ("asked", "more", "expected"),
    [
        (group(1), {}, "the tightest fit"),
        (group(1), {"strategy": "pack"}, "the fullest with room"),
        (group(1, 2), {"strategy": "spread"}, "the emptiest with room"),
        (group(8, 2), {}, "as few nodes as can be (2), then the tightest fit"),
        (
            group(8, 2),
            {"required_level": 0},
            (
                "all in one rack, the smallest room that fits, "
                "then as few nodes as can be (2), then the tightest fit"
            ),
        ),
        (
            group(8, 4),
            {"preferred_level": 0},
            (
                "no single rack had room, so as few of them as can be, "
                "then as few nodes as can be (4), then the tightest fit"
            ),
        ),
        (
            group(1),
            {"scores": np.array([0.0, 1.0, 0.0, 0.0])},
            "preferred nodes first, then the tightest fit",
        ),
    ],
)
def test_why(asked: TaskGroupShape, more: dict[str, Any], expected: str) -> None:
    """In the order in which the choice was made."""
    there = [Node(path=(at // 2,)) for at in range(4)]
    space = room(there, shape(asked, nodes=4, **more), levels=("rack",))
    plan = space.plan(0)

    assert plan is not None
    assert space.why(0, plan) == expected


def test_why_with_a_mix() -> None:
    """Told as what it is."""
    space = room([Node()], shape(group(1), nodes=1), mix=mix(group(4), nodes=1))
    plan = space.plan(0)

    assert plan is not None
    assert space.why(0, plan) == "leaves the most usable room"

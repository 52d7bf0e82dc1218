"""Every scripted situation is seen by the agent as it should be."""

from collections.abc import Sequence
from typing import Any

import pytest

from agents.gpus import gpu_watcher
from tests.integration.nvml.conftest import Scene
from tests.nvml import situations


def at(look: gpu_watcher.GpuLook, path: str) -> Any:
    """A value by its path; None behind the end of a list."""
    value: Any = look
    for step in path.split("."):
        if step.isdigit():
            value = value[int(step)] if int(step) < len(value) else None
        elif step == "nvlinks_sum":
            value = sum(peer.links for peer in value.nvlinks)
        else:
            value = getattr(value, step)
    return value


@pytest.mark.parametrize("row", situations.ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_each_situation_is_seen_as_it_is(row: situations.Row, scene: Scene) -> None:
    watch = scene.watch(old=row.old, **row.settings)
    for lines in row.looks:
        scene.say(lines)
        look = watch.look({})
    for path, expected in row.sees.items():
        value = at(look, path.rstrip("~!"))
        if path.endswith("~"):
            assert expected in value, path
        elif path.endswith("!"):
            assert value != expected, path
        else:
            assert value == expected, path


def names(rows: Sequence[situations.Row]) -> set[str]:
    return {row.name for row in rows}


def test_there_are_fifty_situations_of_different_names() -> None:
    assert len(names(situations.ROWS)) == len(situations.ROWS) >= 50

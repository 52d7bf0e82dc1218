"""Which checkpoint is the newest whole one: situations, and what is passed over in each."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.job_data import checkpoints, metrics
from agents.tasks.node_context import NodeContext
from reconciler.model.observed.task_reports import CheckpointRule, Saved
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from reconciler.model.state.records import RankPlacement
from tests import ordering

NOW = 1_000_000.0
Lay = Callable[..., Path]


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    def made(name: str, age_s: float = 600, text: str = "weights") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (NOW - age_s, NOW - age_s))
        for folder in path.parents:
            if folder == tmp_path:
                break
            os.utime(folder, (NOW - age_s, NOW - age_s))
        return path

    return made


def found(folder: Path, rule: CheckpointRule, told: str = "", element: int = 0) -> str | None:
    search = checkpoints.CheckpointSearch(str(folder), "", rule, element)
    saved = checkpoints.newest(search, now=NOW, told=told)
    return None if saved is None else saved.path


def test_the_newest_file_that_has_settled(tmp_path: Path, lay: Lay) -> None:
    lay("step-100.pt", 900)
    lay("step-200.pt", 300)
    lay("step-300.pt", 10)  # still being written
    lay("other.txt", 60)
    search = checkpoints.CheckpointSearch(str(tmp_path), "", CheckpointRule("step-*.pt"))
    saved = checkpoints.newest(search, now=NOW)
    assert saved == Saved("step-200.pt", NOW - 300, 200.0, 7)
    assert found(tmp_path, CheckpointRule("step-*.pt", settle_s=5)) == "step-300.pt"
    assert found(tmp_path, CheckpointRule("nothing-*")) is None
    assert found(tmp_path / "missing", CheckpointRule("*")) is None


@pytest.mark.parametrize("name", ["step-9.part", "step-9.tmp", "step-9.bad", "step-9.complete"])
def test_what_stands_beside_checkpoints_is_none(tmp_path: Path, lay: Lay, name: str) -> None:
    lay("step-1")
    lay(name, 60)
    assert found(tmp_path, CheckpointRule("step-*")) == "step-1"


def test_empty_ones_links_and_rejected_ones_are_passed_over(tmp_path: Path, lay: Lay) -> None:
    lay("step-1", 900)
    lay("step-2", 800, text="")
    (tmp_path / "step-3").symlink_to("step-1")
    lay("step-4", 700)
    lay("step-4.bad", 60, text="")
    (tmp_path / "step-5").mkdir()
    assert found(tmp_path, CheckpointRule("step-*")) == "step-1"
    assert found(tmp_path, CheckpointRule("step-*"), told="step-4") == "step-1"
    assert found(tmp_path, CheckpointRule("step-*"), told="step-3") == "step-1"


def test_a_marker_makes_one_whole(tmp_path: Path, lay: Lay) -> None:
    lay("a-1/weights", 900)
    lay("a-1/.metadata", 900, text="")
    lay("a-2/weights", 800)
    lay("b-3.pt", 5)
    lay("b-3.pt.done", 5, text="")
    assert found(tmp_path, CheckpointRule("a-*", marker=".metadata")) == "a-1"
    assert found(tmp_path, CheckpointRule("b-*.pt", marker=".done")) == "b-3.pt"
    assert found(tmp_path, CheckpointRule("a-*", marker=".other")) is None


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ({"bytes": 7, "step": 12}, "c-1"),
        ({"bytes": 6}, None),
        ({"bytes": "many"}, "c-1"),
        ([], "c-1"),
    ],
)
def test_a_marker_that_names_bytes_is_held_to_them(
    tmp_path: Path, lay: Lay, marker: object, expected: str | None
) -> None:
    lay("c-1", 1)
    lay("c-1.complete", 1, text=json.dumps(marker))
    assert found(tmp_path, CheckpointRule("c-*")) == expected


@pytest.mark.parametrize(
    ("marker", "expected"),
    [({"bytes": 7}, "c-1"), ({"bytes": 600}, None), ({"bytes": 6}, None), ({}, "c-1"), ([], "c-1")],
)
def test_so_is_one_in_the_folder_that_it_marks(
    tmp_path: Path, lay: Lay, marker: object, expected: str | None
) -> None:
    """Its own bytes are not among those that it names; who counted them as well is right, too."""
    lay("c-1/weights", 1)
    lay("c-1/DONE", 1, text=json.dumps(marker))
    assert found(tmp_path, CheckpointRule("c-*", marker="DONE")) == expected
    lay("d-1/weights", 1)
    lay("d-1/DONE", 1, text='{"bytes": 20}')
    assert found(tmp_path, CheckpointRule("d-*", marker="DONE")) == "d-1"


def test_elements_of_an_array_have_their_own(tmp_path: Path, lay: Lay) -> None:
    lay("3/step-1", 900)
    lay("4/step-2", 800)
    rule = CheckpointRule("{element}/step-*")
    assert found(tmp_path, rule, element=3) == "3/step-1"
    assert found(tmp_path, rule, element=4) == "4/step-2"
    assert found(tmp_path, rule, element=5) is None


@pytest.mark.parametrize("told", ["../x", "/etc/passwd", "a//b", "", "gone", "up/step-1"])
def test_a_name_that_leads_astray_is_no_checkpoint(tmp_path: Path, lay: Lay, told: str) -> None:
    lay("../outside/step-1")
    (tmp_path / "up").symlink_to(tmp_path.parent / "outside")
    assert found(tmp_path, CheckpointRule(), told=told) is None


def test_a_look_is_bounded(tmp_path: Path, lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        lay(f"step-1/part-{number}")
    assert found(tmp_path, CheckpointRule("step-*")) == "step-1"
    monkeypatch.setattr(checkpoints, "NAMES_MAX", 10)
    assert found(tmp_path, CheckpointRule("step-*")) is None


def test_one_task_of_a_gang_looks() -> None:
    template = TaskTemplate("j", 1, "g", checkpoint_path="c", saves=CheckpointRule("*"))
    for rank, index, looks in (
        (RankPlacement(), 0, True),
        (RankPlacement(), 1, False),
        (RankPlacement(rank=0, world_size=4), 3, True),
        (RankPlacement(rank=1, world_size=4), 0, False),
    ):
        assignment = Assignment("a", "t", "b", index=index, rank=rank)
        chosen = checkpoints.watched(assignment, template, "/shared", as_root=False)
        assert (chosen is not None) is looks


@pytest.mark.parametrize("name", [b"step-\xff", b"step-9\n", b"step-9\x1b[2J"])
def test_a_name_that_can_not_be_written_everywhere_is_passed_over(
    tmp_path: Path, lay: Lay, name: bytes
) -> None:
    lay("step-1", 900)
    lay(os.fsdecode(name), 300)
    assert found(tmp_path, CheckpointRule("step-*")) == "step-1"
    assert found(tmp_path, CheckpointRule("step-*"), told=os.fsdecode(name)) == "step-1"


@pytest.mark.parametrize("marker", ["shadow", "../shadow", "/etc/passwd", "a/shadow"])
def test_no_link_on_the_way_is_followed(tmp_path: Path, lay: Lay, marker: str) -> None:
    """A user who owns a folder on the way may exchange the next one for a link."""
    lay("secret/shadow", 900, text='{"step": 42}')
    shared = tmp_path / "shared"
    (shared / "a").mkdir(parents=True)
    (shared / "a" / "b").symlink_to(tmp_path)
    for rule in (CheckpointRule("secret", marker=marker), CheckpointRule("secret")):
        for below, told in (("a/b", ""), ("a", "b/secret"), ("a/../..", "")):
            search = checkpoints.CheckpointSearch(str(shared), below, rule)
            assert checkpoints.newest(search, now=NOW, told=told) is None


def test_a_marker_that_is_no_plain_file_is_none(tmp_path: Path, lay: Lay) -> None:
    lay("other", text='{"step": 42}')
    for number in range(3):
        lay(f"c-{number}/weights")
    os.mkfifo(tmp_path / "c-0" / ".done")
    (tmp_path / "c-1" / ".done").mkdir()
    (tmp_path / "c-2" / ".done").symlink_to("../other")
    assert found(tmp_path, CheckpointRule("c-*", marker=".done")) is None


def test_an_old_large_one_hides_no_newer(
    tmp_path: Path, lay: Lay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        for part in range(30 if number % 2 else 2):
            lay(f"step-{number}/part-{part}", 1000 - number)
    monkeypatch.setattr(checkpoints, "NAMES_MAX", 20)
    assert found(tmp_path, CheckpointRule("step-*")) == "step-4"


SCRIPT = """
import muster, os
folder = os.environ["MUSTER_CHECKPOINT_DIR"]
print(muster.latest_checkpoint())
assert muster.log(step=1, loss=0.5, who="me")
for number in (1, 2):
    os.makedirs(os.path.join(folder, "ck-%d" % number))
    with open(os.path.join(folder, "ck-%d" % number, "w"), "w") as stream:
        stream.write("x" * 10 * number)
    assert muster.checkpoint("ck-%d" % number, step=number)
"""


def test_the_module_tells_and_the_next_attempt_is_told(tmp_path: Path) -> None:
    """The task's module, the listener and the order of the next attempt agree."""
    root, shared = tmp_path / "root", tmp_path / "shared"
    (root / "attempts" / "a.1").mkdir(parents=True)
    (root / "logs").mkdir()
    metrics.install(root)
    template = TaskTemplate(
        "j", 1, "g", command=("true",), checkpoint_path="c", saves=CheckpointRule()
    )
    shared.mkdir()
    place = NodeContext("n", str(root), str(shared))
    first = ordering.order_for(Assignment("a.1", "t", "b"), template, place)
    assert "MUSTER_CHECKPOINT" not in first["env"]
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=first["env"], check=True, capture_output=True, text=True)
    assert done.stdout == "None\n"
    listener = metrics.MetricsReader(root)
    listener.look(["a.1"])
    words = listener._words["a.1"]
    assert words.newest["loss"].value == 0.5
    assert "'who': found 'me'" in words.problem
    assert words.checkpoint is not None
    said = words.checkpoint.path
    assert (said, words.checkpoint.step) == ("ck-2", 2.0)
    again = ordering.order_for(Assignment("a.2", "t", "b", saved=said), template, place)
    assert again["env"]["MUSTER_CHECKPOINT"] == f"{shared}/c/ck-2"
    assert again["env"]["MUSTER_CHECKPOINT_STEP"] == "2"
    # cut short since: it is passed over, and the earlier one taken where a pattern finds it
    (shared / "c" / "ck-2" / "w").write_text("x")
    by_name = TaskTemplate(
        "j", 1, "g", command=("true",), checkpoint_path="c", saves=CheckpointRule("ck-?")
    )
    last = ordering.order_for(Assignment("a.3", "t", "b", saved=said), by_name, place)
    assert last["env"]["MUSTER_CHECKPOINT"] == f"{shared}/c/ck-1"

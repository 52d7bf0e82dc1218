"""The folder that all nodes share is away when an agent begins: its node works on without it."""

import os
import re
import threading
from pathlib import Path

import pytest

from agents.node import shared_folder
from reconciler.model.state.records import Inventory
from tests.integration import hanging
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount here")


def notice_of(controller: Controller) -> str | None:
    found: Inventory | None = controller.inventory
    return None if found is None else found.notice


def told_shared(node: Node, controller: Controller, name: str) -> str:
    """The shared folder that a task is told of."""
    controller.assign(name, "sh", "-c", 'echo "$MUSTER_SHARED_DIR"')
    assert controller.ended(name).exit_code == 0
    return (node.root / f"logs/{name}.stdout").read_text().strip()


@needs_root
@pytest.mark.parametrize("swallow", [False, True], ids=["a kill ends it", "nothing ends it"])
def test_one_that_hangs_keeps_no_agent_from_its_tasks(
    node: Node, controller: Controller, tmp_path: Path, *, swallow: bool
) -> None:
    go = tmp_path / "go"
    node.start()
    controller.assign("a.1", "sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done; exit 7")
    controller.running("a.1")
    node.kill_agent()
    link = tmp_path / "link"
    with hanging.mounted(tmp_path / "away", swallow=swallow) as away:
        link.symlink_to(away.place / "shared")
        controller.inventory, controller.want_inventory = None, True
        node.start("--shared", str(link))
        assert away.asked.wait(60)
        go.touch()
        assert controller.ended("a.1").exit_code == 7
        controller.wait(lambda: bool(notice_of(controller)), "word of it")
        told = notice_of(controller)
        assert told is not None
        assert re.match(rf"shared folder {link} did not answer within 10 s; .* ls ", told)
        assert told_shared(node, controller, "b.1") == str(link)
        away.answer()
        controller.wait(lambda: notice_of(controller) == "", "word that it is there")
        assert told_shared(node, controller, "c.1") == str(away.place / "shared")
        node.kill_agent()


@needs_root
def test_one_whose_server_is_gone_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "AGAIN_S", 0.05)
    leaving, came = threading.Event(), threading.Event()
    found: list[str] = []

    def later(path: str) -> None:
        found.append(path)
        came.set()

    with hanging.mounted(tmp_path / "away") as away:
        away.die()
        ours = shared_folder.SharedFolder(away.place / "shared", leaving)
        assert ours.find() == str(away.place / "shared")
        assert "is away: Transport endpoint is not connected" in ours.problem
        ours.on_resolved(later)
    assert came.wait(60), "what lies below the mount is there now"
    assert found == [str(tmp_path / "away/shared")]


def test_one_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ours = shared_folder.SharedFolder(tmp_path / "file/shared", threading.Event())
    with pytest.raises(NotADirectoryError):
        ours.find()


def test_one_that_is_there_is_told_without_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real").mkdir()
    ours = shared_folder.SharedFolder(tmp_path / "link/shared", threading.Event())
    assert ours.find() == str(tmp_path / "real/shared")
    assert not ours.problem
    found: list[str] = []
    ours.on_resolved(found.append)
    assert found == [str(tmp_path / "real/shared")]


def test_an_agent_that_is_told_to_leave_as_it_begins_does_not_wait_for_it(tmp_path: Path) -> None:
    leaving = threading.Event()
    leaving.set()
    ours = shared_folder.SharedFolder(tmp_path / "shared", leaving)
    ours.find(0.5)
    assert ours.problem == ""


@needs_root
def test_who_leaves_waits_for_none_that_hangs(tmp_path: Path) -> None:
    leaving = threading.Event()
    with hanging.mounted(tmp_path / "away") as away:
        ours = shared_folder.SharedFolder(away.place / "shared", leaving)
        waits = threading.Thread(target=ours.find, args=(3600.0,), daemon=True)
        waits.start()
        assert away.asked.wait(60)
        leaving.set()
        waits.join(60)
        left = not waits.is_alive()
        away.answer()
    assert left

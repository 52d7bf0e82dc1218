"""What a user leaves on a node, or does to what is being deleted, costs nobody else anything."""

import os
import pwd
import shutil
from pathlib import Path

import pytest

from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import AttemptState
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")

ADA, BOB = "games", "news"
#: Two of them and another program find each other here.
SITE = "/tmp/site"
#: Keeps the folder of another task, and makes folders there for ever.
FLOODS = """\
#!/usr/bin/python3
import os, time
while not os.path.exists("{site}/folder"):
    time.sleep(0.05)
os.chdir(open("{site}/folder").read().strip())
open("{site}/held", "w").close()
os.fork(), os.fork()
count = 0
while True:
    try:
        os.mkdir(f"{{os.getpid()}}-{{count}}")
    except OSError:
        time.sleep(0.001)
    count += 1
"""
HELD = """\
touch here; pwd > {site}/name; mv {site}/name {site}/folder
while [ ! -e {site}/held ]; do sleep 0.05; done
sleep 0.5
"""
WRITES = "while :; do head -c 50000 /dev/zero; sleep 0.1; done"


def template(user: str, script: str) -> TaskTemplate:
    return TaskTemplate("job", 1, "g", script=script, user=user, grace_s=20)


@pytest.fixture
def site(everybodys: Node, tmp_path: Path) -> Path:
    """A folder of everybody's."""
    folder = Path(os.path.realpath(tmp_path)) / "site"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def test_a_user_who_adds_to_what_is_deleted_keeps_nothing_else_waiting(
    everybodys: Node, controller: Controller, site: Path
) -> None:
    controller.acknowledge = True
    everybodys.start("--log-limit", "100Ki")
    controller.assign("flood.1", template=template(ADA, FLOODS.format(site=site)))
    controller.assign("held.1", template=template(ADA, HELD.format(site=site)))
    controller.running("flood.1")
    controller.ended("held.1")
    trash = everybodys.root / "trash"
    attempts = everybodys.root / "attempts"
    controller.wait(lambda: not (attempts / "held.1").exists(), "the folder's way to the trash")
    controller.assign("writes.1", template=template(BOB, WRITES))
    kept = everybodys.root / "logs" / "writes.1.stdout.1"
    controller.wait(kept.exists, "the rotation of another user's log")
    controller.assign("other.1", template=template(BOB, "touch here"))
    controller.ended("other.1")
    controller.wait(lambda: not list(trash.iterdir()), "an empty trash")
    assert controller.seen["flood.1"].state is AttemptState.RUNNING


def test_what_a_user_has_moved_to_a_task_is_not_deleted_for_its_user(
    everybodys: Node, controller: Controller
) -> None:
    """Whoever may write to a folder may move another one in it, but not delete that one's files."""
    controller.acknowledge = True
    everybodys.start()
    theirs = everybodys.root / "common" / "theirs"
    (theirs / "private").mkdir(parents=True)
    (theirs / "private" / "thesis").write_text("of Bob")
    for path in (theirs, theirs / "private", theirs / "private" / "thesis"):
        shutil.chown(path, BOB)
    for path in (theirs.parent, theirs):
        path.chmod(0o777)
    controller.assign("thief.1", template=template(ADA, f"touch own; mv {theirs} moved"))
    assert controller.ended("thief.1").exit_code == 0
    uid = pwd.getpwnam(ADA).pw_uid
    kept = everybodys.root / "trash" / f"thief.1@{uid}.kept"
    controller.wait(kept.exists, "the place of what is left")
    left = [path for path in kept.rglob("*") if not path.is_dir()]
    assert [path.name for path in left] == ["thesis"]
    assert left[0].read_text() == "of Bob"
    controller.wait(
        lambda: (
            controller.inventory is not None
            and "1 folder in the trash can't be deleted" in controller.inventory.notice
        ),
        "the node's notice",
    )

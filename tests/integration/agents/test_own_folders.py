"""What the agent does as root below the shared folder, it does as the user of the job.

Each promise stands beside an attempt of a second user to break it, with a real agent.
"""

import os
import pwd
import shutil
from pathlib import Path

import pytest

from agents.job_data import checkpoints
from reconciler.model.observed.task_reports import CheckpointRule
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.records import AttemptReport
from reconciler.model.state.states import EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")

ADA, BOB = "games", "news"
SHOW = 'echo "${MUSTER_CHECKPOINT-none} $MUSTER_CHECKPOINT_DIR"\n'
STEPS = CheckpointRule("step-*", settle_s=0)


class Site:
    """A node that all users can reach, and what jobs of two users do there."""

    def __init__(self, node: Node, controller: Controller) -> None:
        for folder in [node.root, *node.root.parents]:
            if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
                folder.chmod(0o755)
        self.node = node
        self.controller = controller
        self.shared = node.root / "shared"
        controller.boot_id()
        controller.wait(self.shared.exists, "the shared folder")
        self.shared.chmod(0o755)

    def run(
        self, name: str, user: str, path: str, script: str, rule: CheckpointRule = STEPS
    ) -> tuple[AttemptReport, list[str]]:
        """Run a script of a user. Return how it ended, and the words that it wrote."""
        template = TaskTemplate(
            f"job-{name}", 1, "g", script=script, user=user, checkpoint_path=path, saves=rule
        )
        self.controller.assign(name, template=template)
        report = self.controller.ended(name)
        output = self.node.root / f"logs/{name}.stdout"
        return report, output.read_text().split() if output.exists() else []

    def lay(self, path: str, owner: str, *, mode: int = 0o700, text: str | None = None) -> Path:
        """Create a folder, or a file if it has a text, below the shared folder."""
        made = self.shared / path
        made.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if text is None:
            made.mkdir()
            made.chmod(mode)
        else:
            made.write_text(text)
        shutil.chown(made, owner)
        return made


@pytest.fixture
def site(agent: Node, controller: Controller) -> Site:
    return Site(agent, controller)


def test_a_checkpoint_that_another_user_plants_is_not_loaded(site: Site) -> None:
    saves = "mkdir $MUSTER_CHECKPOINT_DIR/step-10; echo good > $MUSTER_CHECKPOINT_DIR/step-10/w"
    assert site.run("a.1", ADA, "ckpt/ada", saves)[0].exit_code == 0
    plants = "echo evil > $MUSTER_CHECKPOINT_DIR/w && echo planted"
    _, planted = site.run("b.1", BOB, "ckpt/ada/step-999999", plants)
    assert planted == ["planted"]  # in a folder of his own
    report, words = site.run("a.2", ADA, "ckpt/ada", f"{SHOW} cat $MUSTER_CHECKPOINT/w")
    folder = site.shared / ADA / "ckpt/ada"
    assert report.exit_code == 0
    assert words == [f"{folder}/step-10", str(folder), "good"]


def test_what_is_made_is_its_users_alone(site: Site) -> None:
    assert site.run("a.1", ADA, "c/d", "true")[0].exit_code == 0
    assert [path.name for path in site.shared.iterdir()] == [ADA]
    uid = pwd.getpwnam(ADA).pw_uid
    for below in ("", "c", "c/d"):
        found = (site.shared / ADA / below).stat()
        assert (found.st_uid, found.st_mode & 0o7777) == (uid, 0o700), below


def test_names_in_a_private_folder_are_not_told(site: Site) -> None:
    site.lay("ckpt/private", ADA)
    site.lay("ckpt/private/name-that-tells-7", ADA, text="weights")
    _, words = site.run("b.1", BOB, "ckpt/private", SHOW, CheckpointRule("*", settle_s=0))
    assert words == ["none", str(site.shared / BOB / "ckpt/private")]


def test_a_folder_of_an_earlier_agent_goes_on_being_used(site: Site) -> None:
    site.lay("ckpt/old", ADA, mode=0o755)
    site.lay("ckpt/old/step-3", ADA, text="weights")
    _, words = site.run("a.1", ADA, "ckpt/old", SHOW)
    assert words == [f"{site.shared}/ckpt/old/step-3", f"{site.shared}/ckpt/old"]


def test_an_earlier_folder_with_something_of_another_user_is_refused(site: Site) -> None:
    site.lay("ckpt/old", ADA, mode=0o777)
    site.lay("ckpt/old/step-9", BOB, text="evil")
    report, _ = site.run("a.1", ADA, "ckpt/old", SHOW)
    assert report.end_reason is EndReason.START_FAILED
    assert f"ckpt/old/step-9 belongs to uid {pwd.getpwnam(BOB).pw_uid}, not to {ADA}" in (
        report.message
    )
    assert "To fix:" in report.message


@pytest.mark.parametrize("what", ["", "c", "c/d"])
def test_a_folder_of_another_user_is_refused(site: Site, what: str) -> None:
    if what:
        site.lay(ADA, ADA)
    site.lay(f"{ADA}/{what}", BOB, mode=0o777)
    report, _ = site.run("a.1", ADA, "c/d", SHOW)
    assert report.end_reason is EndReason.START_FAILED
    assert "belongs to uid" in report.message


def test_a_part_of_another_user_makes_a_checkpoint_none(site: Site) -> None:
    for path in ("", "c", "c/step-1", "c/step-2"):
        site.lay(f"{ADA}/{path}", ADA, mode=0o777)
    site.lay(f"{ADA}/c/step-1/w", ADA, text="good")
    site.lay(f"{ADA}/c/step-2/w", BOB, text="evil")
    site.lay(f"{ADA}/c/step-3", BOB, text="evil")
    _, words = site.run("a.1", ADA, "c", SHOW)
    assert words == [f"{site.shared}/{ADA}/c/step-1", f"{site.shared}/{ADA}/c"]


def test_a_user_may_create_the_folder_where_root_may_not_vouch_for_it(site: Site) -> None:
    """In a folder where all may write, whoever made one has it: nobody's is given away."""
    site.shared.chmod(0o1777)
    assert site.run("a.1", ADA, "c", "true")[0].exit_code == 0
    assert (site.shared / ADA).stat().st_uid == pwd.getpwnam(ADA).pw_uid


def test_a_running_task_reports_its_own_checkpoints_alone(site: Site) -> None:
    site.lay("ckpt/private", ADA)
    site.lay("ckpt/private/step-1", ADA, text="weights")

    def seen_by(user: str) -> str:
        watcher = checkpoints.CheckpointWatcher()
        shared = str(site.shared)
        watcher.look([checkpoints.Watched("x", shared, "ckpt/private", STEPS, 0, user)])
        return watcher._found["x"].path if watcher._found else ""

    assert (seen_by(ADA), seen_by(BOB)) == ("step-1", "")

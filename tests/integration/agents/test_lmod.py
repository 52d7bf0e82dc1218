"""Modules of a job on a node that has Lmod: the real one, beside the machine's own modules."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import EndReason
from tests import packages
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

#: Where the package has its files, which they name themselves.
PLACES = ("/usr/share/lmod", "/usr/lib/lmod", "/etc/lmod")
#: A node sees its own profile, as if Lmod were installed there.
AROUND = 'mount --bind "$0" /etc/profile && exec "$@"'


class LmodNode(Node):
    """A node whose login shells have Lmod, in a mount namespace of its own."""

    profile = Path()

    def command(self, *arguments: str) -> list[str]:
        """The command line of an agent of this node."""
        around = ["unshare", "--mount", "sh", "-c", AROUND, str(self.profile)]
        return [*around, *super().command(*arguments)]


def installed(to: Path) -> Path:
    """Copy the unpacked package, and have its files name where they are. Return its profile."""
    shutil.copytree(packages.UNPACKED / packages.LMOD, to, symlinks=True)
    for path in to.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        for place in PLACES:
            content = content.replace(place.encode(), f"{to}{place}".encode())
        if path.suffix != ".1" and b"\0" not in content:
            path.write_bytes(content)
    return to / "etc/profile.d/lmod.sh"


@pytest.fixture
def lmod(tmp_path: Path, controller: Controller) -> Iterator[LmodNode]:
    """A node with Lmod."""
    if not (packages.UNPACKED / packages.LMOD).is_dir() or shutil.which("lua5.3") is None:
        pytest.skip("Lmod is not unpacked here, or Lua is missing: make packages")
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    folder = Path(os.path.realpath(tmp_path))
    modules = folder / "modulefiles"
    modules.mkdir()
    (modules / "tool.lua").write_text(
        f'setenv("TOOL_HOME", "{folder}")\nprepend_path("PATH", "{folder}/bin")\n'
    )
    made = LmodNode(folder / "root", controller)
    made.profile = folder / "profile"
    made.profile.write_text(f". {installed(folder / 'lmod')}\nmodule use {modules}\n")
    made.start()
    yield made
    made.tear_down()


def with_modules(*names: str) -> TaskTemplate:
    return TaskTemplate("job", 1, "g", command=("tool",), modules=names)


def test_a_job_gets_the_modules_that_it_names(
    lmod: LmodNode, controller: Controller, tmp_path: Path
) -> None:
    tool = tmp_path / "bin/tool"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$TOOL_HOME $LOADEDMODULES"\n')
    tool.chmod(0o755)
    controller.assign("a.1", template=with_modules("tool"))
    report = controller.ended("a.1")
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 0), report.message
    said = (lmod.root / "logs/a.1.stdout").read_text()
    assert said == f"{os.path.realpath(tmp_path)} tool\n"


@pytest.mark.usefixtures("lmod")
def test_a_module_that_lmod_does_not_know_is_named_in_its_words(controller: Controller) -> None:
    controller.assign("a.1", template=with_modules("no-such-tool"))
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.START_FAILED
    assert "module load no-such-tool: Lmod has detected the following error" in report.message
    assert '"no-such-tool"' in report.message

"""A directory service of users that does not answer: it keeps one user's tasks, and nobody else.

It stands in for the C library's own functions, in the agent's process alone.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import AttemptState, EndReason
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs tasks as their users"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler here"),
]

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void ask(const char *name)
{
    const char *slow = getenv("SLOW_NAME"), *gate = getenv("SLOW_GATE");
    while (slow && gate && strcmp(name, slow) == 0 && access(gate, F_OK) != 0)
        usleep(20000);
}

int getpwnam_r(const char *name, struct passwd *to, char *room, size_t size, struct passwd **found)
{
    int (*real)(const char *, struct passwd *, char *, size_t, struct passwd **) =
        dlsym(RTLD_NEXT, "getpwnam_r");
    ask(name);
    return real(name, to, room, size, found);
}

int getgrouplist(const char *name, gid_t group, gid_t *groups, int *count)
{
    int (*real)(const char *, gid_t, gid_t *, int *) = dlsym(RTLD_NEXT, "getgrouplist");
    ask(name);
    return real(name, group, groups, count);
}
"""


@pytest.fixture
def gate(everybodys: Node, tmp_path: Path) -> Iterator[Path]:
    """A file: once it is there, the service answers."""
    assert COMPILER is not None
    source, library, made = tmp_path / "slow.c", tmp_path / "slow.so", tmp_path / "gate"
    source.write_text(SOURCE)
    command = [COMPILER, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=120)
    everybodys.environment |= {
        "LD_PRELOAD": str(library), "SLOW_NAME": "nobody", "SLOW_GATE": str(made),
    }  # fmt: skip
    yield made
    made.touch()


def template(user: str | None, script: str = "id -u") -> TaskTemplate:
    return TaskTemplate("job", 1, "g", command=("sh", "-c", script), user=user, allow_root=True)


def test_the_tasks_of_others_start_and_are_told_meanwhile(
    everybodys: Node, controller: Controller, gate: Path
) -> None:
    node = everybodys
    controller.poll_s = 0.2
    node.start("--isolation", "process-group")
    controller.assign("a.1", template=template("nobody"))
    controller.wait(
        lambda: "a.1" in controller.seen and "looking up user" in controller.seen["a.1"].message,
        "word of the user",
    )
    assert controller.seen["a.1"].state is AttemptState.FETCHING
    controller.assign("a.2", template=template(None))
    assert controller.ended("a.2").exit_code == 0
    controller.assign("a.3", template=template("nobody"))
    controller.stop("a.3")
    assert controller.ended("a.3").end_reason is EndReason.CANCELLED
    gate.touch()
    report = controller.ended("a.1")
    assert (report.end_reason, report.exit_code) == (EndReason.EXITED, 0)
    said = (node.root / "logs/a.1.stdout").read_text().strip()
    assert said == str(pwd.getpwnam("nobody").pw_uid)
    assert not (node.root / "logs/a.3.stdout").exists()

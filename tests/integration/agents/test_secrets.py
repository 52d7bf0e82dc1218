"""Secrets: the task has them, and nobody who looks for them elsewhere finds them."""

import os
import pwd
from pathlib import Path

import pytest

from agents.host import processes
from reconciler.model.protocol.agent_messages import TaskTemplate
from reconciler.model.state.states import EndReason
from tests import started
from tests.integration.agents import supervised
from tests.integration.agents.conftest import Node
from tests.integration.agents.controller import Controller

VALUE = "hidden-5f0c-value"
ME = pwd.getpwuid(os.geteuid()).pw_name


def keep(folder: Path, user: str, name: str = "token") -> Path:
    (folder / user).mkdir(parents=True)
    path = folder / user / name
    path.touch(0o600)
    path.write_text(VALUE)
    return folder


def template(script: str, user: str | None = None) -> TaskTemplate:
    secrets = (("token", "TOKEN"),)
    return TaskTemplate("job", 1, "g", script=script, secrets=secrets, user=user)


def holders(folder: Path) -> list[Path]:
    """Files below a folder with the value in them."""
    files = (p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return [path for path in files if VALUE.encode() in path.read_bytes()]


def test_nobody_finds_it(node: Node, controller: Controller, tmp_path: Path) -> None:
    node.start("--secrets", str(keep(tmp_path / "secrets", ME)))
    script = (
        '#!/bin/sh\n[ "$TOKEN" = "$(cat $MUSTER_SECRETS_DIR/token)" ] || exit 3\n'
        "echo ${#TOKEN}\nsleep 9999\n"
    )  # fmt: skip
    controller.assign("a.1", template=template(script))
    log = node.root / "logs/a.1.stdout"
    controller.wait(lambda: log.exists() and log.read_text() != "", "the task")
    assert log.read_text().strip() == str(len(VALUE))
    for pid in processes.processes():
        assert VALUE not in " ".join(started.command_of(pid))
    inside = [path for path in holders(node.root) if "/secrets/" not in str(path)]
    assert inside == []
    if os.geteuid() == 0:
        assert holders(node.root) == []  # in memory, in the task's own view
    controller.stop("a.1")
    controller.ended("a.1")
    assert holders(node.root) == []
    assert VALUE not in node.log.read_text()
    assert VALUE not in (node.root / "supervisor.log").read_text()
    assert VALUE not in repr(controller.requests)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change users")
def test_it_is_its_users_alone(node: Node, controller: Controller, tmp_path: Path) -> None:
    for folder in [tmp_path, *tmp_path.parents]:
        if str(folder).startswith("/tmp/") and folder.stat().st_uid == 0:
            folder.chmod(0o755)
    node.start("--secrets", str(keep(tmp_path / "secrets", "nobody")))
    controller.boot_id()
    node.root.chmod(0o755)
    holding = template(
        "#!/bin/sh\ncat $MUSTER_SECRETS_DIR/token >&2\necho up\nsleep 9999", "nobody"
    )
    controller.assign("a.1", template=holding)
    log = node.root / "logs/a.1.stdout"
    controller.wait(lambda: log.exists() and log.read_text() != "", "the task")
    pid = next(p for p in processes.processes() if started.attempt_of(p, str(node.root)))
    spy = (
        f"#!/bin/sh\ncat /proc/{pid}/environ {tmp_path}/secrets/nobody/token "
        f"{node.root}/attempts/a.1/secrets/token "
        f"/proc/{pid}/root{node.root}/attempts/a.1/secrets/*\n"
        "true\n"
    )
    controller.assign("a.2", template=TaskTemplate("job", 1, "g", script=spy, user="daemon"))
    assert controller.ended("a.2").exit_code == 0
    assert VALUE not in (node.root / "logs/a.2.stdout").read_text()
    controller.assign("a.3", template=template("#!/bin/sh\ntrue", "daemon"))
    report = controller.ended("a.3")
    assert report.end_reason is EndReason.START_FAILED
    assert "secret 'token' of daemon" in report.message


def test_one_that_others_can_read_is_refused(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    folder = keep(tmp_path / "secrets", ME)
    (folder / ME / "token").chmod(0o644)
    node.start("--secrets", str(folder))
    controller.assign("a.1", template=template("#!/bin/sh\ntrue"))
    report = controller.ended("a.1")
    assert report.end_reason is EndReason.START_FAILED
    assert "chmod 600" in report.message
    assert VALUE not in report.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can keep them in memory")
def test_more_than_the_memory_for_them_holds_is_the_fault_of_the_job(tmp_path: Path) -> None:
    """On any other node it would be the same, so that the job would go round for ever."""
    with supervised.made_in(tmp_path) as bed:
        secrets = {f"s{number}": "x" * 2**16 for number in range(65)}
        report = bed.run("true", secrets=secrets, private={"ipc": ""})
    assert (report.end_reason, report.exit_code) == (EndReason.START_FAILED, 126)
    assert report.message.startswith("its 65 secrets take more than 4 MiB together. To fix: ")

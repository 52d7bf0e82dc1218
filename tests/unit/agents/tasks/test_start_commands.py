"""From assignments to orders, where no process is needed to tell."""

import os
import pwd
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.host import token_file
from agents.isolation import task_limits
from agents.settings import UserLimits
from agents.tasks import checkpoint_folders, task_environment, task_users
from agents.tasks.node_context import NodeContext, UnstartableError
from reconciler.model.observed import job_code
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate
from tests import ordering

PLACE = NodeContext("n1", "/root-of-node", "/shared")
ASSIGNMENT = Assignment("a.1", "t", "boot")


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a\0b", "a" * 241, "-x"])
def test_an_id_that_is_no_folder_name_is_refused(name: str) -> None:
    with pytest.raises(UnstartableError, match="folder"):
        ordering.order_for(Assignment(name, "t", "b"), TaskTemplate("j", 1, "g", ("true",)), PLACE)


@pytest.mark.parametrize("path", ["/etc", "..", "a/../../b", "", "."])
def test_a_checkpoint_path_stays_in_the_shared_folder(tmp_path: Path, path: str) -> None:
    user = task_users.TaskUser("u", os.geteuid(), os.getegid(), "/", switch=False)
    template = TaskTemplate("j", 1, "g", checkpoint_path=path)
    with pytest.raises(UnstartableError, match="stay in it"):
        checkpoint_folders.checkpoint_variables(ASSIGNMENT, template, str(tmp_path), user)


def test_a_checkpoint_folder_is_made_once(tmp_path: Path) -> None:
    user = task_users.TaskUser("u", os.geteuid(), os.getegid(), "/", switch=False)
    template = TaskTemplate("j", 1, "g", checkpoint_path="a/./b//c")
    for _ in range(2):
        found = checkpoint_folders.checkpoint_variables(ASSIGNMENT, template, str(tmp_path), user)
        assert found == {"MUSTER_CHECKPOINT_DIR": f"{tmp_path}/a/b/c"}
    assert (tmp_path / "a/b/c").is_dir()


def test_another_users_environment_is_not_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/agents/own")
    other = task_users.TaskUser("other", 12345, 12345, "/home/other", switch=True)
    found = task_environment.environment_of(ASSIGNMENT, TaskTemplate("j", 1, "g"), PLACE, other)
    assert found["PATH"] == task_users.DEFAULT_PATH
    assert found["HOME"] == "/home/other"
    assert found["TMPDIR"] == "/root-of-node/attempts/a.1/tmp"


def test_user_of_an_agent_without_rights_is_its_own() -> None:
    template = TaskTemplate("j", 1, "g", user="no-such-user")
    assert task_users.find_user(template, PLACE).name == pwd.getpwuid(os.geteuid()).pw_name


def test_a_script_without_an_interpreter_goes_to_the_shell() -> None:
    template = TaskTemplate("j", 1, "g", script="echo x", grace_s=7)
    order = ordering.order_for(ASSIGNMENT, template, PLACE)
    assert order["argv"] == ["/bin/sh", "/root-of-node/attempts/a.1/script"]
    assert (order["grace_s"], order["lease_s"]) == (7, None)


@pytest.mark.parametrize("text", ["", "two words", "ü"])
def test_a_token_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(token_file.TokenFileError, match="one token"):
        token_file.read_token(path)


@pytest.mark.parametrize(
    ("privileges", "user", "restricted"),
    [
        ("restricted", "games", True),
        ("unrestricted", "games", False),
        ("restricted", "root", False),
    ],
)
def test_all_but_root_are_restricted_unless_the_pool_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, privileges: Any, user: str, *, restricted: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    holding = task_limits.IsolationCapabilities(views=True, enforces=("devices",))
    place = msgspec.structs.replace(PLACE, as_root=True, isolation=holding)
    template = TaskTemplate(
        "j", 1, "g", command=("true",), user=user, allow_root=True, privileges=privileges
    )
    order = ordering.order_for(Assignment("a.1", "t", "b"), template, place)
    assert order["privileges"] == ("restricted" if restricted else "")
    assert order["private"].get("hides") == (["/run/user"] if restricted else None)
    assert order["private"].get("masks") == (["/dev/fuse"] if restricted else None)
    assert order["limits"].get("deny_devices") == (["c 10:229 rwm"] if restricted else None)


@pytest.mark.parametrize("field", ["working_directory", "command"])
@pytest.mark.parametrize("path", ["/run/user", "/run/user/1001/bus", "/run/./user/1001"])
def test_no_choice_of_a_job_brings_the_services_of_its_user_back(
    monkeypatch: pytest.MonkeyPatch, field: str, path: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    holding = task_limits.IsolationCapabilities(views=True)
    place = msgspec.structs.replace(PLACE, as_root=True, isolation=holding)
    chosen: dict[str, Any] = {field: (path,) if field == "command" else path}
    template = TaskTemplate("j", 1, "g", **{"command": ("true",), "user": "games", **chosen})
    with pytest.raises(UnstartableError, match=r"don't see /run/user\. To fix: "):
        ordering.order_for(Assignment("a.1", "t", "b"), template, place)
    free = msgspec.structs.replace(template, privileges="unrestricted")
    assert "hides" not in ordering.order_for(Assignment("a.1", "t", "b"), free, place)["private"]


@pytest.mark.parametrize("user", ["root", None])
def test_nobody_becomes_root_unless_the_pool_allows_it(
    monkeypatch: pytest.MonkeyPatch, user: str | None
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    place = msgspec.structs.replace(PLACE, as_root=True)
    template = TaskTemplate("j", 1, "g", command=("true",), user=user)
    with pytest.raises(UnstartableError, match="would run as root"):
        ordering.order_for(Assignment("a.1", "t", "b"), template, place)
    allowed = msgspec.structs.replace(template, allow_root=True)
    assert task_users.find_user(allowed, place).uid == 0


@pytest.mark.parametrize(
    ("limits", "name", "uid", "option"),
    [
        (UserLimits(), "root", 0, ""),
        (UserLimits(root=False), "root", 0, "--never-root"),
        (UserLimits(root=False), "ada", 1001, ""),
        (UserLimits(uid_min=1000), "daemon", 1, "--min-uid 1000"),
        (UserLimits(uid_min=1000), "ada", 1000, ""),
        (UserLimits(names=frozenset({"bob", "ada"})), "eve", 1002, "--users ada,bob"),
        (UserLimits(names=frozenset({"bob", "ada"})), "ada", 1001, ""),
    ],
)
def test_limits_of_the_agents_own_command_line(
    limits: UserLimits, name: str, uid: int, option: str
) -> None:
    assert limits.refusal(name, uid) == option


def test_no_controller_lifts_the_agents_own_limits() -> None:
    place = msgspec.structs.replace(PLACE, as_root=True, user_limits=UserLimits(uid_min=2**31))
    template = TaskTemplate("j", 1, "g", user=pwd.getpwuid(0).pw_name, allow_root=True)
    with pytest.raises(UnstartableError, match=r"started with --min-uid .* To fix: give the job's"):
        task_users.find_user(template, place)


@pytest.mark.parametrize("limit_bytes", [0, 2**30])
def test_a_limit_of_the_disk_goes_with_the_order(limit_bytes: int) -> None:
    template = TaskTemplate("j", 1, "g", ("true",), scratch_bytes=limit_bytes)
    found = ordering.order_for(ASSIGNMENT, template, PLACE)
    assert found.get("scratch_bytes", 0) == limit_bytes


@pytest.mark.parametrize(
    ("fields", "cwd"),
    [
        ({}, "/root-of-node/attempts/a.1/work"),
        ({"code": job_code.JobCode("sha256:0")}, "/root-of-node/attempts/a.1/work"),
        (
            {"code": job_code.JobCode("sha256:0", folder="a/b")},
            "/root-of-node/attempts/a.1/work/a/b",
        ),
        ({"code": job_code.JobCode("sha256:0", folder="a"), "working_directory": "/w"}, "/w"),
    ],
)
def test_a_task_with_code_starts_in_it(fields: dict[str, Any], cwd: str) -> None:
    template = TaskTemplate("j", 1, "g", ("true",), **fields)
    order = ordering.order_for(ASSIGNMENT, template, PLACE)
    assert order["cwd"] == cwd
    assert order.get("code", False) is ("code" in fields)
    code = "/root-of-node/attempts/a.1/work" if "code" in fields else None
    assert order["env"].get("MUSTER_CODE_DIR") == code

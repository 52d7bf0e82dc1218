"""Where secrets come from, and what keeps one from being given."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from agents.data import secret_store
from agents.supervisor.commands import StartCommand
from agents.tasks import start_commands, task_users
from agents.tasks.node_context import NodeContext
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate


def kept(folder: Path, text: str = "s3cret\n", mode: int = 0o600) -> secret_store.SecretStore:
    (folder / "ada").mkdir()
    path = folder / "ada" / "token"
    path.write_text(text)
    path.chmod(mode)
    return secret_store.SecretStore(folder)


def fetch(source: secret_store.SecretStore) -> str:
    return source.fetch("ada", os.geteuid(), ["token"])["token"]


def test_a_file(tmp_path: Path) -> None:
    assert fetch(kept(tmp_path)) == "s3cret"


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("x", 0o640, "mode 0640.*chmod 600"),
        ("x", 0o604, "mode 0604"),
        ("x" * (secret_store.BYTES_MAX + 1), 0o600, "larger than"),
        ("a\0b", 0o600, "not text"),
    ],
)
def test_a_file_that_is_not_kept_as_it_has_to_be(
    tmp_path: Path, text: str, mode: int, says: str
) -> None:
    with pytest.raises(secret_store.SecretUnavailableError, match=says) as caught:
        fetch(kept(tmp_path, text, mode))
    assert "x" * 50 not in str(caught.value)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    source = kept(tmp_path)
    (tmp_path / "ada/token").rename(tmp_path / "elsewhere")
    (tmp_path / "ada/token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(secret_store.SecretUnavailableError, match="symbolic links"):
        fetch(source)


def test_a_pipe_does_not_keep_anyone_waiting(tmp_path: Path) -> None:
    source = kept(tmp_path)
    (tmp_path / "ada/token").unlink()
    os.mkfifo(tmp_path / "ada/token", 0o600)
    with pytest.raises(secret_store.SecretUnavailableError, match="is not a file"):
        fetch(source)


def test_a_folder_that_others_write_to(tmp_path: Path) -> None:
    source = kept(tmp_path)
    (tmp_path / "ada").chmod(0o777)
    with pytest.raises(secret_store.SecretUnavailableError, match="chmod go-w"):
        fetch(source)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    source = kept(tmp_path)
    os.chown(tmp_path / "ada/token", 12345, 12345)
    with pytest.raises(secret_store.SecretUnavailableError, match="belongs to user 12345"):
        fetch(source)
    assert source.fetch("ada", 12345, ["token"]) == {"token": "s3cret"}


def test_a_command_is_asked_where_there_is_no_file(tmp_path: Path) -> None:
    program = tmp_path / "ask"
    program.write_text("#!/bin/sh\necho $1/$2\n[ $2 != none ]\n")
    program.chmod(0o755)
    source = secret_store.SecretStore(tmp_path / "nowhere", (str(program),))
    assert source.fetch("ada", 0, ["key"]) == {"key": "ada/key"}
    with pytest.raises(secret_store.SecretUnavailableError, match="the command ended 1") as caught:
        source.fetch("ada", 0, ["none"])
    assert "ada/none" not in str(caught.value)


def test_a_command_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = f"echo $$ > {started}; exec yes"
    source = secret_store.SecretStore(None, ("sh", "-c", script))
    with pytest.raises(
        secret_store.SecretUnavailableError, match="'key' is larger than 65536 bytes"
    ):
        source.fetch("ada", 0, ["key"])
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_a_command_that_leaves_a_program_behind_has_answered(tmp_path: Path) -> None:
    """As one does that starts an agent of its own; what it has left goes."""
    left = tmp_path / "left"
    script = f"sleep 3600 & echo $! > {left}; echo s3cret"
    source = secret_store.SecretStore(None, ("sh", "-c", script))
    assert source.fetch("ada", 0, ["key"]) == {"key": "s3cret"}
    until = time.monotonic() + 60
    while Path(f"/proc/{left.read_text().strip()}/exe").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_store, "COMMAND_S", 1.0)
    source = secret_store.SecretStore(None, ("sh", "-c", "sleep 3600 & sleep 3600"))
    with pytest.raises(secret_store.SecretUnavailableError, match="took over 1 s"):
        source.fetch("ada", 0, ["key"])


def test_without_either() -> None:
    with pytest.raises(
        secret_store.SecretUnavailableError, match="neither --secrets nor --secret-command"
    ):
        fetch(secret_store.SecretStore())


def order_of(
    folder: Path, source: secret_store.SecretStore, secret: tuple[str, str], **fields: Any
) -> StartCommand:
    """The command of a task that uses a secret."""
    template = TaskTemplate(
        "j", 1, "g", command=("true",), secrets=(secret,), allow_root=True, **fields
    )
    node = NodeContext("n", str(folder), str(folder))
    user = task_users.find_user(template, node)
    resources = start_commands.StartResources(
        user,
        start_commands.image_request(template, node, user),
        secrets=source.fetch("ada", os.geteuid(), [secret[0]]),
    )
    return start_commands.start_command(Assignment("a.1", "t", "b"), template, node, resources)


def test_values_go_to_the_variables_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = kept(tmp_path)
    mine = {"MY_TOKEN": "mine", "PROD_ENV_TOKEN": "mine", "TOKEN_": "mine", "X": "y"}
    order = order_of(tmp_path, source, ("token", "TOKEN"), environment=mine)
    assert order["secrets"] == {"token": "s3cret"}
    assert order["env"].items() >= {"TOKEN": "s3cret", **mine}.items()
    (tmp_path / "apptainer").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    order = order_of(
        tmp_path, source, ("token", "TOKEN"), environment=mine, runtime="apptainer", image="x"
    )
    found = order["env"]
    assert found["APPTAINERENV_TOKEN"] == "s3cret"
    assert found["APPTAINERENV_MY_TOKEN"] == "mine"
    assert "s3cret" not in str(order["argv"])


def test_a_secret_without_a_variable_is_a_file_only(tmp_path: Path) -> None:
    order = order_of(tmp_path, kept(tmp_path), ("token", ""), environment={"X": "y"})
    assert order["secrets"] == {"token": "s3cret"}
    assert "s3cret" not in order["env"].values()
    assert "" not in order["env"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be somebody else for a moment")
@pytest.mark.parametrize(
    ("closed", "said"), [("root", "{0} can't be read"), ("user", "{0}/root can't")]
)
def test_folders_that_can_not_be_read_are_told(closed: str, said: str) -> None:
    with tempfile.TemporaryDirectory(prefix="muster-secrets-") as name:
        secrets = Path(name)  # a folder that others reach, which those of tests are not
        (secrets / "root").mkdir()
        (secrets / "root" / "token").touch(0o600)
        secrets.chmod(0o755)
        (secrets if closed == "root" else secrets / "root").chmod(0o700)
        os.seteuid(65534)
        try:
            found = list(secret_store.problems(secrets))
        finally:
            os.seteuid(0)
    assert len(found) == 1
    assert found[0].startswith(said.format(secrets))

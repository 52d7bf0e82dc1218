"""Passwords in the URLs of repositories: nothing shows them, and none is taken as an address."""

from pathlib import Path

import pytest

from reconciler import log_format
from reconciler.changes import push_result
from reconciler.controller import process
from reconciler.desired.apply import loader
from reconciler.desired.git import git_commands, remote_urls, source
from reconciler.operations.local import local_cluster
from reconciler.server import __main__
from tests.unit.desired import repositories

SECRET = "ge:heim@x"
UNREACHABLE = f"http://ada:{SECRET}@127.0.0.1:1/cluster.git"
REFUSED = "https://ada:geheim@git.example.org/cluster.git"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at https://ada:geheim@host/a.git: no", "at https://…@host/a.git: no"),
        ("at 'HTTPS://ada:ge@heim@host/a'", "at 'HTTPS://…@host/a'"),
        ("https://ada:ge/heim@host/a", "https://…@host/a"),
        ("https://ghp_0123@host/a", "https://…@host/a"),
        ("https://:geheim@host/a", "https://…@host/a"),
        ("ssh://git@host/a", "ssh://git@host/a"),
        ("ssh://git:geheim@host/a", "ssh://…@host/a"),
        ("git@host:a.git", "git@host:a.git"),
        ("https://host:8080/a@v1", "https://host:8080/a@v1"),
        ("https://host/a by ada@example.org", "https://host/a by ada@example.org"),
        ("https://a:b@one/x\nhttps://c:d@two/y", "https://…@one/x\nhttps://…@two/y"),
    ],
)
def test_user_and_password_of_a_url_are_hidden(text: str, shown: str) -> None:
    assert remote_urls.redacted(text) == shown
    assert remote_urls.redacted_bytes(text.encode() + b"\xff") == shown.encode() + b"\xff"


@pytest.mark.parametrize(
    "address",
    [
        "https://git.example.org/cluster.git",
        "https://ada@git.example.org/cluster.git",
        "https://git.example.org:8443/cluster.git@v1",
        "ssh://git@git.example.org/cluster.git",
        "git@git.example.org:cluster.git",
        "file:///srv/cluster.git",
    ],
)
def test_an_address_without_a_password_is_taken(address: str) -> None:
    remote_urls.require_no_password(address)


@pytest.mark.parametrize(
    "address",
    [
        REFUSED,
        "http://:geheim@host/a.git",
        "ssh://git:geheim@host/a.git",
        "https://ghp_geheim@host/a.git",
        f"https://{'geheim' * 7}@host/a.git",
    ],
)
def test_an_address_with_a_password_is_refused_without_showing_it(address: str) -> None:
    with pytest.raises(
        remote_urls.PasswordInUrlError, match=r"To fix: .*credential\.helper"
    ) as said:
        source.GitSource(address)
    assert "geheim" not in str(said.value)


def test_a_folder_whose_name_looks_like_one_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "https:" / "ada:x@host"
    folder.mkdir(parents=True)
    assert source.GitSource(str(folder)).local


@pytest.fixture
def rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address without a password that git's configuration replaces by one that has one."""
    config = tmp_path / "gitconfig"
    config.write_text(f'[url "{UNREACHABLE}"]\n\tinsteadOf = http://plain.invalid/cluster.git\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    return "http://plain.invalid/cluster.git"


def test_what_git_says_of_a_fetch_is_redacted_in_the_status(tmp_path: Path, rewritten: str) -> None:
    status = loader.Loader(source.GitSource(rewritten, state=tmp_path / "state")).load().status
    assert status.sync == "Unknown"
    assert "http://…@127.0.0.1:1/cluster.git" in status.message


def test_a_trace_of_git_is_redacted(
    tmp_path: Path, rewritten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TRACE", "1")
    repositories.git(tmp_path, "init", "--quiet")
    done = git_commands.run(tmp_path, "ls-remote", rewritten, good=(0, 128))
    said = (done.stdout + done.stderr).decode()
    assert "127.0.0.1" in said
    assert "heim" not in said


def test_a_refused_push_of_a_persons_clone_is_redacted(tmp_path: Path) -> None:
    """The remote of a clone is the person's own: it is not refused, and not shown either."""
    clone = tmp_path / "clone"
    clone.mkdir()
    repositories.git(clone, "init", "--quiet", "--initial-branch=main")
    repositories.git(clone, "commit", "--quiet", "--allow-empty", "--message=first")
    repositories.git(clone, "remote", "add", "origin", UNREACHABLE)
    with pytest.raises(git_commands.GitError) as said:
        push_result.push(clone, "origin", "HEAD", "refs/heads/main")
    assert "127.0.0.1:1" in str(said.value)
    assert "heim" not in str(said.value)


def test_a_cut_message_does_not_begin_within_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "git"
    script.write_text(
        "#!/bin/sh\n"
        "printf 'https://ada:%s@host/a' \"$(printf 'geheim%.0s' $(seq 400))\" >&2\n"
        "exit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(git_commands.GitError) as said:
        git_commands.run(tmp_path, "fetch")
    assert "geheim" not in str(said.value)


def test_the_controller_refuses_a_password_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["controller", "--repo", REFUSED, "--state", str(tmp_path / "state")]
    monkeypatch.setattr("sys.argv", given)
    monkeypatch.setattr("faulthandler.enable", lambda: None)
    monkeypatch.setattr(log_format, "configure", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        process.main()
    said = capsys.readouterr().err
    assert end.value.code == 64
    assert "https://…@git.example.org/cluster.git" in said
    assert "geheim" not in said
    assert not (tmp_path / "state").exists()


def test_the_server_refuses_a_password_at_start(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--store", "s", "--link", "l", "--token-file", "t", "--state", "f"]
    with pytest.raises(SystemExit) as end:
        __main__.parse([*given, "--repository", REFUSED])
    said = capsys.readouterr().err
    assert end.value.code == 64
    assert "holds a password" in said
    assert "geheim" not in said


def test_up_refuses_a_password_before_it_starts_anything() -> None:
    with pytest.raises(local_cluster.ClusterError, match="holds a password") as said:
        local_cluster.require_repository(REFUSED)
    assert "geheim" not in str(said.value)

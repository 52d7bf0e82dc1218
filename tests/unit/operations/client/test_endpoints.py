"""Which endpoint file is followed: a token goes where this user's ``muster up`` listens only."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.operations.client import endpoints
from tests.unit.desired.repositories import git

URL = "http://127.0.0.1:8080"
STRANGER = 65534


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An endpoint file as ``muster up`` leaves it."""
    for name in ("MUSTER_SERVER", "MUSTER_TOKEN_FILE", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / endpoints.ENDPOINT_FILE
    endpoints.write(tmp_path, endpoints.Endpoint(URL, str(path.with_name("token"))))
    return path


def rewritten(file: Path, url: str, token: str) -> None:
    endpoints.write(file.parent.parent, endpoints.Endpoint(url, token))


def test_what_muster_up_leaves_is_found_from_below(file: Path) -> None:
    below = file.parent.parent / "jobs" / "deep"
    below.mkdir(parents=True)
    found = endpoints.find(None, None, below)
    assert (found.url, found.token_file) == (URL, str(file.with_name("token")))
    named = endpoints.find(None, "own", below)
    assert (named.url, named.token_file) == (URL, "own")


def test_a_wide_umask_makes_none_that_others_write(file: Path) -> None:
    before = os.umask(0)
    try:
        file.unlink()
        rewritten(file, URL, str(file.with_name("token")))
    finally:
        os.umask(before)
    assert endpoints.find(None, None, file.parent).url == URL


@pytest.mark.parametrize(
    "url",
    [
        "http://muster.example.org",
        "http://127.0.0.1:80@muster.example.org",
        "http://muster.example.org\\@127.0.0.1:80",
        "http://localhost.example.org:80",
        "http://127.0.0.1.example.org",
        "ftp://127.0.0.1:80",
    ],
)
def test_none_of_another_machine_is_followed(url: str, file: Path) -> None:
    rewritten(file, url, str(file.with_name("token")))
    with pytest.raises(endpoints.EndpointError, match="listens on this machine only"):
        endpoints.find(None, "own", file.parent)


@pytest.mark.parametrize("url", ["http://localhost:80", "http://[::1]:80/", "https://127.1.2.3"])
def test_one_of_this_machine_is(url: str, file: Path) -> None:
    rewritten(file, url, str(file.with_name("token")))
    assert endpoints.find(None, None, file.parent).url == url


@pytest.mark.parametrize("token", ["/root/.vault-token", "token", "../token"])
def test_no_other_file_is_sent_as_token(token: str, file: Path) -> None:
    rewritten(file, URL, token)
    with pytest.raises(endpoints.EndpointError, match="not beside it"):
        endpoints.find(None, None, file.parent)


def link(file: Path) -> None:
    file.rename(file.with_name("other"))
    file.symlink_to("other")


def link_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("other"))
    file.parent.symlink_to("other")


def track(file: Path) -> None:
    git(file.parent.parent, "init", "--quiet")
    git(file.parent.parent, "add", "--force", str(file))


@pytest.mark.parametrize(
    ("planted", "why"),
    [
        (lambda file: file.chmod(0o664), "others may write"),
        (lambda file: file.parent.chmod(0o777), "others may write"),
        (link, "is a link"),
        (link_folder, "is a link"),
        (track, "a git repository brings it"),
    ],
)
def test_one_that_others_may_have_written_is_not_followed(
    planted: Callable[[Path], None], why: str, file: Path
) -> None:
    planted(file)
    with pytest.raises(endpoints.EndpointError, match=why) as caught:
        endpoints.find(None, None, file.parent.parent)
    assert "--server" in str(caught.value)
    assert endpoints.find("http://elsewhere", None, file.parent.parent).url == "http://elsewhere"


def test_one_beside_a_repository_is_followed(file: Path) -> None:
    git(file.parent.parent, "init", "--quiet")
    assert endpoints.find(None, None, file.parent.parent).url == URL


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_one_of_another_user_is_not_followed(
    which: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(file if which == "file" else file.parent, STRANGER, STRANGER)
    with pytest.raises(endpoints.EndpointError, match="belongs to another user"):
        endpoints.find(None, None, file.parent)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert endpoints.find(None, None, file.parent).url == URL


@pytest.mark.parametrize(
    ("url", "insecure", "refused"),
    [
        ("http://ctl.example.org:7420", "", True),
        ("http://10.0.0.5:7420", "", True),
        ("http://10.0.0.5:7420", "1", False),
        ("http://10.0.0.5:7420", "True", False),
        ("http://10.0.0.5:7420", "0", True),
        ("http://10.0.0.5:7420", "false", True),
        ("https://ctl.example.org", "", False),
        ("http://127.0.0.1:7420", "", False),
        ("http://localhost:7420", "", False),
    ],
)
def test_a_token_goes_to_another_machine_encrypted_alone(
    url: str, insecure: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(endpoints.INSECURE_VARIABLE, insecure)
    monkeypatch.delenv("MUSTER_TOKEN_FILE", raising=False)
    assert endpoints.find(url, None, tmp_path).url == url  # there is no token to read
    if refused:
        with pytest.raises(endpoints.EndpointError, match=r"could read your token\. Use its https"):
            endpoints.find(url, "token", tmp_path)
    else:
        assert endpoints.find(url, "token", tmp_path).token_file == "token"

"""What ``muster login`` keeps: where, for whom, and when it counts."""

from pathlib import Path

import pytest

from reconciler.operations.client import endpoints

URL = "https://muster.example.org:7420"
HERE = "http://127.0.0.1:8080"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings of this user are."""
    for name in ("MUSTER_SERVER", "MUSTER_TOKEN_FILE", "MUSTER_CA", "MUSTER_INSECURE", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_a_login_counts_where_nothing_nearer_does(home: Path) -> None:
    work = home / "work"
    work.mkdir()
    with pytest.raises(endpoints.EndpointError, match="muster login URL"):
        endpoints.find(None, None, work)
    endpoints.log_in(f"{URL}/", "s3cret", None)
    found = endpoints.find(None, None, work)
    assert (found.url, found.token()) == (URL, "s3cret")
    assert endpoints.find("https://other", None, work).token_file is None
    endpoints.write(work, endpoints.Endpoint(HERE, str(work / ".muster" / "token")))
    assert endpoints.find(None, None, work).url == HERE
    assert endpoints.log_out() == URL
    assert endpoints.log_out() is None
    assert not list(endpoints.login_file().parent.iterdir())


def test_nobody_else_may_read_what_is_kept_whatever_was_there(home: Path) -> None:
    folder = endpoints.login_file().parent
    folder.mkdir(parents=True, mode=0o777)
    (folder / endpoints.TOKEN_NAME).write_text("old")
    (folder / endpoints.TOKEN_NAME).chmod(0o666)
    victim = home / "victim"
    victim.write_text("mine")
    (folder / "endpoint.json").symlink_to(victim)
    endpoints.log_in(URL, "s3cret", str(home / "ca.pem"))
    assert victim.read_text() == "mine"
    modes = {one.name: one.stat().st_mode & 0o777 for one in (folder, *folder.iterdir())}
    assert modes == {"muster": 0o700, "token": 0o600, "endpoint.json": 0o600}
    found = endpoints.find(None, None, home)
    assert (found.token(), found.ca_file) == ("s3cret", str(home / "ca.pem"))


def test_a_login_sends_no_token_in_plain_text(home: Path) -> None:
    endpoints.log_in("http://muster.example.org:7420", "s3cret", None)
    with pytest.raises(endpoints.EndpointError, match="not encrypted"):
        endpoints.find(None, None, home)


def test_a_login_that_somebody_else_may_have_written_is_not_followed(home: Path) -> None:
    endpoints.log_in(URL, "s3cret", None)
    endpoints.login_file().chmod(0o622)
    with pytest.raises(endpoints.EndpointError, match="is not followed"):
        endpoints.find(None, None, home)

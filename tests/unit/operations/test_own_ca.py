"""A certificate authority of one's own: what openssl says of it, and what it refuses."""

import datetime as dt
import os
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from reconciler.operations import own_ca

NOW = dt.datetime(2026, 11, 26, tzinfo=dt.UTC)


def verify(folder: Path, host: str) -> str:
    """Return what openssl says of the controller's certificate for a host."""
    option = "-verify_ip" if host[0].isdigit() or ":" in host else "-verify_hostname"
    done = subprocess.run(
        [
            "openssl",
            "verify",
            "-attime",
            str(int(NOW.timestamp())),
            "-x509_strict",
            "-purpose",
            "sslserver",
            "-CAfile",
            "ca.pem",
            option,
            host,
            "server.pem",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("host", ["ctl.example.org", "10.0.0.5", "fd00::5"])
def test_a_certificate_is_good_for_each_of_its_hosts(host: str, tmp_path: Path) -> None:
    own_ca.init(tmp_path / "tls", ["ctl.example.org", "10.0.0.5", "fd00::5"], NOW)
    assert verify(tmp_path / "tls", host) == "server.pem: OK"


def test_it_is_good_for_no_other_host(tmp_path: Path) -> None:
    own_ca.init(tmp_path, ["ctl.example.org"], NOW)
    assert "hostname mismatch" in verify(tmp_path, "other.example.org").lower()


@pytest.mark.parametrize("umask", [0, 0o077])
def test_keys_are_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        own_ca.init(tmp_path / "tls", ["localhost"], NOW)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "ca.pem": 0o644, "server.pem": 0o644}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_an_authority_is_never_replaced(tmp_path: Path) -> None:
    own_ca.init(tmp_path, ["localhost"], NOW)
    before = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(
        own_ca.AuthorityError, match=r"holds an authority already\. To renew .* issue"
    ):
        own_ca.init(tmp_path, ["localhost"], NOW)
    assert (tmp_path / "ca.key").read_bytes() == before


def test_a_renewed_certificate_is_of_the_same_authority(tmp_path: Path) -> None:
    own_ca.init(tmp_path, ["localhost"], NOW - dt.timedelta(days=390))
    first = (tmp_path / "server.pem").read_bytes()
    own_ca.issue(tmp_path, ["localhost"], NOW)
    assert (tmp_path / "server.pem").read_bytes() != first
    assert verify(tmp_path, "localhost") == "server.pem: OK"
    found = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    assert found.not_valid_after_utc == NOW + dt.timedelta(days=own_ca.SERVER_DAYS)


@pytest.mark.parametrize("host", ["https://ctl", "ctl:7420", "", "b\u00fcro", "a,b", "-x", "*.a.b"])
def test_what_is_no_host_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(own_ca.AuthorityError, match="expected a name or address, without scheme"):
        own_ca.init(tmp_path, [host], NOW)
    assert not list(tmp_path.iterdir())


def test_nothing_is_issued_without_an_authority(tmp_path: Path) -> None:
    with pytest.raises(own_ca.AuthorityError, match=r"ca\.key: No such file .*`muster ca init`"):
        own_ca.issue(tmp_path, ["localhost"], NOW)

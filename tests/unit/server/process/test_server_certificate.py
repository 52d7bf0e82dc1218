"""The server's certificate: what can't be used is refused, and never replaces what can."""

import datetime as dt
import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from reconciler.operations import own_ca
from reconciler.server.process.server_certificate import CertificateError, ServerCertificate

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own_ca.init(tmp_path, ["localhost"], NOW)
    return tmp_path


def read(folder: Path) -> ServerCertificate:
    return ServerCertificate(folder / "server.pem", folder / "server.key")


def test_a_good_pair_is_read_with_its_end(folder: Path) -> None:
    ends_at = (NOW + dt.timedelta(days=own_ca.SERVER_DAYS)).timestamp()
    assert read(folder).expires_at == pytest.approx(ends_at, abs=2)


def test_a_key_that_others_may_read_is_refused(folder: Path) -> None:
    (folder / "server.key").chmod(0o640)
    with pytest.raises(CertificateError, match=r"\(mode 0640\); run: chmod 600"):
        read(folder)


def test_the_key_of_another_certificate_is_refused(folder: Path, tmp_path: Path) -> None:
    own_ca.init(tmp_path / "other", ["localhost"], NOW)
    with pytest.raises(CertificateError, match="does not belong to the certificate"):
        ServerCertificate(folder / "server.pem", tmp_path / "other" / "server.key")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("server.pem", b"nothing", "found no PEM certificate"),
        ("server.pem", None, "No such file"),
        ("server.key", None, "No such file"),
    ],
)
def test_what_is_none_is_refused(
    name: str, content: bytes | None, words: str, folder: Path
) -> None:
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(CertificateError, match=words):
        read(folder)


def test_a_new_pair_is_read_and_a_bad_one_is_not(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = read(folder)
    first = found.expires_at
    own_ca.issue(folder, ["localhost"], NOW + dt.timedelta(days=10))
    found.renew()
    assert found.expires_at == pytest.approx(first + 10 * 86400, abs=2)
    (folder / "server.pem").write_bytes(b"half written")
    with caplog.at_level(logging.ERROR):
        found.renew()
        found.renew()  # which says nothing again
    assert found.expires_at == pytest.approx(first + 10 * 86400, abs=2)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "stays the one before" in caplog.text


def test_a_key_whose_mode_was_mended_is_read(folder: Path) -> None:
    found = read(folder)
    first = found.expires_at
    own_ca.issue(folder, ["localhost"], NOW + dt.timedelta(days=10))
    (folder / "server.key").chmod(0o644)
    found.renew()
    assert found.expires_at == first
    (folder / "server.key").chmod(0o600)
    found.renew()
    assert found.expires_at == pytest.approx(first + 10 * 86400, abs=2)


def test_an_encrypted_key_is_refused_and_asked_nothing(folder: Path) -> None:
    plain = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    encrypted = plain.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (folder / "server.key").write_bytes(encrypted)
    with pytest.raises(CertificateError, match="or is encrypted"):
        read(folder)


def test_a_pair_that_is_renewed_by_another_link_is_read(folder: Path, tmp_path: Path) -> None:
    """As certbot and mounted secrets do."""
    own_ca.init(tmp_path / "next", ["localhost"], NOW + dt.timedelta(days=10))
    live = tmp_path / "live"
    live.symlink_to(folder)
    found = ServerCertificate(live / "server.pem", live / "server.key")
    first = found.expires_at
    live.unlink()
    live.symlink_to(tmp_path / "next")
    found.renew()
    assert found.expires_at == pytest.approx(first + 10 * 86400, abs=2)

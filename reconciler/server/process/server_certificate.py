"""The server's TLS certificate and key: read from files, checked, and read again when they change.

Two paths come in, an ``ssl.SSLContext`` comes out. New connections use the newest good pair; a pair
that can't be used is logged, and the one before it stays in use.
"""

import logging
import ssl
import stat
from pathlib import Path

from cryptography import x509

from reconciler.operations import os_errors

log = logging.getLogger("muster.server")

#: Without it OpenSSL would ask at the terminal for the passphrase of an encrypted key.
_NO_PASSPHRASE = ""


class CertificateError(ValueError):
    """A certificate or key that can't be used; the message names the file and what to do."""


class ServerCertificate:
    """A certificate chain and its key, in two PEM files.

    Attributes:
        context: for new connections.
        expires_at: when the certificate expires, in seconds since the epoch.

    Raises:
        CertificateError: they can't be used.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._paths = (certificate, key)
        self._read = self._versions()
        self.expires_at = _check(certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_cert_chain(certificate, key, _NO_PASSPHRASE)

    def renew(self) -> None:
        """Read the files again if they have changed."""
        versions = self._versions()
        if versions == self._read:
            return
        self._read = versions
        try:
            self.expires_at = _check(*self._paths)
            self.context.load_cert_chain(*self._paths, _NO_PASSPHRASE)
        except (CertificateError, OSError) as error:
            log.error("the TLS certificate stays the one before: %s", error)  # noqa: TRY400 - no bug
        else:
            log.info("the TLS certificate %s was read again", self._paths[0])

    def _versions(self) -> list[tuple[int, ...] | None]:
        """Return what tells one version of the files from another."""
        found: list[tuple[int, ...] | None] = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError:
                found.append(None)
            else:
                # the last of them changes with the mode too
                found.append((status.st_mtime_ns, status.st_ino, status.st_ctime_ns))
        return found


def _check(certificate: Path, key: Path) -> float:
    """Return when a certificate expires, in seconds since the epoch.

    Raises:
        CertificateError: it or its key can't be used.
    """
    try:
        mode = key.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CertificateError(
                f"TLS key {key}: others may read it (mode {stat.S_IMODE(mode):04o}); "
                f"run: chmod 600 {key}"
            )
        first = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        # a context of its own: a pair that does not match must not get into the one in use
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _NO_PASSPHRASE)
    except ssl.SSLError as error:
        raise CertificateError(
            f"TLS key {key} does not belong to the certificate {certificate}, or is encrypted: "
            f"{error.reason or error}"
        ) from error
    except OSError as error:
        raise CertificateError(f"TLS: {os_errors.told(error, certificate)}") from error
    except ValueError as error:
        if isinstance(error, CertificateError):
            raise
        raise CertificateError(
            f"TLS certificate {certificate}: found no PEM certificate ({error})"
        ) from error
    return first.not_valid_after_utc.timestamp()

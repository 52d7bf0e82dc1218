"""A certificate authority of one's own, for a site that has none: a folder with two keys.

The authority's certificate (ca.pem) goes to every agent and to everybody who calls the controller.
Its key (ca.key) stays in the folder and is needed only to renew. The controller gets the other two
files, server.pem and server.key.
Keys are P-256, which every TLS library accepts.
"""

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from reconciler.model.values import found_values, hostlists
from reconciler.operations import os_errors

CA_DAYS = 3650
#: What public authorities give at most, and clients expect.
SERVER_DAYS = 397
#: Clocks of nodes may be behind by so much.
_EARLIER = dt.timedelta(hours=1)


class AuthorityError(ValueError):
    """The folder of an authority can't be made or used; the message says which file and why."""


def init(folder: Path, hosts: Sequence[str], now: dt.datetime) -> None:
    """Make an authority and a certificate of the controller.

    Args:
        folder: made if it is missing; nothing in it is replaced.
        hosts: names and addresses by which agents and people reach the controller.
        now: the time, with its zone.

    Raises:
        AuthorityError: there is an authority already, or the folder can't be written.
    """
    names = _alternatives(hosts)
    if (folder / "ca.key").exists() or (folder / "ca.pem").exists():
        raise AuthorityError(
            f"{folder} holds an authority already. To renew the controller's certificate: "
            f"muster ca issue {folder} {' '.join(f'--host {host}' for host in hosts)}"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Muster CA {now:%Y-%m-%d}")])
    certificate = (
        _builder(name, name, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(folder / "ca.key", _private(key), 0o600)
        _write(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    except OSError as error:
        raise AuthorityError(os_errors.told(error, folder)) from error
    _issue(folder, (key, certificate), names, now)


def issue(folder: Path, hosts: Sequence[str], now: dt.datetime) -> None:
    """Make a new key and certificate of the controller, in place of the old ones.

    Raises:
        AuthorityError: the folder holds no authority, or can't be written.
    """
    names = _alternatives(hosts)
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    except OSError as error:
        raise AuthorityError(
            f"{os_errors.told(error, folder)}; `muster ca init` makes an authority"
        ) from error
    except (ValueError, TypeError) as error:
        raise AuthorityError(
            f"{folder}: found no authority in ca.key and ca.pem: {error}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthorityError(f"{folder / 'ca.key'}: found another kind of key than `init` makes")
    _issue(folder, (key, certificate), names, now)


def _issue(
    folder: Path,
    authority: tuple[ec.EllipticCurvePrivateKey, x509.Certificate],
    names: list[x509.GeneralName],
    now: dt.datetime,
) -> None:
    """Write the controller's key and certificate; each file appears whole."""
    ca_key, ca = authority
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Muster controller")])
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = (
        _builder(subject, ca.subject, key, now, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(authority_key, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    try:
        # the controller takes the pair when both are there: see ServerCertificate
        _write(folder / "server.key", _private(key), 0o600)
        _write(folder / "server.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    except OSError as error:
        raise AuthorityError(os_errors.told(error, folder)) from error


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def require_hosts(hosts: Sequence[str]) -> None:
    """Check the names of a certificate.

    Raises:
        AuthorityError: one is no name or address of a host.
    """
    _alternatives(hosts)


def _alternatives(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Return the names of a certificate.

    Raises:
        AuthorityError: one is no name of a host.
    """
    if not hosts:
        raise AuthorityError("a certificate needs the controller's name: --host NAME")
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not hostlists.is_name(host):
                raise AuthorityError(
                    f"found {found_values.quote(host)}, expected a name or address, without scheme "
                    "and port"
                ) from None
            found.append(x509.DNSName(host))
    return found


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file as a whole; it never has another mode."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise

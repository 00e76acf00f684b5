"""Files for a secured broker in development: an authority, the broker's certificate, a user, and clients' properties.

`kohort broker --secure DIR`, `Broker(secure=DIR)` and the pytest fixture use them. The folder keeps them from one start
to the next. Its files are readable by their owner alone. They are no substitute for an operator's own certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kohort.errors import InvalidInputError
from kohort.settings.config import read_users

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY, AUTHORITY_KEY, SERVER, USERS = "ca.pem", "ca-key.pem", "server.pem", "users.properties"
JAVA, LIBRDKAFKA, KOHORT = "client-java.properties", "client-librdkafka.properties", "client-kohort.properties"
USER = "developer"
MECHANISM = "SCRAM-SHA-512"
DAYS = 365
RENEW_DAYS = 30
"""A certificate that ends sooner is made anew."""
LISTENER = "SASL_SSL"


class DevelopmentFiles(NamedTuple):
    """The keys, certificates and users in the folder of a secured development broker."""

    folder: Path

    def broker_properties(self) -> dict[str, str]:
        """Return the broker's settings for TLS and logins with these files."""
        return {
            "ssl.keystore.location": str(self.folder / SERVER),
            "sasl.users.location": str(self.folder / USERS),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        }

    def client_properties(self, servers: str) -> dict[str, str]:
        """Return a client's settings under Kafka's names, as kohort's clients take them."""
        password = read_users(self.folder / USERS)[USER]
        return {
            "bootstrap.servers": servers,
            "security.protocol": LISTENER,
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": password,
            "ssl.ca.location": str(self.folder / AUTHORITY),
        }

    def write_client_files(self, servers: str) -> None:
        """Write the properties files of Java's, librdkafka's and kohort's clients, for a broker at this address."""
        of_kohort = self.client_properties(servers)
        of_librdkafka = {"sasl.mechanisms" if key == "sasl.mechanism" else key: of_kohort[key] for key in of_kohort}
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        of_java = {key: of_kohort[key] for key in ("bootstrap.servers", "security.protocol", "sasl.mechanism")} | {
            "sasl.jaas.config": f'{login} username="{USER}" password="{of_kohort["sasl.password"]}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": of_kohort["ssl.ca.location"],
        }
        for name, properties in ((KOHORT, of_kohort), (LIBRDKAFKA, of_librdkafka), (JAVA, of_java)):
            text = "".join(f"{key}={value}\n" for key, value in properties.items())
            _write_private(self.folder / name, text.encode())


def _write_private(path: Path, data: bytes) -> None:
    """Replace a file by one that only its owner can read."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)


def development_files(folder: Path, hosts: Iterable[str]) -> DevelopmentFiles:
    """Create the missing files of a folder of development keys and certificates.

    Args:
        folder: created if missing.
        hosts: names and addresses that clients connect to, besides this machine's own.

    Raises:
        InvalidInputError: the package cryptography is missing, or a file in the folder has something else. Also if
            another user may have put files there.
        OSError: a file can't be written.
    """
    try:
        import cryptography
    except ImportError:
        raise InvalidInputError("certificates take the package cryptography: pip install 'kohort[security]'") from None
    del cryptography
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()
    _refuse_others_files(folder)
    try:
        own = {"localhost", "127.0.0.1", "::1", socket.gethostname()}
        _make_certificates(folder, (own | {*hosts}) - {"", "0.0.0.0", "::"})
    except ValueError as error:
        raise InvalidInputError(f"{folder}: {AUTHORITY}, {AUTHORITY_KEY} or {SERVER} is damaged: {error}") from None
    users = folder / USERS
    if not users.exists():
        _write_private(users, f"{USER}={secrets.token_urlsafe(24)}\n".encode())
    elif USER not in read_users(users):
        raise InvalidInputError(f"{users} has no user {USER}; add a line, or remove the file")
    return DevelopmentFiles(folder)


def _refuse_others_files(folder: Path) -> None:
    """Refuse a folder whose keys or passwords another user of this machine may have put there, and so may know."""
    if folder.stat().st_mode & 0o022:
        raise InvalidInputError(
            f"others may write into {folder}, so keys and passwords there may be theirs: name another folder, or look "
            f"at the files and chmod 700 {folder}"
        )
    for path in (folder, *(folder / name for name in (AUTHORITY, AUTHORITY_KEY, SERVER, USERS))):
        if path.exists() and path.lstat().st_uid != os.geteuid():
            raise InvalidInputError(f"{path} belongs to another user, who may know what is in it: name another folder")


def _make_certificates(folder: Path, hosts: set[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    authority, key_file, server = folder / AUTHORITY, folder / AUTHORITY_KEY, folder / SERVER
    if authority.exists() and key_file.exists() and not _ends_soon(authority):
        key = load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{AUTHORITY_KEY} has a key of another kind")
        issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = _authority(key)
        _write_private(key_file, _pem_of(key))
        _write_private(authority, _certificate_pem(issuer))
        server.unlink(missing_ok=True)
    if server.exists() and not _ends_soon(server) and hosts <= _hosts_of(server):
        return
    own = ec.generate_private_key(ec.SECP256R1())
    _write_private(server, _pem_of(own) + _certificate_pem(_server_certificate(own, key, issuer, sorted(hosts))))


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    data: bytes = certificate.public_bytes(Encoding.PEM)
    return data


def _ends_soon(path: Path) -> bool:
    from cryptography import x509

    limit = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=RENEW_DAYS)
    end: datetime.datetime = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    return end < limit


def _hosts_of(path: Path) -> set[str]:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"),
        False,
    )  # fmt: skip
    name = "kohort development authority"
    return (
        _builder(name, key)
        .issuer_name(_name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(
    own: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey, issuer: x509.Certificate, hosts: list[str]
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return (
        _builder("kohort broker", own)
        .issuer_name(issuer.subject)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )

"""An Apache Kafka with TLS, SASL and access rules, and the certificates it needs."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kohort.zookeeper import free_ports
from tests.support.apache_kafka import ApacheKafka

_DAYS = "2"


def openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """An authority, the broker's certificate and a client's, an expired one and one of another host, as PEM files.

    Each process makes one set and copies it: five RSA keys take two seconds, and hundreds of tests need them.
    """
    shutil.copytree(_certificates(), folder, dirs_exist_ok=True)


@cache
def _certificates() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kohort-certificates-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(folder, *new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", _DAYS, "-subj", "/CN=trial")
    (folder / "ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("broker", "client"):
        openssl(folder, *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        sign = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(folder, *sign, "-out", f"{name}.crt", "-days", _DAYS, "-extfile", "ext")
        openssl(folder, "pkcs8", "-topk8", "-nocrypt", "-in", f"{name}.key", "-out", f"{name}.p8")
        (folder / f"{name}.pem").write_text((folder / f"{name}.p8").read_text() + (folder / f"{name}.crt").read_text())
    (folder / "ext-elsewhere").write_text("subjectAltName=DNS:broker.example")
    for name, days, extensions in (("expired", "-1", "ext"), ("elsewhere", _DAYS, "ext-elsewhere")):
        sign = ("x509", "-req", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(folder, *sign, "-out", f"{name}.crt", "-days", days, "-extfile", extensions)
        (folder / f"{name}.pem").write_text((folder / "broker.p8").read_text() + (folder / f"{name}.crt").read_text())
    return folder


class SecuredKafka(ApacheKafka):
    """Listeners beside the plain one.

    TLS, TLS with client certificates, SASL, and SASL over TLS. SASL whose logins last two seconds. TLS with a
    certificate that has expired, and with one of another host. Rights by StandardAuthorizer.

    Super users are alice, whose password is "secret", the holder of the client certificate, and whoever comes in plain.
    With PLAIN, bob and carol log in too, with the same password, and have no rights.
    """

    def __init__(self, certificates: Path, settings: Mapping[str, str] | None = None, **options: Any) -> None:
        """Start it. `settings` and `options` are those of `ApacheKafka`."""
        self.certificates = certificates
        super().__init__(settings, **options)

    def _format(self) -> None:
        names = ("TLS", "MUTUAL", "SASL", "BOTH", "SHORT", "EXPIRED", "ELSEWHERE")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        extra = "".join(f",{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        lines = []
        for line in self._properties.read_text().splitlines():
            if line.startswith(("listeners=", "advertised.listeners=")):
                line += extra
            if line.startswith("listener.security.protocol.map="):
                line += ",TLS:SSL,MUTUAL:SSL,SASL:SASL_PLAINTEXT,BOTH:SASL_SSL,SHORT:SASL_PLAINTEXT"
                line += ",EXPIRED:SSL,ELSEWHERE:SSL"
            lines.append(line)
        self._properties.write_text("\n".join([*lines, *self._security()]) + "\n")
        super()._format()

    def _security(self) -> list[str]:
        login = "org.apache.kafka.common.security"
        users = " ".join(f'user_{name}="secret"' for name in ("alice", "bob", "carol"))
        jaas = {
            "plain": f"{login}.plain.PlainLoginModule required {users};",
            "scram-sha-256": f"{login}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{login}.scram.ScramLoginModule required;",
            "oauthbearer": f'{login}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";',
        }
        return [
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={self.certificates / 'broker.pem'}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.certificates / 'ca.pem'}",
            "listener.name.mutual.ssl.client.auth=required",
            *(
                f"listener.name.{name}.ssl.keystore.{key}"
                for name in ("expired", "elsewhere")
                for key in ("type=PEM", f"location={self.certificates / f'{name}.pem'}")
            ),
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.both.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
            *(
                f"listener.name.{listener}.{mechanism}.sasl.jaas.config={module}"
                for listener in ("sasl", "both", "short")
                for mechanism, module in jaas.items()
            ),
            "listener.name.short.connections.max.reauth.ms=2000",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS;User:alice;User:CN=client",
        ]

    def client(self, listener: str, **settings: Any) -> tuple[str, dict[str, Any]]:
        """Address and settings for one of the listeners; `settings` go before those of alice and PLAIN."""
        chosen: dict[str, Any] = {}
        if listener in ("TLS", "MUTUAL", "BOTH", "EXPIRED", "ELSEWHERE"):
            chosen |= {"ssl_ca_location": str(self.certificates / "ca.pem"), "security_protocol": "SSL"}
        if listener == "MUTUAL":
            chosen["ssl_certificate_location"] = str(self.certificates / "client.crt")
            chosen["ssl_key_location"] = str(self.certificates / "client.key")
        if listener in ("SASL", "BOTH", "SHORT"):
            chosen["security_protocol"] = "SASL_SSL" if listener == "BOTH" else "SASL_PLAINTEXT"
            if settings.get("sasl_mechanism") != "OAUTHBEARER":
                chosen |= {"sasl_username": "alice", "sasl_password": "secret"}
        return f"127.0.0.1:{self.ports[listener]}", chosen | settings

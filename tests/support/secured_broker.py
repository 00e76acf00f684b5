"""A broker of ours with a listener of each kind, its certificates, and the settings that each client project takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from kohort import Admin, Broker
from kohort.client.admin.values import ScramCredential, ScramMechanism
from tests.support.secured_kafka import make_certificates, openssl

PROTOCOLS = {
    "PLAIN": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
}
PASSWORD = "secret-of-alice"
AUDIENCE, ISSUER = "kafka", "https://issuer.example"
SHORT_MS = 2_000
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class SecuredBroker:
    """The broker, with what clients need. Users are alice (SCRAM and PLAIN) and the holders of certificates."""

    def __init__(self, broker: Broker, folder: Path, key: ECKey) -> None:
        self.broker = broker
        self.folder = folder
        self._key = key

    def address(self, listener: str) -> str:
        return self.broker.listeners[listener]

    def token(self, user: str = "alice", **claims: Any) -> str:
        """A token that the listeners accept, or would but for `claims`."""
        now = int(time.time())
        chosen = {"sub": user, "iat": now, "exp": now + 300, "iss": ISSUER, "aud": AUDIENCE, **claims}
        return jwt.encode({"alg": "ES256", "kid": "key-1"}, chosen, self._key)

    def settings(self, listener: str, mechanism: str = "PLAIN", **others: str) -> dict[str, str]:
        """A client's settings under librdkafka's names, which ours takes as well."""
        protocol = PROTOCOLS[listener]
        chosen = {"bootstrap.servers": self.address(listener), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            chosen["ssl.ca.location"] = str(self.folder / "ca.pem")
        if listener == "MUTUAL":
            chosen["ssl.certificate.location"] = str(self.folder / "client.crt")
            chosen["ssl.key.location"] = str(self.folder / "client.key")
        if protocol.startswith("SASL"):
            chosen["sasl.mechanism"] = mechanism
            if mechanism != "OAUTHBEARER":
                chosen |= {"sasl.username": "alice", "sasl.password": PASSWORD}
        return chosen | others


def more_certificates(folder: Path) -> None:
    """A client certificate that has expired, and an authority that nobody trusts with one of its own."""
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(
        folder, *new, "-x509", "-keyout", "other-ca.key", "-out", "other-ca.pem", "-days", "2", "-subj", "/CN=other"
    )
    for name, days, authority in (("old-client", "-1", "ca"), ("stranger", "2", "other-ca")):
        sign = ("x509", "-req", "-in", "client.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key")
        openssl(folder, *sign, "-CAcreateserial", "-out", f"{name}.crt", "-days", days)


def broker_config(folder: Path) -> dict[str, str]:
    """The broker's settings."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.expired.ssl.keystore.location": str(folder / "expired.pem"),
        "listener.name.elsewhere.ssl.keystore.location": str(folder / "elsewhere.pem"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.short.connections.max.reauth.ms": str(SHORT_MS),
        "listener.name.short.plain.sasl.jaas.config": f'{_MODULE} user_alice="{PASSWORD}" user_bob="{PASSWORD}";',
        "connection.failed.authentication.delay.ms": "20",
        "num.partitions": "2",
        "queued.max.response.bytes": str(4 << 20),
    }


@contextmanager
def secured_broker(folder: Path, **config: str) -> Iterator[SecuredBroker]:
    """Start it."""
    folder.mkdir(exist_ok=True)
    make_certificates(folder)
    more_certificates(folder)
    key = ECKey.generate_key("P-256", {"kid": "key-1"})
    (folder / "keys.json").write_text(json.dumps(KeySet([key]).as_dict(private=False)))
    listen = ",".join(f"{name}://127.0.0.1:0" for name in PROTOCOLS)
    with Broker(folder / "data", broker_config(folder) | config, listen) as broker:
        with Admin(broker.listeners["PLAIN"]) as admin:
            for mechanism in get_args(ScramMechanism):
                admin.alter_user_scram_credentials([ScramCredential("alice", PASSWORD, mechanism)]).all()
        yield SecuredBroker(broker, folder, key)

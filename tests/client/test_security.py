"""TLS and SASL against a real Apache Kafka, and the mechanisms' own arithmetic."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.values import NewTopic
from kohort.client.net.security import SaslError, Scram
from kohort.errors import InvalidInputError, KafkaError, TimedOutError
from kohort.zookeeper import free_port
from tests.support.apache_kafka import ApacheKafka
from tests.support.maven import MavenUnavailable


def openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, the broker's certificate and a client's, as PEM files."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    openssl(
        folder,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-days",
        "2",
        "-subj",
        "/CN=trial",
    )
    for name in ("broker", "client"):
        openssl(
            folder,
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        (folder / "ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        openssl(
            folder,
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            f"{name}.crt",
            "-days",
            "2",
            "-extfile",
            "ext",
        )
        openssl(folder, "pkcs8", "-topk8", "-nocrypt", "-in", f"{name}.key", "-out", f"{name}.p8")
        (folder / f"{name}.pem").write_text((folder / f"{name}.p8").read_text() + (folder / f"{name}.crt").read_text())
    return folder


class SecuredKafka(ApacheKafka):
    """Beside the plain listener: one with TLS (client certificates needed), one with SASL, one with both."""

    certificates: Path

    def _format(self) -> None:
        self.ports = {name: free_port() for name in ("TLS", "SASL", "BOTH")}
        text = self._properties.read_text()
        extra = "".join(f",{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        lines = []
        for line in text.splitlines():
            if line.startswith(("listeners=", "advertised.listeners=")):
                line += extra
            if line.startswith("listener.security.protocol.map="):
                line += ",TLS:SSL,SASL:SASL_PLAINTEXT,BOTH:SASL_SSL"
            lines.append(line)
        folder = self.certificates
        plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        bearer = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";'
        lines += [
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={folder / 'broker.pem'}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={folder / 'ca.pem'}",
            "listener.name.tls.ssl.client.auth=required",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            *(f"listener.name.{name}.plain.sasl.jaas.config={plain}" for name in ("sasl", "both")),
            *(
                f"listener.name.{name}.scram-sha-{bits}.sasl.jaas.config={scram}"
                for name in ("sasl", "both")
                for bits in (256, 512)
            ),
            *(f"listener.name.{name}.oauthbearer.sasl.jaas.config={bearer}" for name in ("sasl", "both")),
        ]
        self._properties.write_text("\n".join(lines) + "\n")
        super()._format()


@pytest.fixture(scope="session")
def secured(certificates: Path) -> Iterator[SecuredKafka]:
    SecuredKafka.certificates = certificates
    try:
        kafka = SecuredKafka()
    except MavenUnavailable as error:
        pytest.skip(f"Apache Kafka can't run here: {error}")
    with kafka:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            done = kafka.tools.run(
                "kafka.admin.ConfigCommand",
                *("--bootstrap-server", kafka.bootstrap_servers, "--alter", "--entity-type", "users"),
                *("--entity-name", "alice", "--add-config", f"{mechanism}=[password=secret]"),
            )
            assert done.returncode == 0, done.stderr
        yield kafka


def token() -> str:
    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    now = int(time.time())
    return f"{part({'alg': 'none'})}.{part({'sub': 'alice', 'iat': now - 10, 'exp': now + 300})}."


def settings(kafka: SecuredKafka, way: str) -> tuple[str, dict[str, object]]:
    folder = kafka.certificates
    tls = {"ssl_ca_location": str(folder / "ca.pem")}
    login = {"sasl_username": "alice", "sasl_password": "secret"}
    ways: dict[str, tuple[str, dict[str, object]]] = {
        "mutual TLS": (
            "TLS",
            {
                "security_protocol": "SSL",
                "ssl_certificate_location": str(folder / "client.crt"),
                "ssl_key_location": str(folder / "client.key"),
                **tls,
            },
        ),
        "PLAIN": ("SASL", {"security_protocol": "SASL_PLAINTEXT", **login}),
        "SCRAM-SHA-256": ("SASL", {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **login}),
        "SCRAM-SHA-512 over TLS": (
            "BOTH",
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", **login, **tls},
        ),
        "OAUTHBEARER": (
            "SASL",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token": token},
        ),
    }
    listener, chosen = ways[way]
    return f"127.0.0.1:{kafka.ports[listener]}", chosen


@pytest.mark.kafka
@pytest.mark.parametrize("way", ["mutual TLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512 over TLS", "OAUTHBEARER"])
def test_records_pass_over_every_secured_listener(secured: SecuredKafka, way: str) -> None:
    servers, chosen = settings(secured, way)
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(servers, **chosen) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
    with Producer(servers, **chosen) as producer:
        for _ in range(40):
            producer.send(topic, b"x" * 10_000)
        producer.flush(30)
    with Consumer(servers, auto_offset_reset="earliest", group_id=topic, **chosen) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        seen = 0
        deadline = time.monotonic() + 20
        while seen < 40 and time.monotonic() < deadline:
            seen += sum(record.value == b"x" * 10_000 for record in consumer.poll(500))
        assert seen == 40
        consumer.commit()


@pytest.mark.kafka
def test_a_wrong_password_is_said_at_once(secured: SecuredKafka) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        servers, chosen = settings(secured, "PLAIN")
        chosen |= {"sasl_mechanism": mechanism, "sasl_password": "guess"}
        started = time.monotonic()
        with Consumer(servers, **chosen) as consumer, pytest.raises(SaslError, match=mechanism):
            consumer.end_offsets([TopicPartition("a", 0)])
        assert time.monotonic() - started < 10


@pytest.mark.kafka
def test_an_untrusted_broker_is_refused_by_name(secured: SecuredKafka) -> None:
    servers, chosen = settings(secured, "SCRAM-SHA-512 over TLS")
    del chosen["ssl_ca_location"]
    with (
        Consumer(servers, default_api_timeout_ms=2000, **chosen) as consumer,
        pytest.raises(KafkaError, match="not trusted"),
    ):
        consumer.end_offsets([TopicPartition("a", 0)])


@pytest.mark.kafka
def test_plain_text_to_a_tls_listener_is_a_clear_failure(secured: SecuredKafka) -> None:
    servers = f"127.0.0.1:{secured.ports['TLS']}"
    with Consumer(servers, default_api_timeout_ms=2000) as consumer, pytest.raises(TimedOutError, match=servers):
        consumer.end_offsets([TopicPartition("a", 0)])


def test_what_a_mechanism_needs_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"sasl\.username"):
        Consumer("127.0.0.1:1", security_protocol="SASL_PLAINTEXT")
    with pytest.raises(InvalidInputError, match="can't load TLS files /nowhere"):
        Consumer("127.0.0.1:1", security_protocol="SSL", ssl_ca_location="/nowhere")


def test_scram_follows_the_example_of_its_standard() -> None:
    """Source: RFC 7677, section 3."""
    exchange = Scram("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert exchange.start() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = exchange.next(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.next(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None
    with pytest.raises(SaslError, match="did not prove"):
        exchange.next(b"v=AAAA")


def test_secrets_do_not_show_in_a_configuration() -> None:
    consumer = Consumer("127.0.0.1:1", sasl_password="very secret", sasl_jaas_config='password="also secret"')
    assert "secret" not in repr(consumer.config)

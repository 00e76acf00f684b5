"""Java's clients and tools against the broker's TLS and logins."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Broker, Consumer
from kohort.broker.security.development import JAVA, DevelopmentFiles
from tests.support.apache_kafka import KafkaTools
from tests.support.secured_broker import PASSWORD, PROTOCOLS, SecuredBroker, secured_broker
from tests.support.waiting import until

pytestmark = [pytest.mark.peer, pytest.mark.kafka, pytest.mark.timeout(300)]
LOGIN = "org.apache.kafka.common.security"
MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def properties(secured: SecuredBroker, folder: Path, listener: str, mechanism: str = "", **others: str) -> str:
    """A client's properties file."""
    protocol = PROTOCOLS[listener]
    lines = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        lines |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secured.folder / "ca.pem")}
    if listener == "MUTUAL":
        lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(secured.folder / "client.pem")}
    if mechanism:
        password = others.pop("password", PASSWORD)
        module = f'{LOGIN}.{MODULES[mechanism]} required username="alice" password="{password}";'
        lines |= {"sasl.mechanism": mechanism, "sasl.jaas.config": module}
    file = folder / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in (lines | others).items()))
    return str(file)


def topics(kafka_tools: KafkaTools, servers: str, config: str, *args: str) -> subprocess.CompletedProcess[str]:
    return kafka_tools.run(
        KafkaTools.TOPICS, "--bootstrap-server", servers, "--command-config", config, *args, timeout_s=120
    )


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("MUTUAL", ""),
        ("TLS", ""),
        ("SASL", "PLAIN"),
        ("BOTH", "PLAIN"),
        ("BOTH", "SCRAM-SHA-256"),
        ("BOTH", "SCRAM-SHA-512"),
    ],
)
def test_javas_client_gets_in(
    secured: SecuredBroker, kafka_tools: KafkaTools, tmp_path: Path, listener: str, mechanism: str
) -> None:
    config = properties(secured, tmp_path, listener, mechanism)
    name = f"java-{listener}-{mechanism}".lower()
    done = topics(kafka_tools, secured.address(listener), config, "--create", "--topic", name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("listener", "mechanism", "others", "text"),
    [
        ("SASL", "PLAIN", {"password": "guess"}, "Authentication failed: Invalid username or password"),
        ("BOTH", "SCRAM-SHA-512", {"password": "guess"}, "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        ("EXPIRED", "", {}, "SSL handshake failed"),
        ("ELSEWHERE", "", {}, "SSL handshake failed"),
        ("TLS", "", {"ssl.truststore.location": "other-ca.pem"}, "SSL handshake failed"),
        ("MUTUAL", "", {"ssl.keystore.location": "", "ssl.keystore.type": ""}, "SslAuthenticationException"),
    ],
)
def test_javas_client_is_refused(
    secured: SecuredBroker,
    kafka_tools: KafkaTools,
    tmp_path: Path,
    listener: str,
    mechanism: str,
    others: dict[str, str],
    text: str,
) -> None:
    changes = {key: str(secured.folder / value) if value.endswith("pem") else value for key, value in others.items()}
    config = properties(secured, tmp_path, listener, mechanism, **changes)
    if "ssl.keystore.type" in others:
        kept = [line for line in Path(config).read_text().splitlines() if not line.startswith("ssl.keystore")]
        Path(config).write_text("\n".join(kept))
    done = topics(kafka_tools, secured.address(listener), config, "--list")
    assert done.returncode != 0
    assert text in done.stdout + done.stderr


def test_javas_producer_renews_its_login_under_load(
    secured: SecuredBroker, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    """Each login lasts two seconds, and the producer writes for about eight."""
    config = properties(secured, tmp_path, "SHORT", "PLAIN")
    args = ("--topic", "java-load", "--num-records", "4000", "--record-size", "100", "--throughput", "500")
    given = ("--bootstrap-server", secured.address("SHORT"), "--command-config", config)
    done = kafka_tools.run(KafkaTools.PRODUCER_PERFORMANCE, *args, *given, timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^4000 records sent", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert "Exception" not in done.stdout + done.stderr
    with Consumer(secured.address("PLAIN"), auto_offset_reset="earliest", group_id="java-load") as consumer:
        consumer.subscribe(["java-load"])
        count = 0

        def read() -> bool:
            nonlocal count
            count += len(consumer.poll(500))
            return count >= 4000

        until(read, "all records are read", 60)
    assert count == 4000


def test_javas_file_of_the_development_folder_works_as_it_stands(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    with Broker(tmp_path / "data", secure=tmp_path / "files") as broker:
        DevelopmentFiles(tmp_path / "files").write_client_files(broker.bootstrap_servers)
        done = topics(kafka_tools, broker.bootstrap_servers, str(tmp_path / "files" / JAVA), "--create", "--topic", "t")
        assert done.returncode == 0, done.stdout + done.stderr

"""Key and trust stores of listeners changed by requests, as Kafka's administrators do it (KIP-226, KIP-651)."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from kohort import Admin, Broker
from kohort.client.admin.values import ConfigResource, ResourceType
from kohort.errors import ErrorCode, KafkaError
from kohort.wire.discovery import AlterConfigsRequest, IncrementalAlterConfigsRequest, MetadataRequest
from tests.broker.raw import RawClient
from tests.broker.security.test_tls import TlsClient
from tests.support.secured_kafka import make_certificates, openssl

METADATA = MetadataRequest(topics=[])
LOCATION, PASSWORD = "listener.name.tls.ssl.keystore.location", "listener.name.tls.ssl.keystore.password"
TRUSTED = "listener.name.tls.ssl.truststore.location"
LISTEN = "TLS://127.0.0.1:0,PLAIN://127.0.0.1:0"
MAP = {"listener.security.protocol.map": "TLS:SSL,PLAIN:PLAINTEXT"}
THIS = ConfigResource(ResourceType.BROKER, "1")


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Return a folder with `broker.pem`, and `renewed.pem` with another certificate of the same key."""
    make_certificates(tmp_path)
    sign = ("x509", "-req", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    openssl(tmp_path, *sign, "-out", "renewed.crt", "-days", "2", "-extfile", "ext")
    renewed = (tmp_path / "broker.p8").read_text() + (tmp_path / "renewed.crt").read_text()
    (tmp_path / "renewed.pem").write_text(renewed)
    return tmp_path


def started(folder: Path, **config: str) -> Broker:
    keys = {"ssl.keystore.location": str(folder / "broker.pem")}
    return Broker(folder / "data", keys | MAP | config, LISTEN)


def serial_of(broker: Broker, folder: Path, certificate: str | None = None) -> str:
    with TlsClient(broker.listeners["TLS"], folder, certificate) as client:
        assert client.ask(METADATA).brokers
        return client.serial


def alter(broker: Broker, changes: Mapping[str, str | None], validate_only: bool = False) -> tuple[int, str]:
    make = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        make.AlterableConfig(name=name, config_operation=0 if value is not None else 1, value=value)
        for name, value in changes.items()
    ]
    resource = make(resource_type=4, resource_name="1", configs=configs)
    with RawClient(broker.listeners["PLAIN"]) as client:
        asked = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        answer = client.ask(asked).responses[0]
    return answer.error_code, answer.error_message or ""


def test_key_store_of_a_listener_is_replaced_and_stays_so_after_a_restart(certificates: Path) -> None:
    with started(certificates) as broker:
        first = serial_of(broker, certificates)
        assert alter(broker, {LOCATION: str(certificates / "renewed.pem")}, validate_only=True) == (0, "")
        assert serial_of(broker, certificates) == first, "it was only checked"
        with TlsClient(broker.listeners["TLS"], certificates) as before:
            assert alter(broker, {LOCATION: str(certificates / "renewed.pem")}) == (0, "")
            second = serial_of(broker, certificates)
            assert second != first
            assert before.ask(METADATA).brokers, "connections from before go on"
    with started(certificates) as broker:
        assert serial_of(broker, certificates) == second
        assert alter(broker, {LOCATION: None}) == (0, "")
        assert serial_of(broker, certificates) == first, "that of the broker's start"


def test_store_of_the_same_name_is_read_again_at_once(certificates: Path) -> None:
    used = certificates / "used.pem"
    shutil.copy(certificates / "broker.pem", used)
    with started(certificates, **{"ssl.keystore.location": str(used)}) as broker:
        first = serial_of(broker, certificates)
        shutil.copy(certificates / "renewed.pem", certificates / "new.pem")
        os.replace(certificates / "new.pem", used)
        assert alter(broker, {LOCATION: str(used)}) == (0, "")
        assert serial_of(broker, certificates) != first


def test_trust_store_of_a_listener_is_replaced(certificates: Path) -> None:
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-x509", "-keyout", "o.key", "-out", "other.pem", "-days", "2")
    openssl(certificates, *new, "-subj", "/CN=other")
    trusting = {"ssl.client.auth": "required", "ssl.truststore.location": str(certificates / "ca.pem")}
    with started(certificates, **trusting) as broker:
        assert serial_of(broker, certificates, "client")
        assert alter(broker, {TRUSTED: str(certificates / "other.pem")}) == (0, "")
        with pytest.raises((ssl.SSLError, OSError)):
            serial_of(broker, certificates, "client")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({LOCATION: "/no/such/file.pem"}, "can't load the key and certificate"),
        ({LOCATION: "damaged"}, "can't load the key and certificate"),
        ({LOCATION: "damaged.p12"}, "damaged.p12"),
        ({TRUSTED: "damaged.p12"}, ""),
        ({LOCATION: "pipe"}, "is no file"),
        ({LOCATION: "folder"}, "is no file"),
        ({TRUSTED: "pipe"}, "is no file"),
        ({"ssl.keystore.location": "renewed.pem"}, "per-listener"),
        ({"listener.name.plain.ssl.keystore.location": "renewed.pem"}, "no listener with TLS"),
        ({"listener.name.none.ssl.keystore.location": "renewed.pem"}, "no listener with TLS"),
        ({"listener.name.tls.ssl.client.auth": "required"}, "can't be altered"),
    ],
)
def test_store_that_can_not_be_used_is_refused_and_the_one_before_stays(
    certificates: Path, changes: dict[str, str], said: str
) -> None:
    (certificates / "damaged").write_text("half a file")
    (certificates / "damaged.p12").write_bytes(b"\x30\x82\xff\xff" + bytes(200))
    (certificates / "folder").mkdir()
    os.mkfifo(certificates / "pipe")
    with started(certificates) as broker:
        first = serial_of(broker, certificates)
        located = {name: str(certificates / value) if "/" not in value else value for name, value in changes.items()}
        code, text = alter(broker, located)
        assert code == ErrorCode.INVALID_REQUEST and said in text
        assert serial_of(broker, certificates) == first
    with started(certificates) as broker:
        assert serial_of(broker, certificates) == first


def test_stores_are_not_for_all_brokers(certificates: Path) -> None:
    with started(certificates) as broker, Admin(broker.listeners["PLAIN"]) as admin:
        changes = {ConfigResource(ResourceType.BROKER, ""): {LOCATION: str(certificates / "renewed.pem")}}
        with pytest.raises(KafkaError, match="default cluster level"):
            admin.incremental_alter_configs(changes).all()


def test_description_has_no_passwords(certificates: Path) -> None:
    with started(certificates) as broker, Admin(broker.listeners["PLAIN"]) as admin:
        changes = {LOCATION: str(certificates / "renewed.pem"), PASSWORD: "of-the-store"}
        admin.incremental_alter_configs({THIS: changes}).all()
        entries = admin.describe_configs([THIS]).values[THIS]
        assert entries[LOCATION].value == str(certificates / "renewed.pem")
        assert entries[PASSWORD].value is None and entries[PASSWORD].sensitive
    assert (certificates / "data" / "broker-settings.json").stat().st_mode & 0o777 == 0o600
    assert "of-the-store" not in "".join(path.read_text() for path in (certificates / "data").glob("audit.log*"))


def test_all_settings_replaced_at_once_take_the_store_back(certificates: Path) -> None:
    """AlterConfigs names what stays; a store that it leaves out is that of the broker's start again."""
    make = AlterConfigsRequest.AlterConfigsResource
    with started(certificates) as broker, RawClient(broker.listeners["PLAIN"]) as client:
        first = serial_of(broker, certificates)
        assert alter(broker, {LOCATION: str(certificates / "renewed.pem")}) == (0, "")
        resource = make(resource_type=4, resource_name="1", configs=[])
        assert client.ask(AlterConfigsRequest(resources=[resource])).responses[0].error_code == 0
        assert serial_of(broker, certificates) == first

"""TLS under load and change: large answers to slow readers, new certificates, strangers, and users by certificate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kohort import Admin, Broker
from kohort.broker.run import BrokerServer
from kohort.broker.security import key_sets, pending
from kohort.broker.security.principals import Principal
from kohort.errors import InvalidInputError
from kohort.wire.discovery import MetadataRequest
from kohort.wire.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.broker.raw import RawClient, batch_of, create_topic, fetch_request, produce
from tests.support.secured_broker import SecuredBroker
from tests.support.secured_kafka import make_certificates, openssl
from tests.support.waiting import until

METADATA = MetadataRequest(topics=[])


class TlsClient(RawClient):
    """A `RawClient` over TLS."""

    def __init__(self, address: str, folder: Path, certificate: str | None = None) -> None:
        super().__init__(address)
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        if certificate is not None:
            context.load_cert_chain(folder / f"{certificate}.crt", folder / f"{certificate}.key")
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")

    @property
    def serial(self) -> str:
        """The number of the broker's certificate."""
        assert isinstance(self.sock, ssl.SSLSocket)
        found = self.sock.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


@pytest.fixture(scope="module")
def filled(secured: SecuredBroker) -> str:
    """A topic of 12 MB in batches of 600 KB."""
    with RawClient(secured.address("PLAIN")) as client:
        create_topic(client, "filled")
        for number in range(20):
            assert produce(client, "filled", 0, batch_of(bytes([number]) * 600_000)).error_code == 0
    return "filled"


def large_fetch(topic: str) -> object:
    request = fetch_request(topic, 0, 0)
    request.topics[0].partitions[0].partition_max_bytes = 50 << 20
    return request


def test_fetch_over_tls_has_the_bytes_of_the_log(secured: SecuredBroker, filled: str) -> None:
    with RawClient(secured.address("PLAIN")) as plain, TlsClient(secured.address("TLS"), secured.folder) as client:
        plain.send(large_fetch(filled), 12)
        expected = plain.frame()
        assert len(expected) > 12_000_000
        for _ in range(3):
            client.send(large_fetch(filled), 12)
            assert client.frame()[8:] == expected[8:]


def test_reader_that_does_not_read_is_waited_for_and_others_are_served(secured: SecuredBroker, filled: str) -> None:
    with TlsClient(secured.address("TLS"), secured.folder) as slow:
        for _ in range(4):  # many times queued.max.response.bytes
            slow.send(large_fetch(filled), 12)
        with TlsClient(secured.address("TLS"), secured.folder) as other:
            for _ in range(50):
                assert other.ask(METADATA).brokers
        for _ in range(4):
            assert len(slow.frame()) > 12_000_000


def test_large_and_many_small_requests_arrive_whole(secured: SecuredBroker) -> None:
    with TlsClient(secured.address("TLS"), secured.folder) as client:
        create_topic(client, "written")
        for size in (1, 16_383, 16_384, 16_385, 262_144, 262_145, 900_000):
            assert produce(client, "written", 0, batch_of(b"v" * size)).error_code == 0
        for _ in range(2_000):
            client.send(METADATA)
        for _ in range(2_000):
            assert client.receive().brokers


def test_records_split_anywhere_are_put_together(secured: SecuredBroker) -> None:
    """Bytes of a TLS record that arrive one by one, as from a slow network."""
    server = socket.create_connection(tuple(secured.address("TLS").split(":")))
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")

    def send() -> None:
        for byte in outgoing.read():
            server.sendall(bytes([byte]))

    def step(action: Callable[[], bytes | None]) -> bytes | None:
        while True:
            try:
                return action()
            except ssl.SSLWantReadError:
                send()
                incoming.write(server.recv(65536))

    with server:
        step(tls.do_handshake)
        from kohort.wire import framing

        tls.write(framing.encode_request(METADATA, METADATA.MAX_VERSION, 7, "slow"))
        send()
        assert (step(lambda: tls.read(8)) or b"")[4:8] == b"\0\0\0\x07"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken_and_older_ones_are_not(secured: SecuredBroker, version: ssl.TLSVersion) -> None:
    host, port = secured.address("TLS").split(":")
    context = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    context.minimum_version = context.maximum_version = version
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname="localhost"):
        pass
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((host, int(port))) as plain, pytest.raises(ssl.SSLError):
        old.wrap_socket(plain)


def test_new_certificates_serve_new_connections_without_a_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_certificates(tmp_path)
    used = tmp_path / "used.pem"
    shutil.copy(tmp_path / "broker.pem", used)
    with Broker(
        tmp_path / "data", {"ssl.keystore.location": str(used)}, "SSL://127.0.0.1:0", log_level="INFO"
    ) as broker:
        first = TlsClient(broker.bootstrap_servers, tmp_path)
        used.write_text("half a file")
        sign = ("x509", "-req", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        until(lambda: "changed TLS certificate files ignored" in capfd.readouterr().err, "the damaged file is noticed")
        with TlsClient(broker.bootstrap_servers, tmp_path) as between:
            assert between.serial == first.serial
        openssl(tmp_path, *sign, "-out", "renewed.crt", "-days", "2", "-extfile", "ext")
        new = tmp_path / "new.pem"
        new.write_text((tmp_path / "broker.p8").read_text() + (tmp_path / "renewed.crt").read_text())
        os.replace(new, used)

        def renewed() -> bool:
            with TlsClient(broker.bootstrap_servers, tmp_path) as client:
                return client.serial != first.serial and bool(client.ask(METADATA).brokers)

        until(renewed, "the new certificate is shown")
        assert first.ask(METADATA).brokers, "connections from before go on"
        first.close()


# -- In this process, to see who a client is


def run_in_process(
    folder: Path, listen: str, properties: dict[str, str], client: Callable[[BrokerServer], None]
) -> None:
    """Run a broker on a loop of this process, and `client` in a thread."""

    async def run() -> None:
        broker = BrokerServer(asyncio.get_running_loop(), folder, listen, properties)
        broker.listen()
        try:
            await asyncio.to_thread(client, broker)
        finally:
            await broker.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("rules", "auth", "certificate", "user"),
    [
        ("DEFAULT", "required", "client", Principal("User", "CN=client")),
        ("RULE:^CN=(.*)$/$1/U", "required", "client", Principal("User", "CLIENT")),
        ("DEFAULT", "requested", "client", Principal("User", "CN=client")),
        ("DEFAULT", "requested", None, Principal("User", "ANONYMOUS")),
        ("DEFAULT", "none", "client", Principal("User", "ANONYMOUS")),
        ("RULE:^CN=other$/x/", "required", "client", None),
    ],
)
def test_user_of_a_client_is_the_name_in_its_certificate(
    tmp_path: Path, rules: str, auth: str, certificate: str | None, user: Principal | None
) -> None:
    make_certificates(tmp_path)
    properties = {
        "ssl.keystore.location": str(tmp_path / "broker.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.auth": auth,
        "ssl.principal.mapping.rules": rules,
    }

    def look(broker: BrokerServer) -> None:
        with TlsClient(broker.address, tmp_path, certificate) as client:
            client.send(METADATA)
            if user is None:
                assert client.closed()
                return
            assert client.receive().brokers
            (connection,) = broker.serving.server._connections.values()
            assert connection.client.principal == user

    run_in_process(tmp_path / "data", "SSL://127.0.0.1:0", properties, look)


def test_strangers_that_keep_the_broker_waiting_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "PENDING_MAX", 20)
    monkeypatch.setattr(pending, "YOUNG_S", 0.0)
    make_certificates(tmp_path)

    def crowd(broker: BrokerServer) -> None:
        strangers = [RawClient(broker.address) for _ in range(60)]
        with TlsClient(broker.address, tmp_path) as client:
            assert client.ask(METADATA).brokers
            logins = broker.serving.server.logins
            assert len(logins) <= 20
            assert strangers[0].closed()
            for stranger in strangers:
                stranger.close()
            until(lambda: len(logins) == 0, "all strangers are forgotten")
            until(lambda: broker.serving.server._by_host == {"127.0.0.1": 1}, "one connection is counted")

    run_in_process(
        tmp_path / "data", "SSL://127.0.0.1:0", {"ssl.keystore.location": str(tmp_path / "broker.pem")}, crowd
    )


def test_issuer_that_does_not_answer_holds_up_no_logins_with_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(key_sets, "fetch_key_set", lambda _url: answers.wait(20) and b"")
    users = tmp_path / "users.properties"
    users.write_text("alice=secret\n")
    properties = {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "sasl.users.location": str(users),
        "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/keys",
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "https://issuer.example",
    }

    def log_in(broker: BrokerServer) -> None:
        strangers = [RawClient(broker.address) for _ in range(2 * pending.THREADS)]
        for stranger in strangers:
            stranger.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"))
            stranger.send(SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer e30.e30.e30\x01\x01"))
        try:
            with RawClient(broker.address, timeout_s=10.0) as client:
                client.ask(SaslHandshakeRequest(mechanism="PLAIN"))
                assert client.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")).error_code == 0
        finally:
            answers.set()
            for stranger in strangers:
                stranger.close()

    run_in_process(tmp_path / "data", "SASL_PLAINTEXT://127.0.0.1:0", properties, log_in)


def test_garbage_of_many_clients_leaves_nothing_behind(tmp_path: Path) -> None:
    """Handshakes that break off anywhere, altered, and followed by noise."""
    make_certificates(tmp_path)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello_of = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello_of.do_handshake()
    hello = outgoing.read()
    listen = "SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"

    def noise(broker: BrokerServer) -> None:
        before = threading.active_count()
        addresses = [address.partition("://")[2] for address in broker.listeners.split(",")]
        for number in range(240):
            with RawClient(addresses[number % 3]) as client:
                at = number * 7 % len(hello)
                changed = hello[:at] + os.urandom(number % 5) + hello[at + number % 3 :]
                pieces = (
                    hello[:at],
                    changed,
                    hello + os.urandom(300),
                    os.urandom(1 + number),
                    b"\0\0\0\x10" + changed[:16],
                )
                with contextlib.suppress(OSError):
                    client.sock.sendall(pieces[number % len(pieces)])
        server = broker.serving.server
        until(lambda: not server.logins and not server._by_host and not server._connections, "nothing is left", 60)
        with TlsClient(addresses[0], tmp_path) as client:
            assert client.ask(METADATA).brokers
        assert threading.active_count() <= before + 8, "the broker's workers, and no thread of a client"

    properties = {"ssl.keystore.location": str(tmp_path / "broker.pem")}
    run_in_process(tmp_path / "data", listen, properties, noise)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({}, "ssl.keystore.location"),
        ({"ssl.keystore.location": "{folder}/missing.pem"}, "missing.pem"),
        ({"ssl.keystore.location": "{folder}/ca.pem"}, "ca.pem"),
        ({"ssl.keystore.location": "{folder}/broker.pem", "ssl.client.auth": "required"}, "ssl.truststore.location"),
        ({"ssl.keystore.location": "{folder}/broker.pem", "ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols"),
        ({"ssl.keystore.location": "{folder}/broker.pem", "ssl.cipher.suites": "TLS_A_WITH_B"}, "ssl.cipher.suites"),
        ({"ssl.keystore.location": "{folder}/broker.pem", "ssl.client.auth": "maybe"}, "none, requested, required"),
        ({"ssl.keystore.location": "{folder}/locked.pem"}, "locked.pem"),
        ({"ssl.keystore.location": "{folder}/locked.pem", "ssl.key.password": "wrong"}, "locked.pem"),
    ],
)
def test_files_that_do_not_fit_are_refused_at_the_start(tmp_path: Path, properties: dict[str, str], text: str) -> None:
    make_certificates(tmp_path)
    openssl(tmp_path, "pkcs8", "-topk8", "-in", "broker.key", "-out", "locked.key", "-passout", "pass:right")
    (tmp_path / "locked.pem").write_text((tmp_path / "locked.key").read_text() + (tmp_path / "broker.crt").read_text())
    given = {key: value.format(folder=tmp_path) for key, value in properties.items()}
    with pytest.raises(InvalidInputError, match=text):
        Broker(tmp_path / "data", given, "SSL://127.0.0.1:0")


@pytest.mark.parametrize("kind", ["locked PEM", "PKCS12", "PEM values"])
def test_key_stores_of_each_kind_are_read(tmp_path: Path, kind: str) -> None:
    make_certificates(tmp_path)
    if kind == "locked PEM":
        openssl(tmp_path, "pkcs8", "-topk8", "-in", "broker.key", "-out", "locked.key", "-passout", "pass:right")
        text = (tmp_path / "locked.key").read_text() + (tmp_path / "broker.crt").read_text()
        (tmp_path / "locked.pem").write_text(text)
        given = {"ssl.keystore.location": str(tmp_path / "locked.pem"), "ssl.key.password": "right"}
    elif kind == "PKCS12":
        openssl(
            tmp_path, "pkcs12", "-export", "-in", "broker.crt", "-inkey", "broker.key", "-out", "broker.p12",
            "-passout", "pass:right",
        )  # fmt: skip
        given = {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(tmp_path / "broker.p12"),
            "ssl.keystore.password": "right",
        }
    else:
        given = {
            "ssl.keystore.key": (tmp_path / "broker.p8").read_text(),
            "ssl.keystore.certificate.chain": (tmp_path / "broker.crt").read_text(),
            "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_AES_256_GCM_SHA384",
        }
    settings = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")}
    with Broker(tmp_path / "data", given, "SSL://127.0.0.1:0") as broker:
        with Admin(broker.bootstrap_servers, **settings) as admin:
            assert admin.describe_cluster().nodes

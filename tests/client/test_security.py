"""TLS and SASL against a real Apache Kafka, and the mechanisms' own arithmetic."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kohort import Admin, AsyncAdmin, AsyncProducer, Consumer, Producer, TopicPartition
from kohort.broker.security.mechanisms import StoredCredential
from kohort.client.admin.values import NewTopic
from kohort.client.net.security import SaslError, Scram, TlsError
from kohort.errors import InvalidInputError, KafkaError, TimedOutError
from kohort.io.key_stores import KeyStore, TrustedAuthorities
from kohort.io.server_certificates import LoadedCertificates
from kohort.schema_registry.registry import _address_of
from tests.support.secured_broker import SecuredBroker, secured_broker
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import until


def token() -> str:
    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    now = int(time.time())
    return f"{part({'alg': 'none'})}.{part({'sub': 'alice', 'iat': now - 10, 'exp': now + 300})}."


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "mutual TLS": ("MUTUAL", {}),
    "PLAIN": ("SASL", {}),
    "PLAIN over TLS": ("BOTH", {}),
    "SCRAM-SHA-256": ("SASL", {"sasl_mechanism": "SCRAM-SHA-256"}),
    "SCRAM-SHA-512": ("SASL", {"sasl_mechanism": "SCRAM-SHA-512"}),
    "SCRAM-SHA-512 over TLS": ("BOTH", {"sasl_mechanism": "SCRAM-SHA-512"}),
    "OAUTHBEARER": ("SASL", {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token": token}),
}


@pytest.mark.kafka
@pytest.mark.parametrize("way", WAYS)
def test_records_pass_over_every_secured_listener(secured: SecuredKafka, way: str) -> None:
    listener, more = WAYS[way]
    servers, chosen = secured.client(listener, **more)
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(servers, **chosen) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
    with Producer(servers, **chosen) as producer:
        for _ in range(40):
            producer.send(topic, b"x" * 10_000)
        producer.flush(timeout_ms=30_000)

    async def write() -> None:
        async with AsyncProducer(servers, **chosen) as producer:
            await (await producer.send(topic, b"x" * 10_000))

    asyncio.run(write())
    with Consumer(servers, auto_offset_reset="earliest", group_id=topic, **chosen) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        seen = 0
        deadline = time.monotonic() + 20
        while seen < 41 and time.monotonic() < deadline:
            seen += sum(record.value == b"x" * 10_000 for record in consumer.poll(500))
        assert seen == 41
        consumer.commit()


@pytest.mark.kafka
def test_tls_alone_makes_no_one_known(secured: SecuredKafka) -> None:
    """Without a client certificate the connection stands, encrypted, and its user is the anonymous one."""
    servers, chosen = secured.client("TLS")
    with Admin(servers, **chosen) as admin:
        assert admin.describe_cluster().cluster_id


@pytest.mark.kafka
def test_a_missing_client_certificate_is_a_clear_failure(secured: SecuredKafka) -> None:
    servers, chosen = secured.client("MUTUAL")
    del chosen["ssl_certificate_location"], chosen["ssl_key_location"]
    with Admin(servers, default_api_timeout_ms=10_000, **chosen) as admin, pytest.raises(KafkaError) as caught:
        admin.describe_cluster()
    assert servers in str(caught.value)
    assert "certificate" in str(caught.value).lower()


def ask_consumer(servers: str, chosen: dict[str, Any]) -> None:
    with Consumer(servers, **chosen) as consumer:
        consumer.end_offsets([TopicPartition("a", 0)])


def ask_member(servers: str, chosen: dict[str, Any]) -> None:
    with Consumer(servers, group_id="g", **chosen) as consumer:
        consumer.subscribe(["a"])
        consumer.poll(30_000)


def ask_member_briefly(servers: str, chosen: dict[str, Any]) -> None:
    with Consumer(servers, group_id="g", **chosen) as consumer:
        consumer.subscribe(["a"])
        consumer.poll(1_000)


def ask_producer(servers: str, chosen: dict[str, Any]) -> None:
    with Producer(servers, **chosen) as producer:
        producer.send("a", b"x")


def ask_admin(servers: str, chosen: dict[str, Any]) -> None:
    with Admin(servers, **chosen) as admin:
        admin.list_topics()


def ask_asyncio(servers: str, chosen: dict[str, Any]) -> None:
    async def main() -> None:
        async with AsyncAdmin(servers, **chosen) as admin:
            await admin.list_topics()

    asyncio.run(main())


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("ask", [ask_consumer, ask_member, ask_producer, ask_admin, ask_asyncio])
def test_a_wrong_password_is_not_tried_again(
    secured: SecuredKafka,
    mechanism: str,
    ask: Callable[[str, dict[str, Any]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers, chosen = secured.client("SASL", sasl_mechanism=mechanism, sasl_password="guess")
    with pytest.raises(SaslError, match=f"{servers} refused {mechanism} of user 'alice': "):
        ask(servers, chosen)
    assert "calls that need it fail" in caplog.text
    assert "retrying" not in caplog.text


@pytest.mark.kafka
def test_a_login_that_expires_is_renewed_before(secured: SecuredKafka) -> None:
    """The broker ends a connection whose login is over; ours is replaced in time, so that no request is lost."""
    servers, chosen = secured.client("SHORT")
    with Admin(servers, **chosen) as admin:
        links = admin._client.cluster.connections
        seen: set[int] = set()

        def renewed() -> bool:
            admin.describe_cluster()
            seen.update(links._links)
            return len(seen) > 3

        until(renewed, "the connection is replaced again and again", 60)
        assert [health.last_error for health in links._health.values() if health.last_error] == []


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def untrusted(secured: SecuredKafka) -> tuple[str, dict[str, Any]]:
    servers, chosen = secured.client("BOTH")
    del chosen["ssl_ca_location"]
    return servers, chosen


WRONG: dict[str, tuple[Callable[[SecuredKafka], tuple[str, dict[str, Any]]], str]] = {
    "authority": (untrusted, "not trusted.* name the authority that signed it in ssl.ca.location"),
    "expired": (lambda secured: secured.client("EXPIRED"), "has expired: give the broker one that holds now"),
    "host": (lambda secured: secured.client("ELSEWHERE"), "mismatch.* use an address that it names"),
    "plain to TLS": (lambda secured: (secured.client("TLS")[0], {}), "answers in TLS: set security.protocol"),
    "TLS to plain": (
        lambda secured: (secured.client("SASL")[0], secured.client("BOTH")[1]),
        "speaks Kafka without TLS there: .*SASL_PLAINTEXT",
    ),
}
"""Settings that can't work, and what the error says to do."""


ASK = pytest.mark.parametrize("ask", [ask_consumer, ask_member, ask_producer, ask_admin, ask_asyncio])


@pytest.mark.kafka
@pytest.mark.parametrize("wrong", WRONG)
@ASK
def test_wrong_tls_settings_are_final_at_once(
    secured: SecuredKafka,
    wrong: str,
    ask: Callable[[str, dict[str, Any]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings, text = WRONG[wrong]
    servers, chosen = settings(secured)
    with pytest.raises(TlsError, match=f"{servers}: .*{text}"):
        ask(servers, chosen)
    assert "calls that need it fail" in caplog.text
    assert "retrying" not in caplog.text


@ASK
def test_plain_client_at_a_tls_listener_of_kohorts_broker_fails_at_once(
    own: SecuredBroker, ask: Callable[[str, dict[str, Any]], None]
) -> None:
    """Before, the broker sent no alert, and the call took all of its time."""
    with pytest.raises(TlsError, match="answers in TLS: set security.protocol"):
        ask(own.address("TLS"), {})


@pytest.mark.parametrize("ask", [ask_admin, ask_asyncio])
def test_final_dot_of_a_name_is_no_part_of_the_certificates(
    own: SecuredBroker, ask: Callable[[str, dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers on Kubernetes name themselves so, to spare the search of other domains."""
    resolve = socket.getaddrinfo

    def resolve_complete_name(host: Any, *args: Any, **named: Any) -> Any:
        return resolve("localhost" if host == "localhost." else host, *args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_complete_name)
    port = own.address("TLS").rpartition(":")[2]
    ask(f"localhost.:{port}", {"security_protocol": "SSL", "ssl_ca_location": str(own.folder / "ca.pem")})


@pytest.mark.parametrize("listener", ["SASL", "BOTH"])
@pytest.mark.parametrize("ask", [ask_member_briefly, ask_admin, ask_asyncio])
def test_missing_login_is_reported_with_the_first_attempt(
    own: SecuredBroker, listener: str, ask: Callable[[str, dict[str, Any]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that shuts down looks the same, so the client tries again; it says at once what may be missing."""
    servers, chosen = own.address(listener), {}
    if listener == "BOTH":
        chosen = {"security_protocol": "SSL", "ssl_ca_location": str(own.folder / "ca.pem")}
    with contextlib.suppress(TimedOutError):
        ask(servers, {"default_api_timeout_ms": 2_000, **chosen})
    line, *_ = [record for record in caplog.records if record.getMessage().startswith("can't connect to")]
    assert line.levelname == "WARNING"
    assert "does the broker want a login there?" in line.getMessage()


@pytest.mark.kafka
def test_broker_whose_certificate_does_not_hold_is_passed_over_for_another(secured: SecuredKafka) -> None:
    good, chosen = secured.client("TLS")
    for servers in ([secured.client("EXPIRED")[0], good], [good, secured.client("EXPIRED")[0]]):
        with Admin(servers, **chosen) as admin:
            assert admin.describe_cluster().cluster_id


@pytest.mark.kafka
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_token_hook_may_take_its_time(secured: SecuredKafka, face: str) -> None:
    """The hook is called on no thread that others wait for: here it waits for one of them."""
    servers, chosen = secured.client("SASL", sasl_mechanism="OAUTHBEARER")
    went_on = threading.Event()

    def hook() -> str:
        assert went_on.wait(10)
        return token()

    async def ask() -> None:
        async with AsyncAdmin(servers, sasl_oauth_token=hook, **chosen) as admin:
            call = asyncio.create_task(admin.describe_cluster())
            await asyncio.sleep(0.05)  # turns of the loop, in which the hook is called
            went_on.set()
            assert (await call).cluster_id

    if face == "asyncio":
        asyncio.run(ask())
    else:
        with Admin(servers, sasl_oauth_token=hook, **chosen) as admin:
            future = admin._client.submit(admin._client.cluster.describe_topics(None))
            admin._client.call(admin._client.cluster.runtime.sleep(1))
            went_on.set()
            future.result(20)


@pytest.mark.kafka
def test_a_token_hook_that_fails_and_a_bad_token_are_reported(secured: SecuredKafka) -> None:
    servers, chosen = secured.client("SASL", sasl_mechanism="OAUTHBEARER")

    def fails() -> str:
        raise LookupError("the vault is closed")

    with Admin(servers, sasl_oauth_token=fails, **chosen) as admin, pytest.raises(SaslError, match="vault is closed"):
        admin.list_topics()
    with Admin(servers, sasl_oauth_token=lambda: "nonsense", **chosen) as admin, pytest.raises(SaslError):
        admin.list_topics()


@pytest.mark.kafka
def test_a_mechanism_that_is_not_offered_is_reported_with_those_that_are(secured: SecuredKafka) -> None:
    servers, chosen = secured.client("BOTH", sasl_mechanism="SCRAM-SHA-256")
    with (
        Admin(servers, **chosen) as admin,
        pytest.raises(SaslError, match="set sasl.mechanism to one of PLAIN, SCRAM-SHA-512"),
    ):
        admin.list_topics()


def test_what_a_mechanism_needs_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"sasl\.username"):
        Consumer("127.0.0.1:1", security_protocol="SASL_PLAINTEXT")
    with pytest.raises(InvalidInputError, match="can't load TLS files /nowhere"):
        Consumer("127.0.0.1:1", security_protocol="SSL", ssl_ca_location="/nowhere")


def test_scram_follows_the_example_of_its_standard() -> None:
    """Source: RFC 7677, section 3."""
    exchange = Scram("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert exchange.first_message() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = exchange.next_message(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.next_message(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None
    with pytest.raises(SaslError, match="did not prove"):
        exchange.next_message(b"v=AAAA")


@pytest.mark.parametrize(
    "answer", [b"", b"\xff", b"r=other,s=AAAA,i=4096", b"r=mine1,s=!,i=4096", b"r=mine1,s=AAAA,i=x"]
)
def test_a_scram_challenge_that_is_none_is_refused(answer: bytes) -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil", nonce="mine")
    exchange.first_message()
    with pytest.raises(SaslError):
        exchange.next_message(answer)


def test_secrets_do_not_show_in_a_configuration() -> None:
    consumer = Consumer("127.0.0.1:1", sasl_password="very secret", sasl_jaas_config='password="also secret"')
    assert "secret" not in repr(consumer.config)


HIDDEN = "hidden-word"


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: KeyStore("store.jks", None, HIDDEN, None, HIDDEN, HIDDEN), id="key store"),
        pytest.param(lambda: TrustedAuthorities("store.jks", HIDDEN), id="trust store"),
        pytest.param(lambda: StoredCredential(b"salt", 4096, HIDDEN.encode(), HIDDEN.encode()), id="credential"),
        pytest.param(lambda: LoadedCertificates(HIDDEN.encode(), None, ssl.create_default_context()), id="identity"),
        pytest.param(lambda: _address_of(f"https://user:{HIDDEN}@registry"), id="registry"),
    ],
)
def test_objects_with_secrets_do_not_show_them(made: Callable[[], object]) -> None:
    """Tracebacks with local variables, as of pytest or an error reporter, have the form of such objects."""
    shown = repr(made())
    assert HIDDEN not in shown
    assert base64.b64encode(f"user:{HIDDEN}".encode()).decode() not in shown

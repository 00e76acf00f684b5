"""Other projects' clients, and ours, against the broker's TLS and logins."""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError
from confluent_kafka.admin import AdminClient

from kohort import Admin, Consumer, Producer
from kohort.errors import KafkaError, NotAuthorizedError, TimedOutError
from tests.peers.peers import PeerUnavailable
from tests.peers.secured_clients import PROGRAMS, ProgramClient
from tests.support.secured_broker import SecuredBroker, secured_broker
from tests.support.waiting import until

with warnings.catch_warnings():  # it reads its schemas in a way that Python has given up
    warnings.simplefilter("ignore")
    import kafka
    from kafka.errors import KafkaError as KafkaPythonError
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sockets that others leave open
]
COUNT, SIZE = 60, 5_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(autouse=True)
def left_open() -> Iterator[None]:
    """Collect the sockets that other projects' clients leave open, before they are reported in another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Way(NamedTuple):
    listener: str
    mechanism: str = ""


WAYS = {
    "TLS": Way("TLS"),
    "mutual TLS": Way("MUTUAL"),
    "PLAIN by JAAS": Way("SHORT", "PLAIN"),
    "PLAIN": Way("SASL", "PLAIN"),
    "PLAIN over TLS": Way("BOTH", "PLAIN"),
    "SCRAM-SHA-256": Way("SASL", "SCRAM-SHA-256"),
    "SCRAM-SHA-512": Way("SASL", "SCRAM-SHA-512"),
    "SCRAM-SHA-512 over TLS": Way("BOTH", "SCRAM-SHA-512"),
    "OAUTHBEARER": Way("SASL", "OAUTHBEARER"),
    "OAUTHBEARER over TLS": Way("BOTH", "OAUTHBEARER"),
}


def through_kohort(settings: dict[str, str], token: Callable[[], str], topic: str) -> int:
    chosen: dict[str, Any] = dict(settings)
    if settings.get("sasl.mechanism") == "OAUTHBEARER":
        chosen["sasl.oauth.token"] = token
    with Producer(**chosen) as producer:
        for _ in range(COUNT):
            producer.send(topic, b"x" * SIZE)
        producer.flush(timeout_ms=60_000)
    with Consumer(**chosen, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        count = 0

        def read() -> bool:
            nonlocal count
            count += sum(record.value == b"x" * SIZE for record in consumer.poll(500))
            return count >= COUNT

        until(read, "all records are read", 60)
        consumer.commit()
    return count


def through_librdkafka(settings: dict[str, str], token: Callable[[], str], topic: str) -> int:
    chosen: dict[str, Any] = dict(settings)
    if settings.get("sasl.mechanism") == "OAUTHBEARER":
        chosen["oauth_cb"] = lambda _config: (token(), 4_000_000_000.0)
    producer = confluent_kafka.Producer(chosen)
    for _ in range(COUNT):
        producer.produce(topic, b"x" * SIZE)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer({**chosen, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    count = 0

    def read() -> bool:
        nonlocal count
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            assert message.value() == b"x" * SIZE
            count += 1
        return count >= COUNT

    try:
        until(read, "all records are read", 60)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return count


class OneToken(KafkaPythonTokens):
    def __init__(self, made: Callable[[], str]) -> None:
        self._made = made

    def token(self) -> str:
        return self._made()


def kafka_python_settings(settings: dict[str, str], token: Callable[[], str]) -> dict[str, Any]:
    names = {
        "bootstrap.servers": "bootstrap_servers",
        "security.protocol": "security_protocol",
        "ssl.ca.location": "ssl_cafile",
        "ssl.certificate.location": "ssl_certfile",
        "ssl.key.location": "ssl_keyfile",
        "sasl.mechanism": "sasl_mechanism",
        "sasl.username": "sasl_plain_username",
        "sasl.password": "sasl_plain_password",
    }
    chosen: dict[str, Any] = {names[key]: value for key, value in settings.items()}
    if settings.get("sasl.mechanism") == "OAUTHBEARER":
        chosen["sasl_oauth_token_provider"] = OneToken(token)
    return chosen


def through_kafka_python(settings: dict[str, str], token: Callable[[], str], topic: str) -> int:
    chosen = kafka_python_settings(settings, token)
    producer = kafka.KafkaProducer(**chosen)
    try:
        sent = [producer.send(topic, b"x" * SIZE) for _ in range(COUNT)]
        producer.flush(60)
        assert all(future.succeeded() for future in sent)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(topic, **chosen, group_id=topic, auto_offset_reset="earliest")
    count = 0

    def read() -> bool:
        nonlocal count
        count += sum(len(records) for records in consumer.poll(1000).values())
        return count >= COUNT

    try:
        until(read, "all records are read", 60)
        consumer.commit()
    finally:
        consumer.close()
    return count


class AioToken(AbstractTokenProvider):
    def __init__(self, made: Callable[[], str]) -> None:
        self._made = made

    async def token(self) -> str:
        return self._made()


def through_aiokafka(settings: dict[str, str], token: Callable[[], str], topic: str) -> int:
    chosen = kafka_python_settings(settings, token)
    chosen.pop("sasl_oauth_token_provider", None)
    authority = chosen.pop("ssl_cafile", None)
    certificate, key = chosen.pop("ssl_certfile", None), chosen.pop("ssl_keyfile", None)
    if authority is not None:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        chosen["ssl_context"] = context
    if chosen.get("sasl_mechanism") == "OAUTHBEARER":
        chosen["sasl_oauth_token_provider"] = AioToken(token)

    async def run() -> int:
        async with aiokafka.AIOKafkaProducer(**chosen) as producer:
            for _ in range(COUNT):
                await producer.send_and_wait(topic, b"x" * SIZE)
        consumer = aiokafka.AIOKafkaConsumer(topic, **chosen, group_id=topic, auto_offset_reset="earliest")
        async with consumer:
            count = 0
            async with asyncio.timeout(60):
                while count < COUNT:
                    count += sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))
            await consumer.commit()
        return count

    return asyncio.run(run())


def through_program(name: str) -> Callable[[dict[str, str], Callable[[], str], str], int]:
    """A client of another language, in a process of its own."""

    def run(settings: dict[str, str], token: Callable[[], str], topic: str) -> int:
        with program(name, settings, token()) as client:
            assert client.order("produce", topic=topic, count=COUNT, size=SIZE) == ("ok", COUNT)
            result, count = client.order("group", topic=topic, group=topic, count=COUNT)
            assert result == "ok"
            return count

    return run


@contextmanager
def program(name: str, settings: dict[str, str], token: str = "") -> Iterator[ProgramClient]:
    try:
        command = PROGRAMS[name]()
    except PeerUnavailable as error:
        pytest.skip(f"{name}: {error}")
    with closing(ProgramClient(command, settings, token)) as client:
        yield client


CLIENTS: dict[str, Callable[[dict[str, str], Callable[[], str], str], int]] = {
    "kohort": through_kohort,
    "librdkafka": through_librdkafka,
    "kafka-python": through_kafka_python,
    "aiokafka": through_aiokafka,
    "franz-go": through_program("franz-go"),
    "kafkajs": through_program("kafkajs"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_records_and_groups_pass_over_every_kind_of_listener(secured: SecuredBroker, client: str, way: str) -> None:
    listener, mechanism = WAYS[way]
    settings = secured.settings(listener, mechanism)
    assert CLIENTS[client](settings, secured.token, f"t-{uuid.uuid4().hex[:12]}") == COUNT


# -- What must fail, and what each client then says


def refused_kohort(settings: dict[str, str]) -> str:
    with Admin(**settings, default_api_timeout_ms=15_000) as admin:
        with pytest.raises((NotAuthorizedError, TimedOutError, KafkaError)) as caught:
            admin.describe_cluster()
    return str(caught.value)


def refused_librdkafka(settings: dict[str, str]) -> str:
    errors: list[str] = []
    client = AdminClient({**settings, "error_cb": lambda error: errors.append(str(error))})

    def has_failed() -> bool:
        client.poll(0.2)
        return bool(errors)

    until(has_failed, "librdkafka reports an error", 60)
    with pytest.raises(confluent_kafka.KafkaException):
        client.list_topics(timeout=1.0)
    return " ".join(errors)


def refused_kafka_python(settings: dict[str, str]) -> str:
    chosen = kafka_python_settings(settings, lambda: "")
    with pytest.raises(KafkaPythonError) as caught:
        kafka.KafkaAdminClient(**chosen, bootstrap_timeout_ms=5_000, request_timeout_ms=5_000)
    return repr(caught.value)


def refused_aiokafka(settings: dict[str, str]) -> str:
    chosen = kafka_python_settings(settings, lambda: "")
    authority = chosen.pop("ssl_cafile", None)
    certificate, key = chosen.pop("ssl_certfile", None), chosen.pop("ssl_keyfile", None)
    if authority is not None:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        chosen["ssl_context"] = context

    async def run() -> str:
        producer = aiokafka.AIOKafkaProducer(**chosen, request_timeout_ms=10_000)
        with pytest.raises((KafkaConnectionError, aiokafka.errors.KafkaError)) as caught:
            await producer.start()
        await producer.stop()
        return repr(caught.value)

    return asyncio.run(run())


def refused_program(name: str) -> Callable[[dict[str, str]], str]:
    def run(settings: dict[str, str]) -> str:
        with program(name, settings) as client:
            result, _ = client.order("connect")
        assert result != "ok"
        return result

    return run


REFUSED: dict[str, Callable[[dict[str, str]], str]] = {
    "kohort": refused_kohort,
    "librdkafka": refused_librdkafka,
    "kafka-python": refused_kafka_python,
    "aiokafka": refused_aiokafka,
    "franz-go": refused_program("franz-go"),
    "kafkajs": refused_program("kafkajs"),
}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("client", REFUSED)
def test_wrong_password_is_refused_with_kafkas_words(secured: SecuredBroker, client: str, mechanism: str) -> None:
    refusal = REFUSED[client](secured.settings("SASL", mechanism, **{"sasl.password": "guess"}))
    if client in ("kohort", "librdkafka", "kafkajs"):
        expected = "Invalid username or password" if mechanism == "PLAIN" else "invalid credentials with SASL mechanism"
        assert expected in refusal


CERTIFICATES = {
    "no client certificate": ("MUTUAL", {"ssl.certificate.location": "", "ssl.key.location": ""}),
    "expired client certificate": ("MUTUAL", {"ssl.certificate.location": "old-client.crt"}),
    "client certificate of a stranger": ("MUTUAL", {"ssl.certificate.location": "stranger.crt"}),
    "expired broker certificate": ("EXPIRED", {}),
    "broker certificate of another host": ("ELSEWHERE", {}),
    "authority that the client does not trust": ("TLS", {"ssl.ca.location": "other-ca.pem"}),
}


@pytest.mark.parametrize("case", CERTIFICATES)
@pytest.mark.parametrize("client", REFUSED)
def test_certificates_that_do_not_fit_end_the_connection(secured: SecuredBroker, client: str, case: str) -> None:
    listener, changes = CERTIFICATES[case]
    settings = secured.settings(listener)
    for key, name in changes.items():
        if name:
            settings[key] = str(secured.folder / name)
        else:
            del settings[key]
    assert REFUSED[client](settings)


@pytest.mark.parametrize(("listener", "protocol"), [("TLS", "PLAINTEXT"), ("PLAIN", "SSL"), ("SASL", "PLAINTEXT")])
@pytest.mark.parametrize("client", REFUSED)
def test_wrong_protocol_ends_the_connection(secured: SecuredBroker, client: str, listener: str, protocol: str) -> None:
    settings = {"bootstrap.servers": secured.address(listener), "security.protocol": protocol}
    if protocol == "SSL":
        settings["ssl.ca.location"] = str(secured.folder / "ca.pem")
    refusal = REFUSED[client](settings)
    assert refusal
    if client == "kohort" and listener == "TLS":
        assert "answers in TLS: set security.protocol" in refusal


# -- Logins that end

PACE_S = 0.01
"""The wait between two batches of 50: at most 35,000 records, however fast the machine is."""


@pytest.mark.parametrize("client", ["kohort", "librdkafka", "franz-go", "kafkajs"])
def test_no_record_is_lost_while_logins_are_renewed_under_load(secured: SecuredBroker, client: str) -> None:
    """Each login lasts two seconds; the producer writes through several of them."""
    settings = secured.settings("SHORT", "PLAIN")
    topic = f"renewed-{client}"
    ended = threading.Event()
    threading.Timer(7.0, ended.set).start()
    count = 0
    failures: list[str] = []
    if client == "kohort":
        with Producer(**settings) as producer:
            while not ended.wait(PACE_S):
                for _ in range(50):
                    producer.send(topic, b"%d" % count)
                    count += 1
                producer.flush(timeout_ms=60_000)
    elif client in PROGRAMS:
        with program(client, settings) as running:
            result, count = running.order("load", topic=topic, seconds=7.0)
        assert result == "ok" and count > 0
    else:
        other = confluent_kafka.Producer({**settings, "linger.ms": 5})

        def done(error: object, _message: object) -> None:
            if error is not None:
                failures.append(str(error))

        while not ended.wait(PACE_S):
            for _ in range(50):
                other.produce(topic, b"%d" % count, on_delivery=done)
                count += 1
            other.flush(60)
        assert other.flush(60) == 0
    assert not failures
    with Consumer(secured.address("PLAIN"), auto_offset_reset="earliest", group_id=topic) as consumer:
        consumer.subscribe([topic])
        seen: set[object] = set()

        def read() -> bool:
            seen.update(
                record.offset * 2 + record.partition if client in PROGRAMS else record.value
                for record in consumer.poll(500)
            )
            return len(seen) >= count

        until(read, "all records are read", 60, moves=lambda: {"read": len(seen)})


def test_files_of_other_projects_log_in(tmp_path: Path) -> None:
    """`kohort broker --secure` writes a file for librdkafka that librdkafka takes as it stands."""
    from kohort import Broker
    from kohort.broker.security.development import LIBRDKAFKA, DevelopmentFiles
    from kohort.settings.config import read_properties

    with Broker(tmp_path / "data", secure=tmp_path / "files") as broker:
        DevelopmentFiles(tmp_path / "files").write_client_files(broker.bootstrap_servers)
        client = AdminClient(read_properties(tmp_path / "files" / LIBRDKAFKA))
        assert client.list_topics(timeout=30.0).brokers

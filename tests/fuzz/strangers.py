"""Connections of clients that have no right to anything, and the secured broker that takes them.

Nobody here knows a password that counts: no login may succeed, and no request may be answered before one. The user
mallory can log in and has no rights: nothing may change.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kohort import Admin
from kohort.client.admin.values import ScramCredential
from kohort.wire.discovery import ApiVersionsRequest, MetadataRequest
from kohort.wire.framing import APIS, encode_request
from kohort.wire.groups import ListGroupsRequest
from kohort.wire.security import (
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kohort.wire.transactions import ListTransactionsRequest
from kohort.zookeeper import free_ports
from tests.broker.fuzz import cases, making
from tests.broker.fuzz.cases import ANSWER_S, Finding, Line
from tests.broker.fuzz.watch import Watched
from tests.broker.raw import RawClient
from tests.fuzz.corpus import KEYS, mutated, read_corpus
from tests.support.secured_kafka import make_certificates

LISTENERS = {"PLAIN": "PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL", "SASL": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_MALLORYS = "password-of-mallory"
_FORBIDDEN = 0x0BADF00D
"""The number of a request that comes before any login: an answer with it is a finding."""
_ANSWER_BYTES_MAX = 64 << 20


class StrangersBroker:
    """The broker as a process of its own, with a listener of each kind, an authorizer and an audit log."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self.files.mkdir(parents=True)
        make_certificates(self.files)
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        listen = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        self.watched = Watched(folder, listen, self._settings())
        with Admin(self.watched.address) as admin:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                credential = ScramCredential("alice", secrets.token_hex(), mechanism)
                admin.alter_user_scram_credentials([credential]).all()

    def _settings(self) -> dict[str, object]:
        users = f'user_mallory="{_MALLORYS}" user_alice="{secrets.token_hex()}"'
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.files / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.files / "ca.pem"),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": KEYS.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": "https://issuer",
            "listener.name.sasl.plain.sasl.jaas.config": f"{_MODULE} {users};",
            "listener.name.both.plain.sasl.jaas.config": f"{_MODULE} {users};",
            "connection.failed.authentication.delay.ms": 10,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "num.partitions": 2,
            "group.initial.rebalance.delay.ms": 0,
        }

    def place(self, listener: str) -> tuple[str, int]:
        """The address of a listener."""
        return "127.0.0.1", self.ports[listener]

    def state(self) -> dict[str, Any]:
        """All that a refused request could have left: names of what clients make, and the data folder."""
        with RawClient(self.watched.address, "state") as client:
            rules = DescribeAclsRequest(
                resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1,
                resource_name_filter=None, principal_filter=None, host_filter=None,
            )  # fmt: skip
            topics = client.ask(MetadataRequest(topics=None), 12).topics
            return {
                "topics": sorted((topic.name, len(topic.partitions)) for topic in topics),
                "groups": sorted(group.group_id for group in client.ask(ListGroupsRequest()).groups),
                "rules": repr(client.ask(rules).resources),
                "users": repr(client.ask(DescribeUserScramCredentialsRequest(users=None)).results),
                "transactions": repr(client.ask(ListTransactionsRequest()).transaction_states),
                "folders": sorted(path.name for path in self.watched.data.iterdir() if path.is_dir()),
                "settings": {path.name: path.read_text() for path in sorted(self.watched.data.glob("*.json"))},
            }


class Stranger:
    """A connection that only sends, and then waits until the broker has closed it.

    Attributes:
        sent: all bytes, for a finding.
    """

    def __init__(self, place: tuple[str, int]) -> None:
        self.sent = bytearray()
        self.sock = socket.create_connection(place, ANSWER_S)
        self.closed = False

    def send(self, data: bytes) -> None:
        """Send, as far as the broker takes it."""
        self.sent += data
        try:
            self.sock.sendall(data)
        except ConnectionError:
            self.closed = True
        except TimeoutError:
            raise Finding("the broker took no more bytes, and did not close the connection") from None

    def receive(self, within_s: float = ANSWER_S) -> bytes:
        """Return what has come, empty once the broker has closed the connection.

        Raises:
            Finding: nothing came in time.
        """
        self.sock.settimeout(within_s)
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionError:
            data = b""
        except TimeoutError:
            raise Finding("no answer, and the connection is open") from None
        self.closed = self.closed or not data
        return data

    def drain(self) -> bytes:
        """Say that nothing follows, and return all that comes until the broker has closed the connection."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        until, found = time.monotonic() + ANSWER_S, bytearray()
        while not self.closed:
            found += self.receive(max(0.01, until - time.monotonic()))
            if len(found) > _ANSWER_BYTES_MAX:
                raise Finding("an answer without an end")
        return bytes(found)


class KnownLine(Line):
    """A connection on which mallory has logged in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        login = SaslAuthenticateRequest(auth_bytes=b"\0mallory\0" + _MALLORYS.encode())
        for number, message in enumerate((SaslHandshakeRequest(mechanism="PLAIN"), login)):
            version = message.MAX_VERSION
            self.owed.append((number, APIS[message.API_KEY], version))
            self.send(encode_request(message, version, number, "mallory"))
        self.settle()
        if self.ended:
            raise Finding("mallory can't log in")


# -- One connection's actions


def tls_bytes(broker: StrangersBroker, pick: random.Random) -> Stranger:
    """Bytes where a TLS handshake is expected, from the corpus and changed."""
    corpus = list(read_corpus("tls").values())
    stranger = Stranger(broker.place(pick.choice(("TLS", "MUTUAL", "BOTH"))))
    data = mutated(pick, pick.choice(corpus), pick.choice(corpus), (b"\x16\x03\x01", b"\x17\x03\x03", b"\x14\x03\x03"))
    cut = pick.randrange(len(data) + 1)
    for part in (data[:cut], data[cut:]):
        stranger.send(part)
    stranger.drain()
    return stranger


def tls_session(broker: StrangersBroker, pick: random.Random) -> Stranger:
    """A real handshake, some of whose flights are changed; after it, frames and noise, encrypted or not."""
    listener = pick.choice(("TLS", "MUTUAL", "BOTH"))
    stranger = Stranger(broker.place(listener))
    context = ssl.create_default_context(cafile=str(broker.files / "ca.pem"))
    context.maximum_version = pick.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
    if listener == "MUTUAL" and pick.random() < 0.7:
        name = pick.choice(("client", "broker"))
        context.load_cert_chain(broker.files / f"{name}.crt", broker.files / f"{name}.key")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    damage = pick.choice((0.0, 0.0, 0.4))
    while not stranger.closed:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            flight = outgoing.read()
            stranger.send(mutated(pick, flight, flight) if pick.random() < damage else flight)
            if not stranger.closed and flight:
                incoming.write(_quick(stranger, damage))
        except ssl.SSLError:
            break
    else:
        return stranger
    with contextlib.suppress(ssl.SSLError):
        for _ in range(pick.choice((1, 3, 20))):
            _, _, frame = making.request(pick, 1)
            client.write(pick.choice(making.MUTATIONS)(pick, frame))
            record = outgoing.read()
            stranger.send(mutated(pick, record, record) if pick.random() < 0.3 else record)
    stranger.drain()
    return stranger


def _quick(stranger: Stranger, damage: float) -> bytes:
    """Receive; a damaged flight may leave both sides waiting, which the stranger ends."""
    if not damage:
        return stranger.receive()
    try:
        return stranger.receive(0.5)
    except Finding:
        with contextlib.suppress(OSError):
            stranger.sock.shutdown(socket.SHUT_WR)
        return stranger.receive()


def login(broker: StrangersBroker, pick: random.Random) -> Stranger:
    """A login with wrong credentials, whose frames are changed, and a request that only a known user may send."""
    stranger = Stranger(broker.place("SASL"))
    mechanism, corpus = pick.choice(_LOGINS)
    version = pick.choice((0, 1, 1))
    frames = [encode_request(ApiVersionsRequest(client_software_name="f", client_software_version="1"), 3, 1, "f")]
    frames = frames[: pick.choice((0, 1, 1, 1))]
    frames.append(encode_request(SaslHandshakeRequest(mechanism=mechanism), version, 2, pick.choice(("f", None))))
    inputs = list(read_corpus(corpus).values())
    for number in range(pick.choice((1, 2, 2, 3))):
        token = pick.choice(inputs).removeprefix(b"2").removeprefix(b"5").split(b"\n")[-1 if number else 0]
        if pick.random() < 0.6:
            token = mutated(pick, token, pick.choice(inputs), (b"alice", b"r=", b",p=", b"\0"))
        request = SaslAuthenticateRequest(auth_bytes=token)
        framed = len(token).to_bytes(4, "big") + token
        frames.append(encode_request(request, pick.choice((0, 1, 2)), 3 + number, "f") if version else framed)
    for index in range(len(frames)):
        if pick.random() < 0.15:
            frames[index] = pick.choice(making.MUTATIONS)(pick, frames[index])
    at = pick.randrange(len(frames) + 1)
    frames[at:at] = [encode_request(MetadataRequest(topics=None), 9, _FORBIDDEN, "f")]
    for frame in frames:
        stranger.send(frame)
    answers = stranger.drain()
    while len(answers) >= 8:
        if answers[4:8] == _FORBIDDEN.to_bytes(4, "big"):
            raise Finding("a request was answered before a login")
        answers = answers[4 + int.from_bytes(answers[:4], "big") :]
    return stranger


_LOGINS = (
    ("PLAIN", "sasl-plain"), ("SCRAM-SHA-256", "sasl-scram"), ("SCRAM-SHA-512", "sasl-scram"),
    ("OAUTHBEARER", "sasl-oauthbearer"), ("GSSAPI", "sasl-plain"),
)  # fmt: skip


def push_frames(broker: StrangersBroker, pick: random.Random) -> Line:
    """Push frames of a user without rights."""
    line = KnownLine(broker.place("SASL"))
    inputs = list(read_corpus("push").values())
    for _ in range(pick.choice((1, 1, 3))):
        body = pick.choice(inputs)
        if pick.random() < 0.7:
            body = mutated(pick, body, pick.choice(inputs), (b"\x50\0", b"\x50\1", b"*1*.*", b'{"honest-topic":1}'))
        line.send(len(body).to_bytes(4, "big") + body)
    with contextlib.suppress(OSError):
        line.sock.shutdown(socket.SHUT_WR)
    until = time.monotonic() + ANSWER_S
    line.sock.settimeout(ANSWER_S)
    try:
        while line.sock.recv(1 << 16) and time.monotonic() < until:
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        raise Finding("the connection was not closed after our side of it") from None
    return line


def without_rights(broker: StrangersBroker, pick: random.Random) -> Line:
    """Requests of every API, whole, changed and torn, of a user without rights."""
    line = KnownLine(broker.place("SASL"))
    kind = pick.choice((cases.one, cases.one, cases.several, cases.mutated, cases.mutated, cases.torn, cases.idle))
    kind(line, pick)
    line.settle()
    return line


Action = Callable[[StrangersBroker, random.Random], Stranger | Line]
ACTIONS: tuple[tuple[int, Action], ...] = (
    (3, tls_bytes), (4, tls_session), (5, login), (3, push_frames), (7, without_rights),
)  # fmt: skip


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yield what has changed in the broker's state."""
    for name, value in before.items():
        if after[name] != value:
            yield f"{name} were {json.dumps(value)}, and are {json.dumps(after[name])}"

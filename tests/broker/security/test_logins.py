"""Logins frame by frame: what is taken before, during and after one, and how one fails."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from kohort import Broker
from kohort.client.net.security import Plain, Scram
from kohort.errors import ErrorCode
from kohort.wire.data import FetchRequest
from kohort.wire.discovery import ApiVersionsRequest, MetadataRequest
from kohort.wire.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.broker.raw import RawClient
from tests.support.secured_broker import PASSWORD, SHORT_MS, SecuredBroker, secured_broker

ALL = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
METADATA = MetadataRequest(topics=[])
PLAIN_TOKEN = Plain("alice", PASSWORD).first_message()


def handshake(client: RawClient, mechanism: str = "PLAIN", version: int = 1) -> None:
    assert client.ask(SaslHandshakeRequest(mechanism=mechanism), version).error_code == 0


def log_in(client: RawClient, token: bytes = PLAIN_TOKEN, mechanism: str = "PLAIN") -> int:
    """Return for how many milliseconds the login lasts."""
    handshake(client, mechanism)
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=token))
    assert (answer.error_code, answer.error_message) == (0, None)
    lifetime: int = answer.session_lifetime_ms
    return lifetime


def test_client_is_served_after_its_login(secured: SecuredBroker) -> None:
    with RawClient(secured.address("SASL")) as client:
        assert client.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1")).error_code == 0
        assert log_in(client) == 0
        assert client.ask(METADATA).brokers


def test_scram_takes_two_steps(secured: SecuredBroker) -> None:
    exchange = Scram("SCRAM-SHA-512", "alice", PASSWORD)
    with RawClient(secured.address("SASL")) as client:
        handshake(client, "SCRAM-SHA-512")
        first = client.ask(SaslAuthenticateRequest(auth_bytes=exchange.first_message()))
        final = client.ask(SaslAuthenticateRequest(auth_bytes=exchange.next_message(first.auth_bytes) or b""))
        assert exchange.next_message(final.auth_bytes) is None
        assert client.ask(METADATA).brokers


def test_tokens_come_raw_after_the_first_version_of_the_handshake(secured: SecuredBroker) -> None:
    exchange = Scram("SCRAM-SHA-256", "alice", PASSWORD)
    with RawClient(secured.address("SASL")) as client:
        handshake(client, "SCRAM-SHA-256", 0)
        token: bytes | None = exchange.first_message()
        while token is not None:
            client.sock.sendall(struct.pack(">i", len(token)) + token)
            token = exchange.next_message(client.frame())
        assert client.ask(METADATA).brokers


UNEXPECTED = {
    "Metadata": lambda client: client.send(METADATA),
    "Fetch": lambda client: client.send(FetchRequest(), 12),
    "SaslAuthenticate": lambda client: client.send(SaslAuthenticateRequest(auth_bytes=PLAIN_TOKEN)),
    "a push frame": lambda client: client.sock.sendall(b"\0\0\0\x0c\x50\x00" + b"\0" * 10),
    "a short frame": lambda client: client.sock.sendall(b"\0\0\0\x02\x00\x12"),
    "a frame that is too large": lambda client: client.sock.sendall(struct.pack(">i", 600_000) + b"\0\x12\0\x03"),
    "TLS": lambda client: client.sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 64),
}


@pytest.mark.parametrize("what", UNEXPECTED)
def test_nothing_else_is_taken_before_a_login(secured: SecuredBroker, what: str) -> None:
    with RawClient(secured.address("SASL")) as client:
        UNEXPECTED[what](client)
        assert client.closed()
    with RawClient(secured.address("SASL")) as client:
        handshake(client)
        if what != "SaslAuthenticate":
            UNEXPECTED[what](client)
            assert client.closed()


def test_api_versions_is_asked_once_and_again_only_if_its_version_is_unknown(secured: SecuredBroker) -> None:
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    with RawClient(secured.address("SASL")) as client:
        client.sock.sendall(b"\0\0\0\x0e\0\x12\x7f\xff\0\0\0\x01\0\x03raw\0")
        assert client.frame()[4:6] == int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")
        assert client.ask(request).error_code == 0
        client.send(request)
        assert client.closed()


def test_unknown_mechanism_is_refused_with_the_known_ones(secured: SecuredBroker) -> None:
    with RawClient(secured.address("SASL")) as client:
        answer = client.ask(SaslHandshakeRequest(mechanism="GSSAPI"))
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ALL)
        assert client.closed()


@pytest.mark.parametrize(
    ("mechanism", "token", "text"),
    [
        ("PLAIN", b"\0alice\0guess", "Authentication failed: Invalid username or password"),
        ("PLAIN", b"\0nobody\0guess", "Authentication failed: Invalid username or password"),
        ("PLAIN", b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (
            "SCRAM-SHA-256",
            b"garbage",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256",
        ),
    ],
)
def test_failed_login_is_answered_in_kafkas_words_and_ends_the_connection(
    secured: SecuredBroker, mechanism: str, token: bytes, text: str
) -> None:
    with RawClient(secured.address("SASL")) as client:
        handshake(client, mechanism)
        client.send(SaslAuthenticateRequest(auth_bytes=token))
        client.send(METADATA)
        answer = client.receive()
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        assert client.closed()


def test_requests_behind_a_slow_check_wait_for_it(secured: SecuredBroker) -> None:
    """A client that sends everything at once is served when its login is checked, in a thread."""
    with RawClient(secured.address("SASL")) as client:
        client.send(SaslHandshakeRequest(mechanism="PLAIN"))
        client.send(SaslAuthenticateRequest(auth_bytes=PLAIN_TOKEN))
        client.send(METADATA)
        assert client.receive().error_code == 0
        assert client.receive().error_code == 0
        assert client.receive().brokers


def test_listener_without_sasl_has_no_login(secured: SecuredBroker) -> None:
    with RawClient(secured.address("PLAIN")) as client:
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=PLAIN_TOKEN))
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.ask(METADATA).brokers


# -- Logins that end. Source: KIP-368


def test_login_ends_and_the_next_request_with_it(secured: SecuredBroker) -> None:
    with RawClient(secured.address("SHORT")) as client:
        assert log_in(client) == SHORT_MS
        assert client.ask(METADATA).brokers
        time.sleep(SHORT_MS / 1000)
        client.send(METADATA)
        assert client.closed()


def test_connection_survives_a_renewed_login(secured: SecuredBroker) -> None:
    with RawClient(secured.address("SHORT")) as client:
        log_in(client)
        for _ in range(3):
            time.sleep(SHORT_MS / 2000 + 0.1)
            assert log_in(client) == SHORT_MS
            assert client.ask(METADATA).brokers
        time.sleep(SHORT_MS / 1000)
        assert log_in(client) == SHORT_MS, "also when it has ended, before another request"
        assert client.ask(METADATA).brokers


def test_login_is_not_renewed_at_once(secured: SecuredBroker) -> None:
    with RawClient(secured.address("SHORT")) as client:
        log_in(client)
        answer = client.ask(SaslHandshakeRequest(mechanism="PLAIN"))
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.ask(METADATA).brokers


def test_renewal_keeps_user_and_mechanism(secured: SecuredBroker) -> None:
    with RawClient(secured.address("SHORT")) as client:
        log_in(client)
        time.sleep(1.1)
        handshake(client)
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=Plain("bob", PASSWORD).first_message()))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == ("Cannot change principals during re-authentication from User.alice: User.bob")
        assert client.closed()
    with RawClient(secured.address("SHORT")) as client:
        log_in(client)
        time.sleep(1.1)
        handshake(client, "SCRAM-SHA-256")
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=x"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "not supported for re-authentication of mechanism 'PLAIN'" in answer.error_message
        assert client.closed()


def test_login_by_a_token_lasts_as_long_as_the_token(secured: SecuredBroker) -> None:
    now = int(time.time())
    token = f"n,,\x01auth=Bearer {secured.token(exp=now + 60)}\x01\x01".encode()
    with RawClient(secured.address("SASL")) as client:
        assert 0 < log_in(client, token, "OAUTHBEARER") <= 60_000
    token = f"n,,\x01auth=Bearer {secured.token(exp=now + 3)}\x01\x01".encode()
    with RawClient(secured.address("SASL")) as client:
        assert log_in(client, token, "OAUTHBEARER") <= 3_000
        time.sleep(3.1)
        client.send(METADATA)
        assert client.closed()


def test_silent_strangers_are_closed(tmp_path: Path) -> None:
    with secured_broker(tmp_path / "short", **{"login.timeout.ms": "1500"}) as secured:
        known = RawClient(secured.address("SASL"))
        log_in(known)
        strangers = [RawClient(secured.address(name)) for name in ("SASL", "TLS", "BOTH", "MUTUAL")]
        halfway = RawClient(secured.address("SASL"))
        handshake(halfway)
        for client in (*strangers, halfway):
            assert client.closed()
            client.close()
        assert known.ask(METADATA).brokers, "who has logged in stays"
        known.close()


def test_log_names_each_mistake_once_for_a_client(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with secured_broker(tmp_path / "told") as secured:
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 64
        for _ in range(20):
            with RawClient(secured.address("PLAIN")) as client:
                client.sock.sendall(hello)
                assert client.closed()
            with RawClient(secured.address("TLS")) as client:
                client.send(METADATA)
                assert client.sock.recv(100) == b"\x15\x03\x03", "an alert's beginning, and no length that Java takes"
                assert client.closed()
            with RawClient(secured.address("SASL")) as client:
                client.send(METADATA)
                assert client.closed()
            with RawClient(secured.address("SASL")) as client:
                handshake(client)
                client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0guess-one"))
                assert client.receive().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    reported = capfd.readouterr().err
    for text in (
        "it speaks TLS and this listener does not",
        "[listener TLS] TLS login of 127.0.0.1",
        "the client does not speak TLS",
        "[listener SASL] unexpected request of type Metadata during SASL handshake; its security.protocol must be",
        "[listener SASL] login of user 'alice' from 127.0.0.1",
    ):
        assert reported.count(text) == 1, reported
    assert "guess-one" not in reported
    assert PASSWORD not in reported


def test_log_warns_of_credentials_that_nothing_checks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from kohort import Admin
    from kohort.client.admin.values import ScramCredential

    with Broker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.alter_user_scram_credentials([ScramCredential("alice", "secret")]).all()
    assert "no listener of this broker uses SASL" in capfd.readouterr().err

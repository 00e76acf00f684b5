"""Bearer tokens from a token endpoint, and TLS files that change under a client."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin
from kohort.client.net import asyncio_driver
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.net.security import SaslError, TlsFiles, sasl_mechanism
from kohort.client.oauth import TokenEndpoint
from kohort.client.settings import ConnectionConfig, client_config
from kohort.errors import InvalidInputError, KafkaError
from tests.support.secured_broker import SecuredBroker, secured_broker
from tests.support.secured_kafka import make_certificates

SECRET = "s:e c+r/et"


class Endpoint:
    """A token endpoint: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.answers: list[tuple[int, bytes]] = []
        self.url = ""


@contextmanager
def endpoint(certificates: Path | None = None) -> Iterator[Endpoint]:
    reported = Endpoint()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            reported.asked.append((self.headers["Authorization"], urllib.parse.parse_qs(body)))
            status, data = reported.answers.pop(0) if len(reported.answers) > 1 else reported.answers[0]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", reported.url)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "broker.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    reported.url = f"http{'' if certificates is None else 's'}://127.0.0.1:{server.server_port}/token"
    try:
        yield reported
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(token: str, seconds: Any = 100) -> tuple[int, bytes]:
    return 200, json.dumps({"access_token": token, "expires_in": seconds, "token_type": "Bearer"}).encode()


def settings(url: str, **others: Any) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": "client:1",
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        "sasl.oauthbearer.scope": "kafka read",
        **others,
    }


def source(url: str, clock: list[float], **others: Any) -> TokenEndpoint:
    return TokenEndpoint(client_config(ConnectionConfig, "127.0.0.1:1", settings(url, **others)), lambda: clock[0])


def test_client_proves_its_secret_and_keeps_the_token_for_most_of_its_life() -> None:
    clock = [0.0]
    with endpoint() as asked:
        asked.answers = [answer("one"), answer("two")]
        tokens = source(asked.url, clock)
        assert [tokens(), tokens()] == ["one", "one"]
        clock[0] = 79.0
        assert tokens() == "one"
        clock[0] = 81.0
        assert tokens() == "two"
        (header, fields), _ = asked.asked
    name, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
    assert (urllib.parse.unquote_plus(name), urllib.parse.unquote_plus(secret)) == ("client:1", SECRET)
    assert fields == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}


@pytest.mark.parametrize("lifetime", [100.0, "100"])
def test_lifetime_may_be_any_number(lifetime: Any) -> None:
    clock = [0.0]
    with endpoint() as reported:
        reported.answers = [answer("first", lifetime)]
        ask = source(reported.url, clock)
        assert [ask(), ask()] == ["first", "first"]
        assert len(reported.asked) == 1


def test_token_is_used_for_its_whole_life_while_the_endpoint_fails() -> None:
    clock = [0.0]
    with endpoint() as asked:
        asked.answers = [answer("one"), (401, b"no"), (200, b"{}"), answer("two")]
        tokens = source(asked.url, clock)
        assert tokens() == "one"
        clock[0] = 81.0
        assert [tokens(), tokens()] == ["one", "one"]
        assert len(asked.asked) == 2, "connections do not ask a failing endpoint each"
        clock[0] = 92.0
        assert tokens() == "one"
        clock[0] = 99.9
        assert (tokens(), len(asked.asked)) == ("one", 3)
        clock[0] = 100.1
        assert tokens() == "two"


def test_expired_token_is_not_used() -> None:
    clock = [0.0]
    with endpoint() as asked:
        asked.answers = [answer("one"), (401, b"no")]
        tokens = source(asked.url, clock)
        assert tokens() == "one"
        clock[0] = 100.1
        with pytest.raises(OSError, match="401"):
            tokens()


def test_client_is_named_in_javas_way_too() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    jaas = f'{module} required clientId="me" clientSecret="x" scope="s";'
    plain = {key: None for key in settings("") if "credentials" in key or key.endswith("scope")}
    with endpoint() as asked:
        asked.answers = [answer("one")]
        assert source(asked.url, [0.0], **plain, **{"sasl.jaas.config": jaas})() == "one"
        assert base64.b64decode(asked.asked[0][0].removeprefix("Basic ")) == b"me:x"


def test_token_comes_from_a_file_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    tokens = source(file.as_uri(), [0.0])
    assert tokens() == "one"
    file.write_text("two")
    assert tokens() == "two"


def test_busy_endpoint_is_asked_again_and_a_refusal_is_not() -> None:
    with endpoint() as asked:
        asked.answers = [(503, b""), (500, b""), answer("one")]
        assert source(asked.url, [0.0])() == "one"
        assert len(asked.asked) == 3
        asked.answers = [(401, b'{"error":"invalid_client"}')]
        with pytest.raises(OSError, match="401: .*invalid_client"):
            source(asked.url, [0.0])()
        assert len(asked.asked) == 4


@pytest.mark.parametrize("reported", [b"", b"{}", b"[]", b'{"access_token": 7}', b"x" * (1 << 20)])
def test_answers_without_a_token_are_refused(reported: bytes) -> None:
    with endpoint() as asked:
        asked.answers = [(200, reported)]
        with pytest.raises(ValueError, match="."):
            source(asked.url, [0.0])()


def test_secret_is_not_sent_to_where_the_endpoint_points() -> None:
    with endpoint() as asked:
        asked.answers = [(302, b""), answer("one")]
        with pytest.raises(OSError, match="302"):
            source(asked.url, [0.0])()
        assert len(asked.asked) == 1


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": "ftp://x"}, "must begin with"),
        ({"sasl.oauthbearer.client.credentials.client.secret": None}, "client.secret"),
        ({"sasl.oauthbearer.token.endpoint.url": None}, "sasl.oauthbearer.token.endpoint.url"),
    ],
)
def test_missing_settings_are_reported_before_the_first_connection(others: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        Admin("127.0.0.1:1", **settings("http://127.0.0.1:1/", **others))


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        pytest.param("http://issuer.example/token?key=hidden", True, id="another machine"),
        pytest.param("https://issuer.example/token", False, id="encrypted"),
        pytest.param("http://127.0.0.1:1/token", False, id="this machine"),
        pytest.param("http://[::1]:1/token", False, id="this machine by IPv6"),
    ],
)
def test_secret_that_would_cross_the_network_in_plain_text_is_warned_of(
    url: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source(url, [0.0])
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    assert ("everyone on the way can read" in caplog.text) == warned
    assert "hidden" not in caplog.text


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def test_client_logs_in_at_a_broker_by_the_token_of_an_endpoint(secured: SecuredBroker) -> None:
    with endpoint() as asked:
        asked.answers = [answer(secured.token())]
        with Admin(secured.address("SASL"), **settings(asked.url)) as admin:
            assert admin.describe_cluster().nodes
        asked.answers = [answer(secured.token(aud="elsewhere"))]
        others = {"sasl.oauthbearer.client.credentials.client.id": "another"}
        with Admin(secured.address("SASL"), **settings(asked.url, **others)) as admin:
            with pytest.raises(SaslError, match="invalid_token"):
                admin.describe_cluster()


def test_extensions_go_to_the_broker_with_the_token(secured: SecuredBroker) -> None:
    """confluent-kafka-python #1795: Confluent Cloud needs logicalCluster and identityPoolId beside the token."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    jaas = f"{module} required extension_logicalCluster='lkc-1' extension_identityPoolId='pool-2';"
    pairs = "logicalCluster=lkc-1,identityPoolId=pool-2"
    hook = {"sasl.oauth.token": secured.token, "sasl.oauthbearer.token.endpoint.url": None}
    with endpoint() as asked:
        asked.answers = [answer(secured.token())]
        for others in (
            {"sasl.oauthbearer.extensions": pairs},
            {"sasl.jaas.config": jaas},
            {"sasl.jaas.config": jaas, **hook},
        ):
            chosen = settings(asked.url, **others)
            mechanism = sasl_mechanism(client_config(ConnectionConfig, "127.0.0.1:1", chosen))
            assert mechanism.first_message().endswith(b"\x01logicalCluster=lkc-1\x01identityPoolId=pool-2\x01\x01")
            with Admin(secured.address("SASL"), **chosen) as admin:
                assert admin.describe_cluster().nodes


@pytest.mark.parametrize("pairs", ["auth=x", "logicalCluster", "a-b=c", "a=\x01", "=x", "a="])
def test_an_extension_that_can_not_be_sent_is_refused(pairs: str) -> None:
    with pytest.raises(InvalidInputError, match=r"sasl\.oauthbearer\.extensions: "):
        Admin("127.0.0.1:1", **settings("http://127.0.0.1:1/", **{"sasl.oauthbearer.extensions": pairs}))
    if "=" in pairs[1:]:
        jaas = {"sasl.jaas.config": f"x.Module required extension_{pairs.replace('=', '=' + chr(34))}{chr(34)};"}
        with pytest.raises(InvalidInputError, match="extension_…|can't be read"):
            Admin("127.0.0.1:1", **settings("http://127.0.0.1:1/", **jaas))


@pytest.mark.parametrize("given", ["file", "text"])
def test_endpoint_is_trusted_by_the_authorities_of_the_brokers(tmp_path: Path, given: str) -> None:
    make_certificates(tmp_path)
    text = f"Bag Attributes: <Empty Attributes>, Zürich\n{(tmp_path / 'ca.pem').read_text()}"
    (tmp_path / "exported.pem").write_text(text, encoding="utf-8")  # as openssl pkcs12 -nokeys writes it
    trust = (
        {"ssl.ca.location": str(tmp_path / "exported.pem")}
        if given == "file"
        else {"ssl.truststore.certificates": text}
    )
    with endpoint(tmp_path) as reported:
        reported.answers = [answer("first")]
        assert source(reported.url, [0.0], **trust)() == "first"


@pytest.mark.parametrize("token", [None, b"token"])
def test_token_of_another_type_is_refused_and_not_sent(token: Any) -> None:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token": lambda: token}
    with pytest.raises(SaslError, match=f"must return a token as str, not {type(token).__name__}"):
        sasl_mechanism(client_config(ConnectionConfig, "127.0.0.1:1", given)).first_message()


def test_client_takes_new_certificates_for_new_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_certificates(tmp_path)
    authority = tmp_path / "in-use.pem"
    shutil.copy(tmp_path / "ca.pem", authority)
    given = {"security.protocol": "SSL", "ssl.ca.location": str(authority)}
    files = TlsFiles(client_config(ConnectionConfig, "127.0.0.1:1", given))
    first = files.current_tls_context()
    assert first is not None
    assert files.current_tls_context() is first
    authority.write_text("damaged")
    assert files.current_tls_context() is first
    assert "the files loaded before stay in use" in caplog.text
    shutil.copy(tmp_path / "ca.pem", authority)
    os.utime(authority, (1, 1))
    second = files.current_tls_context()
    assert second is not None
    assert second is not first


def test_connection_whose_login_can_not_begin_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further attempt would leave another one behind, where the system is short of threads already."""

    def starts_no_thread(_config: ConnectionConfig) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio_driver, "fetch_sasl_mechanism", starts_no_thread)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    async def play() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(30):
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token": str}
            client = await AsyncClient.open(client_config(ConnectionConfig, address, login))
            with pytest.raises(KafkaError, match="can't start new thread"):
                await client.call(client.cluster.describe_topics([], 500))
            await ended.wait()
            await client.close()

    asyncio.run(play())

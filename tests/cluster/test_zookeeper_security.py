"""Coordinators and a real ZooKeeper that authenticates: digests, SASL, TLS, and nodes that are one user's."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.zookeeper import session as zookeeper_session
from kohort.cluster.zookeeper.nodes import COORDINATOR, EPOCH, IDS, PLACEMENT
from kohort.cluster.zookeeper.security import ZooKeeperAddress, zookeeper_address
from kohort.cluster.zookeeper.service import ZooKeeperCoordination
from kohort.cluster.zookeeper.session import SessionState, ZooKeeperSession
from kohort.errors import InvalidInputError, NotAuthorizedError, NotFoundError, TimedOutError
from kohort.zookeeper import ZooKeeper, free_port
from tests.cluster.coordination_services import SHARDS, candidate, until
from tests.cluster.running import CoordinatorProcess
from tests.cluster.test_broker_zookeeper import BrokerProcess
from tests.cluster.test_coordinator import Place, status
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import KOHORT
from tests.support.secured_kafka import make_certificates

WAIT_S = 90
PROVIDERS = "org.apache.zookeeper.server.auth"
DIGEST = {
    "zookeeper.auth.scheme": "digest",
    "zookeeper.auth.username": "coordinators",
    "zookeeper.auth.password": "secret",
}
SASL = {"zookeeper.auth.scheme": "sasl", "zookeeper.auth.username": "alice", "zookeeper.auth.password": "secret"}
SUPER_USER = "super:everything"
JAAS = f'Server {{ {PROVIDERS}.DigestLoginModule required user_alice="secret"; }};'


class SecuredZooKeeper:
    """A server with a port for TLS and one without; both know alice by SASL.

    Attributes:
        plain, encrypted: the addresses.
        certificates: the folder of PEM files.
    """

    def __init__(self, folder: Path) -> None:
        self.certificates = folder
        make_certificates(folder)
        (folder / "jaas.conf").write_text(JAAS)
        port = free_port()
        settings = {
            "authProvider.sasl": f"{PROVIDERS}.SASLAuthenticationProvider",
            "authProvider.x509": f"{PROVIDERS}.X509AuthenticationProvider",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(port),
            "ssl.clientAuth": "want",
            "ssl.keyStore.location": str(folder / "broker.pem"),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(folder / "ca.pem"),
            "ssl.trustStore.type": "PEM",
        }
        digest = base64.b64encode(hashlib.sha1(SUPER_USER.encode(), usedforsecurity=False).digest()).decode()
        options = (
            f"-Djava.security.auth.login.config={folder / 'jaas.conf'}",
            "-Dzookeeper.DigestAuthenticationProvider.digestAlg=SHA1",
            f"-Dzookeeper.DigestAuthenticationProvider.superDigest=super:{digest}",
        )
        self.server = ZooKeeper(settings=settings, options=options)
        self.plain, self.encrypted = self.server.address, f"localhost:{port}"

    def tls(self, **more: str) -> dict[str, str]:
        names = {name.replace("_", "."): value for name, value in more.items()}
        trusted = {"zookeeper.ssl.truststore.location": str(self.certificates / "ca.pem")}
        return {"zookeeper.ssl.client.enable": "true"} | trusted | names

    def mutual(self) -> dict[str, str]:
        return self.tls(zookeeper_ssl_keystore_location=str(self.certificates / "client.pem"))


@pytest.fixture(scope="module")
def secured_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    try:
        secured = SecuredZooKeeper(tmp_path_factory.mktemp("zookeeper-tls"))
    except NotFoundError as error:
        pytest.skip(f"ZooKeeper can't run here: {error}")
    with secured.server:
        yield secured


def place_for(kind: str, secured: SecuredZooKeeper) -> ZooKeeperAddress:
    servers, properties = {
        "digest": (secured.plain, DIGEST),
        "sasl": (secured.plain, SASL),
        "tls": (secured.encrypted, secured.tls()),
        "tls and digest": (secured.encrypted, secured.tls() | DIGEST),
        "mutual tls": (secured.encrypted, secured.mutual()),
    }[kind]
    if kind == "sasl":
        pytest.importorskip("puresasl", reason="kazoo's SASL needs pure-sasl")
    return zookeeper_address(f"{servers}/secured-{uuid.uuid4().hex[:8]}/deep", properties)


async def agreed(services: list[ZooKeeperCoordination], me: list[Candidate]) -> None:
    """Open all services, and wait until they have one map with all candidates."""

    async def turn() -> None:
        while True:
            for service in services:
                service.report_loop_alive()
            await asyncio.sleep(0.05)

    turning = asyncio.create_task(turn())
    try:
        for service, member in zip(services, me, strict=True):
            await service.open(member, SHARDS)
        await until(
            lambda: all(
                service.placement and len(service.placement.candidates) == len(services) for service in services
            ),
            "one map",
        )
    finally:
        turning.cancel()


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, WAIT_S))


SHARED_NODES = [COORDINATOR, EPOCH, IDS, PLACEMENT, f"{IDS}/1", ""]
"""All persistent and ephemeral nodes that coordinators share."""


def acls_below(
    secured: SecuredZooKeeper, place: ZooKeeperAddress, nodes: list[str] = SHARED_NODES
) -> dict[str, set[str]]:
    """Return the schemes in the ACLs of nodes."""
    root = "/" + place.servers.partition("/")[2]
    look = KazooClient(secured.plain, auth_data=[("digest", SUPER_USER)])
    look.start()
    try:
        return {node: {acl.id.scheme for acl in look.get_acls(root + node)[0]} for node in nodes}
    finally:
        look.stop()
        look.close()


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("digest", "digest"), ("sasl", "sasl"), ("tls", "world"), ("tls and digest", "digest"), ("mutual tls", "x509")],
)
def test_two_coordinators_agree_and_their_nodes_are_their_users(
    secured_zookeeper: SecuredZooKeeper, kind: str, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = place_for(kind, secured_zookeeper)

    async def story() -> None:
        services = [ZooKeeperCoordination(place) for _ in range(2)]
        try:
            await agreed(services, [candidate(1), candidate(2)])
            found = await asyncio.to_thread(acls_below, secured_zookeeper, place)
            assert set().union(*found.values()) == {scheme}, found
        finally:
            for service in services:
                await service.close()

    with caplog.at_level("WARNING", "kohort.cluster"):
        play(story())
    warned = [line for line in caplog.messages if "nodes are open to everyone" in line]
    assert len(warned) == (2 if scheme == "world" else 0), "once for each session"


def test_nodes_of_a_user_are_refused_to_everyone_else(secured_zookeeper: SecuredZooKeeper) -> None:
    place = place_for("digest", secured_zookeeper)
    root = "/" + place.servers.partition("/")[2]
    others = [
        place.servers,
        zookeeper_address(place.servers, DIGEST | {"zookeeper.auth.password": "wrong"}),
    ]

    async def story() -> None:
        service = ZooKeeperCoordination(place)
        try:
            await agreed([service], [candidate(1)])
            for other in others:
                with pytest.raises(NotAuthorizedError, match="may not change what is there"):
                    await ZooKeeperCoordination(other).open(candidate(2), SHARDS)
            assert service.placement is not None and service.placement.shards_of(1)
        finally:
            await service.close()

    play(story())
    look = KazooClient(secured_zookeeper.plain)
    look.start()
    try:
        with pytest.raises(NoAuthError):
            look.set(root + EPOCH, b"")
        with pytest.raises(NoAuthError):
            look.create(f"{root}{IDS}/9", b"{}")
    finally:
        look.stop()
        look.close()


def test_nodes_from_before_the_login_are_warned_of(
    secured_zookeeper: SecuredZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    place = place_for("digest", secured_zookeeper)

    async def story() -> None:
        for at in (place.servers, place):
            service = ZooKeeperCoordination(at)
            try:
                await agreed([service], [candidate(1)])
            finally:
                await service.close()

    with caplog.at_level("WARNING", "kohort.cluster"):
        play(story())
    assert any(EPOCH in line and "is open to everyone, because it was created" in line for line in caplog.messages)


def test_a_wrong_password_of_sasl_is_refused_in_words(secured_zookeeper: SecuredZooKeeper) -> None:
    pytest.importorskip("puresasl", reason="kazoo's SASL needs pure-sasl")
    place = zookeeper_address(secured_zookeeper.plain, SASL | {"zookeeper.auth.password": "wrong"})

    async def story() -> None:
        with pytest.raises(NotAuthorizedError, match="refused the login of sasl user alice"):
            await ZooKeeperCoordination(place).open(candidate(1), SHARDS)

    play(story())


def test_a_login_that_is_refused_later_is_tried_again(
    secured_zookeeper: SecuredZooKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A password that changes at the server ends kazoo's attempts for good; the session begins new ones."""
    pytest.importorskip("puresasl", reason="kazoo's SASL needs pure-sasl")
    monkeypatch.setattr(zookeeper_session, "_LOGIN_AGAIN_S", 0.1)
    session = ZooKeeperSession(zookeeper_address(secured_zookeeper.plain, SASL), 6_000, lambda _: None)

    async def story() -> None:
        await session.open(30_000)
        assert await session.children("/") != []
        connections = session.connections
        try:
            login = session._client._connection.sasl_options
            login["password"] = "wrong"
            session._client._connection._socket.shutdown(socket.SHUT_RDWR)
            await until(lambda: session._login_refused, "the login is refused")

            def is_back() -> bool:
                session.report_loop_alive()
                return session.state is SessionState.CONNECTED and session.connections > connections

            await until(is_back, "it logs in again")
            assert await session.children("/") != []
        finally:
            await session.close()

    with caplog.at_level("ERROR", "kohort.cluster"):
        play(story())
    assert any("refused the login of sasl user alice; retrying" in line for line in caplog.messages)


@pytest.mark.filterwarnings("ignore:.*unclosed.*SSLSocket")  # of kazoo, after each handshake that fails
def test_a_server_that_is_not_trusted_is_named_with_the_reason(secured_zookeeper: SecuredZooKeeper) -> None:
    trusting = secured_zookeeper.tls() | {"zookeeper.ssl.truststore.location": ""}
    session = ZooKeeperSession(zookeeper_address(secured_zookeeper.encrypted, trusting), 6_000, lambda _: None)

    async def story() -> None:
        with pytest.raises(TimedOutError, match="certificate verify failed"):
            await session.open(1_000)

    play(story())


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"zookeeper.auth.scheme": "digest"}, "needs zookeeper.auth.username and zookeeper.auth.password"),
        (
            {"zookeeper.auth.username": "a", "zookeeper.auth.password": "b"},
            "needs zookeeper.auth.scheme=digest or sasl",
        ),
        ({"zookeeper.auth.scheme": "kerberos"}, "zookeeper.auth.scheme"),
        ({"zookeeper.ssl.keystore.location": "/tmp/x"}, "need zookeeper.ssl.client.enable=true"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.truststore.location": "/no/ca.pem"}, "no file /no/ca"),
        (
            {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.truststore.location": __file__},
            "PEM files are needed",
        ),
        ({"zookeeper.ssl.client": "true"}, "did you mean zookeeper.ssl.client.enable"),
    ],
)
def test_settings_that_do_not_fit_are_refused(properties: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        zookeeper_address("127.0.0.1:2181", properties)
    assert said in refused.value.message


def test_a_server_that_requires_a_login_says_so(zookeeper: ZooKeeper) -> None:
    """`zookeeper` only shows that a server can run here."""

    async def story(address: str) -> None:
        service = ZooKeeperCoordination(zookeeper_address(address, DIGEST))
        await agreed([service], [candidate(1)])
        await service.close()
        with pytest.raises(NotAuthorizedError, match=r"no session without a login: set zookeeper\.auth\.scheme"):
            await ZooKeeperCoordination(address).open(candidate(2), SHARDS)

    with ZooKeeper(settings={"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"}) as requiring:
        play(story(requiring.address))


@pytest.mark.kafka
def test_coordinators_over_kafka_meet_in_a_secured_zookeeper(
    secured_zookeeper: SecuredZooKeeper, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    file = tmp_path / "zookeeper.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in (secured_zookeeper.tls() | DIGEST).items()))
    path = f"{secured_zookeeper.encrypted}/{uuid.uuid4().hex[:8]}"
    with Place(apache_kafka).start("--zookeeper", path, "--zookeeper-config", str(file)) as process:
        assert {shard["phase"] for shard in status(process.address)["shards"]} == {"serving"}
        assert "secret" not in process.log
        assert "open to everyone" not in process.log


def test_a_file_of_zookeeper_without_an_address_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "zookeeper.properties"
    file.write_text("zookeeper.auth.scheme=digest\n")
    with CoordinatorProcess("127.0.0.1:1", "--zookeeper-config", str(file), wait=False) as process:
        assert process.process.wait(60) == 2
        process.close()
        assert "--zookeeper-config needs --zookeeper" in process.log


@pytest.mark.parametrize("kind", ["tls and digest", "mutual tls"])
def test_broker_shows_itself_in_a_secured_zookeeper(
    secured_zookeeper: SecuredZooKeeper, kind: str, tmp_path: Path
) -> None:
    place = place_for(kind, secured_zookeeper)
    properties = secured_zookeeper.tls() | DIGEST if kind == "tls and digest" else secured_zookeeper.mutual()
    file = tmp_path / "zookeeper.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    broker = BrokerProcess(tmp_path / "data", place.servers, "--zookeeper-config", str(file), "--set", "node.id=1")
    with broker:
        found = acls_below(secured_zookeeper, place, [COORDINATOR, EPOCH, IDS, f"{IDS}/1", ""])
        assert set().union(*found.values()) == {"x509" if kind == "mutual tls" else "digest"}, found
        assert "secret" not in broker.log
        assert "open to everyone" not in broker.log


def test_broker_that_zookeeper_refuses_ends_and_says_so(secured_zookeeper: SecuredZooKeeper, tmp_path: Path) -> None:
    place = place_for("tls and digest", secured_zookeeper)
    files = {name: tmp_path / f"{name}.properties" for name in ("right", "wrong")}
    for name, file in files.items():
        properties = secured_zookeeper.tls() | DIGEST | ({} if name == "right" else {"zookeeper.auth.password": "x"})
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    with BrokerProcess(tmp_path / "1", place.servers, "--zookeeper-config", str(files["right"])):
        wrong = ("--zookeeper-config", str(files["wrong"]), "--set", "node.id=7")
        with BrokerProcess(tmp_path / "2", place.servers, *wrong, wait=False) as refused:
            assert refused.process.wait(WAIT_S) == 1
            refused.close()
            assert "may not change what is there" in refused.log


@pytest.mark.parametrize(
    ("zookeeper", "properties", "said"),
    [
        (None, "zookeeper.auth.scheme=digest\n", "--zookeeper-config needs --zookeeper"),
        ("127.0.0.1:1", "zookeeper.auth.scheme=digest\n", "needs zookeeper.auth.username and zookeeper.auth.password"),
    ],
)
def test_broker_refuses_a_file_of_zookeeper_that_does_not_fit(
    zookeeper: str | None, properties: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "zookeeper.properties"
    file.write_text(properties)
    command = [*KOHORT, "broker", "--data", str(tmp_path / "data"), "--zookeeper-config", str(file)]
    command += [] if zookeeper is None else ["--zookeeper", zookeeper]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and said in ended.stderr

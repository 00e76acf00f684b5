"""Listeners by their settings: names, protocols, advertised addresses, and who may be let in."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Broker, Consumer, Producer
from kohort.broker.security.addresses import SecurityProtocol
from kohort.broker.security.development import JAVA, KOHORT, LIBRDKAFKA, USER, development_files
from kohort.broker.security.listeners import planned_listeners
from kohort.broker.security.settings import security_config
from kohort.errors import InvalidInputError, NotAuthorizedError
from kohort.settings.config import read_properties
from kohort.wire.discovery import DescribeClusterRequest, DescribeConfigsRequest, MetadataRequest
from kohort.wire.groups import FindCoordinatorRequest
from tests.broker.raw import RawClient
from tests.support.secured_kafka import make_certificates

INSIDE = {
    "listener.security.protocol.map": "inside:PLAINTEXT, OUTSIDE:SASL_SSL",
    "advertised.listeners": "INSIDE://in.example:1,OUTSIDE://out.example:2",
    "ssl.client.auth": "required",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.outside.plain.connections.max.reauth.ms": "7000",
    "connections.max.reauth.ms": "5000",
}


def test_listeners_have_their_own_protocol_address_and_settings() -> None:
    inside, outside = planned_listeners("INSIDE://0.0.0.0:1,OUTSIDE://:2", INSIDE)
    assert (inside.protocol, inside.advertised, inside.authenticates) == (
        SecurityProtocol.PLAINTEXT, ("in.example", 1), False,
    )  # fmt: skip
    assert (outside.protocol, outside.advertised, outside.authenticates) == (
        SecurityProtocol.SASL_SSL, ("out.example", 2), True,
    )  # fmt: skip
    assert outside.config.client_auth == "none", "of SASL_SSL only with the listener's name, as in Kafka"
    assert {name: config.reauth_ms for name, config in outside.by_mechanism.items()} == {"PLAIN": 7000}
    own = INSIDE | {"listener.name.outside.ssl.client.auth": "requested"}
    assert planned_listeners("OUTSIDE://:2", own | {"advertised.listeners": ""})[0].config.client_auth == "requested"


@pytest.mark.parametrize(
    ("listen", "properties", "text"),
    [
        ("A://h:1", {}, "A is A, which is none of PLAINTEXT, SSL"),
        ("A://h:1,a://h:2", {}, "the name A comes twice"),
        ("SASL_SSL://h:1", {"sasl.enabled.mechanisms": "GSSAPI"}, "no Kerberos"),
        ("SASL_SSL://h:1", {"sasl.enabled.mechanisms": "DIGEST-MD5"}, "DIGEST-MD5 is none of PLAIN"),
        ("SASL_SSL://h:1", {"sasl.enabled.mechanisms": ""}, "is empty"),
        ("SASL_SSL://h:1", {"connections.max.reauth.ms": "soon"}, "listener SASL_SSL: .*must be a whole number"),
        ("SSL://h:1,PLAINTEXT://h:2", {"advertised.listeners": "OTHER://h:1"}, "there is no listener OTHER"),
        ("SSL://h:1", {"advertised.listeners": "SSL://0.0.0.0:1"}, "name a host that it can"),
        ("h", {}, "HOST:PORT"),
    ],
)
def test_settings_that_do_not_fit_are_refused(listen: str, properties: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        planned_listeners(listen, properties)


def test_secrets_are_not_shown_in_errors() -> None:
    with pytest.raises(InvalidInputError) as refused:
        security_config({"ssl.key.password": 7}, "X")
    assert "7" not in refused.value.message


def test_each_listener_tells_clients_its_own_address(tmp_path: Path) -> None:
    config = {
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
        "advertised.listeners": "IN://localhost:0,OUT://out.example:9999",
    }
    with Broker(tmp_path, config, "IN://127.0.0.1:0,OUT://127.0.0.1:0") as broker:
        assert broker.bootstrap_servers == broker.listeners["IN"]
        reported = {"IN": ("localhost", int(broker.listeners["IN"].rpartition(":")[2])), "OUT": ("out.example", 9999)}
        for name, address in reported.items():
            with RawClient(broker.listeners[name]) as client:
                (node,) = client.ask(MetadataRequest(topics=[])).brokers
                assert (node.host, node.port) == address
                (node,) = client.ask(DescribeClusterRequest()).brokers
                assert (node.host, node.port) == address
                (found,) = client.ask(FindCoordinatorRequest(coordinator_keys=["g"])).coordinators
                assert (found.host, found.port) == address
        before = dict(broker.listeners)
        broker.restart()
        assert broker.listeners == before


# -- Safe by default


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "PLAINTEXT://0.0.0.0:0", "PLAINTEXT://127.0.0.1:0,B://:0"])
def test_open_listener_beyond_loopback_is_refused_with_the_ways_to_secure_it(tmp_path: Path, listen: str) -> None:
    listen = listen.replace("B://:0", "B://0.0.0.0:0")
    with pytest.raises(InvalidInputError) as refused:
        Broker(tmp_path, {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT"}, listen)
    for way in ("--tls", "--client-ca", "--sasl", "--insecure", "allow.insecure.listeners=true"):
        assert way in refused.value.message


def test_listener_that_only_encrypts_is_open_too(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    config = {
        "ssl.keystore.location": str(tmp_path / "broker.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
    }
    for auth in ("none", "requested"):
        with pytest.raises(InvalidInputError, match="encrypted, but open to everyone"):
            Broker(tmp_path / "data", config | {"ssl.client.auth": auth}, "SSL://0.0.0.0:0")
    for more, listen in (
        ({"ssl.client.auth": "required"}, "SSL://0.0.0.0:0"),
        ({}, "SASL_SSL://0.0.0.0:0"),
        ({}, "SASL_PLAINTEXT://0.0.0.0:0"),
        ({"allow.insecure.listeners": "true"}, "SSL://0.0.0.0:0"),
        ({}, "localhost:0"),
    ):
        Broker(tmp_path / "data", config | more, listen).close()
    Broker(tmp_path / "data", listen="0.0.0.0:0", insecure=True).close()


def test_command_has_the_same_ways(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    make_certificates(tmp_path)
    (tmp_path / "users").write_text("alice=secret-1\nbob=secret-2\n")
    settings = tmp_path / "server.properties"
    settings.write_text(f"listeners=PLAINTEXT://:0\nlog.dirs={tmp_path / 'data'}\n")
    refused = start("broker", "--config", str(settings))
    _, reported = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "--insecure" in reported
    tls = ("--tls", str(tmp_path / "broker.pem"))
    for options in (
        ("--insecure",),
        (*tls, "--client-ca", str(tmp_path / "ca.pem"), "--listen", "0.0.0.0:0"),
        ("--sasl", str(tmp_path / "users"), "--listen", "0.0.0.0:0"),
    ):
        process = start("broker", "--config", str(settings), *options)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready 0.0.0.0:")
        process.terminate()
        assert process.wait(60) == 0
    process = start(
        "broker", "--data", str(tmp_path / "data"), *tls, "--sasl", str(tmp_path / "users"), "--listen", "127.0.0.1:0"
    )
    assert process.stdout is not None
    address = process.stdout.readline().removeprefix("ready ").strip()
    common = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(tmp_path / "ca.pem")}
    for mechanism, user, password in (
        ("SCRAM-SHA-512", "alice", "secret-1"), ("SCRAM-SHA-256", "bob", "secret-2"), ("PLAIN", "bob", "secret-2"),
    ):  # fmt: skip
        login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        with Admin(address, **common, **login) as admin:
            assert admin.describe_cluster().nodes
    with Admin(address, **common, **login | {"sasl.password": "secret-1"}) as admin:
        with pytest.raises(NotAuthorizedError):
            admin.describe_cluster()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--client-ca", "x"), "--client-ca needs --tls"),
        (("--secure", "{folder}/s", "--sasl", "x"), "leave --tls and --sasl out"),
        (("--sasl", "{folder}/missing"), "missing"),
        (("--tls", "{folder}/missing"), "missing"),
        (("--tls", "{folder}/keyless"), "the file needs a private key"),
        (("--listen", "192.0.2.1:0"), "no network interface of this machine has the address 192.0.2.1"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], options: tuple[str, ...], text: str
) -> None:
    (tmp_path / "keyless").write_text("no key is here\n")
    given = [option.format(folder=tmp_path) for option in options]
    given += ["--insecure"] if "--listen" in given else ["--listen", "127.0.0.1:0"]
    process = start("broker", "--data", str(tmp_path / "data"), *given)
    _, reported = process.communicate(timeout=60)
    assert process.returncode in (1, 2)
    assert text in reported


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (("broker", "--data", "{folder}/data", "--set", "no.such.setting=1"), "the file of --config"),
        (("coordinator", "--kafka", "127.0.0.1:1", "--set", "no.such.setting=1"), "users by --sasl"),
    ],
    ids=["broker", "coordinator"],
)
def test_passwords_in_arguments_are_noted(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], command: tuple[str, ...], instead: str
) -> None:
    given = [word.format(folder=tmp_path) for word in command]
    jaas = "listener.name.inside.plain.sasl.jaas.config"
    for pair, noted in ((f"{jaas}=s3cret-word", True), ("sasl.oauthbearer.token.endpoint.url=x", False)):
        process = start(*given, "--set", pair)
        _, reported = process.communicate(timeout=60)
        assert process.returncode == 2
        assert (f"--set {jaas}: other users of this machine see" in reported and instead in reported) is noted
        assert "s3cret" not in reported


# -- Development files


def test_secure_folder_has_all_that_clients_need_and_keeps_it(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    folder = tmp_path / "secure"
    seen: list[dict[str, bytes]] = []
    for _ in range(2):
        process = start("broker", "--secure", str(folder), "--data", str(tmp_path / "data"), "--listen", "0.0.0.0:0")
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("ready ").strip()
        for name in (KOHORT, JAVA):
            given: dict[str, Any] = dict(read_properties(folder / name))
            assert given["bootstrap.servers"] == address.replace("0.0.0.0", "127.0.0.1")
            with Admin(**given) as admin:
                assert admin.describe_cluster().nodes
        assert read_properties(folder / LIBRDKAFKA)["sasl.mechanisms"] == "SCRAM-SHA-512"
        process.terminate()
        _, told = process.communicate(timeout=60)
        assert "the user developer, its password" in told and str(folder) in told
        assert f"kohort topics list --command-config {folder / KOHORT}" in told
        assert given["sasl.jaas.config"].split('"')[3] not in told, "the password itself is not printed"
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        kept = ("ca.pem", "ca-key.pem", "server.pem", "users.properties")
        seen.append({name: (folder / name).read_bytes() for name in kept})
    assert seen[0] == seen[1]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777], ids=oct)
def test_secure_folder_that_others_may_write_into_is_refused(tmp_path: Path, mode: int) -> None:
    """Another user may have put an authority and a password of its own there."""
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "users.properties").write_text(f"{USER}=known-to-another-user\n")
    folder.chmod(mode)
    with pytest.raises(InvalidInputError, match=r"others may write into .*planted.* chmod 700"):
        development_files(folder, [])
    assert [file.name for file in folder.iterdir()] == ["users.properties"]
    folder.chmod(0o755)
    assert development_files(folder, []).client_properties("127.0.0.1:1")["sasl.password"] == "known-to-another-user"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("given_away", [".", "ca-key.pem", "server.pem", "users.properties"])
def test_secure_folder_of_another_user_is_refused(tmp_path: Path, given_away: str) -> None:
    development_files(tmp_path, [])
    os.chown(tmp_path / given_away, 65_534, -1)
    with pytest.raises(InvalidInputError, match="belongs to another user"):
        development_files(tmp_path, [])


def test_certificate_is_made_anew_for_another_host_and_the_authority_is_not(tmp_path: Path) -> None:
    development_files(tmp_path, ["127.0.0.1"])
    authority, server = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "server.pem").read_bytes()
    development_files(tmp_path, ["broker.example"])
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != server
    (tmp_path / "ca.pem").write_text("damaged")
    with pytest.raises(InvalidInputError, match="damaged"):
        development_files(tmp_path, [])


def test_embedded_broker_with_development_files(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", secure=tmp_path / "files") as broker:
        given: dict[str, Any] = broker.client_properties
        with Producer(**given) as producer:
            producer.send("t", value="one")
        with Consumer(**given, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            while not (records := consumer.poll(1_000)):
                pass
            assert [record.value for record in records] == [b"one"]
        with Admin(**given | {"sasl.password": "guess"}) as admin, pytest.raises(NotAuthorizedError):
            admin.describe_cluster()
        users = read_properties(tmp_path / "files" / "users.properties")
        assert given["sasl.password"] == users[USER]


def test_users_of_a_file_follow_it(tmp_path: Path) -> None:
    users = tmp_path / "users"
    config = {"sasl.users.location": str(users)}
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice"}
    for password in ("first", "second"):
        users.write_text(f"alice={password}\n")
        with Broker(tmp_path / "data", config, "SASL_PLAINTEXT://127.0.0.1:0") as broker:
            with Admin(broker.bootstrap_servers, **login, **{"sasl.password": password}) as admin:
                assert admin.describe_cluster().nodes
                store = (tmp_path / "data" / "users.json").read_text()
        assert password not in store
    users.write_text("alice=\n")
    with pytest.raises(InvalidInputError, match="user . of the file has no password"):
        Broker(tmp_path / "data", config, "SASL_PLAINTEXT://127.0.0.1:0")


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url"),
        ({"sasl.enabled.mechanisms": "PLAIN", "listener.name.in.plain.sasl.jaas.config": "user=x"}, "login module"),
        (
            {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.in.plain.sasl.jaas.config": "a.ScramLoginModule required;",
            },
            "must be a PlainLoginModule",
        ),
        ({"sasl.users.location": "/missing/users"}, "/missing/users"),
    ],
)
def test_login_that_can_not_work_is_refused_at_the_start_and_leaves_the_folder_free(
    tmp_path: Path, properties: dict[str, str], text: str
) -> None:
    config = {"listener.security.protocol.map": "IN:SASL_PLAINTEXT"} | properties
    with pytest.raises(InvalidInputError, match=text):
        Broker(tmp_path, config, "IN://127.0.0.1:0")
    Broker(tmp_path).close()


def test_names_of_users_in_jaas_may_have_dots_and_dashes(tmp_path: Path) -> None:
    module = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_my-app.1="s p;x" user_b=plain;'
    config = {
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.in.plain.sasl.jaas.config": module,
    }
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with Broker(tmp_path, config, "IN://127.0.0.1:0") as broker:
        for user, password in (("my-app.1", "s p;x"), ("b", "plain")):
            given = login | {"sasl.username": user, "sasl.password": password}
            with Admin(broker.bootstrap_servers, **given) as admin:
                assert admin.describe_cluster().nodes


def test_described_broker_has_the_given_settings_of_its_listeners_and_no_secret(tmp_path: Path) -> None:
    """A test of librdkafka reads `connections.max.reauth.ms` so, and skipped itself without it."""
    of_plain = "listener.name.inside.plain.sasl.jaas.config"
    given = {
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "connections.max.reauth.ms": 5000,
        "listener.name.inside.connections.max.reauth.ms": " 07000 ",
        "listener.name.absent.connections.max.reauth.ms": "soon",
        of_plain: 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="hidden-word";',
        "ssl.keystore.password": "hidden-word",
    }
    with Broker(tmp_path, given, listen="INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0") as broker:
        asked = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name="1", configuration_keys=None
        )
        with RawClient(broker.listeners["OUTSIDE"]) as client:
            answer = client.ask(DescribeConfigsRequest(resources=[asked], include_synonyms=True)).results[0]
    assert "hidden-word" not in repr(answer)
    found = {entry.name: entry for entry in answer.configs}
    assert len(found) == len(answer.configs)
    assert {name: found[name].value for name in given if name != "listener.security.protocol.map"} == {
        "sasl.enabled.mechanisms": "PLAIN",
        "connections.max.reauth.ms": "5000",
        "listener.name.inside.connections.max.reauth.ms": "7000",
        "listener.name.absent.connections.max.reauth.ms": "soon",
        of_plain: None,
        "ssl.keystore.password": None,
    }
    reauth, jaas = found["connections.max.reauth.ms"], found[of_plain]
    assert (reauth.config_source, reauth.config_type, reauth.read_only, reauth.is_sensitive) == (4, 5, True, False)
    assert (jaas.config_type, jaas.is_sensitive) == (9, True)

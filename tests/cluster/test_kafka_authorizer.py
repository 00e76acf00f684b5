"""Rights at a coordinator in front of a secured Kafka: clients log in, and Kafka's rules decide what they may do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.broker.authorization import CallerCopy, Resource
from kohort.broker.security.principals import Principal
from kohort.client.admin.values import Acl, AclFilter, AclOperation, AclPattern, AclPermission, AclResource, NewTopic
from kohort.client.net.asyncio_driver import AsyncClient
from kohort.client.settings import ConnectionConfig, client_config
from kohort.cluster.kafka_authorizer import MAX_AGE_S, KafkaAuthorizer
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotAuthorizedError
from tests.cluster.running import CoordinatorProcess
from tests.support.apache_kafka import ApacheKafka
from tests.support.nursery import run_command
from tests.support.processes import KOHORT
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import until

pytestmark = pytest.mark.kafka

WAIT_S = 90
USERS = "alice=secret\nbob=secret\ncarol=secret\n"


class SecuredPlace:
    """A topic, its coordinator with logins over TLS, and rules that belong to the test.

    Attributes:
        name: what the names of topic and groups begin with.
        process: the coordinator.
    """

    def __init__(self, secured: SecuredKafka, folder: Path) -> None:
        self.secured = secured
        self.name = uuid.uuid4().hex[:8]
        self.topic = f"flights-{self.name}"
        with Admin(secured.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(self.topic, 1)]).all()
        with Producer(secured.bootstrap_servers) as producer:
            producer.send(self.topic, b"1").result()
        login = folder / f"kafka-{self.name}.properties"
        login.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password=secret\n"
            f"ssl.ca.location={secured.certificates / 'ca.pem'}\n"
        )
        users, tls = folder / f"users-{self.name}", secured.certificates / "broker.pem"
        users.write_text(USERS)
        self.audit_log = folder / f"audit-{self.name}" / "audit.log"
        self.audit_log.parent.mkdir()
        self.args = (
            *("--set", f"journal.topic=__groups-{self.name}", "--set", f"placement.group=__placed-{self.name}"),
            *("--set", "journal.partitions=1", "--set", "super.users=User:alice"),
            *("--tls", str(tls), "--sasl", str(users), "--command-config", str(login)),
        )
        address, _ = secured.client("BOTH")
        self.process = CoordinatorProcess(address, *self.args, "--set", f"audit.log.location={self.audit_log}")

    def settings(self, user: str, **more: Any) -> dict[str, Any]:
        """Settings of a client: one login for Kafka and the coordinator."""
        _, chosen = self.secured.client("BOTH", sasl_mechanism="PLAIN", **more)
        return chosen | {"sasl_username": user}

    def allow(self, user: str, operation: AclOperation, kind: AclResource, name: str, **more: Any) -> Acl:
        rule = Acl(f"User:{user}", operation, kind, name, **more)
        with Admin(self.secured.bootstrap_servers) as admin:
            admin.create_acls([rule]).all()
        return rule

    def take_away(self, user: str) -> None:
        with Admin(self.secured.bootstrap_servers) as admin:
            admin.delete_acls([AclFilter(f"User:{user}")]).all()

    def recorded(self, event: str) -> list[dict[str, Any]]:
        """Return the entries of one kind in the coordinator's audit log."""
        file = self.audit_log
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [entry for entry in found if entry["event"] == event]


@pytest.fixture(scope="module")
def secured_place(secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredPlace]:
    place = SecuredPlace(secured, tmp_path_factory.mktemp("users"))
    with place.process:
        yield place


def commits(place: SecuredPlace, user: str, group: str) -> ErrorCode:
    """The error of a commit by this user; NONE: it was acknowledged."""
    with Consumer(place.process.address, group_id=group, **place.settings(user)) as consumer:
        try:
            consumer.commit({TopicPartition(place.topic, 0): 1})
        except KafkaError as error:
            return error.code
    return ErrorCode.NONE


def test_rules_of_kafka_decide_and_count_when_they_change(secured_place: SecuredPlace) -> None:
    place, group = secured_place, f"payments-{secured_place.name}"
    assert commits(place, "bob", group) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    place.allow("bob", AclOperation.READ, AclResource.GROUP, "payments-", pattern=AclPattern.PREFIXED)
    until(lambda: commits(place, "bob", group) is ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the group may be read", WAIT_S)
    place.allow("bob", AclOperation.READ, AclResource.TOPIC, place.topic)
    until(lambda: commits(place, "bob", group) is ErrorCode.NONE, "the topic may be read", WAIT_S)
    assert commits(place, "bob", f"other-{place.name}") is ErrorCode.GROUP_AUTHORIZATION_FAILED
    place.allow("bob", AclOperation.READ, AclResource.GROUP, group, permission=AclPermission.DENY)
    until(lambda: commits(place, "bob", group) is ErrorCode.GROUP_AUTHORIZATION_FAILED, "deny goes first", WAIT_S)
    assert commits(place, "alice", group) is ErrorCode.NONE, "a super user"
    with Admin(place.process.address, **place.settings("bob")) as admin:
        assert group in {found.group_id for found in admin.list_groups()}, "READ allows DESCRIBE, which none denies"
        place.take_away("bob")
        until(lambda: group not in {found.group_id for found in admin.list_groups()}, "not listed any more", WAIT_S)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_right_that_is_taken_away_ends_a_member(secured_place: SecuredPlace, protocol: str) -> None:
    place, group = secured_place, f"{protocol}-{secured_place.name}"
    place.allow("carol", AclOperation.READ, AclResource.GROUP, group)
    place.allow("carol", AclOperation.READ, AclResource.TOPIC, place.topic)
    settings = place.settings("carol", auto_offset_reset="earliest", group_protocol=protocol, group_id=group)

    def joined() -> bool:
        try:
            return bool(consumer.poll(timeout_ms=300))
        except NotAuthorizedError:
            return False

    with Consumer(place.process.address, **settings) as consumer:
        consumer.subscribe([place.topic])
        until(joined, "the member reads", WAIT_S)
        place.take_away("carol")

        def refused() -> bool:
            try:
                consumer.poll(timeout_ms=300)
                consumer.commit()
            except NotAuthorizedError:
                return True
            return False

        until(refused, "the member is refused", WAIT_S)


def test_a_wrong_password_is_refused(secured_place: SecuredPlace) -> None:
    settings = secured_place.settings("bob") | {"sasl_password": "wrong"}
    with (
        pytest.raises(KafkaError) as refused,
        Admin(secured_place.process.address, **settings) as admin,
    ):
        admin.list_groups()
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_audit_log_has_logins_refusals_and_changes(secured_place: SecuredPlace) -> None:
    place, group = secured_place, f"audited-{secured_place.name}"
    wrong = place.settings("mallory") | {"sasl_password": "guessed-at"}
    with pytest.raises(KafkaError), Admin(place.process.address, **wrong) as admin:
        admin.list_groups()
    assert commits(place, "bob", group) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert commits(place, "alice", group) is ErrorCode.NONE
    with Admin(place.process.address, **place.settings("alice")) as admin:
        admin.delete_consumer_groups([group]).all()

    def recorded(event: str, *fields: str) -> set[tuple[Any, ...]]:
        return {tuple(entry[field] for field in fields) for entry in place.recorded(event)}

    until(lambda: bool(place.recorded("change")), "a change in the audit log", WAIT_S)
    logins = recorded("login", "principal", "details", "result")
    assert {("mallory", "PLAIN", "failed"), ("User:alice", "PLAIN", "succeeded")} <= logins
    refusal = ("User:bob", "FindCoordinator", "DESCRIBE", "GROUP", group)
    assert refusal in recorded("refusal", "principal", "api", "operation", "resource_type", "resource")
    change = ("User:alice", "DeleteGroups", "DELETE", "GROUP", group)
    assert change in recorded("change", "principal", "api", "operation", "resource_type", "resource")
    assert "guessed-at" not in place.audit_log.read_text()
    assert place.audit_log.stat().st_mode & 0o777 == 0o600


def test_audit_log_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    location = f"audit.log.location={tmp_path / 'none' / 'audit.log'}"
    with CoordinatorProcess("127.0.0.1:1", "--set", location, wait=False) as process:
        assert process.process.wait(WAIT_S) == 1
        process.close()
        assert "audit.log.location: there is no folder" in process.log


def test_status_shows_shards_only_with_the_right_to_describe_the_cluster(
    secured_place: SecuredPlace, tmp_path: Path
) -> None:
    def status(user: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / f"{user}.properties"
        file.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username={user}\nsasl.password=secret\n"
            f"ssl.ca.location={secured_place.secured.certificates / 'ca.pem'}\n"
        )
        command = ["coordinator", "status", "--bootstrap-server", secured_place.process.address, "--json"]
        return run_command([*KOHORT, *command, "--command-config", str(file)])

    done = status("alice")
    assert done.returncode == 0, done.stderr
    assert {shard["phase"] for shard in json.loads(done.stdout)["shards"]} == {"serving"}
    done = status("bob")
    assert done.returncode == 0, done.stderr
    assert {shard["phase"] for shard in json.loads(done.stdout)["shards"]} == {"not known"}


def test_a_coordinator_that_dies_is_noticed_at_a_listener_with_logins(secured_place: SecuredPlace) -> None:
    address, _ = secured_place.secured.client("BOTH")
    with CoordinatorProcess(address, *secured_place.args) as second:
        second.kill()
        until(lambda: "is suspected: it refuses connections" in secured_place.process.log, "it is missed", WAIT_S)


# -- the authorizer by itself, over real clusters

BOB = CallerCopy(Principal("User", "bob"), "127.0.0.1", None, "JoinGroup")
GROUP = (AclOperation.READ, Resource.GROUP, "g")


def run_with(address: str, story: Any, **settings: Any) -> None:
    async def run() -> None:
        client = AsyncClient(client_config(ConnectionConfig, address, settings))
        try:
            await story(client)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_nothing_is_allowed_before_the_first_answer_and_after_the_last_is_old(apache_kafka: ApacheKafka) -> None:
    now = [0.0]

    async def story(client: AsyncClient) -> None:
        authorizer = KafkaAuthorizer(client, clock=lambda: now[0])
        assert authorizer.is_stale and not authorizer.allows(BOB, *GROUP)
        before = authorizer.version
        await authorizer.refresh()
        assert authorizer.allows(BOB, *GROUP), "this Kafka has no authorizer"
        assert authorizer.allows_on_any(BOB, AclOperation.READ, Resource.TOPIC)
        assert authorizer.version > before
        now[0] += MAX_AGE_S + 1
        assert authorizer.is_stale and not authorizer.allows(BOB, *GROUP)
        assert not authorizer.allows_on_any(BOB, AclOperation.READ, Resource.TOPIC)
        await authorizer.refresh()
        assert authorizer.allows(BOB, *GROUP)

    run_with(apache_kafka.bootstrap_servers, story)


def test_a_coordinator_that_may_not_read_the_rules_says_which_right_is_missing(secured: SecuredKafka) -> None:
    address, login = secured.client("SASL", sasl_mechanism="PLAIN", sasl_username="bob")

    async def story(client: AsyncClient) -> None:
        with pytest.raises(InvalidInputError, match="give its user DESCRIBE on the cluster"):
            await KafkaAuthorizer(client).begin()

    run_with(address, story, **(login | {"sasl_username": "bob"}))

"""Access rules, SCRAM credentials and quotas, and what a client without rights is told.

On an Apache Kafka with an authorizer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import (
    Acl,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    NewTopic,
    ScramCredential,
)
from kohort.client.net.security import SaslError
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, NotAuthorizedError, NotFoundError
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import until

pytestmark = pytest.mark.kafka


@pytest.fixture
def admin(secured: SecuredKafka) -> Iterator[Admin]:
    servers, chosen = secured.client("SASL")
    with Admin(servers, **chosen) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 1)]).all()
    return name


def allowed(admin: Admin, *acls: Acl) -> None:
    """Add rules, and wait until the broker has heard of them."""
    admin.create_acls(acls).all()
    until(lambda: set(acls) <= set(admin.describe_acls()), "the rules are in force")


def test_rules_are_made_found_and_deleted(admin: Admin) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    reads = Acl("User:dave", AclOperation.READ, AclResource.TOPIC, name)
    writes = Acl("User:dave", AclOperation.WRITE, AclResource.TOPIC, name[:5], AclPattern.PREFIXED, host="127.0.0.1")
    denied = Acl("User:erin", AclOperation.ALL, AclResource.GROUP, name, permission=AclPermission.DENY)
    wrong = Acl("erin", AclOperation.READ, AclResource.GROUP, name)
    made = admin.create_acls([reads, writes, denied, wrong])
    assert list(made.values) == [reads, writes, denied]
    assert "principal" in str(made.errors[wrong]).lower()

    def found(**wanted: Any) -> list[Acl]:
        return admin.describe_acls(AclFilter(**wanted))

    until(lambda: found(principal="User:dave") == sorted([reads, writes]), "the rules are in force")
    assert found(resource_name=name, resource_type=AclResource.GROUP) == [denied]
    assert found(resource_name=name, pattern=AclPattern.MATCH, resource_type=AclResource.TOPIC) == [reads, writes]
    assert found(operation=AclOperation.WRITE, host="127.0.0.1") == [writes]
    gone = admin.delete_acls([AclFilter(principal="User:dave"), AclFilter(principal="User:nobody")])
    assert gone.all() == {AclFilter(principal="User:dave"): [reads, writes], AclFilter(principal="User:nobody"): []}
    until(lambda: found(principal="User:dave") == [], "the rules are gone")
    assert found(principal="User:erin") == [denied]


def test_errors_name_what_is_not_allowed(secured: SecuredKafka, admin: Admin, topic: str) -> None:
    servers, chosen = secured.client("SASL", sasl_username="bob")
    with Producer(servers, max_block_ms=5000, **chosen) as producer:
        with pytest.raises(NotAuthorizedError, match=topic):
            producer.send(topic, b"x")
    with Admin(servers, **chosen) as bob:
        with pytest.raises(NotAuthorizedError, match="new-one"):
            bob.create_topics([NewTopic("new-one", 1)]).all()
        with pytest.raises(NotAuthorizedError):
            bob.describe_acls()
        assert isinstance(bob.describe_consumer_groups(["theirs"]).errors["theirs"], NotAuthorizedError)
        with pytest.raises(NotAuthorizedError, match="theirs"):
            bob.list_consumer_group_offsets("theirs").all()
        with pytest.raises(NotAuthorizedError):
            bob.delete_records({TopicPartition(topic, 0): 0}).all()
    bob_may = [
        Acl("User:bob", AclOperation.DESCRIBE, AclResource.TOPIC, topic),
        Acl("User:bob", AclOperation.READ, AclResource.GROUP, topic),
    ]
    allowed(admin, *bob_may)
    with Producer(servers, **chosen) as producer:
        error = producer.send(topic, b"x").exception(timeout_ms=20_000)
        assert isinstance(error, NotAuthorizedError) and "producer id" in str(error)
    with Producer(servers, enable_idempotence=False, **chosen) as producer:
        for _ in range(2):
            error = producer.send(topic, b"x").exception(timeout_ms=20_000)
            assert isinstance(error, NotAuthorizedError) and topic in str(error)
    with Consumer(servers, group_id=topic, **chosen) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(NotAuthorizedError, match=topic):
            consumer.poll(20_000)
    allowed(admin, Acl("User:bob", AclOperation.WRITE, AclResource.TOPIC, topic))
    with Producer(servers, **chosen) as producer:
        assert producer.send(topic, b"now").result(timeout_ms=20_000).offset == 0


def test_a_transaction_without_rights(secured: SecuredKafka, admin: Admin, topic: str) -> None:
    servers, chosen = secured.client("SASL", sasl_username="carol")
    allowed(admin, Acl("User:carol", AclOperation.WRITE, AclResource.TOPIC, topic))
    with Producer(servers, transactional_id=topic, **chosen) as producer:
        with pytest.raises(NotAuthorizedError) as caught:
            producer.init_transactions()
        assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        allowed(admin, Acl("User:carol", AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, topic))
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x").result(timeout_ms=20_000)
        with pytest.raises(NotAuthorizedError):
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, "theirs")
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"y")
        producer.commit_transaction()


def test_credentials(secured: SecuredKafka, admin: Admin) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    made = admin.alter_user_scram_credentials([ScramCredential(user, "first", "SCRAM-SHA-256", 4096)])
    assert made.all() == {user: None}
    until(lambda: user in admin.describe_user_scram_credentials().values, "the user is known")
    found = admin.describe_user_scram_credentials([user, "nobody"])
    assert found.result(user) == {"SCRAM-SHA-256": 4096}
    assert isinstance(found.errors["nobody"], NotFoundError)
    servers, chosen = secured.client("SASL", sasl_username=user, sasl_mechanism="SCRAM-SHA-256", sasl_password="first")
    with Admin(servers, **chosen) as theirs:
        assert theirs.describe_cluster().cluster_id
    assert admin.alter_user_scram_credentials(deletions=[(user, "SCRAM-SHA-256")]).all() == {user: None}

    def refused() -> bool:
        try:
            with Admin(servers, **chosen) as theirs:
                theirs.describe_cluster()
        except SaslError:
            return True
        return False

    until(refused, "the password does not count any more")
    weak = admin.alter_user_scram_credentials([ScramCredential(user, "x", iterations=10)])
    assert "iterations" in str(weak.errors[user])
    with pytest.raises(InvalidInputError, match="SCRAM-MD5"):
        admin.alter_user_scram_credentials(deletions=[(user, "SCRAM-MD5")])  # type: ignore[list-item]
    assert "secret" not in repr(ScramCredential("a", "secret"))


def test_quotas(admin: Admin) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    alone, with_client, default = (("user", user),), (("client-id", "app"), ("user", user)), (("client-id", None),)
    changes = {
        alone: {"producer_byte_rate": 1000, "consumer_byte_rate": 2000.0},
        with_client: {"request_percentage": 50},
        default: {"consumer_byte_rate": 9e9},
    }
    admin.alter_client_quotas(changes, validate_only=True).all()
    assert admin.alter_client_quotas(changes).all() == dict.fromkeys(changes)
    until(lambda: default in admin.describe_client_quotas(), "the quotas are known")
    assert admin.describe_client_quotas({"user": user}) == {
        alone: {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0},
        with_client: {"request_percentage": 50.0},
    }
    assert list(admin.describe_client_quotas({"user": user}, strict=True)) == [alone]
    assert list(admin.describe_client_quotas({"client-id": None}, strict=True)) == [default]
    assert with_client in admin.describe_client_quotas({"client-id": "*"})
    admin.alter_client_quotas({alone: {"producer_byte_rate": None}, default: {"consumer_byte_rate": None}}).all()
    until(lambda: default not in admin.describe_client_quotas(), "the quota is gone")
    assert admin.describe_client_quotas({"user": user}, strict=True) == {alone: {"consumer_byte_rate": 2000.0}}
    bad = admin.alter_client_quotas({alone: {"speed": 5}})
    assert "speed" in str(bad.errors[alone])


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.describe_acls(),
        lambda admin: admin.create_acls([Acl("User:a", AclOperation.READ, AclResource.TOPIC, "t")]).all(),
        lambda admin: admin.delete_acls([AclFilter()]).all(),
    ],
)
def test_a_broker_without_an_authorizer_says_so(ask: Callable[[Admin], object]) -> None:
    with Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(KafkaError) as caught:
            ask(admin)
        assert caught.value.code in (ErrorCode.SECURITY_DISABLED, ErrorCode.UNSUPPORTED_VERSION)

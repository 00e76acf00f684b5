"""Rights of a topic as a sink: what is missing shows before the first record, and not at the first sequence."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from kohort import Admin, Broker, NewTopic
from kohort.client.admin.values import Acl, AclFilter, AclOperation, AclResource
from kohort.errors import NotAuthorizedError
from kohort.region import KafkaTopic
from tests.region.topic_process import KEYS, REGION
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import until

SCHEMA = pa.schema([("value", pa.binary())])
BOB = "User:bob"
Place = tuple[str, str, dict[str, Any]]
"""An address where a client may all, another where it is bob, and bob's settings."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Place]:
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.security.protocol.map": "OPEN:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config":
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="secret";',
    }  # fmt: skip
    with Broker(config=config, listen="OPEN://127.0.0.1:0,SASL://127.0.0.1:0") as broker:
        settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        bob = settings | {"sasl_username": "bob", "sasl_password": "secret"}
        yield broker.listeners["OPEN"], broker.listeners["SASL"], bob


@pytest.fixture(params=["kohort", pytest.param("apache", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "kohort":
        found: Place = request.getfixturevalue("guarded")
        return found
    kafka: SecuredKafka = request.getfixturevalue("secured")
    servers, settings = kafka.client("SASL", sasl_mechanism="PLAIN", sasl_username="bob", sasl_password="secret")
    return kafka.bootstrap_servers, servers, settings


OPERATIONS = [AclOperation.CREATE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ,
              AclOperation.WRITE, AclOperation.DELETE]  # fmt: skip


def rules_for(topic: str) -> list[Acl]:
    """All rights that the page names."""
    topics = [
        Acl(BOB, operation, AclResource.TOPIC, name) for name in (topic, f"{topic}.kohort-sink")
        for operation in OPERATIONS
    ]  # fmt: skip
    ids = [
        Acl(BOB, operation, AclResource.TRANSACTIONAL_ID, f"kohort-sink-{topic}")
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
    ]
    return topics + ids


def claim(root: str, servers: str, topic: str) -> None:
    """Check the sink by the address where a client may all, under the name that bob's address gives it."""
    sink = KafkaTopic(servers, topic).bind("region", REGION)
    sink._servers = root
    sink.check(SCHEMA)


@pytest.mark.parametrize("claimed", [False, True], ids=["first member", "later member"])
@pytest.mark.parametrize("missing", ["topic", "transactional id"])
def test_check_names_a_missing_right_to_write(place: Place, missing: str, claimed: bool) -> None:
    """Whether or not another member has claimed the topic before."""
    root, servers, bob = place
    topic = f"t-{uuid.uuid4().hex[:8]}"
    rules = rules_for(topic)
    kind, resource = (
        (AclResource.TOPIC, topic) if missing == "topic" else (AclResource.TRANSACTIONAL_ID, f"kohort-sink-{topic}")
    )
    write = Acl(BOB, AclOperation.WRITE, kind, resource)
    with Admin(root) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
        if claimed:
            claim(root, servers, topic)
        granted = [rule for rule in rules if rule != write]
        admin.create_acls(granted).all()
        until(lambda: set(granted) <= set(admin.describe_acls()), "the rules are in force")
        sink = KafkaTopic(servers, topic, **bob).bind("region", REGION)
        with pytest.raises(NotAuthorizedError, match=f"WRITE.*{resource}"):
            sink.check(SCHEMA)
        admin.create_acls([write]).all()
        until(lambda: write in admin.describe_acls(AclFilter(principal=BOB)), "the rule is in force")

        def checked() -> bool:
            try:
                sink.check(SCHEMA)
            except NotAuthorizedError:
                return False
            return True

        until(checked, "the right counts")
        sink.stage(KEYS[0], pa.table({"value": [b"1"]}, schema=SCHEMA))
        sink.publish(1, KEYS[:1])
        assert sink.published() == 1

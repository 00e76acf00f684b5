"""Real clients with rights, without them and after they were taken away, at our broker and at Apache Kafka alike.

One broker of each kind serves all cases: bob logs in with SASL PLAIN, and an administrator gives and takes his rights.
What each API answers without a right is compared by `test_acls_alike.py`, request by request.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from kohort import Admin
from kohort.client.admin.values import Acl, AclFilter, AclResource, NewTopic, ScramCredential
from kohort.ids import AclOperation
from tests.peers.peers import PeerUnavailable
from tests.peers.secured_clients import SecuredClientHere, secured_client
from tests.support.secured_broker import PASSWORD, SecuredBroker, secured_broker
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
CLIENTS = ("kohort", "librdkafka", "franz-go", "kafkajs", "java")


class GuardedPlace(NamedTuple):
    """A broker with an authorizer.

    Attributes:
        admin: its plain listener, where everyone is a super user.
        login: the settings with which a user logs in, by name and password.
    """

    admin: str
    login: Callable[[str, str], dict[str, str]]
    password: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with secured_broker(tmp_path_factory.mktemp("guarded"), **rules) as broker:
        with Admin(broker.address("PLAIN")) as admin:
            admin.alter_user_scram_credentials([ScramCredential("bob", PASSWORD, "SCRAM-SHA-256")]).all()
        yield broker


@pytest.fixture(params=["kohort", pytest.param("Apache Kafka", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest) -> GuardedPlace:
    """Each of the brokers."""
    if request.param == "kohort":
        ours: SecuredBroker = request.getfixturevalue("guarded")

        def our_login(user: str, password: str) -> dict[str, str]:
            return ours.settings("SASL", "PLAIN", **{"sasl.username": user, "sasl.password": password})

        return GuardedPlace(ours.address("PLAIN"), our_login, PASSWORD)
    kafka: SecuredKafka = request.getfixturevalue("secured")

    def their_login(user: str, password: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{kafka.ports['SASL']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }

    return GuardedPlace(kafka.bootstrap_servers, their_login, "secret")


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, place: GuardedPlace) -> Iterator[SecuredClientHere]:
    """Bob, on each project's client."""
    try:
        found = secured_client(request.param, place.login("bob", place.password))
    except PeerUnavailable as error:
        pytest.skip(f"{request.param}: {error}")
    yield found
    found.close()


class Rights:
    """Bob's rights to a topic, a group and a topic that is not there yet."""

    def __init__(self, admin: Admin, prefix: str) -> None:
        self.topic, self.group, self.new = f"{prefix}-topic", f"{prefix}-group", f"{prefix}-new"
        self._admin = admin
        admin.create_topics([NewTopic(self.topic, 1, 1)]).all()

    def give(self, *texts: str) -> None:
        """Give rights such as `READ TOPIC topic`."""
        self._admin.create_acls(self._rule(text) for text in texts).all()

    def take(self, *texts: str) -> None:
        """Take rights away."""
        rules = [self._rule(text) for text in texts]
        filters = [AclFilter(rule.principal, rule.operation, rule.resource_type, rule.resource_name) for rule in rules]
        self._admin.delete_acls(filters).all()

    def _rule(self, text: str) -> Acl:
        operation, kind, name = text.split()
        return Acl("User:bob", AclOperation[operation], AclResource[kind], getattr(self, name))


@pytest.fixture
def rights(place: GuardedPlace) -> Iterator[Rights]:
    with Admin(place.admin) as admin:
        yield Rights(admin, f"rights-{uuid.uuid4().hex[:8]}")


NO_TOPIC, NO_GROUP, NO_CLUSTER = (f"{kind}_AUTHORIZATION_FAILED" for kind in ("TOPIC", "GROUP", "CLUSTER"))
NOT_READ = (NO_TOPIC, NO_GROUP, "Failed to find group coordinator")
"""The last are KafkaJS' words for GROUP_AUTHORIZATION_FAILED."""
NOT_WRITTEN = (NO_TOPIC, NO_CLUSTER)
"""An idempotent producer without any right to write gets no id, which is the cluster's to give."""
READS = ("READ TOPIC topic", "READ GROUP group")


def test_each_right_allows_its_action_and_no_other(client: SecuredClientHere, rights: Rights) -> None:
    """Then all are taken away again: the next request of each kind is refused."""

    def outcomes() -> dict[str, str]:
        return {
            "produce": client.order("produce", topic=rights.topic)[0],
            "group": client.order("group", topic=rights.topic, group=rights.group)[0],
            "create": client.order("create", topic=rights.new)[0],
            "delete": client.order("delete", topic=rights.topic)[0],
        }

    refused = outcomes()
    assert refused["group"] in NOT_READ
    assert refused["create"] in (NO_TOPIC, NO_CLUSTER)
    assert refused["produce"] in NOT_WRITTEN
    assert refused["delete"] == NO_TOPIC
    rights.give("WRITE TOPIC topic", "DESCRIBE TOPIC topic")
    until(lambda: client.order("produce", topic=rights.topic)[0] == "ok", "the right to write counts", 60)
    assert client.order("delete", topic=rights.topic)[0] == NO_TOPIC
    assert client.order("group", topic=rights.topic, group=rights.group)[0] in NOT_READ
    rights.give(*READS, "CREATE TOPIC new")
    assert client.order("group", topic=rights.topic, group=rights.group)[0] == "ok"
    assert client.order("create", topic=rights.new)[0] == "ok"
    rights.take("WRITE TOPIC topic", *READS, "CREATE TOPIC new")
    assert client.order("produce", topic=rights.topic)[0] in NOT_WRITTEN
    assert client.order("group", topic=rights.topic, group=rights.group)[0] in NOT_READ
    rights.give("DELETE TOPIC topic")
    assert client.order("delete", topic=rights.topic)[0] == "ok"


@pytest.mark.parametrize("name", CLIENTS)
def test_wrong_password_is_told_and_lets_nobody_in(name: str, place: GuardedPlace, rights: Rights) -> None:
    """Every client's first request fails, within the time that it allows itself."""
    try:
        client = secured_client(name, place.login("bob", "guess"))
    except PeerUnavailable as error:
        pytest.skip(f"{name}: {error}")
    try:
        result, _ = client.order("create", topic=rights.new)
    finally:
        client.close()
    assert re.search("SASL_AUTHENTICATION_FAILED|AUTHENTICATION|TIMED_OUT|Authentication failed", result), result
    with Admin(place.admin) as admin:
        assert rights.new not in admin.list_topics()

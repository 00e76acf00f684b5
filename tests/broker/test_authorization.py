"""Required permissions: one row for each API, checked before its handler with the request's principal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kohort import Consumer
from kohort.broker.api import push
from kohort.broker.authorization import NEEDS, PUSH_NEEDS, Caller, RequiredPermission, Resource
from kohort.broker.dispatch import Dispatcher
from kohort.broker.routes import GROUP_ROUTES, ROUTES, unknown_api_versions
from kohort.broker.run import BrokerServer
from kohort.broker.security.principals import ANYONE, Principal
from kohort.errors import ErrorCode, NotAuthorizedError
from kohort.ids import AclOperation
from kohort.wire.discovery import ApiVersionsRequest
from kohort.wire.groups import HeartbeatRequest, ListGroupsRequest
from kohort.wire.offsets import OffsetFetchRequest
from kohort.wire.push import ClusterMetadataRequest, PushType, RegisterConsumerRequest, TopicCount, format_topic_count
from kohort.wire.security import CreateDelegationTokenRequest
from tests.broker.literal_consumer import LiteralConsumer, ask, read_frame
from tests.broker.raw import RawClient, create_topic


def test_every_api_has_a_row_and_every_row_an_api() -> None:
    assert {route.name for route in ROUTES.values()} | {"DescribeCoordinators"} == NEEDS.keys()
    assert all(route.needs == NEEDS[route.name] for route in ROUTES.values())
    assert all(GROUP_ROUTES[key].needs == ROUTES[key].needs for key in GROUP_ROUTES)


def test_only_what_comes_before_a_login_or_is_ones_own_needs_nothing() -> None:
    free = {name for name, needs in NEEDS.items() if not needs}
    assert free == {
        "ApiVersions",
        "DescribeCluster",
        "SaslHandshake",
        "SaslAuthenticate",
        "RenewDelegationToken",
        "ExpireDelegationToken",
    }


def test_what_is_written_needs_more_than_to_describe() -> None:
    """No API that changes something is open to who may only look."""
    looks = (
        "ConsumerGroupDescribe",
        "Describe",
        "List",
        "Find",
        "ApiVersions",
        "Metadata",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
        "Sasl",
    )
    reading = {AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.DESCRIBE_TOKENS}
    own = {"RenewDelegationToken", "ExpireDelegationToken"}
    for name, needs in NEEDS.items():
        if not name.startswith(looks) and name not in own:
            assert {need.operation for need in needs} - reading, name


def test_each_resource_has_its_error() -> None:
    assert {resource.refusal_error_code for resource in Resource} <= {*ErrorCode}
    assert Resource.GROUP.refusal_error_code is ErrorCode.GROUP_AUTHORIZATION_FAILED


READ_GROUP = RequiredPermission(AclOperation.READ, Resource.GROUP)


NOTHING = RequiredPermission(AclOperation.ALL, Resource.USER)


class Gatekeeper:
    """Nobody may do one thing, read groups by default; it notes who asked."""

    def __init__(self, refused: RequiredPermission = READ_GROUP) -> None:
        self.asked: list[tuple[str, Principal]] = []
        self.refused = refused[:2]
        self.version = 0

    def refuse(self, refused: RequiredPermission) -> None:
        """From now on nobody may do this instead."""
        self.refused = refused[:2]
        self.version += 1

    def allows(
        self, caller: Caller, operation: AclOperation, resource: Resource, name: str, *, audited: bool = True
    ) -> bool:
        self.asked.append((caller.api, caller.principal))
        return self.refused != (operation, resource)

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: Resource) -> bool:
        return self.allows(caller, operation, resource, "any")


def guarded(folder: Path, keeper: Gatekeeper, client: Callable[[str], None]) -> None:
    """A broker whose authorizer it is, push frames as well; `client` runs in a thread, with its address."""

    async def run() -> None:
        broker = BrokerServer(asyncio.get_running_loop(), folder, "127.0.0.1:0", {"push.min.session.timeout.ms": 600})
        dispatcher = Dispatcher(broker.node, ROUTES, unknown_api_versions, keeper, pushing=push.handle_frame)
        broker.serving.server.on_frame = dispatcher.dispatch
        broker.listen()
        try:
            await asyncio.to_thread(client, broker.address)
            assert not len(broker.node.consumers), "who is refused is registered nowhere"
        finally:
            await broker.close()

    asyncio.run(run())


def registration(group: str) -> bytes:
    count = format_topic_count(TopicCount({"t": 1}))
    return RegisterConsumerRequest(group, "a", count, True, "smallest", 6000).encode_frame()


def test_all_that_push_consumers_ask_has_a_row() -> None:
    assert PUSH_NEEDS.keys() == {PushType.CLUSTER_METADATA, PushType.REGISTER_CONSUMER}
    assert set(PUSH_NEEDS[PushType.REGISTER_CONSUMER]) == set(NEEDS["OffsetCommit"]), "its pings commit"
    assert {need[:2] for need in PUSH_NEEDS[PushType.CLUSTER_METADATA]} <= {
        need[:2] for need in NEEDS["FindCoordinator"]
    }


@pytest.mark.parametrize(
    ("refused", "frame", "answer"),
    [
        (
            RequiredPermission(AclOperation.DESCRIBE, Resource.GROUP),
            ClusterMetadataRequest("g").encode_frame(),
            b"\0\x1e\xff\xff\0\0",
        ),
        (READ_GROUP, registration("g"), b"\0\x1e"),
        (RequiredPermission(AclOperation.READ, Resource.TOPIC), registration("g"), b"\0\x1d"),
    ],
    ids=["metadata", "group", "topics"],
)
def test_a_push_frame_that_is_not_allowed_is_refused_and_its_connection_ends(
    tmp_path: Path, refused: RequiredPermission, frame: bytes, answer: bytes
) -> None:
    keeper = Gatekeeper(refused)

    def client(address: str) -> None:
        with RawClient(address) as raw:
            assert ask(raw.sock, frame) == answer
            with pytest.raises(ConnectionResetError):
                read_frame(raw.sock)

    guarded(tmp_path, keeper, client)
    assert {principal for _, principal in keeper.asked} == {ANYONE}


@pytest.mark.parametrize(
    ("operation", "resource"),
    [
        (AclOperation.DESCRIBE, Resource.GROUP),
        (AclOperation.READ, Resource.GROUP),
        (AclOperation.READ, Resource.TOPIC),
    ],
)
def test_push_consumer_without_the_right_gets_an_error(
    tmp_path: Path, operation: AclOperation, resource: Resource
) -> None:
    """The consumer ends with the authorization error and does not retry for ever."""
    keeper = Gatekeeper(NOTHING)

    def client(address: str) -> None:
        with RawClient(address) as raw:
            create_topic(raw, "t", 1)
        keeper.refuse(RequiredPermission(operation, resource))
        with Consumer(address, group_id="g", group_protocol="push") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(NotAuthorizedError, match="'g'") as reported:
                consumer.poll(30_000)
        assert reported.value.code is resource.refusal_error_code

    guarded(tmp_path, keeper, client)


def test_push_consumer_whose_right_is_taken_away_gets_an_error(tmp_path: Path) -> None:
    """At its next answer, as from Kafka at the next heartbeat."""
    keeper = Gatekeeper(NOTHING)

    def client(address: str) -> None:
        with RawClient(address) as raw:
            create_topic(raw, "t", 1)
        with Consumer(address, group_id="g", group_protocol="push", session_timeout_ms=600) as consumer:
            consumer.subscribe(["t"])
            while not consumer.assignment():
                consumer.poll(100)
            keeper.refuse(READ_GROUP)
            with pytest.raises(NotAuthorizedError, match="'g'") as reported:
                consumer.poll(30_000)
        assert reported.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED

    guarded(tmp_path, keeper, client)


@pytest.mark.parametrize("resource", [Resource.GROUP, Resource.TOPIC])
def test_an_answer_without_the_right_commits_nothing_and_who_has_it_is_not_asked_again(
    tmp_path: Path, resource: Resource
) -> None:
    keeper = Gatekeeper(NOTHING)

    def registrations() -> int:
        """How often the rights of the registration were looked at: two each time."""
        return [name for name, _ in keeper.asked].count("RegisterConsumer") // 2

    def client(address: str) -> None:
        with RawClient(address) as raw:
            create_topic(raw, "t", 1)
            consumer = LiteralConsumer(address, "g", "a", '{"t": 1}', session_timeout_ms=600)
            try:
                consumer.until(lambda each: each.fetching and each.asked.count("ping") >= 3)
                assert registrations() == 1
                keeper.refuse(NOTHING)
                pings = consumer.asked.count("ping")
                consumer.until(lambda each: each.asked.count("ping") >= pings + 3)
                assert registrations() == 2, "something changed, though not for this one"
                keeper.refuse(RequiredPermission(AclOperation.READ, resource))
                consumer.read(7)
                consumer.until(lambda each: each.ended)
            finally:
                consumer.close()
            assert [name for name, _ in keeper.asked].count("RegisterConsumer") == (
                5 if resource is Resource.GROUP else 6
            )
            assert committed(raw, "g", "t") == 0

    guarded(tmp_path, keeper, client)


def committed(client: RawClient, group: str, topic: str) -> int:
    """The offset of partition 0."""
    parts = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    answer = client.ask(OffsetFetchRequest(group_id=group, topics=[parts]), 5)
    return int(answer.topics[0].partitions[0].committed_offset)


def test_a_request_that_is_not_allowed_reaches_no_handler(tmp_path: Path) -> None:
    keeper = Gatekeeper()

    async def run() -> tuple[int, int, str]:
        loop = asyncio.get_running_loop()
        broker = BrokerServer(loop, tmp_path, "127.0.0.1:0", {})
        broker.serving.server.on_frame = Dispatcher(broker.node, ROUTES, unknown_api_versions, keeper).dispatch
        broker.listen()
        try:
            return await asyncio.to_thread(ask, broker.address)
        finally:
            await broker.close()

    def ask(address: str) -> tuple[int, int, str]:
        with RawClient(address) as client:
            client.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"))
            beat = client.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
            token = client.ask(CreateDelegationTokenRequest())
            return beat.error_code, client.ask(ListGroupsRequest()).error_code, token.principal_name

    beat, listed, name = asyncio.run(run())
    assert beat == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert listed == ErrorCode.NONE
    assert name == ANYONE.name
    assert keeper.asked == [(name, ANYONE) for name in ("Heartbeat", "ListGroups")], "the others need nothing"

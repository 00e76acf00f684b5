"""Coordinators apart from the brokers: groups are asked for there, and data at Kafka's brokers."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.admin.groups import list_groups
from kohort.client.net.cluster import ANY, BrokerById, Coordinator
from kohort.client.net.targets import TRANSACTION
from kohort.errors import ErrorCode, KafkaError, TimedOutError
from kohort.wire import framing
from kohort.wire.coordinators import DescribeCoordinatorsRequest, DescribeCoordinatorsResponse
from kohort.wire.discovery import ApiVersionsResponse, DescribeClusterRequest, DescribeClusterResponse
from kohort.wire.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsResponse,
)
from tests.client.virtual import PARK, VirtualCluster

FIRST, SECOND, MOVED, BROKER = 9101, 9102, 9103, 9092
IDS = {FIRST: 101, SECOND: 102, MOVED: 102, BROKER: 1}
OF_COORDINATORS = ("ApiVersions", "Metadata", "FindCoordinator", "DescribeCoordinators", "ListGroups", "Heartbeat")


class Apart(VirtualCluster):
    """Two coordinators, the first of them the bootstrap address, and a broker that is at home elsewhere."""

    def __post_init__(self) -> None:
        self.settings.setdefault("bootstrap_servers", f"127.0.0.1:{FIRST}")
        super().__post_init__()
        self.owner = SECOND
        self.handlers |= {
            "DescribeCoordinators": self._list,
            "DescribeCluster": lambda message, version: DescribeClusterResponse(),
            "ListGroups": self._groups,
            "FindCoordinator": self._find,
        }

    def port(self, link: int) -> int:
        return next(connection.address.port for connection in self.opened if connection.link == link)

    def ports(self, name: str) -> list[int]:
        """Where requests of this name went."""
        return [self.port(request.link) for request in self.sent(name)]

    def _api_versions(self, message: Any, version: int) -> Any:
        port = self.port(self.requests[-1].link)
        if port == BROKER:
            keys = [api for api in framing.APIS.values() if api.key != DescribeCoordinatorsRequest.API_KEY]
            return ApiVersionsResponse(api_keys=_ranges(keys))
        keys = [api for api in framing.APIS.values() if api.name in OF_COORDINATORS]
        return ApiVersionsResponse(api_keys=_ranges(keys), coordinator_id=IDS[port])

    def _find(self, message: Any, version: int) -> Any:
        at_coordinator = self.port(self.requests[-1].link) != BROKER
        if message.key_type == TRANSACTION and at_coordinator:
            entry = FindCoordinatorResponse.Coordinator(
                key=message.coordinator_keys[0], node_id=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
            return FindCoordinatorResponse(coordinators=[entry])
        port = BROKER if message.key_type == TRANSACTION else self.owner
        entry = FindCoordinatorResponse.Coordinator(
            key=message.coordinator_keys[0], node_id=IDS[port], host="127.0.0.1", port=port
        )
        return FindCoordinatorResponse(coordinators=[entry])

    def _list(self, message: Any, version: int) -> Any:
        make = DescribeCoordinatorsResponse.Coordinator
        named = [make(node_id=IDS[port], host="127.0.0.1", port=port) for port in (FIRST, SECOND)]
        return DescribeCoordinatorsResponse(coordinators=named)

    def _groups(self, message: Any, version: int) -> Any:
        make = ListGroupsResponse.ListedGroup
        return ListGroupsResponse(groups=[make(group_id=f"at-{self.port(self.requests[-1].link)}")])


def _ranges(apis: list[framing.Api]) -> list[ApiVersionsResponse.ApiVersion]:
    make = ApiVersionsResponse.ApiVersion
    return [make(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in apis]


def test_groups_are_asked_for_at_coordinators_also_when_the_brokers_are_known() -> None:
    world = Apart(topics={"a": 1})
    world.call(world.cluster.describe_topics(["a"]))
    world.call(world.cluster.refresh_metadata())
    assert world.ports("Metadata") == [FIRST, BROKER]
    assert world.call(world.cluster.coordinator(Coordinator("g"))) == IDS[SECOND]
    world.cluster.forget_coordinator(Coordinator("g"))
    world.cut()
    assert world.call(world.cluster.coordinator(Coordinator("g"))) == IDS[SECOND]
    assert BROKER not in world.ports("FindCoordinator")
    world.runtime.spawn(world.cluster.send(HeartbeatRequest(group_id="g"), Coordinator("g")))
    world.run()
    assert world.ports("Heartbeat") == [SECOND]


def test_transactional_ids_are_asked_for_at_brokers() -> None:
    world = Apart(topics={"a": 1})
    world.call(world.cluster.describe_topics(["a"]))
    assert world.call(world.cluster.coordinator(Coordinator("t", TRANSACTION))) == IDS[BROKER]
    assert world.ports("FindCoordinator") == [BROKER]


def test_transactional_ids_are_asked_for_at_brokers_before_anything_else_is_known() -> None:
    world = Apart()
    assert world.call(world.cluster.coordinator(Coordinator("t", TRANSACTION))) == IDS[BROKER]
    assert world.ports("FindCoordinator") == [BROKER]


def test_what_only_brokers_serve_goes_to_one_that_a_coordinator_names() -> None:
    world = Apart()
    world.call(world.cluster.send(DescribeClusterRequest(), ANY))
    assert world.ports("DescribeCluster") == [BROKER]


def test_brokers_that_are_named_and_gone_are_reported() -> None:
    world = Apart(refuse={BROKER}, settings={"request_timeout_ms": 2000})
    with pytest.raises(KafkaError, match=r"is a coordinator; of the brokers that it names: .*127.0.0.1:9092"):
        world.call(world.cluster.send(DescribeClusterRequest(), ANY))


def test_groups_of_all_coordinators_are_listed_and_of_no_broker() -> None:
    world = Apart()
    assert [group.group_id for group in world.call(list_groups(world.cluster))] == [f"at-{FIRST}", f"at-{SECOND}"]
    assert sorted(world.ports("ListGroups")) == [FIRST, SECOND]


def test_the_other_coordinators_are_asked_when_the_bootstrap_address_is_gone() -> None:
    world = Apart(topics={"a": 1})
    world.call(world.cluster.coordinator(Coordinator("g")))
    world.run()
    world.refuse.add(FIRST)
    world.cut()
    world.cluster.forget_coordinator(Coordinator("g"))
    assert world.call(world.cluster.coordinator(Coordinator("g"))) == IDS[SECOND]
    assert world.ports("FindCoordinator")[-1] == SECOND


def test_a_coordinator_that_stands_still_is_left_for_another() -> None:
    world = Apart(topics={"a": 1})
    world.call(world.cluster.coordinator(Coordinator("g")))
    world.run()
    answers = world.handlers["FindCoordinator"]
    stuck: list[int] = []

    def find(message: FindCoordinatorRequest, version: int) -> Any:
        port = world.port(world.requests[-1].link)
        stuck.extend([port] if not stuck else [])
        return answers(message, version) if port != stuck[0] else PARK

    world.handlers["FindCoordinator"] = find
    world.cluster.forget_coordinator(Coordinator("g"))
    with pytest.raises(TimedOutError, match="FindCoordinator: no answer"):
        world.call(world.cluster.coordinator(Coordinator("g")))
    assert world.runtime.now_ms < 10_000
    assert world.call(world.cluster.coordinator(Coordinator("g"))) == IDS[SECOND]
    assert world.ports("FindCoordinator")[-1] != stuck[0]


def test_a_coordinator_that_takes_a_connection_and_stands_still_is_left_when_another_has_its_groups() -> None:
    world = Apart(topics={"a": 1})
    world.call(world.cluster.coordinator(Coordinator("g")))
    world.run()
    greets = world.handlers["ApiVersions"]
    world.handlers["ApiVersions"] = lambda message, version: (
        PARK if world.port(world.requests[-1].link) == SECOND else greets(message, version)
    )

    async def beat() -> HeartbeatResponse:
        return await world.cluster.send(HeartbeatRequest(group_id="g"), Coordinator("g"))

    task = world.runtime.spawn(world.cluster.retry_call(beat, "heartbeat"))
    world.run(1_000)
    assert not world.sent("Heartbeat")
    world.owner = FIRST
    world.run(5_000)
    assert world.ports("Heartbeat") == [FIRST]
    task.cancel()


def test_coordinators_are_reached_in_plain_where_brokers_want_a_login() -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "a", "sasl_password": "b"}
    settings = {**login, "coordinators_security_protocol": "PLAINTEXT", "request_timeout_ms": 2000}
    world = Apart(topics={"a": 1}, settings=settings)
    world.call(world.cluster.coordinator(Coordinator("g")))
    world.runtime.spawn(world.cluster.send(HeartbeatRequest(group_id="g"), Coordinator("g")))
    world.run()
    assert world.ports("Heartbeat") == [SECOND]
    assert not world.sent("SaslHandshake")
    world.runtime.spawn(world.cluster.send(DescribeClusterRequest(), ANY)).mark_handled()
    world.run()
    assert world.ports("SaslHandshake") == [BROKER]
    assert {connection.address.port for connection in world.opened if connection.plain} == {FIRST, SECOND}


def test_a_broker_among_plain_coordinators_is_reported() -> None:
    settings = {"bootstrap_servers": f"127.0.0.1:{BROKER}", "coordinators_security_protocol": "PLAINTEXT"}
    world = Apart(settings={**settings, "request_timeout_ms": 2000})
    with pytest.raises(KafkaError, match="127.0.0.1:9092 is a broker"):
        world.call(world.cluster.send(DescribeClusterRequest(), ANY))


def test_a_coordinator_that_has_moved_is_asked_where_it_is_now() -> None:
    world = Apart(topics={"a": 1})
    world.call(world.cluster.coordinator(Coordinator("g")))
    world.run()
    world.owner = MOVED
    world.cluster.forget_coordinator(Coordinator("g"))
    world.call(world.cluster.coordinator(Coordinator("g")))
    world.runtime.spawn(world.cluster.send(HeartbeatRequest(group_id="g"), Coordinator("g")))
    world.run()
    assert world.ports("Heartbeat") == [MOVED]


def test_a_broker_that_has_a_coordinators_id_is_not_asked_for_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that comes later may have it for a moment; Kafka's own coordinator would begin the group anew."""
    monkeypatch.setitem(IDS, SECOND, IDS[BROKER])
    world = Apart(topics={"a": 1})
    world.handlers["Heartbeat"] = lambda message, version: HeartbeatResponse()
    world.call(world.cluster.describe_topics(["a"]))
    world.call(world.cluster.refresh_metadata())
    world.call(world.cluster.send(HeartbeatRequest(group_id="g"), Coordinator("g")))
    assert world.ports("Heartbeat") == [SECOND]
    world.call(world.cluster.send(FindCoordinatorRequest(key="x", coordinator_keys=["x"]), BrokerById(IDS[BROKER])))
    assert world.ports("FindCoordinator")[-1] == BROKER

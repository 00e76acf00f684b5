"""Connections, versions, metadata and coordinators, in virtual time."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from kohort.client.admin.routing import send_to_leaders
from kohort.client.admin.transactions import list_transactions
from kohort.client.net.bootstrap_check import SILENT_MS
from kohort.client.net.cluster import (
    ANY,
    CONTROLLER,
    BrokerById,
    Coordinator,
    parse_address,
)
from kohort.client.net.connection import Address, ConnectionFailed
from kohort.client.net.runtime import Task
from kohort.client.net.targets import LOOKUP_TIMEOUT_MAX_MS, LOOKUP_TIMEOUT_MS
from kohort.errors import CorruptDataError, ErrorCode, InvalidInputError, KafkaError, RetriableError, TimedOutError
from kohort.ids import TopicPartition
from kohort.wire.discovery import (
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from kohort.wire.groups import (
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kohort.wire.security import SaslAuthenticateResponse, SaslHandshakeResponse
from kohort.wire.transactions import ListTransactionsResponse
from tests.client.virtual import DROP, GARBLE, PARK, VirtualCluster


def test_metadata_is_asked_once_per_need_and_names_leaders() -> None:
    world = VirtualCluster(topics={"a": 3})
    found = world.call(world.cluster.describe_topics(["a"]))
    assert sorted(found["a"].partitions) == [0, 1, 2]
    assert world.call(world.cluster.leader(TopicPartition("a", 2))) == 1
    assert len(world.sent("Metadata")) == 1


def test_an_unknown_topic_is_waited_for_and_then_named() -> None:
    world = VirtualCluster(settings={"default_api_timeout_ms": 1000})
    with pytest.raises(TimedOutError, match="no leader of gone-0"):
        world.call(world.cluster.leader(TopicPartition("gone", 0)))
    assert world.runtime.now_ms == pytest.approx(1000, abs=600)


def test_a_topic_that_appears_meanwhile_is_found() -> None:
    world = VirtualCluster()
    task = world.runtime.spawn(world.cluster.leader(TopicPartition("new", 0)))
    world.run(500)
    assert not task.done
    world.topics["new"] = 1
    assert world.finish(task) == 1


def test_versions_are_those_both_sides_know() -> None:
    world = VirtualCluster(highest={HeartbeatRequest.API_KEY: 2, DescribeClusterRequest.API_KEY: -1})
    world.handlers["Heartbeat"] = lambda message, version: HeartbeatResponse()
    world.call(world.cluster.send(HeartbeatRequest(group_id="g"), ANY))
    assert world.sent("Heartbeat")[0].version == 2
    with pytest.raises(KafkaError, match="DescribeCluster") as caught:
        world.call(world.cluster.send(DescribeClusterRequest(), ANY))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_broker_that_knows_only_old_api_versions_is_asked_again() -> None:
    world = VirtualCluster(topics={"a": 1})
    modern = world.handlers["ApiVersions"]

    def old(message: object, version: int) -> object:
        return ApiVersionsResponse(error_code=35) if version > 0 else modern(message, version)

    world.handlers["ApiVersions"] = old
    original = world._send_back

    def in_layout_of_version_0(request: object, response: object) -> None:
        if isinstance(response, ApiVersionsResponse) and response.error_code == 35:
            request.version = 0  # type: ignore[attr-defined]
        original(request, response)  # type: ignore[arg-type]

    world._send_back = in_layout_of_version_0  # type: ignore[method-assign,assignment]
    world.call(world.cluster.describe_topics(["a"]))
    assert [request.message.client_software_name for request in world.sent("ApiVersions")] == ["kohort", ""]


def test_an_unreachable_cluster_is_named_with_its_reasons() -> None:
    world = VirtualCluster(
        settings={"bootstrap_servers": "10.0.0.1:9092,10.0.0.2:9093", "default_api_timeout_ms": 3000},
        refuse={9092, 9093},
    )
    with pytest.raises(TimedOutError) as caught:
        world.call(world.cluster.describe_topics(None))
    assert "10.0.0.1:9092: connection refused" in str(caught.value)
    assert "10.0.0.2:9093: connection refused" in str(caught.value)
    assert 2000 < world.runtime.now_ms <= 3000


def test_reconnects_back_off() -> None:
    world = VirtualCluster(settings={"default_api_timeout_ms": 10_000}, refuse={9092})
    with pytest.raises(TimedOutError):
        world.call(world.cluster.describe_topics(None))
    assert 8 < len(world.opened) < 30


def test_a_bootstrap_that_is_down_does_not_stop_the_others() -> None:
    world = VirtualCluster(
        settings={"bootstrap_servers": "10.0.0.1:9999,127.0.0.1:9092"}, topics={"a": 1}, refuse={9999}
    )
    assert "a" in world.call(world.cluster.describe_topics(["a"]))


def test_requests_in_flight_fail_with_their_connection() -> None:
    world = VirtualCluster()
    world.handlers["Heartbeat"] = lambda message, version: PARK
    task = world.runtime.spawn(world.cluster.send(HeartbeatRequest(group_id="g"), ANY))
    world.run()
    world.cut()
    with pytest.raises(ConnectionFailed, match="reset"):
        task.result()


def test_a_request_without_an_answer_times_out_and_its_connection_is_given_up() -> None:
    world = VirtualCluster()
    world.handlers["Heartbeat"] = lambda message, version: PARK
    with pytest.raises(TimedOutError, match="Heartbeat: no answer from 127.0.0.1:9092 within 700 ms"):
        world.call(world.cluster.send(HeartbeatRequest(group_id="g"), ANY, timeout_ms=700))
    assert world.open_links == set()


def test_lanes_have_connections_of_their_own() -> None:
    world = VirtualCluster(topics={"a": 1})
    world.call(world.cluster.describe_topics(["a"]))
    world.handlers["Heartbeat"] = lambda message, version: PARK
    world.runtime.spawn(world.cluster.send(HeartbeatRequest(group_id="g"), BrokerById(1), channel="fetch"))
    world.run()
    world.call(world.cluster.describe_topics(["a"]))
    assert len(world.opened) == 3  # to the bootstrap address, to node 1, and to node 1 for the lane


def test_a_connection_is_not_idle_just_after_an_answer_that_took_long() -> None:
    """A JoinGroup waits for as long as the other members may take."""
    world = VirtualCluster(settings={"connections_max_idle_ms": 60_000}, topics={"a": 1})
    world.handlers["Heartbeat"] = lambda message, version: PARK
    world.call(world.cluster.refresh_metadata())
    joining = world.runtime.spawn(
        world.cluster.send(HeartbeatRequest(group_id="g"), BrokerById(1), timeout_ms=300_000, channel="join")
    )
    world.run(100_000)
    (parked,) = world.parked_named("Heartbeat")
    world.answer(parked, HeartbeatResponse())
    assert joining.done
    world.run(130_000)
    assert parked.link in world.open_links
    world.run(200_000)
    assert parked.link not in world.open_links


def test_a_coordinator_is_looked_up_once_and_again_when_forgotten() -> None:
    world = VirtualCluster()
    world.call(world.cluster.refresh_metadata())
    tasks = [world.runtime.spawn(world.cluster.coordinator(Coordinator("g"))) for _ in range(3)]
    assert [world.finish(task) for task in tasks] == [1, 1, 1]
    assert len(world.sent("FindCoordinator")) == 1
    world.cluster.forget_coordinator(Coordinator("g"))
    world.call(world.cluster.coordinator(Coordinator("g")))
    assert len(world.sent("FindCoordinator")) == 2


def test_a_coordinator_that_is_not_available_yet_is_retriable() -> None:
    world = VirtualCluster()
    entry = FindCoordinatorResponse.Coordinator(key="g", error_code=15, node_id=-1)
    world.handlers["FindCoordinator"] = lambda message, version: FindCoordinatorResponse(coordinators=[entry])
    with pytest.raises(KafkaError) as caught:
        world.call(world.cluster.coordinator(Coordinator("g")))
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE and caught.value.code.retriable


def test_an_answer_out_of_order_ends_the_connection() -> None:
    world = VirtualCluster()
    world.handlers["Heartbeat"] = lambda message, version: PARK
    task = world.runtime.spawn(world.cluster.send(HeartbeatRequest(group_id="g"), ANY))
    world.run()
    (request,) = world.parked
    request.correlation_id += 1
    world.answer(request, HeartbeatResponse())
    with pytest.raises(ConnectionFailed):
        task.result()
    assert world.open_links == set()


def test_metadata_is_refreshed_by_age() -> None:
    world = VirtualCluster(settings={"metadata_max_age_ms": 10_000}, topics={"a": 1})
    world.cluster.set_wanted_topics("test", {"a"})
    world.run(45_000)
    assert 4 <= len(world.sent("Metadata")) <= 6


def test_a_refresh_asked_for_during_another_gets_a_later_answer() -> None:
    world = VirtualCluster()
    world.handlers["Metadata"] = lambda message, version: PARK
    first = world.cluster.request_metadata()
    world.run()
    second = world.cluster.request_metadata()
    answer = world._metadata
    (request,) = world.parked_named("Metadata")
    world.answer(request, answer(request.message, request.version))
    assert not second.done
    (request,) = world.parked_named("Metadata")
    world.answer(request, answer(request.message, request.version))
    assert first.done and second.done


def test_error_of_a_queued_refresh_reaches_its_caller() -> None:
    world = VirtualCluster(topics={"a": 1})
    world.handlers["Metadata"] = lambda message, version: PARK
    first = world.cluster.request_metadata()
    world.run()
    refreshed = world.runtime.spawn(world.cluster.refresh_metadata(5_000))
    world.run()
    (request,) = world.parked_named("Metadata")
    world.handlers["Metadata"] = lambda message, version: GARBLE
    world.answer(request, world._metadata(request.message, request.version))
    world.run(10_000)
    assert isinstance(first.error, CorruptDataError)
    assert isinstance(refreshed.error, CorruptDataError)


def test_queued_refresh_is_not_resolved_by_the_response_to_an_earlier_request() -> None:
    world = VirtualCluster(topics={"a": 1})
    world.handlers["Metadata"] = lambda message, version: PARK
    world.cluster.request_metadata()
    world.runtime.spawn(world.cluster.describe_topics(["a"]))
    world.run()
    refresh, description = world.parked_named("Metadata")
    queued = world.cluster.request_metadata()
    world.answer(refresh, world._metadata(refresh.message, refresh.version))
    world.answer(description, world._metadata(description.message, description.version))
    assert not queued.done
    (own,) = world.parked_named("Metadata")
    world.answer(own, world._metadata(own.message, own.version))
    assert queued.done


def test_a_lost_connection_is_retried_by_retrying() -> None:
    world = VirtualCluster(topics={"a": 1})
    answers = [DROP, DROP]
    metadata = world.handlers["Metadata"]
    world.handlers["Metadata"] = lambda message, version: answers.pop() if answers else metadata(message, version)
    assert "a" in world.call(world.cluster.describe_topics(["a"]))


@pytest.mark.parametrize("text", ["localhost", "localhost:", ":9092", "localhost:0", "localhost:99999", "a b:c"])
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="HOST:PORT"):
        parse_address(text)


def test_addresses() -> None:
    assert str(parse_address("PLAINTEXT://[::1]:9092")) == "[::1]:9092"
    assert parse_address(" kafka.example:9093 ").port == 9093


def three() -> VirtualCluster:
    """A cluster of three brokers, to each of which an idle connection stands."""
    world = VirtualCluster()
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=number, host="127.0.0.1", port=9091 + number)
        for number in (1, 2, 3)
    ]
    world.handlers["Metadata"] = lambda message, version: MetadataResponse(brokers=brokers, controller_id=1, topics=[])
    world.call(world.cluster.refresh_metadata())
    for number in (1, 2, 3):
        world.call(world.cluster.send(MetadataRequest(topics=[]), BrokerById(number), channel="own"))
    return world


def test_a_broker_that_stands_still_is_left_for_others_though_an_idle_connection_to_it_stands() -> None:
    """That connection was the least busy, so the client chose the broker again and again."""
    world = three()
    alive = world.handlers["Metadata"]

    def answers(message: Any, version: int) -> Any:
        return PARK if world.port_of(world.requests[-1].link) == 9092 else alive(message, version)

    world.handlers["Metadata"] = answers
    world.handlers["ApiVersions"] = lambda message, version: (
        PARK if world.port_of(world.requests[-1].link) == 9092 else world._api_versions(message, version)
    )
    for _ in range(6):
        asked_ms = world.runtime.now_ms
        world.call(world.cluster.refresh_metadata(60_000))
        assert world.runtime.now_ms - asked_ms <= LOOKUP_TIMEOUT_MS + 500
    slow = [request for request in world.parked if request.name in ("Metadata", "ApiVersions")]
    assert len(slow) == 1, "once is enough to know it"


def test_one_that_answers_again_is_asked_again() -> None:
    world = three()
    world.cluster.connections.mark_unresponsive(Address("127.0.0.1", 9092))
    world.call(world.cluster.send(MetadataRequest(topics=[]), BrokerById(1), channel="own"))
    assert world.cluster.connections.health(Address("127.0.0.1", 9092)).avoid_until_ms == 0


def test_one_that_was_silent_is_asked_when_no_other_is_there() -> None:
    """Those that are not there were asked without end, and time stood still meanwhile."""
    world = three()
    world.cut()
    world.cluster.connections.mark_unresponsive(Address("127.0.0.1", 9092))
    world.refuse = {9093, 9094}
    before = world.runtime.now_ms
    world.call(world.cluster.refresh_metadata(60_000))
    assert world.runtime.now_ms - before <= SILENT_MS + LOOKUP_TIMEOUT_MS
    for patience_ms in (0.5, 20, 100):
        world.cut()
        world.cluster.connections.mark_unresponsive(Address("127.0.0.1", 9092))
        with contextlib.suppress(RetriableError):
            world.call(world.cluster.send(MetadataRequest(topics=[]), ANY, timeout_ms=patience_ms))


@pytest.mark.parametrize("refreshes", [True, False])
def test_the_timeout_for_brokers_that_are_silent_grows_to_a_bound(refreshes: bool) -> None:
    """The wait doubled up to the request timeout: a stopped broker was waited for as long as a slow request."""
    world = VirtualCluster(settings={"request_timeout_ms": 600_000, "default_api_timeout_ms": 600_000})
    world.handlers["Metadata"] = lambda message, version: PARK
    asking = world.cluster.refresh_metadata(300_000) if refreshes else world.cluster.describe_topics(["a"], 300_000)
    with pytest.raises(TimedOutError):
        world.call(asking)
    asked_ms = [request.at_ms for request in world.sent("Metadata")]
    waited_ms = [after - before for before, after in itertools.pairwise(asked_ms)]
    assert waited_ms[:4] == [pytest.approx(LOOKUP_TIMEOUT_MS * 2**number, abs=1_100) for number in range(4)], (
        "all may be slow"
    )
    assert len(waited_ms) > 8 and max(waited_ms) <= LOOKUP_TIMEOUT_MAX_MS + 1_100


def test_no_refusal_makes_the_timeout_for_a_silent_broker_longer() -> None:
    """After a minute in which no broker was there the first that stood still was waited for half a minute."""
    world = three()
    world.cut()
    world.refuse = {9092, 9093, 9094}
    asking = world.runtime.spawn(world.cluster.refresh_metadata(300_000))
    world.run(world.runtime.now_ms + 60_000)
    assert not asking.done
    alive = world.handlers["Metadata"]
    world.handlers["Metadata"] = lambda message, version: PARK if not world.parked else alive(message, version)
    world.refuse, back_ms = set(), world.runtime.now_ms
    world.finish(asking)
    assert len(world.parked_named("Metadata")) == 1
    assert world.runtime.now_ms - back_ms <= LOOKUP_TIMEOUT_MS + 2_000


class TwoClusters:
    """A broker at 127.0.0.1:9092 of a cluster that ends, after which another cluster's broker is there."""

    def __init__(self, highest: int = 5) -> None:
        self.world = VirtualCluster(topics={"a": 1}, highest={18: highest})
        self.cluster_id = "first"
        plain_versions, plain_metadata = self.world.handlers["ApiVersions"], self.world.handlers["Metadata"]

        def versions(message: Any, version: int) -> Any:
            if message.cluster_id not in (None, self.cluster_id):
                return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
            return plain_versions(message, version)

        def metadata(message: Any, version: int) -> Any:
            answer = plain_metadata(message, version)
            answer.cluster_id = self.cluster_id
            return answer

        self.world.handlers |= {"ApiVersions": versions, "Metadata": metadata}

    def meant(self) -> list[tuple[str | None, int]]:
        """The cluster and the node that the client named, by connection."""
        return [(sent.message.cluster_id, sent.message.node_id) for sent in self.world.sent("ApiVersions")]

    def ask_broker(self) -> None:
        self.world.handlers["Heartbeat"] = lambda message, version: HeartbeatResponse()
        self.world.call(self.world.cluster.send(HeartbeatRequest(group_id="g"), BrokerById(1)))


def test_requests_name_the_broker_and_the_cluster_that_are_meant() -> None:
    side = TwoClusters()
    side.world.call(side.world.cluster.describe_topics(["a"]))
    side.ask_broker()
    assert side.meant() == [(None, -1), ("first", 1)], "an address that the user gave may be anyone's"


def test_another_clusters_broker_at_the_address_leads_back_to_the_bootstrap_addresses() -> None:
    side = TwoClusters()
    side.world.call(side.world.cluster.describe_topics(["a"]))
    side.cluster_id = "second"
    side.world.cut()
    with pytest.raises(ConnectionFailed, match="is not broker 1 of cluster first any more"):
        side.ask_broker()
    side.world.call(side.world.cluster.refresh_metadata())
    assert side.world.cluster.metadata.cluster_id == "second"
    side.ask_broker()
    assert side.meant() == [(None, -1), ("first", 1), (None, -1), ("second", 1)]


def test_requests_to_a_cluster_before_kafka_4_4_do_not_name_the_broker() -> None:
    side = TwoClusters(highest=4)
    side.world.call(side.world.cluster.describe_topics(["a"]))
    side.ask_broker()
    assert {sent.version for sent in side.world.sent("ApiVersions")} == {4}


def test_a_login_is_renewed_though_its_connection_is_never_idle() -> None:
    """At its end the broker would close the connection, with requests in flight. Source: KIP-368."""
    world = VirtualCluster(
        settings={
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "u",
            "sasl_password": "p",
        }
    )
    world.handlers["SaslHandshake"] = lambda message, version: SaslHandshakeResponse(mechanisms=["PLAIN"])
    world.handlers["SaslAuthenticate"] = lambda message, version: SaslAuthenticateResponse(session_lifetime_ms=10_000)

    def listed() -> Task[Any]:
        return world.runtime.spawn(world.cluster.send(ListGroupsRequest(), BrokerById(1), timeout_ms=60_000))

    def answer_oldest() -> None:
        world.answer(world.parked_named("ListGroups")[0], ListGroupsResponse())

    world.call(world.cluster.refresh_metadata())
    tasks = [listed()]
    world.run(4_000)
    tasks.append(listed())
    world.run(7_900)
    answer_oldest()
    world.run(8_100)
    tasks += [listed(), listed()]
    world.run(9_000)
    [before, last] = world.sent("ListGroups")
    assert before.link == last.link in world.open_links
    answer_oldest()
    world.run(9_500)
    assert last.link not in world.open_links
    renewed = world.sent("ListGroups")[2:]
    assert len(renewed) == 2
    assert renewed[0].link == renewed[1].link in world.open_links
    for _ in renewed:
        answer_oldest()
    for task in tasks:
        task.result()


def test_a_broker_that_hangs_up_on_later_versions_of_api_versions_is_asked_by_an_earlier_one() -> None:
    """Azure Event Hubs resets the connection, where Kafka would name the versions that it has."""
    world = VirtualCluster(topics={"a": 1}, highest={ApiVersionsResponse.API_KEY: 3})
    answered = world.handlers["ApiVersions"]
    world.handlers["ApiVersions"] = lambda message, version: DROP if version > 3 else answered(message, version)
    assert list(world.call(world.cluster.describe_topics(["a"]))) == ["a"]
    world.handlers["Heartbeat"] = lambda message, version: HeartbeatResponse()
    world.call(world.cluster.send(HeartbeatRequest(), Coordinator("g")))
    assert {request.version for request in world.sent("ApiVersions")[-2:]} == {3}


def test_a_broker_that_hung_up_while_it_restarted_is_asked_by_the_newest_version_again() -> None:
    world = VirtualCluster(topics={"a": 1})
    answered, left = world.handlers["ApiVersions"], [DROP, DROP, DROP]
    world.handlers["ApiVersions"] = lambda message, version: left.pop() if left else answered(message, version)
    assert list(world.call(world.cluster.describe_topics(["a"]))) == ["a"]
    assert [request.version for request in world.sent("ApiVersions")] == [4, 3, 4, 3]
    world.cut()
    world.call(world.cluster.refresh_metadata())
    assert world.sent("ApiVersions")[-1].version > 3


def test_transactional_id_is_listed_once_while_its_coordinator_changes() -> None:
    """The last coordinator and the next one both name it for a moment."""
    world = three()
    state = ListTransactionsResponse.TransactionState(transactional_id="t", producer_id=7, transaction_state="Ongoing")
    world.handlers["ListTransactions"] = lambda message, version: ListTransactionsResponse(transaction_states=[state])
    assert [listing.transactional_id for listing in world.call(list_transactions(world.cluster))] == ["t"]
    assert len(world.sent("ListTransactions")) == 3


def test_client_begins_with_the_bootstrap_servers_again_when_a_broker_asks_for_it() -> None:
    """Source: KIP-1102."""
    world = VirtualCluster(topics={"a": 1})
    world.call(world.cluster.refresh_metadata())
    links, answer, refusals = set(world.open_links), world.handlers["Metadata"], [ErrorCode.REBOOTSTRAP_REQUIRED]

    def refuse_once(message: Any, version: int) -> MetadataResponse:
        return MetadataResponse(error_code=refusals.pop()) if refusals else answer(message, version)

    world.handlers["Metadata"] = refuse_once
    task = world.runtime.spawn(world.cluster.send(HeartbeatRequest(group_id="g"), BrokerById(1), channel="other"))
    world.handlers["Heartbeat"] = lambda message, version: PARK
    world.run(world.runtime.now_ms + 10)
    assert world.call(world.cluster.refresh_metadata()).brokers
    assert not links & world.open_links
    assert isinstance(task.error, ConnectionFailed) and "bootstrap servers again" in str(task.error)


def test_client_asks_again_when_a_broker_knows_no_brokers_yet() -> None:
    world = VirtualCluster(topics={"a": 1})
    answer, empty = world.handlers["Metadata"], [MetadataResponse(), MetadataResponse()]
    world.handlers["Metadata"] = lambda message, version: empty.pop() if empty else answer(message, version)
    assert world.call(world.cluster.refresh_metadata()).brokers
    empty.append(MetadataResponse())
    assert world.call(world.cluster.describe_topics(["a"]))["a"].partitions


def test_client_asks_again_while_the_cluster_has_no_controller() -> None:
    world = VirtualCluster()
    answer, elections = world.handlers["Metadata"], [1]
    world.handlers["DescribeCluster"] = lambda message, version: DescribeClusterResponse(cluster_id="c")

    def elect(message: Any, version: int) -> MetadataResponse:
        response = answer(message, version)
        response.controller_id = elections.pop() - 2 if elections else 1
        return response

    world.handlers["Metadata"] = elect
    ask = world.cluster.retry_call(lambda: world.cluster.send(DescribeClusterRequest(), CONTROLLER), "ask")
    assert world.call(ask).cluster_id == "c"


def test_partitions_without_a_leader_keep_no_others_waiting_and_are_asked_again() -> None:
    world = three()
    answer, leaders, asked = world.handlers["Metadata"], {"c": 3, "d": 3}, list[tuple[int, list[str]]]()
    topic_type = MetadataResponse.MetadataResponseTopic

    def name_leaders(message: Any, version: int) -> MetadataResponse:
        response, topics = answer(message, version), []
        for name in [topic.name for topic in message.topics or ()]:
            part = topic_type.MetadataResponsePartition(leader_id=leaders.get(name, -1), replica_nodes=[1])
            code = ErrorCode.LEADER_NOT_AVAILABLE if name == "a" and name not in leaders else 0
            topics.append(topic_type(name=name, error_code=code, partitions=[] if code else [part]))
        response.topics = topics
        return response

    async def ask(node: int, wanted: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        asked.append((node, [partition.topic for partition in wanted]))
        leaders.update(a=1, b=2)
        return {partition: node for partition in wanted if partition.topic != "d"}

    world.handlers["Metadata"] = name_leaders
    partitions = [TopicPartition(topic, 0) for topic in "abcd"]
    found = world.call(send_to_leaders(world.cluster, partitions, ask, "ask", 10_000))
    assert asked == [(3, ["c", "d"]), (1, ["a"]), (2, ["b"])]
    silent = found.pop(partitions[3])
    assert isinstance(silent, KafkaError) and "says nothing of d-0" in str(silent)
    assert found == {partitions[0]: 1, partitions[1]: 2, partitions[2]: 3}

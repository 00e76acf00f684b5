"""Refusals to clients that are not kohort's: each of their requests gets an answer that ends the client's wait.

Such a client would look up a group's coordinator at any of Kafka's brokers, and end at Kafka's own coordinator. A
coordinator therefore serves none of its requests. `KohortClientsDispatcher` tells the two kinds apart by what a client
says of itself in ApiVersions. Other clients get these answers:

| request | answer |
|---|---|
| ApiVersions | every API of a kohort broker, so that the client sends its request and receives the text below |
| Metadata, DescribeCluster | this coordinator as the only node and as the controller; the text as the cluster's id |
| Metadata, DescribeTopicPartitions: topics | TOPIC_AUTHORIZATION_FAILED |
| Produce, ListOffsets, Fetch | the same, for clients that overlook it in Metadata (`_OVERLOOKS`) |
| FindCoordinator of a transactional id | CLUSTER_AUTHORIZATION_FAILED, which ends librdkafka's wait too; and the text |
| SaslHandshake, SaslAuthenticate | those of a login: only clients that log in are told anything |
| every other | INVALID_REQUEST, and the text if the response has a field for one |

Kafka's protocol has no error code for an address that serves other clients. Each code here is one that the clients
report at once. A client that goes on asking waits for its answers. Sources: Apache Kafka 4.4 (`TransactionManager`,
`AbstractCoordinator`, `Metadata`), librdkafka 2.16 (`rd_kafka_txn_handle_FindCoordinator`,
`rd_kafka_topic_metadata_update`), kafka-python 3.0 and aiokafka 0.14 (`cluster.py`, `fetcher.py`).
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, cast

from kohort.broker.api.discovery import api_versions
from kohort.broker.api.sasl import sasl_authenticate, sasl_handshake
from kohort.broker.audit import AuditLog
from kohort.broker.authorization import Authorizer, Resource
from kohort.broker.dispatch import NEGATIVE_FIRST, PUSH_FIRST, Dispatcher, RequestThrottling, Route, api_keys
from kohort.broker.endpoints import CoordinatorKind
from kohort.broker.framing import Frame
from kohort.broker.metrics import Metrics
from kohort.broker.routes import ROUTES
from kohort.broker.server.connection import ClientSession, Connection
from kohort.broker.server.faults import Faults
from kohort.broker.server.refusals import error_response
from kohort.broker.server.repeated_requests import RepeatedRequests
from kohort.broker.server.requests import Request
from kohort.cluster.host import CoordinatorHost
from kohort.cluster.kafka_authorizer import KafkaAuthorizer
from kohort.errors import ErrorCode
from kohort.ids import AclOperation
from kohort.io.log_throttle import IntervalThrottle
from kohort.wire.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from kohort.wire.discovery import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataResponse,
)
from kohort.wire.groups import FindCoordinatorRequest
from kohort.wire.message import Message
from kohort.wire.security import SaslAuthenticateRequest, SaslHandshakeRequest

log = logging.getLogger("kohort.cluster")

LOG_INTERVAL_S = 60.0
"""A refused client retries continually. Log the refusals of one client at most this often."""
LOGGED_CLIENTS_MAX = 1_000
"""Clients whose last log line is remembered, the most recent ones."""
ANSWERED_AT_ONCE = 100
"""Refusals that one connection gets without a delay. aiokafka 0.14 repeats a refused Metadata 1,500 times a second."""
REPEAT_DELAY_S = 1.0
"""Delay of each further refusal of the connection."""
CONNECTIONS_COUNTED_MAX = 10_000
"""Connections whose refusals are counted, the most recent ones."""
ADDRESSES_NAMED = 3
"""Addresses of Kafka's brokers in the text: enough for a bootstrap list."""

_OVERLOOKS = ("kafka-python",)
"""Software whose consumers with assigned partitions wait on, silently, when Metadata refuses a topic.

Metadata names this coordinator to them as the leader of the topic's partitions. They report the refusal of their next
request.
"""

_Partition: TypeAlias = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
Dispatch: TypeAlias = Callable[[Connection, Frame], None]


class OtherClientsHost:
    """The host of all requests of other clients: it refuses each, and logs each client once a minute.

    Attributes:
        host: the coordinator.
    """

    authorizer: Authorizer | None = None
    audit: AuditLog | None = None
    throttling: RequestThrottling | None = None

    def __init__(
        self,
        host: CoordinatorHost,
        authorizer: KafkaAuthorizer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Refuse in the name of `host`, whose metrics and fault rules count here too.

        Args:
            host: the coordinator.
            authorizer: who decides about kohort's own clients; while its rules are stale, they are refused too.
            clock: seconds.
        """
        self.host = host
        self._rules = authorizer
        self._clock = clock
        self._refused: OrderedDict[int, int] = OrderedDict()
        self._throttle = IntervalThrottle(LOG_INTERVAL_S, self._clock, LOGGED_CLIENTS_MAX)

    @property
    def metrics(self) -> Metrics:
        """The metrics of the coordinator, which also count the requests refused here."""
        return self.host.metrics

    @property
    def faults(self) -> Faults:
        """The fault rules of the coordinator, which also apply to the requests refused here."""
        return self.host.faults

    @property
    def repeated(self) -> RepeatedRequests:
        """The coordinator's frame templates, among which those of refused requests are counted."""
        return self.host.repeated

    def answer_delayed_heartbeats(self, client: ClientSession) -> None:
        """Let the coordinator's host answer the client's delayed heartbeats, if there are any."""
        self.host.answer_delayed_heartbeats(client)

    @property
    def refusal_text(self) -> str:
        """The error text that tells a refused client where to connect."""
        return (
            f"this address is kohort's group coordinator, for kohort's clients; use {self._kafka} of the Kafka cluster"
        )

    @property
    def _kafka(self) -> str:
        return ",".join(f"{place.host}:{place.port}" for place in self.host.topics.brokers[:ADDRESSES_NAMED])

    def refuse_request(self, request: Request[Message]) -> Message | None:
        """Answer with the error code of this kind of request, in every place of the response that has one."""
        message = request.message
        if request.client.is_kohort_client:
            text = "the coordinator cannot ask Kafka who may do what: retrying"
            return self._later(request, error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, text))
        if isinstance(message, ProduceRequest) and message.acks == 0:
            self._log(request)
            request.connection.close()  # as Kafka does: there is no response that could carry the error
            return None
        return self._log_refusal(request, error_response(request, _error_code(message), self.refusal_text))

    def api_versions(self, request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
        """Record the client's name and version, and list all APIs, so that its requests get the refusal as text."""
        response = api_versions(self.host, request)
        if not request.client.is_kohort_client and not response.error_code:
            response.api_keys = [*REFUSED_API_KEYS]
        return response

    def metadata(self, request: Request[MetadataRequest]) -> Message | None:
        """Answer Metadata of a foreign client: this coordinator is the only node, and each topic is refused.

        A list of all topics is answered with one refused name, because an empty list would say that there are none.
        """
        if request.client.is_kohort_client:
            return self.refuse_request(request)
        here, asked = self.host.me, request.message.topics
        everything = asked is None or (request.version == 0 and not asked)
        make = MetadataResponse.MetadataResponseTopic
        software = request.client.software
        overlooks = software is not None and software[0] in _OVERLOOKS
        topics = [
            make(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=topic.name, topic_id=topic.topic_id)
            if not overlooks or (partitions := self._led_here(request, topic.name)) is None
            else make(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            for topic in asked or ()
        ]
        if everything:
            topics = [make(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=self._as_topic())]
        node = MetadataResponse.MetadataResponseBroker(node_id=here.id, host=here.host, port=here.port)
        response = MetadataResponse(brokers=[node], cluster_id=self.refusal_text, controller_id=here.id, topics=topics)
        return self._log_refusal(request, response)

    def _led_here(self, request: Request[MetadataRequest], name: str | None) -> list[_Partition] | None:
        """Return the partitions of a topic, as if this coordinator led them; None: the client knows no such topic."""
        make, me = _Partition, self.host.me.id
        topic = self.host.topics.by_name.get(name or "")
        if topic is None:
            return None
        describe, kind = AclOperation.DESCRIBE, Resource.TOPIC
        if self._rules is not None and not self._rules.allows(request, describe, kind, topic.name, audited=False):
            return None
        return [
            make(partition_index=index, leader_id=me, replica_nodes=[me], isr_nodes=[me])
            for index in range(topic.partitions)
        ]

    def describe_cluster(self, request: Request[DescribeClusterRequest]) -> Message | None:
        """Answer DescribeCluster of a foreign client: this coordinator is the only node, with the refusal as error."""
        if request.client.is_kohort_client:
            return self.refuse_request(request)
        here = self.host.me
        node = DescribeClusterResponse.DescribeClusterBroker(broker_id=here.id, host=here.host, port=here.port)
        response = DescribeClusterResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=self.refusal_text,
            endpoint_type=request.message.endpoint_type,
            cluster_id=self.refusal_text,
            controller_id=here.id,
            brokers=[node],
        )
        return self._log_refusal(request, response)

    @property
    def refuses_everyone(self) -> bool:
        """Whether kohort's own clients are refused too, because the access rules are stale."""
        return self._rules is not None and self._rules.is_stale

    def unknown_api_versions(self, request: Request[Message]) -> None:
        """Answer an unknown version of ApiVersions in the layout of version 0, which every client can decode."""
        request.version = 0
        ours = [entry for entry in REFUSED_API_KEYS if entry.api_key == ApiVersionsResponse.API_KEY]
        request.reply(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=ours))

    def _as_topic(self) -> str:
        """Return the refusal text with only the characters that a topic name may have."""
        words = f"this-is-kohorts-group-coordinator.use-{self._kafka}-of-the-Kafka-cluster"
        return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in words)[:249]

    def _log_refusal(self, request: Request[Message], response: Message) -> Message | None:
        """Log a refused client, and return its response; None: sent later, since the client repeats its requests."""
        self._log(request)
        return self._later(request, response)

    def _later(self, request: Request[Message], response: Message) -> Message | None:
        number = request.client.number
        count = self._refused[number] = self._refused.pop(number, 0) + 1
        if len(self._refused) > CONNECTIONS_COUNTED_MAX:
            self._refused.popitem(last=False)
        if count <= ANSWERED_AT_ONCE:
            return response
        self.host.loop.call_later(REPEAT_DELAY_S, request.reply, response)
        return None

    def _log(self, request: Request[Message]) -> None:
        client = request.client
        if not self._throttle.count_event((client.host, client.software, request.client_id)):
            return
        log.warning(
            "[client %s] refused (%s, client.id %s, %s): this is a coordinator for kohort's own clients; others would "
            "look up the group at a broker, and end at Kafka's own coordinator. Connect the client to %s of the Kafka "
            "cluster, or use kohort's client",
            request.connection.name,
            "unknown software" if client.software is None else " ".join(client.software),
            request.client_id,
            request.api,
            self._kafka,
        )


_OF_TOPICS = (DescribeTopicPartitionsRequest, FetchRequest, ListOffsetsRequest, ProduceRequest)


def _error_code(message: Message) -> ErrorCode:
    if isinstance(message, _OF_TOPICS):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if isinstance(message, FindCoordinatorRequest) and message.key_type == CoordinatorKind.TRANSACTION:
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.INVALID_REQUEST


_ANSWERS: Mapping[int, Callable[[OtherClientsHost, Request[Any]], Message | None]] = {
    ApiVersionsRequest.API_KEY: OtherClientsHost.api_versions,
    MetadataRequest.API_KEY: OtherClientsHost.metadata,
    DescribeClusterRequest.API_KEY: OtherClientsHost.describe_cluster,
    SaslHandshakeRequest.API_KEY: lambda refusals, request: sasl_handshake(refusals.host, request),
    SaslAuthenticateRequest.API_KEY: lambda refusals, request: sasl_authenticate(refusals.host, request),
}
REFUSED_ROUTES: dict[int, Route[OtherClientsHost]] = {
    key: cast(
        "Route[OtherClientsHost]",
        replace(cast("Route[Any]", route), handler=_ANSWERS.get(key, OtherClientsHost.refuse_request)),
    )
    for key, route in ROUTES.items()
}
"""Every API that a kohort broker serves. A client would otherwise complain of the broker's age before it is refused."""
REFUSED_API_KEYS = api_keys(REFUSED_ROUTES)


class KohortClientsDispatcher:
    """The dispatcher of a coordinator: requests of kohort's clients are served, those of other clients refused.

    A connection counts as another client's until ApiVersions says otherwise. Push frames, which only push consumers
    send, are always served.
    """

    __slots__ = ("_refusals", "_refused", "_served")

    def __init__(self, served: Dispatch, refusals: OtherClientsHost) -> None:
        """Serve kohort's clients through `served`, and refuse others through `refusals`."""
        self._served = served
        self._refusals = refusals
        refused: Dispatcher[OtherClientsHost] = Dispatcher(
            refusals, REFUSED_ROUTES, OtherClientsHost.unknown_api_versions
        )
        self._refused: Dispatch = refused.dispatch

    def dispatch(self, connection: Connection, frame: Frame) -> None:
        """Handle one frame.

        Raises:
            BadFrame: the frame is no request; the connection must be closed.
        """
        own = connection.client.is_kohort_client and not self._refusals.refuses_everyone
        if own or PUSH_FIRST <= frame[0] < NEGATIVE_FIRST:
            self._served(connection, frame)
        else:
            self._refused(connection, frame)

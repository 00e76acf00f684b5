"""The entrance for clients that send bytes: frames go through the broker's own handlers, and frames come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from msgspec.structs import force_setattr

from kohort.broker.api import consumer_groups, group_offsets, groups
from kohort.broker.server.connection import ClientSession
from kohort.broker.server.repeated_requests import REPEATED, RepeatedRequests
from kohort.errors import ErrorCode
from kohort.groups.client_quirks import DelayTolerance
from kohort.groups.config import GroupConfig
from kohort.io.processes import long_poll_max_ms
from kohort.wire import framing
from kohort.wire.discovery import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kohort.wire.frame_templates import FrameTemplate
from kohort.wire.framing import frame_response
from kohort.wire.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kohort.wire.message import Message
from simulation.harness.network import Connection
from simulation.harness.push_gate import PushGate
from simulation.harness.server import Server
from simulation.harness.world import World

HANDLERS = {
    entry.request: entry.handler for entry in (*groups.HANDLERS, *consumer_groups.HANDLERS, *group_offsets.HANDLERS)
}
HOLD_MS = 1_200
HOST, PORT = "127.0.0.1", 9092
NODES = {"r1": 1, "r2": 2}
"""The rack of each node; both nodes are the coordinator's process."""
Respond = Callable[[memoryview], None]


class SimulatedClient(ClientSession):
    """A client of kohort's own whose delayed heartbeats are shorter than in production: its sessions are short."""

    __slots__ = ("at",)

    def __init__(self, at: Connection) -> None:
        super().__init__(at.id, "10.0.0.3")
        self.at = at
        self.lease_ms = at.lease_ms
        self.process = at.process

    def max_heartbeat_delay_ms(self, mode: str) -> int:
        """Return how long a classic heartbeat may be delayed."""
        return self.delay_tolerance(mode).delay_ms

    def delay_tolerance(self, mode: str) -> DelayTolerance:
        """Return the quirks that the broker assumes of kohort's own clients."""
        return DelayTolerance(min(HOLD_MS, long_poll_max_ms(self.lease_ms)) if self.lease_ms else HOLD_MS, True)


@dataclass
class SimulatedRequest:
    """One request as the broker's handlers see it."""

    client: SimulatedClient
    message: Any
    version: int
    correlation_id: int
    client_id: str | None
    respond: Respond
    template: FrameTemplate | None = None
    numbers: tuple[int, ...] = ()
    is_only_waiting_request = True
    accepts_encoded_response = True

    def reply(self, message: Any) -> None:
        """Answer with a message, encoded at the request's version."""
        parts = framing.encode_response(message, self.version, self.correlation_id)
        self.respond(memoryview(b"".join(bytes(part) for part in parts))[4:])

    def reply_encoded(self, response: type[Message], body: bytes) -> None:
        """Answer with a message that was encoded before, as the broker's requests do."""
        self.respond(memoryview(frame_response(response, body, self.version, self.correlation_id))[4:])


class Gate:
    """The part of the broker's node that the handlers of group requests use.

    Attributes:
        tells_leases: whether clients learn of the lease that the coordinator counts on.
        sure: the topics are complete: an unknown topic does not exist.
        authorizer: None: clients may do everything.
    """

    sure = True
    authorizer = None

    def __init__(self, world: World, server: Server, *, tells_leases: bool, pushing: type[PushGate] = PushGate) -> None:
        self.world = world
        self.server = server
        self.tells_leases = tells_leases
        self.chance = world.stream("gate")
        self.groups = SimpleNamespace(ask=self._ask, shard_index_of=lambda group: 0)
        self.topics = self
        self.pushing = pushing(server, HOST, PORT)
        self._repeated = RepeatedRequests()

    @property
    def group_config(self) -> GroupConfig:
        """Return the group coordinator's settings."""
        return self.server.config

    @property
    def by_name(self) -> Any:
        """Return topics by name."""
        return self.server.image.topics

    @property
    def by_id(self) -> Any:
        """Return topics by id."""
        return {topic.id: topic for topic in self.server.image.topics.values()}

    def next_request_id(self) -> int:
        """Return 0: the server numbers requests itself."""
        return 0

    def receive_frame(self, connection: Connection, frame: bytes, respond: Respond) -> None:
        """Receive a frame from a client."""
        if self.server.shard is None:
            connection.break_()
            return
        if self.pushing.takes(connection, memoryview(frame)[4:]):
            self.pushing.receive(connection, memoryview(frame)[4:], respond)
            return
        header, body = framing.decode_request_header(memoryview(frame)[4:])
        message, template, numbers = self._read(connection, frame[4:], header, body)
        asked = SimulatedRequest(
            SimulatedClient(connection),
            message,
            header.api_version,
            header.correlation_id,
            header.client_id,
            respond,
            template,
            numbers,
        )
        if isinstance(message, ApiVersionsRequest):
            asked.reply(self._api_versions(connection))
        elif isinstance(message, MetadataRequest):
            asked.reply(self._metadata(message))
        elif isinstance(message, FindCoordinatorRequest):
            entry = FindCoordinatorResponse.Coordinator(
                key=message.coordinator_keys[0], node_id=1, host=HOST, port=PORT
            )
            asked.reply(FindCoordinatorResponse(coordinators=[entry]))
        else:
            answer = HANDLERS[type(message)](self, asked)  # type: ignore[arg-type]  # it stands for a host
            if answer is not None:
                asked.reply(answer)

    def _read(
        self, connection: Connection, frame: bytes, header: framing.RequestHeader, body: memoryview
    ) -> tuple[Message, FrameTemplate | None, tuple[int, ...]]:
        """Read a request by its connection's template, or decode it, as the broker's dispatcher does."""
        repetition = connection.repeated.get(header.api_key)
        template = None if repetition is None else repetition.template
        numbers = None if template is None else template.varying_numbers(frame)
        if repetition is not None and template is not None and numbers is not None:
            repetition.uses += 1
            return template.make(numbers), template, numbers
        api = framing.APIS[header.api_key]
        message = api.request.decode(body, header.api_version)
        if api.name in REPEATED:
            self._repeated.record_request(connection, frame, header, message)
        return message, None, ()

    def _ask(self, client: SimulatedClient, event: Any, answer: Callable[[Any], None]) -> None:
        if getattr(event, "new_member_id", ""):
            force_setattr(event, "new_member_id", f"{event.client.id}-{self.chance.getrandbits(32):08x}")
        self.server.receive(client.at, event, answer)

    def _api_versions(self, connection: Connection) -> ApiVersionsResponse:
        config = self.server.config
        connection.lease_ms = config.disconnect_lease_ms if config.notice_disconnects != "off" else 0
        make = ApiVersionsResponse.ApiVersion
        keys = [make(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in API_LIST]
        return ApiVersionsResponse(api_keys=keys, lease_ms=connection.lease_ms if self.tells_leases else 0)

    def _metadata(self, message: MetadataRequest) -> MetadataResponse:
        topic_type = MetadataResponse.MetadataResponseTopic
        by_id = self.by_id
        if message.topics is None:
            wanted = [(name, topic) for name, topic in self.by_name.items() if name.startswith("t")]
        else:
            found = [
                (entry, by_id.get(entry.topic_id) if entry.name is None else self.by_name.get(entry.name))
                for entry in message.topics
            ]
            wanted = [(entry.name, topic) for entry, topic in found if topic is not None]
        missing = [] if message.topics is None else [entry for entry, topic in found if topic is None]
        topics = [
            topic_type(
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing_topic.name else ErrorCode.UNKNOWN_TOPIC_ID,
                name=missing_topic.name,
                topic_id=missing_topic.topic_id,
            )
            for missing_topic in missing
        ]
        for _, topic in wanted:
            parts = [
                topic_type.MetadataResponsePartition(
                    partition_index=number, leader_id=node, leader_epoch=0, replica_nodes=[node], isr_nodes=[node]
                )
                for number, node in enumerate(nodes_of(topic.racks))
            ]
            topics.append(topic_type(name=topic.name, topic_id=topic.id, partitions=parts))
        make = MetadataResponse.MetadataResponseBroker
        brokers = [make(node_id=node, host=HOST, port=PORT, rack=rack) for rack, node in NODES.items()]
        return MetadataResponse(brokers=brokers, controller_id=1, topics=topics)


def nodes_of(racks: tuple[tuple[str, ...], ...]) -> list[int]:
    """Return the only replica of each partition."""
    return [NODES[rack] for (rack,) in racks]


API_LIST = tuple(framing.APIS.values())

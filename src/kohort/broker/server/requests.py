"""Requests from their arrival to their response."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from kohort.broker.metrics import ApiMetrics, Histogram
from kohort.broker.server.connection import Connection
from kohort.broker.transport import Parts
from kohort.errors import ErrorCode, InvalidInputError
from kohort.wire.frame_templates import FrameTemplate
from kohort.wire.framing import APIS, encode_response, encode_response_frame, frame_response
from kohort.wire.message import Message
from kohort.wire.push import (
    ClusterMetadataRequest,
    ClusterMetadataResponse,
    ErrorResponse,
    PushType,
    RegisterConsumerRequest,
    with_length_prefix,
)

REPEATS_MAX = 4
"""The most answers to a name that one request repeats. Kafka answers each; 2.7 KB of one name could ask for 180 MB."""


def without_many_repeats(items: Iterable[T], name_of: Callable[[T], Hashable]) -> list[T]:
    """Return a request's items in order, with at most `REPEATS_MAX` items of the same name."""
    times: Counter[Hashable] = Counter()
    kept = []
    for item in items:
        name = name_of(item)
        times[name] += 1
        if times[name] <= REPEATS_MAX:
            kept.append(item)
    return kept


# -- Requests of push consumers, the counterpart of `Request`
#
# They have no correlation id and no version. An error is sent if the response has an error field; then the connection
# is closed.

log = logging.getLogger("kohort.broker")
T = TypeVar("T")


class PushRequest:
    """A request of a push consumer, and the place of its response in the connection's order.

    Attributes:
        client: the client that sent the request.
        client_id: the consumer's id once it is known, because push frames have no header with a client id.
        principal: the client's principal when the request arrived.
        message: the decoded request; set by `record_request`.
    """

    __slots__ = (
        "began",
        "client",
        "client_id",
        "connection",
        "kind",
        "latency",
        "message",
        "on_reply",
        "parts",
        "principal",
    )

    message: ClusterMetadataRequest | RegisterConsumerRequest

    def __init__(self, connection: Connection, kind: PushType) -> None:
        self.connection = connection
        self.client = connection.client
        self.client_id: str | None = None
        self.principal = connection.client.principal
        self.kind = kind
        self.parts: Parts | None = None
        self.on_reply: Callable[[Parts], bool] | None = None
        self.began = 0.0
        self.latency: Histogram | None = None
        connection.pending.append(self)

    def record_request(self, message: ClusterMetadataRequest | RegisterConsumerRequest, metrics: ApiMetrics) -> None:
        """Record the decoded message, count the request, and start its latency measurement."""
        self.message = message
        if isinstance(message, RegisterConsumerRequest):
            self.client_id = message.consumer_id
        metrics.requests += 1
        self.latency = metrics.latency
        self.began = perf_counter()

    @property
    def api(self) -> str:
        """The API's name."""
        return self.kind.api

    @property
    def host(self) -> str:
        """The client's address."""
        return self.client.host

    @property
    def name(self) -> str:
        """The request's name for log lines, such as `RegisterConsumer from 127.0.0.1:4711`."""
        return f"{self.kind.api} from {self.connection.name}"

    def send_response(self, body: bytes) -> None:
        """Send a response whose body is encoded already."""
        self.send([with_length_prefix(body)])

    def send(self, parts: Parts) -> None:
        """Send a response frame."""
        if self.connection.closed or (self.on_reply is not None and not self.on_reply(parts)):
            return
        self.parts = parts
        if self.latency is not None:
            self.latency.observe(perf_counter() - self.began)
        self.connection.send_when_next(self)

    def undecodable_response(self) -> Parts:
        """Return a response that no client can decode: it ends within its error code."""
        return [with_length_prefix(b"\xff")]

    def fail(self, error: ErrorCode, why: str) -> None:
        """Reject the request with only an error code."""
        is_metadata = self.kind is PushType.CLUSTER_METADATA
        body = ClusterMetadataResponse(error).encode_frame() if is_metadata else ErrorResponse(error).encode_frame()
        self.send_error_and_close(body, f"{self.api}: {why}")

    def send_error_and_close(self, body: bytes, why: str) -> None:
        """Send an error response, and close the connection."""
        log.warning("closing the connection from %s: request of a push consumer refused: %s", self.connection.name, why)
        self.send_response(body)
        self.connection.close_after_responses()


FETCH = 1

M_co = TypeVar("M_co", bound=Message, covariant=True)


class RequestMeter(Protocol):
    """The measurement of one request for quotas; `kohort.broker.server.throttling` has the only kind."""

    def charge_fetch(self, size: int) -> bool:
        """Record the bytes of a fetch; return whether none may be sent."""

    def fetch_bytes_max(self, asked: int) -> int:
        """Return the most bytes that one fetch may return under the client's quota."""

    def charge_partition_changes(self, count: int, *, knows_error: bool) -> None:
        """Record that partitions will be created or deleted.

        Raises:
            RetriableError: the client has used up its quota.
        """

    def stop_measuring(self) -> None:
        """Stop the measurement of a request whose response comes later."""

    def apply_throttle_time(self, request: Request[Message], message: Message | None) -> None:
        """Write the throttle time into the response, and stop reading from the connection for that time."""


class Request(Generic[M_co]):
    """A request until its response is sent, and the place of the response in the connection's order.

    Attributes:
        client: the client that sent the request.
        principal: the client's principal when the request arrived.
        message: the decoded request; set before its handler runs. A template makes it when it is first used.
        template: the template by which it was read, for what its handler prepares; None: it is not repeated.
        numbers: the numbers in which its frame differs from the template's others.
        meter: measures the request for quotas; None: there are none.
        on_answer: called with the response message before it is sent, also if the client has gone.
    """

    __slots__ = (
        "began",
        "client",
        "client_id",
        "connection",
        "correlation_id",
        "key",
        "latency",
        "message",
        "meter",
        "numbers",
        "on_answer",
        "on_reply",
        "parts",
        "principal",
        "template",
        "version",
    )

    message: M_co

    def __init__(
        self, connection: Connection, key: int, version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection = connection
        client = connection.client
        self.client = client
        self.principal = client.principal
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.parts: Parts | None = None
        self.on_reply: Callable[[Parts], bool] | None = None
        self.on_answer: Callable[[Request[Message], Message], None] | None = None
        self.began = 0.0
        self.latency: Histogram | None = None
        self.meter: RequestMeter | None = None
        self.template: FrameTemplate | None = None
        self.numbers: tuple[int, ...] = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Make the message of a repeated request, which many handlers do not need."""
            if name != "message" or self.template is None:
                raise AttributeError(name)
            made = self.message = self.template.make(self.numbers)
            return made

    @property
    def needs_no_response(self) -> bool:
        """Whether a response is no longer needed: it was sent, or the client has disconnected."""
        return self.parts is not None or self.connection.closed

    @property
    def is_only_waiting_request(self) -> bool:
        """Whether this is the connection's only request that waits for a response."""
        return len(self.connection.pending) <= 1

    @property
    def api(self) -> str:
        """Kafka's name of the API."""
        return APIS[self.key].name

    @property
    def host(self) -> str:
        """The client's address."""
        return self.client.host

    def undecodable_response(self) -> Parts:
        """Return a response that no client can decode: it is too short for any."""
        body = self.correlation_id.to_bytes(4, "big", signed=True) + b"\xff" * 3
        return [len(body).to_bytes(4, "big") + body]

    @property
    def name(self) -> str:
        """The request's name for log lines, such as `JoinGroup 9 from 127.0.0.1:4711 (client)`."""
        api = APIS.get(self.key)
        return f"{api.name if api else self.key} {self.version} from {self.connection.name} ({self.client_id})"

    def reply(self, message: Message) -> None:
        """Send a response message, encoded in the request's version."""
        if self.on_answer is not None:
            self.on_answer(self, message)
        if self.connection.closed:
            return
        if self.meter is not None:
            self.meter.apply_throttle_time(self, message)
        parts: Parts
        try:
            if self.key == FETCH:
                parts = encode_response(message, self.version, self.correlation_id)
            else:
                parts = [encode_response_frame(message, self.version, self.correlation_id)]
        except InvalidInputError:  # a bug of the broker; other requests of the same step must get their responses
            log.exception(
                "unexpected error: the answer to request %s can't be encoded; closing its connection", self.name
            )
            self.connection.close()
            return
        self.send(parts)

    @property
    def accepts_encoded_response(self) -> bool:
        """Whether a cached, encoded response may be sent: no quota changes it, and no callback reads it."""
        return self.meter is None and self.on_answer is None

    def reply_encoded(self, response: type[Message], body: bytes) -> None:
        """Send a response body that the caller has already encoded for this request's API version."""
        if not self.connection.closed:
            self.send([frame_response(response, body, self.version, self.correlation_id)])

    def send(self, parts: Parts) -> None:
        """Send the parts of a response frame: buffers and file ranges."""
        if self.on_reply is not None and not self.on_reply(parts):
            return
        self.parts = parts
        if self.latency is not None:
            self.latency.observe(perf_counter() - self.began)
        self.connection.send_when_next(self)

    def send_no_response(self) -> None:
        """Send no response (acks=0)."""
        if self.meter is not None:
            self.meter.apply_throttle_time(self, None)
        self.send([])

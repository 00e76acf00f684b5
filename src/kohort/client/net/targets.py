"""Targets of requests, their versions, and the time limit where several targets would do. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kohort.client.net.connection import Address, BrokerConnection
from kohort.errors import ErrorCode, InvalidInputError, TimedOutError, error_for
from kohort.ids import TopicPartition
from kohort.wire.message import Message, RequestMessage

R = TypeVar("R", bound=Message)


LOOKUP_TIMEOUT_MS = 3_000
"""Wait this long for a node when another one could answer as well; the node may be stalled."""

LOOKUP_TIMEOUT_MAX_MS = 30_000
"""Kafka's own default request timeout (30 s): no broker needs longer for a request that it answers from memory. A
longer `request_timeout_ms` is meant for slow requests."""


class EscalatingTimeout:
    """The time limit for a request that any node can answer: short at first, so that another node is asked soon.

    The limit doubles after each timeout, because all nodes may be slow, but not after other errors. Send the request
    inside its `with` block.
    """

    def __init__(self) -> None:
        self.ms = LOOKUP_TIMEOUT_MS

    def __enter__(self) -> int:
        return self.ms

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and issubclass(kind, TimedOutError):
            self.ms = min(2 * self.ms, LOOKUP_TIMEOUT_MAX_MS)


@dataclass(frozen=True, slots=True)
class AnyNode:
    """The connected broker that is least busy; use the constants `ANY` and `ANY_BROKER`.

    Attributes:
        serves_itself: True (`ANY_BROKER`): never one of kohort's coordinators over Kafka, which answer some requests
            too.
    """

    serves_itself: bool = False


@dataclass(frozen=True, slots=True)
class AnyCoordinator:
    """The least busy of kohort's connected coordinators, where these run over Kafka's brokers.

    Use the constant `ANY_COORDINATOR`.
    """


@dataclass(frozen=True, slots=True)
class BrokerById:
    """The broker with this id."""

    id: int


@dataclass(frozen=True, slots=True)
class Controller:
    """The broker that takes cluster changes; use the constant `CONTROLLER`."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition, looked up when unknown."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The coordinator of a group (kind 0) or of a transactional id (kind 1), looked up when unknown."""

    key: str
    kind: int = 0


Target = AnyNode | AnyCoordinator | BrokerById | Controller | Leader | Coordinator
ANY, ANY_BROKER = AnyNode(), AnyNode(serves_itself=True)
ANY_COORDINATOR = AnyCoordinator()
CONTROLLER = Controller()
GROUP, TRANSACTION = 0, 1


@dataclass(frozen=True, slots=True)
class Between(Generic[R]):
    """A request with a restricted range of versions, because not every version can express it.

    A field that an older version lacks needs none of this: its declaration in kohort.wire drops or refuses it.

    Attributes:
        message: The request.
        lowest: The lowest version that requests the same.
        highest: The highest version to use; None: the newest.
        instead: The request for a broker that only knows versions below `lowest`; None: raise an error.
    """

    message: RequestMessage[R]
    lowest: int = 0
    highest: int | None = None
    instead: RequestMessage[R] | None = None


def parse_address(text: str) -> Address:
    """Parse HOST:PORT, [IPv6]:PORT or PROTOCOL://HOST:PORT.

    Raises:
        InvalidInputError: Anything else.
    """
    endpoint = text.strip().rsplit("://", 1)[-1]
    host, colon, port = endpoint.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        example = f": write {endpoint}:9092 for Kafka's port" if endpoint and not colon else ""
        example = ": ports are from 1 to 65535" if port.isdecimal() and host and colon else example
        raise InvalidInputError(f"bootstrap.servers: {text!r} is no HOST:PORT{example}")
    return Address(host, int(port))


def choose_request_version(link: BrokerConnection, wanted: Between[R]) -> tuple[RequestMessage[R], int]:
    """Choose the request and the highest version of it that both the broker of this link and `wanted` allow.

    Raises:
        KafkaError: UNSUPPORTED_VERSION.
    """
    request = wanted.message
    low, high = link.versions.get(request.API_KEY, (0, -1))
    lowest = max(wanted.lowest, request.MIN_VERSION)
    highest = request.MAX_VERSION if wanted.highest is None else min(wanted.highest, request.MAX_VERSION)
    version = min(high, highest)
    if version >= max(low, lowest):
        return request, version
    if wanted.instead is not None and low <= high < lowest:
        return wanted.instead, high
    theirs = f"versions {low} to {high}" if high >= low else "not at all"
    text = f"{type(request).__name__}: {link.address} speaks it {theirs}, this needs {lowest} to {highest}"
    raise error_for(ErrorCode.UNSUPPORTED_VERSION, text)

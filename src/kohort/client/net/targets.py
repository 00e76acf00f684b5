"""Where requests go, and at which versions. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kohort.client.net.connection import Address, Link
from kohort.errors import ErrorCode, InvalidInputError, error_for
from kohort.ids import TopicPartition
from kohort.wire.message import Message, Request

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class AnyNode:
    """Whichever broker is connected and least busy; use the constants `ANY` and `ANY_BROKER`.

    Attributes:
        serves_itself: no coordinator that is apart from the brokers, even if it serves the request for groups.
    """

    serves_itself: bool = False


@dataclass(frozen=True, slots=True)
class AnyCoordinator:
    """Whichever of kohort's coordinators is connected and least busy, where they are apart from the brokers.

    Use the constant `ANY_COORDINATOR`.
    """


@dataclass(frozen=True, slots=True)
class Node:
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


Target = AnyNode | AnyCoordinator | Node | Controller | Leader | Coordinator
ANY, ANY_BROKER = AnyNode(), AnyNode(serves_itself=True)
ANY_COORDINATOR = AnyCoordinator()
CONTROLLER = Controller()
GROUP, TRANSACTION = 0, 1


@dataclass(frozen=True, slots=True)
class Between(Generic[R]):
    """A request that not every version can carry though all its fields could be left out, or that none above one can.

    A field that an older version lacks needs none of this: it is dropped or refused by its declaration in kohort.wire.

    Attributes:
        message: The request.
        lowest: The lowest version that asks for the same.
        highest: The highest version to use; None: the newest.
        instead: What is asked of a broker that only knows versions below `lowest`; None: it is refused.
    """

    message: Request[R]
    lowest: int = 0
    highest: int | None = None
    instead: Request[R] | None = None


def parse_address(text: str) -> Address:
    """HOST:PORT, [IPv6]:PORT or PROTOCOL://HOST:PORT.

    Raises:
        InvalidInputError: anything else.
    """
    place = text.strip().rsplit("://", 1)[-1]
    host, colon, port = place.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInputError(f"bootstrap.servers: {text!r} is no HOST:PORT")
    return Address(host, int(port))


def fitting(link: Link, wanted: Between[R]) -> tuple[Request[R], int]:
    """What goes over a link, and at which version.

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

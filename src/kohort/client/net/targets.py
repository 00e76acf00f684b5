"""Where requests go, and requests that depend on the version negotiated there. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kohort.client.net.links import Address
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class AnyNode:
    """Whichever broker is connected and least busy; use the constant `ANY`."""


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


Target = AnyNode | Node | Controller | Leader | Coordinator
ANY = AnyNode()
CONTROLLER = Controller()
GROUP, TRANSACTION = 0, 1


@dataclass(frozen=True, slots=True)
class Versioned:
    """A request whose content depends on the version that is negotiated.

    Attributes:
        request: The message class, from kohort.wire.
        build: Makes the message for a version.
        highest: The highest version to use, for contents that later versions can't carry.
    """

    request: type[Any]
    build: Callable[[int], Any]
    highest: int | None = None


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

"""Settings of a coordinator over Kafka: `kohort coordinator --set key=value`.

There are three kinds: socket settings, named as a broker's; group settings, named as Kafka's; and the coordinator's
own.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kohort.broker.config.settings import BrokerConfig
from kohort.broker.security.settings import is_security_setting, security_names
from kohort.cluster.coordination.group_service import PLACEMENT_GROUP, SESSION_MS
from kohort.cluster.coordination.placement import CANDIDATE_ID_MAX
from kohort.cluster.journal.journal_partition import REFUSE, SKIP, TOPIC, UNFENCED_RECORDS
from kohort.errors import InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.settings.config import declare_setting, from_properties_many, settings, unknown_key

OF_THE_SOCKET = (
    "advertised.host.name", "advertised.port", "allow.everyone.if.no.acl.found", "allow.insecure.metrics",
    "audit.log.file.bytes", "audit.log.files", "broker.rack", "connections.max.idle.ms", "max.connections",
    "max.connections.per.ip", "metrics.client.ca.location", "metrics.listen", "metrics.tls.location",
    "queued.max.requests", "queued.max.response.bytes", "shutdown.grace.ms",
    "socket.listen.backlog.size", "socket.receive.buffer.bytes", "socket.request.max.bytes",
    "socket.send.buffer.bytes", "super.users",
)  # fmt: skip
"""The broker settings that mean the same for a coordinator."""
OWN_DEFAULTS = {"group.import": "auto"}
"""Defaults of a coordinator over Kafka that differ from a broker's."""
EVERYWHERE = ("", "0.0.0.0", "::")
ID_MIN = 1_000
"""The first generated id: Kafka's brokers are mostly numbered from 0."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """The settings that only coordinators over Kafka have."""

    journal_topic: str = declare_setting(
        "journal.topic", TOPIC, why="the topic of Kafka that keeps groups and their offsets"
    )
    journal_partitions: int = declare_setting(
        "journal.partitions",
        50,
        low=1,
        high=1_000,
        unit="partitions",
        why="of a journal topic that is made: groups are spread over them, and it can't be changed later",
    )
    journal_replication: int = declare_setting(
        "journal.replication.factor",
        3,
        low=1,
        high=100,
        unit="replicas",
        why="of a journal topic that is made; with fewer brokers it gets as many as there are, and the log warns",
    )
    journal_unfenced_records: str = declare_setting(
        UNFENCED_RECORDS,
        REFUSE,
        choices=(REFUSE, SKIP),
        why="what becomes of a shard whose journal has records that no coordinator wrote: it is not served, or without "
        "them",
    )
    journal_answer_ms: int = declare_setting(
        "journal.answer.ms", 5_000, low=100, unit="ms", why="an append that Kafka leaves unanswered is sent again then"
    )
    audit_location: str = declare_setting(
        "audit.log.location",
        "",
        why="a file of this coordinator alone, in a folder that exists: logins, refusals and changes, a line of JSON "
        "each; empty: none is written, because a coordinator has no folder of its own",
    )
    placement_group: str = declare_setting(
        "placement.group",
        PLACEMENT_GROUP,
        why="the group on Kafka in which coordinators without ZooKeeper find each other; nobody else may use it",
    )
    placement_session_ms: int = declare_setting(
        "placement.session.timeout.ms",
        SESSION_MS,
        low=1_000,
        unit="ms",
        why="a coordinator that Kafka, or ZooKeeper, has not heard for so long has lost its shards",
    )


class CoordinatorConfiguration(NamedTuple):
    """A coordinator's complete configuration: its socket, its groups, its own settings, and its listener's security.

    Attributes:
        security: the properties of `broker.security.settings`, which depend on the listener's name.
    """

    socket: BrokerConfig
    groups: GroupConfig
    own: CoordinatorConfig
    security: Mapping[str, Any]


def known_setting_names() -> tuple[str, ...]:
    """Return the names of all settings that `kohort coordinator --set` accepts."""
    return (*settings(CoordinatorConfig), *settings(GroupConfig), *OF_THE_SOCKET)


def parse_settings(properties: Mapping[str, Any]) -> CoordinatorConfiguration:
    """Build a coordinator's configuration from one mapping of properties.

    Raises:
        InvalidInputError: an unknown key (naming the nearest), or a bad value.
    """
    known = known_setting_names()
    security = {key: value for key, value in properties.items() if is_security_setting(key)}
    others = {key: value for key, value in properties.items() if key not in security}
    for key in others:
        if key not in known:
            raise unknown_key(key, (*known, *security_names()))
    given = {**OWN_DEFAULTS, **others}
    broker, groups, own = from_properties_many((BrokerConfig, GroupConfig, CoordinatorConfig), given)
    return CoordinatorConfiguration(broker, groups, own, security)


def advertised_address(config: BrokerConfig, host: str, port: int) -> tuple[str, int]:
    """Return the address that a coordinator listening at `host` and `port` advertises to clients and coordinators.

    Raises:
        InvalidInputError: it listens on all interfaces, and `advertised.host.name` is not set.
    """
    advertised_host = config.advertised_host or host
    if advertised_host in EVERYWHERE:
        raise InvalidInputError(
            f"--listen {host} is everywhere: say where clients and the other coordinators reach this one, as in "
            f"--set advertised.host.name={socket.gethostname()}"
        )
    return advertised_host, config.advertised_port or port


def coordinator_id(chosen: int | None, address: str, brokers: Collection[int]) -> int:
    """Return a coordinator's node id, which no broker of Kafka has.

    Args:
        chosen: the value of --id; None: derive the id from the address, so that a restart there gets the same one.
        address: the advertised address.
        brokers: the ids of Kafka's brokers.

    Raises:
        InvalidInputError: the id is a broker's, or out of range.
    """
    if chosen is not None:
        if chosen in brokers:
            raise InvalidInputError(f"--id {chosen} is one of Kafka's brokers: clients could not tell the two apart")
        if not 0 <= chosen <= CANDIDATE_ID_MAX:
            raise InvalidInputError(f"--id {chosen}: give a number from 0 to {CANDIDATE_ID_MAX}")
        return chosen
    room = CANDIDATE_ID_MAX + 1 - ID_MIN
    first = zlib.crc32(address.encode()) % room
    return next(number for step in range(room) if (number := ID_MIN + (first + step) % room) not in brokers)

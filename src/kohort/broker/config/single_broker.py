"""What a `server.properties` of Apache Kafka says of a cluster, held against this broker: one, without replication.

A setting that says what is so here is taken, one that asks for what can't be had is refused with what to do. Settings
that tune parts which only Kafka has are taken and named in the log (`kafka_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kohort.broker.config.kafka_names import IDLE, IDLE_PREFIXES
from kohort.errors import InvalidInputError

_PLACES = ("listeners", "port", "host.name", "log.dirs", "log.dir")
_ADVERTISED = "advertised.listeners"
_CONTROLLER = "CONTROLLER"
_ANY_HOST = "0.0.0.0"
_UNLIMITED = 2**31 - 1


class Place(NamedTuple):
    """Where a file wants a broker to be.

    Attributes:
        listen: HOST:PORT of the listener for clients; None: the file names none.
        folder: of the data; None: the file names none.
    """

    listen: str | None
    folder: str | None


class Listener(NamedTuple):
    """One of a list of listeners, `NAME://HOST:PORT`."""

    name: str
    host: str
    port: int


def place_in(properties: Mapping[str, Any]) -> tuple[Place, dict[str, Any]]:
    """Where the properties want a broker to be, and the others.

    Raises:
        InvalidInputError: more than one listener or folder, TLS or SASL, or an address that is none.
    """
    rest = {key: value for key, value in properties.items() if key not in _PLACES}
    listen = None
    if properties.get("listeners"):
        one = _the_listener("listeners", properties)
        listen = f"{_bracketed(one.host or _ANY_HOST)}:{one.port}"
    elif "port" in properties:
        listen = f"{_bracketed(str(properties.get('host.name') or _ANY_HOST))}:{properties['port']}"
    name = "log.dirs" if properties.get("log.dirs") else "log.dir"
    folders = _parts(properties.get(name))
    if len(folders) > 1:
        raise InvalidInputError(f"{name}: kohort keeps its data in one folder, not in {len(folders)}; name one of them")
    return Place(listen, folders[0] if folders else None), rest


def own_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that set something here, with what others say of it put under our names.

    Raises:
        InvalidInputError: one asks for what can't be had; the text says what to do.
    """
    for key in _PLACES:
        if key in properties:
            raise InvalidInputError(f"{key} is for the file of kohort broker --config: give address and folder apart")
    for key, check in (_CHECKS | _CHECKS_OF_OURS).items():
        if properties.get(key) is not None:
            problem = check(str(properties[key]).strip())
            if problem:
                raise InvalidInputError(f"{key}={properties[key]}: {problem}")
    own = {key: value for key, value in properties.items() if key not in _CHECKS and not is_idle(key)}
    if properties.get(_ADVERTISED):
        one = _the_listener(_ADVERTISED, properties)
        if one.host == _ANY_HOST:
            raise InvalidInputError(f"{_ADVERTISED}: no client can connect to {_ANY_HOST}; name a host that it can")
        port = one.port or None  # 0: the one that the socket gets
        own |= {"advertised.host.name": one.host or None, "advertised.port": port}
    return own


def is_idle(key: str) -> bool:
    """Whether a name is one of Kafka's that sets nothing here."""
    return key in IDLE or key.startswith(IDLE_PREFIXES)


def idle_text(properties: Mapping[str, Any]) -> str:
    """The warning of properties that set nothing here; empty when each of them sets something."""
    idle = sorted(key for key, value in properties.items() if value is not None and is_idle(key))
    return f"settings of Kafka's that kohort's broker ignores: {', '.join(idle)}" if idle else ""


def known_facts() -> tuple[str, ...]:
    """The names of what `own_properties` and `place_in` understand besides our own settings."""
    return (*_PLACES, *_CHECKS, *IDLE)


def _the_listener(key: str, properties: Mapping[str, Any]) -> Listener:
    """The listener for clients among those that a setting lists: what is left without the controllers'."""
    controllers = {*_parts(properties.get("controller.listener.names")), _CONTROLLER}
    found = [_listener(key, text) for text in _parts(properties[key])]
    ours = [one for one in found if one.name not in controllers]
    if len(ours) != 1:
        names = ", ".join(one.name for one in ours) or "none"
        raise InvalidInputError(f"{key}: kohort has one listener for clients, and here are {names}; leave one")
    protocols = dict(part.partition(":")[::2] for part in _parts(properties.get("listener.security.protocol.map")))
    protocol = protocols.get(ours[0].name, ours[0].name)
    if protocol != "PLAINTEXT":
        raise InvalidInputError(
            f"{key}: {ours[0].name} is {protocol}, and kohort's broker has no TLS and no SASL; use a PLAINTEXT listener"
        )
    return ours[0]


def _listener(key: str, text: str) -> Listener:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInputError(f"{key}: {text} is no NAME://HOST:PORT")
    return Listener(name.strip().upper(), host.removeprefix("[").removesuffix("]"), int(port))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _parts(value: Any) -> list[str]:
    """The words of a list, which a file writes with commas between."""
    words = value if isinstance(value, (list, tuple)) else str(value or "").split(",")
    return [str(word).strip() for word in words if str(word).strip()]


_Check = Callable[[str], str | None]
"""What is wrong with a value, and what to do about it; None when it can be had."""


def _one_copy(value: str) -> str | None:
    if value == "1":
        return None
    return f"kohort is one broker without replication, {value} can't be had; remove it or set 1"


def _roles(value: str) -> str | None:
    if set(_parts(value)) in ({"broker"}, {"broker", "controller"}):
        return None
    return "kohort broker is a broker, with nothing to control; remove it or set broker"


def _alone(value: str) -> str | None:
    if len(_parts(value)) < 2:
        return None
    return "kohort is one node without a quorum; remove it, or name this node alone"


def _nothing(why: str) -> _Check:
    def check(value: str) -> str | None:
        return f"{why}; remove it" if value else None

    return check


def _only(word: str, why: str) -> _Check:
    def check(value: str) -> str | None:
        return None if value.lower() == word else f"{why}; remove it or set {word}"

    return check


def _taken(_value: str) -> str | None:
    """Looked at with what it belongs to: `_the_listener`."""
    return None


_JAVA = _nothing("kohort loads no Java classes, so what this would allow or forbid is not looked at")
_CHECKS: dict[str, _Check] = {
    "offsets.topic.replication.factor": _one_copy,
    "transaction.state.log.replication.factor": _one_copy,
    "transaction.state.log.min.isr": _one_copy,
    "share.coordinator.state.topic.replication.factor": _one_copy,
    "share.coordinator.state.topic.min.isr": _one_copy,
    "process.roles": _roles,
    "controller.quorum.voters": _alone,
    "controller.quorum.bootstrap.servers": _alone,
    "controller.listener.names": _taken,
    "listener.security.protocol.map": _taken,
    _ADVERTISED: _taken,
    "authorizer.class.name": _nothing("kohort has no authorizer, everyone who can connect may do everything"),
    "alter.config.policy.class.name": _JAVA,
    "create.topic.policy.class.name": _JAVA,
    "client.quota.callback.class": _JAVA,
    "config.providers": _nothing("kohort takes values as they stand, and no ${…}"),
    "log.cleaner.enable": _only("true", "kohort always compacts topics that are to be compacted"),
    "remote.log.storage.system.enable": _only("false", "kohort has no tiered storage"),
    "transaction.two.phase.commit.enable": _only("false", "kohort has no transactions of two phases"),
    "max.connection.creation.rate": _only(str(_UNLIMITED), "kohort has no limit of new connections by time"),
    "max.connections.per.ip.overrides": _nothing("kohort has one limit for all hosts, max.connections.per.ip"),
}
_CHECKS_OF_OURS: dict[str, _Check] = {"default.replication.factor": _one_copy, "min.insync.replicas": _one_copy}
"""Settings that the broker has itself, with values that no start can bring about."""

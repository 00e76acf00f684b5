"""Listeners as Kafka's properties name them: `listeners`, `advertised.listeners`, `listener.security.protocol.map`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from kohort.errors import InvalidInputError
from kohort.settings.config import parse_listen_address

ANY_HOST = "0.0.0.0"
PROTOCOL_MAP, ADVERTISED, CONTROLLERS = (
    "listener.security.protocol.map", "advertised.listeners", "controller.listener.names",
)  # fmt: skip
_CONTROLLER = "CONTROLLER"


class SecurityProtocol(Enum):
    """The protocol below Kafka's on a listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Whether clients log in."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class ListenerAddress(NamedTuple):
    """One entry of a list of listeners, `NAME://HOST:PORT`."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{bracketed_host(self.host)}:{self.port}"


def split_comma_list(value: Any) -> list[str]:
    """Split a comma-separated list."""
    words = value if isinstance(value, (list, tuple)) else str(value or "").split(",")
    return [str(word).strip() for word in words if str(word).strip()]


def bracketed_host(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def parse_listener_address(key: str, text: str) -> ListenerAddress:
    """Return the parts of `NAME://HOST:PORT`.

    Args:
        key: the property that has the text, for errors.
        text: one entry of the list.

    Raises:
        InvalidInputError: the text has another form.
    """
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdecimal() or int(port) > 65535:
        ports = ": ports are from 0 to 65535" if separator and colon and port.isdecimal() else ""
        raise InvalidInputError(f"{key}: {text} is no NAME://HOST:PORT{ports}")
    return ListenerAddress(name.strip().upper(), host.removeprefix("[").removesuffix("]"), int(port))


def client_listeners(key: str, properties: Mapping[str, Any]) -> list[ListenerAddress]:
    """Return the listeners for clients in a property, without the controllers' listeners.

    Raises:
        InvalidInputError: an entry has another form, or there is none for clients, or a name comes twice.
    """
    controllers = {name.upper() for name in split_comma_list(properties.get(CONTROLLERS))} | {_CONTROLLER}
    found = [parse_listener_address(key, text) for text in split_comma_list(properties[key])]
    ours = [listener for listener in found if listener.name not in controllers]
    if not ours:
        raise InvalidInputError(f"{key}: there is no listener for clients")
    _refuse_twice(key, ours)
    return ours


def _refuse_twice(key: str, listeners: list[ListenerAddress]) -> None:
    names = [listener.name for listener in listeners]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInputError(f"{key}: the name {name} comes twice; each listener needs a name of its own")


def security_protocol_of(name: str, properties: Mapping[str, Any]) -> SecurityProtocol:
    """Return the security protocol of a listener, by `listener.security.protocol.map`, else by its name.

    Raises:
        InvalidInputError: neither names a protocol.
    """
    protocols = {
        listener.strip().upper(): protocol.strip().upper()
        for listener, _, protocol in (entry.partition(":") for entry in split_comma_list(properties.get(PROTOCOL_MAP)))
    }
    protocol = protocols.get(name, name)
    try:
        return SecurityProtocol(protocol)
    except ValueError:
        known = ", ".join(member.value for member in SecurityProtocol)
        raise InvalidInputError(
            f"{PROTOCOL_MAP}: {name} is {protocol}, which is none of {known}; add {name}:PROTOCOL to the map"
        ) from None


def parse_listener_addresses(listen: str) -> list[ListenerAddress]:
    """Return the listeners of `HOST:PORT`, or of `NAME://HOST:PORT`, or of a list of the latter.

    Raises:
        InvalidInputError: the text has another form, or a name comes twice.
    """
    if "://" not in listen:
        host, port = parse_listen_address(listen)
        return [ListenerAddress(SecurityProtocol.PLAINTEXT.value, host, port)]
    found = [parse_listener_address("listen", text) for text in split_comma_list(listen)]
    _refuse_twice("listen", found)
    return [listener._replace(host=listener.host or "127.0.0.1") for listener in found]


def advertised_addresses(
    listeners: list[ListenerAddress], properties: Mapping[str, Any]
) -> dict[str, tuple[str | None, int | None]]:
    """Return the advertised host and port of each listener by name; a part that is not configured is None.

    Raises:
        InvalidInputError: `advertised.listeners` names an unknown listener or an address that no client can use.
    """
    if not properties.get(ADVERTISED):
        return {}
    advertised = client_listeners(ADVERTISED, properties)
    names = {listener.name for listener in listeners}
    found: dict[str, tuple[str | None, int | None]] = {}
    for listener in advertised:
        if listener.host == ANY_HOST:
            raise InvalidInputError(f"{ADVERTISED}: no client can connect to {ANY_HOST}; name a host that it can")
        name = listener.name
        if name not in names:
            if len(listeners) > 1 or len(advertised) > 1:
                raise InvalidInputError(f"{ADVERTISED}: there is no listener {name}; there are {', '.join(names)}")
            (name,) = names
        found[name] = listener.host or None, listener.port or None
    return found

"""The broker's listeners: their sockets, and what their settings demand of clients.

A listener that is reachable from other machines and lets everyone in is refused, unless the operator says so.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from kohort.broker.security.addresses import (
    ListenerAddress,
    SecurityProtocol,
    advertised_addresses,
    parse_listener_addresses,
    security_protocol_of,
)
from kohort.broker.security.listener_socket import ListenerSocket, bind_socket
from kohort.broker.security.login import SaslServer
from kohort.broker.security.mechanisms import BearerExchange, Credentials, PlainExchange, SaslExchange, ScramExchange
from kohort.broker.security.pending import PendingLogins
from kohort.broker.security.principals import PrincipalMapping
from kohort.broker.security.settings import (
    INSECURE,
    OAUTHBEARER,
    PLAIN,
    PREFIX,
    SASL_MECHANISMS,
    SecurityConfig,
    allows_insecure,
    security_config,
)
from kohort.broker.security.tls import ServerTls
from kohort.broker.security.tokens import TokenVerifier
from kohort.errors import InvalidInputError
from kohort.settings.jaas import parse_jaas_options

log = logging.getLogger("kohort.broker")

_CLIENT_AUTH = "ssl.client.auth"
NONE_ALTERED: Mapping[str, Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class ListenerPlan:
    """The configuration of one listener, before its socket is opened.

    Attributes:
        address: name, host and port.
        protocol: what it speaks.
        config: its settings.
        by_mechanism: its settings for each SASL mechanism; empty without SASL.
        advertised: host and port for clients; what is None is found out.
    """

    address: ListenerAddress
    protocol: SecurityProtocol
    config: SecurityConfig
    by_mechanism: Mapping[str, SecurityConfig]
    advertised: tuple[str | None, int | None]

    @property
    def authenticates(self) -> bool:
        """Whether every client of this listener has to prove who it is."""
        return self.protocol.uses_sasl or (self.protocol.uses_tls and self.config.client_auth == "required")


def planned_listeners(listen: str, properties: Mapping[str, Any]) -> list[ListenerPlan]:
    """Return the listeners that an address and the broker's properties describe.

    Args:
        listen: HOST:PORT, or a list of NAME://HOST:PORT.
        properties: all of the broker's properties.

    Raises:
        InvalidInputError: an address or a setting is invalid.
    """
    addresses = parse_listener_addresses(listen)
    advertised = advertised_addresses(addresses, properties)
    plans = []
    for address in addresses:
        protocol = security_protocol_of(address.name, properties)
        config = security_config(properties, address.name) if protocol.uses_tls or protocol.uses_sasl else _PLAIN
        if protocol is SecurityProtocol.SASL_SSL and f"{PREFIX}{address.name.lower()}.{_CLIENT_AUTH}" not in properties:
            config = replace(config, client_auth="none")
        by_mechanism = _by_mechanism(address.name, config, properties) if protocol.uses_sasl else {}
        plans.append(ListenerPlan(address, protocol, config, by_mechanism, advertised.get(address.name, (None, None))))
    return plans


_PLAIN = SecurityConfig()


def _by_mechanism(name: str, config: SecurityConfig, properties: Mapping[str, Any]) -> dict[str, SecurityConfig]:
    if "GSSAPI" in config.mechanisms:
        raise InvalidInputError(
            f"listener {name}: sasl.enabled.mechanisms: kohort's broker has no Kerberos (GSSAPI); use "
            f"{', '.join(SASL_MECHANISMS)}"
        )
    for mechanism in config.mechanisms:
        if mechanism not in SASL_MECHANISMS:
            raise InvalidInputError(
                f"listener {name}: sasl.enabled.mechanisms: {mechanism} is none of {', '.join(SASL_MECHANISMS)}"
            )
    if not config.mechanisms:
        raise InvalidInputError(f"listener {name}: sasl.enabled.mechanisms is empty")
    return {mechanism: security_config(properties, name, mechanism) for mechanism in config.mechanisms}


def plain_passwords(name: str, config: SecurityConfig) -> dict[str, str] | None:
    """Return PLAIN's users with their passwords from the JAAS options of a listener; None if it has none.

    Raises:
        InvalidInputError: the text is no login module of PLAIN.
    """
    if config.jaas_config is None:
        return None
    try:
        options = parse_jaas_options(config.jaas_config)
    except InvalidInputError as error:
        raise InvalidInputError(f"listener {name}: {error.message}") from None
    if "PlainLoginModule" not in config.jaas_config.split()[0]:
        raise InvalidInputError(
            f"listener {name}: sasl.jaas.config of PLAIN must be a PlainLoginModule; name the mechanism of others: "
            f"{PREFIX}{name.lower()}.scram-sha-256.sasl.jaas.config"
        )
    prefix = "user_"
    return {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}


def open_listeners(
    listen: str, properties: Mapping[str, Any], altered: Mapping[str, Mapping[str, str]] = NONE_ALTERED
) -> list[ListenerSocket]:
    """Bind the sockets of all listeners, and load their certificates. None accepts connections yet.

    Args:
        listen: HOST:PORT, or a list of NAME://HOST:PORT.
        properties: all of the broker's properties.
        altered: settings of stores that requests have changed, by the listener's name in lower case.

    Raises:
        InvalidInputError: a setting is invalid, or a listener beyond loopback would let everyone in.
        KafkaError: an address is in use or not local.
    """
    insecure = allows_insecure(properties)
    listeners: list[ListenerSocket] = []
    try:
        for plan in planned_listeners(listen, properties):
            tls = None
            if plan.protocol.uses_tls:
                mapping = PrincipalMapping(plan.config.principal_mapping_rules)
                name = plan.address.name
                tls = ServerTls(name, plan.config, mapping, altered.get(name.lower(), {}))
            sock = bind_socket(plan.address.host, plan.address.port)
            listener = ListenerSocket(
                plan.address.name, sock, plan.protocol.value, *plan.advertised, tls=tls,
                login_timeout_ms=plan.config.login_timeout_ms,
            )  # fmt: skip
            listeners.append(listener)
            if not (plan.authenticates or insecure):
                _refuse_beyond_loopback(plan, listener)
    except BaseException:
        for listener in listeners:
            listener.sock.close()
        raise
    return listeners


def _refuse_beyond_loopback(plan: ListenerPlan, listener: ListenerSocket) -> None:
    host = listener.host.partition("%")[0]
    if listener.sock.family not in (socket.AF_INET, socket.AF_INET6) or ipaddress.ip_address(host).is_loopback:
        return
    secret = "encrypted, but " if plan.protocol.uses_tls else ""
    raise InvalidInputError(
        f"{plan.address.host}:{plan.address.port} can be reached from other machines, and the listener "
        f"{plan.address.name} is {secret}open to everyone who can connect. Ways to go on: --tls FILE with --client-ca "
        "FILE (ssl.client.auth=required: clients show certificates), --sasl FILE (a listener of SASL_SSL or "
        f"SASL_PLAINTEXT: users log in), or --insecure ({INSECURE}=true: everyone may do everything)"
    )


def sasl_servers(
    listen: str, properties: Mapping[str, Any], store: Credentials, logins: PendingLogins
) -> dict[str, SaslServer]:
    """Return the SASL login servers of all SASL listeners, by the listener's name.

    Raises:
        InvalidInputError: a setting is invalid or missing.
    """
    servers = {}
    for plan in planned_listeners(listen, properties):
        if plan.protocol.uses_sasl:
            name = plan.address.name
            exchanges = {
                mechanism: _exchange(name, mechanism, config, store) for mechanism, config in plan.by_mechanism.items()
            }
            servers[name] = SaslServer(name, plan.by_mechanism, exchanges, logins)
            if PLAIN in exchanges and not plan.protocol.uses_tls:
                log.warning(
                    "[listener %s] passwords of SASL/PLAIN logins cross the network unencrypted: use SASL_SSL", name
                )
    return servers


def _exchange(name: str, mechanism: str, config: SecurityConfig, store: Credentials) -> Callable[[], SaslExchange]:
    """Return a function that creates the server side of one SASL exchange with this mechanism.

    Raises:
        InvalidInputError: a setting is invalid or missing.
    """
    if mechanism == PLAIN:
        return partial(PlainExchange, plain_passwords(name, config), store)
    if mechanism == OAUTHBEARER:
        try:
            return partial(BearerExchange, TokenVerifier(config))
        except InvalidInputError as error:
            raise InvalidInputError(f"listener {name}: {error.message}") from None
    return partial(ScramExchange, mechanism, store)


def listener_list_text(listeners: Sequence[ListenerSocket]) -> str:
    """Return the listeners with their actual ports, in the form of `listeners`."""
    return ",".join(str(ListenerAddress(listener.name, listener.host, listener.port)) for listener in listeners)

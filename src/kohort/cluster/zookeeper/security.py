"""Settings of secure connections to ZooKeeper, and what follows from them: who logs in, and who may change the nodes.

| settings | ZooKeeper knows this process as | nodes are created for |
|---|---|---|
| none | nobody | everyone, with a warning |
| `zookeeper.auth.scheme=digest` | the user, by a digest of name and password | that user |
| `zookeeper.auth.scheme=sasl` | the user of SASL DIGEST-MD5, whom ZooKeeper itself knows | that user |
| `zookeeper.ssl.keystore.location` | the subject of the certificate | that subject |

Names are Kafka's where Kafka has one (`zookeeper.ssl.…`). All coordinators of one path must be the same user.
"""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kohort.errors import InvalidInputError
from kohort.settings.config import declare_setting, from_properties

NO_LOGIN, DIGEST, SASL = "none", "digest", "sasl"
CHECKS_HOSTS = "HTTPS"
"""The value of `zookeeper.ssl.endpoint.identification.algorithm` with which the certificate must name the host."""


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """The settings of connections to ZooKeeper."""

    scheme: str = declare_setting(
        "zookeeper.auth.scheme",
        NO_LOGIN,
        choices=(NO_LOGIN, DIGEST, SASL),
        why="how to log in: digest proves a name and password that ZooKeeper's nodes carry, sasl (DIGEST-MD5) those of "
        "a user that the server knows",
    )
    username: str = declare_setting("zookeeper.auth.username", "", why="who logs in")
    password: str = declare_setting("zookeeper.auth.password", "", why="the password of who logs in; give it in a file")
    uses_tls: bool = declare_setting("zookeeper.ssl.client.enable", False, why="connections are encrypted with TLS")
    truststore: str = declare_setting(
        "zookeeper.ssl.truststore.location",
        "",
        why="a PEM file of the authorities that may have issued the servers' certificates, beside the system's",
    )
    keystore: str = declare_setting(
        "zookeeper.ssl.keystore.location",
        "",
        why="a PEM file with this process's private key and certificate, where servers ask for one",
    )
    keystore_password: str = declare_setting(
        "zookeeper.ssl.keystore.password", "", why="the password of the private key"
    )
    identification: str = declare_setting(
        "zookeeper.ssl.endpoint.identification.algorithm",
        CHECKS_HOSTS,
        choices=(CHECKS_HOSTS, ""),
        why="whether a server's certificate must name the host of the address; empty: any name will do",
    )
    sets_acl: bool = declare_setting(
        "zookeeper.set.acl",
        True,
        why="nodes are created for the user alone who logs in; without a login they are open to everyone",
    )

    @property
    def authenticates(self) -> bool:
        """Whether ZooKeeper knows who this process is."""
        return self.scheme != NO_LOGIN or bool(self.keystore)

    @property
    def user(self) -> str:
        """The ZooKeeper user in words, for messages: by login, by certificate, or nobody."""
        if self.scheme != NO_LOGIN:
            return f"{self.scheme} user {self.username}"
        return f"the certificate in {self.keystore}" if self.keystore else "nobody"


class ZooKeeperAddress(NamedTuple):
    """A ZooKeeper, and how to connect to it.

    Attributes:
        servers: HOST:PORT[,HOST:PORT…][/PATH].
        config: the settings of the connections.
    """

    servers: str
    config: ZooKeeperConfig = ZooKeeperConfig()


def zookeeper_address(servers: str, properties: Mapping[str, Any]) -> ZooKeeperAddress:
    """Return a ZooKeeper address with the connection settings in these properties.

    Raises:
        InvalidInputError: a property is unknown or invalid, one is missing that another needs, or a file can't be used.
    """
    config = from_properties(ZooKeeperConfig, properties)
    if config.scheme != NO_LOGIN and not (config.username and config.password):
        raise InvalidInputError(
            f"zookeeper.auth.scheme={config.scheme} needs zookeeper.auth.username and zookeeper.auth.password"
        )
    if config.scheme == NO_LOGIN and (config.username or config.password):
        raise InvalidInputError(f"zookeeper.auth.username needs zookeeper.auth.scheme={DIGEST} or {SASL}")
    if config.scheme == SASL and importlib.util.find_spec("puresasl") is None:
        raise InvalidInputError("zookeeper.auth.scheme=sasl needs pure-sasl: pip install 'kohort[zookeeper]'")
    if (config.truststore or config.keystore) and not config.uses_tls:
        raise InvalidInputError("zookeeper.ssl.… settings need zookeeper.ssl.client.enable=true")
    if config.uses_tls:
        tls_context(config)
    return ZooKeeperAddress(servers, config)


def tls_context(config: ZooKeeperConfig) -> ssl.SSLContext:
    """Return the context that kazoo makes of the settings; its files are read.

    Raises:
        InvalidInputError: a file can't be used.
    """
    context = ssl.create_default_context()
    context.check_hostname = config.identification == CHECKS_HOSTS
    for name, path in (("truststore", config.truststore), ("keystore", config.keystore)):
        if path and not Path(path).is_file():
            raise InvalidInputError(f"zookeeper.ssl.{name}.location: there is no file {path}")
    try:
        if config.truststore:
            context.load_verify_locations(config.truststore)
        if config.keystore:
            context.load_cert_chain(config.keystore, password=lambda: config.keystore_password)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        text = f"zookeeper.ssl.…: PEM files are needed (authorities; key and certificate): {reason}"
        raise InvalidInputError(text) from None
    return context

"""`kohort broker`: a broker that serves until it is stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import UsageError
from kohort.cli.common import assignments, properties_of
from kohort.cli.output import print_note
from kohort.io.platforms import require_posix

if TYPE_CHECKING:  # the broker is imported by the command that needs it
    from kohort.broker.run import Beside
    from kohort.broker.security.development import DevelopmentFiles
    from kohort.cluster.zookeeper.security import ZooKeeperAddress

_ADVERTISED = "advertised.listeners"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """The options about security."""

    tls: Path | None = None
    """A PEM file of the broker's private key and certificates: connections are encrypted."""

    client_ca: Path | None = None
    """A PEM file of authorities: clients must show a certificate of theirs. Needs --tls."""

    sasl: Path | None = None
    """A file of users, NAME=PASSWORD in each line: clients must log in, by SCRAM, or by PLAIN over TLS."""

    secure: Path | None = None
    """A folder for tests and demos, where a certificate, a user and clients' properties are made if missing: --tls and
    --sasl in one step."""

    insecure: Annotated[bool, Parameter(negative="")] = False
    """Serve everyone without a login, also at an address that other machines can reach."""

    def applied(
        self, listen: str, properties: dict[str, Any], files: DevelopmentFiles | None
    ) -> tuple[str, dict[str, Any]]:
        """Return the listener and the properties with these options. `files` are those of --secure.

        Raises:
            UsageError: options do not fit together.
        """
        if self.client_ca is not None and self.tls is None:
            raise UsageError("--client-ca needs --tls: certificates are shown over TLS only")
        if files is not None and (self.tls or self.sasl):
            raise UsageError("--secure makes a certificate and a user: leave --tls and --sasl out")
        chosen: dict[str, Any] = {} if files is None else {**files.broker_properties()}
        if self.tls is not None:
            chosen["ssl.keystore.location"] = str(self.tls)
        if self.client_ca is not None:
            chosen |= {"ssl.truststore.location": str(self.client_ca), "ssl.client.auth": "required"}
        if self.sasl is not None:
            chosen["sasl.users.location"] = str(self.sasl)
            if self.tls is not None:
                chosen["sasl.enabled.mechanisms"] = "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN"
        if self.insecure:
            chosen["allow.insecure.listeners"] = "true"
        uses_tls = self.tls is not None or files is not None
        uses_sasl = self.sasl is not None or files is not None
        if (uses_tls or uses_sasl) and "://" not in listen:
            protocol = f"SASL_{'SSL' if uses_tls else 'PLAINTEXT'}" if uses_sasl else "SSL"
            if protocol == "SASL_SSL" and self.client_ca is not None:
                chosen[f"listener.name.{protocol.lower()}.ssl.client.auth"] = "required"
            listen = f"{protocol}://{listen}"
        return listen, {**chosen, **properties}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ZooKeeperOptions:
    """The options about ZooKeeper."""

    zookeeper: str | None = None
    """HOST:PORT[,…]/chroot that shows this broker, its topics, and the owners and offsets of push groups. One broker
    uses the path alone; its data folder is authoritative."""

    zookeeper_config: Path | None = None
    """A file of properties for secure connections to ZooKeeper: zookeeper.auth.scheme, zookeeper.ssl.client.enable …"""

    def zookeeper_address(self) -> ZooKeeperAddress | None:
        """Return where ZooKeeper is and how to log in there; None: it is not used.

        Raises:
            UsageError: a line of the file is no property, or there is a file and no address.
            InvalidInputError: a property is unknown or invalid.
        """
        if self.zookeeper is None:
            if self.zookeeper_config is not None:
                raise UsageError("--zookeeper-config needs --zookeeper HOST:PORT[,…]/chroot")
            return None
        from kohort.cluster.zookeeper.security import zookeeper_address

        return zookeeper_address(self.zookeeper, properties_of(self.zookeeper_config) if self.zookeeper_config else {})


_OPEN = SecurityOptions()
_WITHOUT_ZOOKEEPER = ZooKeeperOptions()


def broker(
    *,
    data: Path | None = None,
    listen: str | None = None,
    config: Path | None = None,
    security: SecurityOptions = _OPEN,
    zookeeper: ZooKeeperOptions = _WITHOUT_ZOOKEEPER,
    metrics_listen: str | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
) -> int:
    """Serve as a Kafka broker with real consumer groups. Ends cleanly with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT` once clients can connect. --config accepts a server.properties of Apache Kafka for
    one broker. Its listeners and log.dirs are used; unsupported settings (a second replica) are refused. An address
    that other machines can reach needs --tls with --client-ca, --sasl, --secure or --insecure.

    Args:
        data: the folder that keeps topics and groups; created if missing. Else log.dirs of the configuration.
        listen: HOST:PORT, or NAME://HOST:PORT[,…]; port 0 picks a free one. Else the configuration's listeners, else
            127.0.0.1:9092.
        config: a file of broker, topic and group properties, under Kafka's names.
        metrics_listen: HOST:PORT where Prometheus reads the broker's metrics; the property metrics.listen.
        set_: one property as key=value, over the file's; may be given again.
    """
    require_posix("kohort broker")
    from kohort.broker.config.settings import broker_configs
    from kohort.broker.config.single_broker import place_in
    from kohort.broker.run import LISTEN_DEFAULT, run_broker
    from kohort.broker.security.listeners import planned_listeners
    from kohort.errors import InvalidInputError

    of_file, chosen = properties_of(config) if config else {}, assignments(set_)
    if listen is not None and _ADVERTISED in of_file and _ADVERTISED not in chosen:
        print_note(f"{_ADVERTISED} of {config} is left out, as --listen is given; --set {_ADVERTISED}=… would keep it")
        del of_file[_ADVERTISED]
    if listen is not None:
        of_file.pop("listeners", None)
    properties = {**of_file, **chosen}
    if metrics_listen is not None:
        properties["metrics.listen"] = metrics_listen
    try:
        place, properties = place_in(properties)
        listen = listen or place.listen or LISTEN_DEFAULT
        files = None if security.secure is None else _development_files(security.secure, listen, properties)
        listen, properties = security.applied(listen, properties, files)
        broker_configs(properties)
        planned_listeners(listen, properties)
        address = zookeeper.zookeeper_address()
        beside = None if address is None else _in_zookeeper(address)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    folder = data or (Path(place.folder) if place.folder else None)
    if folder is None:
        raise UsageError("say where topics and groups are kept: --data DIR, or log.dirs in the configuration")
    return run_broker(listen, folder, properties, beside, None if files is None else files.write_client_files)


def _development_files(folder: Path, listen: str, properties: dict[str, Any]) -> DevelopmentFiles:
    from kohort.broker.security.addresses import addresses_of, advertised_of
    from kohort.broker.security.development import development_files

    addresses = addresses_of(listen)
    hosts = {address.host for address in addresses} | {str(properties.get("advertised.host.name") or "")}
    hosts |= {host or "" for host, _ in advertised_of(addresses, properties).values()}
    return development_files(folder, hosts)


def _in_zookeeper(address: ZooKeeperAddress) -> Beside:
    from kohort.cluster.zookeeper.shown import BrokerInZooKeeper

    return BrokerInZooKeeper(address)

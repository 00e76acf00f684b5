"""`kohort broker` and `kohort zookeeper`: servers that run until they are stopped."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import (
    EndingSignals,
    MetricsOptions,
    SecurityOptions,
    ZooKeeperOptions,
    listen_address,
    parse_set_options,
    read_client_properties,
    warn_secret_arguments,
)
from kohort.cli.output import print_note
from kohort.errors import InvalidInputError
from kohort.io.platforms import require_posix

if TYPE_CHECKING:  # the broker is imported by the command that needs it
    from kohort.broker.run import BrokerRegistrar
    from kohort.broker.security.development import DevelopmentFiles
    from kohort.cluster.zookeeper.security import ZooKeeperAddress

_ADVERTISED = "advertised.listeners"


_METRICS = MetricsOptions()
_OPEN = SecurityOptions()
_WITHOUT_ZOOKEEPER = ZooKeeperOptions()


def broker(
    *,
    data: Path | None = None,
    listen: str | None = None,
    config: Path | None = None,
    security: SecurityOptions = _OPEN,
    zookeeper: ZooKeeperOptions = _WITHOUT_ZOOKEEPER,
    metrics: MetricsOptions = _METRICS,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
) -> int:
    """Serve as a Kafka broker with real consumer groups. Ends cleanly with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT` once clients can connect. --config accepts a server.properties of Apache Kafka for
    one broker. Its listeners and log.dirs are used; unsupported settings (a second replica) are refused. An address
    that other machines can reach needs --tls with --client-ca, --sasl, --secure or --insecure.

    Args:
        data: The folder that keeps topics and groups; created if missing. Else log.dirs of the configuration.
        listen: HOST:PORT, or NAME://HOST:PORT[,…]; port 0 picks a free one. Else the configuration's listeners, else
            127.0.0.1:9092.
        config: A file of broker, topic and group properties, under Kafka's names.
        set_: One property as key=value, over the file's; may be given again.
    """
    require_posix("kohort broker")
    from kohort.broker.config.settings import broker_configs
    from kohort.broker.config.single_broker import split_location
    from kohort.broker.run import LISTEN_DEFAULT, run_broker
    from kohort.broker.security.listeners import planned_listeners
    from kohort.errors import InvalidInputError

    of_file, chosen = read_client_properties(config) if config else {}, parse_set_options(set_)
    warn_secret_arguments(chosen, "write it into the file of --config")
    if listen is not None and _ADVERTISED in of_file and _ADVERTISED not in chosen:
        print_note(f"{_ADVERTISED} of {config} is left out, as --listen is given; --set {_ADVERTISED}=… would keep it")
        del of_file[_ADVERTISED]
    if listen is not None:
        of_file.pop("listeners", None)
    properties = {**of_file, **chosen}
    properties |= metrics.to_properties()
    try:
        place, properties = split_location(properties)
        listen = listen or place.listen or LISTEN_DEFAULT
        files = None if security.secure is None else _development_files(security.secure, listen, properties)
        listen, properties = security.apply_to_listener(listen, properties, files)
        broker_configs(properties)
        planned_listeners(listen, properties)
        address = zookeeper.zookeeper_address()
        registrar = None if address is None else _in_zookeeper(address)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    folder = data or (Path(place.folder) if place.folder else None)
    if folder is None:
        raise UsageError("say where topics and groups are kept: --data FOLDER, or log.dirs in the configuration")
    return run_broker(listen, folder, properties, registrar, None if files is None else _announced(files))


def _announced(files: DevelopmentFiles) -> Callable[[str], None]:
    """Return a function that writes the client configuration files for a broker's address, and prints their folder."""
    from kohort.broker.security.development import KOHORT, USER

    def write(address: str) -> None:
        files.write_client_files(address)
        print_note(
            f"--secure: the certificates, the user {USER}, its password and clients' properties are in {files.folder}; "
            f"try: kohort topics list --command-config {shlex.quote(str(files.folder / KOHORT))}"
        )

    return write


def _development_files(folder: Path, listen: str, properties: dict[str, Any]) -> DevelopmentFiles:
    from kohort.broker.security.addresses import advertised_addresses, parse_listener_addresses
    from kohort.broker.security.development import development_files

    addresses = parse_listener_addresses(listen)
    hosts = {address.host for address in addresses} | {str(properties.get("advertised.host.name") or "")}
    hosts |= {host or "" for host, _ in advertised_addresses(addresses, properties).values()}
    return development_files(folder, hosts)


def _in_zookeeper(address: ZooKeeperAddress) -> BrokerRegistrar:
    from kohort.cluster.zookeeper.shown import BrokerInZooKeeper

    return BrokerInZooKeeper(address)


def zookeeper(
    *,
    listen: str = "127.0.0.1:2181",
    data: Path | None = None,
    insecure: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """A real ZooKeeper, from the jars that PySpark brings; ends with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT` once clients can connect.

    Args:
        listen: HOST:PORT to listen on; port 0 picks a free one.
        data: The folder of its data; a temporary one when not given.
        insecure: Let everyone read and change all that it has, also at an address that other machines can reach.
    """
    require_posix("kohort zookeeper")
    from kohort.zookeeper import ZooKeeper, check_zookeeper_access

    host, port = listen_address(listen)
    ended = EndingSignals()
    try:
        check_zookeeper_access(host, port, insecure, "--insecure")
        server = ZooKeeper(host, port, data, insecure=insecure)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    with server:
        print(f"ready {server.address}", flush=True)
        ended.wait()
    return DONE

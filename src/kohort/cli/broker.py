"""`kohort broker`: a broker that serves until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kohort.cli.app import UsageError
from kohort.cli.common import assignments, properties_of
from kohort.cli.output import note

if TYPE_CHECKING:  # the broker is imported by the command that needs it
    from kohort.broker.run import Beside

_ADVERTISED = "advertised.listeners"


def broker(
    *,
    data: Path | None = None,
    listen: str | None = None,
    config: Path | None = None,
    zookeeper: str | None = None,
    metrics_listen: str | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
) -> int:
    """Serve as a Kafka broker with real consumer groups. Ends cleanly with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT` once clients can connect. --config accepts a server.properties of Apache Kafka for
    one broker. Its listeners and log.dirs are used; unsupported settings (a second replica, TLS) are refused.

    Args:
        data: the folder that keeps topics and groups; created if missing. Else log.dirs of the configuration.
        listen: HOST:PORT; port 0 picks a free one. Else the configuration's listeners, else 127.0.0.1:9092.
        config: a file of broker, topic and group properties, under Kafka's names.
        zookeeper: HOST:PORT[,…]/chroot that shows this broker, its topics, and the owners and offsets of push groups.
            One broker uses the path alone; its data folder is authoritative.
        metrics_listen: HOST:PORT where Prometheus reads the broker's metrics; the property metrics.listen.
        set_: one property as key=value, over the file's; may be given again.
    """
    from kohort.broker.config.settings import broker_configs
    from kohort.broker.config.single_broker import place_in
    from kohort.broker.run import LISTEN_DEFAULT, run_broker
    from kohort.errors import InvalidInputError
    from kohort.settings.config import parse_listen

    of_file, chosen = properties_of(config) if config else {}, assignments(set_)
    if listen is not None and _ADVERTISED in of_file and _ADVERTISED not in chosen:
        note(f"{_ADVERTISED} of {config} is left out, as --listen is given; --set {_ADVERTISED}=… would keep it")
        del of_file[_ADVERTISED]
    if listen is not None:
        of_file.pop("listeners", None)
    properties = {**of_file, **chosen}
    if metrics_listen is not None:
        properties["metrics.listen"] = metrics_listen
    try:
        place, properties = place_in(properties)
        listen = listen or place.listen or LISTEN_DEFAULT
        broker_configs(properties)
        parse_listen(listen)
        beside = None if zookeeper is None else _in_zookeeper(zookeeper)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    folder = data or (Path(place.folder) if place.folder else None)
    if folder is None:
        raise UsageError("say where topics and groups are kept: --data DIR, or log.dirs in the configuration")
    return run_broker(listen, folder, properties, beside)


def _in_zookeeper(address: str) -> Beside:
    from kohort.cluster.zookeeper.shown import BrokerInZooKeeper

    return BrokerInZooKeeper(address)

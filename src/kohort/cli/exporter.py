"""`kohort exporter`: the lag of clusters for Prometheus."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import Common, EndingSignals, ServerOptions, listen_address, make_client, spark_checkpoints

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from kohort.lag import LagReader
    from kohort.lag.reading import ReadOthers

LISTEN_DEFAULT = "127.0.0.1:9308"
"""The port that Prometheus' list of ports gives to Kafka exporters."""
_SECURITY = ServerOptions()


def exporter(
    *,
    servers: tuple[str, ...] = (),
    config: tuple[Path, ...] = (),
    listen: str = LISTEN_DEFAULT,
    interval: int = 10_000,
    window: int = 60_000,
    spark_checkpoint: tuple[str, ...] = (),
    security: ServerOptions = _SECURITY,
) -> int:
    """Lag of all groups of one or several clusters, for Prometheus. Ends with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT`, and answers at http://HOST:PORT/metrics, or https with --tls. The page answers
    while a cluster is away, and says so: see kohort_exporter_up. An address that other machines can reach needs --tls
    with --client-ca, or --insecure.

    Args:
        servers: HOST:PORT of a cluster, several with commas between, or NAME=HOST:PORT; may be given again for other
            clusters. The name is the label cluster_name. Else as for every command.
        config: a file of Kafka client properties, for security and the like: a single file for all clusters, or a file
            per cluster in the order of --servers.
        listen: HOST:PORT; port 0 picks a free one.
        interval: milliseconds between two reads of a cluster.
        window: milliseconds without progress, or of growing lag, after which a group is STALL or WARN.
        spark_checkpoint: as for `kohort groups lag`; with several clusters CLUSTER/NAME=PATH.
    """
    host, port = listen_address(listen)
    for option, value in (("--interval", interval), ("--window", window)):
        if value < 1:
            raise UsageError(f"{option} {value}: give a number of milliseconds from 1 on")
    tls = security.certificates("exporter")
    security.check(host, port, "exporter", "read every group's lag")
    from kohort.io.metrics_http import MetricsServer
    from kohort.lag.cluster_watch import ClusterWatch
    from kohort.lag.exporter import LagExporter

    readers = _readers(servers, config)
    checkpoints = _checkpoints_of_clusters(spark_checkpoint, [name for name, _ in readers])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with ExitStack() as stack:
        watches = []
        for name, reader in readers:
            reader.window_ms, reader.read_others = window, checkpoints[name]
            reader.rebalances = 1  # with it come the numbers of causes
            watch = ClusterWatch(name, reader, interval / 1000)
            stack.callback(watch.close)
            watches.append(watch)
        ended = EndingSignals()
        server = MetricsServer(host, port, LagExporter(watches), tls)
        stack.callback(server.close)
        print(f"ready {server.address}", flush=True)
        ended.wait()
    return DONE


def _checkpoints_of_clusters(given: tuple[str, ...], clusters: list[str]) -> dict[str, ReadOthers]:
    """Return the checkpoints of each cluster.

    Raises:
        UsageError: one of several clusters is not named, or a checkpoint is invalid.
    """
    named: dict[str, list[str]] = {name: [] for name in clusters}
    for text in given:
        cluster, slash, rest = text.partition("/")
        if len(clusters) == 1:
            cluster, rest = clusters[0], text
        elif not slash or cluster not in named or "=" not in rest:
            raise UsageError(f"--spark-checkpoint {text}: with several clusters give CLUSTER/NAME=PATH")
        named[cluster].append(rest)
    return {name: spark_checkpoints(tuple(paths)) for name, paths in named.items()}


def _readers(servers: tuple[str, ...], config: tuple[Path, ...]) -> list[tuple[str, LagReader]]:
    """Return a reader for each cluster, with the cluster's name; none connects yet.

    Raises:
        UsageError: names repeat, files do not fit the clusters, or a property is unknown or invalid.
    """
    from kohort.client.settings import ConnectionConfig
    from kohort.lag import LagReader

    if len(config) > 1 and len(config) != len(servers):
        raise UsageError(
            f"--config is given {len(config)} times for {len(servers)} clusters: give one, or one for each"
        )
    files = config if len(config) > 1 else config * max(1, len(servers))
    named: dict[str, LagReader] = {}
    for index, text in enumerate(servers or (None,)):
        name, equals, addresses = (text or "").partition("=")
        common = Common(
            bootstrap_server=(addresses if equals else text), command_config=files[index] if files else None
        )
        found, settings = common.client_settings(ConnectionConfig)
        name = name if equals else found
        if not name or name in named:
            raise UsageError(f"--servers {text}: each cluster has a name of its own, as in NAME=HOST:PORT")
        named[name] = make_client(LagReader, found, settings)
    return list(named.items())

"""`kohort exporter`: the lag of clusters for Prometheus and OpenTelemetry."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import (
    Common,
    EndingSignals,
    ServerOptions,
    check_names,
    listen_address,
    log_to_stderr,
    make_client,
    reduce_garbage_collection,
    spark_checkpoints,
)
from kohort.errors import InvalidInputError

if TYPE_CHECKING:  # the client is imported by the commands that need it
    from prometheus_client.registry import Collector

    from kohort.lag import LagReader
    from kohort.lag.exporter_shares import ExporterShares
    from kohort.lag.otlp import OtlpPush
    from kohort.lag.reading import ReadOthers

LISTEN_DEFAULT = "127.0.0.1:9308"
"""The port that Prometheus' list of ports gives to Kafka exporters."""
_SECURITY = ServerOptions()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OtlpOptions:
    """The options about an OpenTelemetry collector."""

    otlp: str | None = None
    """Send the metrics to an OpenTelemetry collector too, after each read: its URL, as https://collector:4318. Headers,
    certificates and the timeout are environment variables, OTEL_EXPORTER_OTLP_HEADERS and so on. Needs the extra
    `otlp`."""

    otlp_insecure: Annotated[bool, Parameter(negative="")] = False
    """Send them without encryption, also to another machine."""

    def collector_endpoint(self) -> str | None:
        """Return the collector's URL, to which metrics are posted; None without a collector.

        Raises:
            UsageError: the URL is invalid, has credentials, or needs --otlp-insecure; or a package is missing.
        """
        if self.otlp is None:
            return None
        try:
            from kohort.lag.otlp import collector_url
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("opentelemetry", "requests", "google"):
                raise
            text = "--otlp needs the package opentelemetry-exporter-otlp-proto-http: pip install 'kohort[otlp]'"
            raise UsageError(text) from None
        try:
            return collector_url(self.otlp, is_insecure=self.otlp_insecure)
        except InvalidInputError as error:
            raise UsageError(f"--otlp: {error.message}") from None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """The options about several exporters of the same clusters."""

    share: str | None = None
    """Split the groups with other exporters that name this group, and take over from one that ends. It is a consumer
    group on each cluster."""

    share_topic: str | None = None
    """The topic whose partitions stand for shares, `kohort-exporter-shares` unless given. It is made if missing, and
    has no records."""

    def shares_of_cluster(self, cluster: _WatchedCluster) -> ExporterShares | None:
        """Return the exporter's shares of a cluster's groups; None if it reads all groups."""
        if self.share is None:
            return None
        from kohort.lag.exporter_shares import SHARES_TOPIC, ExporterShares

        topic = self.share_topic or SHARES_TOPIC
        return ExporterShares(cluster.name, self.share, topic, cluster.servers, cluster.settings)

    def check(self) -> None:
        """Check the names of the exporters' group and topic.

        Raises:
            UsageError: a name is empty, or the topic is given and the group is not.
        """
        check_names("group", *(() if self.share is None else (self.share,)))
        check_names("topic", *(() if self.share_topic is None else (self.share_topic,)))
        if self.share_topic is not None and self.share is None:
            raise UsageError("--share-topic needs --share GROUP")


_OTLP, _SHARE = OtlpOptions(), ShareOptions()


@dataclass(frozen=True, slots=True)
class _WatchedCluster:
    """A cluster of --servers.

    Attributes:
        name: Its name.
        servers: Its bootstrap servers.
        settings: The settings of connections, and session.timeout.ms.
        reader: Its reader.
    """

    name: str
    servers: str
    settings: Mapping[str, Any]
    reader: LagReader


def exporter(  # noqa: PLR0913 - each is an option
    *,
    servers: Annotated[tuple[str, ...], Parameter(name=("--servers", "--bootstrap-server"))] = (),
    config: Annotated[tuple[Path, ...], Parameter(name=("--config", "--command-config"))] = (),
    listen: str = LISTEN_DEFAULT,
    interval: int = 10_000,
    window: int = 60_000,
    spark_checkpoint: tuple[str, ...] = (),
    otlp: OtlpOptions = _OTLP,
    share: ShareOptions = _SHARE,
    security: ServerOptions = _SECURITY,
) -> int:
    """Lag of all groups of one or several clusters, for Prometheus. Ends with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT`, and answers at http://HOST:PORT/metrics, or https with --tls. The page answers
    while a cluster is away, and says so: see kohort_exporter_up. An address that other machines can reach needs --tls
    with --client-ca, or --insecure.

    Args:
        servers: HOST:PORT of a cluster, several with commas between, or NAME=HOST:PORT; may be given again for other
            clusters. The name is the label cluster_name. Else as for every command.
        config: A file of Kafka client properties, for security and the like: a single file for all clusters, or a file
            per cluster in the order of --servers.
        listen: HOST:PORT; port 0 picks a free one.
        interval: Milliseconds between two reads of a cluster.
        window: Milliseconds without progress, or of growing lag, after which a group is STALL or WARN.
        spark_checkpoint: As for `kohort groups lag`; with several clusters CLUSTER/NAME=PATH.
    """
    host, port = listen_address(listen)
    for option, value in (("--interval", interval), ("--window", window)):
        if value < 1:
            raise UsageError(f"{option} {value}: give a number of milliseconds from 1 on")
    tls = security.certificates("exporter")
    security.check(host, port, "exporter", "read every group's lag")
    share.check()
    url = otlp.collector_endpoint()
    from kohort.io.metrics_http import MetricsServer
    from kohort.lag.cluster_watch import ClusterWatch
    from kohort.lag.exporter import LagExporter

    clusters = _clusters(servers, config)
    checkpoints = _checkpoints_of_clusters(spark_checkpoint, [cluster.name for cluster in clusters])
    reduce_garbage_collection()
    log_to_stderr()
    is_read = threading.Event()
    with ExitStack() as stack:
        watches: list[ClusterWatch] = []
        for cluster in clusters:
            reader = cluster.reader
            reader.window_ms, reader.read_others = window, checkpoints[cluster.name]
            reader.rebalances = 1  # with it come the numbers of causes
            shares = share.shares_of_cluster(cluster)
            watch = ClusterWatch(cluster.name, reader, interval / 1000, lambda _: is_read.set(), shares)
            stack.callback(watch.close)
            watches.append(watch)
        ended = EndingSignals()
        collector = LagExporter(watches)
        server = MetricsServer(host, port, collector, tls, is_insecure=security.insecure)
        stack.callback(server.close)
        if url is not None:
            push = _push(url, collector, interval / 1000, is_read, server.address)
            stack.callback(push.close)
        print(f"ready {server.address}", flush=True)
        ended.wait()
    return DONE


def _push(url: str, collector: Collector, interval_s: float, is_read: threading.Event, address: str) -> OtlpPush:
    """Start sending metrics to an OpenTelemetry collector.

    Raises:
        UsageError: an environment variable is invalid.
    """
    from kohort import __version__
    from kohort.lag.otlp import OtlpPush

    instance = f"{socket.gethostname()}:{address.rpartition(':')[2]}"
    try:
        return OtlpPush(url, collector, interval_s, is_read, instance, __version__)
    except InvalidInputError as error:
        raise UsageError(error.message) from None


def _checkpoints_of_clusters(given: tuple[str, ...], clusters: list[str]) -> dict[str, ReadOthers]:
    """Return the Spark checkpoints to read for each cluster, by the cluster's name.

    Raises:
        UsageError: with several clusters a checkpoint names none of them, or a checkpoint is invalid.
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


def _clusters(servers: tuple[str, ...], config: tuple[Path, ...]) -> list[_WatchedCluster]:
    """Return the clusters of --servers with a lag reader for each; none connects yet.

    Raises:
        UsageError: names repeat, files do not fit the clusters, or a property is unknown or invalid.
    """
    from kohort.client.settings import ConnectionConfig, ConsumerConfig
    from kohort.lag import LagReader

    if len(config) > 1 and len(config) != len(servers):
        raise UsageError(
            f"--config is given {len(config)} times for {len(servers)} clusters: give one, or one for each"
        )
    files = config if len(config) > 1 else config * max(1, len(servers))
    named: dict[str, _WatchedCluster] = {}
    for index, text in enumerate(servers or (None,)):
        name, equals, addresses = (text or "").partition("=")
        common = Common(
            bootstrap_server=(addresses if equals else text), command_config=files[index] if files else None
        )
        found, settings = common.client_settings(ConnectionConfig)
        _, of_members = common.client_settings(ConsumerConfig)
        session = {key: value for key, value in of_members.items() if key == "session.timeout.ms"}
        name = name if equals else found
        if not name or name in named:
            raise UsageError(f"--servers {text}: each cluster has a name of its own, as in NAME=HOST:PORT")
        reader = make_client(LagReader, found, settings)
        named[name] = _WatchedCluster(name, found, {**settings, **session}, reader)
    return list(named.values())

"""`kohort dashboard`: a web page of a cluster's groups."""

from __future__ import annotations

import gc
import logging
import sys
from typing import TYPE_CHECKING

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import Common, EndingSignals, listen_address, make_client, spark_checkpoints
from kohort.cli.output import show_json_line
from kohort.errors import InvalidInputError

if TYPE_CHECKING:  # a web server is imported by the command that needs it
    from kohort.dashboard.server import DashboardServer

LISTEN_DEFAULT = "127.0.0.1:8480"
COLLECT_AFTER = (10_000, 1_000, 10)
"""Thresholds of Python's cyclic garbage collector. A full collection stops every thread, and takes 0.2 s over the reads
of 25,000 partitions; Python's own thresholds make one in each read, during which no page is sent. Reads have no cycles,
so that they are freed without it. These thresholds make one in many reads of that size."""
_COMMON = Common()


def dashboard(
    *,
    listen: str = LISTEN_DEFAULT,
    interval: int = 10_000,
    window: int = 60_000,
    spark_checkpoint: tuple[str, ...] = (),
    common: Common = _COMMON,
) -> int:
    """Web page of a cluster's groups: lag, members, changes, topics, records, regions. Ends with SIGTERM or Ctrl-C.

    Prints the line `ready http://HOST:PORT/`. The page changes nothing in the cluster. It has no login, so it listens
    on loopback addresses only. Every user of this machine can reach it there, and sees all groups, topics and records
    that the command's own login may read. It is served while the cluster is away, and says so. Needs the extra
    `dashboard`.

    --timeout limits the calls for topics, records and regions: 5000 unless given.

    Args:
        listen: HOST:PORT of this machine's loopback; port 0 picks a free one.
        interval: milliseconds between two reads of the cluster.
        window: milliseconds without progress, or of growing lag, after which a group is STALL or WARN.
        spark_checkpoint: as for `kohort groups lag`.
    """
    host, port = listen_address(listen)
    for option, value in (("--interval", interval), ("--window", window)):
        if value < 1:
            raise UsageError(f"{option} {value}: give a number of milliseconds from 1 on")
    try:
        from kohort.dashboard.observer import ClusterObserver
        from kohort.dashboard.server import DashboardServer
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise UsageError(f"the dashboard takes the package {error.name}: pip install 'kohort[dashboard]'") from None
    from kohort.client.settings import ConnectionConfig, ConsumerConfig
    from kohort.dashboard.cluster_lookups import LOOKUP_MS, ClusterLookups
    from kohort.lag import LagReader
    from kohort.lag.reading import REBALANCES_ASKED

    checkpoints = spark_checkpoints(spark_checkpoint)
    servers, connection = common.client_settings(ConnectionConfig)
    reader = make_client(LagReader, servers, connection)
    reader.window_ms, reader.rebalances, reader.read_others = window, REBALANCES_ASKED, checkpoints
    consumer = common.client_settings(ConsumerConfig)[1]
    lookups = ClusterLookups(servers, connection, consumer, common.timeout or LOOKUP_MS)
    gc.set_threshold(*COLLECT_AFTER)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with ClusterObserver(servers, reader, interval) as observer:
        try:
            server = DashboardServer(host, port, observer, lookups)
        except InvalidInputError as error:
            raise UsageError(f"--listen {listen}: {error.message}") from error
        with server:
            return _serve_until_signal(server, common.json)


def _serve_until_signal(server: DashboardServer, as_json: bool) -> int:
    ended = EndingSignals()
    url = f"http://{server.address}/"
    if as_json:
        show_json_line({"ready": url})
    else:
        print(f"ready {url}", flush=True)
    ended.wait()
    return DONE

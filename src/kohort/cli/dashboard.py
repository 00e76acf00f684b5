"""`kohort dashboard`: a web page of a cluster's groups."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import (
    Common,
    EndingSignals,
    ServerOptions,
    check_registry_option,
    listen_address,
    log_to_stderr,
    make_client,
    parse_duration_option,
    reduce_garbage_collection,
    spark_checkpoints,
)
from kohort.cli.output import print_json_line
from kohort.errors import InvalidInputError

if TYPE_CHECKING:  # a web server is imported by the command that needs it
    from kohort.dashboard.guard import DashboardAccess
    from kohort.dashboard.server import DashboardServer
    from kohort.lag.history_file import HistoryWriter

LISTEN_DEFAULT = "127.0.0.1:8480"
HOST_NAME = re.compile(r"\w([\w-]*\w)?(\.\w([\w-]*\w)?)*", re.ASCII)
"""A name as browsers send it: other letters arrive in the form xn--."""
_COMMON = Common()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """The options about the file with the history."""

    history: Path | None = None
    """A file that keeps the lag of groups and their changes across restarts; made if it does not exist. `kohort groups
    history` prints it. A file has one cluster, and one dashboard that writes it."""

    history_retention: str = "7d"
    """How long the file keeps lag and changes, such as 12h or 30d; older rows are deleted."""

    history_max_bytes: int = 512 << 20
    """The most bytes of the file. Beyond them the oldest is deleted sooner."""

    def open_writer(self) -> HistoryWriter | None:
        """Return the writer of the file; None: the history is in memory alone.

        Raises:
            UsageError: an option is invalid, or the file can't be used for it.
            CorruptDataError: the file is damaged.
        """
        if self.history is None:
            return None
        from kohort.lag.history_file import BYTES_MIN, RETENTION_MAX_MS, HistoryWriter

        kept_ms = parse_duration_option("--history-retention", self.history_retention, RETENTION_MAX_MS)
        if self.history_max_bytes < BYTES_MIN:
            raise UsageError(f"--history-max-bytes {self.history_max_bytes}: give at least {BYTES_MIN}")
        try:
            return HistoryWriter(self.history, kept_ms, self.history_max_bytes)
        except InvalidInputError as error:
            raise UsageError(f"--history: {error.message}") from error


_HISTORY = HistoryOptions()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AccessOptions(ServerOptions):
    """The options about who may use the dashboard."""

    insecure: Annotated[bool, Parameter(negative="")] = False
    """Let passwords cross the network unencrypted, where something else encrypts. It does not replace --users."""

    users: Path | None = None
    """A file of users, NAME=PASSWORD in each line, as a broker's --sasl takes: users must log in. A changed file is
    used without a restart."""

    allow_changes: Annotated[bool, Parameter(negative="")] = False
    """Let users reset and delete groups and offsets from the page, with the rights of --command-config."""

    host: tuple[str, ...] = ()
    """A name under which browsers reach the page, besides localhost and addresses; may be given again."""

    def dashboard_access(self, listen: str) -> DashboardAccess:
        """Return who may use the dashboard that listens at a host.

        Raises:
            UsageError: a file can't be read or has something else, or options do not fit together.
        """
        from kohort.dashboard.guard import DashboardAccess
        from kohort.dashboard.logins import DashboardLogins, DashboardUsers

        for name in self.host:
            if not HOST_NAME.fullmatch(name):
                raise UsageError(f"--host {name}: give a host name of ASCII letters, without scheme and port")
        tls = self.certificates("dashboard")
        try:
            logins = None if self.users is None else DashboardLogins(DashboardUsers(self.users))
        except InvalidInputError as error:
            raise UsageError(f"--users: {error.message}") from error
        names = frozenset(name.lower() for name in (*self.host, listen))
        return DashboardAccess(logins, tls, self.insecure, names, self.allow_changes)


_ACCESS = AccessOptions()


def dashboard(  # noqa: PLR0913 - one keyword for each option
    *,
    listen: str = LISTEN_DEFAULT,
    interval: int = 10_000,
    window: int = 60_000,
    spark_checkpoint: tuple[str, ...] = (),
    schema_registry: str | None = None,
    kept: HistoryOptions = _HISTORY,
    access: AccessOptions = _ACCESS,
    common: Common = _COMMON,
) -> int:
    """Web page of a cluster's groups: lag, members, changes, topics, records, regions. Ends with SIGTERM or Ctrl-C.

    Prints the line `ready http://HOST:PORT/`. The page changes nothing in the cluster unless --allow-changes is given.
    Without --users it has no login, and listens on loopback addresses only. Every user of this machine can reach it
    there, and sees all groups, topics and records that the command's own login may read. It is served while the cluster
    is away, and says so. Needs the extra `dashboard`.

    --timeout limits the calls for topics, records, regions and changes: 5000 unless given.

    Args:
        listen: HOST:PORT; port 0 picks a free one. An address beyond loopback needs --users with --tls.
        interval: Milliseconds between two reads of the cluster.
        window: Milliseconds without progress, or of growing lag, after which a group is STALL or WARN.
        spark_checkpoint: As for `kohort groups lag`.
        schema_registry: The URL of the schema registry that has the schemas of values, so that the page shows them as
            JSON. A URL with a password belongs into --command-config, as schema.registry.url.
    """
    check_registry_option(schema_registry)
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
        raise UsageError(f"the dashboard needs the package {error.name}: pip install 'kohort[dashboard]'") from None
    from kohort.client.settings import ConnectionConfig, ConsumerConfig
    from kohort.dashboard.cluster_lookups import LOOKUP_MS, ClusterLookups
    from kohort.lag import LagReader
    from kohort.lag.reading import REBALANCES_ASKED

    who = access.dashboard_access(host)
    checkpoints = spark_checkpoints(spark_checkpoint)
    file = kept.open_writer()
    servers, connection = common.client_settings(ConnectionConfig)
    reader = make_client(LagReader, servers, connection)
    reader.window_ms, reader.rebalances, reader.read_others = window, REBALANCES_ASKED, checkpoints
    consumer = common.client_settings(ConsumerConfig)[1]
    try:
        lookups = ClusterLookups(servers, connection, consumer, common.timeout or LOOKUP_MS, schema_registry)
    except InvalidInputError as error:
        raise UsageError(f"--schema-registry: {error.message}") from error
    reduce_garbage_collection()
    log_to_stderr()
    with ExitStack() as stack:
        if file is not None:
            stack.enter_context(file)
        observer = stack.enter_context(ClusterObserver(servers, reader, interval, file))
        try:
            server = DashboardServer(host, port, observer, lookups, who)
        except InvalidInputError as error:
            raise UsageError(f"--listen {listen}: {error.message}") from error
        with server:
            return _serve_until_signal(server, common.json)


def _serve_until_signal(server: DashboardServer, as_json: bool) -> int:
    ended = EndingSignals()
    if as_json:
        print_json_line({"ready": server.url})
    else:
        print(f"ready {server.url}", flush=True)
    ended.wait()
    return DONE

"""`kohort coordinator`: serves groups over an existing Apache Kafka cluster; `status` shows its coordinators."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kohort.cli.app import DONE, UsageError, command_family
from kohort.cli.common import (
    REACH_MS,
    Common,
    MetricsOptions,
    SecurityOptions,
    ZooKeeperOptions,
    log_to_stderr,
    parse_set_options,
    warn_secret_arguments,
)
from kohort.cli.output import print_json, print_rows
from kohort.io.platforms import require_posix

if TYPE_CHECKING:  # the client is imported by the command that needs it
    pass

app = command_family("coordinator", "Serve consumer groups over an existing Apache Kafka cluster.")

_COMMON = Common()
LISTEN_DEFAULT = "127.0.0.1:9192"
OF_COORDINATOR = ("id", "address", "rack", "elected", "shards", "map_version", "trouble")
OF_SHARD = (
    "shard", "coordinator", "phase", "term", "proof_age_ms", "load_ms", "appends", "append_p50_ms", "append_p99_ms",
    "fences", "groups",
)  # fmt: skip


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CoordinatorSecurity(SecurityOptions):
    """The options about security: of the listener as a broker's, and of the connection to Kafka."""

    command_config: Path | None = None
    """A file of Kafka client properties, for secure connections to Kafka."""

    trust_everyone: Annotated[bool, Parameter(negative="")] = False
    """Start in front of a secured Kafka too, where every client then has the coordinator's own rights."""


_METRICS = MetricsOptions()
_OPEN = CoordinatorSecurity()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CoordinatorZooKeeper(ZooKeeperOptions):
    """The options about ZooKeeper, through which coordinators find each other."""

    zookeeper: str | None = None
    """HOST:PORT[,…]/chroot through which coordinators find each other; else they use a group on Kafka."""


_WITHOUT_ZOOKEEPER = CoordinatorZooKeeper()


@app.default
def coordinator(
    *,
    kafka: str,
    listen: str = LISTEN_DEFAULT,
    id_: Annotated[int | None, Parameter(name="--id")] = None,
    zookeeper: CoordinatorZooKeeper = _WITHOUT_ZOOKEEPER,
    metrics: MetricsOptions = _METRICS,
    security: CoordinatorSecurity = _OPEN,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
) -> int:
    """Serve consumer groups over an existing Apache Kafka cluster. Ends cleanly with SIGTERM or Ctrl-C.

    Several coordinators share the groups, and take over from each other. Groups and offsets are kept in a topic of
    Kafka. Prints the line `ready HOST:PORT` once its groups are served. Give kohort's clients this address instead of
    Kafka's.

    Args:
        kafka: HOST:PORT of the cluster's brokers, several with commas between.
        listen: HOST:PORT; port 0 picks a free one.
        id_: The node id that clients see, different from those of Kafka's brokers; else derived from the address.
        set_: One property as key=value: of groups, of the journal, of the socket; may be given again.
    """
    require_posix("kohort coordinator")
    from kohort.broker.security.listeners import planned_listeners
    from kohort.client.settings import ConnectionConfig, client_config
    from kohort.cluster.run import CoordinatorOptions, run_coordinator
    from kohort.cluster.settings import parse_settings
    from kohort.errors import InvalidInputError

    if security.secure is not None:
        raise UsageError("--secure is for brokers: give a coordinator --tls and --sasl")
    properties: dict[str, Any]
    chosen = parse_set_options(set_)
    warn_secret_arguments(chosen, "give --tls a PEM file without a password, and users by --sasl")
    listen, properties = security.apply_to_listener(listen, {**chosen}, None)
    properties |= metrics.to_properties()
    common = Common(bootstrap_server=kafka, command_config=security.command_config)
    servers, given = common.client_settings(ConnectionConfig)
    try:
        options = CoordinatorOptions(
            client_config(ConnectionConfig, servers, given),
            listen,
            parse_settings(properties),
            zookeeper.zookeeper_address(),
            id_,
            security.trust_everyone,
        )
        planned_listeners(listen, options.configured.security)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    log_to_stderr()
    return run_coordinator(options)


@app.command
def status(*, common: Common = _COMMON) -> int:
    """Show the coordinators, which of them is elected, and each shard with its coordinator, term and age of proof.

    Any coordinator can name the others; each reports its own shards. A coordinator that does not answer keeps its row.
    """
    from kohort.client.admin.coordinators import describe_coordinators, shard_row
    from kohort.client.net.thread_driver import ThreadClient
    from kohort.client.settings import ConnectionConfig, client_config
    from kohort.errors import InvalidInputError

    servers, given = common.client_settings(ConnectionConfig)
    try:
        client = ThreadClient(client_config(ConnectionConfig, servers, given))
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    try:
        coordinators, shards = client.call(describe_coordinators(client.cluster, common.timeout or REACH_MS))
    finally:
        client.close()
    rows = [asdict(coordinator) for coordinator in coordinators], [shard_row(shard) for shard in shards]
    if common.json:
        print_json({"coordinators": rows[0], "shards": rows[1]})
        return DONE
    print_rows(rows[0], OF_COORDINATOR, as_json=False, empty="no coordinators")
    print_rows(rows[1], OF_SHARD, as_json=False, empty="no shards")
    return DONE

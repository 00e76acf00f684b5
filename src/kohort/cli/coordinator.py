"""`kohort coordinator`: groups over an existing Apache Kafka cluster; and how its coordinators are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from kohort.cli.app import UsageError
from kohort.cli.common import Common, assignments

app = App(name="coordinator", help="Serve consumer groups over an existing Apache Kafka cluster.")

_COMMON = Common()
LISTEN_DEFAULT = "127.0.0.1:9192"


@app.default
def coordinator(
    *,
    kafka: str,
    listen: str = LISTEN_DEFAULT,
    zookeeper: str | None = None,
    id_: Annotated[int | None, Parameter(name="--id")] = None,
    command_config: Path | None = None,
    metrics_listen: str | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
) -> int:
    """Serve consumer groups over an existing Apache Kafka cluster. Ends cleanly with SIGTERM or Ctrl-C.

    Several of them share the groups, and take over from each other; groups and offsets are kept in a topic of Kafka.
    Prints the line `ready HOST:PORT` once its groups are served. kohort's clients are given its address in place of
    Kafka's.

    Args:
        kafka: HOST:PORT of the cluster's brokers, several with commas between.
        listen: HOST:PORT; port 0 picks a free one.
        zookeeper: HOST:PORT[,…]/chroot where coordinators find each other; else they do through a group on Kafka.
        id_: the number under which clients know it, none of Kafka's brokers'; else one is made of its address.
        command_config: a file of Kafka client properties, for security on the way to Kafka.
        metrics_listen: HOST:PORT where Prometheus reads its figures; the property metrics.listen.
        set_: one property as key=value: of groups, of the journal, of the socket; may be given again.
    """
    from kohort.client.settings import ConnectionConfig, client_config
    from kohort.cluster.run import Options, run_coordinator
    from kohort.cluster.settings import configured
    from kohort.config import parse_listen
    from kohort.errors import InvalidInputError

    properties: dict[str, Any] = {**assignments(set_)}
    if metrics_listen is not None:
        properties["metrics.listen"] = metrics_listen
    servers, given = Common(bootstrap_server=kafka, command_config=command_config).client_settings(ConnectionConfig)
    try:
        options = Options(
            client_config(ConnectionConfig, servers, given), listen, configured(properties), zookeeper, id_
        )
        parse_listen(listen)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    return run_coordinator(options)

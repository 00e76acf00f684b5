"""`kohort broker`: serves until it is ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kohort.cli.app import UsageError
from kohort.cli.common import assignments, properties_of


def broker(
    *,
    data: Path,
    listen: str = "127.0.0.1:9092",
    config: Path | None = None,
    metrics_listen: str | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
) -> int:
    """Serve as a Kafka broker with real consumer groups. Ends cleanly with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT` once clients can connect.

    Args:
        data: the folder that keeps topics and groups; made if missing.
        listen: HOST:PORT to listen on; port 0 picks a free one.
        config: a file of broker, topic and group properties, under Kafka's names.
        metrics_listen: HOST:PORT where Prometheus reads the broker's figures; the property metrics.listen.
        set_: one property as key=value, over the file's; may be given again.
    """
    from kohort.broker.run import run_broker
    from kohort.broker.settings import broker_configs, parse_listen
    from kohort.errors import InvalidInputError

    properties = {**(properties_of(config) if config else {}), **assignments(set_)}
    if metrics_listen is not None:
        properties["metrics.listen"] = metrics_listen
    try:
        broker_configs(properties)
        parse_listen(listen)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    return run_broker(listen, data, properties)

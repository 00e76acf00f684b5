"""`kohort demo`: a consumer group of Spark queries, from start to finish."""

from __future__ import annotations

from pathlib import Path

from kohort.cli.app import UsageError
from kohort.cli.common import Common
from kohort.errors import InvalidInputError
from kohort.io.platforms import require_posix

_COMMON = Common()


def demo(
    *,
    output: Path | None = None,
    rows: int | None = None,
    replay_s: float | None = None,
    least: int = 100,
    region: bool = False,
    keep: bool = False,
    common: Common = _COMMON,
) -> int:
    """Replay a year of flights through a group of two Spark queries, kill one, and count every flight once.

    Starts a broker of its own, unless --bootstrap-server names one.

    Args:
        output: The folder for the picture, the tables and the Parquet files; kohort-demo when not given.
        rows: Replay only the first so many flights.
        replay_s: Over how many seconds they are replayed.
        least: Flights that a connection must have to be listed among the worst.
        region: The queries are members of a consistent region, which writes exactly once into an Iceberg table.
        keep: Leave the broker running at the end, until Ctrl-C.
    """
    require_posix("kohort demo")
    from kohort.client.settings import ConnectionConfig
    from kohort.demo import DemoOptions, run

    _, settings = common.client_settings(ConnectionConfig)
    try:
        options = DemoOptions(
            bootstrap_server=common.bootstrap_server,
            client=settings,
            output=output,
            rows=rows,
            replay_s=replay_s,
            least=least,
            json=common.json,
            keep=keep,
            region=region,
        )
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    if common.bootstrap_server is not None:
        common.check_reachable()
    return run(options)

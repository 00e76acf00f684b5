"""`kohort zookeeper`: a real ZooKeeper that runs until it is stopped."""

from __future__ import annotations

from pathlib import Path

from kohort.cli.app import DONE
from kohort.cli.common import EndingSignals, listen_address
from kohort.io.platforms import require_posix


def zookeeper(*, listen: str = "127.0.0.1:2181", data: Path | None = None) -> int:
    """A real ZooKeeper, from the jars that PySpark brings; ends with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT` once clients can connect.

    Args:
        listen: HOST:PORT to listen on; port 0 picks a free one.
        data: the folder of its data; a temporary one when not given.
    """
    require_posix("kohort zookeeper")
    from kohort.zookeeper import ZooKeeper

    host, port = listen_address(listen)
    ended = EndingSignals()
    with ZooKeeper(host, port, data) as server:
        print(f"ready {server.address}", flush=True)
        ended.wait()
    return DONE

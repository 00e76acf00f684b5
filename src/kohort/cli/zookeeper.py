"""`kohort zookeeper`: a real ZooKeeper that runs until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kohort.cli.app import DONE, UsageError
from kohort.cli.common import EndingSignals, listen_address
from kohort.errors import InvalidInputError
from kohort.io.platforms import require_posix

Insecure = Annotated[bool, Parameter(negative="")]


def zookeeper(*, listen: str = "127.0.0.1:2181", data: Path | None = None, insecure: Insecure = False) -> int:
    """A real ZooKeeper, from the jars that PySpark brings; ends with SIGTERM or Ctrl-C.

    Prints the line `ready HOST:PORT` once clients can connect.

    Args:
        listen: HOST:PORT to listen on; port 0 picks a free one.
        data: the folder of its data; a temporary one when not given.
        insecure: let everyone read and change all that it has, also at an address that other machines can reach.
    """
    require_posix("kohort zookeeper")
    from kohort.zookeeper import ZooKeeper, check_zookeeper_access

    host, port = listen_address(listen)
    ended = EndingSignals()
    try:
        check_zookeeper_access(host, port, insecure, "--insecure")
        server = ZooKeeper(host, port, data, insecure=insecure)
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    with server:
        print(f"ready {server.address}", flush=True)
        ended.wait()
    return DONE

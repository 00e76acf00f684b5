"""`kohort.Broker`: a broker inside a Python program.

The broker runs as a child process, so that it never competes for the program's interpreter lock, whatever the
program's start method for its own children is. It ends with the program, even when the program is killed: the child
watches its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from kohort.errors import KafkaError

__all__ = ["Broker"]


class Broker:
    """An embedded broker, started when made and ended by `close()` or the end of the `with` block.

        with Broker() as broker:
            consumer = Consumer(broker.bootstrap_servers, group_id="g")

    Args:
        data_dir: the folder that keeps topics and groups; None is a temporary folder, deleted at the end.
        config: broker, topic and group properties under Kafka's names.
        listen: HOST:PORT; port 0 picks a free one.

    Raises:
        InvalidInputError: a bad property or address.
        KafkaError: the port or the data folder is in use, or the broker did not come up.
    """

    bootstrap_servers: str
    """HOST:PORT that clients connect to."""

    def __init__(
        self,
        data_dir: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        listen: str = "127.0.0.1:0",
    ) -> None:
        raise KafkaError("not yet")

    @property
    def pid(self) -> int:
        """The broker's process id."""
        raise KafkaError("not yet")

    def close(self) -> None:
        """Ends the broker; may be called again."""

    def kill(self) -> None:
        """Ends the broker as a crash would: SIGKILL, nothing flushed, nothing answered."""

    def restart(self) -> None:
        """Starts the broker again on the same address and data folder, after `kill` or in place of a clean end."""

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

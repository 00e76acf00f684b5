"""The brokers that a group churns on: ours and Apache Kafka, killed and started alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from kohort import Broker
from tests.support.apache_kafka import ApacheKafka


class Place(Protocol):
    """A broker with its data."""

    @property
    def servers(self) -> str:
        """Where it listens; the same after a restart."""

    def kill(self) -> None:
        """Ends it as a crash would."""

    def start(self) -> None:
        """Starts it again on the same data, and waits until it answers."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Ours:
    """Our broker, as a child process."""

    def __init__(self, folder: Path, settings: Mapping[str, str | int]) -> None:
        self._broker = Broker(folder, {"auto.create.topics.enable": "false", **settings})
        self.servers = self._broker.bootstrap_servers

    def kill(self) -> None:
        self._broker.kill()

    def start(self) -> None:
        self._broker.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.close()


class Apache:
    """Apache Kafka, one node.

    Raises:
        MavenUnavailable: it can't be run on this machine; the text says why.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str | int]) -> None:
        del folder  # it makes its own
        given = {key: str(value) for key, value in settings.items()}
        self._kafka = ApacheKafka({"auto.create.topics.enable": "false", **given})
        self.servers = self._kafka.bootstrap_servers

    def kill(self) -> None:
        self._kafka.kill()

    def start(self) -> None:
        self._kafka.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kafka.close()

"""Three servers of ZooKeeper on loopback that are one ensemble, each of which can be killed and started again."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kohort.zookeeper import ZooKeeper, free_ports
from tests.support.waiting import until

COUNT = 3


class Server(ZooKeeper):
    """One of them; where its clients, and the others, reach it is fixed."""

    def __init__(self, number: int, folder: Path, ports: Sequence[tuple[int, int, int]]) -> None:
        self.number = number
        self._ports = ports
        super().__init__(port=ports[number][0], data_dir=folder)

    def _settings(self, host: str) -> Path:
        settings = super()._settings(host)
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self.number + 1))
        servers = [f"server.{i + 1}={host}:{peer}:{election}" for i, (_, peer, election) in enumerate(self._ports)]
        with settings.open("a") as file:
            file.write("\n".join(["initLimit=20", "syncLimit=10", *servers, ""]))
        return settings

    def serves(self) -> bool:
        """Whether it follows a leader, or is one."""
        return _says(self, b"Mode: ")


class Ensemble:
    """The servers by number; `address` names all of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        ports = free_ports(3 * COUNT)
        self._ports = [(ports[i], ports[i + COUNT], ports[i + 2 * COUNT]) for i in range(COUNT)]
        self._folder = folder
        self._stack = stack
        self._starter = stack.enter_context(ThreadPoolExecutor(1))  # a server ends with the thread that started it
        self.servers = [self._begin(number) for number in range(COUNT)]
        self.address = ",".join(server.address for server in self.servers)
        self.wait()

    def _begin(self, number: int) -> Server:
        return self._stack.enter_context(Server(number, self._folder / str(number), self._ports))

    def leader(self) -> Server:
        """The one that leads now."""
        return next(server for server in self.servers if _says(server, b"Mode: leader"))

    def restart(self, number: int) -> None:
        """Starts a killed one again."""
        self.servers[number] = self._starter.submit(self._begin, number).result()

    def wait(self) -> None:
        """Until all serve."""
        until(lambda: all(server.serves() for server in self.servers), "three servers of ZooKeeper serve", 60)


def _says(server: Server, words: bytes) -> bool:
    host, _, port = server.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(b"srvr")
            return words in connection.recv(4096)
    except OSError:
        return False


@contextmanager
def ensemble() -> Iterator[Ensemble]:
    """Three servers that serve.

    Raises:
        NotFoundError: they can't be run on this machine.
    """
    with tempfile.TemporaryDirectory(prefix="kohort-zookeepers-") as folder, ExitStack() as stack:
        yield Ensemble(Path(folder), stack)

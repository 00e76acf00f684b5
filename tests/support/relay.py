"""A way to a server on loopback that can be cut and mended: nothing passes, and no new connection stands."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

_PIECE = 1 << 16


class Relay:
    """Passes bytes on in both directions.

    Attributes:
        address: HOST:PORT where it listens.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._lock = threading.Lock()
        self._is_cut = False
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """End all connections; new ones end at once."""
        with self._lock:
            self._is_cut = True
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let new connections pass."""
        with self._lock:
            self._is_cut = False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                with self._lock:
                    far = None if self._is_cut else self._reach()
                    if far is None:
                        near.close()
                        continue
                    self._open |= {near, far}
                for source, other in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._pass_on, args=(source, other), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _reach(self) -> socket.socket | None:
        with contextlib.suppress(OSError):
            return socket.create_connection(self._target)
        return None

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(_PIECE):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(10)
        for sock in self._open:
            sock.close()

"""The other end of a raw socket: `python -m bench.runners.light read|echo BYTES` prints its port, serves one client."""

from __future__ import annotations

import socket
import sys

_BUFFER_BYTES = 1024 * 1024


def main() -> None:
    """Serve one connection: read to its end and answer a byte, or echo each request."""
    job, size = sys.argv[1], int(sys.argv[2])
    with socket.create_server(("127.0.0.1", 0)) as server:
        print("ready", server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if job == "echo":
            while request := connection.recv(size):
                connection.sendall(request)
            return
        buffer = bytearray(_BUFFER_BYTES)
        while connection.recv_into(buffer):
            pass
        connection.sendall(b"x")


if __name__ == "__main__":
    main()

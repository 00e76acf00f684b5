"""The first lines of commands that serve, when their cluster can't be used."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from tests.support.processes import Start


@pytest.fixture
def closing() -> Iterator[str]:
    """The address of a server that closes each connection, as a TLS listener may do to clients without TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(20)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("coordinator", "--listen", "127.0.0.1:0", "--kafka"), id="coordinator"),
        pytest.param(("exporter", "--listen", "127.0.0.1:0", "--servers"), id="exporter"),
        pytest.param(("scaler", "--listen", "127.0.0.1:0", "--bootstrap-server"), id="scaler"),
        pytest.param(("dashboard", "--listen", "127.0.0.1:0", "--bootstrap-server"), id="dashboard"),
    ],
)
def test_log_says_where_the_property_is_set_that_may_be_wrong(
    start: Start, closing: str, command: tuple[str, ...]
) -> None:
    process = start(*command, closing)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "security.protocol is PLAINTEXT" in line)
    assert line.endswith("(client properties are read from the file of --command-config)\n")


def test_scaler_reports_a_wrong_address_before_the_first_call(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    process = start("scaler", "--listen", "127.0.0.1:0", "--bootstrap-server", address)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "[scaler]" in line)
    assert "the cluster can't be read" in line and address in line

"""`kohort exporter` where other machines reach it: TLS with real clients, certificates, and what is refused."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import Metric
from tests.support.processes import KOHORT, Start, ready
from tests.support.secured_broker import more_certificates
from tests.support.secured_kafka import make_certificates
from tests.support.waiting import until

from kohort import Broker
from kohort.io.metrics_http import SCRAPES_MAX, MetricsServer
from kohort.io.server_certificates import ServerCertificates

NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    more_certificates(folder)
    return folder


class OneMetric:
    def collect(self) -> list[Metric]:
        metric = Metric("served", "1", "gauge")
        metric.add_sample("served", {}, 1)
        return [metric]


@pytest.fixture
def mutual(certificates: Path) -> Iterator[str]:
    """The address of a server whose clients must show a certificate."""
    tls = ServerCertificates("exporter", certificates / "broker.pem", certificates / "ca.pem")
    server = MetricsServer("127.0.0.1", 0, OneMetric(), tls)
    yield server.address
    server.close()


def trusting(folder: Path, client: str | None = "client", authority: str = "ca.pem") -> ssl.SSLContext:
    """A client's side of TLS."""
    context = ssl.create_default_context(cafile=str(folder / authority))
    if client is not None:
        context.load_cert_chain(folder / f"{client}.crt", folder / "client.key")
    return context


def is_served(address: str, context: ssl.SSLContext | None, path: str = "/metrics") -> bool:
    """Whether a scrape is answered."""
    url = f"{'http' if context is None else 'https'}://{address}{path}"
    try:
        with urllib.request.urlopen(url, timeout=20, context=context) as answer:
            assert answer.status == 200 and answer.read()
    except (OSError, urllib.error.URLError):
        return False
    return True


def test_client_with_a_certificate_of_the_authority_is_served(certificates: Path, mutual: str) -> None:
    with urllib.request.urlopen(f"https://{mutual}/metrics", timeout=20, context=trusting(certificates)) as answer:
        assert "served 1.0" in answer.read().decode()


@pytest.mark.parametrize(
    ("client", "authority"),
    [(None, "ca.pem"), ("stranger", "ca.pem"), ("old-client", "ca.pem"), ("client", "other-ca.pem")],
    ids=["no certificate", "certificate of another authority", "expired certificate", "client trusts another"],
)
def test_client_that_can_not_prove_itself_or_does_not_trust_the_server_is_not_served(
    certificates: Path, mutual: str, client: str | None, authority: str
) -> None:
    assert not is_served(mutual, trusting(certificates, client, authority))
    assert is_served(mutual, trusting(certificates)), "the next one is"


def test_plain_client_gets_nothing_from_a_server_with_tls_nor_the_other_way_round(
    certificates: Path, mutual: str
) -> None:
    assert not is_served(mutual, None)
    plain = MetricsServer("127.0.0.1", 0, OneMetric())
    assert not is_served(plain.address, trusting(certificates))
    assert is_served(plain.address, None)
    plain.close()


def test_answer_ends_as_tls_says_that_it_does(certificates: Path, mutual: str) -> None:
    """Without it a client can't tell a whole answer from one that an attacker cut off."""
    host, _, port = mutual.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 20) as sock,
        trusting(certificates).wrap_socket(sock, server_hostname=host, suppress_ragged_eofs=False) as secured,
    ):
        secured.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = b""
        while more := secured.recv(65_536):
            answer += more
    assert answer.startswith(b"HTTP/1.0 200") and answer.endswith(b"served 1.0\n")


def test_new_files_count_for_new_connections_and_broken_ones_do_not(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity, authorities = tmp_path / "exporter.pem", tmp_path / "ca.pem"
    shutil.copy(certificates / "broker.pem", identity)
    shutil.copy(certificates / "other-ca.pem", authorities)
    server = MetricsServer("127.0.0.1", 0, OneMetric(), ServerCertificates("exporter", identity, authorities))
    address = server.address
    assert is_served(address, trusting(certificates, "stranger"))
    assert not is_served(address, trusting(certificates))
    identity.write_text("half a file")
    assert is_served(address, trusting(certificates, "stranger"))
    assert f"can't load the key and certificate of {identity}" in caplog.text
    shutil.copy(certificates / "expired.pem", identity)
    assert not is_served(address, trusting(certificates, "stranger"))
    shutil.copy(certificates / "broker.pem", identity)
    shutil.copy(certificates / "ca.pem", authorities)
    assert is_served(address, trusting(certificates))
    assert not is_served(address, trusting(certificates, "stranger"))
    server.close()


def test_connections_that_begin_no_handshake_keep_no_scrape_out(certificates: Path, mutual: str) -> None:
    host, _, port = mutual.rpartition(":")
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(SCRAPES_MAX + 5)]
        for replaced in silent[:5]:
            assert replaced.recv(1) == b""
        assert is_served(mutual, trusting(certificates))


def test_refused_client_is_logged_once_and_a_probe_of_the_port_is_not(
    certificates: Path, mutual: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = mutual.rpartition(":")
    socket.create_connection((host, int(port)), 20).close()
    for _ in range(3):
        assert not is_served(mutual, trusting(certificates, None))
    assert is_served(mutual, trusting(certificates))
    lines = [record.getMessage() for record in caplog.records if "TLS handshake with" in record.getMessage()]
    assert len(lines) == 1 and "PEER_DID_NOT_RETURN_A_CERTIFICATE" in lines[0]


def test_command_serves_clients_with_certificates(certificates: Path, start: Start) -> None:
    """Also a client that shares no code with Python's: curl."""
    with Broker() as broker:
        secured = ("--tls", str(certificates / "broker.pem"), "--client-ca", str(certificates / "ca.pem"))
        process = start("exporter", "--listen", "0.0.0.0:0", "--servers", f"a={broker.bootstrap_servers}", *secured)
        address = ready(process).replace("0.0.0.0", "127.0.0.1")
        until(lambda: 'kohort_exporter_up{cluster_name="a"} 1' in curl(address, certificates), "it is read", 60)
        assert not is_served(address, trusting(certificates, "stranger"))


def curl(address: str, certificates: Path) -> str:
    files = {"cacert": "ca.pem", "cert": "client.crt", "key": "client.key"}
    options = [word for name, file in files.items() for word in (f"--{name}", str(certificates / file))]
    command = ["curl", "--silent", "--show-error", "--fail", *options, f"https://{address}/metrics"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.7", "exporter.example"])
@pytest.mark.parametrize("with_tls", [False, True])
def test_command_refuses_an_address_where_everyone_would_be_served(
    certificates: Path, host: str, with_tls: bool
) -> None:
    options = ["--tls", str(certificates / "broker.pem")] if with_tls else []
    command = [*KOHORT, "exporter", "--listen", f"{host}:0", "--servers", NOBODY, *options]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 2
    words = " ".join(asked.stderr.split())
    assert "can be reached from other machines" in words
    assert "--client-ca FILE" in words and "--insecure (everyone may read every group's lag)" in words
    assert ("encrypted, but" in words) == with_tls


def test_command_serves_everyone_with_consent(start: Start) -> None:
    process = start("exporter", "--listen", "0.0.0.0:0", "--servers", NOBODY, "--insecure")
    assert is_served(ready(process).replace("0.0.0.0", "127.0.0.1"), None)


@pytest.mark.parametrize(
    ("options", "error"),
    [(["--client-ca", "ca.pem"], "--client-ca needs --tls"), (["--tls", "missing.pem"], "missing.pem")],
)
def test_command_refuses_options_that_can_not_work(options: list[str], error: str) -> None:
    command = [*KOHORT, "exporter", "--listen", "127.0.0.1:0", "--servers", NOBODY, *options]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 2
    assert error in asked.stderr

"""Servers without a login where other machines reach them: one rule, and each server's names of the ways."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from kohort import Broker
from kohort.errors import InvalidInputError
from kohort.region.region import Region
from kohort.zookeeper import ZooKeeper
from tests.lag.test_exporter_tls import certificates, is_served, trusting
from tests.support.processes import KOHORT

__all__ = ["certificates"]
NOBODY = "127.0.0.1:1"
EVERYWHERE = "0.0.0.0:0"
COMMANDS = {
    "broker": ("broker", "--listen", "127.0.0.1:0", "--data", "{folder}/data"),
    "coordinator": ("coordinator", "--kafka", NOBODY, "--listen", "127.0.0.1:0"),
    "region": ("region", "serve", "r", "--bootstrap-server", NOBODY),
}


def refusal(*arguments: str) -> str:
    """The error of a command that ends with a usage error."""
    asked = subprocess.run([*KOHORT, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert asked.returncode == 2, asked.stderr
    return " ".join(asked.stderr.split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "encrypted"])
def test_metrics_beyond_loopback_are_refused_and_the_error_names_what_is_missing(
    command: str, with_tls: bool, certificates: Path, tmp_path: Path
) -> None:
    given = [word.format(folder=tmp_path) for word in COMMANDS[command]]
    given += ["--metrics-tls", str(certificates / "broker.pem")] if with_tls else []
    said = refusal(*given, "--metrics-listen", EVERYWHERE)
    assert f"{EVERYWHERE} can be reached from other machines, and the metrics listener" in said
    assert ("encrypted, but open to everyone" in said) == with_tls
    for way in (
        "--metrics-tls FILE",
        "--metrics-client-ca FILE",
        "--metrics-insecure",
        "everyone may read the metrics",
    ):
        assert way in said


@pytest.mark.parametrize("command", COMMANDS)
def test_authorities_without_a_certificate_are_refused(command: str, tmp_path: Path) -> None:
    given = [word.format(folder=tmp_path) for word in COMMANDS[command]]
    said = refusal(*given, "--metrics-listen", "127.0.0.1:0", "--metrics-client-ca", "ca.pem")
    assert "--metrics-client-ca FILE" in said and "needs --metrics-tls FILE" in said


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:0", "metrics.example:0"])
def test_python_s_broker_and_region_refuse_metrics_beyond_loopback_too(listen: str) -> None:
    with pytest.raises(InvalidInputError, match=r"allow\.insecure\.metrics=true") as refused:
        Broker(config={"metrics.listen": listen})
    assert "metrics.tls.location" in refused.value.message and "metrics.client.ca.location" in refused.value.message
    with pytest.raises(InvalidInputError, match="metrics_insecure=True") as refused:
        Region("r", NOBODY, metrics_listen=listen)
    assert "metrics_tls=FILE with metrics_client_ca=FILE" in refused.value.message


def test_metrics_with_client_certificates_are_served_to_their_holders_alone(certificates: Path) -> None:
    files = {
        "metrics.tls.location": str(certificates / "broker.pem"),
        "metrics.client.ca.location": str(certificates / "ca.pem"),
    }
    with Broker(config={"metrics.listen": EVERYWHERE, **files}) as broker:
        listen = broker.metrics()["listen"]
        assert listen is not None
        address = str(listen).replace("0.0.0.0", "127.0.0.1")
        assert is_served(address, trusting(certificates))
        assert not is_served(address, trusting(certificates, "stranger"))
        assert not is_served(address, None)
    names = {"metrics_tls": certificates / "broker.pem", "metrics_client_ca": str(certificates / "ca.pem")}
    with Region("r", NOBODY, metrics_listen=EVERYWHERE, **names) as region:
        assert region.metrics_address is not None
        host = region.metrics_address.replace("0.0.0.0", "127.0.0.1")
        assert not is_served(host, trusting(certificates, None))


def test_metrics_are_served_to_everyone_with_consent() -> None:
    with Broker(config={"metrics.listen": EVERYWHERE, "allow.insecure.metrics": "true"}) as broker:
        address = str(broker.metrics()["listen"]).replace("0.0.0.0", "127.0.0.1")
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
            assert re.search(rb"^kohort_", answer.read(), re.MULTILINE)
    with Region("r", NOBODY, metrics_listen=EVERYWHERE, metrics_insecure=True) as region:
        assert region.metrics_address is not None


def test_spark_s_region_takes_the_same_options() -> None:
    from kohort.spark.region.spark_region import _OWN

    assert {"metrics_tls", "metrics_client_ca", "metrics_insecure"} <= _OWN


@pytest.mark.parametrize("make", [lambda: ZooKeeper("0.0.0.0"), lambda: ZooKeeper("192.0.2.7"), lambda: ZooKeeper("")])
def test_zookeeper_beyond_loopback_is_refused(make: Callable[[], ZooKeeper]) -> None:
    with pytest.raises(InvalidInputError, match=r"ZooKeeper is open to everyone.* insecure=True \(everyone may read"):
        make()
    assert "Ways to go on: --insecure (everyone may read and change" in refusal("zookeeper", "--listen", EVERYWHERE)

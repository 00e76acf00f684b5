"""`kohort scaler` asked by a client that is generated of KEDA's own externalscaler.proto, from its Go module."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")

import grpc
from grpc_tools import protoc

from kohort import Broker, Consumer, Producer
from kohort.lag import LagReader
from kohort.lag.scaler import GroupScaling, ScalerServer
from tests.lag.test_scaler import FIELDS, committed_group
from tests.support.waiting import until

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(600)]
MODULE = "github.com/kedacore/keda/v2@v2.21.0"
PROTO = "externalscaler.proto"
DOWNLOAD_S = 300


def proto_folder() -> Path:
    """Where KEDA's description of the service is; skips the test where the module can't be had."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no description of KEDA's service: go is not installed")
    try:
        run = subprocess.run(
            [go, "mod", "download", "-json", MODULE],
            capture_output=True, text=True, timeout=DOWNLOAD_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip(f"no description of KEDA's service: its Go module did not come in {DOWNLOAD_S} s")
    found = json.loads(run.stdout or "{}")
    if run.returncode or "Dir" not in found:
        pytest.skip(f"no description of KEDA's service: {str(found.get('Error', run.stderr))[-200:]}")
    return Path(found["Dir"]) / "pkg" / "scalers" / "externalscaler"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """The messages and the client, as protoc makes them."""
    into, source = tmp_path_factory.mktemp("keda"), proto_folder()
    options = [f"-I{source}", f"--python_out={into}", f"--grpc_python_out={into}", PROTO]
    assert protoc.main(["protoc", *options]) == 0
    sys.path.insert(0, str(into))
    try:
        yield importlib.import_module("externalscaler_pb2"), importlib.import_module("externalscaler_pb2_grpc")
    finally:
        sys.path.remove(str(into))


@pytest.fixture
def keda(our_broker: Broker, generated: tuple[Any, Any]) -> Iterator[Any]:
    reader = LagReader(our_broker.bootstrap_servers)
    with GroupScaling(reader, 0.2) as scaling, ScalerServer("127.0.0.1", 0, scaling) as server:
        channel = grpc.insecure_channel(server.address)
        yield generated[1].ExternalScalerStub(channel)
        channel.close()


def test_messages_of_the_other_tests_are_kedas(generated: tuple[Any, Any]) -> None:
    """So that the tests of the scaler need no Go module."""
    messages, _ = generated
    for name, fields in FIELDS.items():
        theirs = getattr(messages, name).DESCRIPTOR.fields
        ours = {(field, number, kind) for field, number, kind, _, _ in fields}
        assert {(field.name, field.number, field.type) for field in theirs} == ours, name


def test_each_call_of_kedas_client_is_answered(our_broker: Broker, generated: tuple[Any, Any], keda: Any) -> None:
    messages, _ = generated
    group, partition = committed_group(our_broker, 0)
    target = {"scalerAddress": "here:9309", "group": group, "maxLag": "30s", "minMembers": "0"}
    scaled = messages.ScaledObjectRef(name="payments", namespace="shop", scalerMetadata=target)
    assert not keda.IsActive(scaled, timeout=30).result
    (spec,) = keda.GetMetricSpec(scaled, timeout=30).metricSpecs
    assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
    request = messages.GetMetricsRequest(scaledObjectRef=scaled, metricName=spec.metricName)
    (value,) = keda.GetMetrics(request, timeout=30).metricValues
    assert (value.metricName, value.metricValue, value.metricValueFloat) == (spec.metricName, 0, 0.0)
    stream = keda.StreamIsActive(scaled, timeout=120)
    assert not next(stream).result
    with Producer(our_broker.bootstrap_servers) as producer:
        producer.send(group, b"x", partition=partition.partition)
        producer.flush()
    assert next(stream).result
    stream.cancel()
    assert keda.GetMetrics(request, timeout=30).metricValues[0].metricValueFloat == 1.0
    with Consumer(our_broker.bootstrap_servers, group_id=group) as consumer:
        consumer.subscribe([group])
        until(lambda: consumer.poll(timeout_ms=100) is None or bool(consumer.assignment), "the member has partitions")
        assert keda.IsActive(scaled, timeout=30).result


def test_errors_reach_kedas_client_as_it_reads_them(generated: tuple[Any, Any], keda: Any) -> None:
    messages, _ = generated
    with pytest.raises(grpc.RpcError) as refused:
        keda.GetMetricSpec(messages.ScaledObjectRef(scalerMetadata={"group": "g"}), timeout=30)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_call_that_is_optional_is_unimplemented(generated: tuple[Any, Any], keda: Any) -> None:
    """By KEDA's description it asks by GetMetricSpec then, as it did before it had this call."""
    messages, _ = generated
    with pytest.raises(grpc.RpcError) as refused:
        next(keda.StreamMetricSpec(messages.ScaledObjectRef(scalerMetadata={"group": "g"}), timeout=30))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

"""`kohort scaler`, asked by a real gRPC client with messages of protobuf's own library, as KEDA asks."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as some
from tests.support.nursery import run_command
from tests.support.processes import KOHORT, Start
from tests.support.secured_broker import more_certificates
from tests.support.secured_kafka import make_certificates
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, Producer, TopicPartition
from kohort.client.admin.values import GroupDescription, MemberDescription, NewTopic
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import ErrorCode, InvalidInputError, KafkaError, error_for
from kohort.io.server_certificates import ServerCertificates
from kohort.lag import GroupLag, LagReader, LagReport, PartitionLag, scaler
from kohort.lag.evaluation import ABANDONED, NO_OFFSET, TOPIC_GONE, UNAVAILABLE
from kohort.lag.scaler import (
    OBJECTS_MAX,
    GroupScaling,
    ScaledGroup,
    ScalerServer,
    decode_metrics_request,
    decode_scaled_object,
)
from kohort.lag.scaling import ScalingDecision, ScalingTarget

STRING, INT64, DOUBLE, BOOL, MESSAGE = 9, 3, 1, 8, 11
FIELDS: dict[str, list[tuple[str, int, int, str, bool]]] = {
    "ScaledObjectRef": [
        ("name", 1, STRING, "", False),
        ("namespace", 2, STRING, "", False),
        ("scalerMetadata", 3, MESSAGE, ".externalscaler.ScaledObjectRef.ScalerMetadataEntry", True),
    ],
    "IsActiveResponse": [("result", 1, BOOL, "", False)],
    "MetricSpec": [
        ("metricName", 1, STRING, "", False),
        ("targetSize", 2, INT64, "", False),
        ("targetSizeFloat", 3, DOUBLE, "", False),
    ],
    "GetMetricSpecResponse": [("metricSpecs", 1, MESSAGE, ".externalscaler.MetricSpec", True)],
    "GetMetricsRequest": [
        ("scaledObjectRef", 1, MESSAGE, ".externalscaler.ScaledObjectRef", False),
        ("metricName", 2, STRING, "", False),
    ],
    "MetricValue": [
        ("metricName", 1, STRING, "", False),
        ("metricValue", 2, INT64, "", False),
        ("metricValueFloat", 3, DOUBLE, "", False),
    ],
    "GetMetricsResponse": [("metricValues", 1, MESSAGE, ".externalscaler.MetricValue", True)],
}


def _messages() -> dict[str, Any]:
    """KEDA's messages as protobuf's own library makes them of a description."""
    file = descriptor_pb2.FileDescriptorProto(name="scaler.proto", package="externalscaler", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, repeated in fields:
            added = message.field.add(name=field, number=number, type=kind, label=3 if repeated else 1)
            if of:
                added.type_name = of
    entry = file.message_type[0].nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=STRING, label=1)
    entry.field.add(name="value", number=2, type=STRING, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"externalscaler.{name}")) for name in FIELDS
    }


MESSAGES = _messages()


class Keda:
    """A client with KEDA's calls."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        self.channel = (
            grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
        )

    def _call(self, name: str, answer: str) -> Any:
        return self.channel.unary_unary(
            f"/externalscaler.ExternalScaler/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES[answer].FromString,
        )

    def is_active(self, **metadata: str) -> bool:
        answer = self._call("IsActive", "IsActiveResponse")(scaled(**metadata), timeout=30)
        return bool(answer.result)

    def metric_spec(self, **metadata: str) -> Any:
        answer = self._call("GetMetricSpec", "GetMetricSpecResponse")(scaled(**metadata), timeout=30)
        (spec,) = answer.metricSpecs
        return spec

    def wanted(self, **metadata: str) -> int:
        request = MESSAGES["GetMetricsRequest"](scaledObjectRef=scaled(**metadata), metricName="any")
        (value,) = self._call("GetMetrics", "GetMetricsResponse")(request, timeout=30).metricValues
        assert value.metricValue == value.metricValueFloat
        return int(value.metricValue)

    def stream(self, **metadata: str) -> Any:
        return self.channel.unary_stream(
            "/externalscaler.ExternalScaler/StreamIsActive",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["IsActiveResponse"].FromString,
        )(scaled(**metadata), timeout=60)


def scaled(**metadata: str) -> Any:
    return MESSAGES["ScaledObjectRef"](name="payments", namespace="shop", scalerMetadata=metadata)


@pytest.fixture
def keda(our_broker: Broker) -> Iterator[Keda]:
    with (
        GroupScaling(LagReader(our_broker.bootstrap_servers), 0.2) as scaling,
        ScalerServer("127.0.0.1", 0, scaling) as server,
    ):
        keda = Keda(server.address)
        yield keda
        keda.channel.close()


def committed_group(broker: Broker, records: int) -> tuple[str, TopicPartition]:
    """A group without members that has read nothing of a topic."""
    name = f"keda-{uuid.uuid4().hex[:8]}"
    partition = TopicPartition(name, 0)
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic(name, 3, 1)]).all()
        for _ in range(records):
            producer.send(name, b"x", partition=0)
        producer.flush()
        admin.alter_consumer_group_offsets(name, {partition: OffsetAndMetadata(0)}).all()
    return name, partition


def test_group_with_unread_records_and_no_members_gets_one(our_broker: Broker, keda: Keda) -> None:
    group, _ = committed_group(our_broker, 5)
    target = {"group": group, "maxLag": "30s", "minMembers": "0"}
    spec = keda.metric_spec(**target)
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (f"kohort-members-{group}", 1, 1.0)
    until(lambda: keda.is_active(**target), "the group is active")
    assert keda.wanted(**target) == 1


def test_group_with_nothing_to_read_is_not_active(our_broker: Broker, keda: Keda) -> None:
    group, _ = committed_group(our_broker, 0)
    target = {"group": group, "maxLag": "30s", "minMembers": "0"}
    assert not keda.is_active(**target)
    assert keda.wanted(**target) == 0


def test_stream_tells_when_a_group_becomes_active(our_broker: Broker, keda: Keda) -> None:
    group, partition = committed_group(our_broker, 0)
    stream = keda.stream(group=group, maxLag="30s", minMembers="0")
    assert not next(stream).result
    with Producer(our_broker.bootstrap_servers) as producer:
        producer.send(group, b"x", partition=partition.partition)
        producer.flush()
    assert next(stream).result
    stream.cancel()


def test_members_that_are_there_are_wanted_until_their_rates_are_known(our_broker: Broker, keda: Keda) -> None:
    group, _ = committed_group(our_broker, 5)
    with Consumer(our_broker.bootstrap_servers, group_id=group) as consumer:
        consumer.subscribe([group])
        until(lambda: consumer.poll(timeout_ms=100) is None or bool(consumer.assignment), "the member has partitions")
        assert keda.wanted(group=group, maxLag="30s") == 1


def test_group_that_is_not_there_yet_gets_a_first_member(keda: Keda) -> None:
    assert keda.wanted(group=f"nobody-{uuid.uuid4().hex}", maxLag="30s", minMembers="0") == 1


def report_of(members: int, *parts: PartitionLag) -> LagReport:
    described = tuple(MemberDescription(f"m{number}", "c", "h", None, ()) for number in range(members))
    description = GroupDescription("g", "Consumer", "Stable", "consumer", "uniform", described)
    return LagReport(1_000_000, {"g": GroupLag(description, True, parts)})


def test_group_keeps_its_decision_while_all_its_partitions_are_unavailable() -> None:
    """An outage was taken for a lack of offsets: KEDA scaled six members in to one."""
    partition = TopicPartition("t", 0)
    before = ScalingDecision("g", 6, 6, None, "")
    watched = scaler._Watched(0.0, before)
    lost = PartitionLag(partition, 5, cause=UNAVAILABLE, error="no leader")
    unread = PartitionLag(TopicPartition("t", 1), log_start=0, log_end=5, cause=NO_OFFSET)
    scaler._decide(ScaledGroup("g", ScalingTarget(1_000)), watched, report_of(0, lost, unread))
    assert watched.decision is before
    assert watched.error == "the lag of group g is unknown: the offsets of t-0 are unavailable: no leader"


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (None, "the group has no committed offsets yet"),
        (PartitionLag(TopicPartition("t", 0), log_start=0, log_end=5, cause=NO_OFFSET), "no committed offsets yet"),
        (PartitionLag(TopicPartition("t", 0), 5, cause=TOPIC_GONE, error="gone"), "of topics that are gone"),
        (PartitionLag(TopicPartition("t", 0), 5, log_start=0, log_end=5, cause=ABANDONED), "no member subscribes to"),
    ],
)
def test_group_without_a_known_lag_keeps_its_members_within_the_targets_bounds(
    part: PartitionLag | None, why: str
) -> None:
    for members, wanted in ((0, 1), (2, 2), (9, 3)):
        watched = scaler._Watched(0.0)
        report = report_of(members, *(() if part is None else (part,)))
        scaler._decide(ScaledGroup("g", ScalingTarget(1_000, 1, 3)), watched, report)
        assert watched.decision is not None
        assert (watched.decision.members, watched.decision.wanted, watched.error) == (members, wanted, "")
        assert why in watched.decision.why


def test_group_that_is_not_found_gets_a_first_member() -> None:
    watched = scaler._Watched(0.0)
    missing = LagReport(0, errors={"g": error_for(ErrorCode.GROUP_ID_NOT_FOUND, "g")})
    scaler._decide(ScaledGroup("g", ScalingTarget(1_000, 0)), watched, missing)
    assert watched.decision is not None
    assert (watched.decision.wanted, watched.error) == (1, "")


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({}, "no group"),
        ({"group": "g"}, "maxLag: give a number"),
        ({"group": "g", "maxLag": "0s"}, "maxLag: give a number"),
        ({"group": "g", "maxLag": "30s", "minMembers": "-1"}, "minMembers: give a number"),
        ({"group": "g", "maxLag": "30s", "minMembers": "3", "maxMembers": "2"}, "the most members must be"),
    ],
)
def test_wrong_metadata_is_refused_by_every_call(keda: Keda, metadata: dict[str, str], error: str) -> None:
    for call in (keda.is_active, keda.metric_spec, keda.wanted):
        with pytest.raises(grpc.RpcError) as refused:
            call(**metadata)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error in refused.value.details()


def test_cluster_that_is_away_is_unavailable_and_not_zero_members() -> None:
    with Broker() as broker:
        servers = broker.bootstrap_servers
    with (
        GroupScaling(LagReader(servers, default_api_timeout_ms=500), 0.2) as scaling,
        ScalerServer("127.0.0.1", 0, scaling) as server,
    ):
        keda = Keda(server.address)
        with pytest.raises(grpc.RpcError) as refused:
            keda.wanted(group="g", maxLag="30s")
        keda.channel.close()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_decision_is_given_no_more_when_reads_have_stopped(our_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread ended by a fault, without an error that it could keep."""
    monkeypatch.setattr(scaler, "STALE_MIN_S", 0.5)
    wanted = ScaledGroup("g", ScalingTarget(1_000))
    with GroupScaling(LagReader(our_broker.bootstrap_servers), 0.05) as scaling:
        until(lambda: scaling.last_decision(wanted) is not None, "the group is decided")
        monkeypatch.setattr(scaling, "_read_groups", lambda names: None)
        with pytest.raises(KafkaError, match="have stopped"):
            until(lambda: scaling.last_decision(wanted) is None, "the decision is refused")


@pytest.mark.parametrize("where", ["the read", "one group"])
def test_unexpected_error_is_reported_and_decisions_continue_after_it(
    our_broker: Broker, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    bad, good = (ScaledGroup(name, ScalingTarget(1_000)) for name in ("bad", "good"))
    reader = LagReader(our_broker.bootstrap_servers)
    decide = scaler._decide

    def failing_read(*_: object, **__: object) -> LagReport:
        raise RuntimeError("a bug")

    def failing_decision(wanted: ScaledGroup, *rest: Any) -> None:
        if wanted == bad:
            raise RuntimeError("a bug")
        decide(wanted, *rest)

    with GroupScaling(reader, 0.05) as scaling:
        with monkeypatch.context() as broken:
            if where == "the read":
                broken.setattr(reader, "read", failing_read)
            else:
                broken.setattr(scaler, "_decide", failing_decision)
                until(lambda: scaling.last_decision(good) is not None, "the other group is decided")
            with pytest.raises(KafkaError, match="RuntimeError: a bug"):
                until(lambda: scaling.last_decision(bad) is not None, "the error is told")
        until(lambda: _decided(scaling, bad), "the group is decided when the fault is gone")


def _decided(scaling: GroupScaling, wanted: ScaledGroup) -> bool:
    try:
        return scaling.last_decision(wanted) is not None
    except KafkaError:
        return False


def test_groups_that_clients_name_are_bounded(our_broker: Broker) -> None:
    with GroupScaling(LagReader(our_broker.bootstrap_servers), 60) as scaling:
        for number in range(OBJECTS_MAX):
            scaling.last_decision(ScaledGroup(f"g-{number}", ScalingTarget(1_000)))
        with pytest.raises(Exception, match="are scaled already"):
            scaling.last_decision(ScaledGroup("one-more", ScalingTarget(1_000)))


def test_server_survives_garbage(our_broker: Broker, keda: Keda) -> None:
    group, _ = committed_group(our_broker, 1)
    raw = keda.channel.unary_unary("/externalscaler.ExternalScaler/GetMetrics")
    for data in (b"\xff" * 20, b"\x0a\xff\x01", b"\x1a\x02\x0a\x7f", b"\x0b"):
        with pytest.raises(grpc.RpcError) as refused:
            raw(data, timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert keda.wanted(group=group, maxLag="30s") == 1


@given(data=some.binary(max_size=200))
def test_decoder_refuses_or_decodes_any_bytes(data: bytes) -> None:
    for decode in (decode_scaled_object, decode_metrics_request):
        try:
            decode(data)
        except InvalidInputError:
            continue


@given(name=some.text(), metadata=some.dictionaries(some.text(), some.text()))
def test_decoder_reads_what_protobuf_writes(name: str, metadata: dict[str, str]) -> None:
    sent = MESSAGES["ScaledObjectRef"](name=name, namespace="n", scalerMetadata=metadata)
    found = decode_scaled_object(sent.SerializeToString())
    assert (found.name, found.namespace, dict(found.metadata)) == (name, "n", metadata)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    more_certificates(folder)
    return folder


def credentials(folder: Path, client: str | None = "client", authority: str = "ca.pem") -> grpc.ChannelCredentials:
    """A client's side of TLS: a trigger's caCert, and tlsClientKey with tlsClientCert if it has a certificate."""
    trusted = (folder / authority).read_bytes()
    if client is None:
        return grpc.ssl_channel_credentials(trusted)
    key = (folder / "client.key").read_bytes()
    return grpc.ssl_channel_credentials(trusted, key, (folder / f"{client}.crt").read_bytes())


@pytest.fixture
def mutual(our_broker: Broker, certificates: Path) -> Iterator[str]:
    """The address of a server whose clients must show a certificate."""
    tls = ServerCertificates("scaler", certificates / "broker.pem", certificates / "ca.pem")
    with (
        GroupScaling(LagReader(our_broker.bootstrap_servers), 0.2) as scaling,
        ScalerServer("127.0.0.1", 0, scaling, tls) as server,
    ):
        yield server.address


def test_client_with_a_certificate_of_the_authority_is_served(
    our_broker: Broker, certificates: Path, mutual: str
) -> None:
    group, _ = committed_group(our_broker, 5)
    keda = Keda(mutual, credentials(certificates))
    assert keda.wanted(group=group, maxLag="30s") == 1
    assert next(keda.stream(group=group, maxLag="30s")).result
    keda.channel.close()


@pytest.mark.parametrize(
    ("client", "authority"),
    [(None, "ca.pem"), ("stranger", "ca.pem"), ("old-client", "ca.pem"), ("client", "other-ca.pem")],
    ids=["no certificate", "certificate of another authority", "expired certificate", "client trusts another"],
)
def test_client_that_can_not_prove_itself_or_does_not_trust_the_server_is_not_served(
    certificates: Path, mutual: str, client: str | None, authority: str
) -> None:
    assert not is_served(mutual, credentials(certificates, client, authority))


def is_served(address: str, credentials: grpc.ChannelCredentials | None) -> bool:
    """Whether a call gets through; TLS that fails ends it with UNAVAILABLE."""
    keda = Keda(address, credentials)
    try:
        keda.metric_spec(group="payments", maxLag="30s")
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    finally:
        keda.channel.close()
    return True


def test_plain_client_gets_nothing_from_a_server_with_tls_nor_the_other_way_round(
    certificates: Path, mutual: str, keda: Keda, our_broker: Broker
) -> None:
    assert not is_served(mutual, None)
    with (
        GroupScaling(LagReader(our_broker.bootstrap_servers), 0.2) as scaling,
        ScalerServer("127.0.0.1", 0, scaling) as plain,
    ):
        assert not is_served(plain.address, credentials(certificates))
        assert is_served(plain.address, None)


def test_server_without_authorities_serves_every_client_that_trusts_it(our_broker: Broker, certificates: Path) -> None:
    with (
        GroupScaling(LagReader(our_broker.bootstrap_servers), 0.2) as scaling,
        ScalerServer("127.0.0.1", 0, scaling, ServerCertificates("scaler", certificates / "broker.pem")) as server,
    ):
        assert is_served(server.address, credentials(certificates, None))
        assert not is_served(server.address, credentials(certificates, None, "other-ca.pem"))


def test_new_files_count_for_new_connections_and_broken_ones_do_not(
    our_broker: Broker, certificates: Path, tmp_path: Path
) -> None:
    identity, authorities = tmp_path / "scaler.pem", tmp_path / "ca.pem"
    shutil.copy(certificates / "broker.pem", identity)
    shutil.copy(certificates / "other-ca.pem", authorities)
    with (
        GroupScaling(LagReader(our_broker.bootstrap_servers), 0.2) as scaling,
        ScalerServer("127.0.0.1", 0, scaling, ServerCertificates("scaler", identity, authorities)) as server,
    ):
        assert is_served(server.address, credentials(certificates, "stranger"))
        assert not is_served(server.address, credentials(certificates))
        identity.write_text("half a file")
        assert is_served(server.address, credentials(certificates, "stranger"))
        shutil.copy(certificates / "expired.pem", identity)
        assert not is_served(server.address, credentials(certificates, "stranger"))
        shutil.copy(certificates / "broker.pem", identity)
        shutil.copy(certificates / "ca.pem", authorities)
        assert is_served(server.address, credentials(certificates))
        assert not is_served(server.address, credentials(certificates, "stranger"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "scaler.example"])
def test_address_that_other_machines_reach_needs_client_certificates_or_consent(
    our_broker: Broker, certificates: Path, host: str
) -> None:
    with GroupScaling(LagReader(our_broker.bootstrap_servers), 60) as scaling:
        with pytest.raises(InvalidInputError, match="can be reached from other machines.*--client-ca.*--insecure"):
            ScalerServer(host, 0, scaling)
        with pytest.raises(InvalidInputError, match="is encrypted, but open to everyone"):
            ScalerServer(host, 0, scaling, ServerCertificates("scaler", certificates / "broker.pem"))


def test_address_that_other_machines_reach_is_served_with_client_certificates_or_consent(
    our_broker: Broker, certificates: Path
) -> None:
    mutual = ServerCertificates("scaler", certificates / "broker.pem", certificates / "ca.pem")
    with (
        GroupScaling(LagReader(our_broker.bootstrap_servers), 0.2) as scaling,
        ScalerServer("0.0.0.0", 0, scaling, mutual) as secured,
        ScalerServer("0.0.0.0", 0, scaling, is_insecure=True) as open_to_all,
    ):
        assert is_served(secured.address.replace("0.0.0.0", "127.0.0.1"), credentials(certificates))
        assert not is_served(secured.address.replace("0.0.0.0", "127.0.0.1"), credentials(certificates, None))
        assert is_served(open_to_all.address.replace("0.0.0.0", "127.0.0.1"), None)


@pytest.mark.parametrize(
    ("identity", "authorities", "error"),
    [
        ("missing.pem", None, "can't load the key and certificate of .*missing.pem"),
        ("client.crt", None, "can't load the key and certificate of .*client.crt"),
        ("client.key", None, "can't load the key and certificate of .*client.key"),
        ("ca.pem", None, "can't load the key and certificate of .*ca.pem"),
        ("broker.pem", "missing.pem", "can't load the authorities of .*missing.pem"),
        ("broker.pem", "client.key", "can't load the authorities of .*client.key"),
    ],
)
def test_file_that_is_not_what_it_should_be_is_refused_at_the_start(
    certificates: Path, identity: str, authorities: str | None, error: str
) -> None:
    with pytest.raises(InvalidInputError, match=error):
        ServerCertificates(
            "scaler", certificates / identity, None if authorities is None else certificates / authorities
        )


def test_command_serves_clients_with_certificates(our_broker: Broker, certificates: Path, start: Start) -> None:
    group, _ = committed_group(our_broker, 5)
    secured = ("--tls", str(certificates / "broker.pem"), "--client-ca", str(certificates / "ca.pem"))
    process = start("scaler", "--listen", "0.0.0.0:0", "--bootstrap-server", our_broker.bootstrap_servers, *secured)
    assert process.stdout is not None
    address = process.stdout.readline().split()[1].replace("0.0.0.0", "127.0.0.1")
    keda = Keda(address, credentials(certificates))
    assert keda.wanted(group=group, maxLag="30s") == 1
    keda.channel.close()
    assert not is_served(address, credentials(certificates, "stranger"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--listen", "0.0.0.0:0"], "0.0.0.0:0 can be reached from other machines"),
        (["--client-ca", "ca.pem"], "--client-ca needs --tls"),
        (["--tls", "missing.pem"], "missing.pem"),
    ],
)
def test_command_refuses_options_that_would_let_everyone_in_or_can_not_work(options: list[str], error: str) -> None:
    asked = run_command([*KOHORT, "scaler", *options], 60)
    assert asked.returncode == 2
    assert error in asked.stderr


def test_command_serves_only_the_groups_that_it_names(our_broker: Broker, start: Start) -> None:
    group, _ = committed_group(our_broker, 5)
    servers = ("--bootstrap-server", our_broker.bootstrap_servers)
    process = start("scaler", "--listen", "127.0.0.1:0", *servers, "--group", "other", "--group", group)
    assert process.stdout is not None
    keda = Keda(process.stdout.readline().split()[1])
    assert keda.wanted(group=group, maxLag="30s") == 1
    for call in (keda.wanted, keda.is_active, keda.metric_spec, lambda **named: next(keda.stream(**named))):
        with pytest.raises(grpc.RpcError) as refused:
            call(group=f"{group}-not", maxLag="30s")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    keda.channel.close()


def test_command_serves_keda_until_it_is_ended(our_broker: Broker, start: Start) -> None:
    group, _ = committed_group(our_broker, 5)
    process = start("scaler", "--listen", "127.0.0.1:0", "--bootstrap-server", our_broker.bootstrap_servers)
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    assert ready[0] == "ready"
    keda = Keda(ready[1])
    assert keda.wanted(group=group, maxLag="30s") == 1
    keda.channel.close()
    process.terminate()
    assert process.wait(60) == 0


def test_command_without_grpc_names_the_extra(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("without")
    (folder / "grpc.py").write_text("raise ModuleNotFoundError('No module named grpc', name='grpc')")
    asked = subprocess.run(
        [*KOHORT, "scaler"], capture_output=True, text=True, timeout=60, check=False, env={"PYTHONPATH": str(folder)}
    )
    assert asked.returncode == 2
    assert "pip install 'kohort[scaler]'" in asked.stderr

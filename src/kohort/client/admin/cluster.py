"""The cluster itself: its brokers, features and disks, as coroutines over a `Cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kohort.client.admin.routing import broker_timeout_ms, retry_each, send_to_controller
from kohort.client.admin.values import (
    ClusterDescription,
    FeatureDescription,
    LogDir,
    NodeDescription,
    ReplicaOnDisk,
    Results,
)
from kohort.client.net.cluster import ANY, CONTROLLER, Between, BrokerById, Cluster
from kohort.client.net.negotiation import SOFTWARE_NAME, SOFTWARE_VERSION
from kohort.errors import ErrorCode, KafkaError, RetriableError, error_for
from kohort.ids import TopicPartition
from kohort.wire.cluster_admin import DescribeLogDirsRequest, DescribeLogDirsResponse, UpdateFeaturesRequest
from kohort.wire.discovery import ApiVersionsRequest, DescribeClusterRequest

_FEATURES_SINCE = 3
"""The first version of ApiVersions with features."""
_UPGRADE, _SAFE_DOWNGRADE = 1, 2


async def describe_cluster(cluster: Cluster, *, timeout_ms: float | None = None) -> ClusterDescription:
    """Describe the cluster: its id, brokers and controller."""

    async def describe_cluster_once() -> ClusterDescription:
        answer = await cluster.send(DescribeClusterRequest(), ANY)
        if answer.error_code:
            raise error_for(answer.error_code, answer.error_message or "describe cluster")
        nodes = [NodeDescription(node.broker_id, node.host, node.port, node.rack) for node in answer.brokers]
        return ClusterDescription(
            answer.cluster_id, answer.controller_id, tuple(sorted(nodes, key=lambda node: node.id))
        )

    return await cluster.retry_call(describe_cluster_once, "describe cluster", timeout_ms)


async def describe_features(cluster: Cluster, *, timeout_ms: float | None = None) -> dict[str, FeatureDescription]:
    """Return each feature's finalized level, and the levels that the answering broker supports (KIP-584)."""
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)

    async def describe_features_once() -> dict[str, FeatureDescription]:
        answer = await cluster.send(Between(request, lowest=_FEATURES_SINCE), ANY)
        if answer.error_code:
            raise error_for(answer.error_code, "describe features")
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        ranges = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
        return {
            name: FeatureDescription(levels.get(name, 0), *ranges.get(name, (0, 0)))
            for name in sorted({*levels, *ranges})
        }

    return await cluster.retry_call(describe_features_once, "describe features", timeout_ms)


async def update_features(
    cluster: Cluster,
    levels: Mapping[str, int],
    *,
    allow_downgrade: bool = False,
    validate_only: bool = False,
    timeout_ms: float | None = None,
) -> Results[str, None]:
    """Set the levels of features: all or none. A lower level than now needs `allow_downgrade`."""
    request = UpdateFeaturesRequest(
        timeout_ms=broker_timeout_ms(cluster, timeout_ms),
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name,
                max_version_level=level,
                allow_downgrade=allow_downgrade,
                upgrade_type=_SAFE_DOWNGRADE if allow_downgrade else _UPGRADE,
            )
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )

    async def send_update_features(_: Sequence[str]) -> dict[str, KafkaError | None]:
        answer = await cluster.send(request, CONTROLLER, timeout_ms=timeout_ms)
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            return dict.fromkeys(levels, error_for(code, answer.error_message or f"features: {code.text}"))
        outcomes: dict[str, KafkaError | None] = dict.fromkeys(levels)
        for result in answer.results:
            if result.error_code:
                outcomes[result.feature] = error_for(result.error_code, result.error_message or result.feature)
        return outcomes

    return await send_to_controller(cluster, list(levels), send_update_features, "update features", timeout_ms)


async def describe_log_dirs(
    cluster: Cluster, brokers: Iterable[int] | None = None, *, timeout_ms: float | None = None
) -> Results[int, dict[str, LogDir]]:
    """Describe the log directories of brokers by path, with the sizes of their replicas; None: of every broker."""
    done: dict[int, dict[str, LogDir] | KafkaError] = {}
    wanted: set[int] = set()

    async def describe_log_dirs_once() -> None:
        known = await cluster.refresh_metadata(timeout_ms)
        failed: KafkaError | None = None
        wanted.update(known.brokers if brokers is None else brokers)
        for node in sorted(wanted):
            if node in done:
                continue
            if node not in known.brokers:
                done[node] = error_for(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {node} now")
                continue
            try:
                done[node] = _log_dirs(await cluster.send(DescribeLogDirsRequest(topics=None), BrokerById(node)))
            except RetriableError as error:
                failed = error
            except KafkaError as error:
                done[node] = error
        if failed is not None:
            raise failed

    await retry_each(cluster, describe_log_dirs_once, wanted, done, "describe log dirs", timeout_ms)
    return Results.of(done)


def _log_dirs(answer: DescribeLogDirsResponse) -> dict[str, LogDir] | KafkaError:
    if answer.error_code:
        return error_for(answer.error_code, "describe log dirs")
    return {
        log_dir.log_dir: LogDir(
            None if not log_dir.error_code else str(error_for(log_dir.error_code)),
            log_dir.total_bytes,
            log_dir.usable_bytes,
            {
                TopicPartition(topic.name, part.partition_index): ReplicaOnDisk(
                    part.partition_size, part.offset_lag, part.is_future_key
                )
                for topic in log_dir.topics
                for part in topic.partitions
            },
        )
        for log_dir in answer.results
    }

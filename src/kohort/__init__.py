"""Kafka consumer groups in one Python package: broker, coordinator, client, region and Spark source.

The public names are imported when they are first used, so that `import kohort` stays quick. Every type that their
signatures name is here too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.broker import Broker as Broker
    from kohort.broker.embedded import (
        BrokerFaults as BrokerFaults,
    )
    from kohort.broker.embedded import (
        FaultHandle as FaultHandle,
    )
    from kohort.broker.server.fault_kinds import Fault as Fault
    from kohort.client.admin.admin import Admin as Admin
    from kohort.client.admin.async_admin import AsyncAdmin as AsyncAdmin
    from kohort.client.admin.values import (
        Acl as Acl,
    )
    from kohort.client.admin.values import (
        AclFilter as AclFilter,
    )
    from kohort.client.admin.values import (
        AclPattern as AclPattern,
    )
    from kohort.client.admin.values import (
        AclPermission as AclPermission,
    )
    from kohort.client.admin.values import (
        AclResource as AclResource,
    )
    from kohort.client.admin.values import (
        ClusterDescription as ClusterDescription,
    )
    from kohort.client.admin.values import (
        ConfigEntry as ConfigEntry,
    )
    from kohort.client.admin.values import (
        ConfigResource as ConfigResource,
    )
    from kohort.client.admin.values import (
        CreatedTopic as CreatedTopic,
    )
    from kohort.client.admin.values import (
        FeatureDescription as FeatureDescription,
    )
    from kohort.client.admin.values import (
        GroupDescription as GroupDescription,
    )
    from kohort.client.admin.values import (
        GroupListing as GroupListing,
    )
    from kohort.client.admin.values import (
        GroupRebalanced as GroupRebalanced,
    )
    from kohort.client.admin.values import (
        ListedOffset as ListedOffset,
    )
    from kohort.client.admin.values import (
        LogDir as LogDir,
    )
    from kohort.client.admin.values import (
        MemberDescription as MemberDescription,
    )
    from kohort.client.admin.values import (
        NewTopic as NewTopic,
    )
    from kohort.client.admin.values import (
        NodeDescription as NodeDescription,
    )
    from kohort.client.admin.values import (
        OffsetSpec as OffsetSpec,
    )
    from kohort.client.admin.values import (
        PartitionResults as PartitionResults,
    )
    from kohort.client.admin.values import (
        ProducerIdentity as ProducerIdentity,
    )
    from kohort.client.admin.values import (
        ProducerState as ProducerState,
    )
    from kohort.client.admin.values import (
        QuotaEntity as QuotaEntity,
    )
    from kohort.client.admin.values import (
        RebalanceCause as RebalanceCause,
    )
    from kohort.client.admin.values import (
        ReplicaOnDisk as ReplicaOnDisk,
    )
    from kohort.client.admin.values import (
        ResourceType as ResourceType,
    )
    from kohort.client.admin.values import (
        Results as Results,
    )
    from kohort.client.admin.values import (
        ScramCredential as ScramCredential,
    )
    from kohort.client.admin.values import (
        ScramMechanism as ScramMechanism,
    )
    from kohort.client.admin.values import (
        TransactionDescription as TransactionDescription,
    )
    from kohort.client.admin.values import (
        TransactionListing as TransactionListing,
    )
    from kohort.client.consumer.async_consumer import AsyncConsumer as AsyncConsumer
    from kohort.client.consumer.commits import OnCommit as OnCommit
    from kohort.client.consumer.consumer import Consumer as Consumer
    from kohort.client.consumer.core import ConsumerMetrics as ConsumerMetrics
    from kohort.client.consumer.core import WakeupError as WakeupError
    from kohort.client.consumer.records import Records as Records
    from kohort.client.net.metadata import (
        PartitionInfo as PartitionInfo,
    )
    from kohort.client.net.metadata import (
        TopicInfo as TopicInfo,
    )
    from kohort.client.net.thread_driver import ClientClosedError as ClientClosedError
    from kohort.client.offsets import GroupMetadata as GroupMetadata
    from kohort.client.offsets import HoldingListener as HoldingListener
    from kohort.client.offsets import OffsetAndMetadata as OffsetAndMetadata
    from kohort.client.offsets import OffsetAndTimestamp as OffsetAndTimestamp
    from kohort.client.offsets import RebalanceListener as RebalanceListener
    from kohort.client.producer.async_producer import AsyncProducer as AsyncProducer
    from kohort.client.producer.batches import (
        Delivery as Delivery,
    )
    from kohort.client.producer.batches import (
        RecordMetadata as RecordMetadata,
    )
    from kohort.client.producer.batches import (
        TableDelivery as TableDelivery,
    )
    from kohort.client.producer.core import OnDelivery as OnDelivery
    from kohort.client.producer.producer import Producer as Producer
    from kohort.client.producer.sender import ProducerMetrics as ProducerMetrics
    from kohort.client.producer.settings import ProducerConfig as ProducerConfig
    from kohort.client.setting_types import (
        ConnectionSettings as ConnectionSettings,
    )
    from kohort.client.setting_types import (
        ConsumerSettings as ConsumerSettings,
    )
    from kohort.client.setting_types import (
        ProducerSettings as ProducerSettings,
    )
    from kohort.client.settings import (
        ConnectionConfig as ConnectionConfig,
    )
    from kohort.client.settings import (
        ConsumerConfig as ConsumerConfig,
    )
    from kohort.client.settings import (
        Servers as Servers,
    )
    from kohort.columns import Record as Record
    from kohort.columns.encode import ColumnNames as ColumnNames
    from kohort.columns.shapes import Header as Header
    from kohort.columns.shapes import HeadersLike as HeadersLike
    from kohort.errors import (
        CommitFailedError as CommitFailedError,
    )
    from kohort.errors import (
        CorruptDataError as CorruptDataError,
    )
    from kohort.errors import (
        ErrorCode as ErrorCode,
    )
    from kohort.errors import (
        FencedError as FencedError,
    )
    from kohort.errors import (
        InvalidInputError as InvalidInputError,
    )
    from kohort.errors import (
        KafkaError as KafkaError,
    )
    from kohort.errors import (
        NotAuthorizedError as NotAuthorizedError,
    )
    from kohort.errors import (
        NotFoundError as NotFoundError,
    )
    from kohort.errors import (
        OffsetError as OffsetError,
    )
    from kohort.errors import (
        RecordsRefusedError as RecordsRefusedError,
    )
    from kohort.errors import (
        RetriableError as RetriableError,
    )
    from kohort.errors import (
        TimedOutError as TimedOutError,
    )
    from kohort.ids import AclOperation as AclOperation
    from kohort.ids import TopicPartition as TopicPartition
    from kohort.schema_registry.registry import RegisteredSchema as RegisteredSchema
    from kohort.schema_registry.registry import SchemaReference as SchemaReference
    from kohort.schema_registry.registry import SchemaRegistry as SchemaRegistry

__version__ = "1.0.0rc1"

_NAMES = {
    "kohort.broker": ("Broker",),
    "kohort.broker.embedded": (
        "BrokerFaults",
        "FaultHandle",
    ),
    "kohort.broker.server.fault_kinds": ("Fault",),
    "kohort.client.admin.admin": ("Admin",),
    "kohort.client.admin.async_admin": ("AsyncAdmin",),
    "kohort.client.admin.values": (
        "Acl",
        "AclFilter",
        "AclPattern",
        "AclPermission",
        "AclResource",
        "ClusterDescription",
        "ConfigEntry",
        "ConfigResource",
        "CreatedTopic",
        "FeatureDescription",
        "GroupDescription",
        "GroupListing",
        "GroupRebalanced",
        "ListedOffset",
        "LogDir",
        "MemberDescription",
        "NewTopic",
        "NodeDescription",
        "OffsetSpec",
        "PartitionResults",
        "ProducerIdentity",
        "ProducerState",
        "QuotaEntity",
        "RebalanceCause",
        "ReplicaOnDisk",
        "ResourceType",
        "Results",
        "ScramCredential",
        "ScramMechanism",
        "TransactionDescription",
        "TransactionListing",
    ),
    "kohort.client.consumer.async_consumer": ("AsyncConsumer",),
    "kohort.client.consumer.commits": ("OnCommit",),
    "kohort.client.consumer.consumer": ("Consumer",),
    "kohort.client.consumer.core": ("ConsumerMetrics", "WakeupError"),
    "kohort.client.consumer.records": ("Records",),
    "kohort.client.net.metadata": (
        "PartitionInfo",
        "TopicInfo",
    ),
    "kohort.client.net.thread_driver": ("ClientClosedError",),
    "kohort.client.offsets": (
        "GroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "HoldingListener",
        "RebalanceListener",
    ),
    "kohort.client.producer.async_producer": ("AsyncProducer",),
    "kohort.client.producer.batches": (
        "Delivery",
        "RecordMetadata",
        "TableDelivery",
    ),
    "kohort.client.producer.core": ("OnDelivery",),
    "kohort.client.producer.producer": ("Producer",),
    "kohort.client.producer.sender": ("ProducerMetrics",),
    "kohort.client.producer.settings": ("ProducerConfig",),
    "kohort.client.setting_types": (
        "ConnectionSettings",
        "ConsumerSettings",
        "ProducerSettings",
    ),
    "kohort.client.settings": (
        "ConnectionConfig",
        "ConsumerConfig",
        "Servers",
    ),
    "kohort.columns": ("Record",),
    "kohort.columns.encode": ("ColumnNames",),
    "kohort.columns.shapes": ("Header", "HeadersLike"),
    "kohort.errors": (
        "CommitFailedError",
        "CorruptDataError",
        "ErrorCode",
        "FencedError",
        "InvalidInputError",
        "KafkaError",
        "NotAuthorizedError",
        "NotFoundError",
        "OffsetError",
        "RecordsRefusedError",
        "RetriableError",
        "TimedOutError",
    ),
    "kohort.ids": ("AclOperation", "TopicPartition"),
    "kohort.schema_registry.registry": ("RegisteredSchema", "SchemaReference", "SchemaRegistry"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kohort' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

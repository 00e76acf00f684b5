"""Consumer groups in a consistent region: members of a group checkpoint, drain and reset together.

A *sequence* is one complete checkpoint with its output. Its number is Flink's checkpoint id, and what a batch id is in
Structured Streaming: sequences are numbered from 1, and each is published once.

    from kohort.region import ParquetFolder, Region

    region = Region("flights", servers, checkpoint_every="5s")
    with region.consumer("worker-1", group_id="etl", topics=["flights"], into=ParquetFolder("out")) as consumer:
        for table in consumer.tables():
            consumer.submit(transform(table))

Source: spec 5.1-5.13.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.region.consumer import RegionConsumer as RegionConsumer
    from kohort.region.consuming.after_snapshot import after as after
    from kohort.region.consuming.member_thread import RegionStoppedError as RegionStoppedError
    from kohort.region.consuming.settings import MemberSettings as MemberSettings
    from kohort.region.keyed_state.place import KeyedState as KeyedState
    from kohort.region.keyed_state.states import StateMapping as StateMapping
    from kohort.region.region import Region as Region
    from kohort.region.sinks import Keep as Keep
    from kohort.region.sinks import Sink as Sink
    from kohort.region.sinks.delta_table import DeltaTable as DeltaTable
    from kohort.region.sinks.ducklake_table import DuckLakeTable as DuckLakeTable
    from kohort.region.sinks.iceberg_table import IcebergTable as IcebergTable
    from kohort.region.sinks.kafka_topic import KafkaTopic as KafkaTopic
    from kohort.region.sinks.parquet_folder import ParquetFolder as ParquetFolder
    from kohort.region.sinks.rows import RowRefusedError as RowRefusedError
    from kohort.region.sinks.sql_table import SqlTable as SqlTable
    from kohort.region.staged import StagedKey as StagedKey

_HOMES = {
    "DeltaTable": "sinks.delta_table",
    "DuckLakeTable": "sinks.ducklake_table",
    "IcebergTable": "sinks.iceberg_table",
    "KafkaTopic": "sinks.kafka_topic",
    "Keep": "sinks",
    "KeyedState": "keyed_state.place",
    "MemberSettings": "consuming.settings",
    "ParquetFolder": "sinks.parquet_folder",
    "StateMapping": "keyed_state.states",
    "Region": "region",
    "RegionConsumer": "consumer",
    "RegionStoppedError": "consuming.member_thread",
    "RowRefusedError": "sinks.rows",
    "Sink": "sinks",
    "SqlTable": "sinks.sql_table",
    "StagedKey": "staged",
    "after": "consuming.after_snapshot",
}
__all__ = [
    "DeltaTable",
    "DuckLakeTable",
    "IcebergTable",
    "KafkaTopic",
    "Keep",
    "KeyedState",
    "MemberSettings",
    "ParquetFolder",
    "Region",
    "RegionConsumer",
    "RegionStoppedError",
    "RowRefusedError",
    "Sink",
    "SqlTable",
    "StagedKey",
    "StateMapping",
    "after",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kohort.region' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kohort.region.{home}"), name)
    globals()[name] = value
    return value

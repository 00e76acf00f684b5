"""Ready-made functions for `key_deserializer` and `value_deserializer`; any function of bytes will do as well.

Consumer(..., key_deserializer=text, value_deserializer=json)
Consumer(..., value_deserializer=arrow_rows)
Consumer(..., value_deserializer=lambda data: avro.decode(data))
"""

from __future__ import annotations

import dataclasses
import json as _json  # not msgspec: applications get what Python's json gives
from typing import TYPE_CHECKING, Any

from kohort.client.consumer.effects import DecodeRecordSets
from kohort.client.settings import ConsumerConfig
from kohort.columns import decode
from kohort.errors import CorruptDataError, InvalidInputError

if TYPE_CHECKING:
    from kohort.columns.decoded import Decoded
    from kohort.schema_registry.registry import SchemaRegistry


def text(data: bytes) -> str:
    """Decode UTF-8 text.

    Raises:
        CorruptDataError: The bytes are not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"no UTF-8 text: {error}") from error


def json(data: bytes) -> Any:
    """Decode a JSON document.

    Raises:
        CorruptDataError: The bytes are not JSON.
    """
    try:
        return _json.loads(data)
    except ValueError as error:
        raise CorruptDataError(f"no JSON: {error}") from error


def arrow_rows(data: bytes) -> list[dict[str, Any]]:
    """Decode the rows of an Arrow IPC stream.

    Raises:
        CorruptDataError: The bytes are no Arrow stream.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(data) as stream:
            rows: list[dict[str, Any]] = stream.read_all().to_pylist()
    except pa.ArrowInvalid as error:
        raise CorruptDataError(f"no Arrow stream: {error}") from error
    return rows


def with_schema_registry(
    config: ConsumerConfig, *, schemas_are_prepared: bool = False
) -> tuple[ConsumerConfig, SchemaRegistry | None]:
    """Return a configuration that deserializes values by its schema registry, and the registry's client.

    Without `schema_registry_url`, return the configuration unchanged, and None.

    Args:
        config: the configuration.
        schemas_are_prepared: whether `decode_and_look_up_schemas` looks schemas up first, so that deserializing makes
            no request.

    Raises:
        InvalidInputError: the URL is invalid, or there is another deserializer of values.
    """
    if config.schema_registry_url is None:
        return config, None
    if config.value_deserializer is not None:
        raise InvalidInputError("schema.registry.url and value.deserializer both deserialize values: give one of them")
    from kohort.schema_registry.registry import SchemaRegistry

    registry = SchemaRegistry(config.schema_registry_url)
    deserialize = registry.deserialize_prepared if schemas_are_prepared else registry.deserialize
    return dataclasses.replace(config, value_deserializer=deserialize), registry


def decode_and_look_up_schemas(effect: DecodeRecordSets, registry: SchemaRegistry) -> Decoded:
    """Decode records, and look up the schemas of their values in the registry.

    Runs in a thread, so that deserializers that run on the event loop later never wait for the registry.
    """
    import pyarrow.compute as pc

    found = decode(effect.sets, effect.options)
    batch = found.to_arrow()
    if "value" in batch.schema.names:
        prefixes = pc.unique(pc.binary_slice(batch.column("value").drop_null(), 0, 5))
        registry.prepare(prefix for prefix in prefixes.to_pylist() if isinstance(prefix, bytes))
    return found

"""Ready-made functions for `key_deserializer` and `value_deserializer`; any function of bytes will do as well.

Consumer(..., key_deserializer=text, value_deserializer=json)
Consumer(..., value_deserializer=arrow_rows)
Consumer(..., value_deserializer=lambda data: avro.decode(data))
"""

from __future__ import annotations

import dataclasses
import json as _json  # not msgspec: applications get what Python's json gives
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

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
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"no JSON: {error}") from error


# -- Rows of an Arrow IPC stream. The stream is a stranger's: its lengths and offsets are checked before they are used

ARROW_BYTES_MAX = 256 * 1024 * 1024
"""Most bytes of a stream's columns: 16 KB of compressed ones can stand for half a gigabyte."""
ARROW_VALUES_MAX = 5_000_000
"""Most values of a stream's columns, nulls and nested ones included. As Python objects they take a gigabyte."""
_SUPPORTED_VERSION = 4
"""Version 5 of Arrow's metadata, the first that has the field by which compressed columns are recognised (2020)."""
_INT64 = struct.Struct("<q")


def arrow_rows(data: bytes) -> list[dict[str, Any]]:
    """Decode the rows of an Arrow IPC stream.

    Raises:
        CorruptDataError: The bytes are no Arrow stream, it has more than 256 MiB or 5 million values, or Python has no
            such values (a date after the year 9999).
    """
    import pyarrow as pa

    try:
        _check_arrow_size(data)
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
        table.validate(full=True)  # offsets beyond a buffer would show other memory, or end the process
        if sum(_python_bytes(chunk) for column in table.columns for chunk in column.chunks) > ARROW_BYTES_MAX:
            raise CorruptDataError(f"an Arrow stream whose values have more than {ARROW_BYTES_MAX} bytes")
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, TypeError, LookupError, ArithmeticError, OSError, struct.error, pa.ArrowException) as error:
        raise CorruptDataError(f"no Arrow stream: {error}") from error
    return rows


def _check_arrow_size(data: bytes) -> None:
    """Check how many bytes and values the columns of a stream have, before they are decompressed.

    The fields' numbers are those of `Message.fbs` in Arrow's description of its columnar format.

    Raises:
        CorruptDataError: They have too many.
        ValueError, OSError, struct.error: The bytes are no Arrow stream.
    """
    import pyarrow as pa

    size = values = 0
    for message in pa.ipc.MessageReader.open_stream(data):
        if message.type not in ("record batch", "dictionary"):
            continue
        if message.metadata_version < _SUPPORTED_VERSION:
            raise ValueError("it is in a form of before Arrow 1.0")
        table = _FlatbufferTable.root(bytes(message.metadata)).child(2)
        batch = table if message.type == "record batch" else table.child(1)
        values += max(batch.int64(0), sum(max(0, length) for length, _ in batch.pairs(1)))
        is_compressed, body = bool(batch.field(3)), memoryview(message.body or b"")
        for offset, length in batch.pairs(2):
            inside = _INT64.unpack_from(body, offset)[0] if is_compressed and length else -1
            size += max(0, length) if inside < 0 else inside
        if size > ARROW_BYTES_MAX or values > ARROW_VALUES_MAX:
            raise CorruptDataError(f"an Arrow stream of more than {ARROW_BYTES_MAX} bytes or {ARROW_VALUES_MAX} values")


class _FlatbufferTable(NamedTuple):
    """A table in a flatbuffer that Arrow has verified, by its position."""

    data: bytes
    position: int

    @classmethod
    def root(cls, data: bytes) -> _FlatbufferTable:
        return cls(data, int.from_bytes(data[:4], "little"))

    def field(self, number: int) -> int:
        """Return the position of a field; 0 if the table lacks it."""
        vtable = self.position - self._number(self.position, 4, signed=True)
        at = 4 + 2 * number
        offset = self._number(vtable + at, 2) if at < self._number(vtable, 2) else 0
        return self.position + offset if offset else 0

    def child(self, number: int) -> _FlatbufferTable:
        """Return the table that a field refers to.

        Raises:
            ValueError: The field is missing.
        """
        at = self.field(number)
        if not at:
            raise ValueError("a message without its content")
        return _FlatbufferTable(self.data, at + self._number(at, 4))

    def int64(self, number: int) -> int:
        """Return a 64-bit integer; 0 if the table lacks the field."""
        at = self.field(number)
        return self._number(at, 8, signed=True) if at else 0

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """Return a vector of structures of two 64-bit integers; empty if the field is missing."""
        at = self.field(number)
        if not at:
            return []
        start = at + self._number(at, 4)
        count = self._number(start, 4)
        numbers = struct.unpack_from(f"<{2 * count}q", self.data, start + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _number(self, at: int, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.data[at : at + size], "little", signed=signed)


def _python_bytes(array: Any) -> int:
    """Return an upper bound of the bytes of an array's values as Python objects, where one may stand for many.

    A dictionary, runs and views refer to a stored value any number of times. Python gets a copy each time.
    """
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        return len(array) * _longest(array.dictionary)
    if pa.types.is_run_end_encoded(kind):
        return len(array) * _longest(array.values)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        lengths = memoryview(array.buffers()[1]).cast("i")[4 * array.offset : 4 * (array.offset + len(array)) : 4]
        return sum(length for length in lengths if length > 0)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        raise CorruptDataError(f"an Arrow stream with a column of the type {kind}, which is not read")
    if isinstance(array, pa.ExtensionArray):
        return _python_bytes(array.storage)
    if pa.types.is_map(kind):
        parts = [array.keys, array.items]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        parts = [array.flatten()]
    elif pa.types.is_struct(kind) or pa.types.is_union(kind):
        parts = [array.field(number) for number in range(kind.num_fields)]
    else:
        parts = []
    return sum(map(_python_bytes, parts))


def _longest(values: Any) -> int:
    """Return the bytes of the longest value of an array; of an array whose values have parts, those of all."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        longest: int | None = pc.max(pc.binary_length(values)).as_py()
        return longest or 0
    return max(_python_bytes(values), int(values.nbytes))


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

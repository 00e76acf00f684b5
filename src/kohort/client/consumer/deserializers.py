"""Ready-made functions for `key_deserializer` and `value_deserializer`; any function of bytes will do as well.

Consumer(..., key_deserializer=text, value_deserializer=json)
Consumer(..., value_deserializer=arrow_rows)
Consumer(..., value_deserializer=lambda data: avro.decode(data))
"""

from __future__ import annotations

import json as _json  # not msgspec: applications get what Python's json gives
from typing import Any

from kohort.errors import CorruptDataError


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

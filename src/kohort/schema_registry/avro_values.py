"""Avro values with a schema id before them, as Python objects, by fastavro."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.schema_registry.avro_limits import avro_schema, check_avro_schema, parsed_schema, without_defaults
from kohort.schema_registry.prefix import PREFIX_BYTES, check_value_size, schema_prefix

DECIMAL_BYTES = 64
"""Most bytes of a decimal: they hold 153 digits, and the widest decimals of databases have 76 (BigQuery, Arrow).

The conversion to decimal digits is quadratic: 256 KiB took 7 s of CPU.
"""
_EXACT = Context(prec=3 * DECIMAL_BYTES)
_BOUNDED = "kohort-decimal"
"""The logical type by which fastavro calls `_bounded_decimal`; its own conversion stays for the application."""


def avro_reader(text: str, name: str, max_bytes: int) -> Callable[[bytes], Any]:
    """Return a function that reads a value of a schema, after a schema id.

    Args:
        text: the schema.
        name: names the schema in errors.
        max_bytes: the maximum size of a value. It is divided by the number of records and nulls that one byte of a
            value can decode to, as in arrays of nested records.

    Raises:
        InvalidInputError: the schema is invalid, or a hostile value could abuse it.
    """
    found, density = check_avro_schema(text, name)
    schema, most = parsed_schema(_with_bounded_decimals(without_defaults(found)), name), max_bytes // density
    from fastavro import schemaless_reader
    from fastavro.read import LOGICAL_READERS

    for kind in ("bytes", "fixed"):
        LOGICAL_READERS[f"{kind}-{_BOUNDED}"] = _bounded_decimal

    def read_value(data: bytes) -> Any:
        check_value_size(data, most)
        stream = io.BytesIO(data)
        stream.seek(PREFIX_BYTES)
        try:
            found = schemaless_reader(stream, schema, None)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (damaged bytes make it raise nearly anything)
            raise CorruptDataError(f"no value of {name}: {type(error).__name__}: {str(error)[:200]}") from None
        if stream.tell() != len(data):
            raise CorruptDataError(f"no value of {name}: {len(data) - stream.tell()} bytes follow it")
        return found

    return read_value


def avro_writer(text: str, number: int) -> Callable[[Any], bytes]:
    """Return a function that writes a schema id and a value of that schema.

    Args:
        text: the schema.
        number: the schema's id.

    Raises:
        InvalidInputError: the schema is invalid.
    """
    schema = parsed_schema(avro_schema(text, "the schema"), "the schema")
    from fastavro import schemaless_writer
    from fastavro.validation import ValidationError, validate

    prefix = schema_prefix(number)

    def write_value(value: Any) -> bytes:
        stream = io.BytesIO()
        stream.write(prefix)
        try:
            validate(value, schema)  # the writer alone takes 2^40 for an int
            schemaless_writer(stream, schema, value, strict_allow_default=True)
        except ValidationError as error:
            raise InvalidInputError(f"the value is not of the schema: {_first_reason(error)}") from None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
            raise InvalidInputError(f"the value is not of the schema: {type(error).__name__}: {error}") from None
        return stream.getvalue()

    return write_value


def _with_bounded_decimals(schema: Any) -> Any:
    """Return a schema whose decimals fastavro reads by `_bounded_decimal`."""
    if isinstance(schema, list):
        return [_with_bounded_decimals(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _BOUNDED if key == "logicalType" and part == "decimal" else _with_bounded_decimals(part)
        for key, part in schema.items()
    }


def _bounded_decimal(data: bytes, schema: Any = None, _reader: Any = None) -> Decimal:
    """Decode a decimal from bytes; fastavro calls this for the logical type.

    Raises:
        ValueError: the decimal has too many bytes or digits.
    """
    if len(data) > DECIMAL_BYTES:
        raise ValueError(f"a decimal of {len(data)} bytes; {DECIMAL_BYTES} are read")
    number, precision = int.from_bytes(data, "big", signed=True), schema["precision"]
    if len(str(abs(number))) > precision:
        raise ValueError(f"a decimal with more digits than its precision of {precision}")
    return Decimal(number).scaleb(-schema.get("scale", 0), _EXACT)


def _first_reason(error: Any) -> str:
    """Return the first reason for which fastavro's validation refused a value, shortened to 200 characters."""
    return str(next(iter(error.errors), error)).strip()[:200]
